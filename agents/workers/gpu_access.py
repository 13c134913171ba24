"""How a container is given exactly one NVIDIA GPU, pinned by its UUID.

By CDI (the Container Device Interface, Docker 25 or newer with ``nvidia-ctk cdi generate``), by
Docker's device requests (which call ``nvidia-container-runtime-hook``), or by the runtime
``nvidia``. It has run on no NVIDIA GPU.
"""

import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from patchlight.agents.errors import LaunchError
from patchlight.agents.gpus.contract import PhysicalGpu
from patchlight.testbed.errors import BadInput

CHOICES = ("auto", "cdi", "request", "runtime")
CDI_FOLDERS = (Path("/etc/cdi"), Path("/var/run/cdi"))
_KIND = "nvidia.com/gpu"
_HOOK = "nvidia-container-runtime-hook"
_NODE = re.compile(r"/dev/nvidia(\d+)")
# NVIDIA's runtime adds what this variable names, also where an image sets it; "void" is nothing.
_VISIBLE = "NVIDIA_VISIBLE_DEVICES"
NO_GPU = {_VISIBLE: "void"}


def find_access(
    choice: str,
    engine: Mapping[str, Any],
    folders: Sequence[Path] = CDI_FOLDERS,
    path: str | None = None,
) -> str:
    """The way that this server has, or the ``choice`` of one; empty if it has none.

    ``engine`` is what the Docker engine says of itself; ``path``, where programs are looked for, is
    the environment's by default. ``BadInput`` for what is no way.
    """
    if choice not in CHOICES:
        raise BadInput(f"--gpu-access {choice!r}: expected {', '.join(CHOICES)}")
    if choice != "auto":
        return choice
    major = str(engine.get("ServerVersion", "")).partition(".")[0]
    if major.isdecimal() and int(major) >= 25 and any(_devices(folders)):
        return "cdi"
    if shutil.which(_HOOK, path=path):
        return "request"
    return "runtime" if "nvidia" in engine.get("Runtimes", {}) else ""


def container_settings(
    access: str, gpu: PhysicalGpu, folders: Sequence[Path] = CDI_FOLDERS
) -> dict[str, Any]:
    """What a container is created with to get this GPU alone; ``environment`` has to be merged.

    ``LaunchError`` where the server has no way, or its CDI files do not know the GPU.
    """
    pinned = {_VISIBLE: gpu.uuid, "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
    match access:
        case "cdi":
            cdi = {"driver": "cdi", "device_ids": [_cdi_device(gpu, folders)]}
            return {"device_requests": [cdi], "environment": NO_GPU}
        case "request":
            request = {"device_ids": [gpu.uuid], "capabilities": [["gpu", "compute", "utility"]]}
            return {"device_requests": [request], "environment": pinned}
        case "runtime":
            return {"runtime": "nvidia", "environment": pinned}
    raise LaunchError(
        f"there is no way to give a container the GPU {gpu.uuid}: no CDI file of {_KIND}, no "
        f"{_HOOK} and no Docker runtime 'nvidia'",
        hint="install the NVIDIA Container Toolkit; then sudo nvidia-ctk cdi generate "
        "--output=/etc/cdi/nvidia.yaml (Docker 25 or newer), or sudo nvidia-ctk runtime configure "
        "--runtime=docker; and start the agent again",
    )


def _cdi_device(gpu: PhysicalGpu, folders: Sequence[Path]) -> str:
    """The full name of the device that is this GPU: by its UUID, else by its device node."""
    devices = list(_devices(folders))
    named = [name for name, _ in devices if name == gpu.uuid]
    by_node = [name for name, minors in devices if minors == {gpu.minor}]
    if not named and not by_node:
        known = ", ".join(sorted({name for name, _ in devices})) or "none"
        raise LaunchError(
            f"no CDI device is the GPU {gpu.uuid}: there are {known}",
            hint="write the files anew: sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
        )
    return f"{_KIND}={(named or by_node)[0]}"


def _devices(folders: Sequence[Path]) -> Iterator[tuple[str, set[int]]]:
    """The GPUs in CDI files: each device's name, and the numbers of its nodes ``/dev/nvidiaN``.

    A file that cannot be read is passed over, as the engine does.
    """
    for path in (each for folder in folders for each in sorted(folder.glob("*"))):
        try:
            text = path.read_text(encoding="utf-8") if path.suffix in (".yaml", ".json") else ""
            spec = json.loads(text or "{}") if path.suffix == ".json" else yaml.safe_load(text)
            if spec and spec["kind"] == _KIND:
                yield from [(str(each["name"]), _minors(each)) for each in spec["devices"]]
        except (OSError, ValueError, yaml.YAMLError, KeyError, TypeError, AttributeError):
            continue


def _minors(device: Mapping[str, Any]) -> set[int]:
    nodes = (device.get("containerEdits") or {}).get("deviceNodes") or ()
    found = (_NODE.fullmatch(str(node["path"])) for node in nodes)
    return {int(match[1]) for match in found if match}
