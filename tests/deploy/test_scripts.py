"""The scripts that give workers an engine and an image."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.waiting import PATIENCE_S

DEPLOY = Path(__file__).parents[2] / "deploy"


def run(
    script: str, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(DEPLOY / script), *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


@pytest.mark.docker
def test_an_engine_that_answers_is_the_one_to_use(docker_host: str) -> None:
    for action in ("status", "start"):
        done = run("docker-engine.sh", action, DOCKER_HOST=docker_host)
        assert (done.returncode, done.stdout.strip()) == (0, docker_host), (
            done.stderr
        )


@pytest.mark.docker
def test_an_image_that_is_there_is_not_made_again(docker_host: str) -> None:
    for image in ((), ("patchlight-worker",), ("patchlight-worker:latest",)):
        done = run("worker-image.sh", *image, DOCKER_HOST=docker_host)
        assert (done.returncode, done.stderr) == (0, "")


def test_wrong_arguments_are_said() -> None:
    assert "usage: " in run("docker-engine.sh", "dance").stderr
    wrong = run("worker-image.sh", "--dance")
    assert wrong.returncode == 1
    assert "unknown option --dance" in wrong.stderr


def test_no_engine_is_said() -> None:
    done = run("worker-image.sh", DOCKER_HOST="unix:///nowhere/docker.sock")
    assert done.returncode == 1
    assert done.stderr.startswith("worker-image: no Docker engine answers")
    assert "Traceback" not in done.stderr
