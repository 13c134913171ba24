"""Light that is followed channel by channel."""

import pytest

from patchlight.controller.changes.power import expected_powers
from patchlight.testbed.lab.model import Endpoint, Lab
from patchlight.testbed.lab.optical_links import Light
from patchlight.testbed.lab.portmap import CrossConnect, PortMap
from patchlight.testbed.lab.spectrum import Channel, SpectrumMap
from patchlight.testbed.lab.wiring import Links, trace_links
from patchlight.testbed.labfile.reader import LabFileError, parse_lab

NODES = """
name: nodes
network: 10.0.0.0/24
servers:
  - name: server[1-4]
    nics: [{name: nic0, address: "10.0.0.[1-4]", transceiver: {tunable: 193.100-193.250}}]
"""
WSS = (
    NODES
    + """
wavelength_switches: [{name: wss1, inputs: 4, insertion_loss: 5dB}]
fibres: ["server[1-4].nic0 - wss1.[1-4]"]
"""
)
SAME = (
    NODES
    + """
passive_parts: [{name: star1, kind: coupler, ports: 4}]
fibres: ["server[1-4].nic0 - star1.[1-4]"]
"""
)
STAR = """
name: star
network: 10.0.0.0/24
servers:
  - {name: server1, nics: [{name: nic0, address: 10.0.0.1, transceiver: {channel: 193.1}}]}
  - {name: server2, nics: [{name: nic0, address: 10.0.0.2, transceiver: {channel: 193.15}}]}
  - {name: server3, nics: [{name: nic0, address: 10.0.0.3, transceiver: {channel: 193.2}}]}
  - {name: server4, nics: [{name: nic0, address: 10.0.0.4, transceiver: {channel: 193.25}}]}
passive_parts: [{name: star1, kind: coupler, ports: 4}]
fibres: ["server[1-4].nic0 - star1.[1-4]"]
"""
STAR_OF_FIXED = """
name: fixed
network: 10.0.0.0/24
servers:
  - {name: server1, nics: [{name: nic0, address: 10.0.0.1, transceiver: {channel: 193.1}}]}
  - {name: server2, nics: [{name: nic0, address: 10.0.0.2, transceiver: {channel: 193.15}}]}
  - {name: server3, nics: [{name: nic0, address: 10.0.0.3, transceiver: {channel: 193.2}}]}
passive_parts: [{name: star1, kind: coupler, ports: 3}]
fibres: ["server[1-3].nic0 - star1.[1-3]"]
"""
AWG = (
    NODES
    + """
passive_parts: [{name: awg1, kind: awg, ports: 4, channels: 193.100-193.250}]
fibres: ["server[1-4].nic0 - awg1.[1-4]"]
"""
)
MIXED = """
name: mixed
network: 10.0.0.0/24
servers:
  - name: server1
    nics: [{name: nic0, address: 10.0.0.1, transceiver: {channel: 193.1, launch_power: 2dBm}}]
  - name: server2
    nics: [{name: nic0, address: 10.0.0.2, transceiver: {channel: 193.15}}]
packet_switches:
  - name: tor1
    datapath_id: 1
    ports: 2
    transceivers: {1: {channel: 193.1, sensitivity: -12dBm}, 2: {channel: 193.15}}
circuit_switches:
  - {name: ocs1, driver: dry-run, address: "h:1", ports: 4, cross_connects: [1-2]}
passive_parts:
  - {name: "mux[1-2]", kind: multiplexer, channels: 193.100-193.150}
fibres:
  - server[1-2].nic0 - mux1.[2-3]
  - mux1.1 - ocs1.1
  - ocs1.2 - mux2.1
  - {ends: "mux2.[2-3] - tor1.[1-2]", rate: 100Gbps}
"""


def nic(number: int) -> Endpoint:
    return Endpoint(f"server{number}", "nic0")


def names(links: Links) -> list[str]:
    return [f"{a.device}-{b.device}" for a, b in links.pairs()]


def tuned(
    lab: Lab, *texts: str, spectra: dict[str, SpectrumMap] | None = None
) -> Light:
    channels = {nic(n): Channel.parse(text) for n, text in enumerate(texts, 1)}
    return Light(lab, {}, spectra, channels)


def test_a_wavelength_switch_sends_each_channel_its_own_way() -> None:
    lab = parse_lab(WSS)
    spectrum = SpectrumMap.parse(
        ["1-2@193.1", "3-4@193.1-1.5dB", "1-3@193.15"]
    )
    links = trace_links(lab, {}, {"wss1": spectrum})
    assert names(links) == ["server1-server2", "server3-server4"]
    path = links.paths[nic(3)]
    assert path.channel == Channel(0)
    assert path.through == (("wss1", CrossConnect(3, 4)),)
    assert path.loss_db == pytest.approx(0.3 + 5 + 1.5 + 0.3)
    assert path.hops == ()
    other = tuned(lab, "193.15", "193.1", "193.15", spectra={"wss1": spectrum})
    first = other.path(nic(1))
    assert first is not None
    assert first.sink == nic(3)
    assert names(trace_links(lab, {})) == []


def test_signals_of_one_channel_that_meet_are_both_lost() -> None:
    lab = parse_lab(STAR)
    light = tuned(lab, "193.100", "193.150", "193.150", "193.200")
    assert {(m.one.source, m.other.source) for m in light.meetings} == {
        (nic(2), nic(3))
    }
    assert [path.sink for path in light.arrivals[nic(1)]] == [
        nic(2),
        nic(3),
        nic(4),
    ]
    # Light of 2 and 3 meets on the fibres to 1 and 4; each still has the fibre to the other.
    assert [path.sink for path in light.arrivals[nic(2)]] == [nic(3)]
    assert (
        tuned(lab, *(f"193.{n}" for n in (100, 150, 200, 250))).meetings == ()
    )


def test_signals_that_overlap_in_part_meet_as_well() -> None:
    lab = parse_lab(STAR_OF_FIXED)
    light = tuned(lab, "193.100/75", "193.150")
    assert [str(meeting) for meeting in light.meetings] == [
        "two signals of one channel meet on the fibre at star1.3, "
        "server1.nic0 (193.100/75) and server2.nic0 (193.150)"
    ]


def test_two_lasers_on_one_channel_of_one_fibre_are_a_mistake_with_its_place() -> (
    None
):
    with pytest.raises(LabFileError) as caught:
        parse_lab(SAME)
    first = caught.value.issues[0]
    assert (first.line, first.column) == (9, 10)
    assert (
        "two signals of one channel meet on the fibre at star1.2, server1.nic0 (193.100)"
        in (first.message)
    )


def test_an_awg_router_gives_each_pair_a_channel() -> None:
    lab = parse_lab(AWG)
    for steps, partner in ((0, 1), (8, 2), (16, 3), (24, 4)):
        light = Light(lab, {}, None, {nic(1): Channel(steps)})
        assert [path.sink for path in light.arrivals[nic(1)]] == [nic(partner)]
    # All at once: at the start each sends the first channel, which comes back to itself.
    assert Light(lab, {}).meetings == ()
    assert names(trace_links(lab, {})) == [
        f"server{n}-server{n}" for n in range(1, 5)
    ]


def test_channels_share_a_fibre_through_a_circuit_switch_and_have_their_budgets() -> (
    None
):
    lab = parse_lab(MIXED)
    links = trace_links(lab, lab.initial_maps)
    assert names(links) == ["server1-tor1", "server2-tor1"]
    path = links.paths[nic(1)]
    assert [name for name, _ in path.through] == ["mux1", "ocs1", "mux2"]
    assert path.hops == (("ocs1", CrossConnect(1, 2)),)
    assert path.loss_db == pytest.approx(4 * 0.3 + 3 + 1.5 + 3)
    assert path.rate_bps == 100_000_000_000
    assert set(links.sources("ocs1", [CrossConnect(1, 2)])) == {nic(1), nic(2)}
    expected = expected_powers(lab, links)["ocs1", CrossConnect(2, 1)]
    assert expected.power_dbm == pytest.approx(-(0.3 + 3 + 0.3 + 1.5))
    assert trace_links(lab, {"ocs1": PortMap()}).pairs() == ()


def test_light_that_is_too_weak_for_its_receiver_makes_no_link() -> None:
    weak = MIXED.replace("-12dBm", "-6dBm")
    lab = parse_lab(weak)
    links = trace_links(lab, lab.initial_maps)
    assert names(links) == ["server2-tor1"]
    assert links.light is not None
    ((path, power_dbm),) = links.light.weak
    assert (path.sink, round(power_dbm, 2)) == (Endpoint("tor1", "1"), -6.7)


def test_light_without_a_channel_passes_no_filter() -> None:
    lab = parse_lab(MIXED.replace(", transceiver: {channel: 193.15}}", "}"))
    links = trace_links(lab, lab.initial_maps)
    assert names(links) == ["server1-tor1"]


def test_light_that_is_retuned_is_as_light_that_is_followed_anew() -> None:
    lab = parse_lab(STAR)
    ends = [host.endpoint for host in lab.hosts]
    channels = {end: Channel(8 * n) for n, end in enumerate(ends)}
    light = Light(lab, {}, None, channels)
    assert {len(paths) for paths in light.arrivals.values()} == {3}
    off = [ends[3]]
    moved = channels | {ends[1]: channels[ends[0]]}
    retuned = light.retuned(moved, off)
    anew = Light(lab, {}, None, moved, off)
    assert retuned.arrivals == anew.arrivals
    assert retuned.meetings == anew.meetings
    assert ends[3] not in retuned.arrivals
    # And what was followed before is as it was.
    assert light.retuned(channels, ()).arrivals == light.arrivals


def test_where_light_is_destroyed_is_the_first_fibre_on_each_way() -> None:
    lab = parse_lab(STAR)
    assert not any(Light(lab, {}).destroyed.values())
    one, two = (Endpoint(f"server{n}", "nic0") for n in (1, 2))
    same = Light(lab, {}, None, {one: Channel(0), two: Channel(0)})
    assert [str(at) for at in same.destroyed[one]] == ["star1.3", "star1.4"]
    assert [str(path.sink) for path in same.arrivals[one]] == ["server2.nic0"]


def test_what_arrives_at_a_device_is_told_with_its_power() -> None:
    light = Light(parse_lab(STAR), {})
    arriving = light.arriving("star1")
    assert {
        port: [str(s) for s in signals] for port, signals in arriving.items()
    } == {
        n: [f"server{n}.nic0 ({193.05 + 0.05 * n:.3f})"] for n in (1, 2, 3, 4)
    }
    assert {
        round(dbm, 2)
        for signals in arriving.values()
        for dbm in signals.values()
    } == {-0.3}


def test_on_a_star_all_are_peers_though_no_two_have_a_link() -> None:
    links = trace_links(parse_lab(STAR), {})
    one = Endpoint("server1", "nic0")
    assert links.peer(one) is None
    assert [str(peer) for peer in links.peers(one)] == [
        f"server{n}.nic0" for n in (2, 3, 4)
    ]
    assert links.peers(Endpoint("server9", "nic0")) == ()
