"""A controller's metrics as values: what ``patchlight status`` and ``patchlight top`` show."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from patchlight.client.client import ControllerClient

_PREFIX = "patchlight_"

Sample = tuple[Mapping[str, str], float]
"""Labels and a value."""


@dataclass(frozen=True)
class Scrape:
    """Samples by the name of their metric, without ``patchlight_``; ``at`` is Unix time."""

    at: float
    samples: Mapping[str, list[Sample]]

    @classmethod
    def of(cls, client: ControllerClient) -> Scrape:
        """What a controller's metrics say now. No device is asked for it."""
        return cls.read(client.metrics(), time.time())

    @classmethod
    def read(cls, text: str, at: float) -> Scrape:
        """The same of metrics as Prometheus reads them."""
        from prometheus_client.parser import text_string_to_metric_families

        samples: defaultdict[str, list[Sample]] = defaultdict(list)
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name.startswith(_PREFIX):
                    name = sample.name.removeprefix(_PREFIX)
                    samples[name].append((sample.labels, sample.value))
        return cls(at, dict(samples))

    def of_metric(self, name: str, **labels: str) -> list[Sample]:
        """The samples of a metric that have these labels."""
        found = self.samples.get(name, [])
        return [s for s in found if all(s[0].get(k) == value for k, value in labels.items())]

    def total(self, name: str, **labels: str) -> float:
        """Their sum; 0 if there are none."""
        return sum(value for _, value in self.of_metric(name, **labels))

    def by(self, name: str, label: str, **labels: str) -> dict[str, float]:
        """Their sums by what one label says."""
        sums: defaultdict[str, float] = defaultdict(float)
        for said, value in self.of_metric(name, **labels):
            sums[said[label]] += value
        return dict(sums)


@dataclass(frozen=True)
class JobPace:
    """How a job is doing. Rates are over the time between two scrapes, ``None`` without two.

    ``communication`` and ``utilization`` are shares from 0 to 1.
    """

    job_id: str
    name: str
    gpus: tuple[str, ...]
    paused: bool
    done: int
    wanted: int
    iterations_per_s: float | None = None
    communication: float | None = None
    sent_bps: float | None = None
    utilization: float | None = None


def job_paces(now: Scrape, before: Scrape | None) -> list[JobPace]:
    """Each job that runs, as it was between two scrapes."""
    grown = {
        name: _growth(now, before, f"worker_{name}_total")
        for name in ("iterations", "sent_bytes", "compute_seconds", "communication_seconds")
    }
    seconds = now.at - before.at if before is not None else 0.0
    workers = now.by("job_workers", "job_id")
    paused, done = now.by("job_paused", "job_id"), now.by("job_iterations_done", "job_id")
    wanted, busy = now.by("job_iterations_wanted", "job_id"), now.by("gpu_utilization_ratio", "gpu")
    paces = []
    for labels, _ in now.of_metric("job_info"):
        job_id = labels["job_id"]
        gpus = tuple(said["gpu"] for said, _ in now.of_metric("gpu_allocated", job_id=job_id))
        told = [busy[gpu] for gpu in gpus if gpu in busy]
        iterations, sent, compute_s, communication_s = (
            grown[name].get(job_id)
            for name in ("iterations", "sent_bytes", "compute_seconds", "communication_seconds")
        )
        both_s = (compute_s or 0.0) + (communication_s or 0.0)
        rates = seconds > 0 and iterations is not None
        paces.append(
            JobPace(
                job_id,
                labels["name"],
                gpus,
                bool(paused.get(job_id)),
                round(done.get(job_id, 0)),
                round(wanted.get(job_id, 0)),
                (iterations or 0) / max(1, workers[job_id]) / seconds if rates else None,
                (communication_s or 0.0) / both_s if both_s else None,
                8 * (sent or 0.0) / seconds if rates else None,
                sum(told) / len(told) if told else None,
            )
        )
    return paces


def _growth(now: Scrape, before: Scrape | None, name: str) -> dict[str, float]:
    """By how much counters of workers grew, by job; of those that both scrapes have."""
    if before is None:
        return {}
    had = {tuple(sorted(labels.items())): value for labels, value in before.of_metric(name)}
    grown: defaultdict[str, float] = defaultdict(float)
    for labels, value in now.of_metric(name):
        earlier = had.get(tuple(sorted(labels.items())))
        if earlier is not None:
            grown[labels["job_id"]] += max(0.0, value - earlier)
    return dict(grown)
