"""What a speedup is made of: the same two networks with one thing after the other put in."""

from typing import NamedTuple

from patchlight.emulation.experiments.oddl.conditions import Conditions, Scene

COMPARED = {
    "fat_tree": ("fat_tree", 1.0),
    "fat_tree_2_1": ("fat_tree", 2.0),
    "sip_ring": ("sip_ring", 1.0),
    "ideal": ("ideal", 1.0),
}
"""What ODDL is compared with: the network and its taper."""

HEADLINE = "compute"
"""The step whose speedup is given for the whole: everything but overlap is in it."""


class Step(NamedTuple):
    """What is put in, the speedup with it, by what it changed the one before; ODDL's iteration."""

    step: str
    speedup: float
    factor: float
    oddl_s: float


def decomposed(scene: Scene, compared: str) -> list[Step]:
    """The speedup step by step: the factors' product is the last one's.

    It begins with a job alone on the first nodes, whose communication is all that takes time, on
    paths that all packets are spread over. Other orders of the steps give other factors.
    """
    kind, taper = COMPARED[compared]
    now = Conditions()
    steps = [("bandwidth", now)]
    if taper > 1:
        steps.append(("oversubscription", now := now._replace(taper=taper)))
    steps.append(("placement", now := now._replace(placed=True)))
    if kind == "fat_tree":
        steps.append(("collisions", now := now._replace(ecmp=True)))
    steps.append(("latency", now := now._replace(latency=True)))
    steps.append(("neighbours", now := now._replace(beside=True)))
    steps.append(("compute", now := now._replace(computes=True)))
    steps.append(("overlap", now._replace(overlapped=True)))
    found: list[Step] = []
    for step, conditions in steps:
        other_s, oddl_s = (scene.iteration_s(each, conditions) for each in (kind, "oddl"))
        before = found[-1].speedup if found else 1.0
        found.append(Step(step, other_s / oddl_s, other_s / oddl_s / before, oddl_s))
    return found
