"""The tasks of the experiment, and its policies by name; a result depends on its task alone."""

import math
import time
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import NamedTuple, cast

import numpy as np

from patchlight.controller.policies.contract import PartitionPolicy
from patchlight.controller.policies.degrees import Constant, Sufficient
from patchlight.controller.policies.files import OptionsCard
from patchlight.controller.policies.guard import Fault, GuardedPartition
from patchlight.controller.policies.learned import Card
from patchlight.controller.policies.registry import find, policies
from patchlight.emulation.experiments.pac_ml import CONSTANTS
from patchlight.emulation.experiments.pac_ml.variation import Variation
from patchlight.emulation.simulator.executors import policy_seed
from patchlight.emulation.simulator.ramp.bounds import (
    hindsight_bound,
    online_bound,
)
from patchlight.emulation.simulator.ramp.lossnetwork import run_episode
from patchlight.emulation.simulator.ramp.ramp import PAC_ML_SHAPE, RampShape
from patchlight.emulation.simulator.ramp.rollout import (
    LookAhead,
    RollOut,
    candidates,
    tuned,
)
from patchlight.emulation.simulator.ramp.scenario import (
    EpisodeResult,
    Scenario,
    paired_difference,
)
from patchlight.emulation.simulator.ramp.workloads import Workloads
from patchlight.testbed.errors import BadInput
from patchlight.testbed.graphs import ComputationGraph

ROLL_OUT = "roll-out"
_PLAIN = ("maximum", "minimum", "sufficient", "random")
_TRIALS = 4  # episodes in each round
# So that no episode is drawn from the seeds that trials are drawn from.
_TAG = 0x54524C53

NAMES = (*CONSTANTS, *_PLAIN, ROLL_OUT)
"""The experiment's own policies, beside the shipped learned ones."""


class PolicyFaults:
    """Counts what a policy did wrong, and keeps the first message."""

    def __init__(self) -> None:
        self.count = 0
        self.first = ""

    def __call__(self, fault: Fault) -> None:
        """Note one."""
        self.count += 1
        self.first = self.first or str(fault)


def check_names(
    names: Iterable[str], ramp: RampShape = PAC_ML_SHAPE
) -> list[str]:
    """The names, each once; ``BadInput`` for what cannot run on ``ramp``, or lacks something."""
    found = list(dict.fromkeys(names))
    for name in found:
        if name not in NAMES:
            recipe = find(name, "partition")
            lacking = [
                each
                for each in recipe.lacks
                if each not in ("scenario", "seed")
            ]
            if lacking:
                raise BadInput(
                    f"policy {name!r} needs the parameter {lacking[0]!r}",
                    hint=f"write {name}:{lacking[0]}=VALUE",
                )
            if isinstance(getattr(recipe.factory, "card", None), OptionsCard):
                raise BadInput(
                    f"policy {name!r} decides in labs, and this experiment has none",
                    hint=f"use it in a lab: patchlight simulate --lab LAB --partition {name}",
                )
            card = card_of(name)
            if card is not None and card.ramp != astuple(ramp):
                there, here = (
                    "×".join(map(str, each))
                    for each in (card.ramp, astuple(ramp))
                )
                raise BadInput(
                    f"policy {name!r} was trained for a RAMP of {there} servers: this "
                    f"experiment's is one of {here}"
                )
    return found


def shipped(ramp: RampShape = PAC_ML_SHAPE) -> list[str]:
    """The learned policies for such a RAMP that come with Patchlight."""
    named = [
        each.name
        for each in policies("partition")
        if each.origin == "learned, built in"
    ]
    cards = {name: card_of(name) for name in named}
    return [
        name
        for name, card in cards.items()
        if card and card.ramp == astuple(ramp)
    ]


def is_users(name: str) -> bool:
    """Whether a policy is the user's program, which could draw the episodes of known seeds."""
    return name not in NAMES and find(name, "partition").origin.startswith(
        ("file", "installed")
    )


def made_for(name: str, rule: str) -> bool:
    """Whether a policy can run with a placement rule: a learned one only with its own."""
    card = card_of(name)
    return card is None or card.placement_rule == rule


def card_of(name: str) -> Card | None:
    """The card of a learned policy for a RAMP; ``None`` for other policies."""
    card = (
        None
        if name in NAMES
        else getattr(find(name, "partition").factory, "card", None)
    )
    return card if isinstance(card, Card) else None


def make_policy(
    name: str,
    scenario: Scenario,
    seed: int,
    look: LookAhead | None,
    faults: PolicyFaults,
) -> PartitionPolicy:
    """The policy of this name for one episode; ``look`` is for the roll-out.

    One that is not built in is guarded; ``faults`` hears what it does wrong. Policies get neither
    the episode's seed nor the scenario that draws it: with both, they had every job to come.
    """
    scenario = scenario.for_policies()
    seed = policy_seed(seed)
    if name == ROLL_OUT:
        return RollOut(scenario, seed, look)
    if name in CONSTANTS:
        return Constant(CONSTANTS[name])
    recipe = find(name, "partition")
    made = cast(
        PartitionPolicy,
        recipe.make(
            scenario=scenario,
            seed=seed,
        ),
    )
    if recipe.origin == "built in":
        return made
    # No time limit: a result must not depend on how busy the machine is.
    return GuardedPartition(
        made,
        Sufficient(),
        name,
        faults,
        math.inf,
    )


def yields(name: str) -> bool:
    """Whether a policy leaves the decision to a constant degree where that blocks less."""
    return (card := card_of(name)) is not None and card.most_load < math.inf


def decider(
    name: str,
    scenario: Scenario,
    rounds: int,
) -> str:
    """What decides for a policy under a scenario's laws: itself, or a constant degree that does not
    block more.

    All play the same drawn episodes, none of which is of the scenario's own stream; after each
    round, those that block clearly more than the best drop out.
    """
    own = scenario.for_policies()
    faults = PolicyFaults()
    seeds = (
        np.random.SeedSequence(_TAG).generate_state(_TRIALS * rounds).tolist()
    )
    rates: dict[str, list[float]] = {each: [] for each in (*CONSTANTS, name)}
    for number, seed in enumerate(seeds, start=1):
        for each, found in rates.items():
            policy = make_policy(
                each,
                own,
                seed,
                None,
                faults,
            )
            found.append(run_episode(own, policy, seed).blocking_rate())
        if number % _TRIALS == 0:
            best = min(rates, key=lambda each: sum(rates[each]))
            more = {
                each: paired_difference(rates[each], rates[best])
                for each in rates
            }
            # Written so that what is not a number, in an episode without jobs, drops nothing out.
            rates = {
                k: v
                for k, v in rates.items()
                if not more[k].mean > 2 * more[k].half_width
            }
            if len(rates) == 1:
                return best
    constant = min(
        (each for each in rates if each != name),
        key=lambda each: sum(rates[each]),
    )
    less = paired_difference(rates[constant], rates.get(name, rates[constant]))
    return name if less.mean > less.half_width else constant


class TableCell(NamedTuple):
    """A placement rule and a law: the column of the table that an episode counts for."""

    rule: str
    law: str


class EpisodeTask(NamedTuple):
    """One episode to run; ``decides`` is the policy that does so in place of ``policy``."""

    cell: TableCell
    policy: str
    seed: int
    look: LookAhead | None = None
    decides: str | None = None


class TuningTask(NamedTuple):
    """One choice of how to look ahead to make."""

    cell: TableCell
    futures: int
    arrivals: int


class TrialTask(NamedTuple):
    """One choice of what decides for a policy to make, in at most so many rounds of trials."""

    cell: TableCell
    policy: str
    rounds: int


class BoundTask(NamedTuple):
    """One bound of the blocking rate to compute, with all arrivals known or without foresight."""

    cell: TableCell
    seed: int
    foresight: bool


class EpisodeOutcome(NamedTuple):
    """An episode's result, the processor's time it took, what the policy did wrong, latencies."""

    result: EpisodeResult
    cpu_s: float
    faults: int = 0
    first_fault: str = ""
    latencies_s: Sequence[float] = ()


Task = EpisodeTask | TuningTask | TrialTask | BoundTask
Done = EpisodeOutcome | LookAhead | str | float


def cost_s(task: Task) -> float:
    """Roughly how long one core works on a task with the paper's 1,001 arrivals.

    Measured on an AMD EPYC in 2026, for an estimate before anything has run.
    """
    match task:
        case TuningTask(_, futures, _):
            return 0.8 + 0.33 * futures
        case TrialTask():
            return 6.0
        case EpisodeTask(look=LookAhead(futures=futures)):
            return 0.45 * futures
        case EpisodeTask(policy=name):
            return 0.05 if name in NAMES else 1.0
        case BoundTask(foresight=foresight):
            return 0.1 if foresight else 5.0


@dataclass
class TaskRunner:
    """The models, horizon and variation that all episodes share; keeps what was computed."""

    graphs: Sequence[ComputationGraph]
    horizon_s: float
    variation: Variation = field(default_factory=Variation)
    salt: int = 0
    _workloads: Workloads | None = None
    _scenarios: dict[TableCell, Scenario] = field(default_factory=dict)

    def scenario(self, cell: TableCell) -> Scenario:
        """The scenario of a rule and a law."""
        if self._workloads is None:
            self._workloads = self.variation.workloads(self.graphs)
        if cell not in self._scenarios:
            varied = replace(self.variation, horizon_s=self.horizon_s)
            plain = varied.scenario(self._workloads, cell.law, cell.rule)
            self._scenarios[cell] = plain.salted(self.salt)
        return self._scenarios[cell]

    def run(self, task: Task) -> Done:
        """Run one task."""
        scenario = self.scenario(task.cell)
        match task:
            case EpisodeTask(_, name, seed, look, decides):
                faults = PolicyFaults()
                policy = make_policy(
                    decides or name,
                    scenario,
                    seed,
                    look,
                    faults,
                )
                started = time.process_time()
                latencies_s = array("d")
                result = run_episode(
                    scenario,
                    policy,
                    seed,
                    latencies_s,
                )
                cpu_s = time.process_time() - started
                return EpisodeOutcome(
                    result,
                    cpu_s,
                    faults.count,
                    faults.first,
                    latencies_s,
                )
            case TuningTask(_, futures, arrivals):
                return tuned(scenario, candidates(scenario, futures, arrivals))
            case TrialTask(_, name, rounds):
                return decider(name, scenario, rounds)
            case BoundTask(_, seed, foresight=True):
                return hindsight_bound(scenario, seed).blocking_rate
            case BoundTask(_, seed):
                return online_bound(scenario, seed)
