"""Who is next, where jobs go and which circuits they get, in packets.

*learned-lab* with its own order, *least-delay* and *regroup* first in, first out. The jobs are
those of ``benchmarks.following_light``, on the emulated OFC 2022 lab, each time with other
policies: the mean completion times that are measured, and those that the simulator predicts. It is
the first ten minutes of the trace, in full the first twenty: ``python -m benchmarks --full
benchmarks.places_and_light``.
"""

from typing import Any

from benchmarks import figure
from benchmarks.following_light import COMPRESSION, SHORT_S, played, simulated_jct_s, trace
from patchlight.emulation.simulator.cluster import Policies as QueuePolicies
from patchlight.emulation.simulator.randomlabs.comparison import Policies
from patchlight.testbed.labfile.reader import load_lab
from patchlight.testbed.policies import PolicyChoice

CHOICES = (
    Policies("learned-lab", "learned-lab", "learned-lab"),
    Policies("least-delay", "least-delay"),
    Policies("regroup", "regroup"),
)
FULL_S = 1200.0


def predicted_s(length_s: float) -> dict[Policies, float]:
    """The mean completion time that the simulator predicts for each, in compressed seconds."""
    lab = load_lab("ofc2022")
    jobs = trace(lab, length_s)
    found = {}
    for each in CHOICES:
        placement, topology, order, *_ = each.load()
        found[each] = simulated_jct_s(lab, jobs, QueuePolicies(order, placement, topology))
    return found


def run(*, full: bool = False) -> list[dict[str, Any]]:
    """Measured and predicted completion times of each choice."""
    length_s = FULL_S if full else SHORT_S
    jobs = trace(load_lab("ofc2022"), length_s)
    head = f"{len(jobs)} jobs of {length_s / 60:g} minutes in packets"
    figures = []
    for each, predicted in predicted_s(length_s).items():
        choice = PolicyChoice(placement=each.placement, topology=each.topology, order=each.order)
        jct_s = played(jobs, choice).jct_s
        said = f"{head}, {each.name}: mean JCT, ×{COMPRESSION:g}"
        beside: Any = {"peer": "the simulator predicts", "peer_value": predicted * COMPRESSION}
        figures.append(figure(said, jct_s * COMPRESSION, "s", **beside))
    return figures
