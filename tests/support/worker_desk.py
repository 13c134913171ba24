"""Launches of workers without an agent, and what an agent would clear away after them."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from patchlight.agents.workers.contract import WorkerLaunch
from patchlight.testbed.linux import namespaces
from patchlight.testbed.linux.namespaces import processes_in
from patchlight.testbed.linux.processes import Cgroups, Limits
from patchlight.testbed.wire.worker_api import WorkerSpec

LIMITS = Limits(96 * 2**20, 48)


class Desk:
    """Makes launches, and clears away what an agent would."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: list[str] = []

    def launch(self, *command: str, **spec: Any) -> WorkerLaunch:
        name = f"pl.test-{os.getpid()}.server1.w-{len(self.names)}"
        self.names.append(name)
        directory = self.folder / "workers" / str(len(self.names))
        directory.mkdir(mode=0o700, parents=True)
        given = {
            **{
                "id": f"w-{len(self.names)}",
                "job": "job",
                "rank": 0,
                "nic": "nic0",
            },
            "ring": [{"rank": 0, "address": "10.0.0.1", "port": 29500}],
            "task": {"trainer": "command", "command": list(command)},
        }
        model = WorkerSpec.model_validate({**given, **spec})
        return WorkerLaunch(model, directory, name, "nic0", LIMITS)


@contextmanager
def open_desk() -> Iterator[Desk]:
    """A desk in a folder of its own; in the end nothing of its workers may be left."""
    # Not below pytest's own folder, which is closed to other users.
    folder = Path(f"/tmp/pl-backends-{os.getpid()}")
    folder.mkdir(mode=0o700)
    made = Desk(folder / "state")
    folder.chmod(0o711)
    (folder / "state").mkdir(mode=0o700)
    yield made
    left = {name: processes_in(name) for name in made.names}
    for name in made.names:
        namespaces.delete(name)
    shutil.rmtree(folder)
    assert not any(left.values()), left
    assert not set(made.names) & set(Cgroups().names())
