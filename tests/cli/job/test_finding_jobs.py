"""``patchlight job`` as a user types it: ids by name and by their start, tables and JSON."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from patchlight.cli.main import cli
from patchlight.testbed.errors import BadInput
from tests.support.controller_process import (
    ControllerProcess,
    controller_process,
)

pytestmark = pytest.mark.xdist_group("a controller whose jobs are found")


@pytest.fixture(scope="module")
def running(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ControllerProcess]:
    with controller_process(
        tmp_path_factory.mktemp("controller")
    ) as controller:
        yield controller


def job(running: ControllerProcess, *words: str) -> Result:
    variables = {"PATCHLIGHT_LAB": str(running.lab), "COLUMNS": "80"}
    return CliRunner().invoke(cli, ["job", *words], env=variables)


def submitted(running: ControllerProcess, name: str) -> str:
    return job(running, "submit", name, "--workers", "1").stdout.strip()


def test_a_job_is_meant_by_its_id_the_start_of_one_or_its_name(
    running: ControllerProcess,
) -> None:
    one = submitted(running, "train")
    for text in (one, one[:-3], "train"):
        assert (
            json.loads(job(running, "show", text, "--json").output)["id"]
            == one
        )
    assert one in job(running, "show", "train").output
    assert (
        json.loads(job(running, "stop", "train", "--json").output)["id"] == one
    )


def test_what_may_mean_several_jobs_is_refused_with_their_ids(
    running: ControllerProcess,
) -> None:
    ids = [submitted(running, "twice") for _ in range(2)]
    for job_id in ids:
        job(running, "stop", job_id)
    refused = job(running, "show", "twice").exception
    assert isinstance(refused, BadInput)
    assert "'twice' matches 2 jobs" in str(refused)
    assert all(job_id in str(refused) for job_id in ids)
    for text in ("", "nothing"):
        refused = job(running, "show", text).exception
        assert isinstance(refused, BadInput)
        assert f"no job {text!r}" in str(refused)


def test_the_table_of_jobs_has_whole_ids_on_80_columns(
    running: ControllerProcess,
) -> None:
    job_id = submitted(running, "a-job-with-quite-a-long-name")
    lines = job(running, "list").output.splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.startswith(job_id) for line in lines)
    listed = json.loads(job(running, "list", "--json").output)
    assert job_id in {status["id"] for status in listed}


def test_names_complete_in_the_shell(
    running: ControllerProcess, tmp_path: Path
) -> None:
    job_id = submitted(running, "completed")

    def completed(words: str) -> list[str]:
        variables = {
            "_PATCHLIGHT_COMPLETE": "bash_complete",
            "COMP_WORDS": f"patchlight {words}",
            "COMP_CWORD": str(len(words.split(" "))),
            "PATCHLIGHT_LAB": str(running.lab),
        }
        result = CliRunner().invoke(
            cli, [], prog_name="patchlight", env=variables
        )
        return [line.partition(",")[2] for line in result.output.splitlines()]

    assert completed("job show compl") == [job_id]
    assert completed("job submit x --hosts a.g0,b.g") == ["a.g0,b.g1"]
    assert "ofc2022" in completed("lab show ofc")
    assert "consolidated" in completed("emulate up x --placement cons")
    assert "consolidated" not in completed("emulate up x --order cons")
    assert completed("ocs connect o1 a.n") == ["a.n0:"]
    assert completed("ocs conn") == ["connect"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell_is_printed(shell: str) -> None:
    variables = {"_PATCHLIGHT_COMPLETE": f"{shell}_source"}
    script = (
        CliRunner()
        .invoke(cli, [], prog_name="patchlight", env=variables)
        .output
    )
    assert f"_PATCHLIGHT_COMPLETE={shell}_complete" in script
