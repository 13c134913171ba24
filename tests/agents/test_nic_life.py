"""A NIC with its own MAC and a time to lock, an agent that has it, and one that dies at it."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable

import httpx
import pytest

from patchlight.agents.nics.moving import is_in, read_nic
from patchlight.agents.nics.state import NicAccess, NicState, link_local
from patchlight.controller.hosts.agent_client import (
    AgentClient,
    NicWithoutCarrier,
)
from patchlight.controller.hosts.fleet import Fleet
from patchlight.testbed.lab.model import Lab, default_mac
from patchlight.testbed.linux import namespaces
from tests.support.agent_bench import Agent, Bench, ip, with_nics
from tests.support.nic_spaces import ping
from tests.support.waiting import PATIENCE_S, wait_until
from tests.support.worker_jobs import everything_is_back, run_job, start_all

pytestmark = pytest.mark.root

MakeBench = Callable[[int], Bench]


def nic_of(bench: Bench, space: str) -> NicState:
    path = namespaces.namespace_path(bench.namespace(space))
    return namespaces.inside(path, lambda: read_nic(NicAccess("veth", "nic0")))


async def known_macs(lab: Lab) -> Fleet:
    fleet = Fleet(lab)
    try:
        await fleet.know_macs(lab.hosts)
    finally:
        await fleet.close()
    return fleet


def test_a_worker_has_the_port_s_own_mac_and_the_controller_learns_it(
    make_bench: MakeBench,
) -> None:
    bench = make_bench(1)
    lab = with_nics(bench)
    own = nic_of(bench, "server1").mac
    (agent,) = run_job(bench, "process", 1, iterations=10_000)
    assert nic_of(bench, "server1.w-job-0").mac == own
    (told,) = agent.client.get("/status").json()["nics"]
    assert (told["mac"], told["mode"], told["mtu"]) == (own, "veth", 1500)
    assert told["counters"]["tx_packets"] >= 0
    assert told["carrier_changes"] > 0
    fleet = asyncio.run(known_macs(lab))
    assert fleet.macs.of(lab.hosts[0]) == own != lab.hosts[0].nic.mac
    agent.client.delete("/workers/job-0")
    assert everything_is_back(agent, "job-0")
    assert nic_of(bench, "server1").mac == own


def test_a_worker_is_reached_by_ipv6_with_either_runner(
    make_bench: MakeBench, runner: str
) -> None:
    bench = make_bench(1)
    (agent,) = run_job(bench, runner, 1, iterations=10_000)
    address = link_local(nic_of(bench, "server1.w-job-0").mac)
    assert address not in ip("-n", bench.namespace("server1"), "-6", "addr")
    fabric = bench.namespace("fabric")
    wait_until(lambda: ping(fabric, f"{address}%br0"), "an answer over IPv6")
    agent.client.delete("/workers/job-0")
    assert everything_is_back(agent, "job-0")


def test_a_worker_goes_on_once_its_carrier_is_back_or_says_that_it_is_not(
    make_bench: MakeBench,
) -> None:
    bench = make_bench(1)
    with_nics(bench, relock_s=0.3)
    (agent,) = run_job(bench, "process", 1, iterations=10_000, compute_s=0.02)
    start_all([agent])
    assert (
        agent.client.post(
            "/workers/job-0/hold", json={"iteration": 20}
        ).status_code
        == 200
    )
    agent.until_state("job-0", "held")
    port = ("-n", bench.namespace("fabric"), "link", "set", "server1-1")
    ip(*port, "down")

    async def release() -> None:
        client = AgentClient("server1", f"unix:{agent.socket}")
        try:
            await client.release("job-0")
        finally:
            await client.close()

    with pytest.raises(
        NicWithoutCarrier,
        match=r"cannot continue: after 0\.3 s nic0 has no carrier",
    ) as caught:
        asyncio.run(release())
    assert "'relock'" in str(caught.value.hint)
    assert agent.worker("job-0")["state"] == "held"
    with_nics(bench, relock_s=20)
    agent.stop()
    agent.start()
    later = threading.Timer(0.3, lambda: ip(*port, "up"))
    later.start()
    asyncio.run(release())
    later.join()
    agent.until_state("job-0", "running")


def test_a_worker_on_a_macvlan_is_taken_over_and_leaves_the_nic_to_the_server(
    make_bench: MakeBench,
) -> None:
    bench = make_bench(1)
    with_nics(bench, mode="macvlan", mtu=1400)
    before = nic_of(bench, "server1")
    (agent,) = run_job(bench, "process", 1, iterations=10_000)
    wait_until(lambda: bench.reaches(1), "an answer from the worker")
    agent.kill()
    agent.start()
    (told,) = agent.client.get("/status").json()["nics"]
    assert (told["state"], told["mode"], told["mtu"]) == (
        "leased",
        "macvlan",
        1400,
    )
    assert told["mac"] == default_mac(bench.lab.hosts[0].nic.address)
    agent.client.delete("/workers/job-0")
    assert everything_is_back(agent, "job-0")
    assert nic_of(bench, "server1") == before


def lease_is_there(bench: Bench) -> bool:
    return any((bench.directory / "state-server1" / "leases").glob("*.json"))


def nic_has_left(bench: Bench) -> bool:
    return not is_in(
        namespaces.namespace_path(bench.namespace("server1")), "nic0"
    )


@pytest.mark.parametrize("moment", [lease_is_there, nic_has_left])
def test_an_agent_killed_while_it_moves_a_nic_leaves_it_as_it_was(
    make_bench: MakeBench, moment: Callable[[Bench], bool]
) -> None:
    bench = make_bench(1)
    agent = bench.agent("server1").start()
    before = nic_of(bench, "server1")

    def ask() -> None:
        with contextlib.suppress(httpx.TransportError):  # it dies of it
            agent.client.post("/workers", json=bench.spec(0, 1))

    asking = threading.Thread(target=ask)
    asking.start()
    end = time.monotonic() + PATIENCE_S
    while not moment(bench):  # without a pause: it lasts some milliseconds
        assert time.monotonic() < end, "the worker was not begun"
    agent.kill()
    asking.join()
    again = Agent(bench, "server1", "process")
    bench.agents[:] = [again]
    again.start()
    # It had been made, if the end came too late.
    deleted = again.client.delete("/workers/job-0")
    assert deleted.status_code in (200, 404), deleted.text
    wait_until(
        lambda: everything_is_back(again, "job-0"), "the NIC to be back"
    )
    assert nic_of(bench, "server1") == before


def test_half_a_namespace_of_one_that_was_killed_is_taken_away(
    make_bench: MakeBench,
) -> None:
    bench = make_bench(1)
    agent = bench.agent("server1").start()
    half = namespaces.namespace_path(bench.namespace("server1.w-job-0"))
    half.touch()
    refused = agent.client.post("/workers", json=bench.spec(0, 1))
    assert "already exists" in refused.text
    assert everything_is_back(agent, "job-0")
    assert not half.exists()
    assert (
        agent.client.post("/workers", json=bench.spec(0, 1)).status_code == 201
    )
    assert agent.client.delete("/workers/job-0").status_code == 200
