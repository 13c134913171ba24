"""Builds a worker's command, network files and variables, including the rendezvous: its rank, the
other ranks' addresses and the interface that reaches them."""

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from patchlight import agents
from patchlight.agents.nics.status import NicPlace
from patchlight.agents.workers.contract import WorkerLaunch
from patchlight.agents.workers.workdir import WORKDIR
from patchlight.testbed.jobs import CommandTask
from patchlight.testbed.wire import agent_status, worker_api

NETWORK_FILE = "network.json"

# Timeout 4.096 us x 2^22 = 17 s, 7 retries: an outage may last 2 minutes.
_IB_TIMEOUT = "22"
_IB_RETRIES = "7"
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
# ECN-capable transport: congested switches mark these packets instead of dropping them.
_ECN_CAPABLE = 0b10
_LONGEST_HOSTNAME = 64


def network_environment(launch: WorkerLaunch, folder: str) -> dict[str, str]:
    """The variables of a worker's network, which a job cannot change; ``folder`` is the worker's
    view of its folder. The GID's index is not included, as circuit changes may change it: NCCL 2.21
    or newer finds it by the address, other programs in the file ``PATCHLIGHT_NETWORK``."""
    # Gloo sends gradients over its interface, NCCL only what RDMA does not carry. So NCCL gets a
    # second interface only with an RDMA device, and Gloo never.
    interface = f"={launch.interface}"  # an exact match, not a prefix
    device = launch.rdma
    variables = {
        "GLOO_SOCKET_IFNAME": launch.interface,
        "NCCL_SOCKET_IFNAME": interface,
        "PATCHLIGHT_NETWORK": f"{folder}/{NETWORK_FILE}",
    }
    if device is None:
        # NCCL would use other workers' devices where all are visible.
        return {**variables, "NCCL_IB_DISABLE": "1"}
    if (
        launch.rendezvous_interface is not None
        and launch.spec.rendezvous is not None
    ):
        variables["NCCL_SOCKET_IFNAME"] = f"={launch.rendezvous_interface}"
    variables |= {
        "NCCL_IB_HCA": f"={device.name}:{device.port}",
        "NCCL_IB_ADDR_RANGE": f"{launch.address}/32",
        "UCX_NET_DEVICES": f"{device.name}:{device.port}",
    }
    return variables


def network_defaults(launch: WorkerLaunch) -> dict[str, str]:
    """The variables of a worker's network that a job may change."""
    if launch.rdma is None:
        return {}
    variables = {
        "NCCL_IB_TIMEOUT": _IB_TIMEOUT,
        "NCCL_IB_RETRY_CNT": _IB_RETRIES,
    }
    if launch.rdma.is_soft:
        # With the check UCX 1.13 drops all datagrams that rxe receives, and cannot connect.
        variables["UCX_UD_ETH_DGID_CHECK"] = "n"
    if launch.dscp is not None:
        variables["NCCL_IB_TC"] = str(launch.dscp << 2 | _ECN_CAPABLE)
    return variables


def hostname(launch: WorkerLaunch) -> str:
    """A worker's host name: the lab's name of its NIC's host."""
    return next(iter(launch.hosts.get(launch.address, ())), launch.spec.id)[
        :_LONGEST_HOSTNAME
    ]


def hosts_file(launch: WorkerLaunch) -> str:
    """A worker's ``/etc/hosts``: all names of the lab, and its host name at its own address."""
    own = launch.address
    name = hostname(launch)
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
    for address, names in {own: (), **launch.hosts}.items():
        aliases = dict.fromkeys((name, *names) if address == own else names)
        lines.append(f"{address} {' '.join(aliases)}")
    return "\n".join([*lines, ""])


def publish(
    folder: Path,
    place: NicPlace,
    rdma: agent_status.RdmaStatus | None,
) -> None:
    """Write the state of a worker's network into its folder atomically. Links that the worker put
    there are replaced, not followed."""
    told = {
        "interface": place.inside,
        "address": str(place.address),
        "rdma": None if rdma is None else rdma.model_dump(),
    }
    fresh = folder / f"{NETWORK_FILE}.new"
    with suppress(OSError):  # a full disk is reported elsewhere
        fresh.unlink(missing_ok=True)
        with os.fdopen(
            os.open(fresh, _NEW_FILE, 0o600), "w", encoding="utf-8"
        ) as file:
            json.dump(told, file)
            # Whatever the umask: the worker's user reads it.
            os.fchmod(file.fileno(), 0o644)
        fresh.replace(folder / NETWORK_FILE)


TRAINING = Path(agents.__file__).absolute().parent / "training"
TRAINING_IN_PATH = Path("patchlight/agents/training")
"""The path of ``TRAINING`` within a folder of Python's path."""

# Each worker has one GPU; threads of several linear algebra libraries would compete.
_DEFAULTS = {
    "PYTHONUNBUFFERED": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
}


@dataclass(
    frozen=True,
    slots=True,
)
class WorkerPlaces:
    """Paths as the worker sees them: its ``folder``, the training ``code`` and ``numpy`` (folders
    of Python's path), and the folder ``data`` of its samples."""

    folder: str
    code: str
    python: str
    numpy: str | None = None
    gpu_socket: str | None = None
    checkpoint: str | None = None
    data: str | None = None


@dataclass(
    frozen=True,
    slots=True,
)
class WorkerProgram:
    """A worker's program. ``gated``: it waits outside for the start; ``needs_numpy_alone``: it is
    the synthetic trainer, without any other package."""

    command: tuple[str, ...]
    environment: dict[str, str]
    directory: str
    gated: bool = False
    needs_numpy_alone: bool = False


def program_of(launch: WorkerLaunch, places: WorkerPlaces) -> WorkerProgram:
    """The program of the worker's trainer; writes its input into the worker's folder."""
    spec = launch.spec
    task = launch.spec.task
    numpy_alone = False
    match task:
        case worker_api.SyntheticTask() | worker_api.TorchTask():
            values = {
                "id": spec.id,
                "job": spec.job,
                "rank": spec.rank,
                "ring": [
                    member.model_dump(mode="json") for member in spec.ring
                ],
                **task.model_dump(
                    mode="json",
                    exclude={"trainer", "image"},
                ),
                "gpu_socket": places.gpu_socket,
            }
            if isinstance(task, worker_api.TorchTask):
                values |= {
                    "data": places.data,
                    "checkpoint": places.checkpoint,
                }
            (launch.directory / "task.json").write_text(
                json.dumps(values), encoding="utf-8"
            )
            folders = [places.code]
            option = "-s"
            if isinstance(task, worker_api.SyntheticTask) and places.numpy:
                numpy_alone = bool(places.gpu_socket) or task.device == "sleep"
            if numpy_alone and places.numpy:
                # Skip packages' start-up code (.pth files).
                folders = [*folders, places.numpy]
                option = "-S"
            own = {"PYTHONPATH": ":".join(folders)}
            directory = places.folder
            gated = False
            command = [
                places.python,
                option,
                "-m",
                "patchlight.agents.training",
            ]
            command += ["--task", f"{places.folder}/task.json"]
        case CommandTask():
            path = task.environment.get("PYTHONPATH")
            observed = f"{places.code}/{TRAINING_IN_PATH}/observed"
            own = {
                **task.environment,
                "PYTHONPATH": ":".join(
                    filter(None, [path, places.code, observed])
                ),
            }
            directory = task.working_directory or places.folder
            if task.workdir is not None:
                (launch.directory / WORKDIR).mkdir()
                directory = f"{places.folder}/{WORKDIR}"
            gated = True
            command = task.command
    return WorkerProgram(
        command=tuple(command),
        environment={
            **_DEFAULTS,
            **_torchrun(launch.spec),
            **network_defaults(launch),
            **own,
            **_rendezvous(launch, places),
        },
        directory=directory,
        gated=gated,
        needs_numpy_alone=numpy_alone,
    )


def _torchrun(spec: worker_api.WorkerSpec) -> dict[str, str]:
    """The options of ``torchrun``, so that one on each worker joins all of them."""
    first = min(spec.ring, key=lambda member: member.rank)
    return {
        "PET_NNODES": str(len(spec.ring)),
        "PET_NODE_RANK": str(spec.rank),
        "PET_NPROC_PER_NODE": "1",
        "PET_MASTER_ADDR": str(spec.rendezvous or first.address),
        "PET_MASTER_PORT": str(first.port),
    }


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
        "PATCHLIGHT_STOP_GRACE_S": f"{spec.stop_grace_s:g}",
        **network_environment(launch, places.folder),
    }
    if places.checkpoint is not None:
        variables["PATCHLIGHT_CHECKPOINT"] = places.checkpoint
    if spec.gpu is not None:
        variables["PATCHLIGHT_GPU"] = spec.gpu
    if launch.gpu_uuid is not None:
        variables["CUDA_VISIBLE_DEVICES"] = launch.gpu_uuid
    return variables
