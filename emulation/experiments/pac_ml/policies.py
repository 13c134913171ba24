"""The policies of the experiment by name; each episode gets a fresh one, fixed by its seed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

from patchlight.controller.policies.card import Card
from patchlight.controller.policies.contract import PartitionPolicy
from patchlight.controller.policies.guard import Fault, GuardedPartition
from patchlight.controller.policies.partition import Constant, Sufficient
from patchlight.controller.policies.registry import Recipe, find, policies
from patchlight.emulation.simulator.ramp.ramp import PAC_ML_SHAPE, RampShape
from patchlight.emulation.simulator.ramp.rollout import LookAhead, RollOut
from patchlight.emulation.simulator.ramp.scenario import Scenario
from patchlight.testbed.errors import BadInput

CONSTANTS = (1, 2, 4, 6, 8, 16)
ROLL_OUT = "roll-out"
_CONSTANT: Mapping[str, int] = {f"constant-{degree}": degree for degree in CONSTANTS}
_PLAIN = ("maximum", "minimum", "sufficient", "random")

NAMES = (*_CONSTANT, *_PLAIN, ROLL_OUT)
"""Those that the experiment runs by itself, besides the learned ones that are shipped."""


class Faults:
    """Counts what a policy did wrong, and keeps the first in words."""

    def __init__(self) -> None:
        self.count, self.first = 0, ""

    def __call__(self, fault: Fault) -> None:
        """Note one."""
        self.count += 1
        self.first = self.first or str(fault)


def check_names(names: Iterable[str], ramp: RampShape = PAC_ML_SHAPE) -> list[str]:
    """The names, each once; ``BadInput`` for what is no partition policy, or lacks something.

    Also for a learned one that was trained for another cluster than ``ramp``.
    """
    found = list(dict.fromkeys(names))
    for name in found:
        if name not in NAMES:
            recipe = find(name, "partition")
            lacking = [each for each in recipe.lacks if each not in ("scenario", "seed")]
            if lacking:
                raise BadInput(
                    f"policy {name!r} has to be told {lacking[0]!r}",
                    hint=f"write it {name}:{lacking[0]}=VALUE",
                )
            card = _card(recipe)
            shape = (ramp.groups, ramp.racks, ramp.servers)
            if card is not None and card.ramp != shape:
                there, here = ("×".join(map(str, each)) for each in (card.ramp, shape))
                raise BadInput(
                    f"policy {name!r} was trained for a RAMP of {there} servers: this "
                    f"experiment's is one of {here}"
                )
    return found


def shipped() -> list[str]:
    """The learned policies that come with Patchlight."""
    return [each.name for each in policies("partition") if each.origin == "learned, shipped"]


def made_for(name: str, rule: str) -> bool:
    """Whether a policy can run with a placement rule: a learned one only with its own."""
    card = None if name in NAMES else _card(find(name, "partition"))
    return card is None or card.placement_rule == rule


def _card(recipe: Recipe) -> Card | None:
    return getattr(recipe.factory, "card", None)


def make_policy(
    name: str, scenario: Scenario, seed: int, look: LookAhead | None, faults: Faults
) -> PartitionPolicy:
    """The policy of this name for one episode; ``look`` is for the roll-out.

    One that is not built in is guarded: ``faults`` hears what it does wrong.
    """
    if name == ROLL_OUT:
        return RollOut(scenario, seed, look)
    if name in _CONSTANT:
        return Constant(_CONSTANT[name])
    recipe = find(name, "partition")
    made = cast(PartitionPolicy, recipe.make(scenario=scenario, seed=seed))
    if recipe.origin == "built in":
        return made
    return GuardedPartition(made, Sufficient(), name, faults)
