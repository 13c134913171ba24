"""A Docker engine that is started again under running workers: one of the test's own, for that."""

import asyncio
import contextlib
import io
import os
import shutil
import subprocess
import tarfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
import pytest_asyncio

from patchlight.agents.run import make_runner
from patchlight.agents.workers import keeper
from patchlight.agents.workers.contract import (
    BackendOptions,
    Runner,
    WorkerLaunch,
)
from patchlight.testbed.linux import docker_engine, namespaces
from patchlight.testbed.linux.processes import Limits
from patchlight.testbed.wire.worker_api import WorkerSpec
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.root, pytest.mark.docker]

IMAGE = "patchlight-test-shell:latest"
OFF = (
    "--iptables=false",
    "--ip6tables=false",
    "--ip-forward=false",
    "--ip-masq=false",
)


class Engine:
    """A Docker engine in a folder of its own, with an image that has a shell."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.url = f"unix://{folder / 'docker.sock'}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *, live_restore: bool) -> None:
        folder = self._folder
        command = [
            "dockerd",
            "--host",
            self.url,
            "--data-root",
            str(folder / "data"),
        ]
        command += [
            "--exec-root",
            str(folder / "exec"),
            "--pidfile",
            str(folder / "pid"),
        ]
        command += [
            "--group",
            "root",
            "--bridge=none",
            "--storage-driver=vfs",
            *OFF,
        ]
        command += ["--live-restore"] if live_restore else []
        with (folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        wait_until(lambda: docker_engine.answers(self.url), "the engine")

    def stop(self) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(PATIENCE_S)

    def give_shell(self) -> None:
        """Make the image: the machine's ``sh`` and ``sleep``, with the libraries that they need."""
        programs = [
            os.path.realpath(str(shutil.which(name)))
            for name in ("sh", "sleep")
        ]
        files = {
            f"bin/{name}": path
            for name, path in zip(("sh", "sleep"), programs, strict=True)
        }
        for path in programs:
            needs = subprocess.run(
                ["ldd", path], capture_output=True, text=True, check=True
            )
            needed = (
                word for word in needs.stdout.split() if word.startswith("/")
            )
            files |= {
                word.lstrip("/"): os.path.realpath(word) for word in needed
            }
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            # A folder that is not named can be entered by nobody without rights.
            for folder in sorted(
                {str(up) for name in files for up in Path(name).parents}
                - {"."}
            ):
                entry = tarfile.TarInfo(folder)
                entry.type = tarfile.DIRTYPE
                entry.mode = 0o755
                tar.addfile(entry)
            for name, path in files.items():
                tar.add(path, name)
        with contextlib.closing(docker.DockerClient(self.url)) as client:
            client.api.import_image_from_data(
                packed.getvalue(), *IMAGE.split(":")
            )


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    folder = Path(f"/tmp/pl-engine-{os.getpid()}")
    folder.mkdir(mode=0o700)
    made = Engine(folder)
    try:
        made.start(live_restore=True)
        made.give_shell()
        monkeypatch.setenv("DOCKER_HOST", made.url)
        yield made
    finally:
        made.stop()
        for line in reversed(
            Path("/proc/self/mounts").read_text().splitlines()
        ):
            if line.split()[1].startswith(f"{folder}/"):
                subprocess.run(["umount", "-l", line.split()[1]], check=True)
        shutil.rmtree(folder)


@pytest_asyncio.fixture
async def runner(engine: Engine) -> AsyncIterator[Runner]:
    made = make_runner("docker", BackendOptions("test", "engine", image=IMAGE))
    await made.open()
    yield made
    await made.close()


async def test_workers_go_on_under_an_engine_that_lets_them_and_end_with_one_that_does_not(
    engine: Engine, runner: Runner, tmp_path: Path
) -> None:
    name = f"pl.test-{os.getpid()}.engine.w-0"
    given: dict[str, Any] = {
        **{"id": "w-0", "job": "job", "rank": 0, "nic": "nic0"},
        "ring": [{"rank": 0, "address": "10.0.0.1", "port": 29500}],
        "task": {
            "trainer": "command",
            "command": ["sh", "-c", "while :; do echo x; sleep 0.02; done"],
        },
    }
    launch = WorkerLaunch(
        WorkerSpec.model_validate(given),
        tmp_path,
        name,
        "nic0",
        Limits(2**26, 64),
    )
    said = tmp_path / keeper.OUTPUT
    worker = await runner.launch(launch)
    try:
        ended = asyncio.create_task(worker.ended())
        wait_until(lambda: keeper.open_gate(tmp_path), "its start")
        await asyncio.to_thread(engine.stop)
        before = said.stat().st_size
        await asyncio.to_thread(
            wait_until, lambda: said.stat().st_size > before, "its output"
        )
        await asyncio.to_thread(engine.start, live_restore=True)
        await worker.freeze()
        await worker.thaw()
        assert not ended.done()
        await asyncio.to_thread(engine.stop)
        await asyncio.to_thread(engine.start, live_restore=False)
        outcome = await asyncio.wait_for(ended, PATIENCE_S)
        assert outcome.exit_code != 0
        assert "live-restore" in outcome.last_lines[-1]
        await worker.dispose()
    finally:
        namespaces.end_all(name)
        namespaces.delete(name)
