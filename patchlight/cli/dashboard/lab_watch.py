"""Polls the state of a lab for all pages, and reads periods of its history.

There are three threads: one follows events, one reads the controller's own state twice a second,
and one reads after events what the controller must ask devices for, which may wait for the end of a
change. Without open pages there is no polling.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from patchlight.cli.dashboard.lab_view import AT_WORK, LabView, job_colours
from patchlight.client.client import ControllerClient
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.labfile.reader import parse_lab
from patchlight.testbed.wire.rest import circuits
from patchlight.testbed.wire.rest.circuits import ChangeAnswer
from patchlight.testbed.wire.rest.jobs import (
    IterationReport,
    JobInList,
    LightMove,
)
from patchlight.testbed.wire.rest.lab import Status, WindowShape

EVERY_S = 0.5
_VIEWED_FOR_S = 5.0
_SLOW_S = 2.0
_POWER_EVERY_S = 15.0
_JOBS = 100
_CHANGES = 100
_PAST_JOBS = 200
_PAST_CHANGES = 200
_POINTS = 240
DRAWN = 20
"""The most jobs that are drawn, latest first."""
# The length of charts with samples (one a second); longer ones are read from disk.
_SAMPLED_S = 300.0
_SAMPLES = 400
_REPORTS = 1000
_REPORTED_JOBS = 20
_MOST_GAINS = 8
# What to read again after an event, by the start of its kind.
_ABOUT: Mapping[str, tuple[str, ...]] = {
    "circuits": ("circuits", "changes", "operated", "drift"),
    "alarm": ("light",),
    "drift": ("circuits", "drift"),
    "unreachable": ("circuits", "drift", "status"),
    "reachable": ("circuits", "drift", "status"),
    "resumed": ("circuits", "changes", "operated", "drift"),
    "locked": ("operated",),
    "claim": ("operated",),
    "unlocked": ("operated",),
    "stop": ("operated",),
    "baselines": ("light",),
    "discovery": ("circuits",),
    "openflow": ("status",),
    "port-": ("status",),
    "part-fault": ("status",),
    "policies": ("status",),
    "skipped": ("circuits", "changes", "operated", "drift", "light", "status"),
}
_KNOWN = ("status", "changes", "operated")
_FROM_DEVICES = ("circuits", "light", "drift")
_EVERYTHING = (*_KNOWN, *_FROM_DEVICES)

_log = logging.getLogger(__name__)


class LabWatch:
    """A lab as its controller describes it.

    ``connect`` makes a client. What pages read is replaced as a whole, never modified; ``revision``
    grows with each poll, and ``heard`` is the number of the latest event. ``trouble`` says why the
    controller does not answer, or is empty.
    """

    lab: Lab

    def __init__(self, connect: Callable[[], ControllerClient]) -> None:
        self._connect = connect
        self.lab = Lab("")
        self.trouble = "the controller has not answered yet"
        self.revision = 0
        self.status: Status | None = None
        self.jobs: list[JobInList] = []
        self.changes: list[ChangeAnswer] = []
        self.maps: dict[str, circuits.OcsMap] = {}
        self.light: dict[str, circuits.LightAnswer] = {}
        self.drift: dict[str, circuits.DriftOf] = {}
        self.locks: list[circuits.Lock] = []
        self.claims: list[circuits.ClaimAnswer] = []
        self.stopped: circuits.Pressed | None = None
        self.rates: defaultdict[str, deque[tuple[float, float]]] = _series()
        self.gpus: defaultdict[str, deque[tuple[float, float]]] = _series()
        self.iterations: defaultdict[str, deque[IterationReport]] = _series(
            _REPORTS
        )
        self._next_report: dict[str, int] = {}
        self._read_to_end: set[str] = set()
        self.gains: Mapping[str, LightMove] = {}
        self._colours: dict[str, str] = {}
        self.view = LabView(self.lab)
        self.heard = -1
        self._viewed_at = 0.0
        self._viewed = threading.Event()
        self._over = threading.Event()
        self._due = set(_EVERYTHING)
        self._asking = threading.Event()
        self._viewing = threading.Lock()
        self._devices_trouble = ""
        self._fingerprint = ""
        self._slow_at = self._power_at = 0.0

    def start(self) -> None:
        """Start polling in the background, while pages are open."""
        for step, name in (
            (self._look_safely, "looking"),
            (self._hear_safely, "hearing"),
            (self._ask_devices_safely, "asking devices"),
        ):
            threading.Thread(
                target=self._repeat,
                args=(step,),
                name=name,
                daemon=True,
            ).start()

    def close(self) -> None:
        """Stop polling."""
        self._over.set()
        self._viewed.set()
        self._asking.set()

    def viewed(self) -> None:
        """Note that a page is open."""
        self._viewed_at = time.monotonic()
        self._viewed.set()

    def look_again(self) -> None:
        """Read everything at the next poll, after a change."""
        self._ask_for(*_EVERYTHING)

    def _ask_for(self, *what: str) -> None:
        self._due.update(what)
        self._asking.set()

    # -- in the background ---------------------------------------------------------------------

    def _repeat(self, step: Callable[[ControllerClient], None]) -> None:
        with self._connect() as client:
            while True:
                if time.monotonic() - self._viewed_at > _VIEWED_FOR_S:
                    self._viewed.clear()
                self._viewed.wait()
                if self._over.is_set():
                    return
                step(client)

    def _look_safely(self, client: ControllerClient) -> None:
        trouble = self._trouble_with(self.look, client)
        if trouble:
            self._fingerprint = ""
            self.look_again()
        self.trouble = trouble or self._devices_trouble
        self.revision += 1
        self._over.wait(EVERY_S)

    def _hear_safely(self, client: ControllerClient) -> None:
        try:
            self._hear(client)
        except PatchlightError:  # ``trouble`` has the reason
            self._over.wait(1.0)
            self.look_again()

    def _ask_devices_safely(self, client: ControllerClient) -> None:
        self._asking.wait(EVERY_S)
        self._asking.clear()
        self._devices_trouble = self._trouble_with(self._ask_devices, client)
        if self._devices_trouble:
            self._over.wait(1.0)

    def _trouble_with(
        self,
        look: Callable[[ControllerClient], None],
        client: ControllerClient,
    ) -> str:
        try:
            look(client)
        except PatchlightError as error:
            return error.message
        except Exception as error:  # a bug: show it, and continue
            _log.exception("polling the lab")
            return f"the controller's answer could not be read: {error!r}"
        return ""

    def _hear(self, client: ControllerClient) -> None:
        if self.heard < 0:
            self.heard = client.last_event()
        for event in client.follow_events(self.heard):
            self.heard = event.get("number", self.heard)
            for begins, about in _ABOUT.items():
                if str(event["kind"]).startswith(begins):
                    self._ask_for(*about)
            if self._over.is_set():
                return

    # -- one look ------------------------------------------------------------------------------

    def look(self, client: ControllerClient) -> None:
        """Read what changes often, and what events were about."""
        if not self._fingerprint:
            identity = client.identity()
            self.lab = parse_lab(client.lab_file(), identity.file)
            self._fingerprint = identity.fingerprint
        now = time.monotonic()
        if now - self._slow_at > _SLOW_S:
            self._slow_at = now
            self._ask_for("status")
            self._take_gains(client)
        if now - self._power_at > _POWER_EVERY_S:
            self._power_at = now
            self._ask_for("light", "drift", "circuits")
        self.jobs = client.jobs(last=_JOBS)
        self._take_latest_change(client)
        self._take_samples(client)
        self._take_iterations(client)
        self._take_due(client, _KNOWN)
        self._show()

    def _ask_devices(self, client: ControllerClient) -> None:
        """Read what the controller must ask devices for, if an event was about it."""
        if not self._fingerprint:
            return
        # During a change drift is unknown, and the answer would wait for its end.
        changing = any(change.progress for change in self.changes)
        if self._take_due(
            client,
            [n for n in _FROM_DEVICES if not (changing and n == "drift")],
        ):
            self._show()

    def _take_due(
        self, client: ControllerClient, names: Collection[str]
    ) -> bool:
        """Read those that are due; returns whether there were any."""
        due = [name for name in names if name in self._due]
        for name in due:
            self._due.discard(name)  # before reading: later events count
            try:
                self._take(name, client)
            except PatchlightError:
                self._due.add(name)
                raise
        return bool(due)

    def _show(self) -> None:
        with self._viewing:
            at_work = [job.id for job in self.jobs if job.state in AT_WORK]
            self._colours = job_colours(
                self._colours, at_work + self._just_ended()
            )
            view = LabView(
                self.lab,
                self.jobs,
                self.maps,
                self.light,
                self.drift,
                self.locks,
                self.changes,
                self.status,
                self._colours,
            )
            view.keep(self.view)
            self.view = view
            self.revision += 1

    def _take_latest_change(self, client: ControllerClient) -> None:
        """Read the progress of changes: events only report their ends."""
        latest = client.reconfigurations(last=1)
        ids = {each.id for each in latest}
        going = [c.id for c in self.changes if c.progress and c.id not in ids]
        latest += map(client.reconfiguration, going)
        known = {each.id: each for each in self.changes}
        for change in latest:
            if change != known.get(change.id) and change.state != "intent":
                self._ask_for(*_ABOUT["circuits"])
        known |= {each.id: each for each in latest}
        self.changes = [known[number] for number in sorted(known)]

    def _take_samples(self, client: ControllerClient) -> None:
        begin = time.time() - _SAMPLED_S
        since = max(
            (series[-1][0] for series in self.rates.values()), default=begin
        )
        for rate in client.ports(since):
            self.rates[rate.host].append((rate.at, rate.tx_bps))
        since = max(
            (series[-1][0] for series in self.gpus.values()), default=begin
        )
        for gpu in client.gpus(since):
            if gpu.utilization is not None:
                self.gpus[gpu.gpu].append((gpu.at, gpu.utilization))

    def _take_iterations(self, client: ControllerClient) -> None:
        at_work = [job.id for job in self.jobs if job.state in AT_WORK][
            :_REPORTED_JOBS
        ]
        ended = [
            job for job in self._just_ended() if job not in self._read_to_end
        ]
        for job in at_work + ended[-_REPORTED_JOBS:]:
            if job not in self._next_report:
                reports, after = client.recent_iterations(job, _REPORTS)
            else:
                reports, after = client.iterations(job, self._next_report[job])
            self._next_report[job] = after
            self.iterations[job].extend(reports)
        self._read_to_end.update(ended)
        known = {job.id for job in self.jobs}
        for job in self.iterations.keys() - known:
            del self.iterations[job]
        self._read_to_end &= known

    def _just_ended(self) -> list[str]:
        """Ended jobs that ran within the time of the sample charts."""
        since = time.time() - _SAMPLED_S
        return [
            j.id for j in self.jobs if j.hosts and (j.finished_at or 0) > since
        ]

    def _take_gains(self, client: ControllerClient) -> None:
        """Read the effect of the last change on the jobs whose circuits it moved."""
        found: dict[str, LightMove] = {}
        change = self.view.last_change
        moved_at = (change.finished_at if change else None) or -1.0
        number = change.id if change else 0
        for job in self.jobs:
            began = job.started_at or math.inf
            ended = job.finished_at or math.inf
            if began < moved_at < ended and len(found) < _MOST_GAINS:
                moves = client.job(job.id).light_moves
                found |= [
                    (job.id, m) for m in moves if m.reconfiguration == number
                ]
        self.gains = found

    def _take(self, name: str, client: ControllerClient) -> None:
        match name:
            case "status":
                self.status = client.status()
            case "circuits":
                self.maps = client.circuits()
            case "changes":
                self.changes = client.reconfigurations(last=_CHANGES)
            case "operated":
                self.locks = client.locks()
                self.claims = client.claims()
                self.stopped = client.stop_button()
            case "drift":
                self.drift = client.drift()
            case "light":
                switches = (
                    switch.name
                    for switch in self.lab.optical_switches
                    if switch.driver
                )
                self.light = {name: client.light(name) for name in switches}


def _series(most: int = _SAMPLES) -> defaultdict[str, Any]:
    return defaultdict(lambda: deque(maxlen=most))


@dataclass(frozen=True)
class Past:
    """A period: its jobs and changes, and windows of ``width_s`` of the drawn jobs."""

    since: float
    until: float
    jobs: Sequence[JobInList]
    changes: Sequence[ChangeAnswer]
    width_s: int
    windows: Mapping[str, Sequence[WindowShape]]

    def view(self, lab: Lab, colours: Mapping[str, str]) -> LabView:
        """A view of a lab with these jobs and changes; jobs keep their colours."""
        named = job_colours(colours, [*self.windows])
        return LabView(
            lab,
            self.jobs,
            changes=self.changes,
            colours=named,
        )

    def iteration_s(self, job: str) -> float | None:
        """The mean time of an iteration; ``None`` without reports."""
        counted = [
            (window.iterations, window.iteration_s.mean)
            for window in self.windows.get(job, ())
            if window.iteration_s is not None
        ]
        total = sum(count for count, _ in counted)
        return (
            sum(count * mean for count, mean in counted) / total
            if total
            else None
        )

    def sends_bps(self, job: str) -> float | None:
        """The mean rate that all its hosts sent at; ``None`` without samples."""
        spreads = [window.sent_bps for window in self.windows.get(job, ())]
        means = [spread.mean for spread in spreads if spread is not None]
        return fmean(means) if means else None

    def predicted_s(self, job: str) -> float | None:
        """The mean predicted time of an iteration; ``None`` without predictions."""
        told = [window.predicted_s for window in self.windows.get(job, ())]
        known = [seconds for seconds in told if seconds is not None]
        return fmean(known) if known else None


def look_back(
    client: ControllerClient,
    since: float,
    until: float,
) -> Past:
    """Request a period from the controller."""
    jobs = client.jobs(
        last=_PAST_JOBS,
        since=since,
        until=until,
    )
    drawn = [job.id for job in jobs if job.hosts][-DRAWN:]
    samples = client.samples(
        since,
        until,
        _POINTS,
        drawn,
    )
    changes = client.past_reconfigurations(since, until, last=_PAST_CHANGES)
    windows = {job: samples.jobs.get(job, []) for job in drawn}
    return Past(
        since,
        until,
        jobs,
        changes,
        samples.width_s,
        windows,
    )
