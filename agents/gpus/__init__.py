"""The server's GPUs: what they are doing, and how a worker reaches the one it gets.

Two backends: NVML for NVIDIA GPUs, and ``socket:DIR`` for GPUs that answer on Unix sockets
(``DIR/<server>.<gpu>.sock``), as emulated ones do.
"""

from pathlib import Path

from patchlight.agents.gpus.contract import GpuBackend
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.model import Server

SAMPLES_PER_S = 10.0
"""How often NVIDIA GPUs are read."""


def gpu_backend(choice: str, server: Server, rate_hz: float = SAMPLES_PER_S) -> GpuBackend:
    """``"nvml"`` or ``"socket:DIR"``; ``BadInput`` otherwise.

    ``rate_hz``: how often a second NVML is read, 0.1 to 100; GPUs behind sockets are read when
    somebody wants to know.
    """
    if not 0.1 <= rate_hz <= 100:
        raise BadInput(f"--gpu-rate {rate_hz:g}: expected 0.1 to 100 readings a second")
    kind, _, directory = choice.partition(":")
    if choice == "nvml":
        from patchlight.agents.gpus.nvml import NvmlGpus

        return NvmlGpus(server, rate_hz)
    if kind == "socket" and directory:
        from patchlight.agents.gpus.contract import SocketGpus

        return SocketGpus(server, Path(directory))
    raise BadInput(f"--gpus {choice!r}: expected 'nvml' or 'socket:DIR'")
