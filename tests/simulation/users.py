"""What users do: each kind of event is a method of ``Users`` with the hyphens of its name as
underscores."""

from __future__ import annotations

import asyncio
import contextvars
import random
from typing import Any

import httpx

from patchlight.testbed.lab.model import CircuitSwitch, Lab, PacketSwitch, Server
from patchlight.testbed.lab.wavelengths import WavelengthSwitch
from tests.simulation.judge import Judge
from tests.simulation.lab import SimulatedLab
from tests.simulation.servers import Worker

USERS = ("anna", "ben", "operator")

OFTEN = {
    "submit": 12,
    "hasty-stop": 5,
    "stop-job": 4,
    "restart": 2,
    "regroup": 3,
    "connect": 4,
    "disconnect": 3,
    "together": 2,
    "lock": 2,
    "unlock": 2,
    "press-stop": 1,
    "clear-stop": 2,
    "drain": 1,
    "resume": 2,
    "roll-back": 2,
    "repair": 1,
    "look": 4,
}
"""How often each event is drawn."""


class Users:
    """Two users and an operator with the API of one lab."""

    def __init__(self, lab: SimulatedLab, judge: Judge) -> None:
        self.lab = lab
        self.judge = judge
        self.ids: list[str] = []
        """The jobs that were acknowledged."""
        self._clients = {name: lab.client(name) for name in USERS}

    async def call(self, user: str, method: str, path: str, body: Any = None) -> Any:
        """One request; the answer's JSON, or ``None`` if there was none or it was refused."""
        call = f"{method} {path} {body if body is not None else ''}".rstrip()
        self.lab.world.log(user, f"→ {call}")
        try:
            response = await self._clients[user].request(method, path, json=body)
        except httpx.HTTPError as error:
            self.lab.world.log(user, f"← {method} {path}: {type(error).__name__}")
            return None
        answer = response.json() if response.content else None
        words = ""
        if response.status_code >= 400 and isinstance(answer, dict):
            words = str(answer.get("detail") or answer.get("error") or answer)[:300]
        self.lab.world.log(user, f"← {method} {path}: {response.status_code} {words}".rstrip())
        self.judge.answered(user, call, response.status_code, answer)
        if isinstance(answer, dict) and answer.get("state") in ("committed", "rolled-back"):
            maps = answer["wanted" if answer["state"] == "committed" else "before"]
            self.judge.maps_said({name: maps[name] for name in answer["changes"]})
        return answer if response.is_success else None

    async def submit(self, draw: random.Random) -> list[str]:
        hosts = len(self.lab.lab.hosts)
        body = {
            "jobs": [
                {
                    "name": f"j{draw.randrange(100)}",
                    "iterations": draw.choice((3, 20, 60)),
                    "gradient_bytes": 4_000_000,
                    "compute_s": dict.fromkeys(_models(self.lab.lab), draw.choice((0.5, 2.0))),
                    "workers": draw.randint(1, min(6, hosts)),
                    "priority": draw.choice((0, 0, 0, 5)),
                    "retries": draw.choice((0, 0, 2)),
                }
            ],
            "topology": draw.choice(("keep", "keep", "regroup")),
        }
        answer = await self.call(draw.choice(USERS), "POST", "/jobs", body)
        for job in (answer or {}).get("jobs", []):
            self.judge.submitted[job["id"]] = job["spec"]
            self.ids.append(job["id"])
        return [job["id"] for job in (answer or {}).get("jobs", [])]

    async def hasty_stop(self, draw: random.Random) -> None:
        """Submit a job, and stop or restart it at a moment of its life."""
        for job in await self.submit(draw):
            moment = draw.choice(("", "launched", "ready", "start", "running", "done"))
            if moment:
                await self._until(job, moment, last=draw.random() < 0.7)
                await asyncio.sleep(draw.randint(0, 4) / 1000)
            else:
                await asyncio.sleep(draw.randint(0, 1500) / 1000)
            if draw.random() < 0.7:
                await self.call("operator", "DELETE", f"/jobs/{job}?force=true")
            else:
                await self.call("operator", "POST", f"/jobs/{job}/restart?force=true")

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
                    self.lab.world.loop.call_soon(there.set, context=contextvars.Context())

        self.lab.on_worker.append(hear)
        try:
            async with asyncio.timeout(30.0):
                await there.wait()
        except TimeoutError:
            pass
        finally:
            self.lab.on_worker.remove(hear)

    async def stop_job(self, draw: random.Random) -> None:
        if self.ids:
            job = draw.choice(self.ids[-6:])
            await self.call("operator", "DELETE", f"/jobs/{job}?force=true")

    async def restart(self, draw: random.Random) -> None:
        if self.ids:
            job = draw.choice(self.ids[-6:])
            await self.call("operator", "POST", f"/jobs/{job}/restart?force=true")

    async def regroup(self, draw: random.Random) -> None:
        if self.ids:
            await self.call("operator", "POST", "/regroup", {"jobs": [draw.choice(self.ids[-4:])]})

    def _port(self, draw: random.Random) -> tuple[str, int]:
        """A port of a circuit switch, mostly one in use."""
        device = draw.choice(list(self.lab.plant.devices.values()))
        used = [c.inp for c in device.map]
        if used and draw.random() < 0.8:
            return device.switch.name, draw.choice(used)
        return device.switch.name, draw.randint(1, device.switch.ports)

    def _facing(self, switch: str, kinds: type | tuple[type, ...]) -> list[int]:
        """The ports of a circuit switch that have a fibre to such devices."""
        lab = self.lab.lab
        return [
            int(end.port)
            for end, (other, _) in lab.fibre_ends.items()
            if end.device == switch and isinstance(lab.device(other.device), kinds)
        ]

    async def connect(self, draw: random.Random) -> None:
        switch = draw.choice(self.lab.lab.optical_switches)
        name = switch.name
        a = draw.choice(self._facing(name, (Server, CircuitSwitch, WavelengthSwitch)) or [1])
        b = draw.choice(self._facing(name, PacketSwitch) or [2])
        channel = f"@193.{draw.choice((1, 15, 2))}" if isinstance(switch, WavelengthSwitch) else ""
        body = {"maps": {name: [f"{a}-{b}{channel}"]}, "spare_jobs": draw.random() < 0.3}
        await self.call(draw.choice(USERS), "POST", "/reconfigurations", body)

    async def disconnect(self, draw: random.Random) -> None:
        name, port = self._port(draw)
        await self.call("ben", "POST", "/reconfigurations", {"disconnect": {name: [port]}})

    async def together(self, draw: random.Random) -> None:
        servers = [server.name for server in self.lab.lab.servers]
        body = {"nodes": draw.sample(servers, min(2, len(servers))), "force": draw.random() < 0.5}
        await self.call("anna", "POST", "/together", body)

    async def lock(self, draw: random.Random) -> None:
        name, port = self._port(draw)
        if await self.call("operator", "POST", "/locks", {"ocs": name, "ports": [port]}):
            self.judge.locked[name, port] = "operator"

    async def unlock(self, draw: random.Random) -> None:
        if self.judge.locked:
            name, port = draw.choice(list(self.judge.locked))
            del self.judge.locked[name, port]
            await self.call("operator", "POST", "/locks/release", {"ocs": name, "ports": [port]})

    async def press_stop(self, draw: random.Random) -> None:
        await self.call("operator", "POST", "/stop", {"why": "drawn"})

    async def clear_stop(self, draw: random.Random) -> None:
        await self.call("operator", "POST", "/stop/clear", {"why": "drawn"})

    async def drain(self, draw: random.Random) -> None:
        await self.call("operator", "POST", "/drain", {"why": "drawn"})

    async def resume(self, draw: random.Random) -> None:
        await self.call("operator", "DELETE", "/drain")

    async def roll_back(self, draw: random.Random) -> None:
        answer = await self.call("operator", "GET", "/reconfigurations?last=5")
        rows = (answer or {}).get("reconfigurations", [])
        if rows:
            number = draw.choice(rows)["id"]
            await self.call("operator", "POST", f"/reconfigurations/{number}/rollback", {})

    async def look(self, draw: random.Random) -> None:
        if circuits := await self.call(draw.choice(USERS), "GET", "/circuits"):
            self.judge.maps_said({name: each["map"] for name, each in circuits.items()})

    async def repair(self, draw: random.Random) -> None:
        verb = draw.choice(("repair", "adopt"))
        await self.call("operator", "POST", f"/drift/{verb}", {})


def _models(lab: Lab) -> set[str]:
    return {gpu.model for server in lab.servers for gpu in server.gpus}
