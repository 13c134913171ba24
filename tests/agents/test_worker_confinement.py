"""What a worker may not do, tried from inside a real one, by somebody's own program.

``docs/security.md`` promises it; the ``confined`` runners keep all of it.
"""

import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from patchlight.agents.errors import LaunchError
from patchlight.agents.gpus import PhysicalGpu
from patchlight.agents.workers import confinement, keeper
from patchlight.agents.workers.limits import user_for
from patchlight.agents.workers.process import ProcessRunner
from patchlight.testbed.linux.processes import process_ids
from patchlight.testbed.linux.sockets import bind_unix
from tests.support.agent_bench import NETWORK, Agent, Bench
from tests.support.waiting import eventually
from tests.support.worker_desk import Desk, open_desk

pytestmark = pytest.mark.root
confined = pytest.mark.parametrize("runner", ["process"])
confined_as_well = pytest.mark.parametrize(
    "runner", ["process", pytest.param("docker", marks=pytest.mark.docker)]
)
MakeBench = Callable[[int], Bench]

# Tries what it is told, and says what it could do.
PROBE = """
import ctypes, json, os, socket, sys, threading
wanted = json.loads(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)

def able(function):
    try:
        function()
    except OSError:
        return False
    return True

def refusal(family):
    try:
        socket.socket(family, socket.SOCK_STREAM).close()
    except OSError as error:
        return error.errno
    return 0

def connect(path):
    socket.socket(socket.AF_UNIX).connect(path)

def call(name, *arguments):
    if getattr(libc, name)(*arguments) == -1:
        raise OSError(ctypes.get_errno(), name)

def trace(pid):
    call("ptrace", 16, pid, 0, 0)
    os.waitpid(pid, 0)
    call("ptrace", 17, pid, 0, 0)

def meet():
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("\\0mine")
    listener.listen()
    connect("\\0mine")

def mark(name, number, value, family=socket.AF_INET):
    socket.socket(family, socket.SOCK_DGRAM).setsockopt(name, number, value)

child = os.fork()
if not child:
    os.execvp("sleep", ["sleep", "60"])
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status"))
thread = threading.Thread(target=print)
thread.start()
thread.join()
print(json.dumps({
    "uid": os.getuid(),
    "groups": os.getgroups(),
    **{name: status[name].strip() for name in ("CapPrm", "CapEff", "CapBnd", "NoNewPrivs")},
    "read": [each for each in wanted["read"] if able(lambda: open(each).read(1))],
    "list": [each for each in wanted["list"] if able(lambda: os.listdir(each))],
    "write": [each for each in wanted["write"] if able(lambda: open(each, "r+"))],
    # Files without a name: a worker that can is not to leave any.
    "make": [each for each in wanted["make"] if able(lambda: os.open(each, os.O_TMPFILE | 1))],
    "connect": [each for each in wanted["connect"] if able(lambda: connect(each))],
    "signal": [each for each in wanted["signal"] if able(lambda: os.kill(each, 0))],
    "processes": sorted(int(each) for each in os.listdir("/proc") if each.isdigit()),
    "shared memory": able(lambda: open("/dev/shm/mine", "w")),
    "devices": sorted(os.listdir("/dev")),
    "descriptors": sorted(map(int, os.listdir("/proc/self/fd")))[:-1],
    "own": able(lambda: open("mine", "w")) and able(lambda: open("/tmp/mine", "w")),
    "user namespace": able(lambda: call("unshare", 0x10000000)),
    "mount": able(lambda: call("mount", b"none", b"/tmp", b"tmpfs", 0, None)),
    "keys": able(lambda: call("syscall", 250, 0, -3, 1)),
    "machine sockets": able(lambda: socket.socket(40, socket.SOCK_STREAM)),
    "other sockets": [each for each in (17, 21, 31, 38, 39, 42, 43, 45, 70) if refusal(each) != 1],
    "other networks": sorted(name for _, name in socket.if_nameindex()),
    "traced": [each for each in (child, 1) if able(lambda: trace(each))] == [child],
    "own abstract name": able(meet),
    "others' abstract name": able(lambda: connect(wanted["abstract"])),
    "priorities": [each for each in (6, 7) if able(lambda: mark(1, socket.SO_PRIORITY, each))],
    "DSCP": able(lambda: mark(0, socket.IP_TOS, 46 << 2))
    and able(lambda: mark(41, socket.IPV6_TCLASS, 46 << 2, socket.AF_INET6)),
    "names": [socket.gethostname(), socket.gethostbyname(socket.gethostname())],
}))
"""
EVIL = """#!/bin/sh
{ id -u; grep CapEff /proc/self/status; } >>%(seen)s
exec /bin/%(name)s "$@"
"""
PRELOADED = """
#include <stdio.h>
#include <string.h>
__attribute__((constructor)) static void look(void) {
    char line[256];
    FILE *status = fopen("/proc/self/status", "r"), *seen = fopen("%s", "a");
    while (fgets(line, sizeof line, status))
        if (!strncmp(line, "CapEff", 6)) {
            fputs(line, stderr);
            if (seen) fputs(line, seen);
        }
    fclose(status);
    if (seen) fclose(seen);
}
"""
# Gloo's threads can abort a process that ends as usual.
TOGETHER = """
import os, torch, torch.distributed as together
together.init_process_group("gloo")
one = torch.ones(1)
together.all_reduce(one)
print("rank", together.get_rank(), "of", int(one), flush=True)
os._exit(0)
"""

ELSEWHERE = """
import asyncio, sys
from tests.agents.test_worker_confinement import ProcessRunner, open_desk, outcome
with open_desk() as desk:
    look = outcome(ProcessRunner(), desk, sys.executable, "-c", "import sys; print(sys.prefix)")
    print(asyncio.run(look))
"""


def run(agent: Agent, spec: dict[str, Any]) -> list[str]:
    """Run a worker to its good end; what it wrote."""
    worker = spec["id"]
    answer = agent.client.post("/workers", json=spec)
    assert answer.status_code == 201, answer.text
    assert agent.client.post(f"/workers/{worker}/start").status_code == 200
    agent.until_state(worker, "done")
    text = agent.client.get(f"/workers/{worker}/log").json()["text"]
    agent.client.delete(f"/workers/{worker}")
    return str(text).splitlines()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder of the server that everybody may read, and no worker loses sight of."""
    folder = Path(tempfile.mkdtemp(prefix="pl-test-", dir="/var/cache"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def desk() -> Iterator[Desk]:
    with open_desk() as made:
        yield made


@confined_as_well
def test_nothing_of_the_server_and_of_others_is_in_reach(
    make_bench: MakeBench, open_folder: Path, runner: str
) -> None:
    bench = make_bench(2)
    agent, other = bench.start_agents(2, runner)
    secret = bench.directory / "state-server1/controller.db"
    secret.write_text("secret")
    run_folder = Path(f"/run/patchlight-test-{os.getpid()}")
    # Of a folder with the checkout in it, a worker sees the way there.
    root = [] if sys.executable.startswith("/root/") else ["/root"]
    with ExitStack() as stack:
        run_folder.mkdir(mode=0o755)
        stack.callback(shutil.rmtree, run_folder)
        names = ("speaker.sock", "workers.sock", "api.sock")
        for name in names:
            listener = stack.enter_context(
                bind_unix(run_folder / name, "test", mode=0o666)
            )
            listener.listen()
        wanted: dict[str, Any] = {
            "read": [
                "/etc/shadow",
                str(secret),
                f"/proc/{os.getpid()}/environ",
            ],
            "list": [
                *root,
                str(agent.socket.parent / "state-server2"),
                "/var/lib/patchlight/x",
            ],
            "write": [
                "/proc/sys/kernel/core_pattern",
                "/etc/hostname",
                str(secret),
            ],
            "make": ["/etc/cron.d", "/root", "/usr/bin", str(open_folder)],
            "connect": [
                *(str(run_folder / name) for name in names),
                *(str(each.socket) for each in (agent, other)),
                *(str(bench.gpu_socket(each.server)) for each in (other,)),
            ],
            # 1, which the tests may have been started by in a container, is a worker's own.
            "signal": sorted(
                {os.getpid(), os.getppid(), max(process_ids())} - {1}
            ),
        }
        wanted["abstract"] = f"\0patchlight-test-{os.getpid()}"
        abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
        abstract.bind(wanted["abstract"])
        abstract.listen()
        python = sys.executable if runner == "process" else "python3"
        spec = bench.command(0, 1, python, "-c", PROBE, json.dumps(wanted))
        lines = run(agent, {**spec, "user": "eva"})
    found = json.loads(lines[-1])
    for tried in wanted.keys() - {"abstract"}:
        assert found[tried] == [], tried
    assert found["uid"] == user_for(bench.name, "eva").uid
    assert found["groups"] in ([], [found["uid"]])
    assert {found[each] for each in ("CapPrm", "CapEff", "CapBnd")} == {
        16 * "0"
    }
    assert found["NoNewPrivs"] == "1"
    assert len(found["processes"]) <= 3
    assert found["processes"][0] == 1
    assert found["own"]
    assert found["shared memory"]
    assert found["descriptors"] == [0, 1, 2]
    for refused in ("user namespace", "mount", "keys", "machine sockets"):
        # Docker's own profile refuses the last from version 23 on.
        assert not found[refused] or (runner, refused) == (
            "docker",
            "machine sockets",
        ), refused
    assert runner == "docker" or found["other sockets"] == []
    # With Docker's own profile a worker can also stop its keeper, and thus keep its job running.
    assert runner == "docker" or found["traced"]
    assert found["own abstract name"]
    assert not found["others' abstract name"]
    # A worker chooses the class of its packets: see "What a job can reach".
    assert (found["priorities"], found["DSCP"]) == ([6], True)
    assert found["other networks"] == ["lo", "nic0"]
    devices = (
        "core fd full mqueue null ptmx pts random "
        "shm stderr stdin stdout tty urandom zero console"
    )
    assert set(found["devices"]) <= set(devices.split())
    assert found["names"] == ["server1.gpu0", f"{NETWORK}.11"]
    assert not Path("/tmp/mine").exists()


@confined
@pytest.mark.parametrize("how", ["PATH", "LD_PRELOAD"])
def test_nothing_of_a_job_runs_before_rights_are_dropped(
    make_bench: MakeBench, open_folder: Path, runner: str, how: str
) -> None:
    seen = open_folder / "seen"
    seen.touch(mode=0o666)
    if how == "PATH":
        for name in ("sh", "prlimit", "setpriv", "bwrap", "env"):
            (open_folder / name).write_text(
                EVIL % {"seen": seen, "name": name}
            )
            (open_folder / name).chmod(0o755)
        environment = {"PATH": f"{open_folder}:/usr/bin:/bin"}
    else:
        library = open_folder / "p.so"
        compiler = [
            "gcc",
            "-shared",
            "-fPIC",
            "-x",
            "c",
            "-o",
            str(library),
            "-",
        ]
        subprocess.run(compiler, input=PRELOADED % seen, text=True, check=True)
        environment = {"LD_PRELOAD": str(library)}
    bench = make_bench(1)
    agent = bench.agent("server1", runner).start()
    spec = bench.command(0, 1, "id", "-u", environment=environment)
    *said, uid = run(agent, {**spec, "user": "eva"})
    assert uid == str(user_for(bench.name, "eva").uid)
    assert seen.read_text() == ""
    assert said == (["CapEff:\t" + 16 * "0"] if how == "LD_PRELOAD" else [])


async def outcome(
    runner: ProcessRunner, desk: Desk, *command: str, **spec: Any
) -> str:
    """What a worker of a runner said."""
    await runner.open()
    launch = desk.launch(*command, **spec)
    worker = await runner.launch(launch)
    await eventually(lambda: keeper.open_gate(launch.directory))
    ended = await worker.ended()
    await worker.dispose()
    return "\n".join(ended.last_lines)


async def test_a_worker_has_the_device_node_of_its_own_gpu_and_of_no_other(
    desk: Desk,
) -> None:
    await (runner := ProcessRunner()).open()
    launch = replace(desk.launch("ls", "/dev"), gpu=PhysicalGpu("GPU-1", 98))
    # More than a server has.
    nodes = [Path(f"/dev/nvidia{number}") for number in (98, 99)]
    with ExitStack() as stack:
        for node in nodes:
            os.mknod(node, stat.S_IFCHR | 0o666, os.makedev(1, 3))
            stack.callback(node.unlink)
        worker = await runner.launch(launch)
        await eventually(partial(keeper.open_gate, launch.directory))
        await worker.ended()
        await worker.dispose()
    seen = (launch.directory / keeper.OUTPUT).read_text().split()
    assert "nvidia98" in seen
    assert "nvidia99" not in seen
    with pytest.raises(LaunchError, match="device node of GPU GPU-1"):
        await runner.launch(
            replace(desk.launch("true"), gpu=PhysicalGpu("GPU-1"))
        )


async def test_a_mount_of_others_that_ends_meanwhile_stops_no_worker(
    desk: Desk, open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = confinement._tool
    failing = open_folder / "bwrap"
    once = open_folder / "once"
    once.touch()
    why = "bwrap: Unable to apply mount flags: remount /newroot/var/x: Invalid argument"
    fails = f'[ "$1" = --args ] && rm {once} 2>&- && echo "{why}" && exit 1'
    failing.write_text(f'#!/bin/sh\n{fails}\nexec {tool("bwrap")} "$@"\n')
    failing.chmod(0o755)
    tools = {"bwrap": str(failing)}
    monkeypatch.setattr(
        confinement, "_tool", lambda name: tools.get(name) or tool(name)
    )
    assert await outcome(ProcessRunner(), desk, "echo", "runs") == "runs"


async def test_what_another_user_saved_is_closed(
    desk: Desk, open_folder: Path
) -> None:
    runner = ProcessRunner(lab="lab")
    saved = open_folder / "eva"
    save = ("sh", "-c", 'echo weights >"$PATCHLIGHT_CHECKPOINT/saved"')
    again = ("cat", f"{saved}/saved")
    assert (
        await outcome(runner, desk, *save, user="eva", checkpoint=str(saved))
        == ""
    )
    assert saved.stat().st_mode & 0o777 == 0o700
    assert (
        await outcome(runner, desk, *again, user="eva", checkpoint=str(saved))
        == "weights"
    )
    assert "Permission denied" in await outcome(
        runner, desk, *again, user="bob"
    )
    uid = user_for("lab", "bob").uid
    with pytest.raises(
        LaunchError, match=f"uid-{uid}, which cannot write"
    ) as raised:
        await outcome(runner, desk, "true", user="bob", checkpoint=str(saved))
    assert f"install -d -m 700 -o {uid}" in str(raised.value.hint)
    with pytest.raises(LaunchError, match="which belongs to workers"):
        await outcome(
            runner, desk, "true", user="eva", checkpoint=str(saved / "link")
        )


async def test_no_checkpoint_is_made_behind_a_link_that_came_after_the_path_was_looked_at(
    desk: Desk, open_folder: Path
) -> None:
    elsewhere = open_folder / "elsewhere"
    elsewhere.mkdir()
    (open_folder / "link").symlink_to(elsewhere)
    (open_folder / "saved").symlink_to(elsewhere / "new")
    for saved in (open_folder / "link/new", open_folder / "saved"):
        with pytest.raises(LaunchError, match="making the checkpoint folder"):
            await outcome(ProcessRunner(), desk, "true", checkpoint=str(saved))
    assert list(elsewhere.iterdir()) == []


async def test_what_lies_in_a_closed_folder_is_shown_where_it_is_needed(
    desk: Desk, open_folder: Path
) -> None:
    closed = open_folder / "closed"
    (closed / "deep").mkdir(mode=0o700, parents=True)
    closed.chmod(0o700)
    saved = closed / "deep" / "saved"
    look = ("sh", "-c", f"touch {saved}/mine && ls {closed} {closed}/deep")
    shown = await outcome(ProcessRunner(), desk, *look, checkpoint=str(saved))
    assert shown.splitlines() == [
        f"{closed}:",
        "deep",
        "",
        f"{closed}/deep:",
        "saved",
    ]


def test_python_may_be_in_a_closed_folder(open_folder: Path) -> None:
    """As where the virtual environment is in the home folder of root."""
    open_folder.chmod(0o700)
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", open_folder / "venv"],
        check=True,
    )
    path = os.pathsep.join(
        [str(Path(__file__).parents[2]), *filter(None, sys.path)]
    )
    told = subprocess.run(
        [open_folder / "venv/bin/python", "-c", ELSEWHERE],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.stdout.strip() == str(open_folder / "venv"), told.stderr


@confined
def test_torchrun_finds_its_peers_by_name(
    make_bench: MakeBench, runner: str
) -> None:
    pytest.importorskip("torch")
    bench = make_bench(2)
    agents = bench.start_agents(2, runner)
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nnodes=2",
        "--nproc-per-node=1",
    ]
    torchrun += [
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=server1:29400",
        "--rdzv-id=job",
    ]
    for rank, agent in enumerate(agents):
        spec = bench.command(
            rank, 2, *torchrun, "--no-python", sys.executable, "-c", TOGETHER
        )
        answer = agent.client.post(
            "/workers", json={**spec, "memory_bytes": 2**31}
        )
        assert answer.status_code == 201, answer.text
    for rank, agent in enumerate(agents):
        assert (
            agent.client.post(f"/workers/job-{rank}/start").status_code == 200
        )
    said: list[str] = []
    for rank, agent in enumerate(agents):
        agent.until_state(f"job-{rank}", "done")
        said += (
            agent.client.get(f"/workers/job-{rank}/log")
            .json()["text"]
            .splitlines()
        )
    # The last to leave warns that it could not tell the first.
    ranks = sorted(line for line in said if line.startswith("rank "))
    assert ranks == ["rank 0 of 2", "rank 1 of 2"]
