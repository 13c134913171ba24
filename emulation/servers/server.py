"""Makes the parts of a rehearsal server: root file system, SSH keys, cgroups."""

import base64
import hashlib
import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.model import Server
from patchlight.testbed.linux import deploy_file, processes

_PREFIX = "server-base: "
USER = "admin"
"""The user who deploys: may log in with the lab's key, and use sudo without a password."""
_USER_ID = 1000  # as in deploy/server-base.sh


def service_name(server: str) -> str:
    """The name of a server's first process among those of its lab."""
    return f"server-{server}"


def interface_of(server: Server) -> str:
    """A server's management interface: ``mgmt0``, or the first free name."""
    taken = {nic.name for nic in server.nics}
    return next(
        name
        for name in (f"mgmt{n}" for n in range(len(taken) + 1))
        if name not in taken
    )


@dataclass(
    frozen=True,
    slots=True,
)
class SshKey:
    """A key pair in OpenSSH's formats."""

    private: str
    public: str

    @property
    def fingerprint(self) -> str:
        """``SHA256:…``, as ``ssh-keygen -l`` prints it."""
        blob = base64.b64decode(self.public.split()[1])
        digest = base64.b64encode(hashlib.sha256(blob).digest()).decode()
        return f"SHA256:{digest.rstrip('=')}"


def new_key() -> SshKey:
    """A new Ed25519 key."""
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    return SshKey(private.decode(), public.decode())


def write_client_files(
    folder: Path,
    user: str,
    identity: SshKey,
    servers: Mapping[str, tuple[IPv4Address, SshKey]],
) -> None:
    """Write OpenSSH's ``identity`` (0600), ``known_hosts`` and ``config`` for servers by address
    and host key: ``ssh -F folder/config SERVER``."""
    folder.mkdir(mode=0o700)
    private = folder / "identity"
    private.touch(mode=0o600)
    private.write_text(identity.private)
    known = [
        f"{name},{address} {key.public}\n"
        for name, (address, key) in servers.items()
    ]
    (folder / "known_hosts").write_text("".join(known))
    hosts = [
        f"Host {name}\n    HostName {address}\n"
        for name, (address, _) in servers.items()
    ]
    everywhere = (
        f"Host {' '.join(servers)}\n    User {user}\n    IdentityFile {private}\n"
        f"    IdentitiesOnly yes\n    UserKnownHostsFile {folder / 'known_hosts'}\n"
        "    StrictHostKeyChecking yes\n"
    )
    (folder / "config").write_text("".join([*hosts, everywhere]))


def make_disk(
    disk: Path,
    name: str,
    host_key: SshKey,
    login_key: SshKey,
    names: Mapping[str, IPv4Address],
    *,
    docker: bool,
) -> None:
    """Make the folders of an overlay mount, and the server's own files in ``disk/upper``, where
    owners and modes override the base's. ``names``: the servers' addresses, for ``/etc/hosts``."""
    upper = disk / "upper"
    home = disk / "upper/home" / USER
    disk.mkdir(
        mode=0o700,
        parents=True,
    )
    for folder in (
        upper,
        disk / "root",
        upper / "etc",
        upper / "etc/ssh",
        upper / "home",
    ):
        _folder(folder, 0o755)
    _folder(disk / "work", 0o700)
    if docker:
        _folder(disk / "docker", 0o710)
    for folder in (home, home / ".ssh"):
        _folder(folder, 0o700, _USER_ID)
    _file(
        home / ".ssh/authorized_keys",
        f"{login_key.public} {USER}\n",
        0o600,
        _USER_ID,
    )
    _file(upper / "etc/hostname", f"{name}\n", 0o644)
    hosts = [f"{address}\t{other}\n" for other, address in names.items()]
    _file(
        upper / "etc/hosts", "".join(["127.0.0.1\tlocalhost\n", *hosts]), 0o644
    )
    _file(upper / "etc/machine-id", f"{uuid.uuid4().hex}\n", 0o444)
    _file(upper / "etc/ssh/ssh_host_ed25519_key", host_key.private, 0o600)
    _file(
        upper / "etc/ssh/ssh_host_ed25519_key.pub",
        f"{host_key.public} {name}\n",
        0o644,
    )


def _folder(
    path: Path,
    mode: int,
    owner: int = 0,
) -> None:
    path.mkdir()
    path.chmod(mode)
    os.chown(path, owner, owner)


def _file(
    path: Path,
    text: str,
    mode: int,
    owner: int = 0,
) -> None:
    path.touch(mode=0o600)
    path.write_text(text)
    path.chmod(mode)
    os.chown(path, owner, owner)


class NoRehearsalServers(PatchlightError):
    """This machine cannot run servers with their own root file system."""


def server_base(say: Callable[[str], None], *options: str) -> Path:
    """The folder of the root file system (with ``--docker`` or ``--vm``: of such servers), created
    if missing in about a minute. ``say`` is called at each step. ``NoRehearsalServers`` if that
    fails."""
    script = str(deploy_file("server-base.sh"))
    command = ["bash", script, *options]
    lines: list[str] = []
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            for line in process.stderr:
                lines.append(line.strip().removeprefix(_PREFIX))
                if line.startswith(_PREFIX):
                    say(lines[-1])
            folder = process.stdout.read().strip()
        except BaseException:
            # The whole group: the shell would wait for its program.
            os.killpg(process.pid, signal.SIGTERM)
            raise
    if process.returncode or not folder:
        wrote = "\n    ".join(lines[-15:])
        raise NoRehearsalServers(
            f"making the root file system of the servers: {script} ended with status "
            f"{process.returncode}; its last lines:\n    {wrote}",
            hint="this needs mmdebstrap and, the first time, a distribution mirror: run "
            "deploy/bootstrap.sh, check the network, or set PATCHLIGHT_MIRROR",
        )
    return Path(folder)


def check_overlay(base: Path, trial: Path) -> None:
    """``NoRehearsalServers`` if no root can be mounted over ``base``; ``trial`` is a temporary
    folder next to the servers' disks."""
    layers = {"upperdir": trial / "upper", "workdir": trial / "work"}
    root = trial / "root"
    for folder in (*layers.values(), root):
        folder.mkdir(parents=True)
    options = ",".join(
        f"{key}={folder}"
        for key, folder in {"lowerdir": base, **layers}.items()
    )
    own = [
        "unshare",
        "--mount",
        "--pid",
        "--uts",
        "--ipc",
        "--cgroup",
        "--fork",
    ]
    mount = [
        "mount",
        "-t",
        "overlay",
        "-o",
        options,
        "overlay",
        str(root),
    ]
    try:
        tried = subprocess.run(
            [*own, *mount],
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError as error:
        raise NoRehearsalServers(
            "starting a server with its own root: the command unshare was not found",
            hint="install util-linux, or use --server-kind namespace",
        ) from error
    shutil.rmtree(trial)
    if tried.returncode:
        raise NoRehearsalServers(
            f"mounting a server's root over {base}: {tried.stderr.strip()}",
            hint="this needs overlay file systems, process and mount namespaces, and "
            f"{trial.parent} on a plain disk: containers must be privileged, with a volume "
            "there; or use --server-kind namespace",
        )


GROUPS = Path("/sys/fs/cgroup")
OURS = "patchlight-servers"
# All servers together get the weight of four processes: the lab's other processes are in no group,
# and a group counts like one process.
_WEIGHTS = {"cpu.shares": 4 * 1024, "cpu.weight": 4 * 100}
_MEMORY = ("memory.max", "memory.limit_in_bytes")  # of all together


def server_group(lab: str, server: str) -> str:
    """The path of a server's groups in every hierarchy."""
    return f"{OURS}/{lab}/{server}"


def make_groups(
    lab: str,
    server: str,
    root: Path = GROUPS,
) -> None:
    """Make the missing groups of a server; ``CgroupError`` if that fails."""
    try:
        for hierarchy in _hierarchies(root):
            group = hierarchy
            for name in server_group(lab, server).split("/"):
                # Version 2: subgroups can count and limit what this one can.
                with suppress(FileNotFoundError):
                    for controller in (
                        (group / "cgroup.controllers").read_text().split()
                    ):
                        with suppress(
                            OSError
                        ):  # a controller that exists in the root group only
                            (group / "cgroup.subtree_control").write_text(
                                f"+{controller}"
                            )
                group /= name
                group.mkdir(exist_ok=True)
                for file in ("cpuset.cpus", "cpuset.mems"):
                    # Version 1: a new group has none, so it cannot have processes.
                    if (group / file).exists() and not (
                        group / file
                    ).read_text().strip():
                        (group / file).write_text(
                            (group.parent / file).read_text()
                        )
                most = dict.fromkeys(
                    _MEMORY if name == OURS else (),
                    processes.memory_for_workers(),
                )
                for file, value in {**_WEIGHTS, **most}.items():
                    if (group / file).exists():
                        (group / file).write_text(str(value))
    except OSError as error:
        raise processes.CgroupError(
            f"making cgroups for {server}: {error.strerror} ({error.filename})",
            hint="use a machine with writable cgroups, or --server-kind ssh",
        ) from error


def remove_groups(
    lab: str,
    server: str = "",
    root: Path = GROUPS,
    deadline_s: float = 10.0,
) -> None:
    """Remove the groups of a lab, or of one server; ``CgroupError`` if they contain processes."""
    ends = time.monotonic() + deadline_s
    for hierarchy in _hierarchies(root):
        top = hierarchy / OURS / lab / server
        folders = [top, *top.rglob("*/")] if top.is_dir() else []
        for folder in sorted(folders, reverse=True):
            processes.remove_group(
                folder, ends, "end the processes listed in its cgroup.procs"
            )
        for folder in (hierarchy / OURS / lab, hierarchy / OURS):
            with suppress(OSError):
                folder.rmdir()  # if it was the last one


def _hierarchies(root: Path) -> Iterator[Path]:
    """The root of each hierarchy: one of version 2, or one per controller of version 1."""
    if (root / "cgroup.controllers").exists():
        yield root
        return
    with suppress(FileNotFoundError):
        for folder in sorted(root.iterdir()):
            # Some controllers have two names.
            if not folder.is_symlink() and (folder / "cgroup.procs").exists():
                yield folder
