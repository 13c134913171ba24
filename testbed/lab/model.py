"""Models a lab, real or emulated: servers, switches and the fibres between them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from typing import Literal, NamedTuple, TypeVar

from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab import rules
from patchlight.testbed.lab.packet_drivers import (
    DEFAULT_DRIVER,
    PACKET_DRIVERS,
)
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.lab.wavelengths import (
    Emulation,
    PassivePart,
    Transceiver,
    WavelengthSwitch,
)

NicMode = Literal["auto", "physical", "sriov", "macvlan", "veth"]
"""``auto``: the agent decides whether to move the NIC itself or a virtual function."""
RdmaUse = Literal["auto", "exclusive", "shared", "none"]
"""``auto``: the machine's sharing mode, if the NIC has an RDMA device."""


@lru_cache(maxsize=65536)
def default_mac(address: IPv4Address) -> str:
    """A locally administered MAC derived from the address."""
    return ":".join(f"{byte:02x}" for byte in (0x02, 0x4C, *address.packed))


@dataclass(
    frozen=True,
    slots=True,
)
class Route:
    """A route in a worker's network: packets to ``network`` go to ``gateway``."""

    network: IPv4Network
    gateway: IPv4Address

    def __str__(self) -> str:
        return f"{self.network} via {self.gateway}"


@dataclass(
    frozen=True,
    slots=True,
)
class Rendezvous:
    """A second network between workers: a macvlan with this address on an interface."""

    interface: str
    address: IPv4Interface


@dataclass(
    frozen=True,
    slots=True,
)
class Nic:
    """One NIC port. ``gpu`` names the GPU that it serves, in the same server, if any.

    ``interface`` is its kernel name on the server (default: ``name``). ``lab_mac``: workers get
    ``mac`` even if it is derived from the address. ``relock_s`` is how long carrier and RDMA port
    may take to return after a change of circuits; ``None``: the usual time, for RDMA only.
    """

    name: str
    address: IPv4Address
    mac: str
    rate_bps: int | None = None
    gpu: str | None = None
    interface: str | None = None
    launch_power_dbm: float = 0.0
    lab_mac: bool = False
    mode: NicMode = "auto"
    mtu: int | None = None
    vlan: int | None = None
    routes: tuple[Route, ...] = ()
    dscp: int | None = None
    rdma: RdmaUse = "auto"
    relock_s: float | None = None
    rendezvous: Rendezvous | None = None
    transceiver: Transceiver | None = None

    @property
    def keeps_mac(self) -> bool:
        """Whether workers use the port's own MAC; ``mac`` is assumed until the agent reports it."""
        # A macvlan has its own MAC.
        is_made = self.lab_mac or self.mode == "macvlan"
        return not is_made and self.mac == default_mac(self.address)


T = TypeVar("T")

FABRICS = ("openvswitch", "bridge")
"""What an emulation makes packet switches from."""


@dataclass(
    frozen=True,
    slots=True,
)
class Gpu:
    """One accelerator of a server; ``uuid`` pins the physical one on a real server."""

    name: str
    model: str
    uuid: str | None = None


@dataclass(
    frozen=True,
    slots=True,
)
class Server:
    """One server. ``management`` is its agent's address: ``host:port`` or ``unix:/path``."""

    name: str
    management: str | None = None
    gpus: tuple[Gpu, ...] = ()
    nics: tuple[Nic, ...] = ()
    ssh: rules.SshAccess = field(default_factory=rules.SshAccess)
    emulated_gpus: bool = False


@dataclass(
    frozen=True,
    slots=True,
)
class PacketSwitch:
    """An electrical packet switch; ports are 1…``ports``.

    With the driver ``openflow`` it reports ``datapath_id``; others are reached at ``address``, with
    a password from the variable ``password_env`` or the SSH key in the file ``identity``.
    ``interfaces`` are its names of the ports (empty: the driver's usual ones), ``bridge`` and
    ``vlan`` where they are joined. ``spanning_tree``: it blocks loops itself. ``mtu``: the largest
    packet that it carries; ``None``: as large as the NICs'.
    """

    name: str
    datapath_id: int | None
    ports: int
    launch_power_dbm: float = 0.0
    transceivers: tuple[tuple[int, Transceiver], ...] = ()
    driver: str = DEFAULT_DRIVER
    address: str = ""
    user: str = "admin"
    password_env: str | None = None
    identity: str | None = None
    host_key: str | None = None
    legacy_ssh: bool = False
    interfaces: tuple[str, ...] = ()
    bridge: str = "br0"
    vlan: int | None = None
    spanning_tree: bool = False
    mtu: int | None = None
    snmp: rules.Snmp | None = None

    @property
    def learns(self) -> bool:
        """Whether it learns MACs itself: Patchlight sends it nothing."""
        return (
            self.driver in PACKET_DRIVERS
            and PACKET_DRIVERS[self.driver].learns
        )

    @property
    def floods(self) -> bool:
        """Whether it floods broadcasts: a loop of such switches needs a spanning tree."""
        return (
            self.driver in PACKET_DRIVERS
            and PACKET_DRIVERS[self.driver].floods
        )

    @property
    def interface_names(self) -> tuple[str, ...]:
        """Its names of ports 1, 2, …, usual ones if the lab file has none."""
        usual = (
            PACKET_DRIVERS[self.driver].port_names
            if self.driver in PACKET_DRIVERS
            else ""
        )
        usual_names = (
            usual.format(n=n) for n in range(1, self.ports + 1) if usual
        )
        return self.interfaces or tuple(usual_names)


@dataclass(
    frozen=True,
    slots=True,
)
class CircuitSwitch:
    """An optical circuit switch (OCS); duplex ports are 1…``ports``.

    ``password_env`` names the environment variable with the password. ``initial`` is the initial
    map. An OpenFlow OCS connects to ``address`` and reports ``datapath_id``.
    """

    name: str
    driver: str
    address: str
    ports: int
    switching_time_s: float = 0.025
    insertion_loss_db: float = 1.5
    user: str = "admin"
    password_env: str | None = None
    initial: PortMap = field(default_factory=PortMap)
    datapath_id: int | None = None
    emulated: Emulation = field(default_factory=Emulation)
    legacy_ssh: bool = False


OpticalSwitch = CircuitSwitch | WavelengthSwitch
"""Anything with a driver."""
Device = Server | PacketSwitch | CircuitSwitch | WavelengthSwitch | PassivePart


class Endpoint(NamedTuple):
    """A port of a device that a fibre can end on: ``server1.nic0``, ``tor1.3``, ``ocs1.17``."""

    device: str
    port: str

    def __str__(self) -> str:
        return f"{self.device}.{self.port}"

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """``"tor1.3"`` → an endpoint; ``BadInput`` if it is not ``device.port``."""
        device, dot, port = text.rpartition(".")
        if not (device and dot and port):
            raise BadInput(
                f"{text!r} is not a port: expected device.port, like 'tor1.3'"
            )
        return cls(device, port)


@dataclass(
    frozen=True,
    slots=True,
)
class Fibre:
    """A fibre pair between two ports; rate ``None``: no limit.

    Only emulations use ``delay_s`` (each way, ± ``jitter_s``) and ``packet_loss`` (a fraction).
    """

    a: Endpoint
    b: Endpoint
    rate_bps: int | None = None
    loss_db: float = 0.3
    delay_s: float = 0.0
    jitter_s: float = 0.0
    packet_loss: float = 0.0


@dataclass(
    frozen=True,
    slots=True,
)
class Host:
    """What a worker gets: a NIC and its GPU (``None`` for a NIC without one)."""

    server: Server
    nic: Nic
    gpu: Gpu | None

    @property
    def name(self) -> str:
        """``server1.gpu0``, or ``server1.nic0`` for a NIC that serves no GPU."""
        return f"{self.server.name}.{self.gpu.name if self.gpu else self.nic.name}"

    @property
    def endpoint(self) -> Endpoint:
        """The port that the host's fibre is plugged into."""
        return Endpoint(self.server.name, self.nic.name)


NO_NETWORK = IPv4Network("0.0.0.0/32")
"""The network of a lab without servers."""


@dataclass(frozen=True)
class Lab:
    """A whole lab. ``scale`` divides rates and workload bytes, so times stay true.

    ``machine_rate_bps``: total rate of the emulated packet switches; ``fabric``: ``openvswitch``
    or ``bridge`` (learning, without OpenFlow). ``controller_api`` may be empty: see
    ``lab_api.api_address``. ``paths``: who grants the optical paths of synthetic jobs: ``none``
    (their circuits stay) or ``nodes`` (among themselves). ``ecmp``: OpenFlow switches hash flows
    over equal-cost paths. ``controller_poll_s``: how often the controller polls each agent.
    """

    name: str
    network: IPv4Network = NO_NETWORK
    servers: tuple[Server, ...] = ()
    packet_switches: tuple[PacketSwitch, ...] = ()
    circuit_switches: tuple[CircuitSwitch, ...] = ()
    fibres: tuple[Fibre, ...] = ()
    fabric: str = "openvswitch"
    scale: float = 1.0
    machine_rate_bps: int | None = None
    controller_api: str = ""
    controller_openflow: str = "127.0.0.1:6653"
    controller_openflow_tls: bool = False
    controller_poll_s: float = 1.0
    access: rules.Access = field(default_factory=rules.Access)
    queue: rules.Discipline = rules.USUAL_QUEUE
    policies: rules.PolicyChoice = rules.NOTHING_SAID
    workers: rules.WorkerPolicy = field(default_factory=rules.WorkerPolicy)
    wavelength_switches: tuple[WavelengthSwitch, ...] = ()
    passive_parts: tuple[PassivePart, ...] = ()
    paths: str = "none"
    ecmp: bool = False

    @cached_property
    def hosts(self) -> tuple[Host, ...]:
        """Every NIC with the GPU it serves, in file order."""
        found = (
            (server, nic) for server in self.servers for nic in server.nics
        )
        return tuple(
            Host(
                server,
                nic,
                next(
                    (gpu for gpu in server.gpus if gpu.name == nic.gpu), None
                ),
            )
            for server, nic in found
        )

    @cached_property
    def fibre_ends(self) -> Mapping[Endpoint, tuple[Endpoint, Fibre]]:
        """For each end of each fibre: the other end, and the fibre."""
        ends: dict[Endpoint, tuple[Endpoint, Fibre]] = {}
        for fibre in self.fibres:
            ends[fibre.a] = (fibre.b, fibre)
            ends[fibre.b] = (fibre.a, fibre)
        return ends

    @cached_property
    def circuit_fibres(
        self,
    ) -> Mapping[str, Mapping[int, tuple[Endpoint, Fibre]]]:
        """For each OCS, by port number: the other end of the fibre plugged in, and the fibre."""
        fibres: dict[str, dict[int, tuple[Endpoint, Fibre]]] = {
            switch.name: {} for switch in self.circuit_switches
        }
        for end, other in self.fibre_ends.items():
            if end.device in fibres:
                fibres[end.device][int(end.port)] = other
        return fibres

    @cached_property
    def circuit_ends(self) -> Mapping[str, Mapping[int, Endpoint]]:
        """For each OCS, by port number: the NIC or packet-switch port plugged in, if it is one."""
        known = self.circuit_fibres
        return {
            ocs: {
                port: end
                for port, (end, _) in fibres.items()
                if end.device not in known
            }
            for ocs, fibres in known.items()
        }

    @cached_property
    def circuit_plugs(self) -> Mapping[Endpoint, tuple[str, int]]:
        """For each end of a fibre into an OCS: that OCS and its port number."""
        return {
            end: (other.device, int(other.port))
            for end, (other, _) in self.fibre_ends.items()
            if other.device in self.circuit_fibres
        }

    @cached_property
    def facing(self) -> Mapping[str, Mapping[int, str]]:
        """For each OCS, the packet switch at each port, in order of ports."""
        names = {switch.name for switch in self.packet_switches}
        return {
            ocs: {
                port: ends[port].device
                for port in sorted(ends)
                if ends[port].device in names
            }
            for ocs, ends in self.circuit_ends.items()
        }

    @cached_property
    def facing_ports(self) -> Mapping[str, Mapping[str, tuple[int, ...]]]:
        """The inverse: the ports that lead directly to each packet switch."""
        found: dict[str, dict[str, tuple[int, ...]]] = {}
        for ocs, facing in self.facing.items():
            ports_of = found.setdefault(ocs, {})
            for port, switch in facing.items():
                ports_of[switch] = (*ports_of.get(switch, ()), port)
        return found

    @cached_property
    def has_trunks(self) -> bool:
        """Whether a fibre joins two circuit switches."""
        return any(
            end.device in self.circuit_fibres for end in self.circuit_plugs
        )

    @cached_property
    def host_plugs(self) -> Mapping[Endpoint, tuple[str, int]]:
        """``circuit_plugs`` of the hosts' NICs."""
        plugs = self.circuit_plugs
        ends = [host.endpoint for host in self.hosts]
        return {end: plugs[end] for end in ends if end in plugs}

    @cached_property
    def switch_names(self) -> tuple[str, ...]:
        """The names of the packet switches, sorted."""
        return tuple(sorted(switch.name for switch in self.packet_switches))

    @cached_property
    def hosts_at(self) -> Mapping[Endpoint, Host]:
        """Each host by the port that its fibre is plugged into, in file order."""
        return {host.endpoint: host for host in self.hosts}

    @cached_property
    def host_names(self) -> dict[str, Host]:
        """Every name of each host.

        Full names (``server1.gpu0``, ``server1.nic0``); a server's name where it has one host; a
        GPU's or NIC's bare name where it is unique in the lab and not a server's.
        """
        names: dict[str, Host] = {}
        bare: dict[str, list[Host]] = {}
        for host in self.hosts:
            names[host.name] = names[str(host.endpoint)] = host
            for name in {
                host.nic.name,
                *([host.gpu.name] if host.gpu else []),
            }:
                bare.setdefault(name, []).append(host)
            if len(host.server.nics) == 1:
                names[host.server.name] = host
        servers = {server.name for server in self.servers}
        for name, owners in bare.items():
            if len(owners) == 1 and name not in servers:
                names[name] = owners[0]
        return names

    @cached_property
    def names_by_address(self) -> dict[str, tuple[str, ...]]:
        """All names of each host by its NIC's address, its full name first: for a hosts file."""
        names: dict[str, tuple[str, ...]] = {}
        for name, host in self.host_names.items():
            address = str(host.nic.address)
            names[address] = (*names.get(address, ()), name)
        return names

    def host(self, name: str) -> Host:
        """The host of that name; ``BadInput`` with similar names if not found."""
        return _named(
            self.host_names,
            name,
            "host",
            self.name,
        )

    @cached_property
    def _devices(self) -> dict[str, Device]:
        devices: list[Device] = [*self.servers, *self.packet_switches]
        devices += [*self.circuit_switches, *self.sorting]
        return {device.name: device for device in devices}

    def device(self, name: str) -> Device:
        """The device of that name; ``BadInput`` with similar names if not found."""
        return _named(
            self._devices,
            name,
            "device",
            self.name,
        )

    def circuit_switch(self, name: str) -> CircuitSwitch:
        """The OCS of that name; ``BadInput`` if not found."""
        return _named(
            {c.name: c for c in self.circuit_switches},
            name,
            "OCS",
            self.name,
        )

    @property
    def optical_switches(self) -> tuple[OpticalSwitch, ...]:
        """Switches with maps: circuit switches, then wavelength switches."""
        return (*self.circuit_switches, *self.wavelength_switches)

    def optical_switch(self, name: str) -> OpticalSwitch:
        """The OCS or wavelength switch of that name; ``BadInput`` if not found."""
        device = self._devices.get(name)
        if isinstance(device, OpticalSwitch):
            return device
        what = "optical switch" if self.wavelength_switches else "OCS"
        return _named(
            {c.name: c for c in self.optical_switches},
            name,
            what,
            self.name,
        )

    @property
    def sorting(self) -> tuple[WavelengthSwitch | PassivePart, ...]:
        """Devices that sort light by wavelength, or split it."""
        return (*self.wavelength_switches, *self.passive_parts)

    @cached_property
    def coloured(self) -> bool:
        """Whether the lab has wavelength channels."""
        switches = self.packet_switches
        hosts = self.hosts
        coloured = any(s.transceivers for s in switches) or any(
            h.nic.transceiver for h in hosts
        )
        return bool(self.sorting) or coloured

    @property
    def initial_maps(self) -> dict[str, PortMap]:
        """The initial port map of each OCS in the lab file."""
        return {c.name: c.initial for c in self.circuit_switches}

    def with_changes(self, **changes: object) -> Lab:
        """A copy with these fields replaced."""
        return replace(self, **changes)  # type: ignore[arg-type]


def _named(
    table: Mapping[str, T],
    name: str,
    what: str,
    lab: str,
) -> T:
    if name in table:
        return table[name]
    near = difflib.get_close_matches(
        name,
        table,
        n=3,
        cutoff=0.5,
    )
    known = (
        f"did you mean {' or '.join(near)}?"
        if near
        else f"known: {', '.join(table) or 'none'}"
    )
    raise BadInput(f"lab {lab} has no {what} called {name!r}: {known}")
