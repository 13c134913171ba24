"""What hosts sent and received lately, of what the packet switches' ports counted."""

import time
from pathlib import Path

from patchlight.controller.packet_switches.openflow.client import Speaker
from patchlight.controller.packet_switches.openflow.flowtable import (
    SpeakerOptions,
)
from patchlight.controller.packet_switches.switches import PacketSwitches
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.wiring import trace_links
from patchlight.testbed.labfile.reader import load_lab
from patchlight.testbed.wire.agent_status import (
    AgentStatus,
    NicCounters,
    NicStatus,
)


def test_rates_are_means_of_the_last_seconds_that_were_counted(
    tmp_path: Path,
) -> None:
    lab = load_lab("ofc2022")
    switches = PacketSwitches(
        lab, Speaker(SpeakerOptions(tmp_path / "speaker.sock", (1, 2)))
    )
    assert switches.rates_bps() == {}
    for at, host, sent, received in (
        (0.0, "server1.gpu0", 9e9, 9e9),
        (85.0, "server3.gpu4", 1e9, 5e9),
        (95.0, "server1.gpu0", 1e9, 3e9),
        (100.0, "server1.gpu0", 3e9, 5e9),
    ):
        switches.port_rates.append(
            {"at": at, "host": host, "tx_bps": sent, "rx_bps": received}
        )
    assert switches.rates_bps() == {"server1.gpu0": (2e9, 4e9)}


def test_ten_minutes_of_rates_are_kept_in_memory(tmp_path: Path) -> None:
    lab = load_lab("ofc2022")
    switches = PacketSwitches(
        lab, Speaker(SpeakerOptions(tmp_path / "speaker.sock", (1, 2)))
    )
    for at in range(3 * 3600 * 64 // len(lab.hosts)):
        for host in lab.hosts:
            name = str(host.endpoint)
            switches.port_rates.append(
                {"at": float(at), "host": name, "tx_bps": 1.0}
            )
    assert at - switches.port_rates[0]["at"] == 599
    assert len(switches.port_rates) == 600 * len(lab.hosts)


def test_a_second_switch_is_told_of_for_as_long_as_it_comes_again(
    tmp_path: Path,
) -> None:
    lab = load_lab("ofc2022")
    switches = PacketSwitches(
        lab, Speaker(SpeakerOptions(tmp_path / "speaker.sock", (1, 2)))
    )
    one = lab.packet_switches[0]
    second = {
        "event": "second-switch",
        "datapath_id": one.datapath_id,
        "address": "10.0.0.9:7",
    }
    for at in (1000.0, 1068.0):  # the speaker tells of it once a minute
        switches.on_event(second, at)
        assert switches.second_from(at + 70.0) == {one.name: "10.0.0.9:7"}
    assert switches.second_from(1068.0 + 120.0) == {}


def _bench(tmp_path: Path) -> tuple[Lab, PacketSwitches]:
    lab = load_lab("ofc2022")
    return lab, PacketSwitches(
        lab, Speaker(SpeakerOptions(tmp_path / "speaker.sock", (1, 2)))
    )


def _nics(
    server: str, nic: str, sent: int, worker: str | None = None
) -> AgentStatus:
    counters = NicCounters(tx_bytes=sent, rx_bytes=sent and 1)
    told = NicStatus(
        name=nic, address="", state="leased", worker=worker, counters=counters
    )
    return AgentStatus(
        server=server, version="", runner="", gpus=[], nics=[told], workers=[]
    )


def test_a_nic_counts_where_no_switch_does_and_never_over_a_change_of_its_worker(
    tmp_path: Path,
) -> None:
    lab, switches = _bench(tmp_path)
    host = lab.hosts[0]
    for sent, worker in (
        (10, None),
        (1_000_010, None),
        (0, "w1"),
        (500, "w1"),
        (7_000_000, None),
    ):
        switches.count_nics(
            _nics(host.server.name, host.nic.name, sent, worker)
        )
    (sample,) = switches.port_rates
    assert (sample["host"], sample["by"], sample["port"]) == (
        host.name,
        "nic",
        0,
    )
    assert sample["tx_bps"] > 8e6 * lab.scale / 60


async def test_snmp_counts_before_the_driver_and_that_before_the_nic(
    tmp_path: Path,
) -> None:
    lab, switches = _bench(tmp_path)
    host = lab.hosts[0]
    await switches.follow(trace_links(lab, lab.initial_maps))
    peer = trace_links(lab, lab.initial_maps).peer(host.endpoint)
    assert peer is not None
    now = time.time()
    port = int(peer.port)
    switches.count("switch", peer.device, now - 9, {port: (0, 0)})
    switches.count("switch", peer.device, now - 8, {port: (1000, 0)})
    switches.count("snmp", peer.device, now - 9, {port: (0, 0)})
    switches.count("snmp", peer.device, now - 5, {port: (8000, 4000)})
    switches.count("switch", peer.device, now - 4, {port: (9000, 4000)})
    switches.count_nics(_nics(host.server.name, host.nic.name, 10))
    switches.count_nics(_nics(host.server.name, host.nic.name, 10_000_000))
    assert [
        (s["by"], s["switch"], s["port"]) for s in switches.port_rates
    ] == [
        ("switch", peer.device, port),
        ("snmp", peer.device, port),
    ]
    last = switches.port_rates[-1]
    assert (last["tx_bps"], last["rx_bps"]) == (
        16_000 * lab.scale,
        8_000 * lab.scale,
    )
    # It is held until a switch that is polled less often counts again.
    assert switches.rates_bps(since=now - 2) == {
        host.name: (last["tx_bps"], last["rx_bps"])
    }
