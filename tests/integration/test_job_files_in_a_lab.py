"""Job files handed in as a user hands them in, with the command line, in the lab of the paper."""

import json
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner

from patchlight import EmulatedLab
from patchlight.cli.main import cli
from patchlight.testbed.policies import PolicyChoice
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.root, pytest.mark.ovs]

EXAMPLES = Path(__file__).parents[2] / "examples" / "jobs"
SMALL = "gradient: 40MB\ncompute: {Tesla M40: 0.2s, Titan V: 0.2s}\n"


@pytest.fixture(scope="module")
def lab() -> Iterator[EmulatedLab]:
    choice = PolicyChoice(placement="regroup")
    with EmulatedLab.from_file(
        "ofc2022", scale=1000, name="jobfiles", workers="process", policies=choice
    ) as emulated:
        yield emulated


def job(*words: str, code: int = 0, text: str | None = None) -> str:
    done = CliRunner().invoke(cli, ["job", *words], input=text, env={"PATCHLIGHT_LAB": "jobfiles"})
    assert done.exit_code == code, (done.output, done.exception)
    return done.stdout


def test_the_third_job_waits_says_for_what_and_runs_when_one_ends(lab: EmulatedLab) -> None:
    four = "name: four\nworkers: 4\ngpu_models: Tesla M40\ntopology: regroup\niterations: 5000\n"
    job("submit", "-", text=four + SMALL)
    two = lab.submit({"name": "two", "hosts": ["gpu1", "gpu3"], "command": "sleep 600"})[0]["id"]
    wait_until(lambda: lab.controller.job(two)["state"] == "running")
    wait_until(lambda: json.loads(job("top", "--json"))[0]["compute_s"])
    third = "name: third\nworkers: 2\niterations: 2\n" + SMALL
    (row,) = json.loads(job("submit", "-", "--dry-run", "--json", text=third))
    assert "it wants 2 GPUs" in row["waits_for"]
    job("submit", "-", text=third)
    wait_until(lambda: "it wants 2 GPUs" in job("show", "third"))
    job("stop", "four")
    job("wait", "third", "--timeout", "1min")
    states = [row["state"] for row in json.loads(job("show", "third", "--why", "--json"))["states"]]
    assert states[0] == "queued"
    assert states[-2:] == ["running", "done"]
    job("stop", "two")
    assert job("wait", "four", "two", code=1).count("stopped by the user") == 2


@pytest.mark.skipif(find_spec("torch") is None, reason="no PyTorch: pip install torch")
def test_an_unchanged_script_of_pytorch_is_a_job(lab: EmulatedLab, tmp_path: Path) -> None:
    script = str(EXAMPLES / "train_gloo.py")
    words = ("--workers", "2", "--hold", "freeze", "--", sys.executable, script, "--steps", "3")
    job_id = job("submit", "gloo", *words).strip()
    wait_until(lambda: "rank 1 step 2" in job("logs", "gloo"), deadline_s=60)
    job("wait", job_id, "--timeout", "30s")
