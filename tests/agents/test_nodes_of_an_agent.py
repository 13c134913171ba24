"""NICs of a server that agree on paths: they come with their bounds, and go with them."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from patchlight.agents.errors import BadRequest, Conflict, NotHere
from patchlight.agents.nics.tuners import EmulatedTuner
from patchlight.agents.path_node import PathNotGranted
from patchlight.agents.path_nodes import PathNodes, PathSocket
from patchlight.agents.training.control import AgentPaths
from patchlight.agents.training.task import Member, TrainingTask
from patchlight.emulation.light.emulated_light import EmulatedLight
from patchlight.testbed.lab.model import Endpoint
from patchlight.testbed.labfile.reader import load_lab
from patchlight.testbed.paths.agreement import Lit
from patchlight.testbed.wire.agent_status import PathBounds
from tests.support.counted_light import light_in_a_thread
from tests.support.waiting import PATIENCE_S, eventually

ODDL4 = load_lab("oddl4")
ENDS = [Endpoint(f"server{n}", "nic0") for n in (1, 2)]


@pytest.fixture
def light(tmp_path: Path) -> Iterator[EmulatedLight]:
    with light_in_a_thread(ODDL4, tmp_path / "light.sock") as light:
        yield light


def agent(number: int, folder: Path) -> PathNodes:
    """What the agent of a server has of paths; another one of it goes on where it left off."""
    server = ODDL4.servers[number]
    return PathNodes(
        server,
        folder / server.name,
        EmulatedTuner(server, folder / "light.sock"),
    )


def bounds(
    number: int, folder: Path, epoch: int = 7, lease_us: int = 1_000_000
) -> PathBounds:
    return PathBounds(
        epoch=epoch,
        job="vgg",
        number=number,
        addresses=[f"unix:{folder}/{n}.paths" for n in range(2)],
        channels=["193.100", "193.150"],
        lease_us=lease_us,
        margin_us=10_000,
        key="ab" * 32,
    )


async def test_nodes_come_with_their_bounds_and_go_with_them(
    tmp_path: Path, light: EmulatedLight
) -> None:
    one = agent(0, tmp_path)
    two = agent(1, tmp_path)
    assert one.bind("nic0", bounds(0, tmp_path)).state == "quiet"
    assert two.bind("nic0", bounds(1, tmp_path)) == two.bind(
        "nic0", bounds(1, tmp_path)
    )
    assert [light.lasers[end].state for end in ENDS] == ["off", "off"]
    async with one.node("nic0").path(1):
        (status,) = one.status()
        assert (status.state, status.destination, status.channel) == (
            "sends",
            1,
            "193.150",
        )
        await eventually(lambda: light.lasers[ENDS[0]].state == "on")
        assert str(light.lasers[ENDS[0]].channel) == "193.150"
    assert light.lasers[ENDS[0]].state == "off"
    two.withdraw("nic0", 6)
    assert len(two.status()) == 1
    # Without bounds it gives nothing any more, and sends as the lab file has it.
    two.withdraw("nic0", 7)
    two.withdraw("nic0", 7)
    assert two.status() == []
    await eventually(lambda: light.lasers[ENDS[1]].state == "on")
    with pytest.raises(PathNotGranted):
        async with one.node("nic0").path(1, patience_s=0.3):
            pytest.fail("a path from a node without bounds")
    with pytest.raises(
        Conflict, match="is at epoch 7, but the bounds are of epoch 7"
    ):
        two.bind("nic0", bounds(1, tmp_path))
    for each in (one, two):
        each.close()


async def test_an_agent_that_starts_again_goes_on_dark_and_quiet(
    tmp_path: Path, light: EmulatedLight
) -> None:
    one = agent(0, tmp_path)
    two = agent(1, tmp_path)
    for number, each in enumerate((one, two)):
        each.bind("nic0", bounds(number, tmp_path))
    async with one.node("nic0").path(1):
        two.close()
        half_written = tmp_path / ODDL4.servers[1].name / "nic0.new"
        half_written.write_text("{")
        again = agent(1, tmp_path)
        again.open()
        assert not half_written.exists()
        assert [(each.epoch, each.state) for each in again.status()] == [
            (7, "quiet")
        ]
    # Nobody else is let in on what it gave before, also under other bounds.
    again.bind("nic0", bounds(1, tmp_path, epoch=8, lease_us=1))
    assert again.node("nic0").ready_s > 0.05
    with pytest.raises(Conflict, match="epoch 8"):
        again.bind("nic0", bounds(1, tmp_path, epoch=7))
    one.close()
    again.close()
    assert light.lasers[ENDS[1]].state == "off"


async def test_a_worker_has_light_for_as_long_as_it_needs_it(
    tmp_path: Path, light: EmulatedLight
) -> None:
    one = agent(0, tmp_path)
    two = agent(1, tmp_path)
    for number, each in enumerate((one, two)):
        each.bind("nic0", bounds(number, tmp_path, lease_us=100_000))
    ring = tuple(Member(rank, "10.0.0.1", 1) for rank in range(2))
    task = TrainingTask(
        "w", "vgg", 0, ring, 1, gradient_bytes=4, deadline_s=10.0
    )
    door = PathSocket(tmp_path, lambda: one.node("nic0"), 0.0)
    await door.open()
    has_path = threading.Event()
    is_done = threading.Event()

    def work() -> None:
        with AgentPaths(str(tmp_path), task).path():
            has_path.set()
            is_done.wait(PATIENCE_S)

    working = asyncio.create_task(asyncio.to_thread(work))
    await eventually(has_path.is_set)
    left_us = [0]

    def is_another_lease() -> bool:
        path = one.node("nic0").doing
        left_us.append(path.left_us if isinstance(path, Lit) else 0)
        return left_us[-1] > left_us[-2] > 0

    # Leases of 100 ms end, and are asked for again.
    await eventually(is_another_lease)
    await eventually(is_another_lease)
    # Another agent is asked again, too.
    one.close()
    door.close()
    one = agent(0, tmp_path)
    one.open()
    door = PathSocket(tmp_path, lambda: one.node("nic0"), 0.0)
    await door.open()
    await eventually(lambda: one.status()[0].state == "sends")
    await eventually(lambda: light.lasers[ENDS[0]].state == "on")
    is_done.set()
    await working
    assert light.lasers[ENDS[0]].state == "off"
    for each in (one, two):
        each.close()
    door.close()


def test_who_can_have_no_bounds(tmp_path: Path) -> None:
    dark = PathNodes(ODDL4.servers[0], tmp_path, None)
    with pytest.raises(BadRequest, match="its transceiver cannot be tuned"):
        dark.bind("nic0", bounds(0, tmp_path))
    with pytest.raises(NotHere, match="no NIC 'nic9'"):
        dark.bind("nic9", bounds(0, tmp_path))
    with pytest.raises(
        ValueError, match="expected one address and one channel per node"
    ):
        PathBounds.model_validate(
            {**bounds(0, tmp_path).model_dump(), "number": 2}
        )
