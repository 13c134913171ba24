"""What befalls a lab: each kind of event is a method of ``Faults`` with the hyphens of its name as
underscores."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Collection
from typing import Any

import httpx
from click.testing import CliRunner

from patchlight.cli import controller
from patchlight.testbed.lab.model import CircuitSwitch
from tests.simulation.judge import Judge
from tests.simulation.lab import SimulatedLab
from tests.simulation.packet_switches import Switch
from tests.simulation.servers import Worker
from tests.simulation.world import Process

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
    "cut-power": 2,
    "disk-trouble": 2,
    "stall": 1,
    "move-controller": 1,
    "clock-jump": 1,
    "stall-speaker": 1,
    "stall-switch": 2,
    "lose-port": 2,
    "report-down": 1,
    "lead-astray": 2,
    "fail-worker": 2,
    "ignore-stops": 1,
    "hang-worker": 2,
    "fault-in-launch": 2,
    "fault-in-answer": 4,
    "reboot-server": 2,
}
"""How often each event is drawn."""

NEVER_S = 1e6
"""After this time every history has ended."""


class Faults:
    """The faults of one lab."""

    def __init__(self, lab: SimulatedLab, judge: Judge) -> None:
        self.lab = lab
        self.judge = judge
        self._auditor = lab.client("auditor")

    async def kill_controller(self, draw: random.Random) -> None:
        process = self.lab.controller
        await self._die_soon(process, draw)
        held = self.judge.holds()
        if draw.random() < 0.5 and not self.lab.controller.alive:
            self.lab.disk.cut_power()
        await asyncio.sleep(draw.choice((0.1, 1.0, 20.0)))
        self.lab.restart()
        await self._look_after(held)

    async def _look_after(self, held: Collection[str]) -> None:
        """Once the controller serves again, let the judge compare, unless it is killed again."""
        try:
            async with asyncio.timeout(120.0):
                await self.lab.until_served()
        except TimeoutError:
            return
        paths = (
            "/locks",
            "/reconfigurations?last=1000",
            "/jobs?last=1000",
            "/stop",
            "/claims",
            "/status",
        )
        answers = {}
        for path in paths:
            try:
                response = await self._auditor.get(path)
            except httpx.HTTPError:
                return
            if not response.is_success:
                return
            answers[path] = response.json()
        self.judge.survived(held, answers)

    async def _die_soon(self, process: Process, draw: random.Random) -> None:
        """Kill it at one of its next steps or writes, or soon after a call has come, a worker is in
        a new state, or light has moved."""
        moment = draw.choice(("now", "write", "call", "worker", "light"))
        steps = int(10 ** draw.uniform(0.0, 3.5))

        def doom(*_: object) -> None:
            if process.dies_at is None:
                process.dies_at = process.steps + steps

        place: list[Any] = draw.choice(
            list(self.lab.plant.devices.values())
        ).on_change
        if moment == "call":
            place = process.at_call
        elif moment == "worker":
            place = self.lab.on_worker
        if moment == "now":
            doom()
        elif moment == "write":
            process.dies_at_write = process.writes + draw.randint(1, 12)
        else:
            place.append(doom)
        for _ in range(200):
            if not process.alive:
                break
            await asyncio.sleep(0.05)
        process.kill()
        if doom in place:
            place.remove(doom)

    async def move_controller(self, draw: random.Random) -> None:
        """Back its state up after its death, and let it go on with what was restored."""
        await self._die_soon(self.lab.controller, draw)
        if self.lab.controller.alive:
            return  # somebody else has started it again
        held = self.judge.holds()
        folder = self.lab.world.folder
        state = self.lab.state
        if (state / "controller.db").exists():
            moves = len(list(folder.glob("left-*")))
            archive = folder / f"backup-{moves}.tar.gz"
            lab_file = folder / "lab.yaml"
            lab_file.touch()
            for command, given in (
                (
                    controller.backup,
                    [archive, "--lab", lab_file, "--state", state],
                ),
                (
                    controller.restore,
                    [archive, "--state", folder / "restored"],
                ),
            ):
                result = CliRunner().invoke(
                    command, [str(each) for each in given]
                )
                if result.exit_code:
                    self.judge.wrong(
                        f"{command.name}: {result.output} {result.exception}"
                    )
                    break
            else:
                state.rename(folder / f"left-{moves}")
                (folder / "restored").rename(state)
        self.lab.restart()
        await self._look_after(held)

    async def kill_agent(self, draw: random.Random) -> None:
        machine = draw.choice(list(self.lab.machines.values()))
        await self._die_soon(machine.agent, draw)
        await asyncio.sleep(draw.choice((0.1, 2.0, 15.0, 45.0)))
        if not machine.agent.alive:
            machine.start()

    async def kill_device(self, draw: random.Random) -> None:
        device = draw.choice(list(self.lab.plant.devices.values()))
        device.process.dies_at = device.process.steps + draw.choice(
            (1, 10, 100)
        ) * draw.randint(1, 9)
        await asyncio.sleep(2.0)
        device.process.kill()
        await asyncio.sleep(draw.choice((0.1, 2.0, 15.0, 60.0)))
        if not device.process.alive:
            device.start()

    async def kill_worker(self, draw: random.Random) -> None:
        if worker := self._a_worker(draw):
            worker.kill(draw.choice((137, 1, 139)))

    async def fail_worker(self, draw: random.Random) -> None:
        if worker := self._a_worker(draw):
            worker.fail("RuntimeError: CUDA error: unspecified launch failure")

    async def ignore_stops(self, draw: random.Random) -> None:
        if worker := self._a_worker(draw):
            worker.stubborn = True

    async def hang_worker(self, draw: random.Random) -> None:
        if worker := self._a_worker(draw):
            worker.responsive.clear()
            await asyncio.sleep(draw.choice((5.0, 40.0, 200.0)))
            worker.responsive.set()

    def _a_worker(self, draw: random.Random) -> Worker | None:
        running = [
            w for m in self.lab.machines.values() for w in m.workers.values()
        ]
        running = [worker for worker in running if worker.process.alive]
        return draw.choice(running) if running else None

    async def fault_in_launch(self, draw: random.Random) -> None:
        machine = draw.choice(list(self.lab.machines.values()))
        machine.next_launch = draw.choice(("fails", "kills the agent"))
        await asyncio.sleep(60.0)
        machine.next_launch = ""
        if not machine.agent.alive:
            machine.start()

    async def fault_in_answer(self, draw: random.Random) -> None:
        machine = draw.choice(list(self.lab.machines.values()))
        machine.next_answer = draw.choice(
            ("is late", "is lost", "is given twice")
        )

    async def reboot_server(self, draw: random.Random) -> None:
        machine = draw.choice(list(self.lab.machines.values()))
        machine.switch_off()
        await asyncio.sleep(draw.choice((5.0, 40.0)))
        if not machine.agent.alive:
            machine.start()

    async def kill_speaker(self, draw: random.Random) -> None:
        if self.lab.plant.speakers:
            process = self.lab.plant.speakers[-1].process
            process.dies_at = process.steps + draw.choice(
                (1, 10, 100)
            ) * draw.randint(1, 9)
            await asyncio.sleep(20.0)
            process.kill()

    async def stall_speaker(self, draw: random.Random) -> None:
        if self.lab.plant.speakers:
            speaker = self.lab.plant.speakers[-1]
            speaker.stall_s = draw.choice((0.5, 4.0, 15.0))
            await asyncio.sleep(30.0)
            speaker.stall_s = 0.0

    async def lose_switch(self, draw: random.Random) -> None:
        switch = self._a_switch(draw)
        old = switch.save()
        await asyncio.sleep(draw.choice((0.0, 5.0, 50.0)))
        switch.kill()
        await asyncio.sleep(draw.choice((1.0, 10.0, 60.0)))
        if draw.random() < 0.5:  # it was switched off
            switch.reboot(draw.choice((None, old)))
        switch.start()

    async def refuse_entries(self, draw: random.Random) -> None:
        self._a_switch(draw).refuse(draw.randint(1, 3))

    async def stall_switch(self, draw: random.Random) -> None:
        switch = self._a_switch(draw)
        switch.stall_s = draw.choice((0.5, 4.0, 15.0))
        await asyncio.sleep(draw.choice((10.0, 60.0)))
        switch.stall_s = 0.0

    async def lose_port(self, draw: random.Random) -> None:
        """A port vanishes; or two swap their numbers, where the lab file has their names."""
        switch = self._a_switch(draw)
        one, other = draw.sample(range(1, switch.switch.ports + 1), 2)
        if draw.random() < 0.7:
            switch.numbers.pop(one, None)
        elif (
            switch.numbers.keys() >= {one, other} and switch.switch.interfaces
        ):
            numbers = switch.numbers
            numbers[one], numbers[other] = numbers[other], numbers[one]
        switch.renumbered()
        await asyncio.sleep(draw.choice((5.0, 60.0)))
        switch.restore_ports()

    async def report_down(self, draw: random.Random) -> None:
        """A switch reports a port without a link that has one."""
        switch = self._a_switch(draw)
        switch.reported_down.add(draw.randint(1, switch.switch.ports))
        switch.renumbered()
        await asyncio.sleep(30.0)
        switch.restore_ports()

    async def lead_astray(self, draw: random.Random) -> None:
        """Another application's entry takes precedence for a while: nobody else may remove it."""
        switch = self._a_switch(draw)
        if not switch.stray:
            mac = draw.choice(self.lab.lab.hosts).nic.mac.lower()
            switch.lead_astray(mac, draw.randint(1, switch.switch.ports))
            await asyncio.sleep(draw.choice((5.0, 60.0)))
            if switch.stray == mac and not switch.has_stray:
                self.judge.wrong(
                    f"{switch.name}: another application's entry was removed"
                )
            switch.lead_astray(mac, None)

    def _a_switch(self, draw: random.Random) -> Switch:
        return draw.choice(list(self.lab.plant.switches.values()))

    async def cut(self, draw: random.Random) -> None:
        others = [m.agent.name for m in self.lab.machines.values()]
        others += [
            device.process.name for device in self.lab.plant.devices.values()
        ]
        others += [*self.lab.plant.switches, "anna", "ben", "operator"]
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
        await asyncio.gather(
            first.stall(draw.choice((0.0, 5.0))), asyncio.sleep(10.0)
        )
        if first.alive and second.alive:
            self.judge.wrong("two controllers run for one lab")
        second.kill()

    async def cut_power(self, draw: random.Random) -> None:
        """Of a server. That of the controller's machine is cut in ``kill_controller``."""
        machine = draw.choice(list(self.lab.machines.values()))
        await self._die_soon(machine.agent, draw)
        if machine.agent.alive:
            return  # somebody else has started it again
        machine.cut_power()
        await asyncio.sleep(draw.choice((2.0, 30.0, 90.0)))
        if not machine.agent.alive:
            machine.start()

    async def disk_trouble(self, draw: random.Random) -> None:
        disk = draw.choice((self.lab.disk, draw.choice(self.lab.disks)))
        disk.trouble = draw.choice((errno.ENOSPC, errno.EIO, errno.EROFS))
        await asyncio.sleep(draw.choice((1.0, 10.0, 60.0)))
        disk.trouble = 0

    async def stall(self, draw: random.Random) -> None:
        machines = list(self.lab.machines.values())
        process = draw.choice(
            (self.lab.controller, draw.choice(machines).agent)
        )
        await process.stall(draw.choice((0.5, 5.0, 40.0)))

    async def clock_jump(self, draw: random.Random) -> None:
        self.lab.world.skew_s += draw.choice((-3600.0, -5.0, 5.0, 3600.0))
