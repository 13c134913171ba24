"""Records which worker has which GPU and NIC: leases of one agent on disk, claims across labs.

A lease is written before the NIC moves, when the worker has everything, and when the worker has
ended and everything is back. After a crash the next agent can therefore continue. The file is
removed when the controller deletes the worker.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from patchlight.agents.errors import AgentError, Conflict, log
from patchlight.agents.nics.state import NicState
from patchlight.agents.workers.contract import WorkerHandle
from patchlight.agents.workers.keeper import Ending
from patchlight.testbed.errors import reason
from patchlight.testbed.linux import files, namespaces, processes
from patchlight.testbed.wire.worker_api import WorkerSpec, WorkerState

CLAIMS = Path("/run/patchlight-claims")


@dataclass(
    frozen=True,
    slots=True,
)
class Ended:
    """The result of a worker that ended."""

    state: WorkerState
    iterations_done: int = 0
    message: str = ""
    exit_code: int | None = None
    last_lines: tuple[str, ...] = ()
    restarts: int = 0
    energy_j: float | None = None
    lost_rank: int | None = None


@dataclass(
    frozen=True,
    slots=True,
)
class Lease:
    """One worker's GPU and NIC. ``nic_state``: the NIC before the worker got it; ``created_at``:
    Unix time; ``handle``: set after launch, when the worker has its NIC; ``frozen``: stopped
    while circuits change; ``ending``: why it has to end, since ``ending_since``;
    ``returned``: GPU and NIC are back; ``gpu_energy_j``: its counter at the start."""

    spec: WorkerSpec
    namespace: str
    nic_state: NicState
    runner: str
    created_at: float = 0.0
    handle: Annotated[WorkerHandle | None, Field(alias="trace")] = None
    frozen: bool = False
    ending: Ending | None = None
    ending_since: float = 0.0
    ended: Ended | None = None
    returned: bool = False
    gpu_energy_j: float | None = None


_LEASE = TypeAdapter(Lease)  # Leases of older agents have fewer keys.


class LeaseBook:
    """The leases on disk, one file each; ``PatchlightError`` if other users can write there."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._specs: dict[str, tuple[WorkerSpec, str]] = {}
        files.private_folder(directory)

    def write(self, lease: Lease) -> None:
        """Save a lease on disk. After an ``AgentError`` this or the previous version is there."""
        known, spec = self._specs.get(lease.spec.id, (None, ""))
        if (
            known is not lease.spec
        ):  # Serialising the spec is most of the work, so it is cached.
            spec = lease.spec.model_dump_json()
            self._specs[lease.spec.id] = lease.spec, spec
        path = self._path(lease.spec.id)
        fresh = path.with_suffix(".new")
        try:
            with fresh.open("w", encoding="utf-8") as file:
                rest = _LEASE.dump_json(
                    lease,
                    by_alias=True,
                    exclude={"spec"},
                ).decode()
                file.write(f'{{"spec": {spec}, {rest[1:]}')
                file.flush()
                os.fsync(file.fileno())
            os.replace(fresh, path)
            self._sync()
        except OSError as exc:
            with contextlib.suppress(OSError):
                fresh.unlink(missing_ok=True)
            raise AgentError(
                f"writing the lease of worker {lease.spec.id} to {path}: {exc.strerror}",
                hint="free space on that disk"
                if exc.errno == errno.ENOSPC
                else None,
            ) from exc

    def end(self, worker: str) -> None:
        """Remove the worker's lease, if it exists; ``AgentError`` if the disk fails."""
        self._specs.pop(worker, None)
        path = self._path(worker)
        try:
            path.unlink(missing_ok=True)
            self._sync()
        except OSError as exc:
            raise AgentError(
                f"removing the lease of worker {worker} in {path}: {exc.strerror}"
            ) from exc

    def _sync(self) -> None:
        directory = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def read(self) -> list[Lease]:
        """Every lease on disk. Damaged files are renamed and logged as errors, and those that a
        crash left half written are removed; ``PatchlightError`` if the disk fails: what it holds
        must not be taken for free."""
        files.remove_half_written(self._directory)
        leases = []
        for path in sorted(self._directory.glob("*.json")):
            try:
                content = path.read_bytes()
            except OSError as exc:
                raise AgentError(
                    f"reading the lease in {path}: {exc.strerror}"
                ) from exc
            try:
                leases.append(_LEASE.validate_json(content))
            except ValueError as exc:
                aside = path.with_suffix(".unreadable")
                os.replace(path, aside)
                log.error(
                    "lease %s cannot be read (%s) and was renamed: restore its NIC by hand: %s",
                    path,
                    reason(exc),
                    aside,
                )
        return leases

    def names(self) -> set[str]:
        """The workers with a file here, also an unreadable one."""
        return {path.stem for path in self._directory.iterdir()}

    def _path(self, worker: str) -> Path:
        return self._directory / f"{worker}.json"


@dataclass(
    frozen=True,
    slots=True,
)
class Holder:
    """A worker that holds something: its network namespace and the process of its agent."""

    lab: str
    worker: str
    namespace: str
    agent: int
    agent_started: int | None

    @property
    def is_there(self) -> bool:
        """Whether the agent or any process of the worker is running."""
        started = processes.process_start(self.agent)
        runs = started is not None and started == self.agent_started
        return runs or bool(namespaces.processes_in(self.namespace))


class Claims:
    """Claims of one agent's workers, visible to agents of other labs on this machine. A claim is a
    file in a folder that belongs to root and is cleared at boot. It is valid while the agent or a
    process of the worker runs."""

    def __init__(self, lab: str, folder: Path = CLAIMS) -> None:
        self._lab = lab
        self._folder = folder

    def take(
        self,
        worker: str,
        namespace: str,
        things: Mapping[str, str],
    ) -> None:
        """Claim all ``things`` (keys that are equal in every lab, with names for messages) for a
        worker, or nothing. ``Conflict`` names the lab that holds one."""
        pid = os.getpid()
        own = Holder(
            self._lab,
            worker,
            namespace,
            pid,
            processes.process_start(pid),
        )
        with self._locked():
            for key, words in things.items():
                holder = _read_holder(self._path(key))
                if (
                    holder is None
                    or holder.namespace == namespace
                    or not holder.is_there
                ):
                    continue
                raise Conflict(
                    f"{words} is leased to worker {holder.worker} of lab {holder.lab}, which "
                    "shares this server",
                    hint=(
                        "wait until that worker has ended, or list each GPU and NIC in one lab "
                        "file only"
                    ),
                )
            for key in things:
                fresh = self._path(key).with_suffix(".new")
                fresh.write_text(json.dumps(asdict(own)))
                os.replace(fresh, self._path(key))

    def give_up(self, namespace: str) -> None:
        """Remove the claims of the worker in that namespace, and stale claims."""
        if not self._folder.exists():
            return
        with self._locked():
            files.remove_half_written(self._folder)
            for path in self._folder.glob("*.json"):
                holder = _read_holder(path)
                if (
                    holder is None
                    or holder.namespace == namespace
                    or not holder.is_there
                ):
                    path.unlink()
            with contextlib.suppress(OSError):
                self._folder.rmdir()

    def _path(self, key: str) -> Path:
        return (
            self._folder
            / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
        )

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock on all claims."""
        try:
            descriptor = self._lock()
            try:
                yield
            finally:
                os.close(descriptor)
        except OSError as exc:
            raise AgentError(
                f"claiming GPU and NIC in {self._folder}: {exc.strerror}",
                hint="other labs' agents on this server use that folder: check its permissions",
            ) from exc

    def _lock(self) -> int:
        while True:
            files.private_folder(self._folder)
            try:
                descriptor = os.open(
                    self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
                )
            except (
                FileNotFoundError
            ):  # The holder of the last claim has just removed the folder.
                continue
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(self._folder.stat(), os.fstat(descriptor)):
                    return descriptor
            os.close(descriptor)


def _read_holder(path: Path) -> Holder | None:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
        return Holder(**found)
    except (OSError, ValueError, TypeError):
        return None
