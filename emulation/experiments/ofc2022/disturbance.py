"""Whether the machine was quiet enough for the figures to be believed.

All that the experiment measures is real time: where workers, switches and emulated GPUs wait for
a processor, jobs that should run in step drift apart, and case (b) comes out lower.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from patchlight.emulation.experiments.ofc2022.measurements import CaseRun
from patchlight.emulation.machine import CpuTicks

MOST_BUSY_BEFORE = 0.6
MOST_STEAL = 0.02
MOST_COMPUTE_STRETCH = 0.05


@dataclass(frozen=True, slots=True)
class Disturbance:
    """What others took from the experiment, as shares.

    ``busy_before`` is the part of processor time that was used in the second before it began;
    ``steal`` the part that the host of a virtual machine gave to others meanwhile;
    ``compute_stretch`` how much longer the compute phases of the job that was hit most took than
    they were given. ``too_busy`` says in words what is over its limit: nothing, if it was quiet.
    """

    busy_before: float
    steal: float
    compute_stretch: float
    too_busy: list[str]

    @classmethod
    def of(
        cls, busy_before: float, before: CpuTicks, after: CpuTicks, runs: Sequence[CaseRun]
    ) -> "Disturbance":
        """From the processors' ticks before and after, and the runs."""
        steal = (after.steal - before.steal) / max(1, after.total - before.total)
        stretch = max((_stretch(run) for run in runs), default=0.0)
        limits = (
            (busy_before, MOST_BUSY_BEFORE, "{:.0%} of its processor time was used before"),
            (steal, MOST_STEAL, "its host took {:.0%} of its processor time away"),
            (stretch, MOST_COMPUTE_STRETCH, "compute phases took {:.0%} longer than given"),
        )
        words = [text.format(found) for found, most, text in limits if found > most]
        return cls(busy_before, steal, stretch, words)


def _stretch(run: CaseRun) -> float:
    """How much longer than given the compute phases of a run's jobs were, the most of them."""
    return max(
        fmean(each.compute_s for each in job.iterations)
        / fmean(job.given_compute_s[each.rank] for each in job.iterations)
        - 1
        for job in run.jobs
    )
