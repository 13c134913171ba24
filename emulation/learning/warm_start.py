"""Weights to begin with: those of a model that others or earlier runs have left."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from patchlight.controller.policies.files import shipped_models
from patchlight.controller.policies.learned import load_learned
from patchlight.controller.policies.observation import COUNTED, WORK
from patchlight.emulation.learning.network import OptionScorer, load_run, of_this_network
from patchlight.testbed.errors import BadInput


def begin_with(scorer: OptionScorer, model: str) -> None:
    """Give a scorer the weights of a model: a name of those that come along, an ONNX file, or the
    folder of an earlier run with the same network.

    One that saw version 1 of the observation decides at PAC-ML's load as it did; what it did not
    see has no weight yet. ``BadInput`` if the networks differ.
    """
    path = shipped_models().get(model, Path(model))
    if not path.exists():
        raise BadInput(
            f"cannot begin with {model!r}: there is no such run or model",
            hint="give the folder that 'patchlight policy train' wrote, an ONNX file, or the name "
            "of a model that comes along",
        )
    if path.is_dir():
        with of_this_network(f"the run in {path}"):
            scorer.load_state_dict(load_run(path)[1]["average"])
        return
    card = load_learned(path).card
    mine = [layer for layer in scorer.value.layers if isinstance(layer, torch.nn.Linear)]
    weights, biases = _layers(path)
    cluster, layout = scorer.value.cluster, scorer.value.layout
    if card.layout.ramp != layout.ramp or cluster != "servers" or scorer.graph is not None:
        raise BadInput(
            f"cannot begin with model {model!r}: only a network without a graph can that is "
            "told which servers of the same RAMP are busy"
        )
    if card.observation_version == 1:
        told = weights[0].shape[0] - COUNTED - 1
        first = torch.zeros(told + scorer.value.known, weights[0].shape[1])
        first[: told + COUNTED + 1] = weights[0]
        # Work is told in what the cluster does while one job comes, not in 1,000 s.
        first[told + WORK] *= layout.servers
        weights[0] = first
    if len(biases) > len(mine) and len(biases) % len(mine) == 0:
        raise BadInput(
            f"cannot begin with model {model!r}: it has {len(biases) // len(mine)} networks that "
            "decide together",
            hint="begin with the run of one of them",
        )
    have = [tuple(each.shape) for each in weights]
    want = [tuple(reversed(layer.weight.shape)) for layer in mine]
    if have != want or len(biases) != len(mine):
        raise BadInput(f"cannot begin with model {model!r}: its layers are {have}, not {want}")
    with torch.no_grad():
        for layer, weight, bias in zip(mine, weights, biases, strict=True):
            layer.weight.copy_(weight.T)
            layer.bias.copy_(bias)


def _layers(path: Path) -> tuple[list[Tensor], list[Tensor]]:
    """The weights and biases of a model's layers, in their order."""
    import onnx
    from onnx import numpy_helper

    graph: Any = onnx.load(str(path)).graph
    known = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    for node in graph.node:
        if node.op_type == "Cast" and node.input[0] in known:
            known[node.output[0]] = known[node.input[0]]
    weights, biases = list[Tensor](), list[Tensor]()
    for node in graph.node:
        found = [known[name] for name in node.input if name in known]
        if node.op_type in ("MatMul", "Add") and found:
            kept = weights if node.op_type == "MatMul" else biases
            kept.append(torch.from_numpy(found[0].astype(np.float32)))
    return weights, biases[: len(weights)]
