"""Light followed at every change, without a kernel: who gets whose frames, and which are lost."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from patchlight.emulation.light.emulated_light import EmulatedLight, Lasers
from patchlight.emulation.optical.crossbar import (
    LightChannelCrossbar,
    LightCrossbar,
)
from patchlight.emulation.optical.matrices import LightChange
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.lab.model import Endpoint
from patchlight.testbed.lab.portmap import CrossConnect
from patchlight.testbed.lab.spectrum import Channel, SpectrumMap
from patchlight.testbed.lab.tuning import LightClient
from patchlight.testbed.labfile.reader import builtin_lab, load_lab, parse_lab
from tests.support.counted_light import CountedFibres, LightServed
from tests.support.waiting import eventually

ODDL4 = load_lab("oddl4")
ONE, TWO, THREE, FOUR = (Endpoint(f"server{n}", "nic0") for n in (1, 2, 3, 4))
C100, C150, C200 = map(Channel.parse, ("193.100", "193.150", "193.200"))
CASCADE = parse_lab(
    """
name: cascade
network: 10.0.0.0/24
defaults:
  nic: {transceiver: {tunable: 193.100-193.150, sensitivity: -10dBm}}
servers: [{name: "server[1-3]", nics: [{name: nic0, address: "10.0.0.[1-3]"}]}]
circuit_switches:
  - {name: ocs1, driver: dry-run, address: "127.0.0.1:1", ports: 4, insertion_loss: 1dB}
wavelength_switches:
  - {name: wss1, inputs: 3, cross_connects: ["1-2@193.100", "1-3@193.150-5dB"]}
fibres: [server1.nic0 - ocs1.1, ocs1.2 - wss1.1, "server[2-3].nic0 - wss1.[2-3]"]
"""
)


def test_a_laser_is_dark_while_it_is_tuned() -> None:
    lasers = Lasers(ODDL4)
    assert lasers.dark == set()
    assert lasers.tune(ONE, C200, now=5.0) == 5.001
    assert (lasers[ONE].state, lasers.next_due()) == ("tuning", 5.001)
    lasers.tune(ONE, None, now=5.0002)
    lasers.come_to(5.0005)
    # Turned on again for the channel that it is on its way to: no sooner, no later.
    assert lasers.tune(ONE, C200, now=5.0006) == 5.001
    assert lasers.dark == {ONE}
    lasers.come_to(5.001)
    assert (lasers[ONE].state, lasers.next_due()) == ("on", None)
    # Off and on again on the same channel takes no time.
    lasers.tune(ONE, None, now=6.0)
    assert lasers.dark == {ONE}
    assert lasers.tune(ONE, C200, now=6.5) == 6.5
    assert lasers.dark == set()


def test_a_channel_that_a_laser_cannot_send_changes_nothing() -> None:
    lasers = Lasers(ODDL4)
    with pytest.raises(BadInput, match="outside its band"):
        lasers.tune(ONE, Channel.parse("194.000"), now=0.0)
    with pytest.raises(BadInput, match=r"no transceiver at wss1\.1"):
        lasers.tune(Endpoint("wss1", "1"), C100, now=0.0)
    assert (lasers[ONE].channel, lasers[ONE].state) == (C100, "on")


async def test_two_on_one_channel_destroy_each_others_frames() -> None:
    fibres = CountedFibres(ODDL4)
    light = EmulatedLight(ODDL4, fibres)
    assert fibres.reach(ONE) == {TWO, THREE, FOUR}
    light.tune(ONE, C150)
    assert fibres.reach(ONE) == set()  # it is being tuned
    await _on(light, ONE)
    # Only to the other's own receiver its light comes alone: a star sends none back.
    assert (fibres.reach(ONE), fibres.reach(TWO)) == ({TWO}, {ONE})
    assert (fibres.reach(THREE), fibres.reach(FOUR)) == (
        {ONE, TWO, FOUR},
        {ONE, TWO, THREE},
    )
    # One frame of each was destroyed on each of the two fibres.
    destroyed = {"star1.3": 2, "star1.4": 2}
    assert light.losses() == {
        "destroyed": destroyed,
        "dark": {"server1.nic0": 1},
    }
    light.tune(TWO, None)
    assert (fibres.reach(ONE), fibres.reach(TWO)) == (
        {TWO, THREE, FOUR},
        set(),
    )
    losses = {"server1.nic0": 1, "server2.nic0": 1}
    assert light.losses() == {"destroyed": destroyed, "dark": losses}


async def test_a_change_touches_those_alone_whose_frames_go_elsewhere() -> (
    None
):
    fibres = CountedFibres(ODDL4)
    light = EmulatedLight(ODDL4, fibres)
    assert fibres.led == 4
    light.tune(THREE, None)
    assert fibres.led == 5
    light.fibres_changed()
    assert fibres.led == 5


async def test_a_wavelength_switch_takes_a_server_to_another_star() -> None:
    fibres = CountedFibres(ODDL4)
    light = EmulatedLight(ODDL4, fibres)
    light.set_spectrum("wss3", SpectrumMap())
    light.set_spectrum("wss4", SpectrumMap())
    assert (fibres.reach(ONE), fibres.reach(THREE)) == ({TWO}, set())
    for name in ("wss3", "wss4"):
        light.set_spectrum(name, SpectrumMap.parse(["1-3@193.175/200"]))
    # Two networks, and one channel in both.
    light.tune(THREE, C100)
    await _on(light, THREE)
    assert (fibres.reach(ONE), fibres.reach(THREE)) == ({TWO}, {FOUR})
    assert light.losses()["destroyed"] == {}
    with pytest.raises(BadInput, match="outside 1–3"):
        light.set_spectrum("wss1", SpectrumMap.parse(["1-13@193.100"]))
    assert fibres.reach(ONE) == {TWO}


async def test_light_that_is_too_weak_is_no_link(tmp_path: Path) -> None:
    fibres = CountedFibres(CASCADE)
    light = EmulatedLight(CASCADE, fibres)
    # Without the circuit all are dark, and notice it.
    assert {str(end) for end in fibres.held} == {"ocs1.1", "wss1.2", "wss1.3"}
    async with LightServed(light, tmp_path / "light.sock") as path:
        ocs = LightCrossbar(path, "ocs1")
        await ocs.open()
        both = (CrossConnect(1, 2), CrossConnect(2, 1))
        await ocs.change(LightChange(light=both))
        # Servers 2 and 3 are on the first channel of the band; 3 has no way for it.
        assert {str(end) for end in fibres.held} == {"wss1.3"}
        assert (fibres.reach(ONE), fibres.reach(TWO)) == ({TWO}, {ONE})
        assert await ocs.receiving({1, 2, 3, 4}) == {1, 2}
        wss = LightChannelCrossbar(path, "wss1")
        assert await wss.arriving() == {
            1: {C100: pytest.approx(-1.6)},
            2: {C100: pytest.approx(-0.3)},
            3: {C100: pytest.approx(-0.3)},
        }
        # Onto the other channel, 5 dB are too much.
        await asyncio.to_thread(_tune, path, ONE, C150)
        assert fibres.reach(ONE) == set()
        await wss.change(SpectrumMap.parse(["1-3@193.150-2dB", "1-2@193.100"]))
        assert fibres.reach(ONE) == {THREE}
        await ocs.change(LightChange(dark=(1,)))
        assert fibres.reach(ONE) == set()
        assert fibres.reach(TWO) == {ONE}
        await asyncio.gather(ocs.close(), wss.close())


async def test_what_is_cut_or_down_sends_no_light() -> None:
    fibres = CountedFibres(ODDL4)
    light = EmulatedLight(ODDL4, fibres)
    light.tune(ONE, C150)
    await _on(light, ONE)
    assert fibres.reach(ONE) == {TWO}
    fibres.silent.add(Endpoint("wss2", "1"))
    light.fibres_changed()
    assert fibres.reach(ONE) == {TWO, THREE, FOUR}
    fibres.cut.add(Endpoint("star1", "4"))
    light.fibres_changed()
    assert fibres.reach(ONE) == {TWO, THREE}
    assert fibres.reach(FOUR) == set()


async def test_requests_over_the_socket(tmp_path: Path) -> None:
    fibres = CountedFibres(ODDL4)
    async with LightServed(
        EmulatedLight(ODDL4, fibres), tmp_path / "light.sock"
    ) as path:

        def talk() -> None:
            with LightClient(path) as client:
                client.tune(ONE, C200)
                assert client.transceivers()[str(ONE)] == {
                    "channel": "193.200",
                    "state": "on",
                    "band": "193.100-193.250",
                    "to": ["server3.nic0"],
                    "destroyed_at": ["star1.2", "star1.4"],
                }
                client.darken("server1.nic0")
                assert client.transceivers()[str(ONE)]["state"] == "off"
                with pytest.raises(
                    BadInput, match=r"no transceiver at server9\.nic0"
                ):
                    client.tune("server9.nic0", C100)
                with pytest.raises(BadInput, match="is not a channel"):
                    client.tune(ONE, "green")
                nonsense: list[dict[str, Any]] = [{"lit": []}, {"tune": 7}]
                for request in [*nonsense, {"spectrum": "ocs7", "lit": []}]:
                    with pytest.raises(BadInput):
                        client.ask(request)
                assert client.transceivers()[str(ONE)]["state"] == "off"

        await asyncio.to_thread(talk)
    with pytest.raises(PatchlightError, match="no tunable transceivers"):
        LightClient(tmp_path / "nobody.sock")


async def test_who_waits_for_a_channel_hears_that_another_was_tuned_to(
    tmp_path: Path,
) -> None:
    slow = parse_lab(
        # So long that it is still tuned when somebody looks.
        builtin_lab("oddl4")
        .read_text()
        .replace("tuning_time: 1ms", "tuning_time: 20s")
    )
    light = EmulatedLight(slow, CountedFibres(slow))
    async with LightServed(light, tmp_path / "light.sock") as path:
        first = asyncio.create_task(asyncio.to_thread(_tune, path, ONE, C150))
        await eventually(lambda: light.lasers[ONE].state == "tuning")
        light.tune(ONE, C200)
        with pytest.raises(BadInput, match="was tuned by another request"):
            await first


def _tune(path: Path, port: Endpoint, channel: Channel) -> None:
    with LightClient(path) as client:
        client.tune(port, channel)


async def _on(light: EmulatedLight, end: Endpoint) -> None:
    await eventually(lambda: light.lasers[end].state == "on")
