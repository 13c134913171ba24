"""Changes of several circuit switches: all at once, each to its end, and how long that takes."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from patchlight.controller.circuits.contract import Outcome, Refusal
from patchlight.controller.circuits.drivers.dry_run import DryRun
from patchlight.controller.storage.store import Store
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.ocs_drivers import outage_s
from patchlight.testbed.lab.portmap import CrossConnect, PortMap
from patchlight.testbed.labfile.reader import load_lab
from tests.support.change_bench import CircuitsOf
from tests.support.waiting import PATIENCE_S

LAB = load_lab("four-ocs")
ROBOTS = LAB.with_changes(
    circuit_switches=tuple(
        replace(ocs, driver="telescent-ssh") for ocs in LAB.circuit_switches
    )
)
OTHERS = {
    ocs.name: PortMap.duplex((a, b + 1) for a, b in ((1, 9), (2, 10), (3, 11)))
    for ocs in LAB.circuit_switches
}


class Watched(DryRun):
    """A switch whose ``commands`` to make circuits are kept; each waits for what is ``given``."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.commands: list[list[CrossConnect]] = []
        self.given: asyncio.Event | asyncio.Barrier | None = None
        self.refuses = False
        self.tells = asyncio.Event()

    async def connect(
        self, pairs: Iterable[CrossConnect]
    ) -> Outcome[CrossConnect]:
        self.commands.append([*pairs])
        if self.given is not None:
            async with asyncio.timeout(PATIENCE_S):
                await self.given.wait()
        if self.refuses:
            # Once the refusal is known.
            asyncio.get_running_loop().call_soon(self.tells.set)
            refusals = [Refusal(c, "broken") for c in self.commands[-1]]
            return Outcome((), tuple(refusals), 0.0)
        return await super().connect(self.commands[-1])


def circuits(lab: Lab, folder: Path) -> tuple[CircuitsOf, list[Watched]]:
    drivers = {ocs.name: Watched(ocs) for ocs in lab.circuit_switches}
    store = Store(folder / "controller.db")
    return CircuitsOf(lab, drivers, store), [*drivers.values()]


async def test_all_switches_make_their_circuits_at_the_same_time(
    tmp_path: Path,
) -> None:
    there, switches = circuits(LAB, tmp_path)
    together = asyncio.Barrier(len(switches))
    for each in switches:
        each.given = together  # opened once all of them make theirs
    record = await there.change(lambda maps: OTHERS, "test")
    assert record.state == "committed", record.message
    assert len(switches) == 4
    for each in switches:
        assert len(each.commands) == 1
        assert await each.read_map() == OTHERS[each.name]


async def test_a_robot_stops_between_two_circuits_once_another_failed(
    tmp_path: Path,
) -> None:
    there, (robot, broken, *rest) = circuits(ROBOTS, tmp_path)
    robot.given = failed = asyncio.Event()
    broken.refuses = True

    broken.tells = failed
    before: Mapping[str, PortMap] = LAB.initial_maps
    record = await there.change(lambda maps: OTHERS, "test")
    assert record.state in ("rolled-back", "unknown")
    assert "refused to make" in record.message
    made = {frozenset((c.inp, c.out)) for c in robot.commands[0]}
    assert len(made) == 1  # one circuit for each command
    assert not any(
        set(command) & set(OTHERS[robot.name])
        for command in robot.commands[1:]
    )
    for each in (robot, *rest):
        assert await each.read_map() == before[each.name]


@pytest.mark.parametrize(
    ("lab", "makes", "expected"),
    [
        (LAB, {"ocs1": 6}, 1),
        (LAB, {"ocs1": 6, "ocs2": 2, "ocs3": 1}, 1),
        (ROBOTS, {"ocs1": 6}, 6),
        (ROBOTS, {"ocs1": 6, "ocs2": 2}, 6),
        (LAB, {"ocs1": 0}, 0),
        (LAB, {}, 0),
    ],
)
def test_an_outage_lasts_as_long_as_that_of_the_slowest_switch(
    lab: Lab, makes: Mapping[str, int], expected: int
) -> None:
    for switching_s in (0.025, 1.0, 5.0):
        there = lab.with_changes(
            circuit_switches=tuple(
                replace(ocs, switching_time_s=switching_s)
                for ocs in lab.circuit_switches
            )
        )
        assert outage_s(there, makes) == expected * switching_s
