"""One lab at a time has a GPU or NIC of this server, though each lab has an agent of its own.

What an agent has leased is claimed in a folder that is root's alone and goes with the boot, in a
file that is named after it and says for whom. A claim counts as long as that agent or a process of
the worker runs: a worker outlives its agent, and what neither of them needs any more is free.
"""

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from patchlight.agents.errors import AgentError, Conflict
from patchlight.testbed.linux import namespaces as namespace_processes
from patchlight.testbed.linux.files import private_folder
from patchlight.testbed.linux.processes import process_start

FOLDER = Path("/run/patchlight-claims")


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has something: a worker by its network namespace, and the process of its agent."""

    lab: str
    worker: str
    namespace: str
    agent: int
    agent_started: int | None

    @property
    def is_there(self) -> bool:
        """Whether the agent or any process of the worker runs."""
        runs = self.agent_started is not None and process_start(self.agent) == self.agent_started
        return runs or bool(namespace_processes.processes_in(self.namespace))


class Claims:
    """What the workers of one agent have, as the agents of other labs on this machine see it."""

    def __init__(self, lab: str, folder: Path = FOLDER) -> None:
        self._lab, self._folder = lab, folder

    def take(self, worker: str, namespace: str, things: Mapping[str, str]) -> None:
        """Claim all of these for a worker, or none; again is harmless.

        ``things`` are told apart by their keys, the same in every lab; the values are what messages
        call them. ``Conflict`` names the lab that has one; ``AgentError`` if it cannot be written.
        """
        pid = os.getpid()
        own = Holder(self._lab, worker, namespace, pid, process_start(pid))
        with self._locked():
            for key, words in things.items():
                holder = _read(self._path(key))
                if holder is None or holder.namespace == namespace or not holder.is_there:
                    continue
                raise Conflict(
                    f"{words} is leased to worker {holder.worker} of lab {holder.lab}, which "
                    "shares this server",
                    hint="wait until that has ended; or list each GPU and NIC in one lab file only",
                )
            for key in things:
                fresh = self._path(key).with_suffix(".new")
                fresh.write_text(json.dumps(asdict(own)))
                os.replace(fresh, self._path(key))

    def give_up(self, namespace: str) -> None:
        """Remove all claims of the worker in that namespace, and those that count no more."""
        if not self._folder.exists():
            return
        with self._locked():
            for path in self._folder.glob("*.json"):
                holder = _read(path)
                if holder is None or holder.namespace == namespace or not holder.is_there:
                    path.unlink()
            with contextlib.suppress(OSError):
                self._folder.rmdir()  # unless somebody has a claim

    def _path(self, key: str) -> Path:
        return self._folder / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Be the only agent that looks at claims and changes them."""
        try:
            descriptor = self._lock()
            try:
                yield
            finally:
                os.close(descriptor)
        except OSError as exc:
            raise AgentError(
                f"claiming GPU and NIC in {self._folder}: {exc.strerror}",
                hint="other labs' agents on this server look there: see to that folder",
            ) from exc

    def _lock(self) -> int:
        while True:
            private_folder(self._folder)
            try:
                descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except FileNotFoundError:  # who gave up the last claim took it away just now
                continue
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(self._folder.stat(), os.fstat(descriptor)):
                    return descriptor
            os.close(descriptor)


def _read(path: Path) -> Holder | None:
    """Who has it; ``None`` if nobody has, or the file is not one that an agent wrote."""
    try:
        found: dict[str, Any] = json.loads(path.read_text())
        return Holder(**found)
    except (OSError, ValueError, TypeError):
        return None
