"""Draws a lab, a day's work and faults from one seed, and runs them against the judge."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import logging
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from patchlight.testbed.generate.generate import RandomLabShape, lab_of
from patchlight.testbed.lab.model import Lab, PacketSwitch, Server
from tests.simulation.judge import FINAL, Judge
from tests.simulation.lab import SimulatedLab
from tests.simulation.servers import Worker
from tests.simulation.world import Deadlock, World

DRIVERS = ("calient-tl1", "polatis-scpi", "polatis-tl1", "glimmerglass-tl1")
USERS = ("anna", "ben", "operator")
REST_S = 1800.0
"""After the last fault everything must have come to rest within this time."""

_OFTEN = {
    # What users do.
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
    # What befalls the lab.
    "kill-controller": 4,
    "kill-agent": 3,
    "kill-device": 3,
    "kill-worker": 2,
    "kill-speaker": 2,
    "lose-switch": 2,
    "refuse-entries": 1,
    "cut": 3,
    "slow": 2,
    "dark": 2,
    "device-fault": 4,
    "lose-gpu": 1,
    "second-controller": 1,
    "clock-jump": 1,
}


@dataclass(frozen=True)
class Step:
    """One drawn event: when, what, and a number that decides the rest."""

    at_s: float
    kind: str
    draw: int


def draw_lab(seed: int | str) -> Lab:
    """A lab of 2 to 12 servers, 1 to 4 circuit switches of any driver, 2 to 4 packet switches."""
    draw = random.Random(f"lab {seed}")
    leaves = draw.randint(2, 3)
    servers = draw.randint(1, 12 // leaves // 2)
    shape = RandomLabShape(
        leaves,
        servers,
        draw.choice((1, 1, 2)),
        ocs=draw.randint(1, min(4, leaves * servers)),
        spare=draw.randint(1, 3),
        oversubscription=draw.choice((1.0, 4.0)),
        switching_time_s=draw.choice((0.0, 0.025, 0.5)),
    )
    lab = lab_of(shape, "drawn")
    switches = tuple(
        dataclasses.replace(
            switch, driver=draw.choice(DRIVERS), address=f"10.1.0.{number}:3082", user="admin"
        )
        for number, switch in enumerate(lab.circuit_switches, start=1)
    )
    return lab.with_changes(circuit_switches=switches)


def draw_steps(seed: int | str, count: int = 60, over_s: float = 400.0) -> list[Step]:
    """The events of a history, in order."""
    draw = random.Random(f"steps {seed}")
    kinds = draw.choices(list(_OFTEN), weights=list(_OFTEN.values()), k=count)
    times = sorted(draw.uniform(0.0, over_s) for _ in kinds)
    return [Step(at, kind, draw.getrandbits(32)) for at, kind in zip(times, kinds, strict=True)]


class History:
    """One history: ``run`` it once."""

    def __init__(
        self, seed: int | str, steps: Sequence[Step] | None = None, lab: Lab | None = None
    ) -> None:
        self.seed = seed
        self.steps = draw_steps(seed) if steps is None else list(steps)
        self._drawn = lab or draw_lab(seed)
        self.lines: list[str] = []
        self.wrong: list[str] = []
        self.lasted_s = 0.0
        self._ids: list[str] = []
        self._clients: dict[str, httpx.AsyncClient] = {}
        self._busy: set[asyncio.Task[None]] = set()

    def run(self) -> list[str]:
        """Play it; returns what the judge found."""
        with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="pl") as folder:
            world = World(self.seed, Path(folder))
            root = logging.getLogger()
            levels = root.level
            with world.entered():
                self.lab = SimulatedLab(world, self._drawn)
                self.judge = Judge(self.lab)
                root.addHandler(self.judge)
                try:
                    world.run(self._play(world))
                except Deadlock:
                    self.judge.wrong("nothing will ever happen again")
                finally:
                    root.removeHandler(self.judge)
                    root.setLevel(levels)
                self.lasted_s = world.now
            self.lines = world.lines
            self.wrong = self.judge.found
            # What is left of the dead goes now, and not in the middle of the next history.
            self._clients.clear()
            del self.lab, self.judge
            world.bury()
        return self.wrong

    async def _play(self, world: World) -> None:
        self._clients = {name: self.lab.client(name) for name in USERS}
        await self.lab.open()
        for step in self.steps:
            await asyncio.sleep(max(0.0, step.at_s - world.now))
            task = asyncio.create_task(self._do(step))
            self._busy.add(task)
            task.add_done_callback(self._busy.discard)
        while self._busy:
            await asyncio.wait(set(self._busy))
        await self._heal()
        await self._come_to_rest()

    # -- steps ---------------------------------------------------------------------------------

    async def _do(self, step: Step) -> None:
        draw = random.Random(step.draw)
        self.lab.world.log("story", step.kind)
        await getattr(self, f"_{step.kind.replace('-', '_')}")(draw)

    async def _call(self, user: str, method: str, path: str, body: Any = None) -> Any:
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
        return answer if response.is_success else None

    async def _submit(self, draw: random.Random) -> list[str]:
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
        answer = await self._call(draw.choice(USERS), "POST", "/jobs", body)
        for job in (answer or {}).get("jobs", []):
            self.judge.submitted[job["id"]] = job["spec"]
            self._ids.append(job["id"])
        return [job["id"] for job in (answer or {}).get("jobs", [])]

    async def _hasty_stop(self, draw: random.Random) -> None:
        """Submit a job, and stop or restart it at a moment of its life."""
        for job in await self._submit(draw):
            moment = draw.choice(("", "launched", "ready", "start", "running", "done"))
            if moment:
                await self._until(job, moment, last=draw.random() < 0.7)
                await asyncio.sleep(draw.randint(0, 4) / 1000)
            else:
                await asyncio.sleep(draw.randint(0, 1500) / 1000)
            if draw.random() < 0.7:
                await self._call("operator", "DELETE", f"/jobs/{job}?force=true")
            else:
                await self._call("operator", "POST", f"/jobs/{job}/restart?force=true")

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

    async def _stop_job(self, draw: random.Random) -> None:
        if self._ids:
            job = draw.choice(self._ids[-6:])
            await self._call("operator", "DELETE", f"/jobs/{job}?force=true")

    async def _restart(self, draw: random.Random) -> None:
        if self._ids:
            job = draw.choice(self._ids[-6:])
            await self._call("operator", "POST", f"/jobs/{job}/restart?force=true")

    async def _regroup(self, draw: random.Random) -> None:
        if self._ids:
            await self._call(
                "operator", "POST", "/regroup", {"jobs": [draw.choice(self._ids[-4:])]}
            )

    def _port(self, draw: random.Random) -> tuple[str, int]:
        """A port of a circuit switch, mostly one in use."""
        device = draw.choice(list(self.lab.plant.devices.values()))
        used = [c.inp for c in device.map]
        if used and draw.random() < 0.8:
            return device.switch.name, draw.choice(used)
        return device.switch.name, draw.randint(1, device.switch.ports)

    def _facing(self, switch: str, kinds: type) -> list[int]:
        """The ports of a circuit switch that have a fibre to such devices."""
        lab = self.lab.lab
        return [
            int(end.port)
            for end, (other, _) in lab.fibre_ends.items()
            if end.device == switch and isinstance(lab.device(other.device), kinds)
        ]

    async def _connect(self, draw: random.Random) -> None:
        name = draw.choice(self.lab.lab.circuit_switches).name
        a = draw.choice(self._facing(name, Server))
        b = draw.choice(self._facing(name, PacketSwitch))
        body = {"maps": {name: [f"{a}-{b}"]}, "spare_jobs": draw.random() < 0.3}
        await self._call(draw.choice(USERS), "POST", "/reconfigurations", body)

    async def _disconnect(self, draw: random.Random) -> None:
        name, port = self._port(draw)
        await self._call("ben", "POST", "/reconfigurations", {"disconnect": {name: [port]}})

    async def _together(self, draw: random.Random) -> None:
        servers = [server.name for server in self.lab.lab.servers]
        body = {"nodes": draw.sample(servers, min(2, len(servers))), "force": draw.random() < 0.5}
        await self._call("anna", "POST", "/together", body)

    async def _lock(self, draw: random.Random) -> None:
        name, port = self._port(draw)
        if await self._call("operator", "POST", "/locks", {"ocs": name, "ports": [port]}):
            self.judge.locked[name, port] = "operator"

    async def _unlock(self, draw: random.Random) -> None:
        if self.judge.locked:
            name, port = draw.choice(list(self.judge.locked))
            del self.judge.locked[name, port]
            await self._call("operator", "POST", "/locks/release", {"ocs": name, "ports": [port]})

    async def _press_stop(self, draw: random.Random) -> None:
        await self._call("operator", "POST", "/stop", {"why": "drawn"})

    async def _clear_stop(self, draw: random.Random) -> None:
        await self._call("operator", "POST", "/stop/clear", {"why": "drawn"})

    async def _drain(self, draw: random.Random) -> None:
        await self._call("operator", "POST", "/drain", {"why": "drawn"})

    async def _resume(self, draw: random.Random) -> None:
        await self._call("operator", "DELETE", "/drain")

    async def _roll_back(self, draw: random.Random) -> None:
        answer = await self._call("operator", "GET", "/reconfigurations?last=5")
        rows = (answer or {}).get("reconfigurations", [])
        if rows:
            number = draw.choice(rows)["id"]
            await self._call("operator", "POST", f"/reconfigurations/{number}/rollback", {})

    async def _repair(self, draw: random.Random) -> None:
        verb = draw.choice(("repair", "adopt"))
        await self._call("operator", "POST", f"/drift/{verb}", {})

    async def _kill_controller(self, draw: random.Random) -> None:
        process = self.lab.controller
        process.dies_at = process.steps + draw.choice((1, 10, 100, 1000)) * draw.randint(1, 9)
        for _ in range(200):
            if not process.alive:
                break
            await asyncio.sleep(0.05)
        process.kill()
        await asyncio.sleep(draw.choice((0.1, 1.0, 20.0)))
        self.lab.restart()

    async def _kill_agent(self, draw: random.Random) -> None:
        machine = draw.choice(list(self.lab.machines.values()))
        machine.agent.dies_at = machine.agent.steps + draw.choice((1, 10, 100)) * draw.randint(1, 9)
        await asyncio.sleep(2.0)
        machine.agent.kill()
        await asyncio.sleep(draw.choice((0.1, 2.0, 15.0, 45.0)))
        if not machine.agent.alive:
            machine.start()

    async def _kill_device(self, draw: random.Random) -> None:
        device = draw.choice(list(self.lab.plant.devices.values()))
        device.process.dies_at = device.process.steps + draw.choice((1, 10, 100)) * draw.randint(
            1, 9
        )
        await asyncio.sleep(2.0)
        device.process.kill()
        await asyncio.sleep(draw.choice((0.1, 2.0, 15.0, 60.0)))
        if not device.process.alive:
            device.start()

    async def _kill_worker(self, draw: random.Random) -> None:
        running = [w for m in self.lab.machines.values() for w in m.workers.values()]
        running = [worker for worker in running if worker.process.alive]
        if running:
            draw.choice(running).kill(137)

    async def _kill_speaker(self, draw: random.Random) -> None:
        if self.lab.plant.speakers:
            self.lab.plant.speakers[-1].process.kill()

    async def _lose_switch(self, draw: random.Random) -> None:
        switch = draw.choice(list(self.lab.plant.switches.values()))
        self.lab.plant.connect(switch, up=False)
        await asyncio.sleep(draw.choice((1.0, 10.0, 60.0)))
        if draw.random() < 0.3:
            switch.table.clear()  # it was switched off
        self.lab.plant.connect(switch, up=True)

    async def _refuse_entries(self, draw: random.Random) -> None:
        draw.choice(list(self.lab.plant.switches.values())).refuses = draw.randint(1, 3)

    async def _cut(self, draw: random.Random) -> None:
        others = [m.agent.name for m in self.lab.machines.values()]
        others += [device.process.name for device in self.lab.plant.devices.values()]
        pair = ["controller", draw.choice(others)]
        draw.shuffle(pair)
        network = self.lab.world.network
        network.cut(pair[0], pair[1])
        if draw.random() < 0.6:
            network.cut(pair[1], pair[0])
        await asyncio.sleep(draw.choice((1.0, 8.0, 40.0)))
        network.heal()

    async def _slow(self, draw: random.Random) -> None:
        self.lab.world.slow = draw.choice((10.0, 100.0, 400.0))
        await asyncio.sleep(draw.choice((2.0, 20.0)))
        self.lab.world.slow = 1.0

    async def _dark(self, draw: random.Random) -> None:
        host = draw.choice(self.lab.lab.hosts).name
        self.lab.plant.dark.add(host)
        await asyncio.sleep(draw.choice((1.0, 10.0, 60.0)))
        self.lab.plant.dark.discard(host)

    async def _device_fault(self, draw: random.Random) -> None:
        device = draw.choice(list(self.lab.plant.devices.values()))
        if device.emulated is None:
            return
        faults = device.emulated.faults
        match draw.randrange(5):
            case 0:
                faults.refuse_next = "not now"
            case 1:
                faults.cut = draw.choice(("before", "after"))
            case 2:
                faults.stall_s = draw.choice((0.5, 3.0, 30.0))
            case 3:
                faults.garble = 1
            case _:
                faults.refuse_ports = [draw.randint(1, device.switch.ports)]
                device.emulated.apply_faults()
                await asyncio.sleep(30.0)
                faults.refuse_ports = []
                device.emulated.apply_faults()

    async def _lose_gpu(self, draw: random.Random) -> None:
        machine = draw.choice(list(self.lab.machines.values()))
        gpu = draw.choice(machine.server.gpus).name
        machine.dead_gpus.add(gpu)
        await asyncio.sleep(60.0)
        machine.dead_gpus.discard(gpu)

    async def _second_controller(self, draw: random.Random) -> None:
        if self.lab.app is None:
            return
        first = self.lab.controller
        second = self.lab.try_second()
        await asyncio.sleep(10.0)
        if first.alive and second.alive:
            self.judge.wrong("two controllers run for one lab")
        second.kill()

    async def _clock_jump(self, draw: random.Random) -> None:
        self.lab.world.skew_s += draw.choice((-3600.0, -5.0, 5.0, 3600.0))

    # -- the end -------------------------------------------------------------------------------

    async def _heal(self) -> None:
        """End all faults, restore the first map, and let everything go on."""
        world, plant = self.lab.world, self.lab.plant
        world.log("story", "all faults end")
        world.slow = 1.0
        world.network.heal()
        plant.dark.clear()
        for device in plant.devices.values():
            if not device.process.alive:
                device.start()
        for switch in plant.switches.values():
            switch.refuses = 0
            plant.connect(switch, up=True)
        for machine in self.lab.machines.values():
            machine.dead_gpus.clear()
            if not machine.agent.alive:
                machine.start()
        self.lab.restart()
        try:
            async with asyncio.timeout(REST_S):
                await self.lab.until_served()
        except TimeoutError:
            self.judge.wrong("the controller does not serve though all faults have ended")
            return
        await asyncio.sleep(60.0)
        for device in plant.devices.values():
            assert device.emulated is not None
            device.emulated.faults.refuse_next = device.emulated.faults.cut = ""
            device.emulated.faults.stall_s = 0.0
            device.emulated.faults.garble = 0
        self.judge.locked.clear()
        for lock in ((await self._call("operator", "GET", "/locks")) or {}).get("locks", []):
            body = {"ocs": lock["ocs"], "ports": [lock["port"]]}
            await self._call("operator", "POST", "/locks/release", body)
        await self._call("operator", "POST", "/stop/clear", {})
        await self._call("operator", "DELETE", "/drain")
        await self._call("operator", "POST", "/drift/adopt", {})
        maps = {s.name: [str(c) for c in s.initial] for s in self.lab.lab.circuit_switches}
        for _ in range(20):
            body = {"maps": maps, "only": True}
            if await self._call("operator", "POST", "/reconfigurations", body):
                break
            await asyncio.sleep(30.0)
        else:
            self.judge.wrong("the first map cannot be restored after all faults")

    async def _come_to_rest(self) -> None:
        world = self.lab.world
        end, jobs = world.now + REST_S, []
        while world.now < end:
            jobs = ((await self._call("operator", "GET", "/jobs?last=1000")) or {}).get("jobs", [])
            if jobs is not None and all(job["state"] in FINAL for job in jobs):
                break
            await asyncio.sleep(20.0)
        await asyncio.sleep(30.0)
        circuits = await self._call("operator", "GET", "/circuits")
        status = await self._call("operator", "GET", "/status")
        if circuits is None or status is None:
            self.judge.wrong("the controller does not answer at rest")
            return
        self.judge.at_rest(jobs, circuits, status)


def _models(lab: Lab) -> set[str]:
    return {gpu.model for server in lab.servers for gpu in server.gpus}
