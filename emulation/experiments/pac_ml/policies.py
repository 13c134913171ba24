"""The policies of the experiment by name; each episode gets a fresh one, fixed by its seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from emulation.flow.degrees import RandomDegree, constant, maximum, minimum, sufficient
from emulation.flow.lossnetwork import DegreePolicy
from emulation.flow.rollout import LookAhead, RollOut
from emulation.flow.scenario import Scenario
from testbed.errors import BadInput
from testbed.mistakes import nearest

CONSTANTS = (1, 2, 4, 6, 8, 16)
ROLL_OUT = "roll-out"

Make = Callable[[Scenario, int], DegreePolicy]
"""Makes the policy for an episode of this scenario with this seed."""


def _plain(policy: DegreePolicy, scenario: Scenario, seed: int) -> DegreePolicy:
    return policy


def _constant(degree: int, scenario: Scenario, seed: int) -> DegreePolicy:
    return constant(degree)


def _random(scenario: Scenario, seed: int) -> DegreePolicy:
    return RandomDegree(seed)


POLICIES: Mapping[str, Make] = {
    **{f"constant-{degree}": partial(_constant, degree) for degree in CONSTANTS},
    "maximum": partial(_plain, maximum),
    "minimum": partial(_plain, minimum),
    "sufficient": partial(_plain, sufficient),
    "random": _random,
}
"""Those that need nothing but their name; ``ROLL_OUT`` also needs to know how to look ahead."""

NAMES = (*POLICIES, ROLL_OUT)
ABOUT: Mapping[str, str] = {
    "maximum": "the largest legal degree (SiP-ML, the paper's Para_max)",
    "minimum": "the smallest legal degree of at least 1/β (the paper's Para_min)",
    "sufficient": "the smallest legal degree above 1/β and of at least 2",
    "random": "any legal degree but 0",
    ROLL_OUT: "looks ahead in futures drawn from the law, which it knows",
}


def check_names(names: list[str]) -> list[str]:
    """The names, each once; ``BadInput`` for one that no policy has."""
    for name in names:
        if name not in NAMES:
            hint = nearest(name, NAMES, "the policies are")
            raise BadInput(f"no policy {name!r} in this experiment: {hint}")
    return list(dict.fromkeys(names))


def make_policy(name: str, scenario: Scenario, seed: int, look: LookAhead | None) -> DegreePolicy:
    """The policy of this name for one episode; ``look`` is for the roll-out."""
    if name == ROLL_OUT:
        return RollOut(scenario, seed, look)
    return POLICIES[name](scenario, seed)
