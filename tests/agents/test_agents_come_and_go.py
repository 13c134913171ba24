"""Workers outlive their agent: the next one takes them over, or says what became of them."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from patchlight.agents.workers.contract import WorkerHandle
from patchlight.agents.workers.process import ProcessRunner
from patchlight.testbed.linux.processes import boot_id, process_start
from tests.support.agent_bench import Agent, Bench, ip
from tests.support.waiting import ask, wait_until
from tests.support.worker_jobs import (
    everything_is_back,
    run_job,
    start_all,
    training_pid,
)

pytestmark = pytest.mark.root

MakeBench = Callable[[int], Bench]


def iterations_done(agent: Agent, worker: str) -> int:
    return int(agent.worker(worker)["iterations_done"])


@pytest.mark.parametrize(
    ("end_agent", "runner"),
    [
        (Agent.kill, "process"),
        (Agent.stop, "process"),
        pytest.param(Agent.kill, "docker", marks=pytest.mark.docker),
    ],
)
def test_workers_train_on_without_their_agent_and_are_taken_over(
    make_bench: MakeBench, end_agent: Callable[[Agent], None], runner: str
) -> None:
    bench = make_bench(2)
    agents = run_job(bench, runner, 2, iterations=10_000, compute_s=0.02)
    start_all(agents)
    wait_until(
        lambda: iterations_done(agents[0], "job-0") >= 2, "two iterations"
    )
    pid = training_pid(bench, "job-0")
    end_agent(agents[0])
    before = iterations_done(agents[1], "job-1")
    wait_until(
        lambda: iterations_done(agents[1], "job-1") >= before + 3,
        "three iterations more",
    )
    agents[0].start()
    assert training_pid(bench, "job-0") == pid
    assert agents[0].worker("job-0")["state"] == "running"
    assert not agents[0].nic_is_home()
    overview = agents[0].client.get("/status").json()
    assert (
        overview["nics"][0]["worker"]
        == overview["gpus"][0]["worker"]
        == "job-0"
    )
    at = iterations_done(agents[0], "job-0") + 50
    for rank, agent in enumerate(agents):
        answer = agent.client.post(
            f"/workers/job-{rank}/hold", json={"iteration": at}
        )
        assert answer.status_code == 200, answer.text
    for rank, agent in enumerate(agents):
        assert (
            agent.until_state(f"job-{rank}", "held")["iterations_done"] == at
        )
    for rank, agent in enumerate(agents):
        assert (
            agent.client.post(f"/workers/job-{rank}/release").status_code
            == 200
        )
    wait_until(lambda: iterations_done(agents[0], "job-0") > at, "it to go on")
    reports = agents[0].client.get("/workers/job-0/reports").json()["reports"]
    assert [report["index"] for report in reports] == list(range(len(reports)))
    ended = agents[0].client.delete("/workers/job-0").json()
    assert (ended["state"], ended["restarts"]) == ("stopped", 0)
    assert everything_is_back(agents[0], "job-0")


@pytest.mark.parametrize(
    ("runner", "how", "state", "code"),
    [
        ("process", "trains to its end", "done", 0),
        pytest.param(
            "docker", "is killed", "failed", 137, marks=pytest.mark.docker
        ),
    ],
)
def test_what_became_of_a_worker_without_an_agent_is_found_out(
    make_bench: MakeBench, runner: str, how: str, state: str, code: int
) -> None:
    bench = make_bench(1)
    (agent,) = run_job(
        bench, runner, 1, iterations=2 if state == "done" else 10_000
    )
    pid = training_pid(bench, "job-0")
    folder = bench.directory / "state-server1" / "workers" / "job-0"
    agent.kill()
    ask(folder / "control.sock", {"op": "start"})
    if how == "is killed":
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: process_start(pid) is None, "the worker to end")
    agent.start()
    assert agent.until_state("job-0", state)["exit_code"] == code
    assert everything_is_back(agent, "job-0")
    if how == "is killed":
        assert "killed by signal 9" in agent.worker("job-0")["message"]
        return
    agent.stop()
    agent.start()  # and the agent after that one knows it, too
    assert agent.worker("job-0")["iterations_done"] == 2
    reports = agent.client.get("/workers/job-0/reports").json()["reports"]
    assert [report["index"] for report in reports] == [0, 1]
    assert agent.client.delete("/workers/job-0").json()["state"] == "done"
    assert agent.client.get("/workers/job-0").status_code == 404


def test_what_a_program_forked_ends_with_it(make_bench: MakeBench) -> None:
    bench = make_bench(1)
    agent = bench.agent("server1").start()
    program = "for i in 1 2 3 4 5; do setsid sleep 1000 & done; exit 3"
    agent.client.post(
        "/workers", json=bench.command(0, 1, "sh", "-c", program)
    )
    start_all([agent])
    ended = agent.until_state("job-0", "failed")
    assert (ended["exit_code"], ended["message"]) == (
        3,
        "the worker ended with exit code 3",
    )
    assert everything_is_back(agent, "job-0")
    left = [
        pid
        for pid in os.listdir("/proc")
        if pid.isdigit() and is_sleeping(pid)
    ]
    assert left == []


def is_sleeping(pid: str) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read() == b"sleep\x001000\x00"
    except OSError:
        return False


def test_a_worker_whose_keeper_was_killed_does_not_linger(
    make_bench: MakeBench,
) -> None:
    bench = make_bench(1)
    (agent,) = run_job(bench, "process", 1, iterations=10_000)
    program = training_pid(bench, "job-0")
    space = bench.namespace("server1.w-job-0")
    # The first is bubblewrap's, outside the worker.
    _, keeper, _ = sorted(map(int, ip("netns", "pids", space).split()))
    os.kill(keeper, signal.SIGKILL)
    assert agent.until_state("job-0", "failed")["exit_code"] == 137
    assert process_start(program) is None
    assert everything_is_back(agent, "job-0")


@pytest.mark.parametrize(
    "wrong", [{"started": 1}, {"boot": "another"}, {"boot": None}]
)
async def test_a_reused_process_number_is_no_worker(
    wrong: dict[str, Any], tmp_path: Path
) -> None:
    own = {
        "pid": os.getpid(),
        "started": process_start(os.getpid()),
        "boot": boot_id(),
    }
    handle = WorkerHandle(**{**own, **wrong})
    (tmp_path / "exit").touch()  # as its keeper left it
    worker = await ProcessRunner().adopt(handle, "no-such-namespace", tmp_path)
    assert (await worker.ended()).exit_code == 137
    await worker.stop(0)  # and this process is not told to end
