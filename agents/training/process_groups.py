"""Manages the process groups of a model's replicas. Gloo's group survives circuit changes, as its
TCP connections do. NCCL may not survive an outage, so its group is renewed after each hold."""

from __future__ import annotations

import datetime
import os
import re
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from .ring import RingError, listen
from .task import Member, TrainingTask

# An outage may last as long as the job allows, as in the synthetic trainer's ring.
_PATIENCE = datetime.timedelta(seconds=900)
_PEER = re.compile(r"\[?([0-9]+(?:\.[0-9]+){3})\]?:[0-9]+")
_ESTABLISHED = "01"


class ProcessGroups:
    """All ranks of a job, which call each method in the same order. ``renews``: whether the
    gradients' group is renewed after a hold; the default is only for NCCL."""

    def __init__(self, task: TrainingTask, renews: bool | None = None) -> None:
        self.rank = task.rank
        self.size = len(task.ring)
        self._ring = task.ring
        backend = (
            "nccl"
            if torch.cuda.is_available() and dist.is_nccl_available()
            else "gloo"
        )
        self._backend = backend
        self._renews = backend == "nccl" if renews is None else renews
        me = task.ring[task.rank]
        first = task.ring[0]
        # A container starts before its NIC is moved in, so the address appears a moment later.
        listen(
            Member(me.rank, me.address, 0), time.monotonic() + task.join_s
        ).close()
        try:
            store = dist.TCPStore(  # type: ignore[attr-defined,unused-ignore]
                first.address,
                first.port,
                self.size,
                is_master=self.rank == 0,
                timeout=datetime.timedelta(seconds=task.join_s),
            )
            dist.init_process_group(
                "gloo",
                store=store,
                rank=self.rank,
                world_size=self.size,
                timeout=_PATIENCE,
            )
            self.gradients = self._of_gradients()
        except RuntimeError as exc:
            raise RingError(
                f"rank {self.rank} could not join the {self.size} ranks of the job through "
                f"{first.address}:{first.port}: {exc}"
            ) from exc

    def _of_gradients(self) -> Any:
        if self._backend == "gloo" and not self._renews:
            return dist.group.WORLD
        # Each new group has a prefix of its own in the store.
        return dist.new_group(
            backend=self._backend,
            timeout=_PATIENCE,
        )

    def renew_if_held(self, was_held: bool) -> None:
        """Renew the gradients' group if any rank was held; single ranks can be held."""
        if not self._renews:
            return
        held = torch.tensor([int(was_held)])
        dist.all_reduce(held, op=dist.ReduceOp.MAX)
        if held.item():
            self.gradients = self._of_gradients()

    def gather(self, number: int) -> list[int]:
        """Gather every rank's number."""
        own = torch.tensor([number], dtype=torch.int64)
        found = [torch.zeros_like(own) for _ in range(self.size)]
        dist.all_gather(found, own)
        return [int(each.item()) for each in found]

    def share(self, value: Any, source: int) -> Any:
        """Broadcast what rank ``source`` has."""
        held = [value if self.rank == source else None]
        dist.broadcast_object_list(held, src=source)
        return held[0]

    def lost(self, exc: RuntimeError, iteration: int) -> RingError | None:
        """The error of a failed exchange, with the rank whose address it contains; else
        ``None``."""
        text = str(exc).partition("\n")[0]
        if not isinstance(exc, dist.DistError) and "gloo" not in text:
            return None
        named = {found[1] for found in _PEER.finditer(text)}
        others = [
            m.rank
            for m in self._ring
            if m.rank != self.rank and m.address in named
        ]
        rank = others[0] if others else None
        whom = "the other ranks" if rank is None else f"rank {rank}"
        return RingError(
            f"lost {whom} in the exchange of iteration {iteration}: {text}",
            rank,
        )

    def leave(self, deadline_s: float) -> None:
        """Close the connections once peers have acknowledged all data: the NIC leaves the
        namespace, with its send queue, as soon as the worker ends."""
        end = time.monotonic() + deadline_s
        while _unacknowledged_bytes() and time.monotonic() < end:
            time.sleep(0.002)
        dist.destroy_process_group()


def _unacknowledged_bytes() -> int:
    own = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            own.add(os.readlink(descriptor))
        except FileNotFoundError:
            continue
    unsent = 0
    for line in (
        Path("/proc/self/net/tcp").read_text(encoding="ascii").splitlines()[1:]
    ):
        columns = line.split()
        if columns[3] == _ESTABLISHED and f"socket:[{columns[9]}]" in own:
            unsent += int(columns[4].partition(":")[0], 16)
    return unsent
