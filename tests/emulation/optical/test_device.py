"""The emulated OCS with a clock that the test moves: phases, dark time, optical power."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from patchlight.emulation.optical.crossbar import NoCrossbar, arriving_dbm
from patchlight.emulation.optical.device import EmulatedOcs
from patchlight.emulation.optical.matrices import (
    LightChange,
    Phase,
    Reason,
    RequestRefused,
    SwitchMatrix,
)
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.model import CircuitSwitch
from patchlight.testbed.lab.portmap import CrossConnect, PortMap
from patchlight.testbed.labfile.reader import parse_lab

SWITCHING_S = 0.025


@dataclass
class Call:
    when: float
    function: Callable[[], None]
    off: bool = False

    def cancel(self) -> None:
        self.off = True


@dataclass
class HandClock:
    """Time stands still until the test moves it."""

    seconds: float = 100.0
    calls: list[Call] = field(default_factory=list)

    def time(self) -> float:
        return self.seconds

    def call_at(self, when: float, callback: Callable[[], None]) -> Call:
        self.calls.append(Call(when, callback))
        return self.calls[-1]

    async def to(self, seconds: float) -> None:
        self.seconds = seconds
        due = [
            call
            for call in self.calls
            if call.when <= seconds and not call.off
        ]
        self.calls = [call for call in self.calls if call not in due]
        for call in due:
            call.function()
        # What the calls started finishes: nothing in the device waits for anything but us.
        for _ in range(10):
            await asyncio.sleep(0)  # a step of the loop


@dataclass
class Recorder(NoCrossbar):
    """Remembers what it was told to move."""

    told: list[LightChange] = field(default_factory=list)
    off: set[int] = field(default_factory=set)

    async def change(self, change: LightChange) -> None:
        self.told.append(change)


def make(
    *initial: tuple[int, int],
    arriving: dict[int, float] | None = None,
    state: Path | None = None,
) -> tuple[EmulatedOcs, HandClock, Recorder]:
    clock = HandClock()
    crossbar = Recorder()
    switch = CircuitSwitch(
        "ocs1",
        "calient-tl1",
        "127.0.0.1:0",
        16,
        SWITCHING_S,
        1.5,
        initial=PortMap.of(initial),
    )
    device = EmulatedOcs(
        switch, arriving or {}, crossbar, state_file=state, clock=clock
    )
    return device, clock, crossbar


async def test_a_path_lights_up_after_the_switching_time_and_goes_dark_at_once() -> (
    None
):
    device, clock, crossbar = make((1, 7), arriving={1: -0.3, 2: -0.5})
    await device.open()
    assert crossbar.told == [LightChange((), (CrossConnect(1, 7),))]
    held = device.matrix.find(CrossConnect(1, 7))
    assert held is not None
    device.remove(held)
    await device.settle()
    assert crossbar.told[1:] == [LightChange((1,), ())]
    assert (await device.power([7]))[7] == (None, None)
    circuit = device.enter([CrossConnect(1, 8)])
    device.activate(circuit)
    await device.settle()
    assert [circuit.phase for circuit in device.matrix] == [Phase.SWITCHING]
    await clock.to(100 + SWITCHING_S - 1e-6)
    assert [circuit.phase for circuit in device.matrix] == [Phase.SWITCHING]
    assert len(crossbar.told) == 2
    assert (await device.power([8]))[8] == (None, None)
    await clock.to(100 + SWITCHING_S)
    assert [circuit.phase for circuit in device.matrix] == [Phase.LIT]
    assert crossbar.told[2:] == [LightChange((), (CrossConnect(1, 8),))]
    arriving, leaving = (await device.power([8]))[8]
    assert arriving is None
    assert leaving == pytest.approx(-0.3 - 1.5, abs=0.301)
    await device.close()


async def test_power_is_there_only_while_the_transmitter_is_on() -> None:
    device, _, crossbar = make((1, 7), (7, 1), arriving={1: -0.3, 7: 2.0})
    await device.open()
    readings = await device.power([1, 7, 3])
    loss = device.loss_db(CrossConnect(1, 7))
    assert readings[7] == pytest.approx((2.0, -0.3 - loss))
    assert readings[1][0] == -0.3
    assert readings[3] == (None, None)
    crossbar.off = {1}
    readings = await device.power([1, 7])
    arriving, leaving = readings[1]
    assert arriving is None
    assert leaving == pytest.approx(2.0 - device.loss_db(CrossConnect(7, 1)))
    assert readings[7] == (2.0, None)
    await device.close()


def test_each_pair_has_its_own_fixed_loss() -> None:
    one, _, _ = make()
    same, _, _ = make()
    pairs = [
        CrossConnect(inp, out) for inp in range(1, 17) for out in range(1, 17)
    ]
    losses = [one.loss_db(c) for c in pairs]
    assert losses == [same.loss_db(c) for c in pairs]
    assert len(set(losses)) > 200
    assert 1.2 <= min(losses) < 1.3
    assert 1.7 < max(losses) <= 1.8


def test_mirrors_called_off_while_they_turn_never_light() -> None:
    mirrors = SwitchMatrix(8, 1.0)
    c = CrossConnect(1, 2)
    circuit = mirrors.enter([c], "", "")
    mirrors.activate(circuit, 0.0)
    mirrors.deactivate(circuit)
    assert not mirrors.take(5.0)
    mirrors.activate(circuit, 5.5)
    mirrors.remove(circuit)
    again = mirrors.enter([c], "", "")
    mirrors.activate(again, 6.0)
    assert not mirrors.take(6.9)
    assert mirrors.take(7.0) == LightChange((), (c,))


def test_what_the_device_refuses() -> None:
    mirrors = SwitchMatrix(8, 0.0, locked={5})
    circuit = mirrors.enter([CrossConnect(1, 2), CrossConnect(2, 1)], "", "")
    refusals = {
        Reason.EXISTS: [CrossConnect(2, 1)],
        Reason.BUSY: [CrossConnect(3, 2)],
        Reason.LOCKED: [CrossConnect(3, 5)],
        Reason.NO_PORT: [CrossConnect(3, 9)],
    }
    for reason, directions in refusals.items():
        with pytest.raises(RequestRefused) as caught:
            mirrors.enter(directions, "", "")
        assert caught.value.reason is reason
    assert list(mirrors) == [circuit]
    mirrors.activate(circuit, 0.0)
    with pytest.raises(RequestRefused) as caught:
        mirrors.activate(circuit, 0.0)
    assert caught.value.reason is Reason.ACTIVE


async def test_circuits_outlive_a_restart_with_a_state_file(
    tmp_path: Path,
) -> None:
    state = tmp_path / "state"
    device, _, _ = make((1, 7), state=state)
    await device.open()
    both = [CrossConnect(3, 4), CrossConnect(4, 3)]
    device.activate(device.enter(both, "mine", "LAB"))
    device.enter([CrossConnect(5, 6)])
    await device.settle()
    await device.close()
    again, _, crossbar = make((9, 10), state=state)
    await again.open()
    assert again.map == PortMap.of([(1, 7), (3, 4), (4, 3)])
    assert set(crossbar.told[0].light) == {CrossConnect(1, 7), *both}
    kept = again.matrix.find(both[0])
    assert kept is not None
    assert (kept.name, kept.group, kept.two_way) == ("mine", "LAB", True)
    parked = again.matrix.find(CrossConnect(5, 6))
    assert parked is not None
    assert parked.phase is Phase.PARKED
    await again.close()
    state.write_text("{")
    broken, _, _ = make(state=state)
    with pytest.raises(PatchlightError, match="reading its circuits"):
        await broken.open()


async def test_a_crossbar_that_fails_is_a_circuit_that_failed() -> None:
    class Broken(NoCrossbar):
        async def change(self, change: LightChange) -> None:
            raise PatchlightError("the kernel would not")

    device, clock, _ = make()
    device._crossbar = Broken()
    await device.open()
    circuit = device.enter([CrossConnect(1, 2)])
    device.activate(circuit)
    clock.seconds += 1
    await device.settle()
    assert circuit.phase is Phase.FAILED
    assert device.map == PortMap()
    await device.close()


def test_light_that_arrives_is_launch_power_less_the_fibre() -> None:
    lab = parse_lab("""
name: light
network: 10.0.0.0/16
servers:
  - name: s1
    management: 10.9.0.1:8471
    gpus: [{name: gpu0, model: Tesla M40}]
    nics: [{name: nic0, address: 10.0.0.1, rate: 40Gbps, gpu: gpu0, launch_power: -2dBm}]
packet_switches: [{name: tor1, datapath_id: 0x1, ports: 4, launch_power: 1dBm}]
circuit_switches:
  - {name: ocs1, driver: calient-tl1, address: "127.0.0.1:3082", ports: 8}
  - {name: ocs2, driver: calient-tl1, address: "127.0.0.1:3083", ports: 8, insertion_loss: 2dB,
     cross_connects: ["6>7"]}
fibres:
  - {ends: [s1.nic0, ocs1.1], loss: 0.4dB}
  - {ends: [ocs1.2, tor1.1], loss: 0.25dB}
  - {ends: [ocs2.5, ocs1.3], loss: 0.5dB}
  - {ends: [tor1.2, ocs2.6], loss: 0.1dB}
  - {ends: [ocs2.7, ocs1.4], loss: 0.5dB}
""")
    powers = arriving_dbm(lab, lab.circuit_switch("ocs1"))
    assert powers == pytest.approx({1: -2.4, 2: 0.75, 3: -2.5, 4: -1.6})
