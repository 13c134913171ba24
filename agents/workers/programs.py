"""What a worker executes, by its trainer: the command, and the environment that it finds.

Every worker gets what launchers call the rendezvous: which rank it is, of how many, where the
others are, and which interface leads to them.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from patchlight import agents
from patchlight.agents.workers.contract import WorkerLaunch
from patchlight.agents.workers.network_environment import network_defaults, network_environment
from patchlight.testbed.commands import CommandTask
from patchlight.testbed.wire.worker_api import SyntheticTask, TorchTask, WorkerSpec

TRAINING = Path(agents.__file__).absolute().parent / "training"
TRAINING_IN_PATH = Path("patchlight/agents/training")
"""Where ``TRAINING`` is to be found in a folder of Python's path."""

# One worker is one GPU's process; threads of a linear algebra library would fight.
_DEFAULTS = {"PYTHONUNBUFFERED": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True)
class Places:
    """Where a worker finds its things, as it sees them itself.

    ``folder`` is its own; ``code`` is a folder of Python's path with the training code in it;
    ``numpy`` is one with NumPy in it, where that is known beforehand; ``data`` is the folder of its
    samples.
    """

    folder: str
    code: str
    python: str
    numpy: str | None = None
    gpu_socket: str | None = None
    checkpoint: str | None = None
    data: str | None = None


@dataclass(frozen=True, slots=True)
class Program:
    """A worker's program. ``gated``: it is begun only once the worker is told to start.

    ``needs_numpy_alone``: it is our synthetic trainer, without any other package.
    """

    command: tuple[str, ...]
    environment: dict[str, str]
    directory: str
    gated: bool = False
    needs_numpy_alone: bool = False


def program_of(launch: WorkerLaunch, places: Places) -> Program:
    """The program of the worker's trainer; puts into the worker's folder what it reads there."""
    spec, task = launch.spec, launch.spec.task
    numpy_alone = False
    match task:
        case SyntheticTask() | TorchTask():
            _write_task(launch.directory, spec, task, places)
            folders, option = [places.code], "-s"
            if isinstance(task, SyntheticTask) and places.numpy:
                numpy_alone = bool(places.gpu_socket) or task.device == "sleep"
            if numpy_alone and places.numpy:
                # What packages run at each start of Python is left out.
                folders, option = [*folders, places.numpy], "-S"
            own = {"PYTHONPATH": ":".join(folders)}
            directory, gated = places.folder, False
            command = [places.python, option, "-m", "patchlight.agents.training"]
            command += ["--task", f"{places.folder}/task.json"]
        case CommandTask():
            path = task.environment.get("PYTHONPATH")
            own = {**task.environment, "PYTHONPATH": ":".join(filter(None, [path, places.code]))}
            directory, gated = task.working_directory or places.folder, True
            command = task.command
    return Program(
        command=tuple(command),
        environment={**_DEFAULTS, **network_defaults(launch), **own, **_rendezvous(launch, places)},
        directory=directory,
        gated=gated,
        needs_numpy_alone=numpy_alone,
    )


def _rendezvous(launch: WorkerLaunch, places: Places) -> dict[str, str]:
    spec = launch.spec
    ring = sorted(spec.ring, key=lambda member: member.rank)
    variables = {
        "RANK": str(spec.rank),
        "WORLD_SIZE": str(len(ring)),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": str(spec.rank),
        "MASTER_ADDR": str(spec.rendezvous or ring[0].address),
        "MASTER_PORT": str(ring[0].port),
        "PATCHLIGHT_JOB": spec.job,
        "PATCHLIGHT_RANK": str(spec.rank),
        "PATCHLIGHT_PEERS": ",".join(str(member.address) for member in ring),
        "PATCHLIGHT_CONTROL": f"{places.folder}/control.sock",
        "PATCHLIGHT_REPORTS": f"{places.folder}/reports.jsonl",
        **network_environment(launch, places.folder),
    }
    if places.checkpoint is not None:
        variables["PATCHLIGHT_CHECKPOINT"] = places.checkpoint
    if launch.gpu_uuid is not None:
        variables["CUDA_VISIBLE_DEVICES"] = launch.gpu_uuid
    return variables


def _write_task(
    folder: Path, spec: WorkerSpec, task: SyntheticTask | TorchTask, places: Places
) -> None:
    values = {
        "id": spec.id,
        "job": spec.job,
        "rank": spec.rank,
        "ring": [member.model_dump(mode="json") for member in spec.ring],
        **task.model_dump(mode="json", exclude={"trainer", "image"}),
        "gpu_socket": places.gpu_socket,
    }
    if isinstance(task, TorchTask):
        values |= {"data": places.data, "checkpoint": places.checkpoint}
    (folder / "task.json").write_text(json.dumps(values), encoding="utf-8")
