"""Judges a history by calls, answers and the world's true state; it knows no implementation."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from patchlight.testbed.lab.model import Endpoint
from patchlight.testbed.lab.portmap import AnyMap
from tests.simulation.lab import SimulatedLab
from tests.simulation.optical import Device
from tests.simulation.servers import Worker
from tests.support.fake_network import unicast

FINAL = ("done", "failed", "stopped")


class Judge(logging.Handler):
    """Watches one lab. ``found`` has what was wrong, each with the time."""

    def __init__(self, lab: SimulatedLab) -> None:
        super().__init__(logging.ERROR)
        self.lab = lab
        self.found: list[str] = []
        self.submitted: dict[str, dict[str, Any]] = {}
        self.locked: dict[tuple[str, int], str] = {}
        """Ports whose lock was acknowledged and whose release nobody has requested since."""
        self.stopped_since: float | None = None
        self.drained_since: float | None = None
        self.changes: dict[int, str] = {}
        """The results of changes that were acknowledged."""
        self.in_memory: set[str] = set()
        """What was said not to be on the disk yet, as that was full."""
        for device in lab.plant.devices.values():
            device.on_change.append(self.light_moved)
        lab.on_worker.append(self.worker_started)

    def wrong(self, what: str) -> None:
        """Note a violation."""
        self.found.append(what)
        self.lab.world.log("judge", what)

    def emit(self, record: logging.LogRecord) -> None:
        """An exception that nobody foresaw is a violation, wherever it is logged."""
        if record.exc_info and record.exc_info[0] is not None:
            kind, error, _ = record.exc_info
            self.wrong(f"unforeseen {kind.__name__}: {error} ({record.getMessage()[:200]})")

    # -- at all times --------------------------------------------------------------------------

    def light_moved(self, device: Device, before: AnyMap, after: AnyMap) -> None:
        """Light of a device has moved."""
        change = before.diff(after)
        self.lab.world.log(
            device.switch.name,
            f"light −{','.join(map(str, change.breaks))} +{','.join(map(str, change.makes))}",
        )
        for c in (*change.breaks, *change.makes):
            if c in device.meddled:
                continue
            for port in {c.inp, c.out}:
                if who := self.locked.get((device.switch.name, port)):
                    self.wrong(f"{device.switch.name}: {c} moved, and {who} had locked port {port}")

    def worker_started(self, worker: Worker, what: str) -> None:
        """A worker's program has begun."""
        if what != "launched":
            return
        for machine in self.lab.machines.values():
            for other in machine.workers.values():
                if other is worker or not other.process.alive:
                    continue
                if other.id == worker.id:
                    self.wrong(f"worker {worker.id} runs twice")
                if machine is worker.machine:
                    for part in ("gpu", "nic"):
                        own = getattr(worker.launch.spec, part)
                        if own is not None and getattr(other.launch.spec, part) == own:
                            self.wrong(f"{part} {own} belongs to {worker.id} and {other.id}")

    def answered(self, user: str, call: str, status: int, body: Any) -> None:
        """A user has got an answer."""
        if status < 300:
            self.remember(call, body)
        if status >= 500 and status not in (503, 504, 507):
            self.wrong(f"{user}: {call} was answered with {status}: {str(body)[:300]}")

    def maps_said(self, maps: Mapping[str, list[str] | None]) -> None:
        """The API has told the maps of devices now, or after a change; ``None``: not known."""
        for name, said in maps.items():
            device = self.lab.plant.devices[name]
            # What is told may be older: requests wait for a device up to a minute.
            since_s = max(0.0, self.lab.world.now - 90.0)
            if said is not None and not device.may_report(type(device.map).parse(said), since_s):
                self.wrong(f"{name} has {device.map}, but the API said {said}")

    # -- after a crash -------------------------------------------------------------------------

    def remember(self, call: str, body: Mapping[str, Any]) -> None:
        """A call was acknowledged: what it says must survive each crash."""
        if call.startswith("POST /stop "):
            self.in_memory.discard("stop")
            if body["unwritten"]:
                self.in_memory.add("stop")
        if call.startswith("POST /reconfigurations ") and body.get("state") != "intent":
            self.changes[body["id"]] = body["state"]

    def holds(self) -> set[str]:
        """What was acknowledged, and nobody has requested to end since."""
        found = {f"lock of {ocs} port {port}" for ocs, port in self.locked}
        found |= {f"change {number} {state}" for number, state in self.changes.items()}
        found |= {f"job {job}" for job in self.submitted}
        if self.stopped_since is not None and "stop" not in self.in_memory:
            found.add("stop")
        if self.drained_since is not None:
            found.add("drain")
        return found

    def survived(self, held: Collection[str], answers: Mapping[str, Any]) -> None:
        """``held`` before a crash; ``answers`` to requests after it, by path."""
        there = {f"lock of {row['ocs']} port {row['port']}" for row in answers["/locks"]["locks"]}
        changes = answers["/reconfigurations?last=1000"]["reconfigurations"]
        there |= {f"change {row['id']} {row['state']}" for row in changes}
        there |= {f"job {row['id']}" for row in answers["/jobs?last=1000"]["jobs"]}
        if answers["/stop"]["pressed"]:
            there.add("stop")
        if answers["/status"]["drained"]:
            there.add("drain")
        for lost in sorted((set(held) & self.holds()) - there):
            self.wrong(f"{lost}: acknowledged, and gone after a crash")

    # -- at rest -------------------------------------------------------------------------------

    def at_rest(
        self,
        jobs: Iterable[Mapping[str, Any]],
        circuits: Mapping[str, Any],
        status: Mapping[str, Any],
    ) -> None:
        """All faults have ended long ago, and nothing is under way."""
        known = {job["id"]: job for job in jobs}
        for job_id in self.submitted:
            job = known.get(job_id)
            if job is None:
                self.wrong(f"job {job_id} was acknowledged and is not known any more")
            elif job["state"] not in FINAL:
                self.wrong(f"job {job_id} is {job['state']} for ever: {job['message']}")
            elif job["state"] == "done":
                self._check_done(job)
        for machine in self.lab.machines.values():
            for worker in machine.workers.values():
                if worker.process.alive:
                    self.wrong(f"worker {worker.id} still runs")
            for interface, namespace in machine.in_namespace.items():
                self.wrong(f"{machine.server.name}.{interface} is still in {namespace}")
            assert machine.service is not None
            if any(machine.service.leases().values()):
                self.wrong(f"{machine.server.name} has leases: {machine.service.leases()}")
        for name, device in self.lab.plant.devices.items():
            if circuits[name]["map"] is None:
                self.wrong(f"{name} cannot be read: {circuits[name]}")
                continue
            said = type(device.map).parse(circuits[name]["map"])
            if said != device.map:
                self.wrong(f"{name} has {device.map}, but the API says {said}")
        self._check_packets(status)
        for part in status["parts"]:
            if part["faults"]:
                self.wrong(f"{part['name']} failed: {part['last_fault']}")
        for agent in status["agents"]:
            if not agent["reachable"]:
                self.wrong(f"the agent of {agent['server']} is {agent['presence']}")

    def _check_packets(self, status: Mapping[str, Any]) -> None:
        """At rest, packets arrive wherever there is a way, and no entry leads elsewhere."""
        plant, links = self.lab.plant, self.lab.plant.links()
        for host in plant.lab.hosts:
            joined = plant.reached(links.peer(host.endpoint), None) - {host.endpoint}
            for other in plant.lab.hosts:
                if other.endpoint in joined and not plant.hears(other, host):
                    self.wrong(f"packets from {other.name} do not arrive at {host.name}")
            for name, switch in plant.switches.items():
                port = switch.own_entries().get(host.nic.mac.lower())
                end = links.peer(Endpoint(name, str(port)))
                if port is not None and host.endpoint not in plant.reached(end, unicast(host)):
                    self.wrong(f"{name}: an entry for {host.name} leads to port {port}")
        for switch in status["switches"]:
            keys = ("trouble", "lacks", "foreign", "ports_missing", "snmp_problem")
            troubles = [switch[key] for key in keys]
            if any(troubles) or switch["connected"] is False:
                self.wrong(f"{switch['name']} is not well at rest: {troubles}")

    def _check_done(self, job: Mapping[str, Any]) -> None:
        """All workers of one attempt have finished all iterations."""
        job_id, spec = job["id"], job["spec"]
        finished = Counter(
            worker.id.rpartition("-")[0]
            for machine in self.lab.machines.values()
            for worker in machine.workers.values()
            if worker.launch.spec.job == job_id
            and worker.state == "done"
            and worker.done_iterations == spec["iterations"]
        )
        size = spec["workers"] or len(spec["hosts"])
        if size not in finished.values():
            self.wrong(f"job {job_id} of {size} workers is done, but finished: {dict(finished)}")
