"""What there was in a period, from the controller's disk: jobs, changes of circuits, samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from patchlight.cli.dashboard.lab_view import LabView, job_colours

if TYPE_CHECKING:
    from patchlight.client.client import ControllerClient
    from patchlight.testbed.lab.model import Lab
    from patchlight.testbed.wire.rest.changes import Change
    from patchlight.testbed.wire.rest.jobs import JobInList
    from patchlight.testbed.wire.rest.lab import SpreadShape, WindowShape

_JOBS, _CHANGES, _POINTS = 200, 200, 240
DRAWN = 20
"""So many jobs at most are drawn, the latest."""


@dataclass(frozen=True)
class Past:
    """A period: its jobs and changes, and windows of ``width_s`` of the jobs that are drawn."""

    since: float
    until: float
    jobs: Sequence[JobInList]
    changes: Sequence[Change]
    width_s: int
    windows: Mapping[str, Sequence[WindowShape]]

    def view(self, lab: Lab, colours: Mapping[str, str]) -> LabView:
        """As a lab with these jobs and changes; jobs that have a colour keep it."""
        named = job_colours(colours, [*self.windows])
        return LabView(lab, self.jobs, changes=self.changes, colours=named)

    def iteration_s(self, job: str) -> float | None:
        """What an iteration took in the mean; ``None`` where none was told of."""
        counted = [
            (window["iterations"], window["iteration_s"]["mean"])
            for window in self.windows.get(job, ())
            if window["iteration_s"] is not None
        ]
        total = sum(count for count, _ in counted)
        return sum(count * mean for count, mean in counted) / total if total else None

    def sends_bps(self, job: str) -> float | None:
        """What its hosts sent in all, in the mean."""
        return _mean([window["sent_bps"] for window in self.windows.get(job, ())])

    def predicted_s(self, job: str) -> float | None:
        """What one of its iterations should have taken, in the mean."""
        told = [window["predicted_s"] for window in self.windows.get(job, ())]
        known = [seconds for seconds in told if seconds is not None]
        return fmean(known) if known else None


def _mean(spreads: Sequence[SpreadShape | None]) -> float | None:
    means = [spread["mean"] for spread in spreads if spread is not None]
    return fmean(means) if means else None


def look_back(client: ControllerClient, since: float, until: float) -> Past:
    """Ask the controller for a period."""
    jobs = client.jobs(last=_JOBS, since=since, until=until)
    drawn = [job["id"] for job in jobs if job["hosts"]][-DRAWN:]
    samples = client.samples(since, until, _POINTS, drawn)
    changes = client.past_reconfigurations(since, until, last=_CHANGES)
    windows = {job: samples["jobs"].get(job, []) for job in drawn}
    return Past(since, until, jobs, changes, samples["width_s"], windows)
