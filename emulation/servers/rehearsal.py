"""Rehearsal servers: emulated servers that a deployment over SSH takes for those of a lab.

Each has a root file system of its own over a shared base, its own processes, host name and
network, its NICs by the names of the lab file, and an sshd at a management address. No agent runs
on it until somebody deploys one. Its control groups (cgroups) are below those of this machine.
"""

import errno
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from ipaddress import IPv4Address
from pathlib import Path

from patchlight.emulation.fabric.lab_state import LabState, disk_dir, run_dir
from patchlight.emulation.fabric.plan import namespace_name
from patchlight.emulation.fabric.processes import LabService
from patchlight.emulation.servers.disk import (
    USER,
    check_overlay,
    has_docker,
    make_disk,
    new_key,
    server_base,
    write_client_files,
)
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
from patchlight.testbed.linux.processes import CgroupError
from patchlight.testbed.linux.sockets import ssh_answers

GROUPS = Path("/sys/fs/cgroup")
OURS = "patchlight-servers"
# All that runs on servers together counts as much as four favoured processes (a niceness of -10):
# the lab's others are in no group, and groups count as much as one process that is not favoured.
_WEIGHTS = {"cpu.shares": 4 * 9548, "cpu.weight": 4 * 932}


def server_group(lab: str, server: str) -> str:
    """Where a server's groups stand in every hierarchy."""
    return f"{OURS}/{lab}/{server}"


def make_groups(lab: str, server: str, root: Path = GROUPS) -> None:
    """Make the groups of a server, those that are missing; ``CgroupError`` if that cannot be."""
    try:
        for hierarchy in _hierarchies(root):
            group = hierarchy
            for name in server_group(lab, server).split("/"):
                _hand_down(group)
                group /= name
                group.mkdir(exist_ok=True)
                _set_up(group)
    except OSError as error:
        raise CgroupError(
            f"making control groups for {server}: {error.strerror} ({error.filename})",
            hint="A machine where cgroups can be written is needed; leave out --docker elsewhere.",
        ) from error


def remove_groups(
    lab: str, server: str = "", root: Path = GROUPS, deadline_s: float = 10.0
) -> None:
    """Remove what is left of a lab's groups, or of one server's; its processes have ended.

    ``CgroupError`` if a process is still in one of them.
    """
    ends = time.monotonic() + deadline_s
    for hierarchy in _hierarchies(root):
        top = hierarchy / OURS / lab / server
        folders = [top, *top.rglob("*/")] if top.is_dir() else []
        for folder in sorted(folders, reverse=True):
            _remove(folder, ends)
        for folder in (hierarchy / OURS / lab, hierarchy / OURS):
            with suppress(OSError):
                folder.rmdir()  # the last one


def _hierarchies(root: Path) -> Iterator[Path]:
    """The top of each hierarchy: one of version 2, or one for each controller of version 1."""
    if (root / "cgroup.controllers").exists():
        yield root
        return
    with suppress(FileNotFoundError):
        for folder in sorted(root.iterdir()):
            # Some are called by two names.
            if not folder.is_symlink() and (folder / "cgroup.procs").exists():
                yield folder


def _hand_down(group: Path) -> None:
    """Have the groups below this one count and limit what it can itself (version 2)."""
    with suppress(FileNotFoundError):
        for controller in (group / "cgroup.controllers").read_text().split():
            with suppress(OSError):  # one that is used at the top alone
                (group / "cgroup.subtree_control").write_text(f"+{controller}")


def _set_up(group: Path) -> None:
    for file in ("cpuset.cpus", "cpuset.mems"):
        # Of version 1, a new one has none, and nothing can be in it.
        if (group / file).exists() and not (group / file).read_text().strip():
            (group / file).write_text((group.parent / file).read_text())
    for file, weight in _WEIGHTS.items():
        if (group / file).exists():
            (group / file).write_text(str(weight))


def _remove(folder: Path, ends: float) -> None:
    while True:
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > ends:
                raise CgroupError(
                    f"removing the cgroup {folder}: {error.strerror}",
                    hint="End the processes that cgroup.procs in it names.",
                ) from error
            time.sleep(0.01)  # its last process is on its way out
        else:
            return


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

    def services(self) -> list[LabService]:
        """One process for each server, that all others of it descend from."""
        addresses = self.management.addresses.items()
        return [server_service(self.lab.name, self.base, *each) for each in addresses]


def server_service(lab: str, base: Path, server: str, address: IPv4Address) -> LabService:
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
    return LabService(
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
