"""Draws labs from seeds."""

from __future__ import annotations

import random
from dataclasses import replace

from patchlight.testbed.generate.generate import RandomLabShape, lab_of
from patchlight.testbed.lab.model import CircuitSwitch, Endpoint, Fibre, Lab
from patchlight.testbed.lab.ocs_drivers import OCS_DRIVERS, WSS_DRIVERS
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.lab.spectrum import Channel, SpectrumMap
from patchlight.testbed.lab.wavelengths import Transceiver, WavelengthSwitch

DRIVERS = tuple(row.name for row in OCS_DRIVERS.values() if row.device)
KINDS = ("plain", "plain", "cascade", "line", "comb")
"""Topologies: NICs behind OCSs; a second OCS behind one of them; a line of several wavelengths
between two ROADMs behind one; a wavelength switch on a spare port."""


CHANNELS = tuple(Channel.parse(f"{193.1 + 0.05 * n:.3f}") for n in range(4))


def draw_lab(seed: int | str) -> Lab:
    """A lab of 2 to 12 servers, 1 to 4 circuit switches of any driver, 2 to 4 packet switches."""
    draw = random.Random(f"lab {seed}")
    kind = draw.choice(KINDS)
    leaves = draw.randint(2, 3)
    servers = draw.randint(1, 12 // leaves)
    shape = RandomLabShape(
        leaves,
        servers,
        draw.choice((1, 1, 2)),
        ocs=draw.randint(1, min(3 if kind == "cascade" else 4, leaves * servers)),
        spare=draw.randint(1, 3),
        oversubscription=draw.choice((1.0, 4.0)),
        switching_time_s=draw.choice((0.0, 0.025, 0.5)),
    )
    lab = lab_of(shape, "drawn")
    if kind == "cascade":
        lab = _with_second_ocs(lab)
    elif kind == "line":
        lab = _with_line(lab)
    elif kind == "comb":
        lab = _with_wavelength_switch(lab)
    switches = (
        replace(
            switch,
            driver=(driver := draw.choice(DRIVERS)),
            address=f"10.1.0.{number}:3082",
            user="admin",
            datapath_id=0x50 + number if driver == "openflow" else None,
        )
        for number, switch in enumerate(lab.circuit_switches, start=1)
    )
    return lab.with_changes(circuit_switches=tuple(switches))


def _behind_first(lab: Lab) -> dict[int, Fibre]:
    """The fibres between the first OCS and the first leaf whose ports a circuit uses, by port."""
    ocs = lab.circuit_switches[0]
    used = {c.inp for c in ocs.initial}
    return {
        port: fibre
        for port, (end, fibre) in sorted(lab.circuit_fibres[ocs.name].items())
        if end.device == lab.packet_switches[0].name and port in used
    }


def _rerouted(lab: Lab, through: dict[int, tuple[Endpoint, Endpoint]], *more: Fibre) -> Lab:
    """The lab with these fibres of the first OCS cut: each part ends at a port of another device,
    the OCS's first."""
    behind = _behind_first(lab)
    cut = {behind[port] for port in through}
    fibres = [fibre for fibre in lab.fibres if fibre not in cut]
    for port, (near, far) in through.items():
        at = Endpoint(lab.circuit_switches[0].name, str(port))
        end = lab.fibre_ends[at][0]
        rate_bps = behind[port].rate_bps
        fibres += [Fibre(at, near, rate_bps), Fibre(far, end, rate_bps)]
    return lab.with_changes(fibres=(*fibres, *more))


def _with_second_ocs(lab: Lab) -> Lab:
    behind = list(_behind_first(lab))
    pairs = [(n, n + len(behind)) for n in range(1, len(behind) + 1)]
    name = f"ocs{len(lab.circuit_switches) + 1}"
    second = replace(lab.circuit_switches[0], name=name, initial=PortMap.duplex(pairs))
    through = {
        port: (Endpoint(name, str(near)), Endpoint(name, str(far)))
        for port, (near, far) in zip(behind, pairs, strict=True)
    }
    lab = _rerouted(lab, through)
    return lab.with_changes(circuit_switches=(*lab.circuit_switches, second))


def _with_line(lab: Lab) -> Lab:
    """NIC and leaf port of each circuit have their own channel; two ROADMs join them on a line."""
    ports = list(_behind_first(lab))[: len(CHANNELS)]
    numbered = list(zip(ports, CHANNELS, strict=False))
    initial = SpectrumMap.parse(f"1-{n}@{c}" for n, (_, c) in enumerate(numbered, start=2))
    roadms = [_wavelength_switch(n, "lumentum-netconf", 8, 8, initial) for n in (1, 2)]
    through = {
        port: (Endpoint("wss1", str(n)), Endpoint("wss2", str(n)))
        for n, port in enumerate(ports, start=2)
    }
    colours = dict[Endpoint, Transceiver]()
    ocs: CircuitSwitch = lab.circuit_switches[0]
    for port, channel in numbered:
        for at in (port, ocs.initial.in_of[port]):
            colours[lab.fibre_ends[Endpoint(ocs.name, str(at))][0]] = Transceiver(channel)
    lab = _rerouted(lab, through, Fibre(Endpoint("wss1", "1"), Endpoint("wss2", "1")))
    return _coloured(lab.with_changes(wavelength_switches=tuple(roadms)), colours)


def _with_wavelength_switch(lab: Lab) -> Lab:
    """One at a free port of the last leaf, with nothing behind it."""
    last = lab.packet_switches[-1]
    free = Endpoint(last.name, str(last.ports + 1))
    initial = SpectrumMap.parse([f"1>2@{CHANNELS[0]}"])
    switch = _wavelength_switch(1, "waveshaper-http", 1, 4, initial)
    packet_switches = (*lab.packet_switches[:-1], replace(last, ports=last.ports + 1))
    lab = lab.with_changes(
        packet_switches=packet_switches,
        wavelength_switches=(switch,),
        fibres=(*lab.fibres, Fibre(free, Endpoint("wss1", "1"))),
    )
    return _coloured(lab, {free: Transceiver(CHANNELS[0])})


def _wavelength_switch(
    number: int, driver: str, inputs: int, outputs: int, initial: SpectrumMap
) -> WavelengthSwitch:
    assert driver in WSS_DRIVERS
    return WavelengthSwitch(
        f"wss{number}",
        inputs,
        outputs,
        initial=initial,
        driver=driver,
        address=f"10.2.0.{number}:3082",
    )


def _coloured(lab: Lab, transceivers: dict[Endpoint, Transceiver]) -> Lab:
    """The lab with these transceivers of NICs and packet switches."""
    servers = (
        replace(
            server,
            nics=tuple(
                replace(nic, transceiver=transceivers.get(Endpoint(server.name, nic.name)))
                for nic in server.nics
            ),
        )
        for server in lab.servers
    )
    switches = (
        replace(
            switch,
            transceivers=tuple(
                (int(end.port), transceiver)
                for end, transceiver in transceivers.items()
                if end.device == switch.name
            ),
        )
        for switch in lab.packet_switches
    )
    return lab.with_changes(servers=tuple(servers), packet_switches=tuple(switches))
