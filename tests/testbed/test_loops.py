"""Loops through switches that flood, beside a search of every cycle."""

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from patchlight.testbed.lab.loops import closed_loops, harmful_loops
from patchlight.testbed.lab.model import (
    CircuitSwitch,
    Endpoint,
    Fibre,
    Lab,
    PacketSwitch,
)
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.lab.wiring import trace_links
from patchlight.testbed.labfile.oversights import oversights

Link = tuple[Endpoint, Endpoint]
PORTS = 4
KINDS = (
    ("openflow", False),
    ("learning", False),
    ("learning", True),
    ("linux-bridge", False),
)


def random_lab(dice: random.Random) -> Lab:
    """Switches of all kinds; some ports are plugged together, the others into an OCS."""
    switches = []
    for number in range(dice.randint(2, 6)):
        driver, spans = dice.choice(KINDS)
        switch = PacketSwitch(f"tor{number}", number + 1, PORTS, driver=driver)
        switches.append(replace(switch, spanning_tree=spans))
    ends = [
        Endpoint(s.name, str(p)) for s in switches for p in range(1, PORTS + 1)
    ]
    dice.shuffle(ends)
    fixed = dice.randrange(0, 5, 2)
    fibres = [
        Fibre(a, b)
        for a, b in zip(ends[:fixed:2], ends[1:fixed:2], strict=True)
    ]
    fibres += [
        Fibre(end, Endpoint("ocs1", str(p)))
        for p, end in enumerate(ends[fixed:], 1)
    ]
    ocs = CircuitSwitch("ocs1", "calient-tl1", "127.0.0.1:1", 32)
    lab = Lab(
        "loops", packet_switches=tuple(switches), circuit_switches=(ocs,)
    )
    return lab.with_changes(fibres=tuple(fibres))


def random_links(lab: Lab, dice: random.Random) -> tuple[Link, ...]:
    ports = list(lab.circuit_ends["ocs1"])
    dice.shuffle(ports)
    few = ports[: 2 * dice.randint(0, len(ports) // 2)]
    pairs = list(zip(few[::2], few[1::2], strict=True))
    return trace_links(lab, {"ocs1": PortMap.duplex(pairs)}).pairs()


def harmful_cycles(lab: Lab, links: tuple[Link, ...]) -> Iterator[set[Link]]:
    """Every cycle that a frame could go around forever: all sets of links are tried."""
    kind = {switch.name: switch for switch in lab.packet_switches}
    for size in range(1, min(len(links), len(kind)) + 1):
        for some in combinations(links, size):
            devices = {end.device for link in some for end in link}
            floods = any(kind[name].floods for name in devices)
            spans = all(kind[name].spanning_tree for name in devices)
            if floods and not spans and is_cycle(some):
                yield set(some)


def is_cycle(links: tuple[Link, ...]) -> bool:
    """Whether one walk uses each link once, passes each device once, and ends where it began."""
    ends = [end.device for link in links for end in link]
    if any(ends.count(name) != 2 for name in ends):
        return False
    reached = {ends[0]}
    for _ in links:
        for a, b in links:
            if reached & {a.device, b.device}:
                reached |= {a.device, b.device}
    return reached == set(ends)


@pytest.mark.parametrize("seed", range(200))
def test_random_maps_beside_a_search_of_every_cycle(seed: int) -> None:
    dice = random.Random(seed)
    lab = random_lab(dice)
    before = random_links(lab, dice)
    after = random_links(lab, dice)
    cycles = list(harmful_cycles(lab, after))
    found = harmful_loops(lab, after)
    for cycle in cycles:
        assert any(cycle <= set(loop) for loop in found)
    for loop in found:
        assert any(cycle <= set(loop) for cycle in cycles)
    told = closed_loops(lab, before, after)
    new = set(after) - set(before)
    if any(cycle & new for cycle in cycles):
        assert told
    if not list(harmful_cycles(lab, before)):
        assert bool(told) == bool(cycles)
    # Taking links away closes none.
    assert not closed_loops(
        lab, after, [link for link in after if dice.random() < 0.5]
    )


LOOP = """\
name: two
packet_switches:
  - {name: tor1, driver: learning, ports: 4}
  - {name: tor2, driver: learning, ports: 4}
fibres:
  - tor1.1 - tor2.1
  - tor1.2 - tor2.2
"""


def test_lab_check_says_so_of_the_initial_wiring(tmp_path: Path) -> None:
    path = tmp_path / "two.yaml"
    path.write_text(LOOP)
    (issue,) = oversights(path)
    assert issue.line == 6
    assert "a loop through switches that flood" in issue.message
    assert "tor1.1 – tor2.1, tor1.2 – tor2.2" in issue.message
    path.write_text(
        LOOP.replace("ports: 4}", "ports: 4, spanning_tree: true}")
    )
    assert not oversights(path)
    path.write_text(LOOP.replace("  - tor1.2 - tor2.2\n", ""))
    assert not oversights(path)
