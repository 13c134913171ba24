"""Who has which GPU and NIC, on record before anything is touched.

A lease's file is written before the NIC moves and removed after it is back, so an agent that
starts again, after whatever, knows what its predecessor had given away.
"""

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from patchlight.agents.errors import Conflict
from patchlight.agents.nics import NicState
from patchlight.agents.workers.contract import WorkerHandle
from patchlight.testbed.linux.private_folder import private_folder
from patchlight.testbed.worker_api import WorkerSpec

_log = logging.getLogger("patchlight.agent")


@dataclass(frozen=True, slots=True)
class Lease:
    """One worker's GPU and NIC, and the worker once it was launched.

    ``nic_state`` is how the NIC was before it was given.
    """

    spec: WorkerSpec
    namespace: str
    nic_state: NicState
    runner: str
    handle: WorkerHandle | None = None

    def as_dict(self) -> dict[str, Any]:
        """For its file."""
        return {
            "spec": self.spec.model_dump(mode="json"),
            "namespace": self.namespace,
            "nic_state": self.nic_state.as_dict(),
            "runner": self.runner,
            "trace": asdict(self.handle) if self.handle else None,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The lease that ``as_dict`` wrote."""
        return cls(
            spec=WorkerSpec.model_validate(data["spec"]),
            namespace=data["namespace"],
            nic_state=NicState.from_dict(data["nic_state"]),
            runner=data["runner"],
            handle=WorkerHandle(**data["trace"]) if data["trace"] else None,
        )


class Holders:
    """Which worker holds which GPU and NIC. No I/O."""

    def __init__(self) -> None:
        self._holder: dict[tuple[str, str], str] = {}

    def claim(self, worker: str, gpu: str | None, nic: str) -> None:
        """Give the worker both or neither; ``Conflict`` names who has one of them."""
        resources = [("NIC", nic), *([("GPU", gpu)] if gpu else [])]
        for kind, name in resources:
            if (kind, name) in self._holder:
                raise Conflict(f"{kind} {name} is leased to worker {self._holder[kind, name]}")
        for key in resources:
            self._holder[key] = worker

    def release(self, worker: str) -> None:
        """Take back whatever the worker holds."""
        self._holder = {key: who for key, who in self._holder.items() if who != worker}

    def gpu(self, name: str) -> str | None:
        """Who has this GPU."""
        return self._holder.get(("GPU", name))

    def nic(self, name: str) -> str | None:
        """Who has this NIC."""
        return self._holder.get(("NIC", name))


class LeaseBook:
    """The leases on disk, one file each; ``PatchlightError`` if others can put files there."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        private_folder(directory)

    def write(self, lease: Lease) -> None:
        """Put a lease on record; on return it survives a crash of the agent or the machine."""
        path = self._path(lease.spec.id)
        fresh = path.with_suffix(".new")
        with fresh.open("w", encoding="utf-8") as file:
            json.dump(lease.as_dict(), file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
        self._sync()

    def end(self, worker: str) -> None:
        """Remove the worker's lease, if there is one."""
        self._path(worker).unlink(missing_ok=True)
        self._sync()

    def _sync(self) -> None:
        """Have the names of the files on the disk, too."""
        directory = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def read(self) -> list[Lease]:
        """Every lease on record. One that cannot be read is set aside, and the log says so."""
        leases = []
        for path in sorted(self._directory.glob("*.json")):
            try:
                leases.append(Lease.from_dict(json.loads(path.read_text(encoding="utf-8"))))
            except Exception as exc:
                aside = path.with_suffix(".unreadable")
                os.replace(path, aside)
                _log.error(
                    "the lease %s cannot be read (%s) and was set aside: see which NIC it names, "
                    "and put that back by hand: %s",
                    path,
                    exc,
                    aside,
                )
        return leases

    def _path(self, worker: str) -> Path:
        return self._directory / f"{worker}.json"
