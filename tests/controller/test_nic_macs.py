"""The MACs that agents tell, and what is done with them."""

from pathlib import Path

import httpx
import pytest

from patchlight.controller.hosts.fleet import NicMacs
from patchlight.controller.packet_switches.openflow.forwarding import (
    Forwarding,
)
from patchlight.controller.storage.state_folder import open_store
from patchlight.testbed.jobs import JobState
from patchlight.testbed.lab.wiring import trace_links
from patchlight.testbed.wire.agent_status import AgentStatus, NicStatus
from tests.support.fake_network import (
    FakeNetwork,
    arp_request,
    make_lab,
    unicast,
)
from tests.support.job_cluster import (
    LAB,
    Cluster,
    job,
    simulated,
    submit_running,
)

HARDWARE = "0c:42:a1:00:00:01"


def said(server: str, **macs: str) -> AgentStatus:
    """What an agent says of the MACs of its NICs."""
    nics = [
        NicStatus(name=name, address="192.168.10.11", state="idle", mac=mac)
        for name, mac in macs.items()
    ]
    return AgentStatus(
        server=server,
        version="1",
        runner="process",
        gpus=[],
        nics=nics,
        workers=[],
    )


def test_a_port_s_own_mac_is_used_once_its_agent_said_it(
    tmp_path: Path,
) -> None:
    host = LAB.host("gpu0")
    store = open_store(tmp_path)
    macs = NicMacs(LAB, store)
    assert macs.of(host) == host.nic.mac
    assert macs.unknown([host]) == {"server1"}
    assert macs.hear(said("server1", nic0=HARDWARE.upper()))
    assert macs.of(host) == HARDWARE
    assert macs.unknown([host]) == set()
    assert not macs.hear(said("server1", nic0=HARDWARE))
    # A controller that starts again knows it before it has asked.
    assert NicMacs(LAB, store).of(host) == HARDWARE
    # Another NIC was plugged in.
    assert macs.hear(said("server1", nic0="0c:42:a1:00:00:02"))
    store.close()


def test_what_is_as_was_thought_changes_nothing() -> None:
    host = LAB.host("gpu0")
    macs = NicMacs(LAB)
    assert not macs.hear(said("server1", nic0=host.nic.mac))
    assert macs.unknown([host]) == set()


def test_a_mac_that_another_nic_has_is_not_believed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    macs = NicMacs(LAB)
    assert macs.hear(said("server1", nic0=HARDWARE))
    assert not macs.hear(said("server1", nic1=HARDWARE))
    assert (
        "server1.nic1 reports the MAC 0c:42:a1:00:00:01, which server1.nic0 has"
        in (caplog.text)
    )
    assert macs.of(LAB.host("gpu1")) == LAB.host("gpu1").nic.mac


def test_frames_arrive_at_the_mac_that_was_learned() -> None:
    lab = make_lab([(0, 1)], [0, 1])
    links = trace_links(lab, lab.initial_maps)
    sender, host = lab.hosts
    macs = NicMacs(lab)
    before = unicast(host)
    assert macs.hear(said(host.server.name, **{host.nic.name: HARDWARE}))
    network = FakeNetwork(lab, links, Forwarding(lab, macs.of).tables(links))
    assert network.send(sender, {**before, "eth_dst": HARDWARE}).arrived == (
        host.endpoint,
    )
    assert network.send(sender, before).arrived == ()
    assert network.send(sender, arp_request(host)).arrived == (host.endpoint,)


@simulated()
async def test_a_job_whose_nic_does_not_come_back_fails_and_says_so(
    cluster: Cluster,
) -> None:
    (job_id,) = await submit_running(cluster, job("job", "gpu0", "gpu2"))
    await cluster.traffic.drain(frozenset({LAB.host("gpu2").endpoint}))
    words = {
        "error": f"worker {job_id}-1 cannot continue: after 2 s nic2 has no carrier"
    }
    cluster.refusals[f"release {job_id}-1"] = httpx.Response(503, json=words)
    await cluster.traffic.undrain(cluster.circuits.maps)
    await cluster.until_state(job_id, JobState.FAILED)
    assert (
        f"worker {job_id}-1 cannot continue: after 2 s"
        in cluster.scheduler.job(job_id).message
    )
