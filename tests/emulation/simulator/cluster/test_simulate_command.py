"""``patchlight simulate`` as a user runs it, and what it writes."""

import hashlib
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
import pytest
from click.testing import CliRunner

from patchlight.emulation.simulator.cluster import (
    Settings,
    TwoLevel,
    queue_jobs,
    report,
)
from patchlight.emulation.simulator.cluster.jobs import SyntheticJobs
from patchlight.emulation.simulator.cluster.results import JobRecord
from patchlight.emulation.simulator.cluster.sweep import (
    Combination,
    Sweep,
    combinations,
    run_sweep,
)
from patchlight.emulation.simulator.commands.simulate import simulate
from patchlight.emulation.simulator.executors import Engine
from patchlight.emulation.simulator.traces.files import read_trace
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.labfile.reader import builtin_lab
from tests.support.figures import for_a_paper
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.usefixtures("one_core", "undrawn")

HEADER = "timestamp,duration,num_gpus,gpu_time,cluster\n"
ROWS = [
    ("2017-10-09 07:00:00", 100.0, 3),
    ("2017-10-09 07:00:01", 50.0, 4),
    ("2017-10-09 07:00:02", 20.0, 1),
    ("2017-10-09 07:00:03", 500.0, 1),
]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    rows = [
        f"{at},{lasts},{gpus},{lasts * gpus},c1\n" for at, lasts, gpus in ROWS
    ]
    path.write_text(HEADER + "".join(rows))
    return path


def command(trace: Path, output: Path, *options: str) -> Any:
    arguments = ["--trace", str(trace), "--output", str(output), *options]
    # As through a pipe: no cell is cut short.
    return CliRunner(env={"COLUMNS": None}).invoke(
        simulate, arguments, catch_exceptions=True
    )


def test_a_table_plots_and_every_job(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # on all cores, and with plots
    done = command(trace, tmp_path / "out", "--cluster", "1x1x4")
    assert done.exit_code == 0, done.output
    assert "fifo first-fit" in done.output
    assert "completion.png, load.png" in done.output
    found = json.loads(
        (tmp_path / "out/result.json").read_text(), parse_constant=pytest.fail
    )
    (run,) = found["runs"]
    assert run["jct_s"]["mean"] == pytest.approx((100 + 149 + 168 + 647) / 4)
    assert (run["done"], run["blocked"], run["makespan_s"]) == (4, {}, 650)
    assert found["cluster"]["gpus"] == 4
    table = parquet.read_table(tmp_path / "out" / run["jobs_file"])
    assert table.column_names == list(JobRecord._fields)
    assert table["started_s"].to_pylist() == [0, 100, 150, 150]
    for picture in ("completion.png", "load.png"):
        assert (tmp_path / "out" / picture).read_bytes().startswith(b"\x89PNG")
        paper = (tmp_path / "out" / picture).with_suffix(".pdf")
        assert paper.read_bytes().startswith(b"%PDF")
        assert "<svg" in paper.with_suffix(".svg").read_text()


def test_every_combination_and_json(trace: Path, tmp_path: Path) -> None:
    several = ("--order", "fifo, srpt", "--placement", "first-fit,best-fit")
    options = (
        "--cluster",
        "1x1x4",
        "--processes",
        "1",
        "--json",
        "--backfill",
    )
    done = command(trace, tmp_path / "out", *several, *options)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    names = [
        "fifo first-fit",
        "fifo best-fit",
        "srpt first-fit",
        "srpt best-fit",
    ]
    assert [run["name"] for run in found["runs"]] == names
    assert found == json.loads((tmp_path / "out/result.json").read_text())
    assert len(list((tmp_path / "out").glob("*.parquet"))) == 4


def test_a_lab_and_a_policy_of_ones_own(trace: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(
        "class Last:\n"
        "    def place(self, cluster, job, workers):\n"
        "        free = [g for g in range(len(cluster.shape.gpus)) if cluster.free >> g & 1]\n"
        "        return free[-workers:] if len(free) >= workers else None\n"
        "class Bad:\n"
        "    def place(self, cluster, job, workers):\n"
        "        return [0] * workers if workers > 1 else None if cluster.occupied else [0]\n"
    )
    lab = ("--lab", "ofc2022", "--topology", "keep,regroup")
    done = command(
        trace, tmp_path / "out", *lab, "--placement", f"{mine}:Last"
    )
    assert done.exit_code == 0, done.output
    runs = json.loads((tmp_path / "out/result.json").read_text())["runs"]
    assert runs[0]["reconfigurations"] == 0 < runs[1]["reconfigurations"]
    assert runs[1]["jct_s"]["mean"] < runs[0]["jct_s"]["mean"]
    done = command(
        trace,
        tmp_path / "out",
        "--cluster",
        "1x1x4",
        "--placement",
        f"{mine}:Bad",
    )
    assert done.exit_code == 0, done.output
    assert "the default policy decided" in done.output


FAILS = """
class Fails:
    def place(self, cluster, job, workers):
        raise ValueError("no")
"""
STOPS = """
class Stops:
    def place(self, cluster, job, workers):
        raise KeyboardInterrupt
"""


LAB = """
queue:
  backfill: true
  each_user: {gpus: 4}
  users: [{name: nobody-of-the-trace, gpus: 6}]
policies:
  order: srpt
  placement: own.py:Last
  topology: regroup
  defragment: true
  defragment_every: 5min
  minimum_gain: 2s
"""
LAST = """
class Last:
    def place(self, cluster, job, workers):
        free = [g for g in range(len(cluster.shape.gpus)) if cluster.free >> g & 1]
        return free[-workers:] if len(free) >= workers else None
"""


def test_what_no_option_says_is_as_the_lab_file_has_it(
    trace: Path, tmp_path: Path
) -> None:
    path = tmp_path / "lab.yaml"
    path.write_text(builtin_lab("ofc2022").read_text() + LAB)
    (tmp_path / "own.py").write_text(LAST)
    done = command(trace, tmp_path / "out", "--lab", str(path))
    assert done.exit_code == 0, done.output
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    (run,) = result["runs"]
    assert run["name"] == "srpt own.py Last regroup defragment"
    settings = result["settings"]
    names = ("backfill", "preempt", "defragment_s", "minimum_gain_s")
    assert [settings[name] for name in names] == [True, False, 300, 2]
    assert settings["each_user"]["gpus"] == 4
    said = (
        "--order",
        "fifo",
        "--topology",
        "keep",
        "--no-backfill",
        "--set",
        "each_user={gpus: 5}",
    )
    done = command(
        trace,
        tmp_path / "out",
        "--lab",
        str(path),
        *said,
        "--defragment",
        "60",
    )
    assert done.exit_code == 0, done.output
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    names_of_runs = [run["name"] for run in result["runs"]]
    assert names_of_runs == ["fifo own.py Last", "fifo own.py Last defragment"]
    settings = result["settings"]
    assert (settings["backfill"], settings["defragment_s"]) == (False, 60)
    assert settings["each_user"]["gpus"] == 5
    assert settings["users"]["nobody-of-the-trace"]["gpus"] == 6


def test_a_policy_that_fails_is_counted_and_strict_refuses_it(
    trace: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(FAILS)
    options = ("--cluster", "1x1x4", "--processes", "1")
    placements = ("--placement", f"first-fit,{tmp_path}/mine.py:Fails")
    done = command(trace, tmp_path / "out", *options, *placements)
    assert done.exit_code == 0, done.output
    assert "faults" in done.output
    runs = json.loads((tmp_path / "out/result.json").read_text())["runs"]
    assert runs[0]["faults"] == {"count": 0, "first": []}
    assert (
        runs[1]["faults"]["count"] == runs[1]["decisions"]["placements"] == 4
    )
    done = command(
        trace, tmp_path / "strict", *options, *placements, "--strict"
    )
    assert isinstance(done.exception, PatchlightError)
    assert "policies failed 4 times" in str(done.exception)
    assert done.exception.exit_code == 1
    assert (tmp_path / "strict/result.json").is_file()
    done = command(trace, tmp_path / "out", *options, "--strict")
    assert done.exit_code == 0, done.output
    assert "faults" not in done.output


def test_ctrl_c_writes_what_is_finished(trace: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(STOPS)
    run = [
        sys.executable,
        "-m",
        "patchlight",
        "simulate",
        "--trace",
        str(trace),
        "--cluster=1x1x4",
    ]
    run += ["--processes=1", "--order=fifo,srpt"]

    def stopped(
        placement: str, output: Path
    ) -> subprocess.CompletedProcess[str]:
        more = [f"--placement={placement}", f"--output={output}"]
        return subprocess.run(
            [*run, *more], capture_output=True, text=True, check=False
        )

    done = stopped(f"first-fit,{tmp_path}/mine.py:Stops", tmp_path / "some")
    assert done.returncode == 130, done.stderr
    assert "only 1 of 4 runs are finished" in done.stderr
    found = json.loads((tmp_path / "some/result.json").read_text())
    assert found["interrupted"]
    assert [run["name"] for run in found["runs"]] == ["fifo first-fit"]
    assert (
        stopped(f"{tmp_path}/mine.py:Stops", tmp_path / "none").returncode
        == 130
    )
    assert not (tmp_path / "none").exists()


def test_a_result_says_where_it_comes_from(
    trace: Path, tmp_path: Path
) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(FAILS)
    done = command(
        trace,
        tmp_path / "out",
        "--lab",
        "ofc2022",
        "--placement",
        f"{mine}:Fails",
    )
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "out/result.json").read_text())
    origin = found["provenance"]
    assert origin["seeds"] == [0]
    assert origin["machine"] == found["machine"]
    assert origin["version"]
    assert origin["command"]
    hashes = {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (trace, mine)
    }
    lab = builtin_lab("ofc2022")
    hashes[str(lab)] = hashlib.sha256(lab.read_bytes()).hexdigest()
    assert origin["sha256"] == hashes
    assert not found["interrupted"]


def without_clocks(result: dict[str, Any]) -> dict[str, Any]:
    for run in result["runs"]:
        for measured in ("cpu_s", "jobs_per_cpu_s"):
            assert run.pop(measured) > 0
        for measured in ("latency_p50_s", "latency_p99_s"):
            assert run["decisions"].pop(measured) > 0
    return result


_ON_RAY = pytest.param(
    "ray", marks=pytest.mark.xdist_group("a Ray of its own")
)


@pytest.mark.parametrize("engine", ["processes", _ON_RAY])
def test_sweeps_are_the_same_on_every_engine(
    engine: str, request: pytest.FixtureRequest
) -> None:
    if engine == "ray":
        pytest.importorskip("ray", reason="Ray is not installed: extra 'ray'")
        request.getfixturevalue("one_ray")
    jobs = SyntheticJobs(count=100, load=1.2).draw(
        np.random.default_rng(2), 64
    )
    sweep = Sweep(
        TwoLevel(4, 4, 4, oversubscription=4), jobs, Settings(preempt=True)
    )
    wanted = combinations(
        ["las", "srpt"], ["random", "consolidated"], ["keep"], seed=7
    )

    def figures(on: Engine) -> dict[str, Any]:
        told: list[tuple[int, int]] = []
        outcomes = run_sweep(
            sweep, wanted, on, lambda done, total: told.append((done, total))
        )
        if on.name == "ray":
            assert told == [(n, 4) for n in range(1, 5)]
        else:
            assert told == sorted(told)
            assert told[-1] == (400, 400)
        return without_clocks(report.result_of(outcomes, {}))

    assert figures(Engine(engine, 2)) == figures(Engine("serial"))


def test_plots_fit_what_happens_and_steps_are_steps() -> None:
    jobs = SyntheticJobs(count=100, load=1.2).draw(
        np.random.default_rng(2), 64
    )
    outcome = Sweep(TwoLevel(4, 4, 4), jobs)(Combination())
    runs = {"fifo": outcome.result}
    for axis in report.completion(runs).axes:
        (line,) = axis.lines
        shown = axis.transData.transform(
            np.column_stack([line.get_xdata(), line.get_ydata()])
        )
        places = axis.transAxes.inverted().transform(shown)[:, 0]
        assert places.max() > 0.9
        # The half of the jobs that take longest have half of the width, or more.
        assert places.max() - np.percentile(places, 10) > 0.4
    for axis in report.load(runs).axes:
        assert [type(patch).__name__ for patch in axis.patches] == [
            "StepPatch"
        ]
        assert not axis.lines


def test_the_seed_fixes_what_is_drawn() -> None:
    jobs = SyntheticJobs(count=100).draw(np.random.default_rng(2), 64)
    sweep = Sweep(TwoLevel(4, 4, 4, oversubscription=4), jobs)

    def jct(seed: int) -> float:
        mean: float = sweep(
            Combination(placement="random", seed=seed)
        ).summary["jct_s"]["mean"]
        return mean

    assert jct(1) == jct(1) != jct(2)


def test_the_first_jobs_of_philly(philly: Path) -> None:
    jobs = queue_jobs(read_trace(philly, skip_bad=True)[:5000])
    began = time.process_time()
    outcome = Sweep(TwoLevel(16, 16, 8), jobs)(Combination())
    # 82,247 jobs are to take 15 s; this much must hold on a busy machine too.
    assert time.process_time() - began < 5
    assert outcome.summary["done"] == 5000
    assert outcome.summary["allocated"] == pytest.approx(
        sum(j.duration_s * j.view.workers for j in jobs)
        / 2048
        / outcome.summary["makespan_s"]
    )
    # Far too few GPUs: the queue is long, and all comes to its end.
    crowded = Sweep(TwoLevel(4, 2, 8), jobs)(Combination())
    assert (
        crowded.summary["done"] + sum(crowded.summary["blocked"].values())
        == 5000
    )
    assert crowded.summary["queue_max"] > 3000
    assert (
        crowded.summary["waited_s"]["mean"]
        > outcome.summary["waited_s"]["mean"]
    )
    shortest = replace(Sweep(TwoLevel(4, 2, 8), jobs))(
        Combination(order="srpt")
    )
    assert (
        shortest.summary["jct_s"]["mean"]
        < crowded.summary["jct_s"]["mean"] / 2
    )


def test_where_nobody_waited_the_plots_say_so_and_have_no_empty_panel(
    trace: Path,
) -> None:
    jobs = queue_jobs(read_trace(trace))
    roomy = Sweep(TwoLevel(4, 4, 4), jobs)(Combination()).result
    tight = Sweep(TwoLevel(1, 1, 4), jobs)(Combination()).result
    for draw, fewer, all_of_them in (
        (report.completion, 1, 2),
        (report.load, 2, 3),
    ):
        alone = draw({"a": roomy})
        both = draw({"a": roomy, "b": tight})
        assert len(alone.axes) == fewer
        assert "no job waited" in alone.axes[-1].get_xlabel()
        assert len(both.axes) == all_of_them
        assert "no job waited" not in both.axes[-1].get_xlabel()
        assert all(axis.has_data() for axis in (*alone.axes, *both.axes))


def test_equal_runs_are_one_curve_that_names_them_all(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # with plots
    policies = (
        "--order",
        "fifo,las,srpt",
        "--cluster",
        "1x1x4",
        "--processes",
        "1",
    )
    done = command(trace, tmp_path / "out", *policies)
    assert done.exit_code == 0, done.output
    assert (
        "identical results: fifo first-fit, las first-fit (no preemption;"
        in done.output
    )
    for plot in ("completion", "load"):
        text = for_a_paper(tmp_path / "out" / f"{plot}.svg")
        assert "fifo first-fit" in text
        assert "= las first-fit" in text
        assert "interrupted" not in text


RAISES = """
class Mine:
    def place(self, cluster, job, workers):
        raise ValueError("[/red] [bold]")
"""


def test_two_files_of_one_name_and_words_in_brackets(
    trace: Path, tmp_path: Path
) -> None:
    written = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(RAISES)
        written.append(f"{tmp_path}/{folder}/mine.py:Mine")
    options = (
        "--cluster",
        "1x1x4",
        "--processes",
        "1",
        "--placement",
        ",".join(written),
    )
    done = command(trace, tmp_path / "out", *options)
    assert done.exit_code == 0, done.output
    assert "[/red] [bold]" in done.output
    runs = json.loads((tmp_path / "out/result.json").read_text())["runs"]
    assert [run["name"] for run in runs] == [
        "fifo mine.py Mine",
        "fifo mine.py Mine (2)",
    ]
    assert len({run["jobs_file"] for run in runs}) == 2
    assert all((tmp_path / "out" / run["jobs_file"]).is_file() for run in runs)


def test_results_that_cannot_be_written_are_told_before_the_work(
    trace: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    done = command(trace, tmp_path / "file" / "out")
    assert isinstance(done.exception, PatchlightError)
    assert "cannot write the results" in str(done.exception)
    done = command(tmp_path / "none.csv", tmp_path / "out")
    assert isinstance(done.exception, PatchlightError)
    assert not (tmp_path / "out").exists()


INTERRUPTED = """
import os, signal, sys, threading, time
from patchlight.emulation.simulator.executors import Engine, run_all

def work(task):
    os.write(1, b"%d\\n" % os.getpid())  # In one piece: two processes write.
    time.sleep(600)  # no test waits so long: who ends before is ended

if __name__ == "__main__":
    def later():
        os.read(0, 1)
        os.killpg(0, signal.SIGINT)
    threading.Thread(target=later, daemon=True).start()
    run_all(range(4), work, Engine("processes", 2))
"""


def test_ctrl_c_ends_the_processes_at_once(tmp_path: Path) -> None:
    (tmp_path / "long.py").write_text(INTERRUPTED)
    with subprocess.Popen(
        [sys.executable, str(tmp_path / "long.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as run:
        assert run.stdout is not None
        workers = [int(run.stdout.readline()) for _ in range(2)]
        _, said = run.communicate("x", timeout=PATIENCE_S)
    assert run.returncode != 0
    assert "Interrupted" in said
    for pid in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
