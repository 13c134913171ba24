"""How much of its server a worker may have, whatever it runs in."""

import os

from patchlight.agents.gpus.contract import PhysicalGpu
from patchlight.testbed.lab.access import WorkerPolicy
from patchlight.testbed.lab.model import Server
from patchlight.testbed.linux.cgroups import Limits
from patchlight.testbed.wire.worker_api import SyntheticTask, WorkerSpec

_MIB = 2**20
# The server itself needs some of its memory.
_FOR_WORKERS = 0.9


def limits_of(
    spec: WorkerSpec, gpu: PhysicalGpu | None, share_bytes: int, policy: WorkerPolicy
) -> Limits:
    """What its job says, else what such a worker usually needs; no more than the lab allows.

    ``share_bytes`` is its part of the server's memory. A synthetic worker that computes on no real
    GPU holds some four times its gradient; what others need nobody knows.
    """
    task = spec.task
    if isinstance(task, SyntheticTask) and gpu is None:
        memory_bytes, processes = 1024 * _MIB + 8 * task.gradient_bytes, 256
    else:
        memory_bytes, processes = share_bytes, 4096
    memory_bytes = spec.memory_bytes or memory_bytes
    if policy.memory_bytes is not None:
        memory_bytes = min(memory_bytes, policy.memory_bytes)
    return Limits(memory_bytes, processes, spec.cpus or policy.cpus)


def memory_share(server: Server) -> int:
    """Bytes of this machine's memory for each worker that the server can have at a time."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(_FOR_WORKERS * total) // max(1, len(server.nics))
