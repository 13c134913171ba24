"""The models that are trained: how long a node computes, and what it sends in an iteration."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

from patchlight.emulation.simulator.network import Round, collective
from patchlight.emulation.simulator.network.parallelism import expert_exchange
from patchlight.testbed.errors import BadInput
from patchlight.testbed.graphs import builtin_graph
from patchlight.testbed.io.issues import nearest

MIXTURE = "mixture-of-experts"
MODELS = ("vgg19", "resnet50", "bert-large", "gpt2", MIXTURE)
# 32 images on each GPU are usual in large jobs (Goyal et al., "Accurate, Large Minibatch SGD",
# 2017); the graphs have 128. The others keep the batch of their graph.
_BATCHES: Mapping[str, int] = {"vgg19": 32, "resnet50": 32}
# One expert on each node, as in GShard (Lepikhin et al., 2021); every second of twelve layers.
_EXPERTS, _LAYERS, _WIDTH, _TOKENS, _NUMBER_BYTES = 64, 6, 768, 1024, 2


class Workload(NamedTuple):
    """A model: seconds that a node computes, the part of them in which gradients come, and bytes.

    ``tokens_bytes`` is what a node gives to experts of others in one pass of one layer.
    """

    compute_s: float
    backward: float
    gradient_bytes: float
    tokens_bytes: float = 0.0

    def rounds(self, members: int) -> list[Round]:
        """What so many nodes send in an iteration."""
        gradient = collective("ring", members, self.gradient_bytes)
        if not self.tokens_bytes:
            return gradient
        # To the experts and back, in the forward pass and again in the backward pass.
        experts = expert_exchange(members, min(_EXPERTS, members), 4 * _LAYERS * self.tokens_bytes)
        return [*experts, *gradient]


@cache
def workload(name: str) -> Workload:
    """One of ``MODELS``; ``BadInput`` for another name."""
    if name not in MODELS:
        raise BadInput(f"no model {name!r} in this experiment: {nearest(name, MODELS)}")
    graph = builtin_graph("gpt2" if name == MIXTURE else name, _BATCHES.get(name))
    batch = graph.batch or 1
    computes_s = (graph.forward_ms + graph.backward_ms) / 1e3
    backward = graph.backward_ms / 1e3 / computes_s
    tokens = batch * _TOKENS * _WIDTH * _NUMBER_BYTES if name == MIXTURE else 0
    return Workload(computes_s, backward, float(graph.parameter_bytes), float(tokens))


def descriptions(names: Sequence[str]) -> dict[str, dict[str, float]]:
    """What was taken for each model, for the result."""
    return {name: workload(name)._asdict() for name in names}
