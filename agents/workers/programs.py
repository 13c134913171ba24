"""Makes a worker's command, its network's files, and its variables, among them what launchers call
the rendezvous: its rank, where the other ranks are, and which interface leads to them."""

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from patchlight import agents
from patchlight.agents.nics.status import NicPlace
from patchlight.agents.workers.contract import WorkerLaunch
from patchlight.testbed.jobs import CommandTask
from patchlight.testbed.wire import agent_status, worker_api

NETWORK_FILE = "network.json"

# A packet is waited for 4.096 us x 2^22 = 17 s, and sent 7 times: a path may be dark for 2 minutes.
_IB_TIMEOUT, _IB_RETRIES = "22", "7"
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
# ECN-capable transport: congested switches mark packets that say so, instead of dropping them.
_ECN_CAPABLE = 0b10
_LONGEST_HOSTNAME = 64


def network_environment(launch: WorkerLaunch, folder: str) -> dict[str, str]:
    """The variables of a worker's network, which a job cannot change; ``folder`` is its own, as it
    sees it. The index of the GID, which a change of circuits may change, is not among them: NCCL
    2.21 or newer finds it by the address; for others it is in the file ``PATCHLIGHT_NETWORK``."""
    # Gloo sends its gradients over the interface that it is given, NCCL those that cannot go by
    # RDMA. So a second interface is given to NCCL only beside an RDMA device, and to Gloo never.
    interface = f"={launch.interface}"  # this one, and none whose name begins so
    device = launch.rdma
    variables = {
        "GLOO_SOCKET_IFNAME": launch.interface,
        "NCCL_SOCKET_IFNAME": interface,
        "PATCHLIGHT_NETWORK": f"{folder}/{NETWORK_FILE}",
    }
    if device is None:
        # Where a server has devices that all see, it would take anybody's.
        return {**variables, "NCCL_IB_DISABLE": "1"}
    if launch.rendezvous_interface is not None and launch.spec.rendezvous is not None:
        variables["NCCL_SOCKET_IFNAME"] = f"={launch.rendezvous_interface}"
    variables |= {
        "NCCL_IB_HCA": f"={device.name}:{device.port}",
        "NCCL_IB_ADDR_RANGE": f"{launch.address}/32",
    }
    return variables


def network_defaults(launch: WorkerLaunch) -> dict[str, str]:
    """The variables of a worker's network that a job may change."""
    if launch.rdma is None:
        return {}
    variables = {"NCCL_IB_TIMEOUT": _IB_TIMEOUT, "NCCL_IB_RETRY_CNT": _IB_RETRIES}
    if launch.dscp is not None:
        variables["NCCL_IB_TC"] = str(launch.dscp << 2 | _ECN_CAPABLE)
    return variables


def hostname(launch: WorkerLaunch) -> str:
    """The host name inside a worker: the lab's name of its NIC's host."""
    return next(iter(launch.hosts.get(launch.address, ())), launch.spec.id)[:_LONGEST_HOSTNAME]


def hosts_file(launch: WorkerLaunch) -> str:
    """A worker's ``/etc/hosts``: every name of the lab, and its hostname at its own address."""
    own, name = launch.address, hostname(launch)
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
    for address, names in {own: (), **launch.hosts}.items():
        aliases = dict.fromkeys((name, *names) if address == own else names)
        lines.append(f"{address} {' '.join(aliases)}")
    return "\n".join([*lines, ""])


def publish(folder: Path, place: NicPlace, rdma: agent_status.RdmaStatus | None) -> None:
    """Write the state of a worker's network into its folder, whole or not at all. What the worker
    may have put there is replaced, never followed."""
    told = {
        "interface": place.inside,
        "address": str(place.address),
        "rdma": None if rdma is None else rdma.model_dump(),
    }
    fresh = folder / f"{NETWORK_FILE}.new"
    with suppress(OSError):  # a full disk is told of elsewhere
        fresh.unlink(missing_ok=True)
        with os.fdopen(os.open(fresh, _NEW_FILE, 0o644), "w", encoding="utf-8") as file:
            json.dump(told, file)
        fresh.replace(folder / NETWORK_FILE)


TRAINING = Path(agents.__file__).absolute().parent / "training"
TRAINING_IN_PATH = Path("patchlight/agents/training")
"""Where ``TRAINING`` is to be found in a folder of Python's path."""

# One worker is one GPU's process; threads of a linear algebra library would fight.
_DEFAULTS = {"PYTHONUNBUFFERED": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True)
class WorkerPlaces:
    """Paths as the worker sees them: its ``folder``, the training ``code`` and ``numpy`` (folders
    of Python's path), the folder ``data`` of its samples."""

    folder: str
    code: str
    python: str
    numpy: str | None = None
    gpu_socket: str | None = None
    checkpoint: str | None = None
    data: str | None = None


@dataclass(frozen=True, slots=True)
class WorkerProgram:
    """A worker's program. ``gated``: it waits for the start outside of it; ``needs_numpy_alone``:
    it is our synthetic trainer, without any other package."""

    command: tuple[str, ...]
    environment: dict[str, str]
    directory: str
    gated: bool = False
    needs_numpy_alone: bool = False


def program_of(launch: WorkerLaunch, places: WorkerPlaces) -> WorkerProgram:
    """The program of the worker's trainer; puts into the worker's folder what it reads there."""
    spec, task = launch.spec, launch.spec.task
    numpy_alone = False
    match task:
        case worker_api.SyntheticTask() | worker_api.TorchTask():
            values = {
                "id": spec.id,
                "job": spec.job,
                "rank": spec.rank,
                "ring": [member.model_dump(mode="json") for member in spec.ring],
                **task.model_dump(mode="json", exclude={"trainer", "image"}),
                "gpu_socket": places.gpu_socket,
            }
            if isinstance(task, worker_api.TorchTask):
                values |= {"data": places.data, "checkpoint": places.checkpoint}
            (launch.directory / "task.json").write_text(json.dumps(values), encoding="utf-8")
            folders, option = [places.code], "-s"
            if isinstance(task, worker_api.SyntheticTask) and places.numpy:
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
    return WorkerProgram(
        command=tuple(command),
        environment={**_DEFAULTS, **network_defaults(launch), **own, **_rendezvous(launch, places)},
        directory=directory,
        gated=gated,
        needs_numpy_alone=numpy_alone,
    )


def _rendezvous(launch: WorkerLaunch, places: WorkerPlaces) -> dict[str, str]:
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
    if spec.gpu is not None:
        variables["PATCHLIGHT_GPU"] = spec.gpu
    if launch.gpu_uuid is not None:
        variables["CUDA_VISIBLE_DEVICES"] = launch.gpu_uuid
    return variables
