"""Policies that users wrote decide in an emulated lab; ones that fail do not stop it."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from patchlight import EmulatedLab
from patchlight.client.client import ControllerClient
from patchlight.testbed.jobs import JobSpec
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.lab.rules import PolicyChoice
from patchlight.testbed.lab.wiring import trace_links
from tests.support.lab_jobs import connected, ended
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.root, pytest.mark.ovs]

POLICIES = '''
import time
from patchlight.controller.policies.topology import regroup


class Last:
    """The free GPUs that come last."""

    def place(self, cluster, job, workers):
        free = [n for n in range(len(cluster.shape.gpus)) if cluster.free >> n & 1]
        return free[-workers:] if len(free) >= workers else None


class OfNoUse:
    """Raises, answers nonsense, hangs: one after the other."""

    def __init__(self):
        self.asked = 0

    def place(self, cluster, job, workers):
        self.asked += 1
        if self.asked == 1:
            raise RuntimeError("no idea")
        if self.asked == 2:
            return [0] * workers
        while True:
            time.sleep(0.05)


class Two:
    """Two workers for everybody, none for who is called so."""

    def degree(self, cluster, job, legal):
        return 0 if job.name.startswith("nobody") else 2


class ShortNamesFirst:
    def priority(self, cluster, job, progress):
        return len(job.name)


class Together:
    """The same as regroup, but leaves circuits as they are while others run."""

    def circuits(self, cluster, groups):
        if len(cluster.running) > len(groups):
            raise RuntimeError(f"others hold {cluster.occupied:b}")
        names = [[cluster.shape.gpus[gpu].name for gpu in group] for group in groups]
        return regroup(cluster.lab, cluster.circuits, names)
'''
COMPUTE = {"Tesla M40": 0.05, "Titan V": 0.05}


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("policies") / "mine.py"
    path.write_text(POLICIES)
    return path


def lab_with(name: str, **policies: Any) -> EmulatedLab:
    return EmulatedLab.from_file(
        "ofc2022", scale=1000, name=name, workers="process", policies=PolicyChoice(**policies)
    )


@pytest.fixture(scope="module")
def lab(mine: Path) -> Iterator[EmulatedLab]:
    with lab_with(
        "polgood",
        placement=f"{mine}:Last",
        partition=f"{mine}:Two",
        order=f"{mine}:ShortNamesFirst",
        topology=f"{mine}:Together",
    ) as emulated:
        yield emulated


@pytest.fixture
def client(lab: EmulatedLab) -> Iterator[ControllerClient]:
    with connected(lab) as controller:
        yield controller


def spec(name: str, workers: int, iterations: int = 2) -> JobSpec:
    return JobSpec(name, iterations, 4_000_000, COMPUTE, workers=workers)


def test_a_users_placement_and_topology_decide(lab: EmulatedLab, client: ControllerClient) -> None:
    job = ended(client, client.submit([spec("mine", 3)])[0]["id"])
    assert job["state"] == "done", job["message"]
    assert job["hosts"] == ["server2.gpu3", "server3.gpu4", "server4.gpu5"]
    # Spread over both ToRs at first: the topology policy brought them under one.
    changes = client.reconfigurations()
    assert [change["state"] for change in changes] == ["committed"]
    after = trace_links(lab.lab, present_maps(client))
    hosts = [lab.lab.host(name).endpoint for name in job["hosts"]]
    assert len({after.switch_of(lab.lab, host) for host in hosts}) == 1
    before = trace_links(lab.lab, lab.lab.initial_maps)
    assert len({before.switch_of(lab.lab, host) for host in hosts}) == 2


def present_maps(client: ControllerClient) -> dict[str, PortMap]:
    return {ocs: PortMap.parse(state["map"] or ()) for ocs, state in client.circuits().items()}


def test_a_users_partition_says_how_many(client: ControllerClient) -> None:
    job = ended(client, client.submit([spec("auto", 0)])[0]["id"])
    assert job["state"] == "done", job["message"]
    assert len(job["hosts"]) == 2
    refused = ended(client, client.submit([spec("nobody", 0)])[0]["id"])
    assert refused["state"] == "failed"
    assert "mine.py:Two refuses it" in refused["message"]


def test_a_users_order_says_who_is_next(client: ControllerClient) -> None:
    first = client.submit([spec("fills-the-lab", 6, 80)], "keep")[0]["id"]
    wait_until(lambda: client.job(first)["state"] == "running")
    long = client.submit([spec("with-a-long-name", 6)], "keep")[0]["id"]
    short = client.submit([spec("s", 6)], "keep")[0]["id"]
    ends = {job_id: ended(client, job_id) for job_id in (first, long, short)}
    assert {job["state"] for job in ends.values()} == {"done"}
    assert 0 < (ends[short]["finished_at"] or 0) <= (ends[long]["started_at"] or 0)


def test_a_topology_policy_sees_who_else_runs(client: ControllerClient) -> None:
    hosts = ("server1.gpu0", "server1.gpu1")
    named = JobSpec("stays", 1000, 4_000_000, COMPUTE, hosts=hosts)
    other = client.submit([named], "keep")[0]["id"]
    wait_until(lambda: client.job(other)["state"] == "running")
    # Named hosts: the GPUs of the test before may not be free yet.
    asks = JobSpec("asks", 2, 4_000_000, COMPUTE, hosts=("server3.gpu4", "server4.gpu5"))
    job = ended(client, client.submit([asks])[0]["id"])
    assert job["state"] == "done", job["message"]
    faults = [e["message"] for e in client.events() if e["kind"] == "policy-fault"]
    assert any("others hold 110011" in message for message in faults), faults
    client.stop(other)


def test_a_placement_of_no_use_is_reported_and_the_default_decides(mine: Path) -> None:
    with (
        lab_with("polbad", placement=f"{mine}:OfNoUse", deadline_s=3.0) as lab,
        connected(lab) as client,
    ):
        for name in ("raises", "nonsense", "hangs", "begins-anew"):
            job = ended(client, client.submit([spec(name, 3)])[0]["id"])
            assert job["state"] == "done", job["message"]
            # All under one ToR, as the default has it; which one hangs on whether the job
            # before has given its GPUs back.
            lit = trace_links(lab.lab, lab.lab.initial_maps)
            ends = [lab.lab.host(host).endpoint for host in job["hosts"]]
            assert len({lit.switch_of(lab.lab, end) for end in ends}) == 1
        faults = [e for e in client.events() if e["kind"] == "policy-fault"]
        # One for each job; more if a job was placed again, as its GPUs were not free yet, and on a
        # busy machine others than expected: no answer in time, or a process that still starts.
        assert len(faults) >= 4
        assert {e["policy_kind"] for e in faults} == {"placement"}
        said = [event["message"] for event in faults]
        assert any("RuntimeError: no idea" in each and "mine.py:" in each for each in said), said
        assert any("it answered GPU 0 (server1.gpu0): it appears twice" in each for each in said)
        assert any("no answer within 3 s" in each for each in said), said
        # Its next process knows nothing of what it did.
        known = "RuntimeError: no idea|it appears twice|no answer within 3 s|is still starting"
        assert all(re.search(known, each) for each in said), said
        status = client.status()
        assert str(status["policies"]["placement"]).endswith("mine.py:OfNoUse")
        assert [counted["faults"] for counted in status["policy_faults"]] == [len(faults)]
        assert all(job["policy_faults"] for job in client.jobs())
