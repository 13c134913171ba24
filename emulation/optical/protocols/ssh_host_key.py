"""The SSH host key of this machine's emulated devices: made once, so that clients can pin it."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from pathlib import Path

import paramiko

log = logging.getLogger("patchlight.optical")


def host_key() -> paramiko.PKey:
    """The key in ``~/.local/state/patchlight``, made at the first start.

    Where that cannot be written, a key of this process alone.
    """
    path = _path()
    try:
        if not path.exists():
            _make(path)
        return paramiko.ECDSAKey(filename=str(path))
    except (OSError, paramiko.SSHException) as error:
        log.warning("a new host key for this start only: %s: %s", path, error)
        return paramiko.ECDSAKey.generate()


def _path() -> Path:
    state = os.environ.get("XDG_STATE_HOME")
    home = Path(state) if state else Path.home() / ".local" / "state"
    return home / "patchlight" / "emulated_ssh_host_key"


def _make(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Several devices of a lab start at once: the first whole file stays.
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        beside = Path(folder) / "key"
        paramiko.ECDSAKey.generate().write_private_key_file(str(beside))
        with contextlib.suppress(FileExistsError):
            os.link(beside, path)
