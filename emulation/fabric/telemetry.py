"""Emulates the management of packet switches: each with telemetry has net-snmp and lldpd, which see
its ports only by their names, and answer in the fabric's namespace."""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from patchlight.emulation.fabric.plan import (
    fabric_namespace,
    is_machine,
    switch_port_name,
)
from patchlight.emulation.fabric.processes import LabService
from patchlight.testbed.lab.model import Lab, PacketSwitch
from patchlight.testbed.lab.rules import Snmp
from patchlight.testbed.linux import namespaces
from patchlight.testbed.linux.sockets import split_address, unix_socket_answers

PROGRAMS = ("snmpd", "lldpd")
_SBIN = "/usr/sbin"
_FIRST_PORT = 1161


def emulated_telemetry(lab: Lab) -> tuple[PacketSwitch, ...]:
    """The packet switches, those in the fabric's namespace with the addresses of their emulated
    agents; without telemetry, if Debian's programs are not installed."""
    there = all(shutil.which(program, path=_SBIN) for program in PROGRAMS)
    agents = [
        Snmp(f"127.0.0.1:{_FIRST_PORT + n}")
        if there and s.snmp and not is_machine(s)
        else None
        for n, s in enumerate(lab.packet_switches)
    ]
    return tuple(
        replace(s, snmp=a)
        for s, a in zip(lab.packet_switches, agents, strict=True)
    )


def snmp_switches(lab: Lab) -> dict[str, PacketSwitch]:
    """The packet switches with SNMP, by name."""
    return {
        switch.name: switch
        for switch in lab.packet_switches
        if switch.snmp is not None
    }


def telemetry_services(
    lab: Lab, run_dir: Path
) -> Iterator[Sequence[LabService]]:
    """The agents of the switches in this runtime lab, then their LLDP daemons, which join them."""
    switches = snmp_switches(lab).values()
    folder = run_dir / "snmp"
    fabric = namespaces.namespace_path(fabric_namespace(lab.name))
    for program in PROGRAMS if switches else ():
        # lldpd configures itself as a user of its own.
        folder.mkdir(
            mode=0o711,
            exist_ok=True,
        )
        yield [
            LabService(
                f"{program}-{switch.name}",
                command,
                ready=partial(unix_socket_answers, answers),
                namespace=fabric,
                environment={"MIBS": ""},
                abrupt=True,
            )
            for switch in switches
            for command, answers in [_command(program, switch, folder)]
        ]


def _command(
    program: str,
    switch: PacketSwitch,
    folder: Path,
) -> tuple[list[str], Path]:
    """How to start it, and a socket where it answers."""
    assert switch.snmp is not None
    here = partial(folder.joinpath)
    name = switch.name
    run = f"/usr/sbin/{program}"
    joined = here(f"{name}.agentx")
    config = here(f"{name}.{program}.conf")
    if program == "snmpd":
        port = split_address(switch.snmp.address)[1]
        config.write_text(
            f"agentaddress udp:127.0.0.1:{port}\nrocommunity public\nsysName {name}\n"
            f"master agentx\nagentXSocket {joined}\n"
        )
        state = f"--persistentDir={here(name)}"
        return [
            run,
            "-f",
            "-LE",
            "3",
            "-I",
            "-smux",
            "-C",
            "-c",
            str(config),
            state,
        ], joined
    config.write_text(
        f"configure system hostname {name}\nconfigure system chassisid {name}\n"
        "configure lldp portidsubtype ifname\nconfigure lldp tx-interval 5\n"
    )
    control = here(f"{name}.lldpd")
    ports = switch_port_name(name, "*")
    options = [
        "-I",
        ports,
        "-u",
        str(control),
        "-O",
        str(config),
    ]
    return [
        run,
        "-d",
        "-x",
        "-X",
        str(joined),
        *options,
    ], control
