"""What befalls a lab: each kind of event is a method of ``Faults`` with the hyphens of its name as
underscores."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from patchlight.testbed.lab.model import CircuitSwitch
from tests.simulation.judge import Judge
from tests.simulation.lab import SimulatedLab

OFTEN = {
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
    "reboot-device": 2,
    "lose-ports": 1,
    "front-panel": 2,
    "cut-sessions": 1,
    "lose-gpu": 1,
    "second-controller": 1,
    "clock-jump": 1,
}
"""How often each event is drawn."""

NEVER_S = 1e6
"""After this time every history has ended."""


class Faults:
    """The faults of one lab."""

    def __init__(self, lab: SimulatedLab, judge: Judge) -> None:
        self.lab = lab
        self.judge = judge

    async def kill_controller(self, draw: random.Random) -> None:
        process = self.lab.controller
        process.dies_at = process.steps + draw.choice((1, 10, 100, 1000)) * draw.randint(1, 9)
        for _ in range(200):
            if not process.alive:
                break
            await asyncio.sleep(0.05)
        process.kill()
        await asyncio.sleep(draw.choice((0.1, 1.0, 20.0)))
        self.lab.restart()

    async def kill_agent(self, draw: random.Random) -> None:
        machine = draw.choice(list(self.lab.machines.values()))
        machine.agent.dies_at = machine.agent.steps + draw.choice((1, 10, 100)) * draw.randint(1, 9)
        await asyncio.sleep(2.0)
        machine.agent.kill()
        await asyncio.sleep(draw.choice((0.1, 2.0, 15.0, 45.0)))
        if not machine.agent.alive:
            machine.start()

    async def kill_device(self, draw: random.Random) -> None:
        device = draw.choice(list(self.lab.plant.devices.values()))
        device.process.dies_at = device.process.steps + draw.choice((1, 10, 100)) * draw.randint(
            1, 9
        )
        await asyncio.sleep(2.0)
        device.process.kill()
        await asyncio.sleep(draw.choice((0.1, 2.0, 15.0, 60.0)))
        if not device.process.alive:
            device.start()

    async def kill_worker(self, draw: random.Random) -> None:
        running = [w for m in self.lab.machines.values() for w in m.workers.values()]
        running = [worker for worker in running if worker.process.alive]
        if running:
            draw.choice(running).kill(137)

    async def kill_speaker(self, draw: random.Random) -> None:
        if self.lab.plant.speakers:
            self.lab.plant.speakers[-1].process.kill()

    async def lose_switch(self, draw: random.Random) -> None:
        switch = draw.choice(list(self.lab.plant.switches.values()))
        self.lab.plant.connect(switch, up=False)
        await asyncio.sleep(draw.choice((1.0, 10.0, 60.0)))
        if draw.random() < 0.3:
            switch.table.clear()  # it was switched off
        self.lab.plant.connect(switch, up=True)

    async def refuse_entries(self, draw: random.Random) -> None:
        draw.choice(list(self.lab.plant.switches.values())).refuses = draw.randint(1, 3)

    async def cut(self, draw: random.Random) -> None:
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

    async def slow(self, draw: random.Random) -> None:
        self.lab.world.slow = draw.choice((10.0, 100.0, 400.0))
        await asyncio.sleep(draw.choice((2.0, 20.0)))
        self.lab.world.slow = 1.0

    async def dark(self, draw: random.Random) -> None:
        host = draw.choice(self.lab.lab.hosts).name
        self.lab.plant.dark.add(host)
        await asyncio.sleep(draw.choice((1.0, 10.0, 60.0)))
        self.lab.plant.dark.discard(host)

    async def device_fault(self, draw: random.Random) -> None:
        device = draw.choice(list(self.lab.plant.devices.values()))
        port = draw.randint(1, device.switch.ports)
        once: tuple[dict[str, Any], ...] = (
            {"refuse_next": "not now"},
            {"cut": draw.choice(("before", "after"))},
            {"stall_s": draw.choice((0.5, 3.0, 30.0, NEVER_S))},
            {"stall_s": 15.0, "acknowledge": True},
            {"garble": 1},
            {"answer_twice": draw.randint(1, 3)},
            {"truncate": 1},
            {"strays": 2, "flood": 20},
        )
        lasting: tuple[dict[str, Any], ...] = (
            {"refuse_ports": [port]},
            {"fail_ports": [port]},
            {"dark_ports": [port]},
            {"drift_db": {str(port): 90.0}},
            {"monitors": draw.choice(("out", "none"))},
            {"read_only": True},
        )
        settings = draw.choice((*once, *lasting))
        await device.fault(**settings)
        if settings in lasting:
            await asyncio.sleep(draw.choice((5.0, 30.0)))
            await device.heal()

    async def reboot_device(self, draw: random.Random) -> None:
        """A device reboots, mostly in the middle of a change, with what is in its memory."""
        device = draw.choice(list(self.lab.plant.devices.values()))
        if draw.random() < 0.7:
            await device.next_change(60.0)
            await asyncio.sleep(draw.choice((0.0, 0.001, 0.01, 0.3)))
        device.kill()
        await asyncio.sleep(draw.choice((0.1, 5.0, 60.0)))
        if device.process.alive:
            return
        device.forget(draw.choice(("new", "old", "half", "none")), draw)
        device.start()

    async def lose_ports(self, draw: random.Random) -> None:
        """A card of an OCS is pulled, and put in again."""
        device = draw.choice(list(self.lab.plant.devices.values()))
        if not isinstance(device.switch, CircuitSwitch):
            return
        used = [max(c) for c in device.map]
        for ports in (max([*used, device.switch.ports // 2]), None):
            device.kill()
            await asyncio.sleep(2.0)
            if not device.process.alive:
                device.start(ports)
            await asyncio.sleep(30.0)

    async def front_panel(self, draw: random.Random) -> None:
        """Somebody breaks an entry of a device, or makes one; or does so just before a change."""
        device = draw.choice(list(self.lab.plant.devices.values()))
        entries = [str(entry) for entry in device.map]
        if isinstance(device.switch, CircuitSwitch):
            a, b = (draw.randint(1, device.switch.ports) for _ in range(2))
            entries.append(f"{a}-{b}" if a != b else f"{a}>{b}")
        if not entries:
            return
        if draw.random() < 0.5:
            await device.fault(meddle=draw.choice(entries))
        else:
            await device.meddle(draw.choice(entries))

    async def cut_sessions(self, draw: random.Random) -> None:
        """A device ends its sessions."""
        device = draw.choice(list(self.lab.plant.devices.values()))
        if device.server is not None and device.process.alive:
            device.server.cut()

    async def lose_gpu(self, draw: random.Random) -> None:
        machine = draw.choice(list(self.lab.machines.values()))
        gpu = draw.choice(machine.server.gpus).name
        machine.dead_gpus.add(gpu)
        await asyncio.sleep(60.0)
        machine.dead_gpus.discard(gpu)

    async def second_controller(self, draw: random.Random) -> None:
        if self.lab.app is None:
            return
        first = self.lab.controller
        second = self.lab.try_second()
        await asyncio.sleep(10.0)
        if first.alive and second.alive:
            self.judge.wrong("two controllers run for one lab")
        second.kill()

    async def clock_jump(self, draw: random.Random) -> None:
        self.lab.world.skew_s += draw.choice((-3600.0, -5.0, 5.0, 3600.0))
