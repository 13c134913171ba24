"""After a fault a packet switch has what it needs, or its keeper says what it lacks.

A fault each by default; ``PATCHLIGHT_SWITCH_FAULTS=100`` for a campaign with so many on each
switch.
"""

import asyncio
import contextlib
import os
import random
from collections.abc import Iterator

import pytest

from patchlight.controller.packet_switches import keeping
from patchlight.controller.packet_switches.contract import Station, Wish
from patchlight.controller.packet_switches.keeping import KeptSwitch
from patchlight.controller.packet_switches.registry import open_packet_driver
from patchlight.emulation.lab.emulated_lab import EmulatedLab
from tests.support.switch_lab import (
    SwitchUnderTest,
    drawn,
    stations_at,
    switch_lab,
)
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.root,
    pytest.mark.ovs,
    pytest.mark.timeout(6000),
    pytest.mark.xdist_group("switches with an sshd"),
]
PORTS = frozenset({1, 2, 3})
FAULTS = (
    "full table",
    "reload",
    "lost session",
    "foreign entry",
    "wrong answer",
    "refused entry",
)
EACH = int(os.environ.get("PATCHLIGHT_SWITCH_FAULTS", len(FAULTS)))


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatedLab]:
    with switch_lab(tmp_path_factory.mktemp("switches")) as made:
        yield made


class Watched:
    """A kept switch, and what its kernel really has."""

    def __init__(self, under_test: SwitchUnderTest, kept: KeptSwitch) -> None:
        self.under_test = under_test
        self.kept = kept
        self.wish = Wish()

    def wanted(self) -> dict[str, str]:
        names = self.under_test.switch.interface_names
        return {s.mac: names[port - 1] for s, port in self.wish.places.items()}

    def is_right(self) -> bool:
        return self.under_test.table() == self.wanted()

    def says_so(self) -> bool:
        """Whether every station without its entry is told to lack it, or the switch is away."""
        if not self.kept.reachable:
            return True
        have = self.under_test.table()
        told = {lack.station.mac for lack in self.kept.lacks}
        wrong = {
            mac
            for mac, interface in self.wanted().items()
            if have.get(mac) != interface
        }
        return wrong <= told

    async def follow(self, wish: Wish) -> None:
        self.wish = wish
        await self.kept.follow(wish)


async def one_fault(
    watched: Watched, fault: str, random: random.Random
) -> None:
    """Something goes wrong while the switch changes; then it is put right."""
    under_test = watched.under_test
    wish = stations_at(random, PORTS)
    station: Station = random.choice(list(wish.places))
    # An entry like the one that Patchlight has set until now would count as its own.
    port = min(
        PORTS - {wish.places[station], watched.wish.places.get(station, 0)}
    )
    if fault == "refused entry" and not under_test.is_sonic:
        fault = "full table"
    if fault == "full table":
        await asyncio.to_thread(
            under_test.full_table, random.randrange(len(wish.places))
        )
    elif fault == "refused entry":
        await asyncio.to_thread(under_test.refuse, station.mac)
    elif fault == "foreign entry":
        await asyncio.to_thread(under_test.meddle, station.mac, port)
    elif fault == "wrong answer":
        await asyncio.to_thread(under_test.answer_nonsense)
    following = asyncio.create_task(watched.follow(wish))
    if fault in ("reload", "lost session"):
        # The fault comes at any moment.
        await asyncio.sleep(random.random() / 2)
        again = (
            under_test.reload
            if fault == "reload"
            else under_test.lose_sessions
        )
        await asyncio.to_thread(again)
    await following
    await eventually(
        lambda: watched.is_right() or watched.says_so(), f"{fault}: told"
    )
    if fault in ("full table", "refused entry", "foreign entry"):
        # It is still there: so it must be told for good, not by chance.
        await eventually(
            lambda: watched.kept.lacks and watched.says_so(), f"{fault}: told"
        )
    if fault == "foreign entry":
        assert watched.kept.foreign
        await asyncio.to_thread(under_test.undo, station.mac, port)
    await asyncio.to_thread(under_test.heal)
    kept = watched.kept
    try:
        await eventually(
            lambda: watched.is_right() and not kept.lacks and kept.reachable,
            f"{fault}: put right",
        )
    finally:
        print(
            f"{fault}: {kept.trouble or 'reachable'}, {kept.lacks}, {kept.foreign}",
            flush=True,
        )


@pytest.mark.parametrize("name", ["bridge1", "sonic1"])
async def test_no_fault_is_silent(
    name: str, lab: EmulatedLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "TRY_AGAIN_S", (0.5,))
    under_test = SwitchUnderTest(lab, name)
    driver = open_packet_driver(under_test.switch)
    kept = KeptSwitch(driver, lambda *_: None)
    watched = Watched(under_test, kept)
    seed = int(os.environ.get("PATCHLIGHT_SEED", "1"))
    drawing = drawn(seed)
    try:
        await watched.follow(stations_at(drawing, PORTS))
        for number in range(EACH):
            await one_fault(watched, FAULTS[number % len(FAULTS)], drawing)
            print(
                f"{name}: {number + 1} faults of {EACH}, none silent",
                flush=True,
            )
    finally:
        under_test.heal()
        with contextlib.suppress(Exception):
            await driver.release()
        await kept.close()
