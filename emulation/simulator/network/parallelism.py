"""Ways to split a model over nodes, as rounds: data, tensor, pipeline and expert parallelism.

Ranks count as in Megatron-LM (Narayanan et al., SC 2021): tensor parallelism first, then data, then
pipeline stages, so that those who talk most are next to each other.
"""

from dataclasses import dataclass

import numpy as np

from patchlight.emulation.simulator.network.collectives import (
    Round,
    all_to_all,
    collective,
    side_by_side,
)
from patchlight.emulation.simulator.network.sharing import Ints
from patchlight.testbed.errors import BadInput

# Shoeybi et al., "Megatron-LM", 2019: two in the forward pass of a layer, two in the backward pass.
_ALL_REDUCES_OF_A_LAYER = 4


@dataclass(frozen=True)
class Split:
    """A model over ``data`` × ``tensor`` × ``pipeline`` nodes.

    ``gradient_bytes`` are those of the whole model, ``activation_bytes`` those between two of its
    ``layers`` for one of the ``microbatches`` of an iteration. ``BadInput`` for a split of
    nonsense.
    """

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    gradient_bytes: float = 0.0
    activation_bytes: float = 0.0
    layers: int = 1
    microbatches: int = 1

    def __post_init__(self) -> None:
        counts = self.data, self.tensor, self.pipeline, self.microbatches
        if min(counts) < 1 or self.layers < 1 or self.layers % self.pipeline:
            raise BadInput(
                f"a model of {self.layers} layers cannot be split {self.data} × {self.tensor} × "
                f"{self.pipeline} (data, tensor, pipeline), {self.microbatches} microbatches: "
                "expected 1 or more of each, and stages of equally many layers"
            )

    @property
    def nodes(self) -> int:
        """How many it takes."""
        return self.data * self.tensor * self.pipeline

    def rounds(self) -> list[Round]:
        """What an iteration sends: all-reduces of layers, between stages, of the gradient."""
        found: list[Round] = []
        ranks = np.arange(self.nodes).reshape(self.pipeline, self.data, self.tensor)
        repeats = _ALL_REDUCES_OF_A_LAYER * self.layers // self.pipeline * self.microbatches
        inside = collective("ring", self.tensor, self.activation_bytes)
        found += side_by_side(
            [_repeated(e, repeats) for e in inside], ranks.reshape(-1, self.tensor)
        )
        if self.pipeline > 1 and self.activation_bytes:
            # Each node of a stage hands its part on.
            bits = 8 * self.activation_bytes / self.tensor * self.microbatches
            earlier, later = ranks[:-1].ravel(), ranks[1:].ravel()
            found.append(Round(earlier, later, bits, self.microbatches))
            found.append(Round(later, earlier, bits, self.microbatches))
        share = self.gradient_bytes / (self.tensor * self.pipeline)
        across = ranks.transpose(0, 2, 1).reshape(-1, self.data)
        return [*found, *side_by_side(collective("ring", self.data, share), across)]


def _repeated(each: Round, times: int) -> Round:
    return each._replace(
        bits=each.bits * times,
        messages=each.messages * times,
        reduced_bits=each.reduced_bits * times,
    )


def expert_exchange(members: int, experts: int, nbytes: float) -> list[Round]:
    """All-to-alls of ``nbytes`` of each member, in groups of as many members as there are experts.

    ``BadInput`` if the members cannot be split into such groups.
    """
    if experts < 1 or members % experts:
        raise BadInput(
            f"{members} nodes cannot be split into groups of {experts} experts: expected a "
            "divisor of their number"
        )
    groups: Ints = np.arange(members).reshape(-1, experts)
    return side_by_side(all_to_all(experts, nbytes), groups)
