"""``patchlight policy`` and the options that give a lab its policies."""

import importlib.util
import json
import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from patchlight.cli.main import cli
from patchlight.console import rendering
from patchlight.console.options import (
    absolute,
    chosen_policies,
    policy_options,
)
from patchlight.controller.jobs.policy_set import in_words
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.lab.rules import KINDS, NOTHING_SAID, PolicyChoice

pytestmark = [pytest.mark.usefixtures("undrawn"), pytest.mark.wings]

RAISES = '''
class Mine:
    """Raises now and then."""

    def degree(self, cluster, job, legal):
        if len(cluster.recent) == 7:
            raise RuntimeError("no idea")
        return legal[-1]
'''


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results go where the test is."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "mine.py"
    path.write_text(RAISES)
    return path


def run(*arguments: str) -> Result:
    # As through a pipe: no cell is cut short.
    return CliRunner(env={"COLUMNS": None}).invoke(cli, ["policy", *arguments])


def test_list_says_what_there_is() -> None:
    rows = json.loads(run("show", "--json").output)
    assert {row["kind"] for row in rows} == set(KINDS)
    defaults = [row["name"] for row in rows if row["default"]]
    assert defaults == ["sufficient", "consolidated", "fifo", "keep", "rigid"]
    orders = run("show", "--kind", "order").output
    assert "srpt" in orders
    assert "first-fit" not in orders


def test_show(mine: Path) -> None:
    found = json.loads(run("show", f"{mine}:Mine", "--json").output)
    assert found["kind"] == "partition"
    assert found["documentation"] == "Raises now and then."
    assert found["source"] == f"{mine}:2"
    assert found["card"] is None
    assert "queues: int = 2" in run("show", "las").output
    shown = run("show", "learned-lab-partition").output
    assert (
        "learned-lab-partition: partition policy, learned, built in" in shown
    )


def pac_ml(*arguments: str) -> Result:
    few = (
        "--rules",
        "ramp-block",
        "--laws",
        "A",
        "--processes",
        "1",
        "--quick",
    )
    command = ["experiment", "pac-ml", *few, *arguments]
    return CliRunner(env={"COLUMNS": None}).invoke(cli, command)


def test_partition_policies_are_compared_and_what_went_wrong_is_said(
    mine: Path, tmp_path: Path
) -> None:
    name = f"{mine}:Mine"
    result = pac_ml(
        "--policies",
        f"{name},maximum",
        "--seeds",
        "1",
        "--json",
        "--output",
        "out",
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found == json.loads((tmp_path / "out/result.json").read_text())
    policies = found["rules"]["ramp-block"]["A"]["policies"]
    faults = policies[name]["faults"]
    assert faults["count"] == 1
    assert f"RuntimeError: no idea ({mine}:7)" in faults["first"]
    assert policies["maximum"]["faults"]["count"] == 0
    # But for the one decision that the default took.
    rates = [each["blocking_rate"] for each in policies.values()]
    assert rates[0] == pytest.approx(rates[1], abs=0.05)
    assert "no idea" in result.stderr


def test_results_that_cannot_be_written_are_told_before_the_work(
    mine: Path,
) -> None:
    done = pac_ml(
        "--policies", "constant:8", "--seeds", "1000000", "--output", str(mine)
    )
    assert isinstance(done.exception, BadInput) or done.exit_code == 2
    assert "mine.py" in done.output + str(done.exception)


def test_strict_refuses_a_policy_that_failed_once_all_is_written(
    mine: Path, tmp_path: Path
) -> None:
    few = ("--seeds", "1", "--strict", "--output")
    done = pac_ml("--policies", f"maximum,{mine}:Mine", *few, "some")
    assert isinstance(done.exception, PatchlightError)
    assert done.exception.exit_code == 1
    assert "policies failed 1 times" in str(done.exception)
    assert "no idea" in done.stderr
    assert (tmp_path / "some/result.json").is_file()
    done = pac_ml("--policies", "maximum", *few, "none")
    assert done.exit_code == 0, done.output


def test_where_there_is_no_terminal_lines_say_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rendering, "LINE_EVERY_S", 0.0)
    done = pac_ml("--policies", "maximum", "--seeds", "3", "--json")
    assert done.exit_code == 0, done.output
    lines = [
        line
        for line in done.stderr.splitlines()
        if line.startswith("patchlight: ")
    ]
    told = [
        re.fullmatch(
            r".* (\d+) of 100 % done after \d+ s, about \d+ s left", x
        )
        for x in lines
    ]
    counted = [int(each[1]) for each in told if each]
    assert counted
    assert counted == sorted(counted)
    # What a program reads has none of it.
    assert json.loads(done.stdout)["experiment"] == "pac-ml"


def test_help_needs_no_learning() -> None:
    result = run("--help")
    assert result.exit_code == 0
    for name in ("show", "train", "compare"):
        assert name in result.output


def test_learning_that_is_not_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec",
        lambda name, *more: None if name == "torch" else found(name, *more),
    )
    result = run("train", "small")
    assert isinstance(result.exception, PatchlightError)
    assert "patchlight[learn]" in str(result.exception)


def test_a_lab_is_given_its_policies(
    mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[PolicyChoice] = []

    @click.command()
    @policy_options
    def lab(**options: object) -> None:
        seen.append(chosen_policies(options))

    monkeypatch.chdir(mine.parent)
    assert CliRunner().invoke(lab, []).exit_code == 0
    assert seen[-1] == NOTHING_SAID
    plain = {"placement": "consolidated", "order": "fifo", "topology": "keep"}
    whole = {"partition": None, "elasticity": "rigid", **plain}
    assert in_words(seen[-1]) == whole
    given = [
        "--partition",
        "mine.py:Mine",
        "--order",
        "las:3",
        "--policy-deadline",
        "0.5",
    ]
    assert (
        CliRunner().invoke(lab, [*given, "--defragment", "off"]).exit_code == 0
    )
    assert seen[-1].said == {
        "partition": f"{mine}:Mine",
        "order": "las:3",
        "deadline_s": 0.5,
        "defragment": False,
    }
    for wrong in (
        ["--placement", "fifo"],
        ["--policy-deadline", "0"],
        ["--partition", "no.py"],
    ):
        assert isinstance(CliRunner().invoke(lab, wrong).exception, BadInput)


def test_files_by_their_full_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute("a/b.py:Mine:x=1") == f"{tmp_path}/a/b.py:Mine:x=1"
    assert absolute("model.onnx") == f"{tmp_path}/model.onnx"
    assert absolute("placement:random") == "placement:random"
    assert (
        absolute("placement:mine.py:Mine")
        == f"placement:{tmp_path}/mine.py:Mine"
    )


ARRIVALS = "poisson:20000"
MIX = "alexnet=2,gnmt=1"
FAILURES = "3d:6h"
VARIED = {
    "ramp": "2x2x1",
    "arrivals": ARRIVALS,
    "mix": MIX,
    "failures": FAILURES,
}


def test_another_cluster_other_jobs_and_failures(mine: Path) -> None:
    given = [
        word for name, text in VARIED.items() for word in (f"--{name}", text)
    ]
    done = pac_ml("--policies", "constant:2", "--seeds", "2", "--json", *given)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["varied"] == VARIED | {"failures": "259200s:21600s"}
    (row,) = found["rules"]["ramp-block"]["A"]["policies"].values()
    assert row["causes"]["lost"] > 0
    assert sum(row["causes"].values()) == pytest.approx(
        row["blocking_rate"], abs=0.01
    )
    assert 0 < row["busy"] <= row["allocated"] < 1
    assert 0 < row["decision_latency_p50_s"] <= row["decision_latency_p99_s"]


def test_show_says_what_a_model_would_miss_in_a_lab(tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason="onnx is not installed: extra 'learn'")
    from tests.support.option_models import write_option_model

    path = write_option_model(tmp_path)
    shown = run("show", str(path), "--lab", "ofc2022")
    assert "not tested: gpus: 6 here, tested with 8 to 64" in shown.output
    fit = json.loads(
        run("show", str(path), "--lab", "ofc2022", "--json").output
    )["lab"]
    assert fit["lab"] == "ofc2022"
    assert any("graph" in line for line in fit["from_jobs"])
    refused = run("show", "consolidated", "--lab", "ofc2022")
    assert isinstance(refused.exception, BadInput)
    topology = write_option_model(tmp_path, ("topology",))
    lab_file = tmp_path / "flat.yaml"
    made = CliRunner().invoke(
        cli,
        [
            "lab",
            "generate",
            "tree",
            "--servers",
            "8",
            "--output",
            str(lab_file),
        ],
    )
    assert made.exit_code == 0, made.output
    wrong = run("show", str(topology), "--lab", str(lab_file))
    assert "no circuit switch" in str(wrong.exception)
