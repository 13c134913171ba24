"""What the workers of running jobs report, counted: iterations, bytes, and how long they took."""

import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from patchlight.controller.jobs.running_job import RunningJob

KEPT_S = 120.0
"""So long the series of a job that has ended stay: whoever scrapes sees its last values."""

_ITERATION_S = (0.01, 0.03, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 100.0, 300.0)
_WORKER = ("job_id", "rank", "host")


class JobProgress:
    """Counters of each worker of the jobs that run. Bytes are as in the lab: sent × ``scale``.

    ``running`` gives the ids of the jobs that run. The series of others go after ``KEPT_S``, and
    those of a worker's earlier host when it reports from another.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        running: Callable[[], Collection[str]],
        scale: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        def worker_counter(name: str, about: str) -> Counter:
            return Counter(f"patchlight_worker_{name}", about, _WORKER, registry=registry)

        self._running, self._scale, self._clock = running, scale, clock
        self._counters = (
            worker_counter("iterations", "Iterations that a worker has finished."),
            worker_counter("sent_bytes", "Payload that a worker has sent, as in the lab."),
            worker_counter("compute_seconds", "What a worker has spent computing."),
            worker_counter("communication_seconds", "What a worker has spent communicating."),
        )
        self._iteration_s = Histogram(
            "patchlight_job_iteration_seconds",
            "How long iterations of a job's workers took.",
            ("job_id",),
            buckets=_ITERATION_S,
            registry=registry,
        )
        self._last = Gauge(
            "patchlight_job_last_iteration_timestamp_seconds",
            "When a worker of the job last finished an iteration.",
            ("job_id",),
            registry=registry,
        )
        self._hosts: dict[str, dict[int, str]] = {}
        self._gone_at: dict[str, float] = {}

    def heard(self, job: RunningJob, reports: Sequence[dict[str, Any]]) -> None:
        """Workers of a job have told of iterations that they finished."""
        self.prune()
        known = self._hosts.setdefault(job.id, {})
        whole, last = self._iteration_s.labels(job.id), self._last.labels(job.id)
        for report in reports:
            rank, host = report["rank"], job.hosts[report["rank"]].name
            if known.setdefault(rank, host) != host:
                self._forget_worker(job.id, rank, known[rank])
                known[rank] = host
            compute_s, communication_s = report["compute_s"], report["communication_s"]
            amounts = (1, report["sent_bytes"] * self._scale, compute_s, communication_s)
            for counter, amount in zip(self._counters, amounts, strict=True):
                counter.labels(job.id, str(rank), host).inc(max(0, amount))
            whole.observe(compute_s + communication_s)
        last.set(max(report["finished_at"] for report in reports))

    def prune(self) -> None:
        """Drop the series of jobs that ended a while ago."""
        now, running = self._clock(), self._running()
        for job_id in list(self._hosts):
            if job_id in running:
                self._gone_at.pop(job_id, None)
            elif now - self._gone_at.setdefault(job_id, now) > KEPT_S:
                for rank, host in self._hosts.pop(job_id).items():
                    self._forget_worker(job_id, rank, host)
                del self._gone_at[job_id]
                self._iteration_s.remove(job_id)
                self._last.remove(job_id)

    def _forget_worker(self, job_id: str, rank: int, host: str) -> None:
        for counter in self._counters:
            counter.remove(job_id, str(rank), host)
