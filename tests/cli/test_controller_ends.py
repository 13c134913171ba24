"""``patchlight controller drain``, ``stop`` and ``resume``: what becomes of jobs meanwhile."""

import json
from pathlib import Path

from click.testing import CliRunner

from patchlight.cli.main import cli
from patchlight.testbed.jobs import JobSpec
from tests.support.controller_process import (
    ControllerProcess,
    controller_process,
)
from tests.support.waiting import PATIENCE_S, wait_until


def command(controller: ControllerProcess, *words: str) -> str:
    result = CliRunner().invoke(
        cli, ["controller", *words, "--lab", str(controller.lab)]
    )
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def test_queued_jobs_outlive_a_drained_controller_that_is_stopped(
    tmp_path: Path,
) -> None:
    with controller_process(tmp_path) as controller:
        assert "none ran" in command(controller, "drain", "--why", "upgrade")
        job = controller.client.submit(
            [JobSpec("waits", 1, 400, {"M": 0.1}, workers=1)]
        )[0]
        assert json.loads(command(controller, "stop", "--json")) == {
            "jobs": {"queued": 1}
        }
        assert controller.process.wait(PATIENCE_S) == 0
        controller.start()
        assert (
            "drained: no job starts"
            in CliRunner()
            .invoke(cli, ["status", "--lab", str(controller.lab)])
            .output
        )
        assert controller.client.job(job.id).state == "queued"
        assert "can start again" in command(controller, "drain", "--end")
        # No agent is there, so it ends as soon as it is begun.
        wait_until(lambda: controller.client.job(job.id).finished_at)
        assert "these jobs continue: none" in command(controller, "stop")
        assert controller.process.wait(PATIENCE_S) == 0
