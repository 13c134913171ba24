"""Rehearsal servers: emulated servers that a deployment over SSH takes for those of a lab.

Each has a root file system of its own over a shared base, its own processes, host name and
network, its NICs by the names of the lab file, and an sshd at a management address. No agent runs
on it until somebody deploys one.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from ipaddress import IPv4Address
from pathlib import Path

from patchlight.emulation.fabric.lab_state import LabState, disk_dir, run_dir
from patchlight.emulation.fabric.plan import namespace_name
from patchlight.emulation.fabric.processes import Service
from patchlight.emulation.servers.base import check_overlay, has_docker, server_base
from patchlight.emulation.servers.disk import USER, make_disk
from patchlight.emulation.servers.groups import make_groups, server_group
from patchlight.emulation.servers.keys import new_key, write_client_files
from patchlight.emulation.servers.management import (
    ManagementNetwork,
    join_servers,
    make_network,
    management_namespace,
)
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.access import SshAccess
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.linux.namespaces import namespace_path
from patchlight.testbed.linux.sockets import ssh_answers

_AGENT_PORT = 8471
_BOOT = Path(__file__).with_name("boot.sh")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """The rehearsal servers of a lab, not yet booted.

    ``lab`` is the runtime lab with their management addresses, users and keys.
    """

    lab: Lab
    base: Path
    management: ManagementNetwork

    def join(self) -> None:
        """Put every server, whose namespace is there, into the management network."""
        join_servers(self.management, self.lab.servers)

    def services(self) -> list[Service]:
        """One process for each server, that all others of it descend from."""
        addresses = self.management.addresses.items()
        return [server_service(self.lab.name, self.base, *each) for each in addresses]


def server_service(lab: str, base: Path, server: str, address: IPv4Address) -> Service:
    """The first process of a server, that all others of it descend from: it boots the server.

    Makes its control groups where the server has a Docker engine; ``CgroupError`` if it cannot.
    """
    own = ["--mount", "--pid", "--uts", "--ipc"]
    if has_docker(base):
        make_groups(lab, server)
    # With its parent, or by any other way, the server ends as when the power goes.
    gpus, disk = run_dir(lab) / "gpus" / server, disk_dir(lab) / server
    gpus.mkdir(mode=0o700, parents=True, exist_ok=True)
    boot = ["unshare", *own, "--fork", "--kill-child", "sh", str(_BOOT)]
    return Service(
        name=service_name(server),
        argv=[*boot, *map(str, (base, disk, server, gpus, server_group(lab, server)))],
        ready=partial(ssh_answers, str(address)),
        namespace=namespace_path(namespace_name(lab, server)),
        environment={"PATH": _PATH},
        abrupt=True,
    )


def service_name(server: str) -> str:
    """What a server's first process is called among those of its lab."""
    return f"server-{server}"


def prepare_rehearsal(
    lab: Lab, state: LabState, say: Callable[[str], None], *, docker: bool = False
) -> Rehearsal:
    """Make what rehearsal servers need before their NICs: base, network, keys, disks.

    With ``docker`` each has a Docker engine, which begins with the server.

    Raises ``NoRehearsalServers`` where this machine can have no such servers, and what the parts
    raise; what was made so far stays for the caller to remove.
    """
    if not lab.servers:
        raise BadInput(f"lab {lab.name} has no servers: expected some, with --servers ssh")
    base = server_base(say, docker=docker)
    state.servers, state.base = "ssh", str(base)
    state.namespaces[management_namespace(lab.name)] = 0
    state.save()
    check_overlay(base, disk_dir(lab.name) / ".trial")
    management = make_network(lab, state.namespaces.__setitem__)
    state.save()
    say(f"servers are in the management network {management.network}")
    identity, folder = new_key(), state.run_dir / "ssh"
    keys = {server.name: new_key() for server in lab.servers}
    addresses = management.addresses
    write_client_files(
        folder, USER, identity, {name: (addresses[name], key) for name, key in keys.items()}
    )
    for name, key in keys.items():
        make_disk(disk_dir(lab.name) / name, name, key, identity, addresses, docker=docker)
    servers = tuple(
        replace(
            server,
            management=f"{addresses[server.name]}:{_AGENT_PORT}",
            ssh=SshAccess(
                address=str(addresses[server.name]),
                user=USER,
                identity=str(folder / "identity"),
                host_key=keys[server.name].fingerprint,
            ),
        )
        for server in lab.servers
    )
    return Rehearsal(lab.with_changes(servers=servers), base, management)
