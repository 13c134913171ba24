"""Draws a lab, a day's work and faults from one seed, and runs them against the judge."""

from __future__ import annotations

import asyncio
import logging
import random
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patchlight.testbed.lab.model import Lab
from tests.simulation import faults, users
from tests.simulation.draw_lab import DRIVERS, draw_lab
from tests.simulation.faults import Faults
from tests.simulation.judge import FINAL, Judge
from tests.simulation.lab import SimulatedLab
from tests.simulation.users import Users, with_rules
from tests.simulation.world import Deadlock, World, bury

_OFTEN = {**users.OFTEN, **faults.OFTEN}

_BURST_S = 60.0
REST_S = 1800.0
"""After the last fault everything must have come to rest within this time."""


@dataclass(frozen=True)
class Step:
    """One drawn event: when, what, and a number that decides the rest."""

    at_s: float
    kind: str
    draw: int


def draw_steps(
    seed: int | str, count: int = 60, over_s: float = 3600.0
) -> list[Step]:
    """The events of a history, in order: bursts of them, with quiet times between."""
    draw = random.Random(f"steps {seed}")
    kinds = draw.choices(list(_OFTEN), weights=list(_OFTEN.values()), k=count)
    bursts = [
        over_s,
        *(draw.uniform(0.0, over_s) for _ in range(draw.randint(2, 12))),
    ]
    times = sorted(
        draw.choice(bursts) + draw.uniform(0.0, _BURST_S) for _ in kinds
    )
    return [
        Step(at, kind, draw.getrandbits(32))
        for at, kind in zip(times, kinds, strict=True)
    ]


class History:
    """One history: ``run`` it once."""

    def __init__(
        self,
        seed: int | str,
        steps: Sequence[Step] | None = None,
        lab: Lab | None = None,
        drivers: Sequence[str] = DRIVERS,
    ) -> None:
        """``drivers``: those that its circuit switches may have."""
        self.seed = seed
        self.steps = draw_steps(seed) if steps is None else list(steps)
        self._drawn = lab or with_rules(draw_lab(seed, drivers), seed)
        self.lines: list[str] = []
        self.wrong: list[str] = []
        self.lasted_s = 0.0
        self._busy: set[asyncio.Task[None]] = set()

    @property
    def drivers(self) -> list[str]:
        """The driver of each optical switch."""
        return [
            switch.driver
            for switch in self._drawn.optical_switches
            if switch.driver
        ]

    def page(self) -> list[str]:
        """What happened, to be read: the lab, the events, what the judge found, and the log."""
        lab = self._drawn
        return [
            f"History {self.seed}: {len(lab.servers)} servers, {len(lab.packet_switches)} packet "
            f"switches, optical switches of {', '.join(self.drivers)}; agents are polled every "
            f"{lab.controller_poll_s:g} s",
            "",
            "The judge found:"
            if self.wrong
            else "The judge found nothing wrong.",
            "",
            *self.wrong,
            "",
            "Events, by their seconds since the start:",
            "",
            *(f"{step.at_s:13.6f} {step.kind}" for step in self.steps),
            "",
            "Who did what: requests (→), answers (←), programs, light:",
            "",
            *self.lines,
        ]

    def run(self) -> list[str]:
        """Play it; returns what the judge found."""
        with tempfile.TemporaryDirectory(
            dir="/dev/shm", prefix="pl"
        ) as folder:
            world = World(self.seed, Path(folder))
            self._live(world)
            # What is left of the dead goes now, and not in the middle of the next history.
            del self.lab, self.judge, self.users, self.faults
            bury(world)
        return self.wrong

    def _live(self, world: World) -> None:
        root = logging.getLogger()
        levels = root.level
        with world.entered():
            self.lab = SimulatedLab(world, self._drawn)
            self.judge = Judge(self.lab)
            self.users = Users(self.lab, self.judge)
            self.faults = Faults(self.lab, self.judge)
            root.addHandler(self.judge)
            root.setLevel(logging.ERROR)
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

    async def _play(self, world: World) -> None:
        await self.lab.open()
        await self.users.open()
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
        who = self.users if step.kind in users.OFTEN else self.faults
        await getattr(who, step.kind.replace("-", "_"))(draw)

    # -- the end -------------------------------------------------------------------------------

    async def _heal(self) -> None:
        """End all faults, restore the first map, and let everything go on."""
        world = self.lab.world
        plant = self.lab.plant
        world.log("story", "all faults end")
        world.slow = 1.0
        world.network.heal()
        plant.dark.clear()
        for disk in self.lab.disks:
            disk.trouble = 0
        for device in plant.devices.values():
            if not device.process.alive:
                device.start()
        for switch in plant.switches.values():
            switch.refuse(0)
        for machine in self.lab.machines.values():
            machine.dead_gpus.clear()
            if not machine.agent.alive:
                machine.start()
        self.lab.restart()
        try:
            async with asyncio.timeout(REST_S):
                await self.lab.until_served()
        except TimeoutError:
            self.judge.wrong(
                "the controller does not serve though all faults have ended"
            )
            return
        await asyncio.sleep(60.0)
        for device in plant.devices.values():
            await device.heal()
        self.judge.locked.clear()
        for lock in (
            (await self.users.call("operator", "GET", "/locks")) or {}
        ).get("locks", []):
            place = (
                f"{lock['port']}@{lock['channel']}"
                if lock["channel"]
                else lock["port"]
            )
            body = {"ocs": lock["ocs"], "ports": [place]}
            await self.users.call("operator", "POST", "/locks/release", body)
        await self.users.call("operator", "POST", "/stop/clear", {})
        await self.users.call("operator", "DELETE", "/drain")
        await self.users.call("operator", "POST", "/drift/adopt", {})
        maps = {
            s.name: [str(c) for c in s.initial]
            for s in self.lab.lab.optical_switches
        }
        for _ in range(20):
            await self._release_held()
            body = {"maps": maps, "only": True}
            answer = await self.users.call(
                "operator", "POST", "/reconfigurations", body
            )
            if answer is not None and answer["state"] == "committed":
                break
            await asyncio.sleep(30.0)
        else:
            self.judge.wrong(
                "the first map cannot be restored after all faults"
            )

    async def _release_held(self) -> list[dict[str, Any]]:
        """Release the claims that are held; returns those that wait."""
        answer = await self.users.call("operator", "GET", "/claims")
        found = [*(answer or {}).get("claims", [])]
        for claim in found:
            if claim["state"] in ("held", "overdue"):
                await self.users.call(
                    "operator", "DELETE", f"/claims/{claim['name']}"
                )
        return [claim for claim in found if claim["state"] == "waiting"]

    async def _come_to_rest(self) -> None:
        world = self.lab.world
        end = world.now + REST_S
        jobs = []
        while world.now < end:
            jobs = (
                (await self.users.call("operator", "GET", "/jobs?last=1000"))
                or {}
            ).get("jobs", [])
            waiting = await self._release_held()
            is_over = jobs is not None and all(
                job["state"] in FINAL for job in jobs
            )
            if is_over and not waiting:
                break
            lost = {
                job["id"]
                for job in jobs
                if job["state"] in ("failed", "stopped")
            }
            for job in jobs:
                if job["state"] == "blocked" and not lost.isdisjoint(
                    job["spec"]["after"]
                ):
                    await self.users.call(
                        "operator", "DELETE", f"/jobs/{job['id']}?force=true"
                    )
            await asyncio.sleep(20.0)
        await asyncio.sleep(30.0)
        circuits = await self.users.call("operator", "GET", "/circuits")
        status = await self.users.call("operator", "GET", "/status")
        if circuits is None or status is None:
            self.judge.wrong("the controller does not answer at rest")
            return
        claims = await self._release_held()
        self.judge.at_rest(jobs, circuits, status, claims)


@dataclass(frozen=True)
class Played:
    """What came of one history."""

    seed: int
    wrong: Sequence[str]
    lasted_s: float
    cpu_s: float
    kinds: Counter[str]
    drivers: Counter[str]


def play(seed: int, drivers: Sequence[str], end: float) -> Played | None:
    """Play one, unless it is later than ``end`` by the monotonic clock."""
    if time.monotonic() > end:
        return None
    began = time.process_time()
    history = History(seed, drivers=drivers)
    wrong = history.run()
    return Played(
        seed,
        wrong,
        history.lasted_s,
        time.process_time() - began,
        Counter(step.kind for step in history.steps),
        Counter(history.drivers),
    )
