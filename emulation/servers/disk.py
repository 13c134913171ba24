"""What a rehearsal server has on its disk beside the shared base: who it is, and its keys."""

import os
import uuid
from collections.abc import Mapping
from ipaddress import IPv4Address
from pathlib import Path

from patchlight.emulation.servers.keys import SshKey

USER = "admin"
"""Who deploys: may log in with the lab's key, and use sudo without a password."""
_USER_ID = 1000  # as deploy/server-base.sh makes it


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
