"""Where a deployment lies on a server, and the connection to who deploys."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import subprocess
import sys
from pathlib import Path
from typing import IO, Any, BinaryIO

MAKE_ROOM = "Free space on that disk of the server, and run the command again."


class RequestRefused(Exception):
    """A request that cannot be carried out: the message says why, ``hint`` what to do."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class Places:
    """The folders of a lab on this server, below ``root`` (``/`` but in tests)."""

    def __init__(self, lab: str, root: Path) -> None:
        self.lab = lab
        self.root = root
        self.home = root / "opt/patchlight" / lab
        self.files = self.home / "files"
        self.releases = self.home / "releases"
        # Layers that deployments made, and those that came with the server's image.
        self.layers = self.home / "layers"
        self.image_layers = root / "usr/lib/patchlight"
        self.configuration = self.home / "configuration"
        self.current = self.home / "current"
        self.previous = self.home / "previous"
        self.state = root / "var/lib/patchlight" / lab
        self.logs = root / "var/log/patchlight" / lab
        self.run = root / "run/patchlight-services" / lab
        # There while services may not run yet what is written down for them.
        self.unserved = self.home / "unserved"
        self.lock = root / "run" / f"patchlight-deploy-{lab}.lock"
        self.units = root / "etc/systemd/system"

    @property
    def folders(self) -> tuple[Path, ...]:
        """All that is this lab's alone."""
        return self.home, self.state, self.logs, self.run


def write(
    path: Path,
    text: str,
    mode: int = 0o644,
) -> bool:
    """Put ``text`` into a file, all of it or nothing; whether that changed anything."""
    with contextlib.suppress(OSError):
        if path.read_text() == text and path.stat().st_mode & 0o777 == mode:
            return False
    path.parent.mkdir(
        mode=0o755,
        parents=True,
        exist_ok=True,
    )
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)
    with os.fdopen(
        os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w"
    ) as file:
        os.fchmod(file.fileno(), mode)
        file.write(text)
        to_disk(file)
    part.replace(path)
    return True


def to_disk(file: IO[Any]) -> None:
    """Have a file survive a power cut: else its new name could outlive it."""
    file.flush()
    os.fsync(file.fileno())


def point(link: Path, target: str) -> None:
    """Make a symbolic link lead elsewhere, at once."""
    part = link.with_name(f".{link.name}.part")
    part.unlink(missing_ok=True)
    part.symlink_to(target)
    part.replace(link)


class Line:
    """The connection to who deploys: requests and answers are lines of JSON."""

    def __init__(self, incoming: BinaryIO, outgoing: BinaryIO) -> None:
        self.incoming = incoming
        self._outgoing = outgoing

    def say(self, answer: dict[str, Any]) -> None:
        """Send one line."""
        self._outgoing.write(json.dumps(answer).encode() + b"\n")
        self._outgoing.flush()

    def run(self, *command: str | Path) -> str:
        """A command's output; it ends with the connection. ``RequestRefused`` if it fails."""
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ) as process:
            assert process.stdout is not None
            output = bytearray()
            while piece := self._next(process):
                output += piece
        text = output.decode(errors="replace").strip()
        if process.returncode:
            last = text.splitlines()[-1:] or [f"status {process.returncode}"]
            full = os.strerror(errno.ENOSPC) in last[0]
            raise RequestRefused(
                f"{Path(command[0]).name} failed: {last[0][-500:]}",
                MAKE_ROOM if full else "",
            )
        return text

    def relay(self, command: list[str]) -> None:
        """Send what a command writes, until it ends or the other side is gone."""
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ) as process:
            assert process.stdout is not None
            while piece := self._next(process):
                self.say({"text": piece.decode(errors="replace")})

    def _next(self, process: subprocess.Popen[bytes]) -> bytes:
        """The next piece of its output; empty at its end."""
        assert process.stdout is not None
        output = process.stdout.fileno()
        here = self.incoming.fileno()
        while True:
            # Nothing is sent while an answer is waited for: what comes is the end.
            ready, _, _ = select.select([output, here], [], [])
            if output in ready:
                return os.read(output, 1 << 16)
            process.kill()
            sys.exit("the connection was cut")
