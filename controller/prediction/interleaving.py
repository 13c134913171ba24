"""Lets jobs that share links send in turns: each sends while the others compute.

The idea of CASSINI (Rajasekaran, Ghobadi and Akella, NSDI 2024). The iterations of jobs that share
links are laid on one circle, which each job passes a whole number of times, and turned against each
other until no link is overbooked. A *slot* is where on its part of the circle a job begins to send.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence

from patchlight.controller.prediction.completion import (
    PhasedJob,
    Slot,
    set_paces_of,
)
from patchlight.controller.prediction.network import fair_rates

# A circle has so many steps, and is at most so many iterations of the slowest job long.
_STEPS = 240
_LONGEST = 4
_MOST_JOBS = 16  # Larger groups take too long.
# Its part that is left over, so that a job that computes longer than expected keeps its slot.
_SPARE = 0.02
_GAINS = 0.01  # Less is not worth a change.
# A job may be late by this part of its period, but by no more than leaves the others their turns.
_LATE = 0.1


def set_slots_of(
    group: Sequence[PhasedJob], capacity_bps: Mapping[Hashable, float]
) -> None:
    """Find the paces of one of the ``groups``, and the slots that make them better, if any do."""
    _set(group, [None] * len(group), capacity_bps)
    if not 2 <= len(group) <= _MOST_JOBS or not all(
        job.is_known and job.bits for job in group
    ):
        return
    sends_s = [
        job.bits / rate
        for job in group
        for rate in fair_rates([job.demand], capacity_bps)
    ]
    alone_s = [
        job.compute_s + sends
        for job, sends in zip(group, sends_s, strict=True)
    ]

    def stretch() -> float:
        """How much longer an iteration is than alone, in the mean."""
        return sum(
            job.pace_s / a for job, a in zip(group, alone_s, strict=True)
        ) / len(group)

    best = stretch()
    kept = [job.slot for job in group]
    if best > 1 + _SPARE + _GAINS:
        for slots in _proposed(
            group,
            capacity_bps,
            sends_s,
            alone_s,
        ):
            _set(group, slots, capacity_bps)
            if (found := stretch()) < best - _GAINS:
                best = found
                kept = slots
        _set(group, kept, capacity_bps)


def _set(
    group: Sequence[PhasedJob],
    slots: Sequence[Slot | None],
    capacity_bps: Mapping[Hashable, float],
) -> None:
    for job, slot in zip(group, slots, strict=True):
        job.slot = slot
    set_paces_of(group, capacity_bps)


def _proposed(
    group: Sequence[PhasedJob],
    capacity_bps: Mapping[Hashable, float],
    sends_s: Sequence[float],
    alone_s: Sequence[float],
) -> Iterator[list[Slot | None]]:
    """Slots on circles of several lengths."""
    # The part of a link that a job takes while it sends alone.
    parts = [
        {
            link: edges * job.bits / sends / capacity_bps[link]
            for link, edges in job.demand.items()
        }
        for job, sends in zip(group, sends_s, strict=True)
    ]
    for length in range(1, _LONGEST + 1):
        circle_s = length * max(alone_s)
        rounds = [int(circle_s / each + 1e-9) for each in alone_s]
        busy_s = dict.fromkeys(capacity_bps, 0.0)
        for number, part in enumerate(parts):
            for link, share in part.items():
                busy_s[link] += rounds[number] * sends_s[number] * share
        circle_s = (1 + _SPARE) * max(circle_s, *busy_s.values())
        crowded = [
            link for link in busy_s if sum(link in part for part in parts) > 1
        ]
        busiest_s = max(busy_s[link] for link in crowded)
        shares = [[part.get(link, 0.0) for link in crowded] for part in parts]
        # With equal gaps between them.
        offsets = _turned(
            [sends / busiest_s for sends in sends_s], rounds, shares
        )
        gap_s = (circle_s - busiest_s) / sum(rounds)
        yield [
            Slot(
                circle_s / times,
                offset * circle_s,
                min(gap_s, _LATE * circle_s / times),
            )
            for times, offset in zip(rounds, offsets, strict=True)
        ]


def _turned(
    sends: Sequence[float],
    rounds: Sequence[int],
    parts: Sequence[Sequence[float]],
) -> list[float]:
    """Where on a circle of length 1 each job begins to send, one job after the other, so that it
    overbooks links least."""
    import numpy as np  # Not above: a controller starts without NumPy.

    load = np.zeros((len(parts[0]), _STEPS))
    steps = np.arange(_STEPS)
    found = []
    for part, times, share in zip(
        sends,
        rounds,
        parts,
        strict=True,
    ):
        # How much of each step the job sends, turned by as many steps as are different.
        since = steps / _STEPS % (1 / times) * _STEPS
        sending = np.clip(part * _STEPS - since, 0.0, 1.0)
        turned = np.array(
            [np.roll(sending, turn) for turn in range(max(1, _STEPS // times))]
        )
        loads = load + np.array(share)[:, None] * turned[:, None, :]
        best = int(
            np.argmin(np.clip(loads - 1, 0.0, None).sum((1, 2)).round(9))
        )
        load = loads[best]
        found.append(best / _STEPS)
    return found
