"""Histories of a whole lab: ``make histories SEEDS=1-100`` plays more of them."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from patchlight.testbed.lab.ocs_drivers import WSS_DRIVERS
from tests.simulation.draw_lab import DRIVERS, draw_lab
from tests.simulation.history import History, Step, draw_steps
from tests.simulation.packet_switches import KINDS

ROOT = Path(__file__).parents[2]


def _simulate(
    *arguments: str, timeout_s: float
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.simulation", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


@pytest.mark.parametrize("half", ["one", "other"])
def test_histories_of_new_seeds_end_well(half: str) -> None:
    """As many as two processes play in a minute: each has its half."""
    first = int.from_bytes(os.urandom(4), "big")
    seeds = f"{first}-{first + 299}"
    played = _simulate(
        "--seeds", seeds, "--processes", "1", "--seconds", "60", timeout_s=280
    )
    print(played.stdout)
    assert played.returncode == 0, played.stdout + played.stderr


@pytest.mark.parametrize("seed", [2, 12])
def test_a_replay_writes_the_same_bytes(seed: int, tmp_path: Path) -> None:
    """Objects have other addresses in each process, and its folder another name."""
    for which in ("first", "second"):
        played = _simulate(
            "--seed",
            str(seed),
            "--output",
            str(tmp_path / which),
            timeout_s=280,
        )
        assert "nothing wrong" in played.stdout, played.stdout + played.stderr
        assert not played.stderr
    assert (tmp_path / "first").read_bytes() == (
        tmp_path / "second"
    ).read_bytes()


def test_a_history_leaves_nothing_behind_that_changes_the_next() -> None:
    first, second = (History(1, draw_steps(1)[:10]) for _ in range(2))
    first.run()
    second.run()
    assert first.lines == second.lines


def test_the_page_of_a_history_names_what_was_wrong_before_its_log() -> None:
    history = History(1, [Step(0.5, "submit", 3)])
    history.run()
    history.wrong.append("a job is lost")
    page = history.page()
    assert page.index("a job is lost") < page.index("     0.500000 submit")
    assert page[-len(history.lines) :] == history.lines


def test_seeds_draw_labs_and_steps() -> None:
    assert draw_lab(1) == draw_lab(1)
    assert draw_steps(1) == draw_steps(1) != draw_steps(2)
    assert len(draw_steps(1)) >= 60
    assert draw_steps(1)[-1].at_s >= 3600
    assert {
        s.driver for seed in range(30) for s in draw_lab(seed).packet_switches
    } == KINDS.keys()


def test_a_hundred_seeds_have_every_optical_driver_and_topology() -> None:
    labs = [draw_lab(seed) for seed in range(100)]
    emulated = {row.name for row in WSS_DRIVERS.values() if row.device}
    emulated.update(DRIVERS)
    assert {s.driver for lab in labs for s in lab.optical_switches} == emulated
    assert {lab.name for lab in labs} == {"drawn", "cascade", "coloured"}
    assert {len(lab.circuit_switches) for lab in labs} == {1, 2, 3, 4}
    assert {len(lab.servers) for lab in labs} >= {2, 12}


def test_the_judge_finds_a_circuit_that_moved_though_it_was_locked() -> None:
    history = History(1, [])
    moved = []

    async def play(world: object) -> None:
        await history.lab.open()
        device = next(iter(history.lab.plant.devices.values()))
        first = next(iter(device.map))
        history.judge.locked[device.switch.name, first.inp] = "operator"
        assert device.emulated is not None
        await device.emulated.lose(str(first))
        moved.extend(history.judge.found)

    history._play = play  # type: ignore[method-assign]
    history.run()
    assert "had locked port" in moved[0]


def test_the_judge_finds_packets_that_go_astray_at_rest() -> None:
    history = History(1, [])
    before = []

    async def play(world: object) -> None:
        await history.lab.open()
        await asyncio.sleep(60)
        status = await history.users.call("operator", "GET", "/status")
        history.judge._check_packets(status)
        before.extend(history.judge.found)
        for switch in history.lab.plant.switches.values():
            switch.reboot(None)
        history.judge._check_packets(status)

    history._play = play  # type: ignore[method-assign]
    found = history.run()
    assert not before
    assert any("do not arrive" in each for each in found)
