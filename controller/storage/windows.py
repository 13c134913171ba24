"""What was measured in a short window of time, as one row for each job and one for the lab."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, NamedTuple

Sample = tuple[float, float]
"""When (Unix time), and the value."""


class Spread(NamedTuple):
    """The mean of something, and between what it was."""

    mean: float
    least: float
    most: float


class Window(NamedTuple):
    """From ``at`` (Unix time) on, for as long as windows of its kind are.

    Of a job: the mean busy share of its ``gpus``, what its hosts send in all (bit/s of the lab),
    and what its ``iterations`` took; ``predicted_s`` is what one should at its end. With an empty
    ``job`` it is the lab's: of any GPU and of any host, between the lowest and the highest.
    """

    at: int
    job: str
    gpus: int
    busy: Spread | None = None
    sent_bps: Spread | None = None
    iterations: int = 0
    iteration_s: Spread | None = None
    predicted_s: float | None = None

    @property
    def as_json(self) -> dict[str, Any]:
        """As the API gives it, without the job's name."""
        row = self._asdict() | {
            name: None if spread is None else spread._asdict()
            for name, spread in (
                ("busy", self.busy),
                ("sent_bps", self.sent_bps),
                ("iteration_s", self.iteration_s),
            )
        }
        del row["job"]
        return row


@dataclass
class Iterations:
    """What iterations took that were told of since the last window."""

    hosts: Sequence[tuple[str, str]]
    count: int = 0
    sum_s: float = 0.0
    least_s: float = field(default=float("inf"))
    most_s: float = 0.0

    def add(self, seconds: float) -> None:
        """One more."""
        self.count += 1
        self.sum_s += seconds
        self.least_s, self.most_s = min(self.least_s, seconds), max(self.most_s, seconds)

    @property
    def spread(self) -> Spread | None:
        """What one of them took; ``None`` if there was none."""
        if not self.count:
            return None
        return Spread(self.sum_s / self.count, self.least_s, self.most_s)


class JobThen(NamedTuple):
    """A job that ran in a window: its hosts, each with its GPU (or ``""``), and since when."""

    iterations: Iterations
    since: float
    until: float
    predicted_s: float | None


def lab_window(
    at: int, busy: Mapping[str, Sequence[Sample]], sent: Mapping[str, Sequence[Sample]]
) -> Window:
    """Of all GPUs and all hosts, by name."""
    return Window(at, "", len(busy), _of_any(busy.values()), _of_any(sent.values()))


def job_window(
    at: int,
    job: str,
    then: JobThen,
    busy: Mapping[str, Sequence[Sample]],
    sent: Mapping[str, Sequence[Sample]],
) -> Window:
    """Of one job, out of the samples of all GPUs and hosts."""

    def its(all_samples: Mapping[str, Sequence[Sample]], name: str) -> list[Sample]:
        return [s for s in all_samples.get(name, ()) if then.since <= s[0] <= then.until]

    hosts = then.iterations.hosts
    gpus = [gpu for _, gpu in hosts if gpu]
    share = summed([its(busy, gpu) for gpu in gpus])
    return Window(
        at,
        job,
        len(gpus),
        None if share is None else Spread(*(value / len(gpus) for value in share)),
        summed([its(sent, host) for host, _ in hosts]),
        then.iterations.count,
        then.iterations.spread,
        then.predicted_s,
    )


def summed(series: Iterable[Sequence[Sample]]) -> Spread | None:
    """The sum of several series, in the mean and as it went; ``None`` where nothing was sampled.

    Between two samples a series is as at the first of them, before its first as at that.
    """
    told = [samples for samples in series if samples]
    if not told:
        return None
    now = [samples[0][1] for samples in told]
    total = least = most = sum(now)
    last_at: float | None = None
    for at, number, value in sorted((at, n, v) for n, s in enumerate(told) for at, v in s):
        # What was sampled at one time changes the sum once.
        if last_at is not None and at > last_at:
            least, most = min(least, total), max(most, total)
        last_at, total = at, total + value - now[number]
        now[number] = value
    least, most = min(least, total), max(most, total)
    mean = sum(fmean(value for _, value in samples) for samples in told)
    return Spread(mean, min(least, mean), max(most, mean))


def _of_any(series: Iterable[Sequence[Sample]]) -> Spread | None:
    values = [value for samples in series for _, value in samples]
    return Spread(fmean(values), min(values), max(values)) if values else None
