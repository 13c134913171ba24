"""Jobs in the emulated lab of the paper, with everything real that can be: what goes wrong too."""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from patchlight import EmulatedLab
from patchlight.client.client import ControllerClient
from patchlight.controller.policies.topology import regroup
from patchlight.testbed.jobs import JobSpec
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.lab.wiring import trace_links
from patchlight.testbed.wire.rest.lab import WindowShape
from tests.support.controller_process import OcsCommand
from tests.support.dashboard import (
    browser_page,
    dashboard_of,
    pictures_folder,
    shown_circuits,
)
from tests.support.emulated_labs import check_tcp_rate, pings
from tests.support.lab_jobs import (
    PAIR,
    SPREAD,
    agent_statuses,
    checked_iterations,
    connected,
    ended,
    every_iteration,
)
from tests.support.lab_jobs import spread_spec as spec
from tests.support.waiting import ask, wait_until

pytestmark = [pytest.mark.root, pytest.mark.ovs]


@pytest.fixture(scope="module")
def lab() -> Iterator[EmulatedLab]:
    # A quarter of the packets that take a processor at 1000: what is tested has no need of them.
    with EmulatedLab.from_file(
        "ofc2022", scale=4000, name="jobs", workers="process"
    ) as emulated:
        yield emulated


@pytest.fixture
def client(lab: EmulatedLab) -> Iterator[ControllerClient]:
    with connected(lab) as controller:
        initial = {
            ocs: ports.texts for ocs, ports in lab.lab.initial_maps.items()
        }
        controller.reconfigure(initial, only=True)
        yield controller


def idle(lab: EmulatedLab) -> bool:
    """Whether every NIC is back in its server with its address, and every GPU is free."""
    agents = agent_statuses(lab.lab)
    nics = [nic for agent in agents for nic in agent.nics]
    gpus = [gpu for agent in agents for gpu in agent.gpus]
    return all(nic.state == "idle" for nic in nics) and not any(
        gpu.worker for gpu in gpus
    )


def ocs_fault(lab: EmulatedLab, **faults: object) -> None:
    assert ask(lab.run_dir / "optical" / "ocs1.control", faults)["ok"]


def ofctl(lab: EmulatedLab, switch: str, command: str, entry: str) -> None:
    """Change an entry of a switch, as another application would."""
    of = ["ovs-ofctl", "-O", "OpenFlow13", "--strict", command]
    subprocess.run(
        [*of, f"unix:{lab.run_dir}/ovs/{switch}.mgmt", entry], check=True
    )


def pids_of(argument: str) -> list[int]:
    """The processes that have this in their command line."""
    pids = []
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if (
                process.name.isdigit()
                and argument.encode() in (process / "cmdline").read_bytes()
            ):
                pids.append(int(process.name))
    return pids


def test_hosts_reach_each_other_by_light_at_their_rates(
    lab: EmulatedLab, client: ControllerClient
) -> None:
    hosts = {host.host.gpu.name: host for host in lab.hosts if host.host.gpu}
    # Two NICs of one server, then across the link between the switches: always by light.
    wait_until(
        lambda: pings(hosts["gpu0"], hosts["gpu1"]), "the way by one switch"
    )
    wait_until(
        lambda: pings(hosts["gpu0"], hosts["gpu5"]),
        "the way between the switches",
    )
    check_tcp_rate(hosts["gpu0"], hosts["gpu4"], 9e6, 10.1e6)
    check_tcp_rate(hosts["gpu5"], hosts["gpu4"], 2.25e6, 2.6e6)
    assert all(process["running"] for process in lab.status()["processes"])


def test_a_job_trains_and_gives_everything_back(
    lab: EmulatedLab, client: ControllerClient
) -> None:
    job = client.submit([spec("plain", SPREAD, 3)])[0]
    end = ended(client, job.id)
    assert end.state == "done", end
    assert checked_iterations(client, job.id) == every_iteration(4, 3)
    wait_until(lambda: idle(lab))
    wait_until(
        lambda: (
            lab.host("gpu0").run("ping -c 1 -W 2 192.168.10.13").returncode
            == 0
        )
    )


def test_regroup_lights_each_job_onto_one_tor(
    lab: EmulatedLab, client: ControllerClient
) -> None:
    jobs = client.submit(
        [spec("four", SPREAD, 2), spec("two", PAIR, 2)], "regroup"
    )
    for job in jobs:
        assert ended(client, job.id).state == "done"
    links = trace_links(
        lab.lab,
        {n: PortMap.parse(a.map or ()) for n, a in client.circuits().items()},
    )
    for hosts in (SPREAD, PAIR):
        tors = {
            links.switch_of(lab.lab, lab.lab.host(name).endpoint)
            for name in hosts
        }
        assert len(tors) == 1


@pytest.mark.browser
async def test_a_regroup_is_seen_in_a_browser(
    lab: EmulatedLab, client: ControllerClient, tmp_path: Path
) -> None:
    pictures = pictures_folder(tmp_path)
    ids = [
        job.id
        for job in client.submit(
            [spec("four", SPREAD, 5000), spec("two", PAIR, 5000)]
        )
    ]
    async with (
        dashboard_of(tmp_path, lab.lab.controller_api) as url,
        browser_page() as watched,
    ):
        page = watched.page
        await page.goto(url)
        for job, hosts in zip(ids, (SPREAD, PAIR), strict=True):
            in_job = page.locator(
                "[data-host] title", has_text=f"in {job}, busy"
            )
            await expect(in_job).to_have_count(len(hosts))
        assert await shown_circuits(page) == there(client)
        record = await asyncio.to_thread(client.regroup, ids)
        assert record.state == "committed", record
        made = min(
            record.changes["ocs1"].makes,
            key=lambda text: int(text.split(">")[0]),
        )
        await expect(
            page.locator(f"[data-circuit='ocs1 {made}']")
        ).to_have_count(1)
        # While the light moves, what goes and what comes are both shown.
        await expect(page.locator("[data-circuit]")).to_have_count(6)
        assert await shown_circuits(page) == there(client)
        await expect(
            page.get_by_text(f"change {record.id} by root: committed")
        ).to_be_visible()
        await expect(page.get_by_role("row", name=ids[0])).to_contain_text(
            "running"
        )
        await page.screenshot(
            path=pictures / "dashboard-lab.png", full_page=True
        )
        await page.get_by_role("link", name="Jobs", exact=True).click()
        await expect(page.get_by_role("row", name=ids[1])).to_contain_text(
            "running"
        )
        await page.wait_for_function(
            "document.querySelectorAll('canvas').length === 4"
        )
        waits = spec("third", PAIR, 5)
        third = (await asyncio.to_thread(client.submit, [waits]))[0].id
        await expect(page.get_by_role("row", name=third)).to_contain_text(
            "queued"
        )
        await page.screenshot(
            path=pictures / "dashboard-jobs.png", full_page=True
        )
        await asyncio.to_thread(client.stop, third)
        await asyncio.to_thread(client.stop, ids[1])
        await what_a_worker_prints_is_followed(page, client)
        await a_past_period_is_what_the_controller_has_on_disk(
            page, url, client, ids
        )
        await page.screenshot(
            path=pictures / "dashboard-past.png", full_page=True
        )


async def what_a_worker_prints_is_followed(
    page: Page, client: ControllerClient
) -> None:
    ticks = "n=0; while :; do echo tick $n; n=$((n+1)); sleep 0.3; done"
    talks = JobSpec(
        "talks", trainer="command", command=("sh", "-c", ticks), hosts=PAIR
    )
    talking = (await asyncio.to_thread(client.submit, [talks]))[0].id
    await expect(page.get_by_role("row", name=talking)).to_contain_text(
        "running"
    )
    await page.get_by_label("Output of job").click()
    await page.get_by_role("option", name=talking).click()
    log = page.get_by_role("log")
    await expect(log).to_contain_text("tick 3")
    before = (await log.inner_text()).split("\n")
    latest = before[-1] or before[-2]
    # What comes after that is shown as it is printed.
    await expect(log).to_contain_text(f"tick {int(latest.split()[1]) + 4}")
    shown = (await log.inner_text()).strip().split("\n")
    told = (await asyncio.to_thread(client.log, talking)).text.split("\n")
    assert shown == told[: len(shown)]
    await asyncio.to_thread(client.stop, talking)


async def a_past_period_is_what_the_controller_has_on_disk(
    page: Page, url: str, client: ControllerClient, ids: list[str]
) -> None:
    def sampled() -> list[WindowShape]:
        return client.samples(jobs=ids).jobs.get(ids[0], [])

    windows = await asyncio.to_thread(wait_until, sampled)
    # Of windows of ten seconds, the iterations in them are as their reports say.
    reports, _ = await asyncio.to_thread(client.iterations, ids[0])
    took = [report.compute_s + report.communication_s for report in reports]
    for window in windows:
        spread = window.iteration_s
        assert spread is None or min(
            took
        ) <= spread.least <= spread.most <= max(took)
    begun = (await asyncio.to_thread(client.job, ids[0])).submitted_at
    until = datetime.now() + timedelta(seconds=1)
    period = {"since": datetime.fromtimestamp(begun - 5), "until": until}
    asked = "&".join(f"{name}={at.isoformat()}" for name, at in period.items())
    await page.goto(f"{url}jobs?{asked}")
    await expect(page.get_by_role("note")).to_contain_text(
        "Means over 10 s are bold"
    )
    await expect(page.get_by_role("row", name=ids[1])).to_contain_text(
        "stopped"
    )


def there(client: ControllerClient) -> set[str]:
    """The circuits that the API says are there, each as the lower of its two directions."""
    maps = {
        ocs: PortMap.parse(found.map or ())
        for ocs, found in client.circuits().items()
    }
    return {
        f"{ocs} {c}" for ocs, m in maps.items() for c in m if c.inp < c.out
    }


def test_regrouping_live_loses_no_iteration_and_restarts_nobody(
    lab: EmulatedLab, client: ControllerClient
) -> None:
    jobs = client.submit([spec("live4", SPREAD, 12), spec("live2", PAIR, 24)])
    ids = [job.id for job in jobs]
    wait_until(lambda: client.job(ids[0]).iterations_done >= 4)
    record = client.regroup(ids)
    assert record.state == "committed", record
    assert not [note for note in record.notes if "did not pause" in note]
    for job_id, ranks, count in zip(ids, (4, 2), (12, 24), strict=True):
        end = ended(client, job_id)
        assert (end.state, end.restarts) == ("done", 0)
        assert checked_iterations(client, job_id) == every_iteration(
            ranks, count
        )


def test_a_change_over_which_packets_do_not_pass_is_rolled_back_and_the_job_goes_on(
    lab: EmulatedLab, client: ControllerClient
) -> None:
    iterations = 30
    job_id = client.submit([spec("blocked", PAIR, iterations)])[0].id
    wait_until(lambda: client.job(job_id).iterations_done >= 2)
    before = client.circuits()
    # Another application drops what comes to gpu3 where it will be: only packets show that.
    to_gpu3 = f"dl_dst={lab.lab.host('gpu3').nic.mac}"
    ofctl(lab, "tor1", "add-flow", f"priority=40000,{to_gpu3},actions=drop")
    try:
        record = client.regroup([job_id])
    finally:
        ofctl(lab, "tor1", "del-flows", f"priority=40000,{to_gpu3}")
    assert record.state == "rolled-back", record
    assert "server1.gpu1 does not hear server2.gpu3" not in record.message
    assert "server2.gpu3 does not hear server1.gpu1" in record.message
    assert client.circuits() == before
    end = ended(client, job_id)
    assert (end.state, end.restarts) == ("done", 0)
    assert checked_iterations(client, job_id) == every_iteration(2, iterations)


def test_a_refused_cross_connect_starts_no_job_and_leaves_the_map(
    lab: EmulatedLab, client: ControllerClient
) -> None:
    before = client.circuits()
    wanted = regroup(lab.lab, lab.lab.initial_maps, [SPREAD, PAIR])["ocs1"]
    change = lab.lab.initial_maps["ocs1"].diff(wanted)
    ocs_fault(lab, refuse_ports=[change.makes[0].out])
    try:
        jobs = client.submit(
            [spec("no4", SPREAD, 2), spec("no2", PAIR, 2)], "regroup"
        )
        ends = [ended(client, job.id) for job in jobs]
    finally:
        ocs_fault(lab, refuse_ports=[])
    assert [end.state for end in ends] == ["failed", "failed"]
    # The controller reads the states of the ports now and then: it may know before it tries.
    refusal = (
        rf"ocs1 (refused to make|reports out:{change.makes[0].out} as locked)"
    )
    assert all(re.search(refusal, end.message) for end in ends), ends
    assert client.circuits() == before
    assert all(end.started_at is None for end in ends)
    assert client.iterations(jobs[0].id)[0] == []


def test_a_stopped_job_gives_everything_back(
    lab: EmulatedLab, client: ControllerClient
) -> None:
    job = client.submit([spec("stopped", SPREAD, 500)])[0]
    wait_until(lambda: client.job(job.id).state == "running")
    assert client.stop(job.id).state == "stopped"
    wait_until(lambda: idle(lab))


def test_training_outlives_the_death_of_the_openflow_speaker(
    lab: EmulatedLab, client: ControllerClient
) -> None:
    job = client.submit([spec("speaker", SPREAD, 10)])[0]
    wait_until(lambda: client.job(job.id).iterations_done >= 2)
    socket_path = str(lab.run_dir / "controller" / "speaker.sock")
    (speaker,) = pids_of(socket_path)
    os.kill(speaker, signal.SIGKILL)
    assert ended(client, job.id).state == "done"
    wait_until(lambda: all(s.connected for s in client.status().switches))


def test_ports_and_gpus_are_sampled_while_a_job_runs(
    lab: EmulatedLab, client: ControllerClient
) -> None:
    since = time.time()
    job = client.submit([spec("sampled", SPREAD, 12)])[0]
    assert ended(client, job.id).state == "done"
    names = {lab.lab.host(name).name for name in SPREAD}
    rates = wait_until(
        lambda: [
            r for r in client.ports(since) if r.host in names and r.tx_bps
        ]
    )
    # No NIC of 40 Gb/s is seen to carry more than that, in the lab's units.
    assert max(rate.tx_bps for rate in rates) < 42e9
    every = {host.name for host in lab.lab.hosts}
    wait_until(
        lambda: {sample.gpu for sample in client.gpus(since)} == every,
        "every GPU",
    )
    assert (
        max(s.utilization for s in client.gpus(since) if s.gpu in names) > 0.2
    )


def test_hosts_know_each_other_by_name_and_the_machine_does_not(
    lab: EmulatedLab,
) -> None:
    before = Path("/etc/hosts").read_bytes()
    # The first packet may be lost to ARP.
    answer = lab.host("gpu0").run("ping -c 3 -i 0.3 -W 2 server1.gpu1")
    assert answer.exit_status == 0, answer.output
    assert "192.168.10.12" in answer.output
    assert Path("/etc/hosts").read_bytes() == before
    assert "gpu1" not in before.decode()


def test_a_circuit_in_use_is_broken_only_when_somebody_agrees_and_its_job_goes_on(
    lab: EmulatedLab, client: ControllerClient
) -> None:
    ocs = OcsCommand(["--lab", "jobs"])
    iterations = 60
    four, two = client.submit(
        [spec("asked4", SPREAD, iterations), spec("other", PAIR, 120)]
    )
    wait_until(lambda: client.job(four.id).iterations_done >= 2)
    before = client.circuits()
    changes = len(client.reconfigurations())
    free = next(
        port
        for port in range(7, 19)
        if f"{port}>" not in " ".join(before["ocs1"].map or ())
        and lab.lab.circuit_fibres["ocs1"][port][0].device == "tor1"
    )
    move = ("connect", "ocs1", f"server1.nic0:{free}")

    refused = ocs(*move, text="n\n", code=1)
    assert f"in use by job {four.id}, which pauses" in refused
    assert two.id not in refused, "the other job rides on other ports"
    assert f"ocs1 + 1>{free}" in refused
    assert "nothing was changed" in refused
    # Nobody there to ask counts as no.
    assert "nothing was changed" in ocs(*move, code=1)
    assert client.circuits() == before
    assert len(client.reconfigurations()) == changes, "nothing was even tried"

    # What no job uses is changed unasked.
    ocs("connect", "ocs1", "100:101")
    assert [r.state for r in client.reconfigurations()[changes:]] == [
        "committed"
    ]

    done = client.job(four.id).iterations_done
    assert "committed" in ocs(*move, text="y\n")
    record = client.reconfigurations()[-1]
    assert record.state == "committed"
    assert not [note for note in record.notes if "did not pause" in note]
    assert f"1>{free}" in (client.circuits()["ocs1"].map or ())
    wait_until(lambda: client.job(four.id).iterations_done > done + 1)
    # And back with --yes, as scripts say.
    assert "committed" in ocs("rollback", str(record.id), "--yes")

    for job_id, ranks, count in (
        (four.id, 4, iterations),
        (two.id, 2, 120),
    ):
        assert ended(client, job_id).state == "done"
        assert checked_iterations(client, job_id) == every_iteration(
            ranks, count
        )
