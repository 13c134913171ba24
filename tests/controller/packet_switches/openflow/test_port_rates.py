"""What hosts sent and received lately, of what the packet switches' ports counted."""

from pathlib import Path

from patchlight.controller.packet_switches.openflow.client import Speaker
from patchlight.controller.packet_switches.openflow.flowtable import SpeakerOptions
from patchlight.controller.packet_switches.switches import PacketSwitches
from patchlight.testbed.labfile.reader import load_lab


def test_rates_are_means_of_the_last_seconds_that_were_counted(tmp_path: Path) -> None:
    lab = load_lab("ofc2022")
    switches = PacketSwitches(lab, Speaker(SpeakerOptions(tmp_path / "speaker.sock", (1, 2))))
    assert switches.rates_bps() == {}
    for at, host, sent, received in (
        (0.0, "server1.gpu0", 9e9, 9e9),
        (85.0, "server3.gpu4", 1e9, 5e9),
        (95.0, "server1.gpu0", 1e9, 3e9),
        (100.0, "server1.gpu0", 3e9, 5e9),
    ):
        switches.port_rates.append({"at": at, "host": host, "tx_bps": sent, "rx_bps": received})
    assert switches.rates_bps() == {"server1.gpu0": (2e9, 4e9)}


def test_ten_minutes_of_rates_are_kept_in_memory(tmp_path: Path) -> None:
    lab = load_lab("ofc2022")
    switches = PacketSwitches(lab, Speaker(SpeakerOptions(tmp_path / "speaker.sock", (1, 2))))
    for at in range(3 * 3600 * 64 // len(lab.hosts)):
        for host in lab.hosts:
            name = str(host.endpoint)
            switches.port_rates.append({"at": float(at), "host": name, "tx_bps": 1.0})
    assert at - switches.port_rates[0]["at"] == 599
    assert len(switches.port_rates) == 600 * len(lab.hosts)


def test_a_second_switch_is_told_of_for_as_long_as_it_comes_again(tmp_path: Path) -> None:
    lab = load_lab("ofc2022")
    switches = PacketSwitches(lab, Speaker(SpeakerOptions(tmp_path / "speaker.sock", (1, 2))))
    one = lab.packet_switches[0]
    second = {"event": "second-switch", "datapath_id": one.datapath_id, "address": "10.0.0.9:7"}
    for at in (1000.0, 1068.0):  # the speaker tells of it once a minute
        switches.on_event(second, at)
        assert switches.second_from(at + 70.0) == {one.name: "10.0.0.9:7"}
    assert switches.second_from(1068.0 + 120.0) == {}
