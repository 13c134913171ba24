"""The record of what an emulated lab has made on this machine, written before it is made.

``/run/patchlight/<lab>/state.json`` names every namespace and process of a lab. It is written
first and kept up to date while the lab is built, so that after any crash the next ``down`` or
``up`` knows what to look for. In that folder, every user of the machine may read only ``lab.yaml``
and ``hosts``. What may be large is on disk, in ``DISK_ROOT/<lab>``.
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
# /run is memory; servers with their own file system need more than that.
DISK_ROOT = Path("/var/lib/patchlight/servers")
# Every process that a lab starts carries this variable, so that one without a record is found too.
MARK = "PATCHLIGHT_RUN"
_LOCK_WAIT_S = 5.0


class LabBusy(PatchlightError):
    """Another Patchlight process is making or removing the same lab right now."""


@dataclass(slots=True)
class ProcessRecord:
    """A process: its number could be reused, with its start time it cannot. ``abrupt``: it keeps
    nothing that outlives the lab, and may be ended by force."""

    name: str
    pid: int
    started: int
    log: str
    abrupt: bool = False


@dataclass(slots=True)
class LabState:
    """``state.json``. ``phase``: ``making`` until the lab is complete, then ``up``; ``namespaces``:
    each one's inode, 0 while it is only intended; ``servers``: ``namespace``, or ``ssh`` or ``vm``
    with the root file system ``base``; ``datapath``: ``bridge``, ``netdev`` or ``system``;
    ``docker``: the URL of the workers' engine; ``swapped``: pairs of ports; ``options``: what the
    processes were started with."""

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
    builder: ProcessRecord = field(default_factory=lambda: ProcessRecord("builder", 0, 0, ""))
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
        """Replace the file; a reader sees the old one or the new one, whole."""
        path = self.run_dir / "state.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(".new")
        new.touch(mode=0o600)
        new.write_text(json.dumps(asdict(self), default=str))
        new.replace(path)

    @property
    def ssh_config(self) -> Path | None:
        """The configuration for OpenSSH's client, where the servers answer SSH."""
        return self.run_dir / "ssh/config" if self.servers != "namespace" else None

    @property
    def is_of_this_boot(self) -> bool:
        """Whether the machine has not been restarted since."""
        return self.boot_id == boot_id()


def new_state(lab: str, source: str, scale: float) -> LabState:
    """The state of a lab that this process is about to make."""
    own = ProcessRecord("builder", os.getpid(), process_start(os.getpid()) or 0, "")
    return LabState(
        lab=lab, source=source, scale=scale, boot_id=boot_id(), builder=own, made_at=time.time()
    )


def run_dir(lab: str) -> Path:
    """The runtime directory of a lab; ``BadInput`` for a name that no lab can have."""
    try:
        return RUN_ROOT / str(LAB_NAME.take(lab))
    except BadInput as error:
        raise BadInput(error.message, hint="Give it another name with --name.") from error


def disk_dir(lab: str) -> Path:
    """Where the servers of a lab have their disks."""
    return DISK_ROOT / run_dir(lab).name


def read_state(lab: str) -> LabState | None:
    """What is recorded of a lab, or ``None`` if nothing is."""
    path = run_dir(lab) / "state.json"
    try:
        text = path.read_text()
    except FileNotFoundError:
        return None
    except PermissionError as error:
        raise PatchlightError(
            f"reading {path}: it is for root alone", hint="Run the command with sudo."
        ) from error
    try:
        data = json.loads(text)
        processes = [ProcessRecord(**item) for item in data.pop("processes")]
        builder = ProcessRecord(**data.pop("builder"))
        return LabState(**data, builder=builder, processes=processes)
    except (ValueError, TypeError) as error:
        raise PatchlightError(
            f"reading {path}: {error}",
            hint="Another version of Patchlight wrote it: bring the lab down with that one.",
        ) from error


def recorded_labs() -> list[str]:
    """The labs that have a runtime directory, sorted; not those of which only a controller runs."""
    with suppress(FileNotFoundError):
        folders = [p for p in RUN_ROOT.iterdir() if p.is_dir() and not p.name.startswith(".")]
        return sorted(p.name for p in folders if os.listdir(p) != [API_SOCKET])
    return []


@contextmanager
def lab_lock(lab: str) -> Iterator[None]:
    """Be the only process that makes or removes this lab, or raise ``LabBusy``. What is made within
    has the usual umask: with 000 anybody could write into the lab, with 077 only root could see
    it."""
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
            # Unlinked while held: a process that waits for it notices and makes a new one.
            path.unlink(missing_ok=True)
            os.close(fd)
            with suppress(OSError):
                RUN_ROOT.rmdir()


def _locked(path: Path, lab: str) -> int:
    deadline = time.monotonic() + _LOCK_WAIT_S
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            continue  # the holder of another lock has just removed the directory
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(FileNotFoundError):
                if os.fstat(fd).st_ino == path.stat().st_ino:
                    return fd
        except BlockingIOError:
            if time.monotonic() > deadline:
                holder = os.pread(fd, 32, 0).decode(errors="replace") or "unknown"
                os.close(fd)
                raise LabBusy(
                    f"lab {lab} is being made or removed by process {holder}",
                    hint="Wait for it, or stop it with Ctrl-C where it runs.",
                ) from None
            time.sleep(0.05)
        os.close(fd)


def is_running(process: ProcessRecord) -> bool:
    """Whether this very process is still there."""
    return process_start(process.pid) == process.started
