"""Whole workers as processes over loopback, spoken to through their control sockets."""

import ast
import json
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from patchlight.agents.workers.keeper import read_state
from tests.support.programs import python
from tests.support.training_workers import TRAINING, Worker, start
from tests.support.waiting import PATIENCE_S, free_ports, wait_until

MakeJob = Callable[..., list[Worker]]


@pytest.fixture
def make_job(tmp_path: Path) -> Iterator[MakeJob]:
    # As in a container: only this one folder of Patchlight can be imported.
    code = tmp_path / "code"
    shutil.copytree(TRAINING, code / "patchlight" / "agents" / "training")
    made: list[Worker] = []

    def make(
        ranks: int,
        *,
        seeds: tuple[int, ...] = (),
        name: str = "w",
        **task: Any,
    ) -> list[Worker]:
        ring = [
            {"rank": r, "address": "127.0.0.1", "port": port}
            for r, port in enumerate(free_ports(ranks))
        ]
        usual = {
            "job": "j",
            "ring": ring,
            "iterations": 4,
            "gradient_bytes": 400_002,
        }
        usual |= {"compute_s": 0.02, "device": "sleep", **task}
        for rank, seed in zip(
            range(ranks), seeds or (5,) * ranks, strict=True
        ):
            own = {"id": f"{name}{rank}", "rank": rank, "seed": seed}
            made.append(
                Worker(tmp_path / f"{name}{rank}", code, {**usual, **own})
            )
        return made[-ranks:]

    yield make
    for worker in made:
        worker.process.kill()
        worker.process.wait()


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_job_trains_to_its_end(make_job: MakeJob, ranks: int) -> None:
    job = make_job(ranks)
    for worker in job:
        worker.until("ready")
        assert worker.tell(op="status") == {"ok": True, "iteration": 0}
        assert worker.tell(op="dance")["ok"] is False
    began = time.time()
    for worker in job:
        assert worker.tell(op="start")["ok"]
    for worker in job:
        assert worker.process.wait(PATIENCE_S) == 0, worker.output
        done = {
            "state": "done",
            "iterations_done": 4,
            "message": "",
            "starts": 1,
        }
        assert worker.state == {**done, "lost_rank": None}
        assert [report["index"] for report in worker.reports] == [0, 1, 2, 3]
        for report in worker.reports:
            assert (report["check"], report["device"]) == ("ok", "sleep")
            assert began < report["finished_at"] < time.time()
            assert 0.019 < report["compute_s"] < report["finished_at"] - began
    chunks = sum(
        report["sent_bytes"] for worker in job for report in worker.reports
    )
    assert chunks == 4 * 2 * (ranks - 1) * 400_004


def test_a_worker_that_is_started_again_counts_that(make_job: MakeJob) -> None:
    (worker,) = make_job(1, iterations=100_000)
    for starts in (1, 2, 3):
        worker.until("ready")
        assert read_state(worker.folder).starts == starts
        worker.process.kill()
        worker.process.wait()
        (worker.folder / "state.json").write_text(
            json.dumps({**worker.state, "state": "starting"})
        )
        worker.launch()


def test_a_wrong_sum_fails_the_worker_loudly(make_job: MakeJob) -> None:
    # Workers that disagree on the data are, to each other, workers whose bytes are wrong.
    job = make_job(2, seeds=(1, 2))
    start(job)
    for worker in job:
        assert worker.process.wait(PATIENCE_S) == 1
        assert worker.state["state"] == "failed"
        assert worker.reports == []
    assert "values are wrong" in job[0].output + job[1].output


def test_a_killed_worker_takes_its_neighbours_down_with_its_name(
    make_job: MakeJob,
) -> None:
    job = make_job(3, iterations=100_000, compute_s=0)
    start(job)
    wait_until(lambda: job[1].state["iterations_done"] >= 2)
    job[1].process.send_signal(signal.SIGKILL)
    for rank in (0, 2):
        assert job[rank].process.wait(PATIENCE_S) == 1
        assert job[rank].state["state"] == "failed"
    assert 1 in {job[rank].state["lost_rank"] for rank in (0, 2)}
    assert "lost rank 1" in job[0].output + job[2].output


def test_held_workers_have_nothing_under_way(make_job: MakeJob) -> None:
    job = make_job(2, iterations=12, compute_s=0.05)
    for worker in job:
        worker.until("ready")
        assert worker.tell(op="hold", iteration=6)["ok"]
        worker.tell(op="start")
    for worker in job:
        worker.until("held")
        assert worker.state["iterations_done"] == 6
        refused = worker.tell(op="hold", iteration=2)
        assert (refused["ok"], refused["iteration"]) == (False, 6)
    # Stopping one of them altogether for longer than it would take changes nothing for the other.
    job[0].process.send_signal(signal.SIGSTOP)
    job[0].process.send_signal(signal.SIGCONT)
    for worker in job:
        assert worker.tell(op="release") == {"ok": True, "iteration": 6}
    for worker in job:
        assert worker.process.wait(PATIENCE_S) == 0, worker.output
        assert len(worker.reports) == 12


def test_workers_with_a_slot_begin_to_send_there_until_it_lapses(
    make_job: MakeJob,
) -> None:
    period_s = 0.4
    job = make_job(2, iterations=100_000, compute_s=0.02)
    start(job)
    at = time.time() + 0.1
    for worker in job:
        assert worker.tell(
            op="slot", at=at, period_s=period_s, late_s=0.1, lasts_s=3600
        )["ok"]
        assert (
            worker.tell(
                op="slot", at=at, period_s="soon", late_s=0, lasts_s=1
            )["ok"]
            is False
        )
    # The slot came during the one before.
    first = max(len(worker.reports) for worker in job) + 1
    wait_until(lambda: len(job[0].reports) >= first + 8)
    for worker in job:
        began = [
            r["finished_at"] - r["communication_s"]
            for r in worker.reports[first:]
        ]
        # One that passes the gate may be kept from telling the time for a moment.
        slots = [(each - at + 0.02) // period_s for each in began]
        assert len({*slots}) == len(slots), began
        late_s = [(each - at) % period_s for each in began]
        assert sum(each < 0.15 for each in late_s) >= 0.7 * len(late_s), late_s
    # A worker that waits for its slot can be held, and one without a slot does not wait.
    held_at = 10 + max(worker.state["iterations_done"] for worker in job)
    for worker in job:
        assert worker.tell(
            op="slot", at=at, period_s=3600, late_s=1, lasts_s=3600
        )["ok"]
        assert worker.tell(op="hold", iteration=held_at)["ok"]
        assert worker.tell(
            op="slot", at=at, period_s=3600, late_s=1, lasts_s=0
        )["ok"]
    for worker in job:
        worker.until("held")
        assert worker.tell(op="release")["ok"]
    wait_until(lambda: job[0].state["iterations_done"] > held_at + 20)


def test_stop_ends_a_worker_in_any_state(make_job: MakeJob) -> None:
    (worker,) = make_job(1, iterations=1000)
    worker.until("ready")
    worker.tell(op="stop")
    assert worker.process.wait(PATIENCE_S) == 0
    assert worker.state["state"] == "stopped"


def test_a_job_ends_at_an_iteration_and_goes_on_there_with_other_workers(
    make_job: MakeJob,
) -> None:
    first = make_job(3, iterations=10_000, compute_s=0.01)
    start(first)
    wait_until(lambda: first[0].state["iterations_done"] >= 2)
    at = 40 + max(worker.state["iterations_done"] for worker in first)
    for worker in first:
        assert worker.tell(op="hold", iteration=at)["ok"]
    for worker in first:
        worker.until("held")
        refused = worker.tell(op="stop-at", iteration=at - 1)
        assert (refused["ok"], refused["iteration"]) == (False, at)
    for worker in first:
        assert worker.tell(op="stop-at", iteration=at)["ok"]
    for worker in first:
        assert worker.process.wait(PATIENCE_S) == 0, worker.output
        assert (worker.state["state"], worker.state["iterations_done"]) == (
            "stopped",
            at,
        )
        assert [report["index"] for report in worker.reports] == list(
            range(at)
        )
    again = make_job(2, iterations=at + 4, first_iteration=at, name="again")
    for worker in again:
        worker.until("ready")
        assert worker.state["iterations_done"] == at
        refused = worker.tell(op="hold", iteration=at - 1)
        assert (refused["ok"], refused["iteration"]) == (False, at)
    start(again)
    for worker in again:
        assert worker.process.wait(PATIENCE_S) == 0, worker.output
        assert (worker.state["state"], worker.state["iterations_done"]) == (
            "done",
            at + 4,
        )
        assert [report["index"] for report in worker.reports] == list(
            range(at, at + 4)
        )


def test_a_stop_that_has_not_come_is_forgotten_at_a_release(
    make_job: MakeJob,
) -> None:
    (worker,) = make_job(1, iterations=6, compute_s=0.02)
    worker.until("ready")
    assert worker.tell(op="stop-at", iteration=4)["ok"]
    assert worker.tell(op="release")["ok"]
    start([worker])
    assert worker.process.wait(PATIENCE_S) == 0
    assert worker.state["state"] == "done"


def test_a_missing_gpu_is_named(make_job: MakeJob, tmp_path: Path) -> None:
    (worker,) = make_job(1, gpu_socket=str(tmp_path / "no.sock"))
    assert worker.process.wait(PATIENCE_S) == 1
    assert "no.sock" in worker.state["message"]


def test_the_processor_stands_in_where_there_is_no_gpu(
    make_job: MakeJob,
) -> None:
    (worker,) = make_job(1, device="auto", iterations=2)
    start([worker])
    assert worker.process.wait(PATIENCE_S) == 0, worker.output
    device = worker.reports[0]["device"]
    assert device == "cpu: numpy" or device.startswith("cuda: ")
    assert worker.reports[0]["compute_s"] >= 0.02


def test_the_training_code_stands_alone_and_is_old_enough_python() -> None:
    # Real models are those of the built-in graphs: a container with PyTorch has these beside it.
    graphs = {
        "torch_ddp.py": (
            "patchlight.testbed.errors",
            "patchlight.testbed.graphs",
        )
    }
    allowed = {*sys.stdlib_module_names, "numpy", "torch"}
    for path in sorted(TRAINING.glob("*.py")):
        tree = ast.parse(path.read_text(), feature_version=(3, 9))
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            else:
                continue
            names = [
                name
                for name in names
                if not name.startswith(graphs.get(path.name, ()))
            ]
            foreign = {name.partition(".")[0] for name in names} - allowed
            assert not foreign, f"{path.name} imports {foreign}"


def test_a_synthetic_worker_is_told_its_task_without_slow_imports() -> None:
    program = (
        "import sys, patchlight.agents.training.__main__\n"
        "print(sorted({'argparse', 'numpy', 'pathlib', 'traceback'} & set(sys.modules)))\n"
    )
    # Without what packages bring in at each start of Python, as an agent runs it.
    assert python("-S", "-c", program).stdout == "[]\n"
