"""What users do: each kind of event is a method of ``Users`` with the hyphens of its name as
underscores."""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import random
from collections.abc import Mapping
from typing import Any

import httpx

from patchlight.testbed.lab.model import (
    CircuitSwitch,
    Lab,
    PacketSwitch,
    Server,
)
from patchlight.testbed.lab.rules import Allowance, Discipline, PolicyChoice
from patchlight.testbed.lab.wavelengths import WavelengthSwitch
from tests.simulation.judge import ROLES, Judge
from tests.simulation.lab import SimulatedLab
from tests.simulation.servers import Worker

OFTEN = {
    "submit": 12,
    "hasty-stop": 5,
    "stop-job": 4,
    "restart": 2,
    "look": 8,
    "regroup": 3,
    "connect": 4,
    "disconnect": 3,
    "cancel": 1,
    "together": 2,
    "save": 1,
    "restore": 1,
    "claim": 4,
    "release-claim": 3,
    "lock": 2,
    "unlock": 2,
    "press-stop": 1,
    "clear-stop": 2,
    "drain": 1,
    "resume": 2,
    "roll-back": 2,
    "repair": 1,
    "use-policies": 1,
    "nonsense": 2,
}
"""How often each event is drawn."""

_NONSENSE: tuple[tuple[str, str, Any], ...] = (
    ("POST", "/jobs", {"jobs": [{"name": "bad", "workers": 2}]}),
    (
        "POST",
        "/jobs",
        {"jobs": [{"name": "bad", "command": ["x"], "hosts": ["nowhere"]}]},
    ),
    ("DELETE", "/jobs/nobody", None),
    ("POST", "/reconfigurations", {"maps": {"nowhere": ["1-2"]}}),
    ("POST", "/reconfigurations", {"mapz": {}}),
    ("POST", "/reconfigurations/999999/rollback", {}),
    ("POST", "/maps/never/restore", {}),
    ("POST", "/together", {"nodes": []}),
    ("POST", "/regroup", {"jobs": ["nobody"]}),
    ("POST", "/locks", {"ocs": "nowhere", "ports": [1]}),
    ("PUT", "/policies", {"order": "none"}),
    ("PUT", "/claims/bad", {"nodes": ["nowhere"]}),
)


def with_rules(lab: Lab, seed: int | str) -> Lab:
    """The lab with a drawn queue and drawn policies."""
    draw = random.Random(f"rules {seed}")
    limits = Allowance(
        gpus=draw.choice((None, None, 3)), jobs=draw.choice((None, None, 6))
    )
    queue = Discipline(
        backfill=draw.random() < 0.3,
        preempt=draw.random() < 0.3,
        quantum_s=20.0,
        each_user=limits,
    )
    policies = PolicyChoice(
        order=draw.choice((None, None, "srpt", "las", "fair-share")),
        placement=draw.choice((None, None, "regroup", "cheapest")),
        partition="minimum",
        elasticity=draw.choice((None, "give-and-take")),
    )
    return lab.with_changes(queue=queue, policies=policies)


class Users:
    """A viewer, two users and an operator with the API of one lab."""

    def __init__(self, lab: SimulatedLab, judge: Judge) -> None:
        self.lab = lab
        self.judge = judge
        self._clients = {name: lab.client(name) for name in ROLES}
        self._names = itertools.count()
        self._topologies: tuple[str, ...] = ("keep",)
        if random.Random(f"habits {lab.world.seed}").random() < 0.6:
            self._topologies = ("keep", "keep", "regroup")

    @property
    def ids(self) -> list[str]:
        """The jobs that were acknowledged."""
        return list(self.judge.submitted)

    async def open(self) -> None:
        """Give each user a token of the role."""
        root = self.lab.client("root")
        for name, role in ROLES.items():
            made = await root.post(
                "/tokens", json={"user": name, "role": role}
            )
            token = made.json()["token"]
            self._clients[name].headers["Authorization"] = f"Bearer {token}"

    async def call(
        self,
        user: str,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        *,
        is_bad: bool = False,
    ) -> Any:
        """One request; the answer's JSON, or ``None`` if there was none or it was refused."""
        call = f"{method} {path}"
        self.lab.world.log(
            user, f"→ {call} {body if body is not None else ''}".rstrip()
        )
        order = self.judge.ordered(user, call, body)
        try:
            response = await self._clients[user].request(
                method, path, json=body, headers=headers
            )
        except httpx.HTTPError as error:
            self.lab.world.log(user, f"← {call}: {type(error).__name__}")
            self.judge.lost(
                order, for_good=not isinstance(error, httpx.ReadTimeout)
            )
            return None
        answer = response.json() if response.content else None
        words = ""
        if response.status_code >= 400 and isinstance(answer, dict):
            words = str(answer.get("detail") or answer.get("error") or answer)[
                :300
            ]
        self.lab.world.log(
            user, f"← {call}: {response.status_code} {words}".rstrip()
        )
        self.judge.answered(order, response.status_code, answer, is_bad=is_bad)
        if isinstance(answer, dict) and answer.get("state") in (
            "committed",
            "rolled-back",
        ):
            maps = answer[
                "wanted" if answer["state"] == "committed" else "before"
            ]
            self.judge.maps_said(
                {name: maps[name] for name in answer["changes"]}
            )
        return answer if response.is_success else None

    async def call_once(
        self, draw: random.Random, user: str, method: str, path: str, body: Any
    ) -> Any:
        """A request with a key, which is repeated until an answer comes, and sometimes then."""
        headers = {"Idempotency-Key": f"{draw.getrandbits(64)}"}
        for _ in range(4):
            answer = await self.call(user, method, path, body, headers)
            if answer is not None and draw.random() < 0.7:
                break
            await asyncio.sleep(draw.choice((0.0, 1.0, 10.0)))
        return answer

    @staticmethod
    def _anybody(draw: random.Random, usual: str = "operator") -> str:
        """Mostly somebody who may do it."""
        return draw.choice(list(ROLES)) if draw.random() < 0.15 else usual

    def _job(self, draw: random.Random) -> dict[str, Any]:
        hosts = [host.name for host in self.lab.lab.hosts]
        known = self.ids
        workers = draw.randint(
            0 if draw.random() < 0.2 else 1, min(6, len(hosts))
        )
        job: dict[str, Any] = {
            "name": f"j{next(self._names)}",
            "iterations": draw.choice((3, 3, 20, 60)),
            "gradient_bytes": 4_000_000,
            "compute_s": dict.fromkeys(
                _models(self.lab.lab), draw.choice((0.5, 2.0))
            ),
            "workers": workers,
            "priority": draw.choice((0, 0, 0, 5)),
            "retries": draw.choice((0, 0, 2)),
            "stop_grace_s": draw.choice((0.0, 1.0, 30.0)),
            "dark_limit_s": draw.choice((5.0, 60.0, 600.0)),
            "preemptible": draw.random() < 0.8,
        }
        if workers and draw.random() < 0.15:
            job |= {"hosts": draw.sample(hosts, workers)}
        if known and draw.random() < 0.15:
            job |= {"after": [draw.choice(known[-3:])]}
        return job

    async def submit(self, draw: random.Random) -> list[str]:
        body = {
            "jobs": [
                self._job(draw) for _ in range(draw.choice((1, 1, 1, 2, 3)))
            ],
            "topology": draw.choice(self._topologies),
            "together": draw.random() < 0.4,
        }
        user = self._anybody(draw, draw.choice(("anna", "ben")))
        if draw.random() < 0.4:
            answer = await self.call_once(draw, user, "POST", "/jobs", body)
        else:
            answer = await self.call(user, "POST", "/jobs", body)
        return [job["id"] for job in (answer or {}).get("jobs", [])]

    async def hasty_stop(self, draw: random.Random) -> None:
        """Submit a job, and stop or restart it at a moment of its life."""
        for job in await self.submit(draw):
            moment = draw.choice(
                ("", "launched", "ready", "start", "running", "done")
            )
            if moment:
                await self._until(job, moment, last=draw.random() < 0.7)
                await asyncio.sleep(draw.randint(0, 4) / 1000)
            else:
                await asyncio.sleep(draw.randint(0, 1500) / 1000)
            if draw.random() < 0.7:
                await self.call(
                    "operator", "DELETE", f"/jobs/{job}?force=true"
                )
            else:
                await self.call(
                    "operator", "POST", f"/jobs/{job}/restart?force=true"
                )

    async def _until(self, job: str, moment: str, *, last: bool) -> None:
        """Wait until the first or the last worker of a job is at that moment, or for 30 s."""
        seen = set[str]()
        there = asyncio.Event()
        size = self.judge.submitted[job]["workers"]

        def hear(worker: Worker, what: str) -> None:
            if worker.launch.spec.job == job and what == moment:
                seen.add(worker.id)
                if not last or len(seen) == size:
                    # Whoever tells it belongs to another process.
                    self.lab.world.loop.call_soon(
                        there.set, context=contextvars.Context()
                    )

        self.lab.on_worker.append(hear)
        try:
            async with asyncio.timeout(30.0):
                await there.wait()
        except TimeoutError:
            pass
        finally:
            self.lab.on_worker.remove(hear)

    async def _on_a_job(
        self, draw: random.Random, method: str, verb: str = ""
    ) -> None:
        """Stop or restart a job: an operator by force, or a user without."""
        if self.ids:
            user = draw.choice(("anna", "ben", "operator"))
            force = (
                "?force=true"
                if user == "operator" or draw.random() < 0.1
                else ""
            )
            await self.call(
                user,
                method,
                f"/jobs/{draw.choice(self.ids[-6:])}{verb}{force}",
            )

    async def stop_job(self, draw: random.Random) -> None:
        await self._on_a_job(draw, "DELETE")

    async def restart(self, draw: random.Random) -> None:
        await self._on_a_job(draw, "POST", "/restart")

    async def look(self, draw: random.Random) -> None:
        await self.call("eva", "GET", "/jobs?last=1000")
        await self.call(
            "eva", "GET", draw.choice(("/links", "/status", "/drift"))
        )
        if circuits := await self.call("eva", "GET", "/circuits"):
            self.judge.maps_said(
                {name: each["map"] for name, each in circuits.items()}
            )

    async def regroup(self, draw: random.Random) -> None:
        if self.ids:
            body = {"jobs": [draw.choice(self.ids[-4:])]}
            await self.call(self._anybody(draw), "POST", "/regroup", body)

    def _port(self, draw: random.Random) -> tuple[str, int]:
        """A port of a circuit switch, mostly one in use."""
        device = draw.choice(list(self.lab.plant.devices.values()))
        used = [c.inp for c in device.map]
        if used and draw.random() < 0.8:
            return device.switch.name, draw.choice(used)
        return device.switch.name, draw.randint(1, device.switch.ports)

    def _facing(
        self, switch: str, kinds: type | tuple[type, ...]
    ) -> list[int]:
        """The ports of a circuit switch that have a fibre to such devices."""
        lab = self.lab.lab
        return [
            int(end.port)
            for end, (other, _) in lab.fibre_ends.items()
            if end.device == switch
            and isinstance(lab.device(other.device), kinds)
        ]

    async def connect(self, draw: random.Random) -> None:
        switch = draw.choice(self.lab.lab.optical_switches)
        name = switch.name
        a = draw.choice(
            self._facing(name, (Server, CircuitSwitch, WavelengthSwitch))
            or [1]
        )
        b = draw.choice(self._facing(name, PacketSwitch) or [2])
        channel = (
            f"@193.{draw.choice((1, 15, 2))}"
            if isinstance(switch, WavelengthSwitch)
            else ""
        )
        body = {
            "maps": {name: [f"{a}-{b}{channel}"]},
            "spare_jobs": draw.random() < 0.3,
            "force": draw.random() < 0.05,
        }
        await self.call_once(
            draw, self._anybody(draw), "POST", "/reconfigurations", body
        )

    async def disconnect(self, draw: random.Random) -> None:
        name, port = self._port(draw)
        body = {
            "disconnect": {name: [port]},
            "spare_jobs": draw.random() < 0.3,
        }
        await self.call(self._anybody(draw), "POST", "/reconfigurations", body)

    async def cancel(self, draw: random.Random) -> None:
        """Start a change without waiting, and mostly cancel it."""
        name, port = self._port(draw)
        body = {"disconnect": {name: [port]}}
        headers = {"Prefer": "respond-async"}
        begun = await self.call(
            "operator", "POST", "/reconfigurations", body, headers
        )
        await asyncio.sleep(draw.randint(0, 300) / 1000)
        if begun is not None and draw.random() < 0.8:
            await self.call(
                "operator",
                "POST",
                f"/reconfigurations/{begun['id']}/cancel",
                {},
            )

    async def together(self, draw: random.Random) -> None:
        servers = [server.name for server in self.lab.lab.servers]
        body = {
            "nodes": draw.sample(servers, min(2, len(servers))),
            "force": draw.random() < 0.5,
        }
        await self.call(self._anybody(draw), "POST", "/together", body)

    async def save(self, draw: random.Random) -> None:
        path = f"/maps/{draw.choice('ab')}"
        await self.call(
            self._anybody(draw),
            draw.choice(("PUT", "PUT", "DELETE")),
            path,
            {},
        )

    async def restore(self, draw: random.Random) -> None:
        path = f"/maps/{draw.choice('ab')}/restore"
        await self.call(
            self._anybody(draw),
            "POST",
            path,
            {"spare_jobs": draw.random() < 0.3},
        )

    async def lock(self, draw: random.Random) -> None:
        name, port = self._port(draw)
        body = {"ocs": name, "ports": [port]}
        await self.call(self._anybody(draw), "POST", "/locks", body)

    async def claim(self, draw: random.Random) -> None:
        """Request circuits, mostly for a new claim, and look how it is."""
        servers = [server.name for server in self.lab.lab.servers]
        name = f"c{draw.randint(0, 9)}"
        body = {
            "nodes": draw.sample(
                servers, min(draw.randint(1, 3), len(servers))
            ),
            "shape": draw.choice(("switch", "switch", "ring", "open")),
            "time_limit_s": draw.choice((None, None, 60.0)),
            "hold_s": 10.0,
        }
        user = self._anybody(draw)
        await self.call(user, "PUT", f"/claims/{name}", body)
        if draw.random() < 0.5:
            await self.call("eva", "GET", f"/claims/{name}?wait=20")
        await self.call("eva", "GET", "/claims")

    async def release_claim(self, draw: random.Random) -> None:
        name = f"c{draw.randint(0, 9)}"
        await self.call(self._anybody(draw), "DELETE", f"/claims/{name}")

    async def unlock(self, draw: random.Random) -> None:
        if self.judge.locked:
            name, port = draw.choice(list(self.judge.locked))
            body = {"ocs": name, "ports": [port]}
            await self.call(
                self._anybody(draw), "POST", "/locks/release", body
            )

    async def press_stop(self, draw: random.Random) -> None:
        await self.call(self._anybody(draw), "POST", "/stop", {"why": "drawn"})

    async def clear_stop(self, draw: random.Random) -> None:
        await self.call(
            self._anybody(draw), "POST", "/stop/clear", {"why": "drawn"}
        )

    async def drain(self, draw: random.Random) -> None:
        await self.call(
            self._anybody(draw), "POST", "/drain", {"why": "drawn"}
        )

    async def resume(self, draw: random.Random) -> None:
        await self.call(self._anybody(draw), "DELETE", "/drain")

    async def roll_back(self, draw: random.Random) -> None:
        answer = await self.call("operator", "GET", "/reconfigurations?last=5")
        rows = (answer or {}).get("reconfigurations", [])
        if rows:
            path = f"/reconfigurations/{draw.choice(rows)['id']}/rollback"
            await self.call(self._anybody(draw), "POST", path, {})

    async def repair(self, draw: random.Random) -> None:
        verb = draw.choice(("repair", "adopt"))
        await self.call(self._anybody(draw), "POST", f"/drift/{verb}", {})

    async def use_policies(self, draw: random.Random) -> None:
        one = draw.choice(
            (
                {"placement": "regroup"},
                {"defragment": True},
                {"interleave": True},
            )
        )
        await self.call(self._anybody(draw), "PUT", "/policies", one)

    async def nonsense(self, draw: random.Random) -> None:
        await self.call("operator", *draw.choice(_NONSENSE), is_bad=True)


def _models(lab: Lab) -> set[str]:
    return {gpu.model for server in lab.servers for gpu in server.gpus}
