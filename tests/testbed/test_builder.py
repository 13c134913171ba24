"""Labs made in Python: what is left out is filled in, and all mistakes come at once."""

import pytest

from patchlight import Lab, LabBuilder, write_lab
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.wiring import trace_links
from patchlight.testbed.labfile.reader import parse_lab


def small() -> LabBuilder:
    build = LabBuilder("small", network="10.1.0.0/24", scale=10)
    build.ocs("ocs1", driver="polatis-tl1", switching_time="20ms")
    build.switch("tor1")
    for name in ("server1", "server2"):
        build.server(name, gpus=["A100", "A100"], rate="40Gbps")
    return build


def test_ports_addresses_and_numbers_are_filled_in() -> None:
    build = small()
    assert build.fibre("server1", "ocs1") == ("server1.nic0", "ocs1.1")
    assert build.fibre("server1", "ocs1", loss="0.5dB") == (
        "server1.nic1",
        "ocs1.2",
    )
    assert build.fibre("tor1.5", "ocs1") == ("tor1.5", "ocs1.3")
    assert build.fibre("tor1", "server2") == ("tor1.1", "server2.nic0")
    build.circuit("server1.nic0", "tor1.5")
    lab = build.lab()
    assert [str(host.nic.address) for host in lab.hosts] == [
        f"10.1.0.{n}" for n in range(1, 5)
    ]
    assert (lab.packet_switches[0].ports, lab.circuit_switches[0].ports) == (
        5,
        3,
    )
    assert lab.circuit_switches[0].switching_time_s == 0.02
    assert lab.fibres[1].loss_db == 0.5
    assert lab.scale == 10
    lit = trace_links(lab, lab.initial_maps)
    assert lit.switch_of(lab, lab.host("server1.gpu0").endpoint) == "tor1"
    assert parse_lab(write_lab(lab)) == lab
    assert build.lab() == lab


def test_every_mistake_comes_at_once_without_lines_of_a_file() -> None:
    build = small()
    build.fibre("server1.nic7", "tor1")
    build.fibre("tor1.1", "ocs1.1", rate="40")
    with pytest.raises(BadInput) as caught:
        build.lab()
    message = caught.value.message
    assert "server server1 has no NIC 'nic7'" in message
    assert (
        "expected a rate with its unit" in message
        or "is not a rate" in message
    )
    assert "port tor1.1 is used twice" in message
    assert message.startswith("lab small: ")


def test_what_cannot_be_is_refused_where_it_is_said() -> None:
    build = small()
    with pytest.raises(BadInput, match="lab small already has tor1"):
        build.server("tor1")
    with pytest.raises(BadInput, match="no device 'tor9'"):
        build.fibre("server1", "tor9")
    build.fibre("server1", "tor1")
    build.fibre("server1", "tor1")
    with pytest.raises(
        BadInput, match="every port of server1 already has a fibre"
    ):
        build.fibre("server1", "tor1")
    build.circuit("server1.nic0", "tor1.1")
    with pytest.raises(BadInput, match="do not end on one OCS"):
        build.lab()
    with pytest.raises(BadInput, match="is not a network"):
        LabBuilder("x", network="many")
    tiny = LabBuilder("tiny", network="10.0.0.0/30")
    with pytest.raises(BadInput, match="is full"):
        tiny.server("s", nics=3)


def test_a_lab_without_anything_is_a_lab() -> None:
    assert LabBuilder("bare").lab() == Lab(
        "bare", network=LabBuilder("bare").lab().network
    )


def test_a_lab_with_wavelengths() -> None:
    build = LabBuilder("coloured")
    build.wavelength_switch("wss1", inputs=2, cross_connects=["1-2@193.1"])
    build.passive_part("star1", "coupler", ports=3)
    for name in ("server1", "server2"):
        build.server(name)
        build.fibre(name, "wss1")
    assert build.fibre("server1.nic1", "star1") == ("server1.nic1", "star1.1")
    with pytest.raises(
        BadInput, match="every port of wss1 already has a fibre"
    ):
        build.fibre("star1", "wss1")
    with pytest.raises(BadInput, match="already has star1"):
        build.switch("star1")
    with pytest.raises(BadInput, match="server1 has no NIC 'nic1'"):
        build.lab()
