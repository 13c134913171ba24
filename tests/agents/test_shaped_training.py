"""Training over links of limited rate: the limit holds inside workers, and is used."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.support.agent_bench import Bench, ip

pytestmark = pytest.mark.root

RATE_BPS = 40e6
GRADIENT_BYTES = 553_440


def test_the_ring_uses_the_link_and_no_more(make_bench: Callable[[int], Bench]) -> None:
    bench = make_bench(3)
    agents = [bench.agent(f"server{n}").start() for n in (1, 2, 3)]
    iterations = 8
    for rank, agent in enumerate(agents):
        spec = bench.spec(
            rank, 3, iterations=iterations, gradient_bytes=GRADIENT_BYTES, compute_s=0.1
        )
        assert agent.client.post("/workers", json=spec).status_code == 201
    for rank, agent in enumerate(agents):
        agent.until_state(f"job-{rank}", "ready")
    for rank, agent in enumerate(agents):
        agent.client.post(f"/workers/job-{rank}/start")
    for rank, agent in enumerate(agents):
        agent.until_state(f"job-{rank}", "done")
    reports = agents[0].client.get("/workers/job-0/reports").json()["reports"]
    took_s = (reports[-1]["finished_at"] - reports[0]["finished_at"]) / (iterations - 1) - 0.1
    efficiency = reports[0]["sent_bytes"] * 8 / RATE_BPS / took_s
    # 4.4 % of the link are headers. The lower bound leaves room for a busy machine.
    assert 0.75 < efficiency < 1.02


def test_a_path_that_is_dark_for_a_while_costs_little_more_than_that(
    make_bench: Callable[[int], Bench],
) -> None:
    bench = make_bench(2)
    agents = [bench.agent(f"server{n}").start() for n in (1, 2)]
    for rank, agent in enumerate(agents):
        spec = bench.spec(rank, 2, iterations=40, gradient_bytes=GRADIENT_BYTES, compute_s=0)
        assert agent.client.post("/workers", json=spec).status_code == 201
    for rank, agent in enumerate(agents):
        agent.until_state(f"job-{rank}", "ready")
    for rank, agent in enumerate(agents):
        agent.client.post(f"/workers/job-{rank}/start")
    fabric = bench.namespace("fabric")
    for dark_s in (0.1, 3.0):
        done = agents[0].worker("job-0")["iterations_done"]
        began = time.monotonic()
        ip("-n", fabric, "link", "set", "server1-1", "nomaster")
        time.sleep(dark_s)  # how long the path is dark is the experiment, not a wait for anything
        ip("-n", fabric, "link", "set", "server1-1", "master", "br0")
        dark_s = time.monotonic() - began
        while agents[0].worker("job-0")["iterations_done"] <= done + 1:
            assert time.monotonic() < began + dark_s + 3, "the ring did not recover"
            time.sleep(0.01)
    for rank, agent in enumerate(agents):
        agent.until_state(f"job-{rank}", "done")
