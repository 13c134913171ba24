"""What a container promises the lab: each promise is tried from inside, as a hostile job would."""

import json
import os
import stat
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from patchlight.agents.errors import LaunchError
from patchlight.agents.workers import docker, keeper
from patchlight.agents.workers.backends import BackendOptions, make_runner
from patchlight.agents.workers.contract import ExitInfo, Runner, WorkerLaunch
from tests.support.waiting import eventually
from tests.support.worker_desk import Desk, open_desk

pytestmark = [pytest.mark.root, pytest.mark.docker]

PROBE = """
import ctypes, json, os, socket
libc = ctypes.CDLL(None, use_errno=True)
def tried(what):
    try:
        what()
    except OSError as error:
        return error.strerror
    return "done"
def call(name, *arguments):
    if getattr(libc, name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
lines = [line.split() for line in open("/proc/self/mountinfo")]
print(json.dumps({
    "ids": [os.getresuid(), os.getresgid(), os.getgroups()],
    "caps": [status[each].strip() for each in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")],
    "no_new_privs": status["NoNewPrivs"].strip(), "seccomp": status["Seccomp"].strip(),
    "wrote": [each for each in FOLDERS if tried(lambda: os.mkdir(each + "/x")) == "done"],
    "there": [each for each in PATHS if os.path.exists(each)],
    "devices": sorted(os.listdir("/dev")),
    "processes": len([each for each in os.listdir("/proc") if each.isdigit()]),
    "interfaces": [name for _, name in socket.if_nameindex()],
    "calls": {
        "mount": tried(lambda: call("mount", b"none", b"/tmp", b"tmpfs", 0, None)),
        "unshare": tried(lambda: call("unshare", 0x10000000)),
        "mknod": tried(lambda: os.mknod("/tmp/sda", 0o60600, os.makedev(8, 0))),
        "chroot": tried(lambda: os.chroot("/tmp")),
        "setuid": tried(lambda: os.setuid(0)),
        "hostname": tried(lambda: socket.sethostname("mine")),
        "raw": tried(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW)),
    },
    "hostname": socket.gethostname(),
    "names": {each: socket.gethostbyname(each) for each in NAMES},
}))
"""
FOLDERS = ["/", "/etc", "/root", "/usr", "/var", "/opt/patchlight", "/sys", "/proc/sys", "/data"]
PATHS = ["/var/run/docker.sock", "/run/patchlight", "/run/patchlight-docker", "/var/lib/patchlight"]


@pytest.fixture
def desk() -> Iterator[Desk]:
    with open_desk() as made:
        yield made


@pytest.fixture
def open_folder(tmp_path: Path) -> Path:
    """A folder that everybody may write to, where it is not mounted to be read only."""
    tmp_path.chmod(0o777)
    return tmp_path


@pytest.fixture
def own_users(docker_host: str) -> None:
    """An engine without user namespaces; in them root is somebody else."""
    command = ["docker", "--host", docker_host, "info"]
    if "userns" in subprocess.run(command, check=True, capture_output=True, text=True).stdout:
        pytest.skip("this engine has user namespaces")


@pytest_asyncio.fixture
async def runner(own_users: None) -> AsyncIterator[Runner]:
    options = BackendOptions("test", f"server-{os.getpid()}", worker_user="dynamic")
    made = make_runner("docker", options)
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


def ring(*addresses: str) -> list[dict[str, Any]]:
    return [{"rank": n, "address": each, "port": 29500} for n, each in enumerate(addresses)]


async def test_each_promise_is_kept(runner: Runner, desk: Desk, open_folder: Path) -> None:
    lists = f"FOLDERS, PATHS, NAMES = {FOLDERS}, {PATHS}, ['s1', 's1.nic0', 's2', 's2.nic0']\n"
    launch = desk.launch("python3", "-c", lists + PROBE, ring=ring("10.0.0.1", "10.0.0.2"))
    mount = {"source": str(open_folder), "target": "/data"}
    task = launch.spec.model_dump()["task"] | {"mounts": [mount]}
    spec = type(launch.spec).model_validate({**launch.spec.model_dump(), "task": task, "user": "a"})
    hosts = {"10.0.0.1": ("s1.nic0", "s1"), "10.0.0.2": ("s2.nic0", "s2")}
    ended = await run(runner, replace(launch, spec=spec, hosts=hosts))
    assert ended.exit_code == 0, ended
    found = json.loads(ended.last_lines[-1])
    (uid, *uids), gids, groups = found["ids"]
    assert uid > 0x60000000
    assert {uid, *uids} == {*gids} == {uid}
    assert set(groups) <= {uid}
    assert set(found["caps"]) == {"0000000000000000"}
    assert (found["no_new_privs"], found["seccomp"]) == ("1", "2")
    assert (found["wrote"], found["there"]) == ([], [])
    assert not [each for each in found["devices"] if each.startswith(("sd", "vd", "nvme", "mem"))]
    assert found["processes"] == 2  # its keeper and itself
    assert found["interfaces"] == ["lo"]
    assert "done" not in found["calls"].values(), found["calls"]
    assert found["hostname"] == "s1.nic0"
    assert found["names"] == {
        **{"s1": "10.0.0.1", "s1.nic0": "10.0.0.1"},
        **{"s2": "10.0.0.2", "s2.nic0": "10.0.0.2"},
    }


async def test_checkpoints_are_their_users_and_make_nobody_root(
    runner: Runner, desk: Desk, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    save = "cp /bin/sh $PATCHLIGHT_CHECKPOINT/sh && chmod 4755 $PATCHLIGHT_CHECKPOINT/sh"
    how = {"checkpoint": str(kept), "user": "ann"}
    assert (await run(runner, desk.launch("sh", "-c", save, **how))).exit_code == 0
    made = (kept / "sh").stat()
    assert (made.st_uid, stat.S_IMODE(kept.stat().st_mode)) == (kept.stat().st_uid, 0o700)
    assert made.st_uid > 0x60000000
    again = desk.launch("sh", "-c", "test -u $PATCHLIGHT_CHECKPOINT/sh", **how)
    assert (await run(runner, again)).exit_code == 0
    with pytest.raises(LaunchError, match="cannot write to its checkpoint"):
        await runner.launch(desk.launch("true", checkpoint=str(kept), user="eve"))


@pytest.mark.parametrize(
    ("engine", "uid"),
    [
        ({}, None),
        ({"SecurityOptions": ["name=seccomp,profile=default"]}, None),
        (
            {"SecurityOptions": ["name=userns"], "DockerRootDir": "/var/lib/docker/165536.165536"},
            165536,
        ),
    ],
)
def test_who_root_in_a_container_is(engine: dict[str, Any], uid: int | None) -> None:
    found = docker.mapped_root(engine)
    assert (found and found.uid) == uid
