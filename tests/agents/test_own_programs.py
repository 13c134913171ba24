"""Programs that are not ours as workers: what they find, when they run, how they are held."""

import io
import json
import os
import re
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from patchlight.client.workdir import packed
from patchlight.testbed.wire.worker_api import WorkdirPart
from tests.support.agent_bench import NETWORK, ROOT, Agent, Bench, ip
from tests.support.waiting import wait_until
from tests.support.worker_jobs import everything_is_back, start_all, until_done

pytestmark = pytest.mark.root

MakeBench = Callable[[int], Bench]

# Tells what it finds, and reports two iterations; between them is what is no report.
TELL = """
import json, os, sys
print(json.dumps(dict(os.environ)), flush=True)
print(os.getcwd(), sys.argv[1:])
with open(os.environ["PATCHLIGHT_REPORTS"], "w") as reports:
    reports.write('{"index": 0, "finished_at": 1.5}\\nnot JSON\\n{"index": 1, "finished_at": 2}\\n')
sys.exit(int(sys.argv[1]))
"""

SEND = """
import socket
with socket.create_connection(("ADDRESS", 5001)) as peer:
    for _ in range(COUNT):
        peer.sendall(bytes(10_000))
    peer.shutdown(socket.SHUT_WR)
    assert peer.recv(1) == b""
"""
RECEIVE = """
import socket
listener = socket.create_server(("", 5001))
print("listening", flush=True)
peer, _ = listener.accept()
received = 0
while data := peer.recv(1 << 16):
    received += len(data)
print(received)
"""


def python(runner: str) -> str:
    return sys.executable if runner == "process" else "python3"


def tell(agent: Agent, what: str, **body: Any) -> dict[str, Any]:
    answer = agent.client.post(f"/workers/job-0/{what}", json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def log(agent: Agent) -> str:
    return str(agent.client.get("/workers/job-0/log").json()["text"])


def test_a_program_finds_its_peers_and_begins_when_it_is_told(
    make_bench: MakeBench, runner: str
) -> None:
    bench = make_bench(1)
    agent = bench.agent("server1", runner).start()
    spec = bench.command(
        0,
        2,
        python(runner),
        "-c",
        TELL,
        "3",
        environment={"MINE": "a b", "PYTHONPATH": "/mine"},
    )
    assert agent.client.post("/workers", json=spec).status_code == 201
    assert agent.worker("job-0")["state"] == "ready"
    assert log(agent) == ""
    tell(agent, "start")
    tell(agent, "start")
    ended = agent.until_state("job-0", "failed")
    assert (ended["exit_code"], ended["iterations_done"]) == (3, 2)
    assert ended["message"] == "the worker ended with exit code 3"
    written = log(agent)
    found, where = written.splitlines()
    assert ended["last_lines"] == [found, where]
    environment = json.loads(found)
    expected = {
        **{
            "RANK": "0",
            "WORLD_SIZE": "2",
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
        },
        **{
            "GROUP_RANK": "0",
            "MASTER_ADDR": f"{NETWORK}.11",
            "MASTER_PORT": "29500",
        },
        **{"NCCL_SOCKET_IFNAME": "=nic0", "GLOO_SOCKET_IFNAME": "nic0"},
        **{"PATCHLIGHT_JOB": "job", "PATCHLIGHT_RANK": "0", "MINE": "a b"},
        **{
            "PATCHLIGHT_GPU": "gpu0",
            "PATCHLIGHT_PEERS": f"{NETWORK}.11,{NETWORK}.12",
        },
    }
    assert expected.items() <= environment.items()
    assert environment["PYTHONPATH"].startswith("/mine:")
    assert where.endswith("['3']")
    reports = agent.client.get("/workers/job-0/reports").json()["reports"]
    assert [report["index"] for report in reports] == [0, 1]
    part = agent.client.get("/workers/job-0/log?after=2&limit=4").json()
    assert (part["text"], part["next"]) == (written[2:6], 6)
    assert everything_is_back(agent, "job-0")


NONSENSE = [
    *(
        f"open('state.json', 'w').write({state!r})"
        for state in (
            '{"state": "running", "iterations_done": 1e999, "message": ""}',
            '{"state": "running", "iterations_done": 1, "message": "", "starts": 1e999}',
            '{"state": "running", "iterations_done": 9007199254740993, "message": ""}',
            '{"state": "running", "iterations_done": 1, "message": "\\ud800"}',
        )
    ),
    "open('state.json', 'w').write('[' * 60000)",
    "open('reports.jsonl', 'w').truncate(2**42)",
    "open('reports.jsonl', 'w').write('{\"index\": 0, \"finished_at\": 1}\\n' * 10**6)",
    "import os; [(os.mkdir('d'), os.chdir('d')) for _ in range(1500)]",
]
REPORT = """
with open("reports.jsonl", "w") as file:
    file.writelines('{"index": %d, "finished_at": 1}\\n' % each for each in range(25_000))
"""


def test_an_agent_outlasts_whatever_a_program_says_of_itself(
    make_bench: MakeBench,
) -> None:
    bench = make_bench(1)
    agent = bench.agent("server1").start()
    for write in NONSENSE:
        code = f"import sys; {write}; sys.exit(3)"
        spec = bench.command(0, 1, sys.executable, "-c", code)
        assert agent.client.post("/workers", json=spec).status_code == 201
        tell(agent, "start")
        assert agent.until_state("job-0", "failed")["exit_code"] == 3, write
        began = time.monotonic()
        assert agent.client.get("/status").status_code == 200
        assert (
            len(agent.client.get("/workers/job-0/reports").json()["reports"])
            <= 10_000
        )
        assert time.monotonic() - began < 20
        assert agent.client.delete("/workers/job-0").status_code == 200
        assert not list((bench.directory / "state-server1/workers").iterdir())


@pytest.mark.parametrize(
    "put", ["mkfifo exit", "mkdir exit", "ln -s /dev/zero exit", "true"]
)
def test_a_program_that_replaces_its_exit_code_has_failed_at_once(
    make_bench: MakeBench, put: str
) -> None:
    agent = make_bench(1).agent("server1").start()
    spec = agent.bench.command(0, 1, "sh", "-c", f"rm exit; {put}; exit 0")
    assert agent.client.post("/workers", json=spec).status_code == 201
    tell(agent, "start")
    failed = agent.until_state("job-0", "failed")
    assert "its exit code cannot be read: " in failed["message"]
    assert everything_is_back(agent, "job-0")


@pytest.mark.parametrize(
    "reply", ["'[' * 60_000", '\'{"ok": true, "iteration": 1e999}\'']
)
def test_a_program_that_answers_nonsense_has_not_answered(
    make_bench: MakeBench, reply: str
) -> None:
    agent = make_bench(1).agent("server1").start()
    code = (
        "import socket; s = socket.socket(socket.AF_UNIX); s.bind('control.sock'); s.listen()\n"
        f"while True: c, _ = s.accept(); c.recv(999); c.sendall(({reply}).encode() + b'\\n')"
    )
    spec = agent.bench.command(
        0, 1, sys.executable, "-c", code, hold="protocol"
    )
    assert agent.client.post("/workers", json=spec).status_code == 201
    tell(agent, "start")
    control = (
        agent.bench.directory / "state-server1/workers/job-0/control.sock"
    )
    wait_until(control.exists, "the program's socket")
    answer = agent.client.post("/workers/job-0/hold", json={"iteration": 1})
    assert answer.status_code == 500
    assert "sending hold to the worker" in answer.json()["error"], answer.text


def test_each_report_is_told_once_in_as_many_calls_as_that_takes(
    make_bench: MakeBench,
) -> None:
    bench = make_bench(1)
    agent = bench.agent("server1").start()
    agent.client.post(
        "/workers", json=bench.command(0, 1, sys.executable, "-c", REPORT)
    )
    tell(agent, "start")
    agent.until_state("job-0", "done")
    for _ in range(2):  # another controller asks from the first one on
        told = list[int]()
        while new := agent.client.get(
            f"/workers/job-0/reports?after={len(told)}"
        ).json()["reports"]:
            told += [report["index"] for report in new]
        assert told == list(range(25_000))


def test_what_a_program_prints_as_it_is_told_to_end_is_there_afterwards(
    make_bench: MakeBench, runner: str
) -> None:
    bench = make_bench(1)
    agent = bench.agent("server1", runner).start()
    program = "trap 'echo saved; exit 0' TERM; echo at work; while :; do sleep 0.05; done"
    spec = bench.command(0, 1, "sh", "-c", program)
    assert agent.client.post("/workers", json=spec).status_code == 201
    tell(agent, "start")
    wait_until(lambda: log(agent) == "at work\n", "it to work")
    tell(agent, "end")
    assert log(agent).endswith("saved\n")
    assert everything_is_back(agent, "job-0")
    agent.kill()
    agent.start()
    tell(agent, "end")
    assert log(agent).endswith("saved\n")
    assert agent.client.delete("/workers/job-0").status_code == 200
    assert agent.client.post("/workers/job-0/end").status_code == 404


@contextmanager
def receiver(bench: Bench) -> Iterator[subprocess.Popen[str]]:
    """Takes a connection in the fabric, and prints how many bytes came over it."""
    space = ["ip", "netns", "exec", bench.namespace("fabric")]
    with subprocess.Popen(
        [*space, sys.executable, "-c", RECEIVE],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "listening\n"
            yield process
        finally:
            process.kill()


def frames_sent(bench: Bench) -> int:
    """How many frames the fabric got from server1's NIC."""
    (port,) = json.loads(
        ip(
            "-n",
            bench.namespace("fabric"),
            "-s",
            "-j",
            "link",
            "show",
            "server1-1",
        )
    )
    return int(port["stats64"]["rx"]["packets"])


def frames_sent_in_all(bench: Bench) -> int:
    """The same once that stays: what a program had written the kernel still sends."""
    seen: dict[int, float] = {}

    def stays() -> bool:
        return (
            time.monotonic()
            - seen.setdefault(frames_sent(bench), time.monotonic())
            > 0.3
        )

    wait_until(stays, "the kernel to have sent all")
    return max(seen)


def test_a_program_that_knows_no_protocol_is_frozen(
    make_bench: MakeBench, runner: str
) -> None:
    bench = make_bench(1)
    agent = bench.agent("server1", runner).start()
    count = 2000  # four seconds: the hold is to come before the end
    program = SEND.replace("ADDRESS", f"{NETWORK}.1").replace(
        "COUNT", str(count)
    )
    with receiver(bench) as receiving:
        spec = bench.command(0, 1, python(runner), "-c", program)
        assert agent.client.post("/workers", json=spec).status_code == 201
        tell(agent, "start")
        begun = frames_sent(bench)
        wait_until(lambda: frames_sent(bench) > begun + 20, "it to send")
        tell(agent, "hold", iteration=1)
        assert (held := agent.worker("job-0"))["state"] == "held", held
        assert held["holds_by"] == "freeze"
        before = frames_sent_in_all(bench)
        # The next agent finds it so, and it has sent nothing meanwhile.
        agent.kill()
        agent.start()
        assert agent.worker("job-0")["state"] == "held"
        # The kernel may repeat a frame; the program would send seven at a time.
        assert frames_sent(bench) < before + 7
        refused = agent.client.post(
            "/workers/job-0/stop-at", json={"iteration": 1}
        )
        assert refused.status_code == 409
        assert "does not speak the control protocol" in refused.json()["error"]
        tell(agent, "release")
        assert receiving.stdout is not None
        assert int(receiving.stdout.readline()) == count * 10_000
        agent.until_state("job-0", "done")


def test_the_pages_example_is_held_and_ends_where_it_is_told(
    make_bench: MakeBench,
) -> None:
    page = (ROOT / "docs" / "own-programs.md").read_text(encoding="utf-8")
    (example,) = re.findall(
        r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE
    )
    bench = make_bench(1)
    agent = bench.agent("server1").start()
    spec = bench.command(
        0,
        1,
        sys.executable,
        "-c",
        example,
        environment={"ITERATIONS": "10000"},
        hold="protocol",
    )
    assert agent.client.post("/workers", json=spec).status_code == 201
    tell(agent, "start")
    wait_until(
        lambda: agent.worker("job-0")["iterations_done"] >= 2, "two iterations"
    )
    at = agent.worker("job-0")["iterations_done"] + 40
    tell(agent, "hold", iteration=at)
    held = agent.until_state("job-0", "held")
    assert (held["iterations_done"], held["holds_by"]) == (at, "protocol")
    late = agent.client.post("/workers/job-0/hold", json={"iteration": 1})
    assert (late.status_code, late.json()["iteration"]) == (409, at)
    tell(agent, "stop-at", iteration=at)
    ended = agent.until_state("job-0", "stopped")
    assert (ended["exit_code"], ended["iterations_done"]) == (0, at)


alone_and_without_its_agent = pytest.mark.parametrize(
    ("runner", "agent_dies"),
    [
        ("process", False),
        pytest.param("docker", True, marks=pytest.mark.docker),
    ],
)
# Saves in the time that it has after SIGTERM, as a training does.
SAVE = """
import os, signal, sys, time
def save(*_):
    time.sleep(3)  # it takes so long to save
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("told at most", os.environ["PATCHLIGHT_STOP_GRACE_S"], "s before the end", flush=True)
time.sleep(600)  # until it is ended
"""


@alone_and_without_its_agent
def test_a_program_saves_after_it_was_told_to_end(
    make_bench: MakeBench, runner: str, agent_dies: bool
) -> None:
    agent = make_bench(1).agent("server1", runner).start()
    spec = agent.bench.command(0, 1, python(runner), "-c", SAVE)
    assert agent.client.post("/workers", json=spec).status_code == 201
    tell(agent, "start")
    wait_until(
        lambda: log(agent) == "told at most 30 s before the end\n",
        "it to be ready",
    )
    began = time.monotonic()
    if agent_dies:
        with pytest.raises(httpx.ReadTimeout):
            agent.client.post("/workers/job-0/end", timeout=1)
        agent.kill()
        agent.start()
        agent.until_state("job-0", "stopped")
    else:
        tell(agent, "end")
    assert 3 <= time.monotonic() - began < 15
    assert log(agent).endswith("saved\n")
    ended = agent.worker("job-0")
    assert (ended["state"], ended["message"]) == (
        "stopped",
        "stopped on request",
    )
    assert everything_is_back(agent, "job-0")


@alone_and_without_its_agent
def test_a_program_that_does_not_end_is_killed_in_time(
    make_bench: MakeBench, runner: str, agent_dies: bool
) -> None:
    agent = make_bench(1).agent("server1", runner).start()
    program = SAVE.replace(
        "signal.SIGTERM, save", "signal.SIGTERM, signal.SIG_IGN"
    )
    spec = {
        **agent.bench.command(0, 1, python(runner), "-c", program),
        "stop_grace_s": 4,
    }
    assert agent.client.post("/workers", json=spec).status_code == 201
    tell(agent, "start")
    wait_until(lambda: "told at most 4 s" in log(agent), "it to be ready")
    began = time.monotonic()
    if agent_dies:
        with pytest.raises(httpx.ReadTimeout):
            agent.client.post("/workers/job-0/end", timeout=1)
        agent.kill()
        agent.start()
    # Whoever needs its GPU and NIC meanwhile waits for its end.
    next_one = {
        **agent.bench.command(0, 1, "true"),
        "id": "next-0",
        "job": "next",
    }
    if not agent_dies:
        with pytest.raises(httpx.ReadTimeout):
            agent.client.post("/workers/job-0/end", timeout=1)
    assert agent.client.post("/workers", json=next_one).status_code == 201
    assert 4 <= time.monotonic() - began < 15
    ended = agent.worker("job-0")
    assert (ended["state"], ended["exit_code"]) == ("stopped", 137)


def test_processes_have_neither_images_nor_mounts(
    make_bench: MakeBench, tmp_path: Path
) -> None:
    bench = make_bench(1)
    bench.allow(f"{tmp_path}:rw")
    agent = bench.agent("server1").start()
    mount = {"source": str(tmp_path), "target": "/data"}
    for asked, words in (
        ({"image": "busybox"}, "the image busybox"),
        ({"mounts": [mount]}, "mounts"),
    ):
        answer = agent.client.post(
            "/workers", json=bench.command(0, 1, "true", **asked)
        )
        assert answer.status_code == 422
        assert f"requests {words}, but" in answer.json()["error"]
    taken = bench.command(0, 1, "true", environment={"RANK": "7"})
    answer = agent.client.post("/workers", json=taken)
    assert (
        "Patchlight sets RANK for each rank: leave it out"
        in answer.json()["error"]
    )
    nowhere = {
        **bench.command(0, 1, "true"),
        "checkpoint": str(tmp_path / "none" / "none"),
    }
    answer = agent.client.post("/workers", json=nowhere)
    assert (answer.status_code, "No such file" in answer.json()["error"]) == (
        422,
        True,
    )
    assert not (tmp_path / "none").exists()
    others = {**bench.command(0, 1, "true"), "checkpoint": "/srv"}
    answer = agent.client.post("/workers", json=others)
    assert answer.status_code == 403
    assert answer.json()["hint"].endswith("workers: {mounts: ['/srv:rw']}")
    assert everything_is_back(agent, "job-0")


@pytest.mark.docker
def test_what_a_container_is_given(
    make_bench: MakeBench, docker_host: str, tmp_path: Path
) -> None:
    bench = make_bench(1)
    data = tmp_path / "data"
    saved = tmp_path / "saved"
    data.mkdir()
    bench.allow(str(data), f"{tmp_path}:rw")
    agent = bench.agent("server1", "docker").start()
    (data / "input").write_text("read me")
    program = (
        "cat /data/input; echo no 2>/dev/null >/data/x || echo kept; df -k /dev/shm | tail -1; "
        "pwd; "
        'echo well > "$PATCHLIGHT_CHECKPOINT/model"'
    )
    asked = {
        "mounts": [{"source": str(data), "target": "/data"}],
        "shared_memory_bytes": 2**23,
        "working_directory": "/tmp",
    }
    spec = {
        **bench.command(0, 1, "sh", "-c", program, **asked),
        "checkpoint": str(saved),
    }
    assert agent.client.post("/workers", json=spec).status_code == 201
    tell(agent, "start")
    agent.until_state("job-0", "done")
    words = log(agent).split()
    assert words[:3] == ["read", "mekept", "shm"]
    assert words[3] == "8192"
    assert words[-1] == "/tmp"
    assert (saved / "model").read_text() == "well\n"


MEET = """
import os, socket, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(total)
print("sum", int(total), "at", socket.gethostname(), flush=True)
dist.barrier()
os._exit(0)
"""


@pytest.mark.docker
def test_torchrun_meets_over_two_containers(
    make_bench: MakeBench, docker_host: str, tmp_path: Path
) -> None:
    site = Path(pytest.importorskip("torch").__file__).parents[1]
    if (
        os.path.realpath("/usr/bin/python3")
        != f"/usr/bin/python3.{sys.version_info[1]}"
    ):
        pytest.skip(
            "the image's Python, that of this system, cannot load these packages"
        )
    tmp_path.chmod(0o755)
    (tmp_path / "meet.py").write_text(MEET)
    bench = make_bench(2)
    bench.allow(str(site), str(tmp_path))
    agents = bench.start_agents(2, "docker")
    words = "python3 -m torch.distributed.run --nnodes 2 --nproc-per-node 1 --rdzv-id meet "
    words += (
        "--rdzv-backend c10d --rdzv-endpoint server1:29400 /program/meet.py"
    )
    given: dict[str, Any] = {
        "environment": {"PYTHONPATH": "/site"},
        "mounts": [
            {"source": str(site), "target": "/site"},
            {"source": str(tmp_path), "target": "/program"},
        ],
    }
    for rank, agent in enumerate(agents):
        answer = agent.client.post(
            "/workers", json=bench.command(rank, 2, *words.split(), **given)
        )
        assert answer.status_code == 201, answer.text
    start_all(agents)
    until_done(agents)
    for number, agent in enumerate(agents, 1):
        said = agent.client.get(f"/workers/job-{number - 1}/log").json()[
            "text"
        ]
        assert f"sum 3 at server{number}" in said


@pytest.mark.docker
def test_images_that_are_of_no_use_are_named(
    make_bench: MakeBench, docker_host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", docker_host)
    bench = make_bench(1)
    agent = bench.agent("server1", "docker").start()
    missing = bench.command(0, 1, "true", image="patchlight.example/none:1")
    answer = agent.client.post("/workers", json=missing).json()
    assert "no image patchlight.example/none:1" in answer["error"]
    assert (
        answer["hint"]
        == "on this server: docker pull patchlight.example/none:1"
    )
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("empty"))
    image = (
        subprocess.run(
            ["docker", "import", "-"],
            input=archive.getvalue(),
            check=True,
            capture_output=True,
        )
        .stdout.decode()
        .strip()
    )
    try:
        empty = bench.command(0, 1, "true", image=image)
        answer = agent.client.post("/workers", json=empty).json()
        assert "must have a POSIX 'sh'" in answer["hint"]
    finally:
        subprocess.run(
            ["docker", "rmi", image], check=True, capture_output=True
        )
    assert everything_is_back(agent, "job-0")


def test_a_program_starts_in_the_folder_that_was_shipped(
    make_bench: MakeBench, runner: str, tmp_path: Path
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "net.py").write_text("layers = 3\n")
    (tmp_path / "train.py").write_text(
        "import model.net\nprint(model.net.layers)\n"
        "open('written', 'w').write('here')\n"
    )
    shipped = packed(tmp_path)
    bench = make_bench(1)
    agent = bench.agent("server1", runner).start()
    spec = bench.command(
        0,
        1,
        python(runner),
        "train.py",
        workdir=shipped.digest,
    )
    assert agent.client.post("/workers", json=spec).status_code == 201
    agent.until_state("job-0", "ready")
    part = WorkdirPart.of(shipped.archive, 0).model_dump()

    def put() -> httpx.Response:
        return agent.client.put("/workers/job-0/workdir", json=part)

    for _ in range(2):  # as after a lost answer
        assert put().json() == {"next": len(shipped.archive)}
    tell(agent, "start")
    assert agent.until_state("job-0", "done")["exit_code"] == 0
    assert log(agent) == "3\n"
    assert put().status_code == 409
