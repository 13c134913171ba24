"""What goes wrong with emulated wavelength switches, and what their drivers make of it."""

import contextlib
from collections.abc import AsyncIterator

import pytest

from patchlight.controller.circuits.contract import (
    DeviceRefused,
    DeviceUnreachable,
)
from patchlight.controller.circuits.dialect import Timeouts
from patchlight.emulation.optical.protocols.server import FaultRequests
from patchlight.testbed.errors import BadInput, OutcomeUnknown
from patchlight.testbed.lab.spectrum import SpectrumMap
from patchlight.testbed.lab.wavelengths import OcsFault
from tests.support.emulated_wss import Bench, emulated_wss

FIRST = SpectrumMap.parse(["1>1@193.100", "1>2@193.150-2dB"])
NEW = SpectrumMap.parse(["1>3@193.200"])
BOTH = FIRST.joined(NEW)
DRIVERS = ("waveshaper-http", "lumentum-netconf")

pytestmark = pytest.mark.parametrize("name", DRIVERS)


@contextlib.asynccontextmanager
async def bench(name: str, answer_s: float = 30.0) -> AsyncIterator[Bench]:
    within = Timeouts(answer_s=answer_s)
    async with emulated_wss(
        name, *FIRST.texts, inputs=1, outputs=4, timeouts=within
    ) as found:
        yield found


@pytest.mark.parametrize(
    ("when", "after"), [("before", FIRST), ("after", BOTH)]
)
async def test_a_connection_that_is_cut_leaves_the_outcome_unknown(
    name: str, when: str, after: SpectrumMap
) -> None:
    async with bench(name) as b:
        await b.fault(cut=when)
        with pytest.raises(OutcomeUnknown, match="wss1"):
            await b.driver.connect(NEW)
        assert await b.driver.read_map() == after
        assert all(set(FIRST) <= set(lit) for lit in b.recorder.shown)


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


async def test_what_takes_long_is_waited_for_and_what_takes_too_long_is_unknown(
    name: str,
) -> None:
    async with bench(name, answer_s=5.0) as b:
        await b.fault(stall_s=0.1)
        assert (await b.driver.connect(NEW)).complete
        await b.fault(stall_s=60.0)
        with pytest.raises(OutcomeUnknown):
            await b.driver.disconnect(NEW)


async def test_nonsense_is_no_map(name: str) -> None:
    async with bench(name, answer_s=5.0) as b:
        await b.fault(garble=2)
        with pytest.raises((DeviceRefused, DeviceUnreachable)):
            await b.driver.read_map()
        await b.fault(garble=0)
        assert await b.driver.read_map() == FIRST


async def test_what_is_lost_and_what_a_restart_leaves_is_read(
    name: str,
) -> None:
    async with bench(name) as b:
        requests = FaultRequests(b.device, b.server)
        await requests.schedule([OcsFault.of({"lose": "1>1@193.100"})])
        left = SpectrumMap.parse(["1>2@193.150-2dB"])
        assert await b.driver.read_map() == left
        await b.device.reboot(keep_map=True)
        assert await b.driver.read_map() == left
        await b.device.come_to_rest()
        assert b.device.matrix.lit == left
        await b.device.reboot(keep_map=False)
        assert await b.driver.read_map() == SpectrumMap()
        with pytest.raises(BadInput, match="not a channel's cross-connect"):
            b.device.faults.update({"meddle": "1>2"})


async def test_mirrors_that_stick_leave_a_channel_dark(name: str) -> None:
    async with bench(name) as b:
        await b.fault(fail_ports=[3])
        # None of the two devices says so of a channel: only power shows it.
        assert (await b.driver.connect(NEW)).complete
        assert b.device.matrix.lit == FIRST
        assert b.device.matrix.dark == NEW


async def test_somebody_else_takes_the_channel_just_before(name: str) -> None:
    async with bench(name) as b:
        await b.fault(meddle="1>4@193.200")
        outcome = await b.driver.connect(NEW)
        now = await b.driver.read_map()
        if name == "waveshaper-http":
            # Whoever loads a profile last has his way: the other's channel is in none of it.
            assert outcome.complete
            assert now == BOTH
        else:
            assert not outcome.complete
            assert now == FIRST.joined(SpectrumMap.parse(["1>4@193.200"]))
        assert all(set(FIRST) <= set(lit) for lit in b.recorder.shown)


async def test_who_may_only_look_is_refused(name: str) -> None:
    async with bench(name) as b:
        await b.fault(read_only=True)
        outcome = await b.driver.connect(NEW)
        assert not outcome.complete
        assert await b.driver.read_map() == FIRST
