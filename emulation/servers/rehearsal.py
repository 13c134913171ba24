"""Emulates servers for rehearsing a deployment over SSH.

Each has its own root file system over a shared base, processes, host name, the lab file's NICs, and
an sshd at a management address; agents come with the deployment. The management switch is a bridge
in a namespace, with one veth pair to this machine.
"""

import fcntl
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from pathlib import Path

from patchlight.emulation.fabric import lab_state as states
from patchlight.emulation.fabric import links
from patchlight.emulation.fabric.plan import fitted, namespace_name
from patchlight.emulation.fabric.processes import LabService
from patchlight.emulation.servers import server as machines
from patchlight.emulation.servers import virtual
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.lab.model import Lab, Server
from patchlight.testbed.lab.rules import SshAccess
from patchlight.testbed.linux import namespaces
from patchlight.testbed.linux.netlink import Netlink
from patchlight.testbed.linux.sockets import ssh_answers

# For benchmarks of networks (RFC 2544): not routed on the Internet, and rarely used elsewhere.
_POOL = IPv4Network("198.18.0.0/15")
_SHORTEST, _LONGEST = 16, 24
# Shorter prefixes are default routes, whole or in two halves.
_SHORTEST_TAKEN = 2
_FIRST_SERVER = 11
_MOST_SERVERS = 2 ** (32 - _SHORTEST) - 1 - _FIRST_SERVER
# Below the lab's own links.
_BRIDGE, _MACHINE, _SERVER_NIC = 10, 11, 90
_FIRST_PORT = 100


class NoManagementNetwork(PatchlightError):
    """This machine has routes to all possible management addresses."""


@dataclass(frozen=True, slots=True)
class ManagementNetwork:
    """Addresses of a lab's servers, and names of the network's parts."""

    lab: str
    network: IPv4Network
    servers: tuple[str, ...]

    @property
    def machine(self) -> IPv4Interface:
        """This machine's address in it."""
        return IPv4Interface((self.network.network_address + 1, self.network.prefixlen))

    @property
    def interface(self) -> str:
        """This machine's interface."""
        return fitted(f"pl-{self.lab}", "")

    @property
    def addresses(self) -> dict[str, IPv4Address]:
        """The address of each server."""
        first = self.network.network_address + _FIRST_SERVER
        return {name: first + number for number, name in enumerate(self.servers)}


def management_namespace(lab: str) -> str:
    """The namespace of the network's switch; no device can have this name."""
    return namespace_name(lab, "_management")


def choose_network(servers: int, taken: Iterable[IPv4Network]) -> IPv4Network:
    """The first free network, at least a /24, for that many servers, without overlap with
    ``taken``; else ``NoManagementNetwork``."""
    bits = (_FIRST_SERVER + servers).bit_length()  # including the broadcast address
    length = min(_LONGEST, 32 - bits)
    if length < _SHORTEST:
        raise NoManagementNetwork(
            f"looking for addresses for {servers:,} servers: at most {_MOST_SERVERS:,} fit in a "
            "network",
            hint="use fewer servers, or --server-kind namespace",
        )
    in_the_way = [other for other in taken if other.prefixlen >= _SHORTEST_TAKEN]
    for network in _POOL.subnets(new_prefix=length):
        if not any(network.overlaps(other) for other in in_the_way):
            return network
    raise NoManagementNetwork(
        f"looking for addresses for {servers} servers: this machine has routes to all of {_POOL}",
        hint="remove routes (ip route), or use --server-kind namespace",
    )


def make_network(lab: Lab, made: Callable[[str, int], None]) -> ManagementNetwork:
    """Choose the network of a lab's servers, and make its switch and this machine's end. ``made``
    is called with the namespace and its inode; after an error the caller cleans up."""
    namespaces.prepare_directory()
    with _one_at_a_time(), Netlink() as here:
        taken = [lab.network, *links.list_destinations(here)]
        network = choose_network(len(lab.servers), taken)
        management = ManagementNetwork(lab.name, network, tuple(s.name for s in lab.servers))
        with (
            namespaces.opened(namespaces.process_namespace()) as machine,
            namespaces.kept_namespace(),
        ):
            name = management_namespace(lab.name)
            made(name, namespaces.create_here(name))
            namespaces.set_sysctl("ipv6/conf/all/disable_ipv6", 1)
            near = links.LinkEnd("machine", _MACHINE, up=True)
            far = links.LinkEnd(management.interface, namespace=machine)
            with Netlink() as switch:
                switch.run(
                    [
                        links.add_bridge("bridge", _BRIDGE),
                        links.add_veth(near, far),
                        links.set_master(_MACHINE, _BRIDGE, "machine"),
                    ]
                )
        namespaces.set_sysctl(f"ipv6/conf/{management.interface}/disable_ipv6", 1)
        index = links.list_links(here)[management.interface].index
        here.run(
            [
                links.add_address(index, management.machine, management.interface),
                links.set_up(index, management.interface),
            ]
        )
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


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """The servers of a lab, not yet booted, and the runtime lab with their logins."""

    lab: Lab
    kind: str
    base: Path
    management: ManagementNetwork

    def join(self) -> None:
        """Connect every server's existing namespace to the management network."""
        management = self.management
        switch = namespaces.namespace_path(management_namespace(management.lab))
        with Netlink(switch) as bridge:
            for number, server in enumerate(self.lab.servers, _FIRST_PORT):
                path = namespaces.namespace_path(namespace_name(management.lab, server.name))
                name, port = (
                    machines.interface_of(server),
                    links.LinkEnd(f"port{number}", number, up=True),
                )
                with namespaces.opened(path) as namespace:
                    there = links.LinkEnd(name, _SERVER_NIC, namespace=namespace)
                    plugged = links.set_master(number, _BRIDGE, port.name)
                    bridge.run([links.add_veth(port, there), plugged])
                if self.kind == "vm":
                    virtual.plug(management.lab, server)
                    continue
                at = management.addresses[server.name], management.network.prefixlen
                addressed = links.add_address(_SERVER_NIC, IPv4Interface(at), name)
                with Netlink(path) as inside:
                    inside.run([addressed, links.set_up(_SERVER_NIC, name)])

    def services(self) -> list[LabService]:
        """One process per server, the ancestor of all its processes."""
        servers = self.lab.servers
        return [server_service(self.lab.name, self.kind, self.base, server) for server in servers]


def server_service(lab: str, kind: str, base: Path, of: Server) -> LabService:
    """The process that boots a server, the ancestor of all its processes. With a Docker engine its
    cgroups are made, or ``CgroupError``."""
    if kind == "vm":
        return virtual.virtual_service(lab, base, of)
    server, own = of.name, ["--mount", "--pid", "--uts", "--ipc"]
    if (base / "usr/sbin/dockerd").exists():
        machines.make_groups(lab, server)
    # When this process ends, the server ends as in a power cut.
    gpus, disk = states.run_dir(lab) / "gpus" / server, states.disk_dir(lab) / server
    gpus.mkdir(mode=0o700, parents=True, exist_ok=True)
    boot = ["unshare", *own, "--fork", "--kill-child", "sh", str(_BOOT)]
    return LabService(
        name=machines.service_name(server),
        argv=[*boot, *map(str, (base, disk, server, gpus, machines.server_group(lab, server)))],
        ready=partial(ssh_answers, str(of.ssh.address)),
        namespace=namespaces.namespace_path(namespace_name(lab, server)),
        environment={"PATH": _PATH},
        abrupt=True,
    )


def prepare_rehearsal(
    lab: Lab, state: states.LabState, say: Callable[[str], None], *, kind: str, docker: bool = False
) -> Rehearsal:
    """Make what precedes the NICs of rehearsal servers, of kind ``ssh`` (with ``docker`` also their
    engines) or ``vm``: base, network, keys, disks. ``NoRehearsalServers`` if that fails; the caller
    cleans up."""
    if not lab.servers:
        raise BadInput(f"lab {lab.name} has no servers: --server-kind {kind} needs some")
    is_virtual = kind == "vm"
    if is_virtual:
        virtual.check_machine(len(lab.servers))
    options = [f"--{name}" for name, wanted in (("docker", docker), ("vm", is_virtual)) if wanted]
    base = machines.server_base(say, *options)
    state.servers, state.base = kind, str(base)
    state.namespaces[management_namespace(lab.name)] = 0
    state.save()
    if is_virtual:
        virtual.choose_accelerator(base, say)
    else:
        machines.check_overlay(base, states.disk_dir(lab.name) / ".trial")
    management = make_network(lab, state.namespaces.__setitem__)
    state.save()
    say(f"servers are in the management network {management.network}")
    identity, folder = machines.new_key(), state.run_dir / "ssh"
    keys = {server.name: machines.new_key() for server in lab.servers}
    addresses = management.addresses
    machines.write_client_files(
        folder,
        machines.USER,
        identity,
        {name: (addresses[name], key) for name, key in keys.items()},
    )
    servers = tuple(
        replace(
            server,
            management=f"{addresses[server.name]}:{_AGENT_PORT}",
            ssh=SshAccess(
                address=str(addresses[server.name]),
                user=machines.USER,
                identity=str(folder / "identity"),
                host_key=keys[server.name].fingerprint,
            ),
            # Its sockets are on this machine, which a virtual machine does not see.
            emulated_gpus=is_virtual or server.emulated_gpus,
        )
        for server in lab.servers
    )
    for server in servers:
        disk, key = states.disk_dir(lab.name) / server.name, keys[server.name]
        machines.make_disk(disk, server.name, key, identity, addresses, docker=docker)
        if is_virtual:
            prefixes = lab.network.prefixlen, management.network.prefixlen
            virtual.make_disk(disk, base, server, prefixes)
    return Rehearsal(lab.with_changes(servers=servers), kind, base, management)
