"""What an agent refuses, and how it says so."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from patchlight.testbed.linux.processes import process_start
from tests.support.agent_bench import Agent, Bench, ip
from tests.support.forked import ForkedProgram
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.root


@pytest.fixture
def agent(make_bench: Callable[[int], Bench]) -> Agent:
    return make_bench(1).agent("server1").start()


def test_wrong_requests_are_refused_and_leave_the_nic_at_home(
    agent: Agent,
) -> None:
    good = agent.bench.spec(0, 1)
    wrong: list[tuple[dict[str, Any], int, str]] = [
        ({**good, "nic": "nic7"}, 404, "no NIC 'nic7'"),
        ({**good, "gpu": "gpu7"}, 404, "no GPU 'gpu7'"),
        (
            {
                **good,
                "ring": [{"rank": 0, "address": "10.77.0.99", "port": 1}],
            },
            422,
            "10.77.0.99",
        ),
        ({**good, "rank": 3}, 422, "rank 3 is not in a ring of 1"),
        ({**good, "id": "../etc"}, 422, "id"),
        ({**good, "unheard_of": 1}, 422, "unheard_of"),
        (
            {**good, "task": {**good["task"], "iterations": 0}},
            422,
            "iterations",
        ),
        (
            {**good, "task": {**good["task"], "first_iteration": 5}},
            422,
            "one of 5 iterations",
        ),
        (
            {**good, "task": {"trainer": "rocket"}},
            422,
            "expected 'synthetic', 'torch' or 'command'",
        ),
    ]
    for spec, status, words in wrong:
        answer = agent.client.post("/workers", json=spec)
        assert answer.status_code == status, (spec, answer.text)
        assert words in answer.json()["error"]
    assert agent.nic_is_home()
    assert agent.client.get("/status").json()["workers"] == []


def test_a_gpu_and_a_nic_serve_one_worker_at_a_time(agent: Agent) -> None:
    spec = agent.bench.spec(0, 1, iterations=1000)
    assert agent.client.post("/workers", json=spec).status_code == 201
    taken = agent.client.post("/workers", json={**spec, "id": "other"})
    assert taken.status_code == 409
    assert "leased to worker job-0" in taken.json()["error"]
    agent.until_state("job-0", "ready")
    beyond = agent.client.post("/workers/job-0/hold", json={"iteration": 1000})
    assert beyond.status_code == 409
    assert "will not come" in beyond.json()["error"]
    for path in ("start", "release"):
        assert agent.client.post(f"/workers/nobody/{path}").status_code == 404


def test_a_worker_that_was_deleted_first_is_not_made(agent: Agent) -> None:
    late = agent.bench.spec(0, 1)
    assert agent.client.delete("/workers/job-0").json()["state"] == "stopped"
    refused = agent.client.post("/workers", json=late)
    assert refused.status_code == 409
    assert "was deleted before it was created" in refused.json()["error"]
    assert (
        agent.client.post("/workers", json={**late, "id": "other"}).status_code
        == 201
    )


def test_a_nic_with_a_queue_that_cannot_be_carried_over_is_refused(
    agent: Agent,
) -> None:
    space = agent.bench.namespace("server1")
    ip(
        *f"netns exec {space} tc qdisc replace dev nic0 root handle 7: htb".split()
    )
    answer = agent.client.post("/workers", json=agent.bench.spec(0, 1))
    assert answer.status_code == 500
    assert "htb" in answer.json()["error"]
    assert "tc qdisc show" in answer.json()["hint"]
    assert agent.nic_is_home()
    assert agent.client.get("/status").json()["nics"][0]["state"] == "idle"


_AGENT = "patchlight.agents.__main__:main"


def run_agent(
    folder: Path, *arguments: str, program: str = _AGENT
) -> subprocess.CompletedProcess[str]:
    log = folder / "another.log"
    log.unlink(missing_ok=True)
    code = ForkedProgram(program, arguments, log).wait(PATIENCE_S)
    return subprocess.CompletedProcess(arguments, code, stderr=log.read_text())


def test_two_agents_do_not_share_a_server(agent: Agent) -> None:
    bench = agent.bench
    state = str(bench.directory / "state-server1")
    options = (
        "--lab",
        str(bench.lab_file),
        "--server",
        "server1",
        "--gpu-source",
        "nvml",
    )
    # The operator's command runs the same agent.
    for program, *verb in (
        (_AGENT,),
        ("patchlight.cli.main:main", "agent", "run"),
    ):
        listen = ("--listen", f"unix:{bench.directory}/b.sock")
        words = (*verb, *options, "--state", state, *listen)
        second = run_agent(bench.directory, *words, program=program)
        assert second.returncode == 1
        assert "another agent is using the state folder" in second.stderr
    words = (
        *options,
        "--state",
        f"{state}-b",
        "--listen",
        f"unix:{agent.socket}",
    )
    other = run_agent(bench.directory, *words)
    assert other.returncode == 1
    assert "another agent already serves" in other.stderr
    assert agent.client.get("/status").status_code == 200


def test_wrong_options_are_said(agent: Agent) -> None:
    bench = agent.bench
    lab = ("--lab", str(bench.lab_file))
    state = ("--state", str(bench.directory / "s"))
    listen = ("--listen", f"unix:{bench.directory}/c.sock")
    server = ("--server", "server1")
    process = ("--gpu-source", "nvml", "--worker-kind", "process")
    for options, code, words in [
        (
            (*lab, *state, *listen, "--server", "server9"),
            2,
            "no device called 'server9'",
        ),
        (
            (*lab, *state, *server, "--listen", "nowhere"),
            2,
            "expected unix:PATH",
        ),
        (
            (*lab, *state, *server, "--listen", "0.0.0.0:0"),
            2,
            "needs certificates",
        ),
        (
            (*lab, *state, *server, *listen, "--gpu-source", "x"),
            2,
            "socket:DIR",
        ),
        ((*lab, *state, *server, *listen, *process), 1, "NVIDIA driver"),
    ]:
        done = run_agent(bench.directory, *options)
        assert (done.returncode, words in done.stderr) == (code, True), (
            done.stderr
        )


def test_what_a_stranger_put_into_the_state_folder_is_not_believed(
    agent: Agent,
) -> None:
    bench = agent.bench
    options = [
        "--lab",
        str(bench.lab_file),
        "--server",
        "server1",
        "--gpu-source",
        "nvml",
    ]
    options += ["--listen", f"unix:{bench.directory}/d.sock"]
    with subprocess.Popen(["sleep", "60"]) as bystander:
        lease = {
            "spec": bench.spec(0, 1),
            "namespace": bench.namespace("server1"),
            "nic_state": {
                "interface": "nic0",
                "mac": "02:4c:00:00:00:01",
                "mtu": 1500,
                "up": True,
            }
            | {
                "addresses": [],
                "neighbours": [],
                "routes": [],
                "shaping": None,
            },
            "runner": "process",
            "trace": {
                "pid": bystander.pid,
                "started": process_start(bystander.pid),
            },
        }
        for theirs in ("shared", "shared/leases"):
            state = bench.directory / "shared"
            (state / "leases").mkdir(parents=True)
            (state / "leases" / "evil.json").write_text(json.dumps(lease))
            os.chown(bench.directory / theirs, 65534, 65534)
            done = run_agent(bench.directory, *options, "--state", str(state))
            assert done.returncode == 1
            assert "other users can put files into the folder" in done.stderr
            shutil.rmtree(state)
        assert bystander.poll() is None
        bystander.kill()
    assert agent.client.get("/status").status_code == 200
