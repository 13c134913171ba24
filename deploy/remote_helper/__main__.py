"""Answers requests of who deploys, one line of JSON each, until the connection ends."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import platform
import shutil
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from patchlight.deploy.remote_helper import releases
from patchlight.deploy.remote_helper.layers import Layers
from patchlight.deploy.remote_helper.places import (
    MAKE_ROOM,
    Line,
    Places,
    RequestRefused,
    write,
)
from patchlight.deploy.remote_helper.services import (
    Service,
    enable,
    has_systemd,
    restart,
)

# In the order that they are started in.
_ROLES = ("gpus", "agent", "controller")


class RemoteHelper:
    """One lab on this server; the methods without an underscore are the requests."""

    def __init__(
        self,
        lab: str,
        root: Path,
        line: Line,
    ) -> None:
        self._places = Places(lab, root)
        self._line = line
        self._layers = Layers(self._places, line)
        self._releases = releases.Releases(self._places, line, self._layers)
        self._services = {
            role: Service(role, self._places, line) for role in _ROLES
        }
        self._images = releases.Images(self._places)
        self._lock: TextIO | None = None

    def look(self, image: str = "") -> dict[str, Any]:
        """What is installed, and the image's id in the Docker engine."""
        configuration = self._places.configuration
        here = [
            role for role, service in self._services.items() if service.is_here
        ]
        return {
            **self._releases.look(),
            "configuration": sorted(
                str(p.relative_to(configuration))
                for p in configuration.rglob("*")
                if p.is_file()
            ),
            "services": {role: self._services[role].state() for role in here},
            "leases": self._leases(),
            "here": any(folder.exists() for folder in self._places.folders),
            "image": self._images.identity(image) if image else [],
            "gpu_sockets": (
                self._places.root / "dev/patchlight-gpus"
            ).is_dir(),
        }

    def _leases(self) -> int:
        leases = self._places.state / "agent/leases"
        return len(list(leases.iterdir())) if leases.is_dir() else 0

    def lock(self, who: str) -> None:
        """Be the only one who changes this lab here, until the connection ends."""
        path = self._places.lock
        path.parent.mkdir(
            parents=True,
            exist_ok=True,
        )
        while self._lock is None:
            file = path.open("a+")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                other = file.read().strip() or "somebody"
                file.close()
                raise RequestRefused(
                    f"{other} is deploying to lab {self._places.lab} here",
                    "Wait until it has ended, and run the command again.",
                ) from None
            # Whoever had it before may just have removed the file.
            if path.exists() and os.path.samestat(
                path.stat(), os.fstat(file.fileno())
            ):
                self._lock = file
            else:
                file.close()
        self._lock.truncate(0)
        self._lock.write(f"{who}, since {time.strftime('%H:%M:%S')},")
        self._lock.flush()

    def put(
        self,
        sha256: str,
        size: int,
        offset: int,
    ) -> None:
        """Take a file."""
        self._releases.put(sha256, size, offset)

    def has_layer(self, layer: str) -> bool:
        """Whether the packages that a release requires are here, and whole."""
        return self._layers.find(layer) is not None

    def install(self, **release: Any) -> bool:
        """Make an environment."""
        return self._releases.install(**release)

    def load_image(self, sha256: str, image: str) -> None:
        """Give a file that came to the Docker engine."""
        self._images.load(sha256, image)

    def configure(self, files: dict[str, tuple[str, int]]) -> bool:
        """Have these files (text and mode), and no others, as configuration; whether it changed."""
        folder = self._places.configuration
        folder.mkdir(
            mode=0o700,
            parents=True,
            exist_ok=True,
        )
        folder.chmod(0o700)
        changed = False
        unserved = self._places.unserved
        was_unserved = unserved.exists()
        unserved.touch()
        for name, (text, mode) in files.items():
            target = folder / name
            target.parent.mkdir(
                mode=0o700,
                parents=True,
                exist_ok=True,
            )
            changed |= write(target, text, mode)
        for path in [p for p in folder.rglob("*") if p.is_file()]:
            if str(path.relative_to(folder)) not in files:
                path.unlink()
                changed = True
        if not changed and not was_unserved:
            unserved.unlink()
        return changed

    def serve(
        self,
        release: str,
        services: dict[str, tuple[str, str]],
        again: bool,
    ) -> bool:
        """Have these services run this release; ``again``: they restart in any case, as they do
        where an earlier deployment was cut off before that.

        ``services`` are a unit of systemd's and a script for each role. Those that are to run no
        more are removed. Returns whether anything changed.
        """
        again = again or self._places.unserved.exists()
        self._places.unserved.touch()
        switched = self._releases.switch(release)
        changed = switched
        served = {
            role: service
            for role, service in self._services.items()
            if role in services
        }
        is_new = {
            role: service.set_up(*services[role])
            for role, service in served.items()
        }
        if again or any(is_new.values()):
            enable([*served.values()])
        restarting = []
        for role, service in self._services.items():
            if role not in services:
                if service.is_here:
                    service.remove()
                    changed = True
                continue
            restarts = is_new[role] or switched or again
            if (
                role == "gpus"
                and self._leases()
                and service.state()["running"]
            ):
                continue  # workers would lose them
            if restarts or not service.state()["running"]:
                # Also a keeper that waits before the next start.
                restarting.append(service)
                changed = True
        restart(restarting)
        self._places.unserved.unlink(missing_ok=True)
        self._releases.prune()
        return changed

    def act(self, action: str, roles: list[str]) -> None:
        """``stop`` or ``restart`` services."""
        services = [self._services[role] for role in roles]
        if action == "restart":
            restart(services)
        else:
            for service in services:
                service.stop()

    def roll_back(self) -> dict[str, Any]:
        """Go back to the release before; returns it. The one in use becomes ``previous``."""
        found = self._releases.look()
        if found["previous"] is None:
            raise RequestRefused(
                "there is no earlier release to return to",
                "'patchlight deploy push' installs this machine's release.",
            )
        self._places.unserved.touch()
        self._releases.switch(found["previous"]["id"])
        restart(
            [
                s
                for role, s in self._services.items()
                if s.is_here and role != "gpus"
            ]
        )
        self._places.unserved.unlink()
        release: dict[str, Any] = self._releases.look()["release"]
        return release

    def state(self, role: str) -> dict[str, Any]:
        """How a service is."""
        return self._services[role].state()

    def answers(self, address: str) -> bool:
        """Whether somebody listens at ``unix:PATH`` or ``host:port`` of this server."""
        is_path = address.startswith("unix:")
        host, _, port = address.rpartition(":")
        with socket.socket(
            socket.AF_UNIX if is_path else socket.AF_INET
        ) as probe:
            probe.settimeout(2)
            return (
                probe.connect_ex(port if is_path else (host, int(port))) == 0
            )

    def logs(
        self,
        role: str,
        lines: int,
        follow: bool,
    ) -> None:
        """Send a service's last lines, and with ``follow`` those to come."""
        self._line.relay(self._services[role].logs(lines, follow=follow))

    def remove(self) -> None:
        """Leave nothing of this lab."""
        for service in self._services.values():
            service.remove()
        self._images.remove()
        for folder in self._places.folders:
            if folder.exists():
                shutil.rmtree(folder)
            with contextlib.suppress(OSError):
                folder.parent.rmdir()  # unless another lab is in it

    def _close(self) -> None:
        if self._lock is not None:
            self._places.lock.unlink(missing_ok=True)
            self._lock.close()


def main(lab: str, root: str = "/") -> None:
    """Serve one connection."""
    line = Line(sys.stdin.buffer, sys.stdout.buffer)
    line.say(
        {
            "python": list(sys.version_info[:2]),
            "machine": platform.machine(),
            "glibc": platform.libc_ver()[1],
            "systemd": has_systemd(Path(root)),
        }
    )
    remote_helper = RemoteHelper(lab, Path(root), line)
    try:
        for text in iter(line.incoming.readline, b""):
            request = json.loads(text)
            method: Callable[..., Any] = getattr(
                remote_helper, request.pop("do")
            )
            try:
                line.say({"answer": method(**request)})
            except RequestRefused as refused:
                line.say({"error": str(refused), "hint": refused.hint})
            except OSError as error:
                hint = "Solve it on the server, and run the command again."
                if error.errno == errno.ENOSPC:
                    hint = MAKE_ROOM
                line.say(
                    {"error": str(error) or type(error).__name__, "hint": hint}
                )
    except BrokenPipeError:
        sys.exit("the connection was cut")
    finally:
        remote_helper._close()


if __name__ == "__main__":
    main(*sys.argv[1:])
