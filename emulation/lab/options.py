"""The options of an emulated lab, and the runtime lab that its processes read."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict

from patchlight.emulation.fabric.lab_state import recorded_labs, run_dir
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


@dataclass(frozen=True, slots=True)
class LabOptions:
    """The options of ``up``; ``BadInput`` for an unknown choice.

    ``controller``: run one, with OpenFlow. ``agents``: run one per server (``None``: for a
    controller, where there are 16 servers at most). ``workers``: ``docker``, ``process``, or
    ``auto``. ``engine``: the OpenFlow engine (``None``: the controller's choice). ``fabric``:
    overrides the lab file's, as do ``policies``. ``real_time``: the lab's processes run before
    every ordinary process of this machine, where the kernel permits. ``servers``: network
    namespaces (``namespace``), or with their own root file system and sshd (``ssh``) or kernel
     (``vm``), where no agent runs; with ``docker``, those of ``ssh`` have an engine each. ``tls``:
    the folder of the controller's credentials, for agents on such servers and for OpenFlow over
    TLS; ``switch_tls``: that of the packet switches', which are one machine. ``swapped``: pairs of
    ports whose fibres are swapped, which the runtime lab file does not show.
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
                "agents do not come with servers that have an sshd: expected one or the other",
                hint="Leave out --agents, or take --server-kind namespace.",
            )
        if self.docker and self.servers != "ssh":
            raise BadInput(
                "servers that are network namespaces have no Docker engine of their own: "
                "docker is for servers='ssh'",
                hint="Leave out --docker: their agents use the engine of this machine.",
            )
        if self.docker and self.real_time:
            raise BadInput(
                "servers with a Docker engine cannot run in real time: their control groups have "
                "no budget for it",
                hint="Leave out --real-time, or --docker.",
            )


def has_agents(lab: Lab, options: LabOptions) -> bool:
    """Whether an agent runs on each server of this lab."""
    if options.agents is not None:
        return options.agents
    return (
        options.servers == "namespace"
        and has_controller(lab, options)
        and len(lab.servers) <= _MOST_SERVERS_WITH_AGENTS
    )


def has_controller(lab: Lab, options: LabOptions) -> bool:
    """Whether a controller runs: Linux bridges have none."""
    return lab.fabric == "openvswitch" and options.controller


def runtime_lab(lab: Lab, *, agents: bool, policies: PolicyChoice) -> Lab:
    """``lab`` as its controller and agents read it: agents on Unix sockets, optical switches on
    free loopback ports, and the controller's API too unless the file has an address. Switches reach
    the controller inside their namespace, where its OpenFlow port is free. ``policies`` replace the
    lab's; their files are relative to the working directory."""
    directory = run_dir(lab.name)
    # The usual port is for the only lab; two that come up at once must not race for it.
    alone = not set(recorded_labs()) - {lab.name}
    usual = _USUAL_API_PORT if alone else 0
    # NICs are veths with the NIC's name, in no VLAN, without RDMA.
    veth: dict[str, Any] = {"mode": "veth", "rdma": "none", "routes": ()}
    veth |= dict.fromkeys(("interface", "mtu", "vlan", "relock_s", "rendezvous"))
    driven = [switch.name for switch in driven_switches(lab)]
    api, *ports = free_ports(1 + len(driven), usual)
    at = {name: f"127.0.0.1:{port}" for name, port in zip(driven, ports, strict=True)}
    return lab.with_changes(
        servers=tuple(
            replace(
                server,
                management=f"unix:{directory}/agents/{server.name}.sock" if agents else None,
                nics=tuple(replace(nic, **veth) for nic in server.nics),
            )
            for server in lab.servers
        ),
        circuit_switches=tuple(replace(c, address=at[c.name]) for c in lab.circuit_switches),
        wavelength_switches=tuple(
            replace(w, address=at.get(w.name, w.address)) for w in lab.wavelength_switches
        ),
        controller_api=lab.controller_api or f"127.0.0.1:{api}",
        controller_openflow=f"127.0.0.1:{lab.controller_openflow.rpartition(':')[2]}",
        policies=policies.beside(Path.cwd()).over(lab.policies),
    )


def driven_switches(lab: Lab) -> tuple[OpticalSwitch, ...]:
    """The optical switches that a driver drives: each is an emulated device."""
    return (*lab.circuit_switches, *(w for w in lab.wavelength_switches if w.driver))
