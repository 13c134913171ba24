"""Draws labs from seeds."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from patchlight.testbed.generate.generate import RandomLabShape, lab_of
from patchlight.testbed.lab.loops import harmful_loops
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.ocs_drivers import OCS_DRIVERS
from patchlight.testbed.lab.rules import Snmp
from patchlight.testbed.lab.wiring import trace_links
from patchlight.testbed.labfile.reader import parse_lab
from tests.simulation.packet_switches import KINDS, port_names

DRIVERS = tuple(
    row.name
    for row in OCS_DRIVERS.values()
    # gRPC waits in threads of its own, on the machine's clock.
    if row.device and row.name != "ocp-gnmi"
)

_CASCADE = """
name: cascade
network: 10.0.0.0/24
servers:
  - name: server[1-{n}]
    management: server[1-{n}]:8471
    gpus: [{{name: gpu0, model: fast}}]
    nics: [{{name: nic0, gpu: gpu0, address: "10.0.0.[1-{n}]"}}]
packet_switches: [{{name: "leaf[1-2]", datapath_id: "0x[1-2]", ports: 16}}]
circuit_switches:
  - {{name: ocs1, driver: dry-run, address: "x:1", ports: 16, cross_connects: ["[1-6]-[11-16]"]}}
  - {{name: ocs2, driver: dry-run, address: "x:2", ports: 32, cross_connects: ["[11-16]-[17-22]"]}}
fibres:
  - server[1-{n}].nic0 - ocs1.[1-{n}]
  - ocs1.[11-16] - ocs2.[11-16]
  - ocs2.[17-22] - leaf1.[1-6]
  - ocs2.[23-28] - leaf2.[1-6]
  - leaf1.16 - leaf2.16
"""
"""Every NIC passes two OCSs on its way to a leaf."""

_COLOURED = """
name: coloured
network: 10.0.0.0/24
defaults: {gpu: {model: fast}}
servers:
  - {name: s1, management: "s1:8471", gpus: [{name: gpu0}], nics: [{name: nic0, gpu: gpu0,
      address: 10.0.0.1, transceiver: {channel: 193.1}}]}
  - {name: s2, management: "s2:8471", gpus: [{name: gpu0}], nics: [{name: nic0, gpu: gpu0,
      address: 10.0.0.2, transceiver: {channel: 193.15}}]}
  - {name: s3, management: "s3:8471", gpus: [{name: gpu0}], nics: [{name: nic0, gpu: gpu0,
      address: 10.0.0.3, transceiver: {channel: 193.2}}]}
packet_switches:
  - name: leaf1
    datapath_id: 0x1
    ports: 5
    transceivers: {1: {channel: 193.1}, 2: {channel: 193.15}, 3: {channel: 193.2}}
  - {name: leaf2, datapath_id: 0x2, ports: 6, transceivers: {6: {channel: 193.1}}}
circuit_switches:
  - {name: ocs1, driver: dry-run, address: "x:1", ports: 16, cross_connects: ["[1-3]-[5-7]"]}
wavelength_switches:
  - name: wss[1-2]
    driver: lumentum-netconf
    address: 10.2.0.[1-2]:3082
    inputs: 8
    outputs: 8
    cross_connects: ["1-2@193.1", "1-3@193.15", "1-4@193.2"]
  - name: wss3
    driver: waveshaper-http
    address: 10.2.0.3:3082
    inputs: 1
    outputs: 4
    cross_connects: ["1>2@193.1"]
fibres:
  - s[1-3].nic0 - ocs1.[1-3]
  - ocs1.[5-7] - wss1.[2-4]
  - wss1.1 - wss2.1
  - wss2.[2-4] - leaf1.[1-3]
  - ocs1.[9-12] - leaf2.[1-4]
  - leaf1.5 - leaf2.5
  - leaf2.6 - wss3.1
"""
"""Two ROADMs join three wavelengths on a line to a leaf; another wavelength switch is on a spare
port."""


def draw_lab(seed: int | str, drivers: Sequence[str] = DRIVERS) -> Lab:
    """A lab of 2 to 12 servers, 1 to 4 circuit switches of any of these drivers, 2 to 4 packet
    switches."""
    draw = random.Random(f"lab {seed}")
    lab = _drawn(draw)
    switches = (
        replace(
            switch,
            driver=(driver := draw.choice(drivers)),
            address=f"10.1.0.{number}:3082",
            switching_time_s=draw.choice((0.0, 0.025, 0.5)),
            datapath_id=0x50 + number if driver == "openflow" else None,
        )
        for number, switch in enumerate(lab.circuit_switches, start=1)
    )
    (poll_s,) = draw.choices((1.0, 10.0, 60.0), weights=(1, 4, 45))
    drawn = lab.with_changes(
        circuit_switches=tuple(switches), controller_poll_s=poll_s
    )
    return drawn if lab.coloured else with_kinds(drawn, draw)


def _drawn(draw: random.Random) -> Lab:
    kind = draw.choice(("plain", "plain", "cascade", "coloured"))
    if kind == "cascade":
        return parse_lab(_CASCADE.format(n=draw.randint(2, 6)))
    if kind == "coloured":
        return parse_lab(_COLOURED)
    leaves = draw.randint(2, 3)
    servers = draw.randint(1, 12 // leaves)
    shape = RandomLabShape(
        leaves,
        servers,
        draw.choice((1, 1, 2)),
        ocs=draw.randint(1, min(4, leaves * servers)),
        spare=draw.randint(1, 3),
        oversubscription=draw.choice((1.0, 4.0)),
    )
    return lab_of(shape, "drawn")


def with_kinds(lab: Lab, draw: random.Random) -> Lab:
    """The lab with packet switches of drawn kinds. Where a loop of them would be flooded they run a
    spanning tree."""
    drivers = list(KINDS)
    kinds = draw.choices(
        drivers, weights=[4 if d == "openflow" else 1 for d in drivers], k=99
    )

    named = [draw.random() < 0.5 for _ in kinds]

    def changed(*, spanning_tree: bool) -> Lab:
        switches = []
        for number, (switch, driver) in enumerate(
            zip(lab.packet_switches, kinds, strict=False)
        ):
            is_open = driver == "openflow"
            where = f"10.2.0.{number}"
            switches.append(
                replace(
                    switch,
                    driver=driver,
                    datapath_id=switch.datapath_id if is_open else None,
                    interfaces=port_names(switch)
                    if is_open and named[number]
                    else (),
                    address=""
                    if is_open or driver == "learning"
                    else f"{where}:22",
                    vlan=100 if driver == "sonic" else None,
                    snmp=Snmp(address=f"{where}:161")
                    if driver == "learning"
                    else None,
                    spanning_tree=spanning_tree,
                )
            )
        return lab.with_changes(packet_switches=tuple(switches))

    made = changed(spanning_tree=False)
    links = trace_links(made, made.initial_maps).pairs()
    return changed(spanning_tree=True) if harmful_loops(made, links) else made
