"""Who is next, where jobs go and which circuits they get, in packets.

*least-delay* with its own order and without, and *regroup* first in, first out. The jobs are
those of ``benchmarks.following_light``, on the emulated OFC 2022 lab, each time with other
policies: the mean completion times that are measured, and those that the simulator predicts. It is
the first ten minutes of the trace, in full the first twenty: ``python -m benchmarks --full
benchmarks.places_and_light``. In the trace of the first seed nobody is predicted to be faster by
who is next; in full there is a second one, the next seed's, where jobs wait longer.
"""

from collections.abc import Sequence
from typing import Any

from benchmarks import figure
from benchmarks.following_light import (
    COMPRESSION,
    SEED,
    SHORT_S,
    TracedJob,
    played,
    simulated_jct_s,
    trace,
)
from patchlight.emulation.simulator.cluster import Policies as QueuePolicies
from patchlight.emulation.simulator.randomlabs import PlayedPolicies
from patchlight.testbed.lab.rules import PolicyChoice
from patchlight.testbed.labfile.reader import load_lab

CHOICES = (
    PlayedPolicies("least-delay", "least-delay", "least-delay"),
    PlayedPolicies("least-delay", "least-delay"),
    PlayedPolicies("regroup", "regroup"),
)
ORDERS = (*CHOICES, PlayedPolicies("regroup", "regroup", "srpt"))
ORDERS_SEED = 1
FULL_S = 1200.0


def predicted_s(
    jobs: Sequence[TracedJob], choices: Sequence[PlayedPolicies]
) -> dict[PlayedPolicies, float]:
    """The mean completion time that the simulator predicts for each, in compressed seconds."""
    lab = load_lab("ofc2022")
    found = {}
    for each in choices:
        placement, topology, order, *_ = each.load()
        found[each] = simulated_jct_s(
            lab, jobs, QueuePolicies(order, placement, topology)
        )
    return found


def run(*, full: bool = False) -> list[dict[str, Any]]:
    """Measured and predicted completion times of each choice."""
    length_s = FULL_S if full else SHORT_S
    traces = ((SEED, CHOICES), *([(ORDERS_SEED, ORDERS)] if full else []))
    return [
        each
        for seed, choices in traces
        for each in compared(length_s, seed, choices)
    ]


def compared(
    length_s: float, seed: int, choices: Sequence[PlayedPolicies]
) -> list[dict[str, Any]]:
    """The same for one trace."""
    jobs = trace(load_lab("ofc2022"), length_s, seed)
    head = f"{len(jobs)} jobs of {length_s / 60:g} minutes in packets"
    figures = []
    for each, predicted in predicted_s(jobs, choices).items():
        choice = PolicyChoice(
            placement=each.placement, topology=each.topology, order=each.order
        )
        jct_s = played(jobs, choice).jct_s
        said = f"{head}, {each.name}: mean JCT, ×{COMPRESSION:g}"
        beside: Any = {
            "peer": "the simulator predicts",
            "peer_value": predicted * COMPRESSION,
        }
        figures.append(figure(said, jct_s * COMPRESSION, "s", **beside))
    return figures
