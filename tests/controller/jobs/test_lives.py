"""The states of jobs and gangs: the picture is the code, and nothing else changes a state."""

import ast
import asyncio
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from patchlight.controller.jobs.job_table import JobTable
from patchlight.controller.jobs.ledger import JobLedger
from patchlight.controller.jobs.lives import (
    GANG_MOVES,
    JOB_MOVES,
    GangState,
    IllegalMove,
    Moves,
)
from patchlight.controller.storage.store import Store
from patchlight.testbed.jobs import JobSpec, JobState, JobStatus
from patchlight.testbed.lab.rules import Allowance, Discipline
from tests.support.job_cluster import (
    Cluster,
    finish,
    job,
    simulated,
    submit_running,
)

ROOT = Path(__file__).parents[3]
JOBS = sorted((ROOT / "controller/jobs").rglob("*.py"))
ARROW = re.compile(r"^ +(\w+) --> (\w+): (.+)$", re.MULTILINE)


def drawn() -> list[dict[tuple[str, str], str]]:
    """The causes by arrow, of each picture of the page. One from ``live`` is from each state in it
    that has no arrow of its own to there."""
    page = (ROOT / "docs/architecture.md").read_text()
    pictures = []
    for picture in re.findall(r"```mermaid\n(.*?)```", page, re.DOTALL):
        inside = re.search(r"state live \{\n(.*?)\n    \}", picture, re.DOTALL)
        live = {
            state
            for before, after, _ in ARROW.findall(inside[1] if inside else "")
            for state in (before, after)
        }
        own = {
            (before, after): cause
            for before, after, cause in ARROW.findall(picture)
        }
        of_all = {
            (state, after): cause
            for (before, after), cause in own.items()
            if before == "live"
            for state in live
        }
        pictures.append(
            {
                arrow: cause
                for arrow, cause in {**of_all, **own}.items()
                if arrow[0] != "live"
            }
        )
    return pictures


def arrows(moves: Moves) -> dict[tuple[str, str], str]:
    return {
        (before, after): cause
        for before, nexts in moves.items()
        for after, cause in nexts.items()
    }


def test_the_picture_shows_the_moves() -> None:
    gangs, jobs = drawn()
    assert gangs == arrows(GANG_MOVES)
    assert jobs == arrows(JOB_MOVES)


def test_each_state_has_its_moves_and_can_be_reached() -> None:
    for states, moves in (GangState, GANG_MOVES), (JobState, JOB_MOVES):
        assert moves.keys() == {*states}
        reached = {after for nexts in moves.values() for after in nexts}
        assert reached == {*states}
    assert [s for s in JobState if not JOB_MOVES[s]] == ["done", "stopped"]


def test_an_illegal_move_is_logged_and_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = JobTable(JobLedger(Store(tmp_path / "controller.db")))
    table.add([JobStatus("j-1", JobSpec("j"), JobState.QUEUED)])
    with caplog.at_level(logging.ERROR), pytest.raises(IllegalMove):
        table.move("j-1", JobState.PAUSED)
    assert "job j-1 cannot go from queued to paused" in caplog.text
    assert table["j-1"].state is JobState.QUEUED
    assert [each["state"] for each in table.ledger.history("j-1")] == [
        "queued"
    ]


def functions(path: Path) -> Iterator[tuple[str, ast.AST]]:
    """Each function of a module, and each node in it."""
    for each in ast.walk(ast.parse(path.read_text())):
        if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for node in ast.walk(each):
                yield f"{path.name}:{each.name}", node


def test_states_change_in_one_place_each() -> None:
    assigned = set()
    replaced = set()
    for path in JOBS:
        for where, node in functions(path):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Store)
                and node.attr == "state"
            ):
                assigned.add(where)
            if (
                isinstance(node, ast.Call)
                and ast.unparse(node.func) == "replace"
                and "state" in {each.arg for each in node.keywords}
            ):
                replaced.add(where)
    assert assigned == {"entries.py:move"}
    # A preview stores nothing.
    assert replaced == {"job_table.py:_move", "scheduler.py:preview"}


def closed_circles(tree: ast.AST) -> list[str]:
    """Where an object gives itself, or a method of it, to another one, unless to hear of events."""
    methods = {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    }
    own = {"self", *(f"self.{name}" for name in methods)}
    return [
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and ast.unparse(node.value) in own
        for target in node.targets
        if isinstance(target, ast.Attribute)
        and ast.unparse(target.value) != "self"
        and not target.attr.startswith("on_")
    ]


def test_no_part_of_the_jobs_is_given_to_another_afterwards() -> None:
    old = "gangs.queue = self"
    assert closed_circles(ast.parse(old)) == [old]
    trees = [ast.parse(path.read_text()) for path in JOBS]
    assert [each for tree in trees for each in closed_circles(tree)] == []


def test_the_controllers_parts_call_no_part_that_is_made_later() -> None:
    """A lambda in ``Controller`` uses only what was made before it."""
    tree = ast.parse((ROOT / "controller/parts.py").read_text())
    (made,) = (
        method
        for each in ast.walk(tree)
        if isinstance(each, ast.ClassDef) and each.name == "Controller"
        for method in each.body
        if isinstance(method, ast.FunctionDef) and method.name == "__init__"
    )
    owns = [
        node
        for node in ast.walk(made)
        if isinstance(node, ast.Attribute)
        and ast.unparse(node.value) == "self"
    ]
    since = {
        node.attr: node.lineno
        for node in owns
        if isinstance(node.ctx, ast.Store)
    }
    late = {
        part.attr
        for each in ast.walk(made)
        if isinstance(each, ast.Lambda)
        for part in ast.walk(each)
        if part in owns and since[part.attr] > each.lineno
    }
    assert late == set()


@simulated(discipline=Discipline(preempt=True, quantum_s=0.001))
async def test_each_job_is_in_one_gang_in_one_state(cluster: Cluster) -> None:
    entries = cluster.scheduler._entries
    seen = set()

    def look() -> None:
        for status in cluster.table.live():
            entry = entries.of(status.id)
            assert entry is not None
            has_hosts = entry.state in (GangState.PLACED, GangState.PREEMPTED)
            assert has_hosts != entry.state.is_waiting
            assert has_hosts == (status.id in cluster.table.running)
            seen.add(entry.state)

    (low,) = await submit_running(cluster, job("low", workers=6))
    (high,) = cluster.submit(job("high", workers=6, priority=1))
    for job_id, is_over in (high, False), (high, True), (low, False):
        if is_over:
            await cluster.until_trains(job_id)
            cluster.end(job_id)
        state = JobState.DONE if is_over else JobState.RUNNING
        while cluster.table[job_id].state is not state:
            look()
            await asyncio.sleep(0.02)  # the pause between two looks
    assert seen >= {
        GangState.IN_LINE,
        GangState.PLACED,
        GangState.PREEMPTED,
    }
    await cluster.scheduler.stop(low)
    assert not [each.state for each in entries if each.state != GangState.OUT]


@simulated(discipline=Discipline(each_user=Allowance(jobs=2)))
async def test_an_ended_job_of_a_gang_does_not_count_for_its_user(
    cluster: Cluster,
) -> None:
    submit = cluster.scheduler.submit
    ends, _ = submit([job("ends", "gpu0"), job("runs", "gpu1")], by="ann")
    await cluster.until_trains(ends.id)
    await finish(cluster, ends.id)
    submit([job("next", "gpu2")], by="ann")


@simulated()
async def test_a_gang_runs_on_when_an_ended_job_of_it_is_deleted(
    cluster: Cluster,
) -> None:
    ends, runs = await submit_running(
        cluster, job("ends", "gpu0"), job("runs", workers=5)
    )
    await finish(cluster, ends)
    gone, _ = cluster.table.ledger.forget(0.0, keep=0)
    assert gone == [ends]
    (waits,) = cluster.submit(job("waits", workers=2))
    await cluster.until(
        lambda: "1 of them are free" in cluster.scheduler.job(waits).message
    )
    assert not cluster.events("part-fault")
    await finish(cluster, runs)
    await cluster.until_trains(waits)


@simulated()
async def test_a_job_that_begins_again_alone_counts_once(
    cluster: Cluster,
) -> None:
    specs = job("a", "gpu0", retries=1), job("b", "gpu1")
    first, second = await submit_running(cluster, *specs)
    cluster.end(first, "failed", "GPU fell off")
    await cluster.until(lambda: cluster.table[first].attempt == 1)
    await cluster.until_state(first, JobState.RUNNING)
    entries = cluster.scheduler._entries
    cluster.submit(job("waits", "gpu1"))  # another pass decides
    counted = [entries.of(each) for each in (first, second)]
    await cluster.until(
        lambda: [each.workers for each in counted if each] == [1, 1]
    )
