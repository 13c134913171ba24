"""How a lab and its controller are now, as metrics: looked up when somebody scrapes.

What is gone (a job that ended, a device that was removed) is in none of them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING, get_args

from patchlight.controller.changes.preflight import LockKind
from patchlight.controller.changes.record import State
from patchlight.controller.circuits.contract import Severity
from patchlight.controller.hosts.agent_client import VERSION
from patchlight.controller.jobs.policy_set import named
from patchlight.controller.metrics.families import Family, by_name, counter, gauge, single
from patchlight.controller.metrics.gpus import gpu_metrics
from patchlight.controller.metrics.openflow import openflow_metrics
from patchlight.testbed.jobs import JobState
from patchlight.testbed.lab.queueing import KINDS

if TYPE_CHECKING:
    from patchlight.controller.parts import Controller


class LabState:
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
