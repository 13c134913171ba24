"""What a worker that is a process may do: as which user, without which rights, within which limits.

It loses all capabilities and can gain none (``no_new_privs``), root's too, as in a container, by
tools of util-linux.
"""

import os
import pwd
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from patchlight.agents.errors import LaunchError
from patchlight.agents.workers.contract import WorkerLaunch
from patchlight.testbed.errors import BadInput
from patchlight.testbed.linux.cgroups import Cgroups
from patchlight.testbed.linux.cpu_lists import cpus_of

DYNAMIC = "dynamic"
# The kernel numbers namespaces from 0xF0000000 on, and users of that range are nobody's.
_USERS_BELOW_NAMESPACES = 0x80000000
_NO_RIGHTS = ("--no-new-privs", "--bounding-set=-all", "--inh-caps=-all")


@dataclass(frozen=True, slots=True)
class WorkerUser:
    """A user of this machine, or of nobody else; ``name`` is for messages."""

    uid: int
    gid: int
    name: str

    @property
    def is_root(self) -> bool:
        """Whether files of the server are open to it."""
        return self.uid == 0


def named_user(choice: str) -> WorkerUser | None:
    """The user of that name or number; ``None`` for ``dynamic``. ``BadInput`` if there is none."""
    if choice == DYNAMIC:
        return None
    try:
        known = pwd.getpwuid(int(choice)) if choice.isdecimal() else pwd.getpwnam(choice)
    except (KeyError, OverflowError):
        raise BadInput(
            f"--worker-user {choice}: this machine has no such user",
            hint=f"make one: useradd --system --no-create-home {choice}; or give {DYNAMIC}, for a "
            "user of its own for each worker",
        ) from None
    return WorkerUser(known.pw_uid, known.pw_gid, known.pw_name)


def user_of_namespace(inode: int) -> WorkerUser:
    """A user that no other worker of the machine has: as no other has its network namespace."""
    number = inode - _USERS_BELOW_NAMESPACES
    return WorkerUser(number, number, f"user {number}")


def check_reach(user: WorkerUser, path: Path) -> None:
    """``LaunchError`` if others than its owner cannot come to ``path`` through its folders."""
    if user.is_root:
        return
    for folder in reversed(path.parents):
        if not folder.stat().st_mode & 0o001:
            raise LaunchError(
                f"a worker of {user.name} cannot reach {path}: {folder} is closed to it",
                hint=f"chmod o+x {folder}; or run the agent with --worker-user root",
            )


def hand_over(user: WorkerUser, folder: Path) -> None:
    """Make a worker's folder, and what is in it, the user's own."""
    if user.is_root:
        return
    for path in (*folder.iterdir(), folder):
        os.chown(path, user.uid, user.gid, follow_symlinks=False)


def most_processes(launch: WorkerLaunch, user: WorkerUser, cgroups: Cgroups) -> int | None:
    """How many processes its user may have; ``None`` for no limit of the user's.

    Root's are not counted, and a cgroup counts better where there can be one: a user's count has
    the processes of its other workers in it, and those that ended and are not yet cleared away.
    """
    counted = user.is_root or "pids" in cgroups.controllers
    return None if counted else launch.limits.processes


def confined(
    command: Sequence[str], launch: WorkerLaunch, user: WorkerUser, processes: int | None
) -> list[str]:
    """``command`` as that user with so many processes, without any right.

    It lowers its own limits first.
    """
    limits = []
    if processes is not None:
        limits.append(f"--nproc={processes}")
    if launch.rdma_devices:
        limits.append("--memlock=unlimited")
    become = [f"--reuid={user.uid}", f"--regid={user.gid}", "--clear-groups", *_NO_RIGHTS]
    return [*(["prlimit", *limits] if limits else []), "setpriv", *become, *command]


def limit(pid: int, launch: WorkerLaunch, groups: Sequence[Path]) -> None:
    """Hold a process, and what it will fork, to its cgroups, by the files ``groups``, and CPUs.

    ``LaunchError`` if the kernel refuses; harmless if it has ended already.
    """
    try:
        for path in groups:
            path.write_text(str(pid))
        if launch.cpus:
            os.sched_setaffinity(pid, cpus_of(launch.cpus))
    except ProcessLookupError:
        return
    except OSError as exc:
        where = f" ({exc.filename})" if exc.filename else ""
        raise LaunchError(f"limiting worker {launch.spec.id}: {exc.strerror}{where}") from exc
