"""The mix of jobs that all architectures are given."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from patchlight.controller.policies.contract import JobView
from patchlight.emulation.simulator.cluster import QueueJob, Training
from patchlight.testbed.graphs import builtin_graph

MODELS = ("vgg19", "resnet50", "bert-large", "gpt2")
MIXTURE = "mixture-of-experts"
# A layer's tokens go to their experts and back, forward and backward, for each of 12 layers:
# batch 8 of 1,024 tokens, 768 wide, 2 bytes each.
_TOKENS_BYTES, _EXCHANGES = 8 * 1024 * 768 * 2, 4 * 12
_SIZES = (2, 4, 8, 16, 32)
_ITERATIONS = (200, 2000)
_LOAD = 0.7


class _Model(NamedTuple):
    compute_s: float
    gradient_bytes: float
    collectives: tuple[tuple[str, float], ...]


def _model(name: str) -> _Model:
    graph = builtin_graph("gpt2" if name == MIXTURE else name)
    compute_s = (graph.forward_ms + graph.backward_ms) / 1e3
    gradient: tuple[str, float] = ("ring", float(graph.parameter_bytes))
    # One all-to-all of all exchanges' bytes: the same bits and edges in fewer rounds.
    exchange = (("all-to-all", float(_TOKENS_BYTES * _EXCHANGES)),) if name == MIXTURE else ()
    return _Model(compute_s, graph.parameter_bytes, (*exchange, gradient))


def mixed_jobs(count: int, nodes: int, seed: int, models: Sequence[str]) -> list[QueueJob]:
    """Jobs of these models by turns; sizes, lengths and arrivals by chance, alike for each seed.

    Sizes are powers of two up to a quarter of the nodes, iterations even from 200 to 2,000; they
    come at random times, so that 70 % of the nodes would be held if no network slowed them down.
    """
    rng = np.random.default_rng(seed)
    known = {name: _model(name) for name in models}
    sizes = [size for size in _SIZES if size <= max(2, nodes // 4)]
    jobs, at_s = [], 0.0
    for number in range(count):
        name = models[number % len(models)]
        model, size = known[name], int(rng.choice(sizes))
        iterations = int(rng.integers(*_ITERATIONS))
        training = Training(iterations, model.gradient_bytes, {"": model.compute_s})
        view = JobView(f"{number}-{name}", size, arrived_s=at_s, user=name, training=training)
        lasts_s = iterations * model.compute_s
        jobs.append(
            QueueJob(view, lasts_s, training=training, collectives=model.collectives, cluster=name)
        )
        at_s += float(rng.exponential(lasts_s * size / (_LOAD * nodes)))
    return jobs
