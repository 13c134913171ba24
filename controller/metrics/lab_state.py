"""How a lab and its controller are now, as metrics: looked up when somebody scrapes.

What is gone (a job that ended, a device that was removed) is in none of them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import TYPE_CHECKING, get_args

from patchlight.controller.changes.preflight import LockKind
from patchlight.controller.changes.record import State
from patchlight.controller.circuits.contract import Severity
from patchlight.controller.hosts.agent_client import VERSION
from patchlight.controller.jobs.policy_set import named
from patchlight.controller.metrics.families import Family, by_name, counter, gauge, single
from patchlight.testbed.jobs import JobState
from patchlight.testbed.lab.rules import KINDS
from patchlight.testbed.wire.agent_status import GpuStatus, GpuTelemetry

if TYPE_CHECKING:
    from patchlight.controller.openflow.client import Speaker
    from patchlight.controller.openflow.packet_switches import PacketSwitches
    from patchlight.controller.parts import Controller


_RATES_OF_S = 5.0
_BITS_PER_BYTE = 8
_COUNTED = {
    "connections": "How often a packet switch connected to the speaker.",
    "sent": "OpenFlow messages that went to a packet switch.",
    "received": "OpenFlow messages that came from a packet switch.",
    "errors": "OpenFlow errors that a packet switch sent.",
}
_NAMES = {"sent": "sent_messages", "received": "received_messages"}
_REFUSED_FOR = ("tls", "certificate", "second", "unknown")

_PER_BYTE = 1 / 8
_GAUGES = {
    "memory_bytes": ("memory_bytes", "Memory of a GPU.", 1.0),
    "memory_used_bytes": ("memory_used_bytes", "Memory of a GPU in use.", 1.0),
    "power_w": ("power_watts", "Power that a GPU draws.", 1.0),
    "temperature_c": ("temperature_celsius", "Temperature of a GPU.", 1.0),
    "sm_clock_hz": ("sm_clock_hertz", "Clock of a GPU's multiprocessors.", 1.0),
    "memory_clock_hz": ("memory_clock_hertz", "Clock of a GPU's memory.", 1.0),
    "pcie_sent_bps": ("pcie_sent_bytes_per_second", "From a GPU over PCIe.", _PER_BYTE),
    "pcie_received_bps": ("pcie_received_bytes_per_second", "To a GPU over PCIe.", _PER_BYTE),
    "nvlink_sent_bps": ("nvlink_sent_bytes_per_second", "From a GPU over NVLink.", _PER_BYTE),
    "nvlink_received_bps": ("nvlink_received_bytes_per_second", "To a GPU, NVLink.", _PER_BYTE),
    "mig": ("mig", "Whether a GPU is partitioned (MIG).", 1.0),
    "xid": ("last_xid", "Number of the last XID error of a GPU.", 1.0),
}
_COUNTERS = {
    "energy_j": ("energy_joules", "Energy that a GPU has used."),
    "ecc_corrected": ("ecc_corrected", "Corrected memory errors of a GPU."),
    "ecc_uncorrected": ("ecc_uncorrected", "Uncorrected memory errors of a GPU."),
}


def openflow_metrics(
    speaker: Speaker, switches: PacketSwitches, unknown_switch_connections: int
) -> Iterator[Family]:
    """Every family, from what the speaker told last."""
    yield single("speaker_up", "Whether the OpenFlow speaker runs.", float(speaker.connected))
    about = "How often the OpenFlow speaker was started again."
    yield counter("speaker_restarts", about, (), [((), float(speaker.restarts))])
    connected = {name: float(there) for name, there in switches.connected().items()}
    about = "Whether a packet switch is connected to the speaker."
    yield gauge("packet_switch_connected", about, ("switch",), by_name(connected))
    strangers = float(unknown_switch_connections)
    about = "Connections of switches that are not in the lab file."
    yield counter("speaker_unknown_switch_connections", about, (), [((), strangers)])
    yield from _traffic(switches)
    rates = switches.rates_bps(since=time.time() - _RATES_OF_S)
    received = {host: rx_bps / _BITS_PER_BYTE for host, (_, rx_bps) in rates.items()}
    sent = {host: tx_bps / _BITS_PER_BYTE for host, (tx_bps, _) in rates.items()}
    about = f"by its switch port, as in the lab: the mean of the last {_RATES_OF_S:g} seconds."
    for name, values in (("receive", received), ("transmit", sent)):
        words = f"What a host has to {name}, {about}"
        yield gauge(f"host_{name}_bytes_per_second", words, ("host",), by_name(values))


def _traffic(switches: PacketSwitches) -> Iterator[Family]:
    by_switch = switches.traffic_by_switch()
    of_switch = ("switch",)
    for key, about in _COUNTED.items():
        values = {name: float(each[key]) for name, each in by_switch.items()}
        name = f"packet_switch_{_NAMES.get(key, key)}"
        yield counter(name, about, of_switch, by_name(values))
    echo = {name: t["echo_s"] for name, t in by_switch.items() if t["echo_s"] is not None}
    about = "How long a connected packet switch took to answer the last echo."
    yield gauge("packet_switch_echo_seconds", about, of_switch, by_name(echo))
    waiting = {name: float(each["waiting"]) for name, each in by_switch.items()}
    about = "What waits in the speaker to be sent to a packet switch."
    yield gauge("packet_switch_waiting_sends", about, of_switch, by_name(waiting))
    refused = dict.fromkeys(_REFUSED_FOR, 0.0) | dict(switches.refused)
    about = "Connections to the OpenFlow speaker that did not get in."
    yield counter("speaker_refused_connections", about, ("reason",), by_name(refused))


def gpu_metrics(gpus: Mapping[str, GpuStatus]) -> Iterator[Family]:
    """The quantities that any of these GPUs tells, by their full names.

    A GPU that has fallen off tells nothing: what it said before is not repeated.
    """
    told: dict[str, GpuTelemetry] = {
        name: gpu.telemetry for name, gpu in gpus.items() if gpu.telemetry is not None
    }

    def known(quantity: str, factor: float = 1.0) -> dict[str, float]:
        values = {name: getattr(each, quantity) for name, each in told.items()}
        return {name: factor * value for name, value in values.items() if value is not None}

    for quantity, (metric, about, factor) in _GAUGES.items():
        yield from _unless_empty(gauge, metric, about, known(quantity, factor))
    for quantity, (metric, about) in _COUNTERS.items():
        yield from _unless_empty(counter, metric, about, known(quantity))
    processes = {n: float(len(t.processes)) for n, t in told.items() if t.processes is not None}
    yield from _unless_empty(gauge, "processes", "Processes that compute on a GPU.", processes)
    busy = {name: gpu.utilization for name, gpu in gpus.items() if gpu.utilization is not None}
    about = "Busy share of the last second, from 0 to 1."
    yield from _unless_empty(gauge, "utilization_ratio", about, busy)
    usable = {name: float(not gpu.problem) for name, gpu in gpus.items()}
    yield from _unless_empty(gauge, "up", "Whether a GPU can be used.", usable)


def _unless_empty(
    kind: Callable[..., Family], name: str, about: str, values: Mapping[str, float]
) -> Iterator[Family]:
    if values:
        yield kind(f"gpu_{name}", about, ("gpu",), by_name(values))


class LabMetrics:
    """A collector over the parts of one controller: nothing to keep in step."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def collect(self) -> Iterator[Family]:
        """Every family, worked out now."""
        controller = self._controller
        about = "Which controller this is."
        engine = str(controller.speaker.info.get("engine", ""))
        row = ((controller.lab.name, VERSION, engine), 1.0)
        yield gauge("controller_info", about, ("lab", "version", "engine"), [row])
        yield from _jobs(controller)
        yield from _queue(controller)
        yield from _circuits(controller)
        strangers = controller.unknown_switches.connections
        yield from openflow_metrics(controller.speaker, controller.switches, strangers)
        yield from _servers(controller)
        yield from _controllers_own(controller)


def _jobs(controller: Controller) -> Iterator[Family]:
    counts = dict.fromkeys(map(str, JobState), 0) | controller.jobs.ledger.counts()
    yield gauge("jobs", "Jobs by state.", ("state",), by_name(counts))
    table, running = controller.jobs, controller.jobs.running
    statuses = [status for status in table.live() if status.id in running]
    yield gauge(
        "job_info",
        "A job that has hosts.",
        ("job_id", "name", "user", "trainer"),
        [((s.id, s.spec.name, s.by, s.spec.trainer), 1.0) for s in statuses],
    )
    of_job = ("job_id",)
    workers = {job.id: float(len(job.hosts)) for job in running.values()}
    yield gauge("job_workers", "Workers of a job.", of_job, by_name(workers))
    paused = {s.id: float(s.state is JobState.PAUSED) for s in statuses}
    yield gauge("job_paused", "Whether a job waits for light.", of_job, by_name(paused))
    done = {s.id: float(running[s.id].iterations_done) for s in statuses}
    yield gauge(
        "job_iterations_done", "Iterations that all ranks have done.", of_job, by_name(done)
    )
    whole = {s.id: float(s.spec.iterations) for s in statuses if s.spec.iterations}
    yield gauge("job_iterations_wanted", "Iterations that a job has.", of_job, by_name(whole))
    since = {s.id: s.runs_since for s in statuses if s.runs_since is not None}
    about = "Since when a job has its hosts."
    yield gauge("job_runs_since_timestamp_seconds", about, of_job, by_name(since))
    allocated = [
        ((f"{host.server.name}.{host.gpu.name}", host.name, job.id), 1.0)
        for job in running.values()
        for host in job.hosts
        if host.gpu is not None
    ]
    about = "Which job has a GPU; of free ones there is nothing."
    yield gauge("gpu_allocated", about, ("gpu", "host", "job_id"), allocated)


def _queue(controller: Controller) -> Iterator[Family]:
    now, scheduler = time.time(), controller.scheduler
    waiting = [status for status in controller.jobs.live() if status.state.is_waiting]
    count = Counter(str(status.state) for status in waiting)
    states = {str(state): float(count[state]) for state in (JobState.QUEUED, JobState.BLOCKED)}
    yield gauge("queue_jobs", "Jobs that wait for hosts.", ("state",), by_name(states))
    longest_s = max((now - status.submitted_at for status in waiting), default=0.0)
    yield single("queue_longest_wait_seconds", "What the oldest waiting job has waited.", longest_s)
    yield single(
        "queue_pass_seconds", "What the last look at the queue took.", scheduler.last_pass_s
    )
    yield single("queue_drained", "Whether no job is started.", float(scheduler.drained))
    deciding = {(kind, named(scheduler.policies.choice, kind)): 0 for kind in KINDS}
    faults = deciding | dict(scheduler.policies.faults)
    about = "How often a policy failed, and the default decided."
    yield counter("policy_faults", about, ("kind", "policy"), faults.items())


def _circuits(controller: Controller) -> Iterator[Family]:
    parts, watch = controller.circuits, controller.device_watch
    of_ocs = ("ocs",)
    devices = {row["name"]: float(row["reachable"]) for row in parts.devices.status()}
    yield gauge("ocs_up", "Whether a circuit switch answers.", of_ocs, by_name(devices))
    made = {name: float(len(port_map)) for name, port_map in (parts.maps.last or {}).items()}
    yield gauge("ocs_cross_connects", "Cross-connects, one way each.", of_ocs, by_name(made))
    drift = [
        ((name, kind), float(len(found)))
        for name, each in watch.drift.items()
        for kind, found in (("missing", each.missing), ("unknown", each.unknown))
    ]
    about = "Cross-connects that differ from the committed map."
    yield gauge("ocs_drift_cross_connects", about, ("ocs", "kind"), drift)
    # What there can be is there from the start: a first alarm is an increase, too.
    locks = dict.fromkeys(product(parts.drivers, get_args(LockKind)), 0)
    locks |= Counter((lock.ocs, lock.kind) for lock in parts.locks.all())
    yield gauge("ocs_locked_ports", "Locked ports.", ("ocs", "kind"), locks.items())
    about = "Alarms that a circuit switch sent, but for notices."
    severities = [each for each in get_args(Severity) if each != "notice"]
    alarms = dict.fromkeys(product(parts.drivers, severities), 0) | dict(watch.alarms)
    yield counter("ocs_alarms", about, ("ocs", "severity"), alarms.items())
    stopped = float(parts.stop.pressed is not None)
    yield single("changes_stopped", "Whether the stop button is pressed.", stopped)
    changes = dict.fromkeys(get_args(State), 0) | controller.store.reconfiguration_counts()
    about = "Changes of circuits on record, by outcome."
    yield gauge("reconfigurations", about, ("state",), by_name(changes))
    busy = float(controller.transactions.busy)
    yield single("reconfiguration_in_progress", "Whether circuits are being changed.", busy)


def _servers(controller: Controller) -> Iterator[Family]:
    fleet = controller.fleet
    agents = fleet.status()
    up = {agent["server"]: float(agent["reachable"]) for agent in agents}
    yield gauge("agent_up", "Whether an agent answers.", ("server",), by_name(up))
    as_root = dict.fromkeys(fleet.with_root_workers(), 1.0)
    about = "Agents whose workers are processes of root."
    yield gauge("agent_root_workers", about, ("server",), by_name(as_root))
    silence = {agent["server"]: float(agent["silence_s"]) for agent in agents}
    about = "For how long an agent has not answered."
    yield gauge("agent_silence_seconds", about, ("server",), by_name(silence))
    versions = [((a["server"], a["version"]), 1.0) for a in agents if a["version"]]
    yield gauge("agent_version_info", "An agent's version.", ("server", "version"), versions)
    nics = fleet.nics()
    of_nic = ("nic",)
    carrier = {name: float(nic.carrier) for name, nic in nics.items()}
    yield gauge("nic_carrier", "Whether a NIC has a carrier.", of_nic, by_name(carrier))
    changes = {name: float(nic.carrier_changes) for name, nic in nics.items()}
    yield counter("nic_carrier_changes", "Ups and downs of a carrier.", of_nic, by_name(changes))
    paused = {n: float(sum(nic.counters.pause_frames.values())) for n, nic in nics.items()}
    yield counter("nic_pause_frames", "Pause frames that a NIC counted.", of_nic, by_name(paused))
    yield from gpu_metrics(fleet.latest_gpus())


def _controllers_own(controller: Controller) -> Iterator[Family]:
    parts = controller.background.status()
    runs = {part["name"]: float(part["running"]) for part in parts}
    about = "Whether a background part of the controller runs."
    yield gauge("part_running", about, ("part",), by_name(runs))
    faults = {part["name"]: float(part["faults"]) for part in parts}
    about = "Records of the journal that could not be read, wait to be written, or are lost."
    yield gauge("journal_records", about, ("kind",), by_name(controller.store.troubles()))
    about = "How often a background part failed and began again."
    yield counter("part_faults", about, ("part",), by_name(faults))
