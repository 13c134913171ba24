"""Exports the present state of a lab and its controller, computed at each scrape, without ended
jobs and removed devices."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, Literal, get_args

from patchlight.controller.changes.claims import LIVE
from patchlight.controller.changes.device_watch import (
    PowerReport,
    power_report,
)
from patchlight.controller.changes.power import PortReading
from patchlight.controller.changes.preflight import LockKind
from patchlight.controller.changes.record import Notifier, State
from patchlight.controller.changes.service import CircuitService
from patchlight.controller.circuits.contract import Severity
from patchlight.controller.hosts.agent_client import VERSION
from patchlight.controller.jobs.policy_set import named
from patchlight.testbed.errors import in_words
from patchlight.testbed.jobs import JobState
from patchlight.testbed.lab.rules import KINDS
from patchlight.testbed.lab.wiring import Place
from patchlight.testbed.wire.agent_status import GpuStatus

if TYPE_CHECKING:
    from patchlight.controller.packet_switches.openflow.client import Speaker
    from patchlight.controller.packet_switches.switches import PacketSwitches
    from patchlight.controller.parts import Controller

_log = logging.getLogger(__name__)

POWER_EVERY_S = 15.0
_VERDICTS = ("ok", "degraded", "unverified", "failed")

_RATES_OF_S = 5.0
_COUNTED = {
    "connections": (
        "connections",
        "Connections of a packet switch to the speaker.",
    ),
    "sent": ("sent_messages", "OpenFlow messages sent to a packet switch."),
    "received": (
        "received_messages",
        "OpenFlow messages received from a packet switch.",
    ),
    "errors": ("errors", "OpenFlow errors from a packet switch."),
}
_REFUSED_FOR = ("tls", "certificate", "second", "unknown")

_PER_BYTE = 1 / 8
_GAUGES = {
    "memory_bytes": ("memory_bytes", "Memory of a GPU.", 1.0),
    "memory_used_bytes": ("memory_used_bytes", "Memory of a GPU in use.", 1.0),
    "power_w": ("power_watts", "Power draw of a GPU.", 1.0),
    "temperature_c": ("temperature_celsius", "Temperature of a GPU.", 1.0),
    "sm_clock_hz": (
        "sm_clock_hertz",
        "Clock of a GPU's multiprocessors.",
        1.0,
    ),
    "memory_clock_hz": ("memory_clock_hertz", "Clock of a GPU's memory.", 1.0),
    "pcie_sent_bps": (
        "pcie_sent_bytes_per_second",
        "PCIe traffic from a GPU.",
        _PER_BYTE,
    ),
    "pcie_received_bps": (
        "pcie_received_bytes_per_second",
        "PCIe traffic to a GPU.",
        _PER_BYTE,
    ),
    "nvlink_sent_bps": (
        "nvlink_sent_bytes_per_second",
        "NVLink traffic from a GPU.",
        _PER_BYTE,
    ),
    "nvlink_received_bps": (
        "nvlink_received_bytes_per_second",
        "NVLink traffic to a GPU.",
        _PER_BYTE,
    ),
    "mig": ("mig", "Whether a GPU is partitioned (MIG).", 1.0),
    "xid": ("last_xid", "Number of the last XID error of a GPU.", 1.0),
}
_COUNTERS = {
    "energy_j": ("energy_joules", "Energy used by a GPU."),
    "ecc_corrected": ("ecc_corrected", "Corrected memory errors of a GPU."),
    "ecc_uncorrected": (
        "ecc_uncorrected",
        "Uncorrected memory errors of a GPU.",
    ),
}


@dataclass(frozen=True)
class Family:
    """A metric (counters without ``_total``), with values by label values. It formats its own
    lines: a lab has thousands, and the client library takes about 15 µs for each."""

    name: str
    kind: Literal["gauge", "counter"]
    about: str
    values: Mapping[Any, float]
    labels: Sequence[str]

    def as_text(self, *, openmetrics: bool) -> str:
        """Its lines, in OpenMetrics or in Prometheus's format."""
        sample = f"{self.name}_total" if self.kind == "counter" else self.name
        family = self.name if openmetrics else sample
        lines = [
            f"# HELP {family} {self.about}\n# TYPE {family} {self.kind}\n"
        ]
        before = [f'{label}="' for label in self.labels]
        for key, value in self.values.items():
            said = (key,) if isinstance(key, str) else key
            pairs = [
                f'{start}{_escaped(each)}"'
                for start, each in zip(before, said, strict=True)
            ]
            lines.append(f"{sample}{{{','.join(pairs)}}} {float(value)!r}\n")
        return "".join(lines)


def _escaped(said: str) -> str:
    if "\\" in said or '"' in said or "\n" in said:
        return (
            said.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
        )
    return said


def gauge(
    name: str,
    about: str,
    values: Mapping[Any, float] | float,
    *labels: str,
) -> Family:
    """Present values, or one without labels; ``name`` is without the prefix ``patchlight_``."""
    values = values if isinstance(values, Mapping) else {(): values}
    return Family(
        f"patchlight_{name}",
        "gauge",
        about,
        values,
        labels,
    )


def counter(
    name: str,
    about: str,
    values: Mapping[Any, float] | float,
    *labels: str,
) -> Family:
    """Values that only grow, except at restarts; ``name`` is without the suffix ``_total``."""
    values = values if isinstance(values, Mapping) else {(): values}
    return Family(
        f"patchlight_{name}",
        "counter",
        about,
        values,
        labels,
    )


def lab_metrics(controller: Controller) -> Iterator[Family]:
    """Every family of a controller except optical power, computed now."""
    key = (
        controller.lab.name,
        VERSION,
        str(controller.speaker.info.get("engine", "")),
    )
    about = "Information about this controller."
    yield gauge(
        "controller_info",
        about,
        {key: 1},
        "lab",
        "version",
        "engine",
    )
    yield from _jobs(controller)
    yield from _queue(controller)
    yield from _circuits(controller)
    strangers = controller.unknown_switches.connections
    yield from openflow_metrics(
        controller.speaker, controller.switches, strangers
    )
    snmp = {
        name: not problem
        for name, problem in controller.telemetry.problems.items()
    }
    about = "Whether a packet switch answers by SNMP as its telemetry needs."
    yield gauge(
        "packet_switch_snmp_up",
        about,
        snmp,
        "switch",
    )
    yield from _servers(controller)
    parts = controller.background.status()
    runs = {part.name: part.running for part in parts}
    yield gauge(
        "part_running",
        "Whether a background part of the controller runs.",
        runs,
        "part",
    )
    about = "Records of the journal that are unreadable, waiting to be written, or lost."
    yield gauge(
        "journal_records",
        about,
        controller.store.troubles(),
        "kind",
    )
    faults = {part.name: part.faults for part in parts}
    about = "Restarts of a background part."
    yield counter(
        "part_faults",
        about,
        faults,
        "part",
    )


def _jobs(controller: Controller) -> Iterator[Family]:
    counts = (
        dict.fromkeys(map(str, JobState), 0) | controller.jobs.ledger.counts()
    )
    yield gauge(
        "jobs",
        "Jobs by state.",
        counts,
        "state",
    )
    running = controller.jobs.running
    statuses = [
        status for status in controller.jobs.live() if status.id in running
    ]
    info = {(s.id, s.spec.name, s.by, s.spec.trainer): 1 for s in statuses}
    yield gauge(
        "job_info",
        "Running jobs.",
        info,
        "job_id",
        "name",
        "user",
        "trainer",
    )
    workers = {job.id: len(job.hosts) for job in running.values()}
    yield gauge(
        "job_workers",
        "Number of workers of a job.",
        workers,
        "job_id",
    )
    paused = {s.id: s.state is JobState.PAUSED for s in statuses}
    yield gauge(
        "job_paused",
        "Whether a job is paused by an outage.",
        paused,
        "job_id",
    )
    done = {s.id: running[s.id].iterations_done for s in statuses}
    yield gauge(
        "job_iterations_done",
        "Iterations that all ranks have finished.",
        done,
        "job_id",
    )
    wanted = {s.id: s.spec.iterations for s in statuses if s.spec.iterations}
    yield gauge(
        "job_iterations_wanted",
        "Total iterations of a job.",
        wanted,
        "job_id",
    )
    since = {s.id: s.runs_since for s in statuses if s.runs_since is not None}
    about = "Since when a job has its hosts."
    yield gauge(
        "job_runs_since_timestamp_seconds",
        about,
        since,
        "job_id",
    )
    allocated = {
        (f"{host.server.name}.{host.gpu.name}", host.name, job.id): 1
        for job in running.values()
        for host in job.hosts
        if host.gpu is not None
    }
    about = "The job of a GPU; free GPUs have none."
    yield gauge(
        "gpu_allocated",
        about,
        allocated,
        "gpu",
        "host",
        "job_id",
    )


def _queue(controller: Controller) -> Iterator[Family]:
    now = time.time()
    scheduler = controller.scheduler
    waiting = [
        status for status in controller.jobs.live() if status.state.is_waiting
    ]
    count = Counter(status.state for status in waiting)
    states = {
        str(state): count[state]
        for state in (JobState.QUEUED, JobState.BLOCKED)
    }
    yield gauge(
        "queue_jobs",
        "Jobs that wait for hosts.",
        states,
        "state",
    )
    longest_s = max(
        (now - status.submitted_at for status in waiting), default=0.0
    )
    yield gauge(
        "queue_longest_wait_seconds",
        "Time that the oldest waiting job has waited.",
        longest_s,
    )
    about = "Duration of the last pass of the queue."
    yield gauge("queue_pass_seconds", about, scheduler.last_pass_s)
    yield gauge(
        "queue_drained", "Whether the queue is drained.", scheduler.drained
    )
    deciding = {
        (kind, named(scheduler.policies.choice, kind)): 0 for kind in KINDS
    }
    faults = deciding | dict(scheduler.policies.faults)
    about = "Faults of a policy, after which the default decided."
    yield counter(
        "policy_faults",
        about,
        faults,
        "kind",
        "policy",
    )


def _circuits(controller: Controller) -> Iterator[Family]:
    parts = controller.circuits
    watch = controller.device_watch
    devices = {row["name"]: row["reachable"] for row in parts.devices.status()}
    yield gauge(
        "ocs_up",
        "Whether a circuit switch answers.",
        devices,
        "ocs",
    )
    made = {
        name: len(port_map)
        for name, port_map in (parts.maps.last or {}).items()
    }
    yield gauge(
        "ocs_cross_connects",
        "Cross-connects, one way each.",
        made,
        "ocs",
    )
    drift = {
        (name, kind): len(found)
        for name, each in watch.drift.items()
        for kind, found in (
            ("missing", each.missing),
            ("unknown", each.unknown),
        )
    }
    about = "Cross-connects that differ from the committed map."
    yield gauge(
        "ocs_drift_cross_connects",
        about,
        drift,
        "ocs",
        "kind",
    )
    # All possible series exist from the start: a first alarm is an increase, too.
    locks = dict.fromkeys(product(parts.drivers, get_args(LockKind)), 0)
    locks |= Counter((lock.ocs, lock.kind) for lock in parts.locks.all())
    yield gauge(
        "ocs_locked_ports",
        "Locked ports.",
        locks,
        "ocs",
        "kind",
    )
    states = (claim.state for claim in parts.claims.live)
    yield gauge(
        "claims",
        "Claims of other schedulers.",
        dict.fromkeys(LIVE, 0) | Counter(states),
        "state",
    )
    now = time.time()
    ages = {
        (claim.name, claim.state): now - (claim.held_at or claim.made_at)
        for claim in parts.claims.live
    }
    yield gauge(
        "claim_age_seconds",
        "How long a claim has waited, or has been held.",
        ages,
        "claim",
        "state",
    )
    about = "Alarms from a circuit switch, except notices."
    severities = [each for each in get_args(Severity) if each != "notice"]
    alarms = dict.fromkeys(product(parts.drivers, severities), 0) | dict(
        watch.alarms
    )
    yield counter(
        "ocs_alarms",
        about,
        alarms,
        "ocs",
        "severity",
    )
    stopped = parts.stop.pressed is not None
    yield gauge(
        "changes_stopped", "Whether the stop button is pressed.", stopped
    )
    changes = (
        dict.fromkeys(get_args(State), 0)
        | controller.store.reconfiguration_counts()
    )
    about = "Recorded changes of circuits, by result."
    yield gauge(
        "reconfigurations",
        about,
        changes,
        "state",
    )
    busy = controller.transactions.busy
    yield gauge(
        "reconfiguration_in_progress",
        "Whether a change of circuits is in progress.",
        busy,
    )


def openflow_metrics(
    speaker: Speaker,
    switches: PacketSwitches,
    unknown_switch_connections: int,
) -> Iterator[Family]:
    """Every family from the speaker's last events."""
    yield gauge(
        "speaker_up", "Whether the OpenFlow speaker runs.", speaker.connected
    )
    about = "Restarts of the OpenFlow speaker."
    yield counter("speaker_restarts", about, speaker.restarts)
    about = (
        "Whether a packet switch answers: connected to the speaker, or by SSH."
    )
    yield gauge(
        "packet_switch_connected",
        about,
        switches.connected(),
        "switch",
    )
    about = "Connections of switches that are not in the lab file."
    yield counter(
        "speaker_unknown_switch_connections", about, unknown_switch_connections
    )
    lacking = (
        dict.fromkeys(switches.connected(), 0) | switches.lacking_entries()
    )
    about = "Entries that a packet switch refused."
    yield gauge(
        "packet_switch_lacking_entries",
        about,
        lacking,
        "switch",
    )
    missing = {
        name: len(words)
        for name, words in switches.missing_by_switch().items()
    }
    about = "Ports of the lab file that a packet switch lacks."
    yield gauge(
        "packet_switch_missing_ports",
        about,
        missing,
        "switch",
    )
    about = (
        "Rate that a packet switch sends by one of equally near ports, in the lab's scale: mean of "
        "the last seconds."
    )
    uplinks = {
        (
            u.switch,
            str(u.port),
            u.peer,
            ",".join(map(str, u.equal)),
        ): u.sent_bps * _PER_BYTE
        for u in switches.uplinks()
    }
    name = "packet_switch_uplink_transmit_bytes_per_second"
    yield gauge(
        name,
        about,
        uplinks,
        "switch",
        "port",
        "peer",
        "equal",
    )
    by_switch = switches.traffic_by_switch()
    for key, (name, about) in _COUNTED.items():
        counted = {switch: each[key] for switch, each in by_switch.items()}
        yield counter(
            f"packet_switch_{name}",
            about,
            counted,
            "switch",
        )
    echo = {
        name: t["echo_s"]
        for name, t in by_switch.items()
        if t["echo_s"] is not None
    }
    about = "Response time of a packet switch to the last echo."
    yield gauge(
        "packet_switch_echo_seconds",
        about,
        echo,
        "switch",
    )
    waiting = {name: each["waiting"] for name, each in by_switch.items()}
    about = "Messages in the speaker waiting to be sent to a packet switch."
    yield gauge(
        "packet_switch_waiting_sends",
        about,
        waiting,
        "switch",
    )
    refused = dict.fromkeys(_REFUSED_FOR, 0) | dict(switches.refused)
    about = "Refused connections to the OpenFlow speaker."
    yield counter(
        "speaker_refused_connections",
        about,
        refused,
        "reason",
    )
    rates_bps = switches.rates_bps(since=time.time() - _RATES_OF_S).items()
    about = (
        "at its switch port or NIC, in the lab's scale: "
        f"mean of the last {_RATES_OF_S:g} seconds."
    )
    for name, at in (("receive", 1), ("transmit", 0)):
        values = {host: of_host[at] * _PER_BYTE for host, of_host in rates_bps}
        words = f"Rate that a host has to {name}, {about}"
        yield gauge(
            f"host_{name}_bytes_per_second",
            words,
            values,
            "host",
        )


def _servers(controller: Controller) -> Iterator[Family]:
    fleet = controller.fleet
    agents = fleet.status()
    up = {agent["server"]: agent["reachable"] for agent in agents}
    yield gauge(
        "agent_up",
        "Whether an agent answers.",
        up,
        "server",
    )
    as_root = dict.fromkeys(fleet.with_root_workers(), 1)
    about = "Agents whose workers are processes of root."
    yield gauge(
        "agent_root_workers",
        about,
        as_root,
        "server",
    )
    silence_s = {agent["server"]: agent["silence_s"] for agent in agents}
    about = "Time since an agent last answered."
    yield gauge(
        "agent_silence_seconds",
        about,
        silence_s,
        "server",
    )
    versions = {(a["server"], a["version"]): 1 for a in agents if a["version"]}
    yield gauge(
        "agent_version_info",
        "An agent's version.",
        versions,
        "server",
        "version",
    )
    nics = fleet.nics()
    carrier = {name: nic.carrier for name, nic in nics.items()}
    yield gauge(
        "nic_carrier",
        "Whether a NIC has a carrier.",
        carrier,
        "nic",
    )
    changes = {name: nic.carrier_changes for name, nic in nics.items()}
    yield counter(
        "nic_carrier_changes",
        "Carrier changes of a NIC.",
        changes,
        "nic",
    )
    paused = {
        name: sum(nic.counters.pause_frames.values())
        for name, nic in nics.items()
    }
    yield counter(
        "nic_pause_frames",
        "Pause frames counted by a NIC.",
        paused,
        "nic",
    )
    rdma = {
        (name, key): value
        for name, nic in nics.items()
        if nic.rdma is not None
        for key, value in nic.rdma.counters.items()
    }
    about = "Counters of a worker's RDMA device, as its driver calls them."
    yield counter(
        "nic_rdma",
        about,
        rdma,
        "nic",
        "counter",
    )
    yield from gpu_metrics(fleet.latest_gpus())


def gpu_metrics(gpus: Mapping[str, GpuStatus]) -> Iterator[Family]:
    """The quantities that any of these GPUs reports, by full name."""
    told = {
        name: gpu.telemetry
        for name, gpu in gpus.items()
        if gpu.telemetry is not None
    }

    def known(quantity: str, factor: float = 1.0) -> dict[str, float]:
        values = {name: getattr(each, quantity) for name, each in told.items()}
        return {
            name: factor * value
            for name, value in values.items()
            if value is not None
        }

    found: list[
        tuple[Callable[..., Family], str, str, Mapping[str, float]]
    ] = [
        (gauge, metric, about, known(quantity, factor))
        for quantity, (metric, about, factor) in _GAUGES.items()
    ]
    found += [
        (counter, name, about, known(key))
        for key, (name, about) in _COUNTERS.items()
    ]
    processes = {
        n: len(t.processes) for n, t in told.items() if t.processes is not None
    }
    found.append(
        (gauge, "processes", "Compute processes on a GPU.", processes)
    )
    busy = {
        name: gpu.utilization
        for name, gpu in gpus.items()
        if gpu.utilization is not None
    }
    found.append(
        (
            gauge,
            "utilization_ratio",
            "Utilisation of the last second, from 0 to 1.",
            busy,
        )
    )
    usable = {name: not gpu.problem for name, gpu in gpus.items()}
    found.append((gauge, "up", "Whether a GPU can be used.", usable))
    for kind, metric, about, values in found:
        if values:
            yield kind(
                f"gpu_{metric}",
                about,
                values,
                "gpu",
            )


class OpticalPower:
    """The latest optical powers of circuit switches: a scrape calls no device."""

    def __init__(self, service: CircuitService, looked: Notifier) -> None:
        self._service = service
        self._looked = looked
        # With when (Unix time).
        self._samples: dict[str, tuple[float, PowerReport]] = {}

    async def run(self) -> None:
        """Measure every 15 polls, and whenever maps were read; never during a change."""
        every_s = POWER_EVERY_S * self._service.parts.lab.controller_poll_s
        while True:
            if not self._service.transactions.busy:
                await self.measure()
            await self._looked.after(self._looked.step, every_s)

    async def measure(self) -> None:
        """Read each device that measures. Values of one that does not answer are dropped."""
        drivers = self._service.parts.drivers
        able = {name: driver.capabilities for name, driver in drivers.items()}
        measuring = [
            name for name, can in able.items() if can.power_in or can.power_out
        ]
        if measuring:
            maps = await self._service.parts.maps.just_read()
        for name in measuring:
            try:
                report = await power_report(self._service.parts, name, maps)
            except Exception as error:  # a driver's bug must not affect others
                _log.debug(
                    "%s: measuring its power: %s", name, in_words(error)
                )
                self._samples.pop(name, None)
                continue
            if report.unreachable:
                self._samples.pop(name, None)
            else:
                self._samples[name] = time.time(), report

    def collect(self) -> Iterator[Family]:
        """Power by port, its difference from the expected power, and the verdict."""
        powers_dbm: dict[tuple[str, str, str], float] = {}
        deficits_db: dict[tuple[str, str], float] = {}
        verdicts = {
            (ocs, verdict): 0 for ocs in self._samples for verdict in _VERDICTS
        }
        for ocs, (_, report) in self._samples.items():
            for each in report.readings:
                out = _port(each, each.cross_connect.out)
                should_be_dbm = each.baseline_dbm
                if (
                    should_be_dbm is None and each.expected is not None
                ):  # from the loss budget
                    should_be_dbm = each.expected.power_dbm
                if each.in_dbm is not None:
                    powers_dbm[
                        ocs, _port(each, each.cross_connect.inp), "in"
                    ] = each.in_dbm
                if each.out_dbm is not None:
                    powers_dbm[ocs, out, "out"] = each.out_dbm
                    if should_be_dbm is not None:
                        deficits_db[ocs, out] = should_be_dbm - each.out_dbm
                verdicts[ocs, each.verdict.kind] += 1
        about = "Optical power at a port of a circuit switch; in: before, out: behind its mirrors."
        yield gauge(
            "ocs_port_power_dbm",
            about,
            powers_dbm,
            "ocs",
            "port",
            "direction",
        )
        about = "How far the power at an output is below the expected power."
        yield gauge(
            "ocs_port_power_deficit_db",
            about,
            deficits_db,
            "ocs",
            "port",
        )
        about = "Cross-connects by the verdict on their optical power."
        yield gauge(
            "ocs_circuits",
            about,
            verdicts,
            "ocs",
            "verdict",
        )
        about = "Time of the last optical power measurement."
        measured_at = {ocs: at for ocs, (at, _) in self._samples.items()}
        yield gauge(
            "ocs_power_sample_timestamp_seconds",
            about,
            measured_at,
            "ocs",
        )


def _port(each: PortReading, port: int) -> str:
    """The port's number, with the channel if channels are measured separately."""
    return str(Place(port, getattr(each.cross_connect, "channel", None)))
