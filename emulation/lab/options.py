"""Defines the options of an emulated lab, and the runtime lab that its processes read."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict

from patchlight.emulation.fabric.lab_state import recorded_labs, run_dir
from patchlight.emulation.fabric.telemetry import emulated_telemetry
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.model import Lab, OpticalSwitch
from patchlight.testbed.lab.rules import NOTHING_SAID, PolicyChoice
from patchlight.testbed.linux.sockets import free_ports

_MOST_SERVERS_WITH_AGENTS = 16
_USUAL_API_PORT = 8470


class LabKeywords(TypedDict, total=False):
    """The fields of ``LabOptions`` as keyword arguments."""

    controller: bool
    agents: bool | None
    workers: str
    engine: str | None
    fabric: str | None
    policies: PolicyChoice
    real_time: bool
    servers: str
    docker: bool
    tls: Path | None
    switch_tls: Path | None
    swapped: tuple[tuple[str, str], ...]


@dataclass(
    frozen=True,
    slots=True,
)
class LabOptions:
    """The options of ``up``; ``BadInput`` for an unknown choice.

    ``controller``: run one, with OpenFlow. ``agents``: run one per server (``None``: for a
    controller, with at most 16 servers). ``workers``: ``docker``, ``process``, or ``auto``.
    ``engine``: the OpenFlow engine (``None``: the controller's choice). ``fabric``: overrides the
    lab file's, as do ``policies``. ``real_time``: the lab's processes run before ordinary ones, if
    the kernel permits. ``servers``: network namespaces (``namespace``), or with their own root file
    system and sshd (``ssh``), or virtual machines (``vm``), both without an agent; ``docker`` gives
    each ``ssh`` server a Docker engine. ``tls``: the folder of the controller's credentials, for
    agents on such servers and for OpenFlow over TLS; ``switch_tls``: that of the packet switches.
    ``swapped``: pairs of ports whose fibres are swapped, unknown to the runtime lab file.
    """

    controller: bool = True
    agents: bool | None = None
    workers: str = "auto"
    engine: str | None = None
    fabric: str | None = None
    policies: PolicyChoice = NOTHING_SAID
    real_time: bool = False
    servers: str = "namespace"
    docker: bool = False
    tls: Path | None = None
    switch_tls: Path | None = None
    swapped: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        for option, value, expected in (
            ("engine", self.engine or "ryu", ("ryu", "os-ken")),
            ("workers", self.workers, ("auto", "docker", "process")),
            ("fabric", self.fabric or "bridge", ("openvswitch", "bridge")),
            ("servers", self.servers, ("namespace", "ssh", "vm")),
        ):
            if value not in expected:
                raise BadInput(
                    f"{option} {value!r}: expected {', '.join(expected[:-1])} or {expected[-1]}"
                )
        if self.agents and self.servers != "namespace":
            raise BadInput(
                "agents cannot be combined with servers that have an sshd",
                hint="omit --agents, or use --server-kind namespace",
            )
        if self.docker and self.servers == "namespace":
            raise BadInput(
                "servers that are network namespaces cannot have Docker engines: docker needs "
                "servers='ssh' or 'vm'",
                hint="leave out docker: their agents use this machine's engine",
            )
        if self.real_time and (self.docker or self.servers == "vm"):
            raise BadInput(
                "virtual machines cannot run in real time, nor can servers with a Docker engine",
                hint="omit --real-time, or use --server-kind ssh",
            )


def has_agents(lab: Lab, options: LabOptions) -> bool:
    """Whether each server of this lab has an agent."""
    if options.agents is not None:
        return options.agents
    return (
        options.servers == "namespace"
        and has_controller(lab, options)
        and len(lab.servers) <= _MOST_SERVERS_WITH_AGENTS
    )


def has_controller(lab: Lab, options: LabOptions) -> bool:
    """Whether a controller runs: Linux bridges do not use one."""
    return lab.fabric == "openvswitch" and options.controller


def runtime_lab(
    lab: Lab,
    *,
    agents: bool,
    policies: PolicyChoice,
    servers: str,
) -> Lab:
    """``lab`` as its controller and agents read it: agents on Unix sockets, optical switches on
    free loopback ports, and also the controller's API unless the file has an address. Switches
    reach the controller inside their namespace, where its OpenFlow port is free. ``policies``
    replace the lab's; their files are relative to the working directory. ``servers``: their
    kind."""
    directory = run_dir(lab.name)
    # Only a single lab uses the usual port; labs that come up at once must not compete for it.
    alone = not set(recorded_labs()) - {lab.name}
    usual = _USUAL_API_PORT if alone else 0
    # NICs are veths with the NIC's name, without RDMA and other networks.
    veth: dict[str, Any] = {
        "mode": "veth",
        "rdma": "none",
        "interface": None,
        "rendezvous": None,
    }
    if servers == "vm":  # NICs of their own, with soft RoCE
        del veth["mode"], veth["rdma"]
    driven = [switch.name for switch in driven_switches(lab)]
    api, *ports = free_ports(1 + len(driven), usual)
    at = {
        name: f"127.0.0.1:{port}"
        for name, port in zip(driven, ports, strict=True)
    }
    return lab.with_changes(
        servers=tuple(
            replace(
                server,
                management=f"unix:{directory}/agents/{server.name}.sock"
                if agents
                else None,
                nics=tuple(replace(nic, **veth) for nic in server.nics),
            )
            for server in lab.servers
        ),
        packet_switches=emulated_telemetry(lab),
        circuit_switches=tuple(
            replace(c, address=at[c.name]) for c in lab.circuit_switches
        ),
        wavelength_switches=tuple(
            replace(w, address=at.get(w.name, w.address))
            for w in lab.wavelength_switches
        ),
        controller_api=lab.controller_api or f"127.0.0.1:{api}",
        controller_openflow=f"127.0.0.1:{lab.controller_openflow.rpartition(':')[2]}",
        policies=policies.beside(Path.cwd()).over(lab.policies),
    )


def driven_switches(lab: Lab) -> tuple[OpticalSwitch, ...]:
    """The optical switches that a driver drives: each is an emulated device."""
    return (
        *lab.circuit_switches,
        *(w for w in lab.wavelength_switches if w.driver),
    )
