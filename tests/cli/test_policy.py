"""``patchlight policy`` and the options that give a lab its policies."""

import hashlib
import importlib.util
import json
import os
import re
import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from patchlight.cli.main import cli
from patchlight.console import rendering
from patchlight.console.options import absolute, chosen_policies, policy_options
from patchlight.controller.jobs.policy_set import in_words
from patchlight.controller.policies.registry import BUILT_IN
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
    assert "learned-lab-partition: partition policy, learned, shipped" in shown


def test_evaluate_compares_and_says_what_went_wrong(mine: Path) -> None:
    names = [f"{mine}:Mine", "maximum"]
    result = run("evaluate", *names, "--seeds", "1", "--processes", "1", "--json")
    assert result.exit_code == 0, result.output
    first, second = json.loads(result.stdout)
    assert (first["policy"], first["law"], first["rule"]) == (names[0], "A", "ramp-block")
    assert first["faults"]["count"] == 1
    assert f"RuntimeError: no idea ({mine}:7)" in first["faults"]["first"]
    assert second["faults"]["count"] == 0
    # But for the one decision that the default took.
    assert first["blocking_rate"] == pytest.approx(second["blocking_rate"], abs=0.05)
    shown = run("evaluate", names[0], "--seeds", "1", "--first-seed", "9", "--processes", "1")
    assert "seeds 9 to 9" in shown.stdout
    assert "no idea" in shown.stderr


def test_evaluate_writes_the_figures_and_where_they_come_from(mine: Path, tmp_path: Path) -> None:
    few = ("--seeds", "2", "--processes", "1", "--law", "D", "--law-instance", "3", "--json")
    result = run("evaluate", f"{mine}:Mine", "constant:8", *few, "--output", "found")
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "found/result.json").read_text(), parse_constant=pytest.fail)
    assert found["policies"] == json.loads(result.stdout)
    assert not found["interrupted"]
    assert found["episodes_finished"] == found["episodes_wanted"] == 4
    origin = found["provenance"]
    assert (origin["seeds"], origin["machine"]) == ([0, 1], found["machine"])
    assert origin["sha256"] == {str(mine): hashlib.sha256(mine.read_bytes()).hexdigest()}
    assert not found["profiles"]["published"]
    shown = run("evaluate", "constant:8", *few[:-1])
    (written,) = tmp_path.glob("results/evaluate-*/result.json")
    assert str(written.relative_to(tmp_path)) in shown.stdout


def test_results_that_cannot_be_written_are_told_before_the_work(mine: Path) -> None:
    done = run("evaluate", "constant:8", "--seeds", "1000000", "--output", str(mine))
    assert isinstance(done.exception, BadInput) or done.exit_code == 2
    assert "mine.py" in done.output + str(done.exception)


def test_strict_refuses_a_policy_that_failed_once_all_is_written(
    mine: Path, tmp_path: Path
) -> None:
    few = ("--seeds", "1", "--processes", "1", "--strict", "--output")
    done = run("evaluate", "maximum", f"{mine}:Mine", *few, "some")
    assert isinstance(done.exception, PatchlightError)
    assert done.exception.exit_code == 1
    assert "policies failed 1 times" in str(done.exception)
    assert "no idea" in done.stderr
    assert json.loads((tmp_path / "some/result.json").read_text())["policies"][1]["faults"]["count"]
    heading, row = (
        next(line for line in done.stdout.splitlines() if line.startswith(words))
        for words in ("policy", f"{mine}:Mine")
    )
    assert (heading.split()[-1], row.split()[-1]) == ("faults", "1")
    done = run("evaluate", "maximum", *few, "none")
    assert done.exit_code == 0, done.output


def test_strict_refuses_policies_of_a_queue_too(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text(
        "class Fails:\n"
        "    def priority(self, cluster, job, progress):\n"
        "        raise ValueError('no order')\n"
    )
    (tmp_path / "jobs.csv").write_text(
        "timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 07:00:00,9.0,1,9.0,c1\n"
    )
    arguments = ("evaluate", "fails.py:Fails", "--trace", "jobs.csv", "--output", "out")
    assert run(*arguments).exit_code == 0
    done = run(*arguments, "--strict")
    assert isinstance(done.exception, PatchlightError)
    assert "policies failed 1 times" in str(done.exception)
    assert json.loads((tmp_path / "out/result.json").read_text())["runs"][0]["faults"]["count"] == 1


SLOW = """
import time


class Slow:
    def degree(self, cluster, job, legal):
        time.sleep(0.001)
        return legal[-1]
"""


def test_where_there_is_no_terminal_lines_say_how_far_it_is(
    mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendering, "LINE_EVERY_S", 0.2)
    mine.write_text(SLOW)
    done = run("evaluate", f"{mine}:Slow", "--seeds", "3", "--processes", "1", "--json")
    assert done.exit_code == 0, done.output
    lines = [line for line in done.stderr.splitlines() if line.startswith("patchlight: ")]
    told = [re.fullmatch(r".* (\d+) of 100 % done after \d+ s, about \d+ s left", x) for x in lines]
    counted = [int(each[1]) for each in told if each]
    assert counted
    assert counted == sorted(counted)
    # What a program reads has none of it.
    assert len(json.loads(done.stdout)) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("evaluate", "fifo"), "expected --trace FILE"),
        (("evaluate", "fifo", "constant:8"), "different kinds: order, partition"),
        (("evaluate", "constant:8", "--law", "Z"), "no requirement law 'Z'"),
        (("evaluate", "constant"), "has to be told 'degree'"),
        (("evaluate", "maximum", "--rule", "best"), "no placement rule 'best'"),
        (("show", "no-such"), "no policy 'no-such'"),
        (("evaluate", "fifo", "--trace", "x.csv", "--law", "A"), "--law is for partition policies"),
    ],
)
def test_wrong_input(arguments: tuple[str, ...], words: str) -> None:
    result = run(*arguments)
    assert isinstance(result.exception, BadInput)
    assert words in str(result.exception)
    assert not Path("results").exists()


def test_help_needs_no_learning() -> None:
    result = run("--help")
    assert result.exit_code == 0
    for name in ("show", "evaluate", "train", "export"):
        assert name in result.output


def test_learning_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec",
        lambda name, *more: None if name == "torch" else found(name, *more),
    )
    result = run("train", "small")
    assert isinstance(result.exception, PatchlightError)
    assert "patchlight[learn]" in str(result.exception)


def test_a_lab_is_given_its_policies(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    given = ["--partition", "mine.py:Mine", "--order", "las:3", "--policy-deadline", "0.5"]
    assert CliRunner().invoke(lab, [*given, "--defragment", "off"]).exit_code == 0
    assert seen[-1].said == {
        "partition": f"{mine}:Mine",
        "order": "las:3",
        "deadline_s": 0.5,
        "defragment": False,
    }
    for wrong in (["--placement", "fifo"], ["--policy-deadline", "0"], ["--partition", "no.py"]):
        assert isinstance(CliRunner().invoke(lab, wrong).exception, BadInput)


@pytest.mark.parametrize("workers", ["none", "0", "-1", "1.5"])
def test_a_number_of_workers_that_is_none(workers: str) -> None:
    arguments = ["job", "submit", "x", "--lab", "ofc2022", "--workers", workers]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 2
    assert "workers: expected 1 to 65536, or auto" in result.output


def test_files_by_their_full_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute("a/b.py:Mine:x=1") == f"{tmp_path}/a/b.py:Mine:x=1"
    assert absolute("model.onnx") == f"{tmp_path}/model.onnx"
    assert absolute("placement:random") == "placement:random"
    assert absolute("placement:mine.py:Mine") == f"placement:{tmp_path}/mine.py:Mine"


ARRIVALS, MIX, FAILURES = "poisson:20000", "alexnet=2,gnmt=1", "3d:6h"
VARIED = {"ramp": "2x2x1", "arrivals": ARRIVALS, "mix": MIX, "failures": FAILURES}


def test_another_cluster_other_jobs_and_failures(mine: Path) -> None:
    given = [word for name, text in VARIED.items() for word in (f"--{name}", text)]
    done = run("evaluate", "constant:2", "--seeds", "2", "--processes", "1", "--json", *given)
    assert done.exit_code == 0, done.output
    (row,) = json.loads(done.output)
    assert row["varied"] == VARIED
    assert row["causes"]["lost"] > 0
    assert sum(row["causes"].values()) == pytest.approx(row["blocking_rate"], abs=0.01)
    assert 0 < row["busy"] <= row["allocated"] < 1
    assert 0 < row["decision_latency_p50_s"] <= row["decision_latency_p99_s"]
    title = run("evaluate", "constant:2", "--seeds", "1", "--processes", "1", *given).output
    assert "ramp 2x2x1" in title


@pytest.mark.parametrize(
    ("option", "text", "words"),
    [
        ("--ramp", "4x4", "is not a RAMP"),
        ("--ramp", "0x1x1", "is not a RAMP"),
        ("--ramp", "99x99x99", "expected 65536 at most"),
        ("--arrivals", "poison:5", "did you mean 'poisson'"),
        ("--arrivals", "poisson", "how often jobs come"),
        ("--arrivals", "fixed:0", "0.0 s apart"),
        ("--arrivals", "fixed:0.001", "1,000,000 jobs at most"),
        ("--arrivals", "poisson:1e9", "no job came"),
        ("--mix", "vgg=1", "did you mean 'vgg16'"),
        ("--mix", "gnmt", "expected each model once"),
        ("--mix", "gnmt=1,gnmt=2", "expected each model once"),
        ("--mix", "gnmt=0", "a share above 0"),
        ("--failures", "30d", "does not say what breaks"),
        ("--failures", "0d:4h", "expected more than 0 s"),
        ("--trace", "jobs.csv", "--seeds is for partition policies on PAC-ML's cluster"),
        ("--lab", "ofc2022", "--lab is for jobs of a --trace"),
    ],
)
def test_variations_that_cannot_be(mine: Path, option: str, text: str, words: str) -> None:
    done = run("evaluate", "constant:2", "--seeds", "1", "--processes", "1", option, text)
    assert isinstance(done.exception, BadInput)
    assert words in str(done.exception)


PROCESS = '''
import os
from pathlib import Path
class Noted:
    """Notes in which process it decides."""
    def priority(self, cluster, job, progress):
        with Path("processes").open("a") as file:
            print(os.getpid(), file=file)
        return 0.0
class NotedToo(Noted):
    """The same once more."""
'''


@pytest.mark.parametrize("processes", ["1", "2"])
def test_policies_of_a_queue_run_on_so_many_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(PROCESS)
    (tmp_path / "jobs.csv").write_text(
        "timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 07:00:00,9.0,1,9.0,c1\n"
    )
    arguments = ("--trace", "jobs.csv", "--processes", processes, "--first-seed", "3", "--json")
    done = run("evaluate", "mine.py:Noted", "mine.py:NotedToo", *arguments)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["settings"]["seed"] == 3
    decided_in = {int(line) for line in (tmp_path / "processes").read_text().splitlines()}
    assert (os.getpid() in decided_in) == (processes == "1")


def test_topology_policies_run_on_a_lab_with_circuits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs.csv").write_text(
        "timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 07:00:00,9.0,3,27.0,c1\n"
    )
    done = run("evaluate", "topology:regroup", "--trace", "jobs.csv", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["cluster"]["name"] == "ofc2022"
    done = run("evaluate", "topology:regroup", "--trace", "jobs.csv", "--lab", "nowhere")
    assert isinstance(done.exception, BadInput)


# What docs/policies.md shows works as it stands there.
TEXT = (Path(__file__).parents[2] / "docs" / "policies.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the page's files."""
    for language, text in BLOCKS:
        name = re.match(r"# (\S+)\n", text)
        if language in ("python", "csv") and name:
            (tmp_path / name[1]).write_text(text if language == "python" else text[name.end() :])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def test_examples_are_of_twenty_lines(folder: Path) -> None:
    classes = [part for path in folder.glob("*.py") for part in path.read_text().split("\nclass ")]
    assert len(classes) >= 4
    assert max(len(text.splitlines()) for text in classes) <= 20


@pytest.mark.usefixtures("one_core")
def test_every_command_of_the_page_runs(folder: Path) -> None:
    lines = [
        line for language, text in BLOCKS if language == "sh" for line in text.splitlines() if line
    ]
    assert len(lines) >= 6
    for line in lines:
        program, *arguments = shlex.split(line)
        assert program == "patchlight"
        result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
        assert result.exit_code == 0, f"{line}\n{result.output}"
        assert "fault" not in result.stderr, line


def test_the_page_names_every_built_in() -> None:
    for names in BUILT_IN.values():
        for name in names:
            assert f"`{name}`" in TEXT or f"`{name}:N`" in TEXT


def test_show_says_what_a_model_would_miss_in_a_lab(tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason="onnx is not installed: extra 'learn'")
    from tests.support.option_models import write_option_model

    path = write_option_model(tmp_path)
    shown = run("show", str(path), "--lab", "ofc2022")
    assert "not tested: gpus: 6 here, tested with 8 to 64" in shown.output
    fit = json.loads(run("show", str(path), "--lab", "ofc2022", "--json").output)["lab"]
    assert fit["lab"] == "ofc2022"
    assert any("graph" in line for line in fit["from_jobs"])
    refused = run("show", "consolidated", "--lab", "ofc2022")
    assert isinstance(refused.exception, BadInput)
    topology = write_option_model(tmp_path, ("topology",))
    lab_file = tmp_path / "flat.yaml"
    made = CliRunner().invoke(
        cli, ["lab", "generate", "tree", "--servers", "8", "--output", str(lab_file)]
    )
    assert made.exit_code == 0, made.output
    wrong = run("show", str(topology), "--lab", str(lab_file))
    assert "no circuit switch" in str(wrong.exception)
