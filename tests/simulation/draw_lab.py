"""Draws labs from seeds."""

from __future__ import annotations

import dataclasses
import random

from patchlight.testbed.generate.generate import RandomLabShape, lab_of
from patchlight.testbed.lab.loops import harmful_loops
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.rules import Snmp
from patchlight.testbed.lab.wiring import trace_links
from tests.simulation.packet_switches import KINDS, port_names

DRIVERS = ("calient-tl1", "polatis-scpi", "polatis-tl1", "glimmerglass-tl1")


def draw_lab(seed: int | str) -> Lab:
    """A lab of 2 to 12 servers, 1 to 4 circuit switches of any driver, 2 to 4 packet switches."""
    draw = random.Random(f"lab {seed}")
    leaves = draw.randint(2, 3)
    servers = draw.randint(1, 12 // leaves // 2)
    shape = RandomLabShape(
        leaves,
        servers,
        draw.choice((1, 1, 2)),
        ocs=draw.randint(1, min(4, leaves * servers)),
        spare=draw.randint(1, 3),
        oversubscription=draw.choice((1.0, 4.0)),
        switching_time_s=draw.choice((0.0, 0.025, 0.5)),
    )
    lab = lab_of(shape, "drawn")
    switches = tuple(
        dataclasses.replace(
            switch, driver=draw.choice(DRIVERS), address=f"10.1.0.{number}:3082", user="admin"
        )
        for number, switch in enumerate(lab.circuit_switches, start=1)
    )
    return with_kinds(lab.with_changes(circuit_switches=switches), draw)


def with_kinds(lab: Lab, draw: random.Random) -> Lab:
    """The lab with packet switches of drawn kinds. Where a loop of them would be flooded they run a
    spanning tree."""
    drivers = list(KINDS)
    kinds = draw.choices(drivers, weights=[4 if d == "openflow" else 1 for d in drivers], k=99)

    named = [draw.random() < 0.5 for _ in kinds]

    def changed(*, spanning_tree: bool) -> Lab:
        switches = []
        for number, (switch, driver) in enumerate(zip(lab.packet_switches, kinds, strict=False)):
            is_open = driver == "openflow"
            where = f"10.2.0.{number}"
            switches.append(
                dataclasses.replace(
                    switch,
                    driver=driver,
                    datapath_id=switch.datapath_id if is_open else None,
                    interfaces=port_names(switch) if is_open and named[number] else (),
                    address="" if is_open or driver == "learning" else f"{where}:22",
                    vlan=100 if driver == "sonic" else None,
                    snmp=Snmp(address=f"{where}:161") if driver == "learning" else None,
                    spanning_tree=spanning_tree,
                )
            )
        return lab.with_changes(packet_switches=tuple(switches))

    made = changed(spanning_tree=False)
    links = trace_links(made, made.initial_maps).pairs()
    return changed(spanning_tree=True) if harmful_loops(made, links) else made
