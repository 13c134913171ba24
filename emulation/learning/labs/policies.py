"""A network's policies, as an episode or a lab takes them, without a model's file."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from patchlight.controller.policies.options.card import OptionsCard
from patchlight.controller.policies.options.learned import (
    LearnedElasticity,
    LearnedOrder,
    LearnedPlacement,
    LearnedTopology,
    WeighsPartitions,
)
from patchlight.controller.policies.options.least_delay import LeastDelayPlacement
from patchlight.controller.policies.options.observation import SCHEMA, VERSION, Observation
from patchlight.emulation.learning.labs.network import INPUTS, OptionNetwork, joined


class _Input(NamedTuple):
    name: str


class TorchSession:
    """A network where a policy expects a model."""

    def __init__(self, network: OptionNetwork) -> None:
        self._network = network

    def get_inputs(self) -> list[_Input]:
        """All arrays of an observation."""
        return [_Input(name) for name in INPUTS]

    def run(self, names: Sequence[str], seen: Observation) -> list[np.ndarray[Any, Any]]:
        """The scores of one decision's options."""
        with torch.inference_mode():
            return [self._network(joined([seen])).numpy()]


class Learned(NamedTuple):
    """The policies that a network makes, in the order in which an episode takes them.

    A network that learned no placement has the rule's.
    """

    placement: LearnedPlacement | LeastDelayPlacement
    topology: LearnedTopology | None = None
    order: LearnedOrder | None = None
    elasticity: LearnedElasticity | None = None
    partition: WeighsPartitions | None = None


def policies_of(network: OptionNetwork, kinds: Sequence[str]) -> Learned:
    """The policies that a network makes."""
    card = OptionsCard("training", tuple(kinds), SCHEMA, VERSION, 0, "", {}, "", "")
    session = TorchSession(network)
    return Learned(
        LearnedPlacement(card, session) if "placement" in kinds else rule_of(kinds),
        LearnedTopology(card, session) if "topology" in kinds else None,
        LearnedOrder(card, session) if "order" in kinds else None,
        LearnedElasticity(card, session) if "elasticity" in kinds else None,
        WeighsPartitions(card, session) if "partition" in kinds else None,
    )


def rule_of(kinds: Sequence[str]) -> LeastDelayPlacement:
    """The placement by rule beside which these kinds are learned."""
    return LeastDelayPlacement(circuits="topology" in kinds)
