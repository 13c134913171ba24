"""Jobs in the emulated lab of the paper, with everything real that can be: what goes wrong too."""

import contextlib
import json
import os
import signal
import socket
import time
from pathlib import Path

import pytest

from patchlight import EmulatedLab
from patchlight.controller.client import ControllerClient
from patchlight.controller.policies.regroup import regroup
from patchlight.testbed.jobs import JobSpec
from patchlight.testbed.portmap import PortMap
from patchlight.testbed.wiring import trace_links

pytestmark = [pytest.mark.root, pytest.mark.ovs]

COMPUTE = {"Tesla M40": 0.2, "Titan V": 0.1}
SPREAD = ("gpu0", "gpu2", "gpu4", "gpu5")
PAIR = ("gpu1", "gpu3")


@pytest.fixture(scope="module")
def lab():
    with EmulatedLab.from_file("ofc2022", scale=1000, name="jobs", workers="process") as emulated:
        yield emulated


@pytest.fixture
def client(lab):
    with ControllerClient(lab.lab.controller_api) as found:
        wait(lambda: all(s["connected"] for s in found.status()["switches"]))
        found.reconfigure({n: m.texts for n, m in lab.lab.initial_maps.items()}, only=True)
        yield found
        for job in found.jobs():
            if job["finished_at"] is None:
                found.stop(job["id"])


def wait(condition, deadline_s=30.0):
    deadline = time.monotonic() + deadline_s
    while not (answer := condition()):
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.05)
    return answer


def spec(name, hosts, iterations, gradient_bytes=40_000_000):
    return JobSpec(name, iterations, gradient_bytes, COMPUTE, hosts=hosts, seed=7)


def ended(client, job_id, deadline_s=60.0):
    return wait(lambda: (j := client.job(job_id))["finished_at"] and j, deadline_s)


def idle(lab):
    """Whether every NIC is back in its server with its address, and every GPU is free."""
    from tests.support.agents_of import statuses

    answers = statuses(lab.lab)
    nics = [nic for answer in answers for nic in answer["nics"]]
    gpus = [gpu for answer in answers for gpu in answer["gpus"]]
    return all(n["state"] == "idle" for n in nics) and not any(g["worker"] for g in gpus)


def ocs_fault(lab, **faults):
    with socket.socket(socket.AF_UNIX) as control:
        control.settimeout(5)
        control.connect(str(lab.run_dir / "optical" / "ocs1.control"))
        control.sendall(json.dumps(faults).encode() + b"\n")
        assert json.loads(control.makefile().readline())["ok"]


def worker_pids(job_id):
    found = []
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if process.name.isdigit() and job_id.encode() in (process / "cmdline").read_bytes():
                found.append(int(process.name))
    return found


def test_a_job_trains_and_gives_everything_back(lab, client):
    job = client.submit([spec("plain", SPREAD, 3)])[0]
    end = ended(client, job["id"])
    assert end["state"] == "done", end
    iterations, _ = client.iterations(job["id"])
    assert sorted((i["rank"], i["index"]) for i in iterations) == [
        (rank, index) for rank in range(4) for index in range(3)
    ]
    assert all(i["check"] == "ok" for i in iterations)
    wait(lambda: idle(lab))
    assert lab.host("gpu0").run("ping -c 1 -W 2 192.168.10.13").returncode == 0


def test_regroup_lights_each_job_onto_one_tor(lab, client):
    jobs = client.submit([spec("four", SPREAD, 2), spec("two", PAIR, 2)], "regroup")
    for job in jobs:
        assert ended(client, job["id"])["state"] == "done"
    links = trace_links(lab.lab, {n: PortMap.parse(a["map"]) for n, a in client.circuits().items()})
    for job in (SPREAD, PAIR):
        tors = {links.switch_of(lab.lab, lab.lab.host(name).endpoint) for name in job}
        assert len(tors) == 1


def test_regrouping_live_loses_no_iteration_and_restarts_nobody(lab, client):
    jobs = client.submit([spec("live4", SPREAD, 12), spec("live2", PAIR, 24)])
    ids = [job["id"] for job in jobs]
    wait(lambda: client.job(ids[0])["iterations_done"] >= 4)
    record = client.regroup(ids)
    assert record["state"] == "committed", record
    assert not [note for note in record["notes"] if "did not pause" in note]
    for job_id, ranks, count in zip(ids, (4, 2), (12, 24), strict=True):
        assert ended(client, job_id)["state"] == "done"
        iterations, _ = client.iterations(job_id)
        assert sorted((i["rank"], i["index"]) for i in iterations) == [
            (rank, index) for rank in range(ranks) for index in range(count)
        ]
        assert {i["check"] for i in iterations} == {"ok"}


def test_a_refused_cross_connect_starts_no_job_and_leaves_the_map(lab, client):
    before = client.circuits()
    wanted = regroup(lab.lab, lab.lab.initial_maps, [SPREAD, PAIR])["ocs1"]
    change = lab.lab.initial_maps["ocs1"].diff(wanted)
    ocs_fault(lab, refuse_ports=[change.makes[0].out])
    try:
        jobs = client.submit([spec("no4", SPREAD, 2), spec("no2", PAIR, 2)], "regroup")
        ends = [ended(client, job["id"]) for job in jobs]
    finally:
        ocs_fault(lab, refuse_ports=[])
    assert [end["state"] for end in ends] == ["failed", "failed"]
    assert "ocs1 refused to make" in ends[0]["message"]
    assert client.circuits() == before
    assert all(end["started_at"] is None for end in ends)
    assert client.iterations(jobs[0]["id"])[0] == []


def test_a_worker_that_dies_fails_its_job_alone(lab, client):
    jobs = client.submit([spec("dies", SPREAD, 500), spec("lives", PAIR, 6)])
    dying, living = jobs[0]["id"], jobs[1]["id"]
    wait(lambda: client.job(dying)["iterations_done"] >= 1)
    os.kill(max(worker_pids(f"{dying}-2")), signal.SIGKILL)
    end = ended(client, dying)
    assert end["state"] == "failed"
    assert "rank" in end["message"]
    assert ended(client, living)["state"] == "done"
    wait(lambda: idle(lab))
    assert worker_pids(dying) == []


def test_a_stopped_job_gives_everything_back(lab, client):
    job = client.submit([spec("stopped", SPREAD, 500)])[0]
    wait(lambda: client.job(job["id"])["state"] == "running")
    assert client.stop(job["id"])["state"] == "stopped"
    wait(lambda: idle(lab))


def test_jobs_that_want_the_same_gpu_run_one_after_the_other(lab, client):
    first = client.submit([spec("first", PAIR, 4)])[0]
    second = client.submit([spec("second", PAIR, 2)])[0]
    wait(lambda: client.job(first["id"])["state"] == "running")
    assert client.job(second["id"])["state"] == "queued"
    done = [ended(client, job["id"]) for job in (first, second)]
    assert [end["state"] for end in done] == ["done", "done"]
    assert done[1]["started_at"] >= done[0]["finished_at"]


def test_training_outlives_the_death_of_the_openflow_speaker(lab, client):
    job = client.submit([spec("speaker", SPREAD, 10)])[0]
    wait(lambda: client.job(job["id"])["iterations_done"] >= 2)
    socket_path = str(lab.run_dir / "controller" / "speaker.sock")
    (speaker,) = [
        int(p.name)
        for p in Path("/proc").iterdir()
        if p.name.isdigit() and socket_path.encode() in _cmdline(p)
    ]
    os.kill(speaker, signal.SIGKILL)
    assert ended(client, job["id"])["state"] == "done"
    wait(lambda: all(s["connected"] for s in client.status()["switches"]))


def _cmdline(process):
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


def test_ports_and_gpus_are_sampled_while_a_job_runs(lab, client):
    since = time.time()
    job = client.submit([spec("sampled", SPREAD, 12)])[0]
    assert ended(client, job["id"])["state"] == "done"
    names = {lab.lab.host(name).name for name in SPREAD}
    rates = wait(lambda: [r for r in client.ports(since) if r["host"] in names and r["tx_bps"]])
    # No NIC of 40 Gb/s is seen to carry more than that, in the lab's units.
    assert max(rate["tx_bps"] for rate in rates) < 42e9
    assert {sample["gpu"] for sample in client.gpus(since)} == {h.name for h in lab.lab.hosts}
    assert max(s["utilization"] for s in client.gpus(since) if s["gpu"] in names) > 0.2


def test_hosts_know_each_other_by_name_and_the_machine_does_not(lab):
    before = Path("/etc/hosts").read_bytes()
    answer = lab.host("gpu0").run("ping -c 1 -W 2 server1.gpu1")
    assert answer.exit_status == 0, answer.output
    assert "192.168.10.12" in answer.output
    assert Path("/etc/hosts").read_bytes() == before
    assert "gpu1" not in before.decode()
