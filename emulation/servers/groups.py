"""Control groups (cgroups) of rehearsal servers, below which their Docker engines make their own.

Each server is in one group of each hierarchy of this machine, and sees nothing above it.
"""

import errno
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from patchlight.testbed.linux.cgroups import CgroupError

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
