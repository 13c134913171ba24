"""Ports of the lab file among those of switches: which are missing, and how that is told."""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from patchlight.controller.packet_switches.openflow.client import Speaker
from patchlight.controller.packet_switches.openflow.flowtable import (
    SpeakerOptions,
)
from patchlight.controller.packet_switches.ports import (
    NumberedPorts,
    match_numbers,
    match_ports,
)
from patchlight.controller.packet_switches.switches import PacketSwitches
from patchlight.testbed.lab.reach import Reach
from patchlight.testbed.lab.wiring import trace_links
from patchlight.testbed.labfile.reader import parse_lab

# --- the rule -----------------------------------------------------------------------------------

BREAKOUT = {
    "Ethernet0": "1",
    "Ethernet1": "1",
    "Ethernet2": "1",
    "Ethernet3": "1",
}


@pytest.mark.parametrize(
    ("rows", "found", "said"),
    [
        (
            {"Ethernet0": "1", "Ethernet4": "02"},
            {1: "Ethernet0", 2: "Ethernet4"},
            {},
        ),
        (
            {**BREAKOUT, "Ethernet4": "2"},
            {2: "Ethernet4"},
            {
                1: "an ambiguous port 1: each of Ethernet0, Ethernet1, Ethernet2, Ethernet3 has"
            },
        ),
        (
            {"Ethernet0": "1", "Ethernet4": ""},
            {1: "Ethernet0"},
            {2: "no port 2: none of Ethernet0, Ethernet4 has index 2"},
        ),
        (
            {"Ethernet0": "", "Ethernet4": ""},
            {},
            {1: "of Ethernet0, Ethernet4", 2: "none of"},
        ),
        (
            {"Ethernet0": "-1", "Ethernet4": "two"},
            {},
            {1: "Ethernet4 has index 1", 2: "none of"},
        ),
        (
            {"Ethernet0": "0", "Ethernet4": "1", "Ethernet8": "2"},
            {},
            {
                1: "an ambiguous port 1: Ethernet0 has index 0, but",
                2: "begin with 1",
            },
        ),
        ({}, {}, {1: "none of its 0 ports", 2: "none of"}),
    ],
)
def test_a_number_of_several_ports_or_none_is_no_port(
    rows: Mapping[str, str], found: Mapping[int, str], said: Mapping[int, str]
) -> None:
    matched = match_numbers({1, 2}, rows)
    assert matched.found == found
    assert matched.missing.keys() == said.keys()
    for port, words in said.items():
        assert words in matched.missing[port]
        assert "'interfaces' in the lab file" in matched.missing[port]


def test_a_name_of_several_ports_and_two_names_of_one_are_no_ports() -> None:
    rows = {
        "Ethernet0": ["Ethernet0", "Eth1/1"],
        "Ethernet4": ["Ethernet4", "Eth1/2"],
    }
    assert match_ports({1: "Eth1/2", 2: "Ethernet0"}, rows).found == {
        1: "Ethernet4",
        2: "Ethernet0",
    }
    twice = match_ports({1: "Eth1/1", 2: "Ethernet0", 3: "Ethernet4"}, rows)
    assert twice.found == {3: "Ethernet4"}
    assert "Ethernet0 is ports 1, 2" in twice.missing[1]
    # The description of one is the name of the other.
    rows["Ethernet4"] = ["Ethernet4", "Ethernet0"]
    alike = match_ports({1: "Ethernet0", 2: "Ethernet4"}, rows)
    assert alike.found == {2: "Ethernet4"}
    assert (
        "each of Ethernet0, Ethernet4 is named Ethernet0" in alike.missing[1]
    )
    assert match_ports({1: ""}, {"Ethernet0": [""]}).found == {}


# --- ports with numbers -------------------------------------------------------------------------

THREE = {1: "s-1", 2: "s-2", 3: "s-3"}


@pytest.mark.parametrize(
    ("now", "missing"),
    [
        (THREE, {}),
        ({2: "s-2", 3: "s-3"}, {1: "no port 1"}),
        (
            {17: "s-1", 2: "s-2", 3: "s-3"},
            {1: "no port 1: s-1 has number 17 now"},
        ),
        (
            {1: "s-2", 2: "s-1", 3: "s-3"},
            {
                1: "another port 1: s-2, which was port 2",
                2: "another port 2: s-1, which was port 1",
            },
        ),
        # Another interface is plugged in: that is an operator's business.
        ({1: "new", 2: "s-2", 3: "s-3"}, {}),
        ({1: "", 2: "", 3: ""}, {}),
        (
            {1: "s-2", 2: "s-2", 3: "s-3"},
            {1: "another port 1: s-2, which was port 2"},
        ),
    ],
)
def test_a_port_that_is_gone_or_has_another_number(
    now: Mapping[int, str], missing: Mapping[int, str]
) -> None:
    ports = NumberedPorts({1, 2, 3})
    assert ports.see(THREE) == {}
    assert ports.see({**now, 40: "mgmt"}) == missing
    assert ports.see(THREE) == {}


def test_a_port_that_has_another_number_from_the_start() -> None:
    now = {17: "s-1", 2: "s-2", 3: "s-3"}
    ports = NumberedPorts({1, 2, 3})
    assert ports.see(now) == {1: "no port 1"}
    assert ports.see(THREE) == {}
    named = NumberedPorts({1, 2, 3}, ["s-1", "s-2", "s-3"])
    assert named.see(now) == {1: "no port 1: s-1 has number 17 now"}
    assert named.see({1: "s-3", 2: "s-2"}).keys() == {1, 3}


# --- in a lab -----------------------------------------------------------------------------------

LAB = parse_lab("""
name: two
network: 10.0.0.0/24
servers:
  - {name: h1, nics: [{name: nic0, address: 10.0.0.1}]}
  - {name: h2, nics: [{name: nic0, address: 10.0.0.2}]}
  - {name: h3, nics: [{name: nic0, address: 10.0.0.3}]}
  - {name: h4, nics: [{name: nic0, address: 10.0.0.4}]}
packet_switches:
  - {name: s1, datapath_id: 1, ports: 4}
  - {name: s2, datapath_id: 2, ports: 4}
circuit_switches:
  - {name: o, driver: dry-run, address: "h:1", ports: 8, cross_connects: [1-2]}
fibres: [h1.nic0 - s1.1, h2.nic0 - s1.2, s1.3 - s2.3, h3.nic0 - s2.1, h4.nic0 - o.1, s2.2 - o.2]
""")


LINKS = trace_links(LAB, LAB.initial_maps)


class Told:
    """Switches of the lab, and what was told of their ports."""

    def __init__(self, folder: Path) -> None:
        self.changes: list[tuple[str, int, str]] = []
        speaker = Speaker(SpeakerOptions(folder / "speaker.sock", (1, 2)))
        self.switches = PacketSwitches(
            LAB,
            speaker,
            on_missing=lambda *change: self.changes.append(change),
        )

    def event(self, kind: str, datapath_id: int, **fields: object) -> None:
        self.switches.on_event(
            {"event": kind, "datapath_id": datapath_id, **fields}, 0.0
        )

    def up(self, datapath_id: int, *numbers: int) -> None:
        ports = [self.port(datapath_id, n) for n in numbers]
        self.event("switch-up", datapath_id, address="", ports=ports)

    def changed(
        self, datapath_id: int, number: int, change: str, name: str = ""
    ) -> None:
        port = self.port(datapath_id, number)
        self.event(
            "port",
            datapath_id,
            change=change,
            **{**port, "name": name or port["name"]},
        )

    @staticmethod
    def port(datapath_id: int, number: int) -> dict[str, object]:
        return {"port": number, "name": f"s{datapath_id}-{number}", "up": True}

    def reach(self) -> Mapping[str, str]:
        down = self.switches.trunks_down()
        return Reach(LAB, LINKS, self.switches.unserved(), down).without_link

    def apart(self) -> Mapping[str, str]:
        down = self.switches.trunks_down()
        return Reach(LAB, LINKS, self.switches.unserved(), down).apart(
            LAB.hosts
        )


@pytest.fixture
async def told(tmp_path: Path) -> AsyncIterator[Told]:
    made = Told(tmp_path)
    await made.switches.follow(LINKS)
    for datapath_id in (1, 2):
        made.up(datapath_id, 1, 2, 3)
    yield made
    await made.switches.close()


async def test_hosts_at_a_missing_port_are_cut_off_until_it_is_back(
    told: Told,
) -> None:
    assert (told.changes, told.reach()) == ([], {})
    told.changed(1, 1, "removed")
    told.changed(1, 4, "removed")  # nothing is plugged in there
    assert told.switches.missing_by_switch() == {
        "s1": ["s1 has no port 1"],
        "s2": [],
    }
    assert told.reach() == {"h1.nic0": "s1 has no port 1"}
    told.changed(1, 17, "added", "s1-1")
    assert told.reach() == {
        "h1.nic0": "s1 has no port 1: s1-1 has number 17 now"
    }
    told.changed(1, 17, "removed", "s1-1")
    told.changed(1, 1, "added")
    assert (told.reach(), told.switches.missing_ports()) == ({}, {})
    assert told.changes == [
        ("s1", 1, "no port 1"),
        ("s1", 1, "no port 1: s1-1 has number 17 now"),
        ("s1", 1, "no port 1"),
        ("s1", 1, ""),
    ]


async def test_a_host_behind_circuits_is_cut_off_by_the_port_that_they_lead_to(
    told: Told,
) -> None:
    told.changed(2, 2, "removed")
    assert told.reach() == {"h4.nic0": "s2 has no port 2"}


async def test_switches_are_apart_without_the_port_of_their_only_link(
    told: Told,
) -> None:
    told.changed(1, 3, "removed")
    assert told.reach() == {}
    assert told.switches.ports_down("s1") == []
    assert told.apart().keys() == {"h3.nic0", "h4.nic0"}
    told.changed(1, 3, "added")
    assert told.apart() == {}


async def test_what_a_switch_lacks_when_it_comes_or_stays_away(
    told: Told,
) -> None:
    told.event("switch-down", 1)
    told.up(1, 2, 3)
    assert told.reach() == {"h1.nic0": "s1 has no port 1"}
    told.event("switch-down", 1)
    told.up(1, 1, 2, 3)
    assert told.reach() == {}


async def test_a_port_that_comes_before_its_switch_is_known_says_nothing(
    tmp_path: Path,
) -> None:
    told = Told(tmp_path)
    told.changed(1, 2, "changed")
    assert told.changes == []
