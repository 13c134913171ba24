"""The root file system of rehearsal servers: the shared base, each one's own files, SSH keys."""

import base64
import hashlib
import os
import shutil
import signal
import subprocess
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.linux import deploy_file

_PREFIX = "server-base: "
USER = "admin"
"""Who deploys: may log in with the lab's key, and use sudo without a password."""
_USER_ID = 1000  # as deploy/server-base.sh makes it


@dataclass(frozen=True, slots=True)
class SshKey:
    """A key pair as OpenSSH's files have it."""

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
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return SshKey(private.decode(), public.decode())


def write_client_files(
    folder: Path, user: str, identity: SshKey, servers: Mapping[str, tuple[IPv4Address, SshKey]]
) -> None:
    """Write what OpenSSH's client needs: ``identity`` (0600), ``known_hosts`` and ``config``.

    ``servers`` has each server's address and host key. ``ssh -F folder/config SERVER`` logs in.
    """
    folder.mkdir(mode=0o700)
    private = folder / "identity"
    private.touch(mode=0o600)
    private.write_text(identity.private)
    known = [f"{name},{address} {key.public}\n" for name, (address, key) in servers.items()]
    (folder / "known_hosts").write_text("".join(known))
    hosts = [f"Host {name}\n    HostName {address}\n" for name, (address, _) in servers.items()]
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
    """Make the folders of an overlay mount, and the server's own files in ``disk/upper``.

    ``names`` are the servers' management addresses, for ``/etc/hosts``. Where a folder is in the
    base too, owner and mode of this one count. With ``docker`` there is a folder
    for what its engine keeps.
    """
    upper, home = disk / "upper", disk / "upper/home" / USER
    disk.mkdir(mode=0o700, parents=True)
    for folder in (upper, disk / "root", upper / "etc", upper / "etc/ssh", upper / "home"):
        _folder(folder, 0o755)
    _folder(disk / "work", 0o700)
    if docker:
        _folder(disk / "docker", 0o710)
    for folder in (home, home / ".ssh"):
        _folder(folder, 0o700, _USER_ID)
    _file(home / ".ssh/authorized_keys", f"{login_key.public} {USER}\n", 0o600, _USER_ID)
    _file(upper / "etc/hostname", f"{name}\n", 0o644)
    hosts = [f"{address}\t{other}\n" for other, address in names.items()]
    _file(upper / "etc/hosts", "".join(["127.0.0.1\tlocalhost\n", *hosts]), 0o644)
    _file(upper / "etc/machine-id", f"{uuid.uuid4().hex}\n", 0o444)
    _file(upper / "etc/ssh/ssh_host_ed25519_key", host_key.private, 0o600)
    _file(upper / "etc/ssh/ssh_host_ed25519_key.pub", f"{host_key.public} {name}\n", 0o644)


def _folder(path: Path, mode: int, owner: int = 0) -> None:
    path.mkdir()
    path.chmod(mode)
    os.chown(path, owner, owner)


def _file(path: Path, text: str, mode: int, owner: int = 0) -> None:
    path.touch(mode=0o600)
    path.write_text(text)
    path.chmod(mode)
    os.chown(path, owner, owner)


class NoRehearsalServers(PatchlightError):
    """This machine cannot run servers with a root file system of their own."""


def server_base(say: Callable[[str], None], *, docker: bool = False) -> Path:
    """The folder of the root file system, made where there is none (once, about a minute).

    With ``docker`` it is the one that has a Docker engine. ``say`` hears of each step. Raises
    ``NoRehearsalServers`` where it cannot be made.
    """
    script = str(deploy_file("server-base.sh"))
    command = ["bash", script, *(["--docker"] if docker else [])]
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
            # All of it: the shell alone would wait for the program that it runs.
            os.killpg(process.pid, signal.SIGTERM)
            raise
    if process.returncode or not folder:
        wrote = "\n    ".join(lines[-15:])
        raise NoRehearsalServers(
            f"making the root file system of the servers: {script} ended with status "
            f"{process.returncode}; the last it wrote:\n    {wrote}",
            hint="It needs mmdebstrap and, the first time, a mirror of the distribution: run "
            "deploy/bootstrap.sh, see to the network, or name a mirror with PATCHLIGHT_MIRROR.",
        )
    return Path(folder)


def has_docker(base: Path) -> bool:
    """Whether servers with this root file system have a Docker engine."""
    return (base / "usr/sbin/dockerd").exists()


def check_overlay(base: Path, trial: Path) -> None:
    """Raise ``NoRehearsalServers`` where no server's root can be mounted over ``base``.

    ``trial`` is a folder to be made where the servers' disks are, and removed again.
    """
    layers = {"upperdir": trial / "upper", "workdir": trial / "work"}
    root = trial / "root"
    for folder in (*layers.values(), root):
        folder.mkdir(parents=True)
    options = ",".join(f"{key}={folder}" for key, folder in {"lowerdir": base, **layers}.items())
    own = ["unshare", "--mount", "--pid", "--uts", "--ipc", "--cgroup", "--fork"]
    mount = ["mount", "-t", "overlay", "-o", options, "overlay", str(root)]
    try:
        tried = subprocess.run([*own, *mount], capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise NoRehearsalServers(
            "starting a server with a root of its own: there is no command unshare here",
            hint="Install util-linux, or use --servers namespace.",
        ) from error
    shutil.rmtree(trial)
    if tried.returncode:
        raise NoRehearsalServers(
            f"mounting a server's root over {base}: {tried.stderr.strip()}",
            hint="It needs overlay file systems, namespaces of processes and mounts, and "
            f"{trial.parent} on a plain disk: a container has them only if it is privileged, "
            "with a volume there. --servers namespace needs none of it.",
        )
