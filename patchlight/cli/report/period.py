"""What happened in a lab in a period of time, as the controller has it on record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from patchlight.client.client import ControllerClient
    from patchlight.testbed.wire.rest.changes import Change
    from patchlight.testbed.wire.rest.jobs import JobInList
    from patchlight.testbed.wire.rest.lab import Samples

Answer = dict[str, Any]

# A job's own states and the ends of changes are told elsewhere in a report.
_TOLD_ELSEWHERE = ("job-", "circuits")
_PAGE = 1000


@dataclass(frozen=True)
class Stage:
    """What one stage of changes took, in seconds."""

    name: str
    count: int
    mean_s: float
    median_s: float
    most_s: float


@dataclass(frozen=True)
class Period:
    """From ``since`` until ``until`` (Unix time): records as the API gives them.

    ``jobs`` are those that waited or ran then; ``samples`` are of the whole lab.
    """

    lab: str
    since: float
    until: float
    jobs: list[JobInList]
    changes: list[Change]
    events: list[Answer]
    samples: Samples

    def job_counts(self) -> Mapping[str, int]:
        """How many of the jobs are in each state now."""
        counts: dict[str, int] = {}
        for job in self.jobs:
            counts[job["state"]] = counts.get(job["state"], 0) + 1
        return counts

    def change_counts(self) -> Mapping[str, int]:
        """How many changes came to each end."""
        counts: dict[str, int] = {}
        for change in self.changes:
            counts[change["state"]] = counts.get(change["state"], 0) + 1
        return counts

    def stages(self) -> list[Stage]:
        """What the stages of committed changes took, in the order that they come in."""
        took: dict[str, list[float]] = {}
        for change in self.changes:
            if change["state"] == "committed" and change["changes"]:
                for name, seconds in change["stages_s"].items():
                    took.setdefault(name, []).append(seconds)
        return [Stage(n, len(s), fmean(s), median(s), max(s)) for n, s in took.items()]

    def energy_j(self) -> float:
        """What GPUs have used for these jobs in all, as far as they told."""
        return sum(sum(job.get("energy_j", {}).values()) for job in self.jobs)


def look_back(client: ControllerClient, since: float, until: float) -> Period:
    """What a controller has on record of a period."""
    return Period(
        lab=client.identity().name,
        since=since,
        until=until,
        jobs=client.jobs(since=since, until=until),
        changes=_all(partial(client.past_reconfigurations, since, until), "id"),
        events=[
            event
            for event in _all(partial(client.past_events, since, until), "number")
            if not event["kind"].startswith(_TOLD_ELSEWHERE)
        ],
        samples=client.samples(since, until, jobs=()),
    )


def _all(latest: Callable[..., list[Any]], number: str) -> list[Any]:
    """All rows of a period, the oldest first, of a call that gives the latest before a number."""
    rows = page = latest(last=_PAGE)
    while len(page) == _PAGE:
        page = latest(last=_PAGE, before=page[0][number])
        rows = page + rows
    return rows
