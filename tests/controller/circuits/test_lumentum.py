"""The driver ``lumentum-netconf``: a ROADM as one switch, or one of its two switches alone."""

import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from patchlight.controller.circuits.contract import (
    DirectedPort,
    TellsChannelPowers,
)
from patchlight.controller.circuits.dialect import Timeouts
from patchlight.controller.circuits.drivers.lumentum import LumentumRoadm
from patchlight.controller.circuits.registry import open_driver
from patchlight.emulation.optical.device import EmulatedWss
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.spectrum import Channel, SpectrumMap
from patchlight.testbed.lab.wavelengths import WavelengthSwitch
from tests.support.emulated_wss import emulated_wss
from tests.support.waiting import eventually


@contextlib.asynccontextmanager
async def roadm(
    *initial: str, inputs: int = 5, outputs: int = 5
) -> AsyncIterator[tuple[LumentumRoadm, EmulatedWss]]:
    name = "lumentum-netconf"
    async with emulated_wss(
        name, *initial, inputs=inputs, outputs=outputs, grid="flexible"
    ) as bench:
        assert isinstance(bench.driver, LumentumRoadm)
        yield bench.driver, bench.device


async def test_a_roadm_is_one_switch_whose_first_port_is_the_line() -> None:
    async with roadm("1-3@193.100-1.5dB") as (driver, device):
        assert await driver.read_map() == SpectrumMap.parse(
            ["1-3@193.100-1.5dB"]
        )
        wanted = SpectrumMap.parse(["1>2@193.200/75", "5>1@193.300/12.5"])
        assert (await driver.connect(wanted)).complete
        across = SpectrumMap.parse(["2>3@194.100", "1>1@194.100"])
        outcome = await driver.connect(across)
        assert {refusal.words for refusal in outcome.refused} == {
            "expected a channel from or to port 1, the line"
        }
        assert len(outcome.refused) == 2
        assert (
            await driver.disconnect(SpectrumMap.parse(["3>1@193.100-1.5dB"]))
        ).complete
        left = SpectrumMap.parse(["1>3@193.100-1.5dB", *wanted.texts])
        assert await driver.read_map() == left == device.matrix.lit


@pytest.mark.parametrize(
    ("inputs", "outputs", "ways"),
    [
        (1, 4, ["1>4@193.100", "1>2@193.200"]),
        (4, 1, ["4>1@193.100", "2>1@193.200"]),
    ],
)
async def test_one_of_its_switches_alone(
    inputs: int, outputs: int, ways: list[str]
) -> None:
    async with roadm(inputs=inputs, outputs=outputs) as (driver, _):
        assert (await driver.connect(SpectrumMap.parse(ways))).complete
        assert (await driver.read_map()).texts == SpectrumMap.parse(ways).texts


async def test_it_measures_each_port_and_each_channel() -> None:
    async with roadm("1>3@193.100-2dB") as (driver, _):
        assert isinstance(driver, TellsChannelPowers)
        there = DirectedPort("in", 1)
        here = DirectedPort("out", 3)
        dark = DirectedPort("out", 2)
        powers = await driver.power([there, here, dark])
        assert powers[there] == 0.0  # two channels of -3 dBm
        assert powers[dark] is None
        # 6 dB and the attenuation.
        assert powers[here] == pytest.approx(-11.0, abs=0.4)
        channel = Channel.parse("193.100")
        told = await driver.channel_powers([there, here])
        assert told == {there: {channel: -3.0}, here: {channel: powers[here]}}


async def test_a_locked_port_is_out_of_service_and_refuses() -> None:
    async with roadm() as (driver, device):
        device.faults.refuse_ports = [4]
        await device.faults_changed()
        states = await driver.port_states()
        assert {
            str(p) for p, s in states.items() if s.condition == "locked"
        } == {"in:4", "out:4"}
        outcome = await driver.connect(
            SpectrumMap.parse(["1>4@193.100", "1>3@193.150"])
        )
        (refusal,) = outcome.refused
        assert refusal.words == "port 4 is out of service"
        assert await driver.read_map() == SpectrumMap.parse(["1>3@193.150"])


def test_a_lab_cannot_begin_with_a_channel_that_passes_the_line_by() -> None:
    across = SpectrumMap.parse(["2>3@193.100"])
    switch = WavelengthSwitch(
        "wss1", 4, 4, driver="lumentum-netconf", address="127.0.0.1:830"
    )
    with pytest.raises(
        BadInput, match="expected a channel from or to port 1, the line"
    ):
        open_driver(replace(switch, initial=across))


async def test_an_idle_session_is_kept_and_not_made_anew(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "patchlight.netconf")
    often = Timeouts(keep_alive_s=0.05)
    async with emulated_wss(
        "lumentum-netconf", inputs=1, outputs=4, timeouts=often
    ):
        await eventually(lambda: caplog.text.count("wss1 < get nothing") >= 3)
    assert "keep-alive" not in caplog.text
