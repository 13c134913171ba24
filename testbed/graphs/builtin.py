"""Built-in graphs: computed from layer shapes for a stated GPU, marked as computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from patchlight.testbed.errors import BadInput
from patchlight.testbed.files.issues import nearest
from patchlight.testbed.graphs import convnets, sequencenets
from patchlight.testbed.graphs.gpu_model import A100, GpuModel
from patchlight.testbed.graphs.layers import Layers
from patchlight.testbed.graphs.model import ComputationGraph

L = TypeVar("L", bound=Layers)


@dataclass(frozen=True, slots=True)
class _Recipe:
    build: Callable[[Layers], None]
    batch: int


# Where PipeDream has a profile of the model, the batch size is that of the profile.
_RECIPES = {
    "alexnet": _Recipe(convnets.alexnet, 256),
    "vgg16": _Recipe(convnets.vgg16, 128),
    "vgg19": _Recipe(convnets.vgg19, 128),
    "resnet18": _Recipe(convnets.resnet18, 256),
    "resnet50": _Recipe(convnets.resnet50, 128),
    "squeezenet1_0": _Recipe(convnets.squeezenet, 256),
    "gnmt": _Recipe(sequencenets.gnmt, 32),
    "bert-large": _Recipe(sequencenets.bert_large, 8),
    "gpt2": _Recipe(sequencenets.gpt2, 8),
}
BUILTIN_NAMES = tuple(_RECIPES)
"""The names that ``builtin_graph`` knows."""


def layers_of(name: str, batch: int | None = None, gpu: GpuModel = A100) -> Layers:
    """The layers of a built-in model; ``BadInput`` for an unknown name or a batch under 1."""
    return build(name, Layers, batch, gpu)


def build(name: str, builder: type[L], batch: int | None = None, gpu: GpuModel = A100) -> L:
    """As ``layers_of``, put together by a ``builder`` that makes more of them than a graph."""
    recipe = _RECIPES.get(name)
    if recipe is None:
        raise BadInput(f"no built-in graph {name!r}: {nearest(name, BUILTIN_NAMES)}")
    if batch is not None and batch < 1:
        raise BadInput(f"cannot compute {name!r} for a batch of {batch}: expected 1 or more")
    net = builder(name, batch or recipe.batch, gpu)
    recipe.build(net)
    return net


def builtin_graph(name: str, batch: int | None = None, gpu: GpuModel = A100) -> ComputationGraph:
    """A built-in model's graph, for its usual batch or another; ``BadInput`` as ``layers_of``."""
    return layers_of(name, batch, gpu).graph()
