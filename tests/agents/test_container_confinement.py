"""Whom containers run as: what they save is their user's alone, and makes nobody root."""

import os
import stat
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from patchlight.agents.errors import LaunchError
from patchlight.agents.run import make_runner
from patchlight.agents.workers import docker, keeper
from patchlight.agents.workers.contract import (
    BackendOptions,
    ExitInfo,
    Runner,
    WorkerLaunch,
)
from patchlight.agents.workers.limits import user_for
from tests.support.waiting import eventually
from tests.support.worker_desk import Desk, open_desk


@pytest.fixture
def desk() -> Iterator[Desk]:
    with open_desk() as made:
        yield made


@pytest.fixture
def own_users(docker_host: str) -> None:
    """An engine without user namespaces; in them root is somebody else."""
    command = ["docker", "--host", docker_host, "info"]
    if (
        "userns"
        in subprocess.run(
            command, check=True, capture_output=True, text=True
        ).stdout
    ):
        pytest.skip("this engine has user namespaces")


@pytest_asyncio.fixture
async def runner(own_users: None) -> AsyncIterator[Runner]:
    made = make_runner(
        "docker", BackendOptions("test", f"server-{os.getpid()}")
    )
    await made.open()
    yield made
    await made.close()


async def run(runner: Runner, launch: WorkerLaunch) -> ExitInfo:
    worker = await runner.launch(launch)
    try:
        await eventually(lambda: keeper.open_gate(launch.directory))
        return await worker.ended()
    finally:
        await worker.dispose()


@pytest.mark.root
@pytest.mark.docker
async def test_checkpoints_are_their_users_and_make_nobody_root(
    runner: Runner, desk: Desk, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    save = "cp /bin/sh $PATCHLIGHT_CHECKPOINT/sh && chmod 4755 $PATCHLIGHT_CHECKPOINT/sh"
    how = {"checkpoint": str(kept), "user": "ann"}
    assert (
        await run(runner, desk.launch("sh", "-c", save, **how))
    ).exit_code == 0
    ann = user_for("test", "ann").uid
    assert (kept / "sh").stat().st_uid == kept.stat().st_uid == ann
    assert stat.S_IMODE(kept.stat().st_mode) == 0o700
    again = desk.launch("sh", "-c", "test -u $PATCHLIGHT_CHECKPOINT/sh", **how)
    assert (await run(runner, again)).exit_code == 0
    with pytest.raises(LaunchError, match="cannot write to its checkpoint"):
        await runner.launch(
            desk.launch("true", checkpoint=str(kept), user="eve")
        )


@pytest.mark.parametrize(
    ("engine", "uid"),
    [
        ({}, None),
        ({"SecurityOptions": ["name=seccomp,profile=default"]}, None),
        (
            {
                "SecurityOptions": ["name=userns"],
                "DockerRootDir": "/var/lib/docker/1000.1001",
            },
            1000,
        ),
    ],
)
def test_who_root_in_a_container_is(
    engine: dict[str, Any], uid: int | None
) -> None:
    found = docker.mapped_root(engine)
    assert (found and found.uid) == uid
    with pytest.raises(LaunchError, match="does not report the user"):
        docker.mapped_root(
            {
                "SecurityOptions": ["name=userns"],
                "DockerRootDir": "/srv/docker",
            }
        )
