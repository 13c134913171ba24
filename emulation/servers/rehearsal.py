"""Emulates servers for rehearsing a deployment over SSH, and packet switches with an sshd.

Each has its own root file system over a shared base, processes, host name, the lab file's NICs, and
an sshd at a management address; agents come with the deployment. The management switch is a bridge
in a namespace, with one veth pair to this machine.
"""

import fcntl
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from pathlib import Path

from patchlight.emulation.fabric import lab_state as states
from patchlight.emulation.fabric import links
from patchlight.emulation.fabric.plan import fitted, is_machine, namespace_name
from patchlight.emulation.fabric.processes import LabService
from patchlight.emulation.servers import server as machines
from patchlight.emulation.servers import sonic, virtual
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.lab.model import Lab, PacketSwitch, Server
from patchlight.testbed.lab.rules import SshAccess
from patchlight.testbed.linux import namespaces
from patchlight.testbed.linux.netlink import Netlink
from patchlight.testbed.linux.sockets import ssh_answers

# For benchmarks of networks (RFC 2544): not routed on the Internet, and rarely used elsewhere.
_POOL = IPv4Network("198.18.0.0/15")
_SHORTEST = 16
_LONGEST = 24
# Shorter prefixes are default routes, whole or in two halves.
_SHORTEST_TAKEN = 2
_FIRST_SERVER = 11
_MOST_SERVERS = 2 ** (32 - _SHORTEST) - 1 - _FIRST_SERVER
# Below the lab's own links.
_BRIDGE = 10
_MACHINE = 11
_SERVER_NIC = 90
_FIRST_PORT = 100


class NoManagementNetwork(PatchlightError):
    """This machine has routes to all possible management addresses."""


@dataclass(
    frozen=True,
    slots=True,
)
class ManagementNetwork:
    """Addresses of a lab's servers, and names of the network's parts."""

    lab: str
    network: IPv4Network
    servers: tuple[str, ...]

    @property
    def machine(self) -> IPv4Interface:
        """This machine's address in it."""
        return IPv4Interface(
            (self.network.network_address + 1, self.network.prefixlen)
        )

    @property
    def interface(self) -> str:
        """This machine's interface."""
        return fitted(f"pl-{self.lab}", "")

    @property
    def addresses(self) -> dict[str, IPv4Address]:
        """The address of each server."""
        first = self.network.network_address + _FIRST_SERVER
        return {
            name: first + number for number, name in enumerate(self.servers)
        }


def management_namespace(lab: str) -> str:
    """The namespace of the network's switch; no device can have this name."""
    return namespace_name(lab, "_management")


def choose_network(servers: int, taken: Iterable[IPv4Network]) -> IPv4Network:
    """The first free network, at least a /24, for that many servers, without overlap with
    ``taken``; else ``NoManagementNetwork``."""
    # Including the broadcast address.
    bits = (_FIRST_SERVER + servers).bit_length()
    length = min(_LONGEST, 32 - bits)
    if length < _SHORTEST:
        raise NoManagementNetwork(
            f"finding addresses for {servers:,} servers: at most {_MOST_SERVERS:,} fit in a "
            "network",
            hint="use fewer servers, or --server-kind namespace",
        )
    in_the_way = [
        other for other in taken if other.prefixlen >= _SHORTEST_TAKEN
    ]
    for network in _POOL.subnets(new_prefix=length):
        if not any(network.overlaps(other) for other in in_the_way):
            return network
    raise NoManagementNetwork(
        f"finding addresses for {servers} servers: this machine has routes to all of {_POOL}",
        hint="remove routes (ip route), or use --server-kind namespace",
    )


def make_network(
    lab: Lab,
    names: Sequence[str],
    made: Callable[[str, int], None],
) -> ManagementNetwork:
    """Choose the network of these machines of a lab, and make its switch and this machine's end.
    ``made`` is called with the namespace and its inode; after an error the caller cleans up."""
    namespaces.prepare_directory()
    with _one_at_a_time(), Netlink() as here:
        taken = [lab.network, *links.list_destinations(here)]
        network = choose_network(len(names), taken)
        management = ManagementNetwork(lab.name, network, tuple(names))
        with (
            namespaces.opened(namespaces.process_namespace()) as machine,
            namespaces.kept_namespace(),
        ):
            name = management_namespace(lab.name)
            made(name, namespaces.create_here(name))
            namespaces.set_sysctl("ipv6/conf/all/disable_ipv6", 1)
            near = links.LinkEnd("machine", _MACHINE, up=True)
            far = links.LinkEnd(management.interface, namespace=machine)
            bridge = links.add_bridge("bridge", _BRIDGE)
            plugged = links.set_master(_MACHINE, _BRIDGE, "machine")
            with Netlink() as switch:
                switch.run([bridge, links.add_veth(near, far), plugged])
        namespaces.set_sysctl(
            f"ipv6/conf/{management.interface}/disable_ipv6", 1
        )
        index = links.list_links(here)[management.interface].index
        addressed = links.add_address(
            index, management.machine, management.interface
        )
        here.run([addressed, links.set_up(index, management.interface)])
    return management


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Labs that come up at the same time must choose different networks."""
    fd = os.open(states.RUN_ROOT, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


_AGENT_PORT = 8471
_BOOT = Path(__file__).with_name("boot.sh")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(
    frozen=True,
    slots=True,
)
class Rehearsal:
    """The servers of a lab with an sshd, not yet booted, and such packet switches, whose root file
    systems have the bases ``base`` and ``switch_base``; and the runtime lab with the logins."""

    lab: Lab
    kind: str
    base: Path
    switch_base: Path
    management: ManagementNetwork

    @property
    def servers(self) -> tuple[Server, ...]:
        """The servers among them."""
        return () if self.kind == "namespace" else self.lab.servers

    @property
    def machines(self) -> tuple[Server, ...]:
        """All of them."""
        switches = (s for s in self.lab.packet_switches if is_machine(s))
        return (*self.servers, *map(as_server, switches))

    def join(self) -> None:
        """Connect every machine's existing namespace to the management network."""
        management = self.management
        switch = namespaces.namespace_path(
            management_namespace(management.lab)
        )
        with Netlink(switch) as bridge:
            for number, server in enumerate(self.machines, _FIRST_PORT):
                path = namespaces.namespace_path(
                    namespace_name(management.lab, server.name)
                )
                name = machines.interface_of(server)
                port = links.LinkEnd(f"port{number}", number, up=True)
                with namespaces.opened(path) as namespace:
                    there = links.LinkEnd(
                        name, _SERVER_NIC, namespace=namespace
                    )
                    plugged = links.set_master(number, _BRIDGE, port.name)
                    bridge.run([links.add_veth(port, there), plugged])
                if self.kind == "vm" and server in self.servers:
                    virtual.plug(management.lab, server)
                    continue
                at = (
                    management.addresses[server.name],
                    management.network.prefixlen,
                )
                addressed = links.add_address(
                    _SERVER_NIC, IPv4Interface(at), name
                )
                with Netlink(path) as inside:
                    inside.run([addressed, links.set_up(_SERVER_NIC, name)])

    def services(self) -> list[LabService]:
        """One process per machine, the ancestor of all its processes."""
        lab = self.lab.name
        servers = self.servers
        switches = self.machines[len(servers) :]
        return [
            server_service(
                lab,
                self.kind,
                self.base,
                server,
            )
            for server in servers
        ] + [
            server_service(
                lab,
                "ssh",
                self.switch_base,
                switch,
            )
            for switch in switches
        ]


def switch_service(
    lab: str,
    switch: PacketSwitch,
    say: Callable[[str], None],
) -> LabService:
    """The process that boots a packet switch with an sshd again."""
    return server_service(
        lab,
        "ssh",
        machines.server_base(say),
        as_server(switch),
    )


def as_server(switch: PacketSwitch) -> Server:
    """A packet switch that is a machine of its own, as what boots."""
    return Server(
        switch.name, ssh=SshAccess(address=switch.address.rpartition(":")[0])
    )


def server_service(
    lab: str,
    kind: str,
    base: Path,
    of: Server,
) -> LabService:
    """The process that boots a server, the ancestor of all its processes. With a Docker engine its
    cgroups are made, or ``CgroupError``."""
    if kind == "vm":
        return virtual.virtual_service(lab, base, of)
    server = of.name
    own = ["--mount", "--pid", "--uts", "--ipc"]
    if (base / "usr/sbin/dockerd").exists():
        machines.make_groups(lab, server)
    # When this process ends, the server ends as in a power cut.
    gpus = states.run_dir(lab) / "gpus" / server
    disk = states.disk_dir(lab) / server
    gpus.mkdir(
        mode=0o700,
        parents=True,
        exist_ok=True,
    )
    boot = [
        "unshare",
        *own,
        "--fork",
        "--kill-child",
        "sh",
        str(_BOOT),
    ]
    return LabService(
        name=machines.service_name(server),
        argv=[
            *boot,
            *map(
                str,
                (base, disk, server, gpus, machines.server_group(lab, server)),
            ),
        ],
        ready=partial(ssh_answers, str(of.ssh.address)),
        namespace=namespaces.namespace_path(namespace_name(lab, server)),
        environment={"PATH": _PATH},
        abrupt=True,
    )


def prepare_rehearsal(
    lab: Lab,
    state: states.LabState,
    say: Callable[[str], None],
    *,
    kind: str,
    docker: bool = False,
) -> Rehearsal:
    """Make what precedes the links of machines with an sshd: base, network, keys, disks. These are
    the servers of kind ``ssh`` (with ``docker`` also their engines) or ``vm``, and with every kind
    the packet switches that are reached by SSH. ``NoRehearsalServers`` if that fails; the caller
    cleans up."""
    servers = () if kind == "namespace" else lab.servers
    switches = [switch for switch in lab.packet_switches if is_machine(switch)]
    if kind != "namespace" and not servers:
        raise BadInput(
            f"lab {lab.name} has no servers: --server-kind {kind} needs some"
        )
    is_virtual = kind == "vm"
    if is_virtual:
        virtual.check_machine(len(servers), docker=docker)
    options = [
        f"--{name}"
        for name, wanted in (("docker", docker), ("vm", is_virtual))
        if wanted
    ]
    switch_base = machines.server_base(say) if switches else Path()
    base = machines.server_base(say, *options) if servers else switch_base
    state.servers = kind
    state.base = str(base)
    state.namespaces[management_namespace(lab.name)] = 0
    state.save()
    if is_virtual:
        virtual.choose_accelerator(base, len(servers), say)
    else:
        machines.check_overlay(base, states.disk_dir(lab.name) / ".trial")
    names = [server.name for server in servers] + [
        switch.name for switch in switches
    ]
    management = make_network(lab, names, state.namespaces.__setitem__)
    state.save()
    what = "servers are" if servers else "packet switches are"
    say(f"{what} in the management network {management.network}")
    identity = machines.new_key()
    folder = state.run_dir / "ssh"
    keys = {name: machines.new_key() for name in names}
    addresses = management.addresses
    machines.write_client_files(
        folder,
        machines.USER,
        identity,
        {name: (addresses[name], key) for name, key in keys.items()},
    )
    login = str(folder / "identity")
    with_login = tuple(
        replace(
            server,
            management=f"{addresses[server.name]}:{_AGENT_PORT}",
            ssh=SshAccess(
                address=str(addresses[server.name]),
                user=machines.USER,
                identity=login,
                host_key=keys[server.name].fingerprint,
            ),
            # Its sockets are on this machine, which a virtual machine does not see.
            emulated_gpus=is_virtual or server.emulated_gpus,
        )
        for server in servers
    )
    runtime = lab.with_changes(
        servers=with_login or lab.servers,
        packet_switches=tuple(
            replace(
                switch,
                address=f"{addresses[switch.name]}:22",
                user=machines.USER,
                password_env=None,
                identity=login,
                host_key=keys[switch.name].fingerprint,
            )
            if switch in switches
            else switch
            for switch in lab.packet_switches
        ),
    )
    for machine in list[Server | PacketSwitch]([*with_login, *switches]):
        disk = states.disk_dir(lab.name) / machine.name
        key = keys[machine.name]
        machines.make_disk(
            disk,
            machine.name,
            key,
            identity,
            addresses,
            docker=docker,
        )
        if isinstance(machine, PacketSwitch):
            if machine.driver == "sonic":
                sonic.install(disk / "upper", machine)
        elif is_virtual:
            prefixes = lab.network.prefixlen, management.network.prefixlen
            virtual.make_disk(
                disk,
                base,
                machine,
                prefixes,
                lab.workers.mounts,
            )
    return Rehearsal(
        runtime,
        kind,
        base,
        switch_base,
        management,
    )
