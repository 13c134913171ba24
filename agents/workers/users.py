"""As whom workers that are processes run, and what of the server is theirs."""

import hashlib
import os
import pwd
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from patchlight.agents.errors import LaunchError
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.worker_policy import DYNAMIC

# systemd keeps these free; below them are those that it gives to containers.
_FIRST_USER, _USERS = 0x70000000, 0x0F000000
_SOON_S = 1.0
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class WorkerUser:
    """A user of this machine, or a number that is nobody else's; ``name`` is for messages."""

    uid: int
    gid: int
    name: str

    @property
    def is_root(self) -> bool:
        """Whether files of the server are open to it."""
        return self.uid == 0

    def may(self, path: Path, bits: int) -> bool:
        """Whether the mode of ``path`` lets it do that: 4 read, 2 write, 1 pass."""
        found = path.stat()
        shift = 6 if found.st_uid == self.uid else 3 if found.st_gid == self.gid else 0
        return (found.st_mode >> shift) & bits == bits

    def closed(self, path: Path) -> Path | None:
        """The first folder on the way to ``path`` that it may not pass, if there is one."""
        return next((each for each in reversed(path.parents) if not self.may(each, 1)), None)


def named_user(choice: str) -> WorkerUser | None:
    """The user of that name or number; ``None`` for ``dynamic``. ``BadInput`` if there is none."""
    if choice == DYNAMIC:
        return None
    try:
        known = pwd.getpwuid(int(choice)) if choice.isdecimal() else pwd.getpwnam(choice)
    except (KeyError, OverflowError):
        raise BadInput(
            f"workers cannot run as {choice}: this machine has no such user",
            hint=f"make one: useradd --system --no-create-home {choice}; or say {DYNAMIC}: a user "
            "for each person who submits jobs",
        ) from None
    return WorkerUser(known.pw_uid, known.pw_gid, known.pw_name)


def user_for(lab: str, submitter: str) -> WorkerUser:
    """As whom the jobs of one person in one lab run: the same on every server, at any time."""
    digest = hashlib.sha256(f"{lab}\0{submitter}".encode()).digest()
    number = _FIRST_USER + int.from_bytes(digest[:8]) % _USERS
    return WorkerUser(number, number, f"uid-{number}")


def refuse_inside_workers_folders(worker: str, path: str) -> None:
    """``LaunchError`` for what another worker could replace by a link while it is being mounted."""
    for folder in Path(os.path.realpath(path)).parents:
        if folder.exists() and _FIRST_USER <= folder.stat().st_uid < _FIRST_USER + _USERS:
            raise LaunchError(
                f"worker {worker}: {path} is inside {folder}, which belongs to workers",
                hint="name a folder beside it",
            )


def ready_checkpoint(worker: str, checkpoint: str, user: WorkerUser) -> None:
    """See that the worker can write to its checkpoint folder; make it if only that is missing.

    ``LaunchError`` if it cannot: the owner of a folder that is there is never changed.
    """
    refuse_inside_workers_folders(worker, checkpoint)
    path = Path(checkpoint)
    remedy = f"on this server: sudo install -d -m 700 -o {user.uid} -g {user.gid} {checkpoint}"
    try:
        with suppress(FileExistsError), _held(path.parent) as above:
            os.mkdir(path.name, 0o700, dir_fd=above)
            made = os.open(path.name, _FOLDER, dir_fd=above)
            os.fchown(made, user.uid, user.gid)
            os.close(made)
        end = time.monotonic() + _SOON_S  # another agent may be making it
        while not user.may(path, 0o3):
            if time.monotonic() > end:
                raise LaunchError(
                    f"worker {worker} runs as {user.name}, which cannot write to its checkpoint "
                    f"folder {checkpoint}",
                    hint=remedy,
                )
            time.sleep(0.01)
    except OSError as error:
        raise LaunchError(
            f"making the checkpoint folder {checkpoint} of worker {worker}: {error.strerror}",
            hint=remedy,
        ) from error


@contextmanager
def _held(folder: Path) -> Iterator[int]:
    """A descriptor of a folder, without a link on the way, whoever changes its path meanwhile."""
    with ExitStack() as stack:
        found = os.open("/", _FOLDER)
        stack.callback(os.close, found)
        for part in folder.parts[1:]:
            found = os.open(part, _FOLDER, dir_fd=found)
            stack.callback(os.close, found)
        yield found


def hand_over(user: WorkerUser, folder: Path) -> None:
    """Make a worker's folder, and what is in it, the user's own."""
    if user.is_root:
        return
    for here, folders, files in os.walk(folder):
        for name in ("", *folders, *files):
            os.chown(os.path.join(here, name), user.uid, user.gid, follow_symlinks=False)
