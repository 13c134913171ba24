"""Agents with real workers, as processes and as containers, in real namespaces, on shaped links."""

import itertools
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from statistics import fmean

import pytest

from tests.support.agent_bench import Bench, ip
from tests.support.waiting import wait_until
from tests.support.worker_jobs import (
    run_job,
    start_all,
    training_pid,
    until_done,
)

pytestmark = pytest.mark.root

MakeBench = Callable[[int], Bench]


def qdiscs(namespace: str) -> str:
    return ip("netns", "exec", namespace, "tc", "qdisc", "show", "dev", "nic0")


def test_a_job_trains_and_gives_everything_back(
    make_bench: MakeBench, runner: str
) -> None:
    bench = make_bench(2)
    agents = run_job(bench, runner, 2)
    for rank, agent in enumerate(agents):
        assert not agent.nic_is_home()
        inside = bench.namespace(f"server{rank + 1}.w-job-{rank}")
        assert f"10.77.0.{11 + rank}/24" in ip(
            "-n", inside, "addr", "show", "nic0"
        )
        assert "PERMANENT" in ip("-n", inside, "neigh")
        shaped = qdiscs(inside)
        assert "tbf" in shaped
        assert "rate 40Mbit" in shaped
        wait_until(
            partial(bench.reaches, rank + 1),
            "an answer from the worker's address",
        )
        overview = agent.client.get("/status").json()
        assert (
            overview["nics"][0]["worker"]
            == overview["gpus"][0]["worker"]
            == f"job-{rank}"
        )
    start_all(agents)
    for rank, agent in enumerate(agents):
        status = agent.until_state(f"job-{rank}", "done")
        assert (status["exit_code"], status["iterations_done"]) == (0, 5)
        got = agent.client.get(f"/workers/job-{rank}/reports").json()
        assert [report["index"] for report in got["reports"]] == list(range(5))
        assert {report["check"] for report in got["reports"]} == {"ok"}
        assert {report["device"] for report in got["reports"]} == {
            "emulated-gpu"
        }
        assert got["next"] == 5
        later = agent.client.get(f"/workers/job-{rank}/reports?after=3").json()
        assert [report["index"] for report in later["reports"]] == [3, 4]
        assert agent.nic_is_home()
        assert not bench.reaches(rank + 1)
        overview = agent.client.get("/status").json()
        assert overview["nics"][0]["state"] == "idle"
        assert overview["gpus"][0]["worker"] is None
        # Five times 0.05 s of its own clock, within what the worker waited for it.
        waited_s = sum(report["compute_s"] for report in got["reports"])
        assert 0.24 <= overview["gpus"][0]["busy_s"] <= waited_s
        assert (
            agent.client.delete(f"/workers/job-{rank}").json()["state"]
            == "done"
        )
        assert agent.client.get(f"/workers/job-{rank}").status_code == 404
        assert agent.client.delete(f"/workers/job-{rank}").status_code == 200
        agent.stop()


def test_a_killed_worker_fails_and_its_nic_comes_back(
    make_bench: MakeBench, runner: str
) -> None:
    bench = make_bench(2)
    agents = run_job(bench, runner, 2, iterations=1000)
    start_all(agents)
    wait_until(
        lambda: agents[0].worker("job-0")["iterations_done"] >= 2,
        "two iterations",
    )
    assert agents[0].process is not None
    # Its agent takes the NIC home, maybe before the peer's kernel has heard the end over it. Then
    # the peer waits until the controller ends the job: there is none here.
    os.kill(agents[0].process.pid, signal.SIGSTOP)
    os.kill(training_pid(bench, "job-0"), signal.SIGKILL)
    peer = agents[1].until_state("job-1", "failed")
    os.kill(agents[0].process.pid, signal.SIGCONT)
    dead = agents[0].until_state("job-0", "failed")
    assert dead["exit_code"] == 137
    assert agents[0].nic_is_home()
    assert peer["exit_code"] == 1
    assert "lost rank 0" in peer["message"]
    assert (peer["lost_rank"], dead["lost_rank"]) == (0, None)
    assert any("lost rank 0" in line for line in peer["last_lines"])
    assert agents[1].nic_is_home()
    # The same NIC and GPU serve again at once.
    assert agents[0].client.delete("/workers/job-0").status_code == 200
    again = agents[0].client.post(
        "/workers", json=bench.spec(0, 1, iterations=2)
    )
    assert again.status_code == 201, again.text
    agents[0].until_state("job-0", "ready")
    agents[0].client.post("/workers/job-0/start")
    agents[0].until_state("job-0", "done")


def test_a_held_job_sends_nothing_and_goes_on_without_a_fault(
    make_bench: MakeBench, runner: str
) -> None:
    bench = make_bench(2)
    agents = run_job(bench, runner, 2, iterations=45, compute_s=0.02)
    start_all(agents)
    wait_until(
        lambda: agents[0].worker("job-0")["iterations_done"] >= 1,
        "an iteration",
    )
    at = 30
    for rank, agent in enumerate(agents):
        answer = agent.client.post(
            f"/workers/job-{rank}/hold", json={"iteration": at}
        )
        assert answer.status_code == 200, answer.text
        assert answer.json()["iteration"] <= at
    for rank, agent in enumerate(agents):
        assert (
            agent.until_state(f"job-{rank}", "held")["iterations_done"] == at
        )
    fabric = bench.namespace("fabric")
    # The path goes away and comes back: nobody was sending, so nobody notices.
    ip("-n", fabric, "link", "set", "server1-1", "down")
    ip("-n", fabric, "link", "set", "server1-1", "up")
    late = agents[0].client.post("/workers/job-0/hold", json={"iteration": 3})
    assert late.status_code == 409
    assert late.json()["iteration"] == at
    for rank, agent in enumerate(agents):
        assert (
            agent.client.post(f"/workers/job-{rank}/release").status_code
            == 200
        )
    for rank, agent in enumerate(agents):
        assert (
            agent.until_state(f"job-{rank}", "done")["iterations_done"] == 45
        )
    took_s = [
        [report["communication_s"] for report in got["reports"]]
        for rank, agent in enumerate(agents)
        for got in [agent.client.get(f"/workers/job-{rank}/reports").json()]
    ]
    # The one that was released first waited for the other to be told.
    assert min(each[at] for each in took_s) < sorted(took_s[0])[15] + 0.3


def test_a_worker_is_deleted_while_it_trains(
    make_bench: MakeBench, runner: str
) -> None:
    bench = make_bench(1)
    (agent,) = run_job(bench, runner, 1, iterations=1000, compute_s=60)
    start_all([agent])
    status = agent.client.delete("/workers/job-0").json()
    assert status["state"] == "stopped"
    assert agent.nic_is_home()
    gpu = agent.client.get("/status").json()["gpus"][0]
    assert gpu["worker"] is None
    assert gpu["busy_s"] < 50, "the GPU went on computing for a dead tenant"


def test_a_job_goes_on_with_fewer_workers_where_it_was_told_to_end(
    make_bench: MakeBench,
) -> None:
    bench = make_bench(2)
    agents = run_job(bench, "process", 2, iterations=10_000, compute_s=0.01)
    start_all(agents)
    wait_until(
        lambda: agents[0].worker("job-0")["iterations_done"] >= 1,
        "an iteration",
    )
    at = 30 + agents[0].worker("job-0")["iterations_done"]
    for order in ("hold", "stop-at"):
        for rank, agent in enumerate(agents):
            answer = agent.client.post(
                f"/workers/job-{rank}/{order}", json={"iteration": at}
            )
            assert answer.status_code == 200, answer.text
        for rank, agent in enumerate(agents):
            state = agent.until_state(
                f"job-{rank}", "held" if order == "hold" else "stopped"
            )
            assert state["iterations_done"] == at
    task = {"iterations": at + 3, "first_iteration": at}
    spec = {**bench.spec(0, 1, **task), "id": "smaller"}
    assert agents[0].client.post("/workers", json=spec).status_code == 201
    agents[0].until_state("smaller", "ready")
    assert agents[0].client.post("/workers/smaller/start").status_code == 200
    assert (
        agents[0].until_state("smaller", "done")["iterations_done"] == at + 3
    )


RATE_BPS = 40e6
GRADIENT_BYTES = 553_440


def test_the_ring_uses_the_link_and_no_more(make_bench: MakeBench) -> None:
    task = {
        "iterations": 12,
        "gradient_bytes": GRADIENT_BYTES,
        "compute_s": 0.1,
    }
    agents = run_job(make_bench(3), "process", 3, **task)
    start_all(agents)
    until_done(agents)
    reports = agents[0].client.get("/workers/job-0/reports").json()["reports"]
    ends = [report["finished_at"] for report in reports]
    times_s = [
        later - sooner - 0.1 for sooner, later in itertools.pairwise(ends)
    ]
    alone_s = reports[0]["sent_bytes"] * 8 / RATE_BPS
    # 4.4 % of the link are headers. A machine that is busy may keep it from some iterations.
    assert alone_s / min(times_s) > 0.75
    assert alone_s / fmean(times_s) < 1.02


def test_a_path_that_is_dark_for_a_while_costs_little_more_than_that(
    make_bench: MakeBench,
) -> None:
    bench = make_bench(2)
    task = {"iterations": 40, "gradient_bytes": GRADIENT_BYTES, "compute_s": 0}
    agents = run_job(bench, "process", 2, **task)
    start_all(agents)
    fabric = bench.namespace("fabric")
    for dark_s in (0.1, 3.0):
        done = agents[0].worker("job-0")["iterations_done"]
        began = time.monotonic()
        ip("-n", fabric, "link", "set", "server1-1", "nomaster")
        # How long the path is dark is the experiment, not a wait for anything.
        time.sleep(dark_s)
        ip("-n", fabric, "link", "set", "server1-1", "master", "br0")
        dark_s = time.monotonic() - began
        while agents[0].worker("job-0")["iterations_done"] <= done + 1:
            # Older kernels double their pauses: the next attempt may come as late again.
            assert time.monotonic() < began + 2 * dark_s + 5, (
                "the ring did not recover"
            )
            time.sleep(0.01)  # the pause between two looks
    until_done(agents)
