"""Judges a history by calls, answers and the world's true state; it knows no implementation."""

from __future__ import annotations

import logging
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from patchlight.testbed.lab.model import Endpoint
from patchlight.testbed.lab.portmap import AnyMap
from patchlight.testbed.lab.wiring import lab_links
from tests.simulation.lab import SimulatedLab
from tests.simulation.optical import Device
from tests.simulation.servers import Worker
from tests.support.fake_network import unicast

FINAL = ("done", "failed", "stopped")
PLACED = ("reconfiguring", "preparing", "running", "paused")

ROLES = {
    "eva": "viewer",
    "anna": "user",
    "ben": "user",
    "operator": "operator",
}
"""The users of a lab, and what each of them may do."""

_RANK = ("viewer", "user", "operator")
_MOVES_LIGHT = (
    "POST /reconfigurations",
    "POST /together",
    "POST /light-paths",
    "POST /maps",
    "POST /regroup",
    "POST /drift",
    "POST /defragmentation",
    "PUT /policies",
    "PUT /claims/",
)
_UNDONE_WITHIN_S = 300.0
"""A change whose end nobody was told is done or undone by then."""

_STEP_S = 60.0
"""A device makes or breaks circuits in this time, or a change is given up."""


@dataclass(eq=False)
class Order:
    """A request that may change something. ``over_s``: when it had its effect, as far as known."""

    user: str
    call: str
    body: Mapping[str, Any]
    sent_s: float
    over_s: float = math.inf
    jobs: tuple[str, ...] = ()

    @property
    def needs(self) -> str:
        """The role that it needs."""
        if self.call.startswith("GET"):
            return "viewer"
        return (
            "user"
            if " /jobs" in self.call and "force=true" not in self.call
            else "operator"
        )

    @property
    def is_allowed(self) -> bool:
        """Whether its user has that role."""
        return _RANK.index(ROLES[self.user]) >= _RANK.index(self.needs)

    def spares_jobs(self) -> bool:
        """Whether circuits of running jobs must stay."""
        if self.call == "POST /together" and not self.body.get("force"):
            return True
        return bool(self.body.get("spare_jobs"))

    def may_break(self, ocs: str, c: Any) -> bool:
        """Whether it says, or may mean, that this cross-connect of a job goes."""
        if self.call.startswith("PUT /claims/"):
            return False
        if self.call != "POST /reconfigurations" or self.body.get("only"):
            return True
        named = [
            self.body.get(part, {}).get(ocs, ())
            for part in ("maps", "disconnect")
        ]
        ports = {int(port) for port in re.findall(r"\d+", f"{named}")}
        return not ports.isdisjoint((c.inp, c.out))


class Judge(logging.Handler):
    """Watches one lab. ``found`` has what was wrong, each with the time."""

    def __init__(self, lab: SimulatedLab) -> None:
        super().__init__(logging.ERROR)
        self.lab = lab
        self.found: list[str] = []
        self.orders: list[Order] = []
        self.submitted: dict[str, dict[str, Any]] = {}
        self._order_of: dict[str, Order] = {}
        self._final: dict[str, tuple[str, float]] = {}
        """The jobs that were seen to have ended: how, and when that was answered."""
        self._launched: list[Worker] = []
        self._started: dict[str, tuple[Worker, float]] = {}
        """The worker that was told to start, by id, and when."""
        self._moved_s: dict[tuple[str, Any], float] = {}
        self.locked: dict[tuple[str, int], str] = {}
        """Ports whose lock was acknowledged and whose release nobody has requested since."""
        self._locked_s: dict[tuple[str, int], float] = {}
        self.claimed: dict[tuple[str, int], str] = {}
        """Ports of claims that were held, and whose end nobody has requested since."""
        self._claimed_s: dict[str, float] = {}
        self._claimed_hosts: dict[str, str] = {}
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
            self.wrong(
                f"unforeseen {kind.__name__}: {error} ({record.getMessage()[:200]})"
            )

    # -- at all times --------------------------------------------------------------------------

    def light_moved(
        self, device: Device, before: AnyMap, after: AnyMap
    ) -> None:
        """Light of a device has moved."""
        change = before.diff(after)
        name = device.switch.name
        self.lab.world.log(
            name,
            f"light −{','.join(map(str, change.breaks))} +{','.join(map(str, change.makes))}",
        )
        moved = [
            c
            for c in (*change.breaks, *change.makes)
            if c not in device.meddled
        ]
        for c in moved:
            for port in {c.inp, c.out}:
                who = self.locked.get((name, port))
                since = self._locked_s.get((name, port), 0.0)
                if who and not self._is_under_way(name, c, since):
                    self.wrong(
                        f"{name}: {c} moved, and {who} had locked port {port}"
                    )
                claim = self.claimed.get((name, port), "")
                since = self._claimed_s.get(claim, 0.0)
                if claim and not self._is_under_way(name, c, since):
                    self.wrong(
                        f"{name}: {c} moved, and claim {claim} had port {port}"
                    )
            stop = self.stopped_since
            if stop is not None and not self._is_under_way(name, c, stop):
                self.wrong(f"{name}: {c} moved while the stop button was on")
        self._check_cuts(
            name, before, [c for c in change.breaks if c in moved]
        )
        if len(before):  # else it has just been switched on
            self._moved_s |= {(name, c): self.lab.world.now for c in moved}

    def _is_under_way(self, name: str, c: Any, since: float) -> bool:
        """Whether a change that had begun then may end its step, or put this back."""
        had_begun = any(
            order.sent_s <= since < order.over_s
            for order in self._moving_orders()
        )
        now = self.lab.world.now
        moved_s = self._moved_s.get((name, c), -math.inf)
        return had_begun and (
            now - since < _STEP_S or now - moved_s < _UNDONE_WITHIN_S
        )

    def _moving_orders(self) -> list[Order]:
        """The requests so far that may move light."""
        return [
            order
            for order in self.orders
            if order.call.startswith(_MOVES_LIGHT)
            or (order.jobs and not self._final.keys() >= {*order.jobs})
        ]

    def _check_cuts(
        self, name: str, before: AnyMap, broken: Collection[Any]
    ) -> None:
        """No circuit of a running job goes unless somebody has ordered that."""
        training = self._training()
        if not (broken and training):
            return
        plant = self.lab.plant
        now = self.lab.world.now
        links = lab_links(self.lab.lab, {**plant.maps(), name: before})
        for c in broken:
            sources = {*links.sources(name, [c])}
            for worker, since in training:
                end = worker.machine.host_of(worker.launch.spec.nic).endpoint
                if sources.isdisjoint((end, links.peer(end))):
                    continue
                if not any(
                    order.may_break(name, c)
                    and not (order.spares_jobs() and since < order.sent_s)
                    for order in self._moving_orders()
                    if order.over_s >= now
                ):
                    self.wrong(
                        f"{name}: nobody may break {c}, which {worker.id} uses"
                    )

    def _training(self) -> list[tuple[Worker, float]]:
        """The workers of whole rings that train where nothing is wrong, and since when."""
        alive = [
            worker
            for worker in self._launched
            if worker.process.alive
            and worker.machine.agent.alive
            and worker.state in ("running", "held")
        ]
        ranks = Counter(_attempt(worker) for worker in alive)
        return [
            (worker, self._started[worker.id][1])
            for worker in alive
            if ranks[_attempt(worker)] == len(worker.launch.spec.ring)
            and worker.id in self._started
            and worker.launch.spec.job not in self._final
        ]

    def worker_started(self, worker: Worker, what: str) -> None:
        """A worker's program has begun, or was told to start."""
        if what == "launched":
            self._check_launch(worker)
        elif what == "start":
            self._check_start(worker)

    def _check_launch(self, worker: Worker) -> None:
        job = worker.launch.spec.job
        earlier = [
            each for each in self._launched if each.launch.spec.job == job
        ]
        for other in self._launched:
            if not other.process.alive:
                continue
            if other.id == worker.id:
                self.wrong(f"worker {worker.id} runs twice")
            if other.machine is worker.machine:
                for part in ("gpu", "nic"):
                    own = getattr(worker.launch.spec, part)
                    if (
                        own is not None
                        and getattr(other.launch.spec, part) == own
                    ):
                        self.wrong(
                            f"{part} {own} belongs to {worker.id} and {other.id}"
                        )
        host = worker.machine.host_of(worker.launch.spec.nic).name
        if claim := self._claimed_hosts.get(host):
            self.wrong(f"{worker.id} is on {host}, which claim {claim} has")
        for before in self.submitted.get(job, {}).get("after", ()):
            if not self._has_finished(before):
                self.wrong(
                    f"{worker.id} was launched before job {before} was done"
                )
        if worker.task.first_iteration > max(
            (w.done_iterations for w in earlier), default=0
        ):
            self.wrong(
                f"{worker.id} skips iterations: it begins at {worker.task.first_iteration}"
            )
        self._launched.append(worker)

    def _check_start(self, worker: Worker) -> None:
        first, _ = self._started.setdefault(
            worker.id, (worker, self.lab.world.now)
        )
        if first is not worker:
            self.wrong(f"worker {worker.id} trains for the second time")
        if self.drained_since is not None:
            self.wrong(f"worker {worker.id} starts while the lab is drained")
        if ended := self._final.get(worker.launch.spec.job):
            self.wrong(
                f"worker {worker.id} starts, and its job was {ended[0]}"
            )

    # -- calls and answers ---------------------------------------------------------------------

    def ordered(self, user: str, call: str, body: Any) -> Order:
        """A user sends a request."""
        order = Order(user, call, body or {}, self.lab.world.now)
        if order.needs != "viewer":
            self.orders.append(order)
        if order.is_allowed and call == "POST /stop/clear":
            self.stopped_since = None
        if order.is_allowed and call == "DELETE /drain":
            self.drained_since = None
        if order.is_allowed and call.startswith(
            ("DELETE /claims/", "PUT /claims/")
        ):
            self._forget_claims(call.rpartition("/")[2])
        if order.is_allowed and order.body.get("force"):
            self._forget_claims()
        if order.is_allowed and call == "POST /locks/release":
            for port in order.body["ports"]:
                self.locked.pop((order.body["ocs"], port), None)
        return order

    def _forget_claims(self, name: str = "") -> None:
        """A claim (any, if none is named) may have ended, or may change by force."""
        for known in (self.claimed, self._claimed_hosts):
            for key, claim in [*known.items()]:
                if name in ("", claim):
                    del known[key]

    def lost(self, order: Order, *, for_good: bool) -> None:
        """No answer has come; ``for_good``: the controller that had the request is gone."""
        if order.call.startswith(_MOVES_LIGHT):
            order.over_s = self.lab.world.now + _UNDONE_WITHIN_S
        elif for_good:
            order.over_s = self.lab.world.now

    def answered(
        self, order: Order, status: int, body: Any, *, is_bad: bool = False
    ) -> None:
        """A user has got an answer; ``is_bad``: to a request that makes no sense."""
        said = body if isinstance(body, dict) else {}
        now = self.lab.world.now
        if status >= 500 and status not in (502, 503, 504, 507):
            self.wrong(
                f"{order.user}: {order.call} was answered with {status}: {str(body)[:300]}"
            )
        if not order.is_allowed and status not in (403, 429, 507):
            self.wrong(
                f"{order.user} may not {order.call}, and was answered with {status}"
            )
        if is_bad and not 400 <= status < 500 and status != 507:
            self.wrong(
                f"{order.user}: {order.call} {order.body} was answered with {status}"
            )
        if status >= 400 and said.get("outcome") == "nothing-done":
            self.orders[:] = [
                each for each in self.orders if each is not order
            ]
        elif order.call.startswith(("PUT /policies", "PUT /claims/")):
            pass  # circuits follow jobs from now on, or move at the claim's turn
        elif status != 202 and "unknown" not in (
            said.get("state"),
            said.get("outcome"),
        ):
            order.over_s = now
        if status < 400:
            self._believe(order, said)
        if status < 300:
            self.remember(order.call, said)

    def _believe(self, order: Order, said: Mapping[str, Any]) -> None:
        """What an answer says must be true from now on."""
        now = self.lab.world.now
        if order.call == "POST /stop" and not said["unwritten"]:
            self.stopped_since = (
                now if self._stays(order, "POST /stop/clear") else None
            )
        elif order.call == "POST /drain":
            self.drained_since = (
                now if self._stays(order, "DELETE /drain") else None
            )
        elif order.call == "POST /locks" and self._stays(
            order, "POST /locks/release"
        ):
            for lock in said["locks"]:
                self.locked[lock["ocs"], lock["port"]] = order.user
                self._locked_s[lock["ocs"], lock["port"]] = now
        if "/claims" in order.call:
            self._believe_claims(order, said.get("claims", [said]))
        rows = said.get("jobs", [said] if "spec" in said else [])
        match = re.search("/jobs/([^/?]+)", order.call)
        if match and match[1] in self._order_of and order.needs == "user":
            owner = self._order_of[match[1]].user
            if owner != order.user:
                self.wrong(
                    f"{order.user} may not {order.call}: it belongs to {owner}"
                )
        if order.call.startswith("POST /jobs"):
            for row in rows:
                self.submitted[row["id"]] = row["spec"]
                self._order_of.setdefault(row["id"], order)
            if any(row["topology"] != "keep" for row in rows):
                order.jobs = tuple(row["id"] for row in rows)
                order.over_s = math.inf
        for row in (
            rows
            if order.call.startswith(("GET /jobs", "DELETE /jobs"))
            else ()
        ):
            state, since = self._final.get(row["id"], (row["state"], now))
            if since < order.sent_s and state != row["state"]:
                self.wrong(
                    f"job {row['id']} was {state}, and is {row['state']}"
                )
            if row["state"] in FINAL:
                self._final.setdefault(row["id"], (row["state"], now))
        if order.call.startswith("GET /jobs"):
            self._check_queue(rows)

    def _believe_claims(
        self, order: Order, rows: Iterable[Mapping[str, Any]]
    ) -> None:
        """Nothing belongs to two claims; those without a time limit stay until their release."""
        now = self.lab.world.now
        owners: dict[Any, str] = {}
        for row in rows:
            name = row["name"]
            if row["state"] not in ("held", "overdue"):
                if row["state"] != "waiting":
                    for put in self.orders:
                        if put.call == f"PUT /claims/{name}":
                            put.over_s = min(put.over_s, now)
                continue
            ports = [(o, n) for o, each in row["owned"].items() for n in each]
            for each in (*row["hosts"], *ports):
                if owners.setdefault(each, name) != name:
                    self.wrong(f"claims {owners[each]} and {name} have {each}")
            may_end = any(
                other.is_allowed
                and other.over_s > order.sent_s
                and (
                    other.body.get("force")
                    or other.call == f"DELETE /claims/{name}"
                )
                for other in self.orders
            )
            if row["until"] is None and not may_end:
                self.claimed |= dict.fromkeys(ports, name)
                self._claimed_hosts |= dict.fromkeys(row["hosts"], name)
                self._claimed_s.setdefault(name, now)

    def _stays(self, order: Order, undo: str) -> bool:
        """Whether no request to the contrary may take effect after this one."""
        return not any(
            other.call == undo
            and other.is_allowed
            and other.over_s > order.sent_s
            for other in self.orders
        )

    def _check_queue(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Quotas hold, and nobody overtakes somebody whom the same place would have suited."""
        limit = self.lab.lab.queue.each_user
        unfinished = [row for row in rows if row["state"] not in FINAL]
        held = Counter[str]()
        jobs = Counter(row["by"] for row in unfinished)
        for row in unfinished:
            held[row["by"]] += len(row["hosts"]) * (row["state"] in PLACED)
        for user, count in jobs.items():
            if limit.gpus is not None and held[user] > limit.gpus:
                self.wrong(
                    f"{user} has {held[user]} GPUs, and the limit is {limit.gpus}"
                )
            if limit.jobs is not None and count > limit.jobs:
                self.wrong(
                    f"{user} has {count} jobs, and the limit is {limit.jobs}"
                )
        gangs = Counter(row["gang"] for row in unfinished)
        alone = [
            row
            for row in unfinished
            if gangs[row["gang"]] == 1 and row["attempt"] == 0
        ]
        for last in alone:
            for first in alone:
                waits = first["state"] == "queued" and not first["hosts"]
                is_passed = waits and last["state"] in PLACED
                if is_passed and self._is_before(first, last):
                    self.wrong(
                        f"{last['id']} runs, and {first['id']} came first"
                    )

    def _is_before(
        self, first: Mapping[str, Any], last: Mapping[str, Any]
    ) -> bool:
        """Whether one job comes first in the queue, and fits wherever the other one does."""
        one = first["spec"]
        other = last["spec"]
        orders = (
            self._order_of.get(first["id"]),
            self._order_of.get(last["id"]),
        )
        if (
            orders[0] is None
            or orders[1] is None
            or orders[0].over_s > orders[1].sent_s
        ):
            return False
        suits = 0 < one["workers"] <= other["workers"] and not (
            one["hosts"] or one["after"]
        )
        same = (
            first["topology"] == last["topology"] and first["by"] == last["by"]
        )
        is_earlier = first["submitted_at"] < last["submitted_at"]
        by_order = self.lab.lab.policies.order in (None, "fifo") and is_earlier
        ahead = one["priority"] - other["priority"]
        return suits and same and (ahead > 0 or (ahead == 0 and by_order))

    def maps_said(self, maps: Mapping[str, list[str] | None]) -> None:
        """The API has told the maps of devices now, or after a change; ``None``: not known."""
        for name, said in maps.items():
            device = self.lab.plant.devices[name]
            # What is told may be older: requests wait for a device up to a minute.
            since_s = max(0.0, self.lab.world.now - 90.0)
            if said is not None and not device.may_report(
                type(device.map).parse(said), since_s
            ):
                self.wrong(f"{name} has {device.map}, but the API said {said}")

    # -- after a crash -------------------------------------------------------------------------

    def remember(self, call: str, body: Mapping[str, Any]) -> None:
        """A call was acknowledged: what it says must survive each crash."""
        if call == "POST /stop":
            self.in_memory.discard("stop")
            if body["unwritten"]:
                self.in_memory.add("stop")
        is_over = body.get("state") in ("committed", "refused", "rolled-back")
        if call == "POST /reconfigurations" and is_over:
            self.changes[body["id"]] = body["state"]

    def holds(self) -> set[str]:
        """What was acknowledged, and nobody has requested to end since."""
        found = {f"lock of {ocs} port {port}" for ocs, port in self.locked}
        found |= {
            f"change {number} {state}"
            for number, state in self.changes.items()
        }
        found |= {f"job {job}" for job in self.submitted}
        found |= {f"claim {name}" for name in self.claimed.values()}
        if self.stopped_since is not None and "stop" not in self.in_memory:
            found.add("stop")
        if self.drained_since is not None:
            found.add("drain")
        return found

    def survived(
        self, held: Collection[str], answers: Mapping[str, Any]
    ) -> None:
        """``held`` before a crash; ``answers`` to requests after it, by path."""
        there = {
            f"lock of {row['ocs']} port {row['port']}"
            for row in answers["/locks"]["locks"]
        }
        changes = answers["/reconfigurations?last=1000"]["reconfigurations"]
        there |= {f"change {row['id']} {row['state']}" for row in changes}
        there |= {
            f"claim {row['name']}"
            for row in answers["/claims"]["claims"]
            if row["state"] == "held"
        }
        there |= {
            f"job {row['id']}" for row in answers["/jobs?last=1000"]["jobs"]
        }
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
        claims: Iterable[Mapping[str, Any]] = (),
    ) -> None:
        """All faults have ended long ago, and nothing is under way."""
        known = {job["id"]: job for job in jobs}
        for job_id in self.submitted:
            job = known.get(job_id)
            if job is None:
                self.wrong(
                    f"job {job_id} was acknowledged and is not known any more"
                )
            elif job["state"] not in FINAL:
                self.wrong(
                    f"job {job_id} is {job['state']} for ever: {job['message']}"
                )
            elif job["state"] == "done" and not self._has_finished(job_id):
                self.wrong(
                    f"job {job_id} is done, and its workers have not finished"
                )
            elif job["state"] == "failed" and not job["message"]:
                self.wrong(f"job {job_id} failed, and nothing says why")
            elif job["state"] == "stopped" and not self._was_stopped(
                job, known.values()
            ):
                self.wrong(
                    f"job {job_id} is stopped, and nobody ordered that: {job['message']}"
                )
        for claim in claims:
            if claim["state"] == "waiting":
                self.wrong(
                    f"claim {claim['name']} waits for ever: {claim['words']}"
                )
        self._check_names(known.values())
        for worker in self._launched:
            if worker.process.alive:
                self.wrong(f"worker {worker.id} still runs")
        for machine in self.lab.machines.values():
            for interface, namespace in machine.in_namespace.items():
                self.wrong(
                    f"{machine.server.name}.{interface} is still in {namespace}"
                )
            assert machine.service is not None
            if any(machine.service.leases().values()):
                self.wrong(
                    f"{machine.server.name} has leases: {machine.service.leases()}"
                )
            for path in machine.folder.rglob("*"):
                if not path.is_dir():
                    self.wrong(
                        f"{machine.server.name} has a file that nobody needs: {path}"
                    )
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
                self.wrong(
                    f"the agent of {agent['server']} is {agent['presence']}"
                )

    def _check_packets(self, status: Mapping[str, Any]) -> None:
        """At rest, packets arrive wherever there is a way, and no entry leads elsewhere."""
        plant = self.lab.plant
        links = self.lab.plant.links()
        for host in plant.lab.hosts:
            joined = plant.reached(links.peer(host.endpoint), None) - {
                host.endpoint
            }
            for other in plant.lab.hosts:
                if other.endpoint in joined and not plant.hears(other, host):
                    self.wrong(
                        f"packets from {other.name} do not arrive at {host.name}"
                    )
            for name, switch in plant.switches.items():
                port = switch.own_entries().get(host.nic.mac.lower())
                end = links.peer(Endpoint(name, str(port)))
                if port is not None and host.endpoint not in plant.reached(
                    end, unicast(host)
                ):
                    self.wrong(
                        f"{name}: an entry for {host.name} leads to port {port}"
                    )
        for switch in status["switches"]:
            keys = (
                "trouble",
                "lacks",
                "foreign",
                "ports_missing",
                "snmp_problem",
            )
            troubles = [switch[key] for key in keys]
            if any(troubles) or switch["connected"] is False:
                self.wrong(f"{switch['name']} is not well at rest: {troubles}")

    def _has_finished(self, job_id: str) -> bool:
        """Whether all workers of one attempt have finished all iterations."""
        finished = Counter(
            (_attempt(worker), len(worker.launch.spec.ring))
            for worker in self._launched
            if worker.launch.spec.job == job_id
            and worker.state == "done"
            and worker.done_iterations == worker.task.iterations
        )
        return any(count == size for (_, size), count in finished.items())

    def _was_stopped(
        self, job: Mapping[str, Any], jobs: Iterable[Mapping[str, Any]]
    ) -> bool:
        """Whether somebody has stopped this job, one that started with it, or all."""
        gang = {
            job["id"],
            *(j["id"] for j in jobs if j["gang"] == job["gang"] != ""),
        }
        own = self._order_of.get(job["id"])
        gang |= {
            job_id for job_id, order in self._order_of.items() if order is own
        }
        stops = {f"DELETE /jobs/{job_id}" for job_id in gang}
        calls = {order.call.partition("?")[0] for order in self.orders}
        return not stops.isdisjoint(calls) or "POST /drain" in calls

    def _check_names(self, jobs: Collection[Mapping[str, Any]]) -> None:
        """Each job was submitted once, or restarted."""
        most = Counter(
            {
                spec["name"]
                for order in self.orders
                if order.call == "POST /jobs"
                for spec in order.body["jobs"]
            }
        )
        name_of = {job["id"]: job["spec"]["name"] for job in jobs}
        for order in self.orders:
            match = re.match("POST /jobs/(.*)/restart", order.call)
            if match and match[1] in name_of:
                most[name_of[match[1]]] += 1
        for name, count in Counter(name_of.values()).items():
            if count > most[name]:
                self.wrong(
                    f"{count} jobs are called {name}, and {most[name]} were submitted"
                )


def _attempt(worker: Worker) -> str:
    return worker.id.rpartition("-")[0]
