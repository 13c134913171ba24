"""The programs of a lab on this server, kept running by systemd or by a shell."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import time
from pathlib import Path
from typing import Any

from patchlight.deploy.remote_helper.places import (
    Line,
    Places,
    RequestRefused,
    write,
)

_PATIENCE_S = 30.0


def has_systemd(root: Path) -> bool:
    """Whether systemd runs this machine."""
    return (root / "run/systemd/system").is_dir()


class Service:
    """The agent or the controller of a lab (``role``)."""

    def __init__(
        self,
        role: str,
        places: Places,
        line: Line,
    ) -> None:
        self._role = role
        self._places = places
        self._line = line
        self._by_systemd = has_systemd(places.root)
        self._unit = f"patchlight-{role}@{places.lab}.service"
        self._script = places.home / f"keep-{role}.sh"
        self._starter = Starter(role, places, line)
        self._pid_file = places.run / f"{role}.pid"
        self._log = places.logs / f"{role}.log"

    @property
    def is_here(self) -> bool:
        """Whether it was ever set up."""
        return (
            self._places.units / self._unit
        ).exists() or self._script.exists()

    def set_up(self, unit: str, script: str) -> bool:
        """Write down how it is run; whether that changed. systemd learns of it by ``enable``."""
        if self._by_systemd:
            return write(self._places.units / self._unit, unit)
        changed = write(self._script, script, 0o755)
        return (
            self._starter.set_up(self._script, self._pid_file, self._log)
            or changed
        )

    def stop(self) -> None:
        """End it; what it started itself (workers) goes on."""
        if self._by_systemd:
            if self.is_here:
                self._systemctl("stop", self._unit)
            return
        keeper = self._keeper()
        if keeper is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(keeper, signal.SIGTERM)
            ends = time.monotonic() + _PATIENCE_S
            while _began(keeper) is not None and time.monotonic() < ends:
                time.sleep(0.05)
            for pid in (
                (keeper, *_children(keeper))
                if _began(keeper) is not None
                else ()
            ):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self._pid_file.unlink(missing_ok=True)

    def state(self) -> dict[str, Any]:
        """Whether it runs, since when (Unix time), and how often it had to be started again."""
        if self._by_systemd:
            keys = "MainPID,NRestarts"
            shown = self._systemctl(
                "show",
                "--property",
                keys,
                self._unit,
            ).splitlines()
            found = dict(line.split("=", 1) for line in shown)
            program = int(found.get("MainPID", 0)) or None
            starts = int(found.get("NRestarts", 0)) + 1
        else:
            program = None
            starts = 0
            with contextlib.suppress(OSError, ValueError):
                if self._keeper() is not None:
                    program = int(
                        (self._places.run / f"{self._role}.child").read_text()
                    )
            with contextlib.suppress(OSError):
                starts = (
                    (self._places.run / f"{self._role}.starts").stat().st_size
                )
        since = _since(program) if program else None
        return {
            "running": since is not None,
            "since": since,
            "restarts": max(0, starts - 1),
        }

    def logs(self, lines: int, *, follow: bool) -> list[str]:
        """The command that prints its last lines."""
        if self._by_systemd:
            follows = ["--follow"] if follow else []
            command = [
                "journalctl",
                "--no-pager",
                "--output=cat",
                f"--unit={self._unit}",
            ]
            return [*command, f"--lines={lines}", *follows]
        if not self._log.exists():
            raise RequestRefused(f"no log of the {self._role} yet")
        follows = ["--follow=name", "--retry"] if follow else []
        return [
            "tail",
            f"--lines={lines}",
            *follows,
            str(self._log),
        ]

    def remove(self) -> None:
        """Stop it, and forget how it is run."""
        self.stop()
        unit = self._places.units / self._unit
        if unit.exists():
            self._systemctl("disable", "--quiet", self._unit)
            unit.unlink()
            self._systemctl("daemon-reload")
            with contextlib.suppress(
                RequestRefused
            ):  # one that never failed is not known any more
                self._systemctl("reset-failed", self._unit)
        self._starter.remove()
        self._script.unlink(missing_ok=True)

    def _keeper(self) -> int | None:
        """The shell that keeps it running, if that is the one which was started."""
        with contextlib.suppress(OSError, ValueError):
            pid, began = self._pid_file.read_text().split()
            return int(pid) if _began(int(pid)) == began else None
        return None

    def _systemctl(self, *arguments: str) -> str:
        return self._line.run("systemctl", *arguments)


def enable(services: list[Service]) -> None:
    """Have systemd read what is written down for these, and start them at boot."""
    _at_once("enable", services)


def restart(services: list[Service]) -> None:
    """Start them, after their ends where they run. systemd does both, also if this program ends."""
    _at_once("restart", services)
    for service in services:
        if not service._by_systemd:
            service.stop()
            service._starter.start()


def _at_once(verb: str, services: list[Service]) -> None:
    """One call for all: it takes an emulated processor a second."""
    if units := [service._unit for service in services if service._by_systemd]:
        services[0]._systemctl(verb, "--quiet", *units)


def _began(pid: int) -> str | None:
    """When a process began, in ticks since boot: a number that is given anew has another."""
    with contextlib.suppress(OSError):
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        fields = stat.rpartition(")")[2].split()
        return None if fields[0] in "ZX" else fields[19]
    return None


def _since(pid: int) -> float | None:
    began = _began(pid)
    if began is None:
        return None
    lines = Path("/proc/stat").read_text().splitlines()
    booted = next(
        int(line.split()[1]) for line in lines if line.startswith("btime ")
    )
    return booted + int(began) / os.sysconf("SC_CLK_TCK")


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [
            int(child)
            for child in Path(f"/proc/{pid}/task/{pid}/children")
            .read_text()
            .split()
        ]
    return []


class Starter:
    """The script that starts the keeper of a program, now and when the server boots."""

    def __init__(
        self,
        role: str,
        places: Places,
        line: Line,
    ) -> None:
        self._role = role
        self._places = places
        self._line = line
        self._name = f"patchlight-{role}-{places.lab}"
        self._script = places.home / f"start-{role}.sh"
        self._entry = places.root / "etc/init.d" / self._name

    def set_up(
        self,
        keeper: Path,
        pid_file: Path,
        log: Path,
    ) -> bool:
        """Write it down, and have it run at boot where scripts are; whether that changed."""
        changed = write(self._script, self._text(keeper, pid_file, log), 0o755)
        if (
            self._entry.parent.is_dir()
            and shutil.which("update-rc.d")
            and not self._is_entered()
        ):
            self._entry.unlink(missing_ok=True)
            self._entry.symlink_to(self._script)
            self._update("defaults")
            changed = True
        return changed

    def start(self) -> None:
        """Start the keeper."""
        self._line.run("sh", self._script, "start")

    def remove(self) -> None:
        """Have it run no more."""
        self._script.unlink(missing_ok=True)
        if self._is_entered():
            self._entry.unlink()
            self._update("remove")

    def _is_entered(self) -> bool:
        return (
            self._entry.is_symlink() and self._entry.readlink() == self._script
        )

    def _update(self, action: str) -> None:
        root = "" if self._places.root == Path("/") else str(self._places.root)
        self._line.run(
            "env",
            f"DPKG_ROOT={root}",
            "update-rc.d",
            self._name,
            action,
        )

    def _text(
        self,
        keeper: Path,
        pid_file: Path,
        log: Path,
    ) -> str:
        run = pid_file.parent
        folders = shlex.join(map(str, (run, log.parent, self._places.state)))
        said = shlex.join(
            [str(run / f"{self._role}.{name}") for name in ("starts", "child")]
        )
        command = shlex.join(
            [
                "sh",
                str(keeper),
                str(run),
                str(log),
            ]
        )
        return f"""\
#!/bin/sh
### BEGIN INIT INFO
# Provides:          {self._name}
# Required-Start:    $remote_fs $network
# Required-Stop:
# Should-Start:      docker
# Default-Start:     2 3 4 5
# Default-Stop:
# Short-Description: Patchlight {self._role} of lab {self._places.lab}
### END INIT INFO
# sh start-{self._role}.sh start runs its keeper, and notes which process that is.
[ "$1" = start ] || exit 0
mkdir -p -m 700 {folders}
umask 077
rm -f {said}
cd /
setsid {command} </dev/null >>{shlex.quote(str(log))} 2>&1 &
pid=$!
# When it began, in ticks since boot: the number alone may be given anew.
began=$(sed 's/.*) //' "/proc/$pid/stat" | cut -d' ' -f20)
echo "$pid $began" >{shlex.quote(str(pid_file))}
"""
