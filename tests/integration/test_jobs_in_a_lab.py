"""Jobs in the emulated lab of the paper, with everything real that can be: what goes wrong too."""

import asyncio
import contextlib
import os
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
from patchlight.testbed.jobs import JobSpec
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.wire.rest.lab import WindowShape
from tests.support.dashboard import (
    browser_page,
    dashboard_of,
    pictures_folder,
    shown_circuits,
    take_picture,
)
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
from tests.support.waiting import wait_until

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
        await take_picture(
            page, pictures / "dashboard-lab.png", full_page=True
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
        await take_picture(
            page, pictures / "dashboard-jobs.png", full_page=True
        )
        await asyncio.to_thread(client.stop, third)
        await asyncio.to_thread(client.stop, ids[1])
        await what_a_worker_prints_is_followed(page, client)
        await a_past_period_is_what_the_controller_has_on_disk(
            page, url, client, ids
        )
        await take_picture(
            page, pictures / "dashboard-past.png", full_page=True
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
    assert "server2.gpu3 receives nothing from server1.gpu1" in record.message
    assert client.circuits() == before
    end = ended(client, job_id)
    assert (end.state, end.restarts) == ("done", 0)
    assert checked_iterations(client, job_id) == every_iteration(2, iterations)


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
