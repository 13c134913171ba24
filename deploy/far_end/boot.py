"""Programs of a lab that begin with the server, where it is not systemd that begins them.

On Debian and its kin that is done by scripts in ``/etc/init.d``, which ``update-rc.d`` has started.
"""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

from .places import Line, Places, write


class Starter:
    """The script that starts the keeper of a program, now and when the server boots."""

    def __init__(self, role: str, places: Places, line: Line) -> None:
        self._role, self._places, self._line = role, places, line
        self._name = f"patchlight-{role}-{places.lab}"
        self._script = places.home / f"start-{role}.sh"
        self._entry = places.root / "etc/init.d" / self._name

    def set_up(self, keeper: Path, pid_file: Path, log: Path) -> bool:
        """Write it down, and have it run at boot where scripts are; whether that changed."""
        changed = write(self._script, self._text(keeper, pid_file, log), 0o755)
        if self._entry.parent.is_dir() and shutil.which("update-rc.d") and not self._is_entered():
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
        return self._entry.is_symlink() and self._entry.readlink() == self._script

    def _update(self, action: str) -> None:
        root = "" if self._places.root == Path("/") else str(self._places.root)
        self._line.run("env", f"DPKG_ROOT={root}", "update-rc.d", self._name, action)

    def _text(self, keeper: Path, pid_file: Path, log: Path) -> str:
        run = pid_file.parent
        folders = shlex.join(map(str, (run, log.parent, self._places.state)))
        said = shlex.join([str(run / f"{self._role}.{name}") for name in ("starts", "child")])
        command = shlex.join(["sh", str(keeper), str(run), str(log)])
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
