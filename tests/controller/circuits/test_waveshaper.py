"""The driver ``waveshaper-http``: profiles, and a device on which all other light stays."""

import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from patchlight.controller.circuits.contract import DeviceRefused
from patchlight.controller.circuits.drivers.waveshaper import (
    Passing,
    Profile,
    WaveShaper,
)
from patchlight.controller.circuits.registry import open_driver
from patchlight.emulation.optical.device import EmulatedWss
from patchlight.emulation.optical.vendors.http import WaveShaperServer
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.lab.spectrum import Channel, Grid, SpectrumMap
from patchlight.testbed.lab.wavelengths import WavelengthSwitch
from tests.support.emulated_wss import Recorder, emulated_wss
from tests.support.ocs_drivers import listening

FIRST = 191_250
LAST = 196_275


@contextlib.asynccontextmanager
async def waveshaper(
    *initial: str, inputs: int = 1, outputs: int = 4
) -> AsyncIterator[tuple[WaveShaper, EmulatedWss, Recorder]]:
    name = "waveshaper-http"
    async with emulated_wss(
        name, *initial, inputs=inputs, outputs=outputs
    ) as bench:
        assert isinstance(bench.driver, WaveShaper)
        yield bench.driver, bench.device, bench.recorder


async def load(driver: WaveShaper, text: str) -> Mapping[str, Any]:
    """What the device says to this profile."""
    body = json.dumps({"type": "wsp", "wsp": text})
    reply = await driver.client.change("POST", "/waveshaper/loadprofile", body)
    answer: Mapping[str, Any] = reply.body
    return answer


async def test_a_change_of_one_channel_never_touches_the_light_of_another() -> (
    None
):
    others = ("1>1@193.100", "1>2@193.200-3.5dB", "1>1@193.250")
    async with waveshaper(*others, "1>3@193.150") as (driver, _, recorder):
        kept = SpectrumMap.parse(others)
        moved = SpectrumMap.parse(["1>4@193.150-2dB"])
        change = (await driver.read_map()).diff(kept.joined(moved))
        assert (await driver.disconnect(change.breaks)).complete
        assert (await driver.connect(change.makes)).complete
        assert await driver.read_map() == kept.joined(moved)
        # With, without, and with again; at every moment all others were there.
        assert [len(lit) for lit in recorder.shown] == [4, 3, 4]
        assert all(set(kept) <= set(lit) for lit in recorder.shown)


async def test_lines_of_other_channels_are_sent_back_letter_by_letter() -> (
    None
):
    """A phase that somebody put there stays."""
    bent = Profile.blocked(FIRST, LAST)
    bent = bent.with_channel(Channel.parse("193.100"), Passing(2, 1.0))
    begin = bent.lines.index("1.0000\t0.0000\t2")
    lines = [
        line.replace("0.0000\t2", f"{n / 7:.4f}\t2") if n >= begin else line
        for n, line in enumerate(bent.lines)
    ]
    bent = replace(bent, lines=tuple(lines))
    async with waveshaper() as (driver, _, _):
        await load(driver, bent.text)  # as another program would
        assert (
            await driver.connect(SpectrumMap.parse(["1>4@193.150"]))
        ).complete
        text = await driver.client.get_text("/waveshaper/getprofile")
    after = Profile.parse(text)
    assert after.lines[: begin + 50] == bent.lines[: begin + 50]
    assert after.channels(Grid())[Channel.parse("193.100")] == (2, 1.0)


async def test_it_is_lit_either_way() -> None:
    async with waveshaper("3>1@193.100", inputs=4, outputs=1) as (
        driver,
        device,
        _,
    ):
        meeting = SpectrumMap.parse(["2>1@193.100"])
        beside = SpectrumMap.parse(["2>1@193.150"])
        (refusal,) = (await driver.connect([*meeting, *beside])).refused
        assert (
            refusal.words == "its channel is in use on the device: 3>1@193.100"
        )
        assert device.matrix.lit == SpectrumMap.parse(
            ["3>1@193.100", "2>1@193.150"]
        )


async def test_what_the_device_refuses_has_its_words_and_changes_nothing() -> (
    None
):
    async with waveshaper("1>1@193.100") as (driver, device, recorder):
        asked = SpectrumMap.parse(
            ["1>2@193.150", "1>3@197.100", "1>4@193.200-60dB"]
        )
        outcome = await driver.connect(asked)
        assert {str(r.cross_connect): r.words for r in outcome.refused} == {
            "1>3@197.100": (
                "channel 197.100 is outside the device's band 191.2500–196.2750 THz"
            ),
            "1>4@193.200-60dB": "60 dB or more is no signal",
        }
        assert [str(way) for way in outcome.done] == ["1>2@193.150"]
        device.faults.refuse_ports = [3]
        await device.faults_changed()
        (refusal,) = (
            await driver.connect(SpectrumMap.parse(["1>3@193.300"]))
        ).refused
        assert refusal.words == "port is locked"
        device.faults.refuse_next = "laser safety"
        (refusal,) = (
            await driver.connect(SpectrumMap.parse(["1>2@193.300"]))
        ).refused
        assert refusal.words == "laser safety"
        assert recorder.shown[-1] == SpectrumMap.parse(
            ["1>1@193.100", "1>2@193.150"]
        )


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda lines: lines[:-1], "this device has another band"),
        (lambda lines: lines[::2], "expected steps of 1 GHz, so 191.2510"),
        (
            lambda lines: [*lines[:9], "191.2590\tnan\t0\t1", *lines[10:]],
            "no attenuation",
        ),
        (
            lambda lines: [*lines[:9], "x", *lines[10:]],
            "line 10 is not a line of a profile: 'x'",
        ),
        (lambda lines: [], "an empty profile"),
    ],
)
async def test_a_profile_of_wrong_length_or_steps_is_refused(
    spoil: object, words: str
) -> None:
    async with waveshaper("1>1@193.100") as (driver, device, _):
        lines = Profile.blocked(FIRST, LAST).text.splitlines()
        assert callable(spoil)
        text = "\n".join(spoil(lines))
        answer = await load(driver, text)
        assert answer["rc"] != 0
        assert words in answer["rctext"]
        assert device.matrix.lit == SpectrumMap.parse(["1>1@193.100"])


async def test_a_profile_that_is_no_channels_is_not_overwritten() -> None:
    shaped = Profile.blocked(FIRST, LAST).with_channel(
        Channel.parse("193.100"), Passing(1, 0.0)
    )
    lines = list(shaped.lines)
    at = 193_100 - FIRST
    lines[at : at + 3] = ["7.0000\t0.0000\t1"] * 3
    shaped = replace(shaped, lines=tuple(lines))
    with pytest.raises(
        ValueError,
        match=r"between 193\.1 and 193\.106 THz is not treated uniformly",
    ):
        shaped.channels(Grid())
    async with waveshaper() as (driver, _, _):
        served = driver.client.get_text

        async def get_text(path: str) -> str:
            await served(path)
            return shaped.text

        driver.client.get_text = get_text  # type: ignore[method-assign]
        with pytest.raises(
            DeviceRefused, match="something else than channels"
        ):
            await driver.connect(SpectrumMap.parse(["1>2@194.100"]))


@pytest.mark.parametrize(
    "text", ["193.100", "193.150", "196.200", "193.100/12.5", "191.300/100"]
)
def test_a_channel_reads_back_as_it_was_written(text: str) -> None:
    channel = Channel.parse(text)
    profile = Profile.blocked(FIRST, LAST).with_channel(
        channel, Passing(3, 2.25)
    )
    assert Profile.parse(profile.text) == profile
    assert profile.channels(Grid(channel.width_ghz)) == {channel: (3, 2.25)}
    assert profile.with_channel(channel, None) == Profile.blocked(FIRST, LAST)


def test_channels_side_by_side_are_told_apart_by_the_grid() -> None:
    profile = Profile.blocked(FIRST, LAST)
    for text in ("193.100", "193.150", "193.200"):
        profile = profile.with_channel(Channel.parse(text), Passing(1, 0.0))
    assert list(map(str, profile.channels(Grid()))) == [
        "193.100",
        "193.150",
        "193.200",
    ]
    # On another grid the pieces that fill no channel are in use all the same.
    assert list(map(str, profile.channels(Grid(100)))) == [
        "193.11250/75",
        "193.18750/75",
    ]
    assert profile.text.splitlines()[0] == "191.2500\t60.0000\t0.0000\t0"
    assert (
        profile.text.splitlines()[193_100 - FIRST]
        == "193.1000\t0.0000\t0.0000\t1"
    )


async def test_the_lab_may_not_say_more_ports_than_there_are() -> None:
    switch = WavelengthSwitch("wss1", 1, 2, driver="waveshaper-http")
    server = WaveShaperServer(EmulatedWss(switch, Recorder(1)))
    async with listening(server.serve) as address:
        driver = open_driver(replace(switch, outputs=4, address=address))
        with pytest.raises(
            PatchlightError, match="has 2 ports in addition to the common one"
        ):
            await driver.open()
        await driver.close()


def test_a_shape_that_none_has_is_refused() -> None:
    with pytest.raises(
        BadInput, match="wss1: a waveshaper-http has one common port"
    ):
        open_driver(
            WavelengthSwitch(
                "wss1", 2, 4, driver="waveshaper-http", address="x:80"
            )
        )
    with pytest.raises(BadInput, match="expected a fixed one"):
        open_driver(
            WavelengthSwitch(
                "wss1",
                1,
                4,
                Grid(None),
                driver="waveshaper-http",
                address="x:80",
            )
        )
