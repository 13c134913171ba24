"""Which host key each device has: pinned on first use, refused ever after if it changes.

The pins are a file in OpenSSH's known_hosts form, ``~/.config/patchlight/known_hosts`` or the
one that ``PATCHLIGHT_KNOWN_HOSTS`` names. A key seen for the first time is written there, and
its fingerprint is told as a warning in the log. To have nothing trusted on first use, set
``PATCHLIGHT_HOST_KEYS=strict`` and fill the file beforehand: ``ssh-keyscan -p PORT HOST``,
after comparing the fingerprint with the one on the device's console.
"""

import base64
import hashlib
import logging
import os
from pathlib import Path

import paramiko
from paramiko.hostkeys import InvalidHostKey

from patchlight.controller.circuits.contract import LoginRefused
from patchlight.testbed.linux.files import append_line, user_folder

FILE_VARIABLE = "PATCHLIGHT_KNOWN_HOSTS"
POLICY_VARIABLE = "PATCHLIGHT_HOST_KEYS"
STRICT = "strict"

log = logging.getLogger("patchlight.ssh")


class HostKeyRefused(LoginRefused):
    """The device's host key is not the pinned one; no password was sent to it."""


def fingerprint(key: paramiko.PKey) -> str:
    """As ``ssh-keygen -l`` prints it: ``SHA256:…``."""
    digest = hashlib.sha256(key.asbytes()).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def check_host_key(name: str, host: str, port: int, key: paramiko.PKey) -> None:
    """``HostKeyRefused`` unless ``key`` is the one pinned for ``host:port``, or the first.

    ``name`` is what errors call the device. Reads and writes a file: call it in a thread.
    """
    path, where = pins_path(), f"[{host}]:{port}"
    shown = f"{key.get_name()} {fingerprint(key)}"
    try:
        pins = paramiko.HostKeys(str(path)) if path.exists() else paramiko.HostKeys()
    except (OSError, ValueError, paramiko.SSHException, InvalidHostKey) as error:
        raise HostKeyRefused(
            f"the host key of {name} at {where} cannot be checked: reading {path}: {error}",
            hint="correct or remove that file",
        ) from error
    # OpenSSH writes no port where it is the usual one.
    pinned = pins.lookup(where) or (pins.lookup(host) if port == 22 else None)
    if pinned:
        if any(known.asbytes() == key.asbytes() for known in pinned.values()):
            return
        raise HostKeyRefused(
            f"{name} at {where} has the host key {shown}, not the one pinned in {path}: "
            "somebody may be in between",
            hint=f"if the device is new or was reset: ssh-keygen -R '{where}' -f {path}",
        )
    if os.environ.get(POLICY_VARIABLE) == STRICT:
        raise HostKeyRefused(
            f"{name} at {where} has the host key {shown}, which is not in {path}",
            hint=f"compare it with the device's console, then: ssh-keyscan -p {port} {host} "
            f">> {path}",
        )
    _pin(path, f"{where} {key.get_name()} {key.get_base64()}", name)
    log.warning("%s at %s: pinned its host key %s in %s", name, where, shown, path)


def pins_path() -> Path:
    """The file of pins."""
    if named := os.environ.get(FILE_VARIABLE):
        return Path(named)
    return user_folder("XDG_CONFIG_HOME", ".config") / "patchlight" / "known_hosts"


def _pin(path: Path, line: str, name: str) -> None:
    try:
        append_line(path, line)
    except OSError as error:
        # Trusting a key without remembering it would be trusting every key.
        raise HostKeyRefused(
            f"the host key of {name} cannot be pinned in {path}: {error.strerror}",
            hint=f"name a file that can be written in {FILE_VARIABLE}",
        ) from error
