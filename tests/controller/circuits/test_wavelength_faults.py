"""What goes wrong with emulated wavelength switches, and what their drivers make of it."""

import contextlib
from collections.abc import AsyncIterator

import pytest

from patchlight.controller.circuits.dialect import Timeouts
from patchlight.testbed.lab.spectrum import SpectrumMap
from tests.support.emulated_wss import Bench, emulated_wss

FIRST = SpectrumMap.parse(["1>1@193.100", "1>2@193.150-2dB"])
NEW = SpectrumMap.parse(["1>3@193.200"])
DRIVERS = ("waveshaper-http", "lumentum-netconf")

pytestmark = pytest.mark.parametrize("name", DRIVERS)


@contextlib.asynccontextmanager
async def bench(name: str, answer_s: float = 30.0) -> AsyncIterator[Bench]:
    within = Timeouts(answer_s=answer_s)
    async with emulated_wss(
        name, *FIRST.texts, inputs=1, outputs=4, timeouts=within
    ) as found:
        yield found


async def test_a_refusal_is_in_the_devices_words(name: str) -> None:
    async with bench(name) as b:
        await b.fault(refuse_next="not today")
        (refusal,) = (await b.driver.connect(NEW)).refused
        assert refusal.words == "not today"
        (gone,) = list(FIRST)[:1]
        await b.fault(refuse_next="not today")
        (refusal,) = (await b.driver.disconnect([gone])).refused
        assert "not today" in refusal.words
        assert await b.driver.read_map() == FIRST


async def test_mirrors_that_stick_leave_a_channel_dark(name: str) -> None:
    async with bench(name) as b:
        await b.fault(fail_ports=[3])
        # None of the two devices says so of a channel: only power shows it.
        assert (await b.driver.connect(NEW)).complete
        assert b.device.matrix.lit == FIRST
        assert b.device.matrix.dark == NEW


async def test_who_may_only_look_is_refused(name: str) -> None:
    async with bench(name) as b:
        await b.fault(read_only=True)
        outcome = await b.driver.connect(NEW)
        assert not outcome.complete
        assert await b.driver.read_map() == FIRST
