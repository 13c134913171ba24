"""What hosts sent and received lately, of what the packet switches' ports counted."""

from pathlib import Path

from patchlight.controller.openflow.client import Speaker
from patchlight.controller.openflow.packet_switches import PacketSwitches
from patchlight.controller.openflow.speaker_process import SpeakerOptions
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
