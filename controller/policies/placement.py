"""Placement policies: which GPUs a job gets.

All let the job wait where it finds too few free GPUs of its models. GPUs that are dark, under no
packet switch, are taken last.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from patchlight.controller.policies.contract import ClusterView, JobView
from patchlight.controller.policies.sets import lowest, members, pack


class FirstFit:
    """The free GPUs that come first in the cluster's order."""

    def place(self, cluster: ClusterView, job: JobView, workers: int) -> Sequence[int] | None:
        """The GPUs with the lowest numbers."""
        found = lowest(cluster.free_for(job), workers)
        return found if len(found) == workers else None


class BestFit:
    """The server that holds the job with the least room left over, else as few as possible."""

    def place(self, cluster: ClusterView, job: JobView, workers: int) -> Sequence[int] | None:
        """GPUs of as few servers as possible, packed tightly."""
        free = cluster.free_for(job)
        if free.bit_count() < workers:
            return None
        return pack([free & server for server in cluster.shape.server_gpus], workers)


class Consolidated:
    """The packet switch that holds the job with the least room left over, else as few as possible.

    So a job's traffic passes few links between packet switches.
    """

    def place(self, cluster: ClusterView, job: JobView, workers: int) -> Sequence[int] | None:
        """GPUs under as few packet switches as possible, packed tightly."""
        free = cluster.free_for(job)
        if free.bit_count() < workers:
            return None
        racks = [free & rack for rack in cluster.shape.rack_gpus]
        found = pack(racks, workers)
        return found if len(found) == workers else found + _dark(free, racks, workers - len(found))


class RackAware:
    """As few packet switches as possible, and under each as few servers as possible."""

    def place(self, cluster: ClusterView, job: JobView, workers: int) -> Sequence[int] | None:
        """GPUs of as few packet switches, then servers, as possible."""
        free = cluster.free_for(job)
        if free.bit_count() < workers:
            return None
        racks = [free & rack for rack in cluster.shape.rack_gpus]
        found: list[int] = []
        for rack in _turns(racks, workers):
            servers = [rack & server for server in cluster.shape.server_gpus]
            found += pack(servers, min(rack.bit_count(), workers - len(found)))
        return found if len(found) == workers else found + _dark(free, racks, workers - len(found))


def _turns(parts: Sequence[int], count: int) -> list[int]:
    """Which of these sets ``pack`` takes ``count`` GPUs from, in its order."""
    taken: list[int] = []
    for gpu in pack(parts, count):
        if not (taken and taken[-1] >> gpu & 1):
            taken.append(next(part for part in parts if part >> gpu & 1))
    return taken


def _dark(free: int, racks: Sequence[int], count: int) -> list[int]:
    for rack in racks:
        free &= ~rack
    return lowest(free, count)


class RandomPlacement:
    """Any free GPUs, each set as likely; the seed fixes the choices."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)

    def place(self, cluster: ClusterView, job: JobView, workers: int) -> Sequence[int] | None:
        """GPUs drawn from the free ones."""
        free = members(cluster.free_for(job))
        return self._random.sample(free, workers) if len(free) >= workers else None
