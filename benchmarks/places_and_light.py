"""Where jobs go and which circuits they get: *learned-lab*, *least-delay*, *regroup*, in packets.

The jobs are those of ``benchmarks.following_light``, on the emulated OFC 2022 lab, each time with
other policies: the mean completion times that are measured, and those that the simulator predicts.
It is the first ten minutes of the trace, in full the first twenty: ``python -m benchmarks --full
benchmarks.places_and_light``.
"""

from typing import Any

from benchmarks import figure
from benchmarks.following_light import COMPRESSION, SHORT_S, played, simulated_jct_s, trace
from patchlight.controller.policies.order import Fifo
from patchlight.controller.policies.registry import load_policy
from patchlight.emulation.simulator.cluster import Policies
from patchlight.testbed.labfile.reader import load_lab
from patchlight.testbed.policies import PolicyChoice

PAIRS = (("learned-lab", "learned-lab"), ("least-delay", "least-delay"), ("regroup", "regroup"))
FULL_S = 1200.0


def predicted_s(length_s: float) -> dict[str, float]:
    """The mean completion time that the simulator predicts for each pair, in compressed seconds."""
    lab = load_lab("ofc2022")
    jobs = trace(lab, length_s)
    found = {}
    for placement, topology in PAIRS:
        loaded: Any = load_policy(placement, "placement"), load_policy(topology, "topology")
        found[f"{placement}+{topology}"] = simulated_jct_s(lab, jobs, Policies(Fifo(), *loaded))
    return found


def run(*, full: bool = False) -> list[dict[str, Any]]:
    """Measured and predicted completion times of each pair."""
    length_s = FULL_S if full else SHORT_S
    jobs = trace(load_lab("ofc2022"), length_s)
    head = f"{len(jobs)} jobs of {length_s / 60:g} minutes in packets"
    figures = []
    for (placement, topology), (name, predicted) in zip(
        PAIRS, predicted_s(length_s).items(), strict=True
    ):
        jct_s = played(jobs, PolicyChoice(placement=placement, topology=topology)).jct_s
        said = f"{head}, {name}: mean JCT, ×{COMPRESSION:g}"
        beside: Any = {"peer": "the simulator predicts", "peer_value": predicted * COMPRESSION}
        figures.append(figure(said, jct_s * COMPRESSION, "s", **beside))
    return figures
