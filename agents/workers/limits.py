"""Decides what a worker may have of its server: memory, processes, paths, a user, a GPU.

A container gets exactly one NVIDIA GPU by its UUID: through CDI (Container Device Interface, Docker
25 or newer with ``nvidia-ctk cdi generate``), Docker's device requests
(``nvidia-container-runtime-hook``), or the runtime ``nvidia``. Never run on an NVIDIA GPU.
"""

import hashlib
import json
import os
import pwd
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from patchlight.agents.errors import BadRequest, Forbidden, LaunchError
from patchlight.agents.gpus import PhysicalGpu
from patchlight.testbed.errors import BadInput, reason, short
from patchlight.testbed.jobs import CommandTask
from patchlight.testbed.lab.model import Lab, Server
from patchlight.testbed.lab.rules import DYNAMIC, WRITABLE, WorkerPolicy
from patchlight.testbed.linux.processes import Limits
from patchlight.testbed.units import format_size
from patchlight.testbed.wire.worker_api import (
    SyntheticTask,
    TorchTask,
    WorkerSpec,
)

_MIB = 2**20
_LEAST_SHARE_BYTES = 2 * 2**30


def limits_of(
    spec: WorkerSpec,
    gpu: PhysicalGpu | None,
    share_bytes: int,
    policy: WorkerPolicy,
) -> Limits:
    """The limits of the job, else the usual ones, within those of the lab. A synthetic worker
    without a GPU needs about four times its gradient; others get ``share_bytes`` of memory."""
    task = spec.task
    if isinstance(task, SyntheticTask) and gpu is None:
        memory_bytes = 1024 * _MIB + 8 * task.gradient_bytes
        processes = 256
    else:
        memory_bytes = share_bytes
        processes = policy.processes
    memory_bytes = spec.memory_bytes or memory_bytes
    if policy.memory_bytes is not None:
        memory_bytes = min(memory_bytes, policy.memory_bytes)
    return Limits(memory_bytes, processes, spec.cpus or policy.cpus)


def memory_share(
    lab: Lab,
    server: Server,
    memory_bytes: int,
) -> int:
    """Bytes of memory for each worker: an even share of ``memory_bytes`` among all NICs on the
    server's machine, which all emulated servers share, but at least 2 GiB: labs of many servers
    rarely use all."""
    here = [
        each
        for each in lab.servers
        if (each.management or "").startswith("unix:")
    ]
    nics = sum(
        len(each.nics) for each in (here if server in here else [server])
    )
    return max(
        min(_LEAST_SHARE_BYTES, memory_bytes), memory_bytes // max(1, nics)
    )


_OF_THE_KERNEL = [
    Path("/proc"),
    Path("/sys"),
    Path("/dev"),
    Path("/run"),
]
_OF_US = [Path("/var/lib/patchlight"), Path("/var/lib/docker")]
_OF_THE_SERVER = [Path("/etc"), *_OF_THE_KERNEL, *_OF_US]
_OF_THE_WORKER = [Path("/etc/hosts"), *_OF_THE_KERNEL, Path("/opt/patchlight")]
_DOCKER_SOCKET = "/var/run/docker.sock"


def permitted(spec: WorkerSpec, policy: WorkerPolicy) -> WorkerSpec:
    """The worker to launch, with resolved and checked paths, so links cannot change them later.
    ``Forbidden`` or ``BadRequest`` for what it may not have."""
    task = spec.task
    checkpoint = spec.checkpoint
    image = getattr(task, "image", None)
    if image is not None and not policy.allows_image(image):
        allowed = ", ".join(policy.images or ()) or "none"
        raise Forbidden(
            f"worker {spec.id} requests the image {image}, which the lab does not allow",
            hint=f"allowed images: {allowed} ('images' under 'workers' of the lab file)",
        )
    most = policy.memory_bytes
    wanted = spec.memory_bytes
    if most is not None and wanted is not None and wanted > most:
        raise Forbidden(
            f"worker {spec.id} requests {format_size(wanted)} of memory: the lab allows "
            f"{format_size(most)} ('memory' under 'workers' of the lab file)"
        )
    if (
        policy.cpus is not None
        and spec.cpus is not None
        and spec.cpus > policy.cpus
    ):
        raise Forbidden(
            f"worker {spec.id} requests {spec.cpus:g} CPUs: the lab allows {policy.cpus:g} "
            "('cpus' under 'workers' of the lab file)"
        )
    if checkpoint is not None:
        checkpoint = _seen(
            spec,
            policy,
            checkpoint,
            writes=True,
            is_made=True,
        )
    if isinstance(task, TorchTask) and task.data is not None:
        task = task.model_copy(update={"data": _seen(spec, policy, task.data)})
    if isinstance(task, CommandTask):
        mounts = []
        for mount in task.mounts:
            for kept in _OF_THE_WORKER:
                if _overlap(
                    Path(os.path.normpath("/" + mount.target.lstrip("/"))),
                    kept,
                ):
                    raise BadRequest(
                        f"worker {spec.id}: cannot mount at {mount.target}: {kept} of a worker "
                        "is reserved"
                    )
            source = _seen(
                spec,
                policy,
                mount.source,
                writes=not mount.read_only,
            )
            mounts.append(replace(mount, source=source))
        task = task.model_copy(update={"mounts": mounts})
    return spec.model_copy(update={"checkpoint": checkpoint, "task": task})


def _seen(
    spec: WorkerSpec,
    policy: WorkerPolicy,
    path: str,
    *,
    writes: bool = False,
    is_made: bool = False,
) -> str:
    """The resolved path that the worker may see. ``is_made``: only its parent must exist."""
    real = Path(os.path.normpath(path))
    problem = ""
    try:
        real = Path(os.path.realpath(path))
        (real.parent if is_made else real).stat()
    except (OSError, ValueError) as exc:
        problem = getattr(exc, "strerror", None) or reason(exc)
    docker = (
        os.environ.get("DOCKER_HOST", "").removeprefix("unix://")
        or _DOCKER_SOCKET
    )
    for kept in [*_OF_THE_SERVER, Path(os.path.realpath(docker))]:
        if _overlap(real, kept):
            raise Forbidden(
                f"worker {spec.id} requests {short(path)}: {kept} of a server is closed to "
                f"workers",
                hint="mount a folder of data, like /srv/data",
            )
    named = {
        each.removesuffix(WRITABLE): each.endswith(WRITABLE)
        for each in policy.mounts
    }
    folders = {
        Path(os.path.realpath(each)): is_open
        for each, is_open in named.items()
    }
    around = [each for each in folders if real.is_relative_to(each)]
    inside = [each for each in folders if each.is_relative_to(real)]
    closest = max(
        around,
        key=lambda each: len(each.parts),
        default=None,
    )
    if closest is None or (
        writes and not all(folders[each] for each in (closest, *inside))
    ):
        wanted, verb = (
            (f"{path}{WRITABLE}", "write to") if writes else (path, "see")
        )
        raise Forbidden(
            f"worker {spec.id} requests {short(path)}: the lab does not allow workers to {verb} "
            f"it",
            hint=f"allowed folders: {', '.join(policy.mounts) or 'none'}; the lab's owner can add "
            f"it to the lab file: workers: {{mounts: [{short(wanted)!r}]}}",
        )
    if problem:
        why = f"{short(path)}, which is unusable on this server: {problem}"
        raise BadRequest(f"worker {spec.id} requests {why}")
    return str(real)


def _overlap(one: Path, other: Path) -> bool:
    return one.is_relative_to(other) or other.is_relative_to(one)


# systemd leaves these user ids free; it gives containers those below.
_FIRST_USER = 0x70000000
_USERS = 0x0F000000
_SOON_S = 1.0
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(
    frozen=True,
    slots=True,
)
class WorkerUser:
    """A user of this machine, or a number that no user has; ``name`` is for messages."""

    uid: int
    gid: int
    name: str

    @property
    def is_root(self) -> bool:
        """Whether it can read all files of the server."""
        return self.uid == 0

    def may(self, path: Path, bits: int) -> bool:
        """Whether the mode of ``path`` grants it: 4 read, 2 write, 1 pass."""
        found = path.stat()
        shift = (
            6
            if found.st_uid == self.uid
            else 3
            if found.st_gid == self.gid
            else 0
        )
        return (found.st_mode >> shift) & bits == bits

    def closed(self, path: Path) -> Path | None:
        """The first folder on the way to ``path`` that it may not pass, if any."""
        return next(
            (each for each in reversed(path.parents) if not self.may(each, 1)),
            None,
        )


def named_user(choice: str) -> WorkerUser | None:
    """The user of that name or number; ``None`` for ``dynamic``; ``BadInput`` if unknown."""
    if choice == DYNAMIC:
        return None
    try:
        known = (
            pwd.getpwuid(int(choice))
            if choice.isdecimal()
            else pwd.getpwnam(choice)
        )
    except (KeyError, OverflowError):
        raise BadInput(
            f"workers cannot run as {choice}: user not found on this machine",
            hint=f"create it: useradd --system --no-create-home {choice}; or use {DYNAMIC}: one "
            "user per job owner",
        ) from None
    return WorkerUser(known.pw_uid, known.pw_gid, known.pw_name)


def user_for(lab: str, submitter: str) -> WorkerUser:
    """The user for one person's jobs in one lab: the same on every server, at any time."""
    digest = hashlib.sha256(f"{lab}\0{submitter}".encode()).digest()
    number = _FIRST_USER + int.from_bytes(digest[:8]) % _USERS
    return WorkerUser(number, number, f"uid-{number}")


def refuse_inside_workers_folders(worker: str, path: str) -> None:
    """``LaunchError`` for a path that another worker could replace by a link during the mount."""
    for folder in Path(os.path.realpath(path)).parents:
        if (
            folder.exists()
            and _FIRST_USER <= folder.stat().st_uid < _FIRST_USER + _USERS
        ):
            raise LaunchError(
                f"worker {worker}: {path} is inside {folder}, which belongs to workers",
                hint="choose a folder outside it",
            )


def ready_checkpoint(
    worker: str,
    checkpoint: str,
    user: WorkerUser,
) -> None:
    """Check that the worker can write to its checkpoint folder; create the folder if only that is
    missing. ``LaunchError`` otherwise: an existing folder's owner is never changed."""
    refuse_inside_workers_folders(worker, checkpoint)
    path = Path(checkpoint)
    remedy = f"on this server: sudo install -d -m 700 -o {user.uid} -g {user.gid} {checkpoint}"
    try:
        with suppress(FileExistsError), _held(path.parent) as above:
            os.mkdir(path.name, 0o700, dir_fd=above)
            made = os.open(path.name, _OPEN_FOLDER, dir_fd=above)
            os.fchown(made, user.uid, user.gid)
            os.close(made)
        end = time.monotonic() + _SOON_S  # another agent may be creating it
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
    """A descriptor of a folder, opened without following links and safe from later changes."""
    with ExitStack() as stack:
        found = os.open("/", _OPEN_FOLDER)
        stack.callback(os.close, found)
        for part in folder.parts[1:]:
            found = os.open(part, _OPEN_FOLDER, dir_fd=found)
            stack.callback(os.close, found)
        yield found


def hand_over(user: WorkerUser, folder: Path) -> None:
    """Make a worker's folder and its content belong to the user."""
    if user.is_root:
        return
    for here, folders, files in os.walk(folder):
        for name in ("", *folders, *files):
            os.chown(
                os.path.join(here, name),
                user.uid,
                user.gid,
                follow_symlinks=False,
            )


CHOICES = ("auto", "cdi", "request", "runtime")
CDI_FOLDERS = (Path("/etc/cdi"), Path("/var/run/cdi"))
_KIND = "nvidia.com/gpu"
_HOOK = "nvidia-container-runtime-hook"
_NODE = re.compile(r"/dev/nvidia(\d+)")
# NVIDIA's runtime adds the GPUs in this variable, even if an image sets it; "void" means none.
_VISIBLE = "NVIDIA_VISIBLE_DEVICES"
NO_GPU = {_VISIBLE: "void"}


def find_access(
    choice: str,
    engine: Mapping[str, Any],
    folders: Sequence[Path] = CDI_FOLDERS,
    path: str | None = None,
) -> str:
    """How containers get a GPU: ``choice``, or what is available; empty for none. ``engine``: its
    description; ``path``: where programs are searched (``None``: the environment's)."""
    if choice not in CHOICES:
        raise BadInput(
            f"--gpu-access {choice!r}: expected {', '.join(CHOICES)}"
        )
    if choice != "auto":
        return choice
    major = str(engine.get("ServerVersion", "")).partition(".")[0]
    if major.isdecimal() and int(major) >= 25 and any(_devices(folders)):
        return "cdi"
    if shutil.which(_HOOK, path=path):
        return "request"
    return "runtime" if "nvidia" in engine.get("Runtimes", {}) else ""


def container_settings(
    access: str,
    gpu: PhysicalGpu,
    folders: Sequence[Path] = CDI_FOLDERS,
) -> dict[str, Any]:
    """Arguments for a container with only this GPU (merge ``environment``); may raise
    ``LaunchError``."""
    pinned = {
        _VISIBLE: gpu.uuid,
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
    }
    match access:
        case "cdi":
            devices = list(_devices(folders))  # by UUID, else by device node
            named = [name for name, _ in devices if name == gpu.uuid]
            named += [
                name for name, minors in devices if minors == {gpu.minor}
            ]
            if not named:
                known = (
                    ", ".join(sorted({name for name, _ in devices})) or "none"
                )
                raise LaunchError(
                    f"no CDI device for GPU {gpu.uuid}: found {known}",
                    hint="regenerate the CDI files: sudo nvidia-ctk cdi generate "
                    "--output=/etc/cdi/nvidia.yaml",
                )
            cdi = {"driver": "cdi", "device_ids": [f"{_KIND}={named[0]}"]}
            return {"device_requests": [cdi], "environment": NO_GPU}
        case "request":
            request = {
                "device_ids": [gpu.uuid],
                "capabilities": [["gpu", "compute", "utility"]],
            }
            return {"device_requests": [request], "environment": pinned}
        case "runtime":
            return {"runtime": "nvidia", "environment": pinned}
    raise LaunchError(
        f"cannot give a container the GPU {gpu.uuid}: no CDI file of {_KIND}, no {_HOOK} and no "
        "Docker runtime 'nvidia'",
        hint="install the NVIDIA Container Toolkit; then sudo nvidia-ctk cdi generate "
        "--output=/etc/cdi/nvidia.yaml (Docker 25 or newer), or sudo nvidia-ctk runtime "
        "configure --runtime=docker; and restart the agent",
    )


def _devices(folders: Sequence[Path]) -> Iterator[tuple[str, set[int]]]:
    """The GPUs in CDI files, by name and by number of ``/dev/nvidiaN``. Unreadable files are
    skipped, as the engine does."""
    for path in (
        each for folder in folders for each in sorted(folder.glob("*"))
    ):
        try:
            text = (
                path.read_text(encoding="utf-8")
                if path.suffix in (".yaml", ".json")
                else ""
            )
            spec = (
                json.loads(text or "{}")
                if path.suffix == ".json"
                else yaml.safe_load(text)
            )
            if spec and spec["kind"] == _KIND:
                yield from [
                    (str(each["name"]), _minors(each))
                    for each in spec["devices"]
                ]
        except (
            OSError,
            ValueError,
            yaml.YAMLError,
            KeyError,
            TypeError,
            AttributeError,
        ):
            continue


def _minors(device: Mapping[str, Any]) -> set[int]:
    nodes = (device.get("containerEdits") or {}).get("deviceNodes") or ()
    found = (_NODE.fullmatch(str(node["path"])) for node in nodes)
    return {int(match[1]) for match in found if match}
