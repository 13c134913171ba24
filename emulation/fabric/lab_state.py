"""Records the parts of an emulated lab on this machine before they are made.

``/run/patchlight/<lab>/state.json`` names every namespace and process of a lab. It is updated while
the lab is built, so the next ``down`` or ``up`` can clean up after a crash. Only ``lab.yaml`` and
``hosts`` in that folder are readable by all users. Large files are on disk, in ``DISK_ROOT/<lab>``.
"""

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.labfile.values import LAB_NAME
from patchlight.testbed.linux.processes import boot_id, process_start
from patchlight.testbed.wire.lab_api import API_SOCKET

RUN_ROOT = Path("/run/patchlight")
# /run is in memory; servers with their own file system need more space.
DISK_ROOT = Path("/var/lib/patchlight/servers")
# Every process of a lab has this variable, so unrecorded ones are found too.
MARK = "PATCHLIGHT_RUN"
_LOCK_WAIT_S = 5.0


class LabBusy(PatchlightError):
    """Another Patchlight process is making or removing the same lab."""


@dataclass(slots=True)
class ProcessRecord:
    """A process, identified by its number and start time. ``abrupt``: it may be killed, because
    nothing of it outlives the lab."""

    name: str
    pid: int
    started: int
    log: str
    abrupt: bool = False


@dataclass(slots=True)
class LabState:
    """``state.json``. ``phase``: ``making`` until the lab is complete, then ``up``; ``namespaces``:
    each one's inode, 0 until it exists; ``servers``: ``namespace``, or ``ssh`` or ``vm`` with the
    root file system ``base``; ``datapath``: ``bridge``, ``netdev`` or ``system``; ``docker``: the
    URL of the workers' engine; ``swapped``: pairs of ports; ``options``: of the processes."""

    lab: str
    source: str
    scale: float
    phase: str = "making"
    fabric: str = ""
    datapath: str = ""
    servers: str = "namespace"
    base: str = ""
    controller_api: str = ""
    docker: str = ""
    boot_id: str = ""
    builder: ProcessRecord = field(
        default_factory=lambda: ProcessRecord(
            "builder",
            0,
            0,
            "",
        )
    )
    made_at: float = 0.0
    namespaces: dict[str, int] = field(default_factory=dict)
    processes: list[ProcessRecord] = field(default_factory=list)
    swapped: list[list[str]] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def run_dir(self) -> Path:
        """``/run/patchlight/<lab>``."""
        return run_dir(self.lab)

    def save(self) -> None:
        """Replace the file atomically."""
        path = self.run_dir / "state.json"
        path.parent.mkdir(
            parents=True,
            exist_ok=True,
        )
        new = path.with_suffix(".new")
        new.touch(mode=0o600)
        new.write_text(json.dumps(asdict(self), default=str))
        new.replace(path)

    @property
    def ssh_config(self) -> Path | None:
        """The OpenSSH client configuration, if the servers have SSH."""
        return (
            self.run_dir / "ssh/config"
            if self.servers != "namespace"
            else None
        )

    @property
    def is_of_this_boot(self) -> bool:
        """Whether the machine has not been restarted since."""
        return self.boot_id == boot_id()


def new_state(
    lab: str,
    source: str,
    scale: float,
) -> LabState:
    """The state of a lab that is about to be made."""
    own = ProcessRecord(
        "builder",
        os.getpid(),
        process_start(os.getpid()) or 0,
        "",
    )
    return LabState(
        lab=lab,
        source=source,
        scale=scale,
        boot_id=boot_id(),
        builder=own,
        made_at=time.time(),
    )


def run_dir(lab: str) -> Path:
    """The runtime directory of a lab; ``BadInput`` for an invalid name."""
    try:
        return RUN_ROOT / str(LAB_NAME.take(lab))
    except BadInput as error:
        raise BadInput(
            error.message, hint="choose another name with --name"
        ) from error


def disk_dir(lab: str) -> Path:
    """The folder of the servers' disks of a lab."""
    return DISK_ROOT / run_dir(lab).name


def read_state(lab: str) -> LabState | None:
    """A lab's record, or ``None``."""
    path = run_dir(lab) / "state.json"
    try:
        text = path.read_text()
    except FileNotFoundError:
        return None
    except PermissionError as error:
        raise PatchlightError(
            f"reading {path}: only root may read it",
            hint="run the command with sudo",
        ) from error
    try:
        data = json.loads(text)
        processes = [ProcessRecord(**item) for item in data.pop("processes")]
        builder = ProcessRecord(**data.pop("builder"))
        return LabState(
            **data,
            builder=builder,
            processes=processes,
        )
    except (ValueError, TypeError) as error:
        raise PatchlightError(
            f"reading {path}: {error}",
            hint="another version of Patchlight wrote it: take the lab down with that version",
        ) from error


def recorded_labs() -> list[str]:
    """The labs with a runtime directory, sorted; without those that only run a controller."""
    with suppress(FileNotFoundError):
        folders = [
            p
            for p in RUN_ROOT.iterdir()
            if p.is_dir() and not p.name.startswith(".")
        ]
        return sorted(p.name for p in folders if os.listdir(p) != [API_SOCKET])
    return []


@contextmanager
def lab_lock(lab: str) -> Iterator[None]:
    """Hold the lock on making or removing this lab, or raise ``LabBusy``. The umask is set to the
    usual one: with 000 anybody could write into the lab, with 077 only root could read it."""
    run_dir(lab)
    path = RUN_ROOT / f".{lab}.lock"
    with ExitStack() as afterwards:
        afterwards.callback(os.umask, os.umask(0o022))
        fd = _locked(path, lab)
        try:
            os.ftruncate(fd, 0)
            os.pwrite(fd, str(os.getpid()).encode(), 0)
            yield
        finally:
            # Unlinked while held: a waiting process notices and creates a new one.
            path.unlink(missing_ok=True)
            os.close(fd)
            with suppress(OSError):
                RUN_ROOT.rmdir()


def _locked(path: Path, lab: str) -> int:
    deadline = time.monotonic() + _LOCK_WAIT_S
    while True:
        path.parent.mkdir(
            parents=True,
            exist_ok=True,
        )
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            continue  # another lock's holder has just removed the directory
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(FileNotFoundError):
                if os.fstat(fd).st_ino == path.stat().st_ino:
                    return fd
        except BlockingIOError:
            if time.monotonic() > deadline:
                holder = (
                    os.pread(fd, 32, 0).decode(errors="replace") or "unknown"
                )
                os.close(fd)
                raise LabBusy(
                    f"process {holder} is starting or removing lab {lab}",
                    hint="wait for it, or stop it with Ctrl-C in its terminal",
                ) from None
            time.sleep(0.05)
        os.close(fd)


def is_running(process: ProcessRecord) -> bool:
    """Whether that process still exists."""
    return process_start(process.pid) == process.started
