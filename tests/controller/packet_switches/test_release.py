"""Taking Patchlight's entries off all packet switches of a lab: all of them, or none."""

from dataclasses import replace
from pathlib import Path

import pytest

from patchlight.controller.circuits.contract import (
    DeviceRefused,
    DeviceUnreachable,
)
from patchlight.controller.packet_switches.contract import (
    Applied,
    Station,
    Wish,
)
from patchlight.controller.packet_switches.openflow.client import Speaker
from patchlight.controller.packet_switches.openflow.flowtable import (
    SpeakerOptions,
)
from patchlight.controller.packet_switches.switches import PacketSwitches
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.wiring import trace_links
from patchlight.testbed.labfile.reader import load_lab
from tests.support.packet_switch_driver import TABLES, Example

OFC = load_lab("ofc2022")
LAB = OFC.with_changes(
    packet_switches=tuple(
        replace(
            s, driver="example", datapath_id=None, address=f"memory:{s.name}"
        )
        for s in OFC.packet_switches
    )
)
LINKS = trace_links(LAB, LAB.initial_maps)


class Stubborn(Example):
    """It does not remove its entries."""

    async def release(self) -> None:
        raise DeviceRefused("tor2: the entries remain")


class Silent(Example):
    """It does not answer."""

    async def set_forwarding(self, wish: Wish) -> Applied:
        raise DeviceUnreachable("tor2: no answer")


async def switches(
    tmp_path: Path, second: type[Example] = Example
) -> PacketSwitches:
    """Both switches forward."""
    first, other = LAB.packet_switches
    drivers = [Example(first, ""), second(other, "")]
    for driver in drivers:
        await driver.open()
    made = PacketSwitches(
        LAB, Speaker(SpeakerOptions(tmp_path / "sock", ())), drivers=drivers
    )
    await made.follow(LINKS)
    return made


def entries() -> dict[str, dict[Station, int]]:
    return {address: dict(table) for address, table in TABLES.items() if table}


@pytest.fixture(autouse=True)
def _empty() -> None:
    TABLES.clear()


async def test_afterwards_nothing_is_set_again(tmp_path: Path) -> None:
    made = await switches(tmp_path)
    assert entries().keys() == {"memory:tor1", "memory:tor2"}
    await made.release()
    assert await made.follow(LINKS) == []
    await made.learn()
    assert entries() == {}
    await made.close()


async def test_if_one_keeps_its_entries_all_forward_as_before(
    tmp_path: Path,
) -> None:
    made = await switches(tmp_path, Stubborn)
    before = entries()
    with pytest.raises(
        PatchlightError, match=r"as before: tor2: the entries remain"
    ):
        await made.release()
    assert entries() == before
    await made.close()


async def test_if_one_does_not_answer_nothing_is_removed(
    tmp_path: Path,
) -> None:
    made = await switches(tmp_path, Silent)
    before = entries()
    with pytest.raises(
        PatchlightError, match=r"nothing was removed: no answer from tor2"
    ):
        await made.release()
    assert entries() == before != {}
    await made.close()
