"""Writes a trained scorer as the two files of a model: ``NAME.onnx`` and its card ``NAME.json``."""

import copy
import hashlib
import io
import json
import os
import warnings
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from patchlight.controller.policies.files import OUTPUT
from patchlight.controller.policies.learned import Card, load_learned
from patchlight.controller.policies.observation import (
    SCHEMA,
    ObservationLayout,
)
from patchlight.emulation.learning.config import Config
from patchlight.emulation.learning.network import (
    Likeness,
    MeanScorer,
    NearestScorer,
    OptionScorer,
    load_run,
    scorer_of,
)
from patchlight.testbed.errors import BadInput

OPSET = 17
_SMALL = 1024

N = TypeVar("N", bound=nn.Module)


class _Plain(nn.Module):
    """The scorer with an argument for each array, as ONNX wants it."""

    def __init__(self, scorer: OptionScorer | MeanScorer) -> None:
        super().__init__()
        self.scorer = scorer

    def forward(self, *arrays: Tensor) -> Tensor:
        found: Tensor = self.scorer(
            dict(zip(self.scorer.inputs, arrays, strict=True))
        )
        return found


def export(
    scorer: OptionScorer | MeanScorer,
    layout: ObservationLayout,
    config: Config,
    training: Mapping[str, Any],
    folder: Path,
    name: str | None = None,
) -> Path:
    """Writes the model into ``folder`` and reads it back as a user would; the ONNX file's path."""
    name = name or config.name
    content = onnx_bytes(scorer, layout)
    seen = (
        SCHEMA,
        layout.version,
        layout.actions,
        layout.ramp,
        config.environment.rule,
    )
    sha256 = hashlib.sha256(content).hexdigest()
    kept = json.loads(json.dumps(training))
    blocks = config.environment.blocks
    card = Card(
        name,
        "partition",
        *seen,
        code_version(),
        sha256,
        "",
        kept,
        blocks,
    )
    path = write_files(
        folder,
        name,
        content,
        card.written(),
    )
    load_learned(path)
    return path


def of_runs(
    runs: Sequence[Path],
) -> tuple[
    OptionScorer | MeanScorer, ObservationLayout, Config, dict[str, Any]
]:
    """The network of a training run, or several by the mean of their scores, and what ``export``
    wants to know of it.

    Of runs under different conditions those decide whose jobs were most like the recent ones.
    ``BadInput`` if the runs are of different networks, placement rules or RAMPs.
    """
    loaded = [load_run(run) for run in runs]
    config = loaded[0][0]
    first, layout = scorer_of(*loaded[0])
    members = [first]
    for run, (each, kept) in zip(runs[1:], loaded[1:], strict=True):
        other, its = scorer_of(each, kept)
        alike = (
            each.network == config.network
            and each.environment.rule == config.environment.rule
        )
        if not alike or its != layout:
            raise BadInput(
                f"{run} has another network, placement rule or RAMP than {runs[0]}"
            )
        members.append(other)
    steps, wall_s = (
        sum(kept[key] for _, kept in loaded) for key in ("steps", "wall_s")
    )
    training: dict[str, Any] = {
        "config": config.as_data(),
        "steps": steps,
        "wall_s": wall_s,
    }
    if len(runs) > 1:
        training["training_seeds"] = [each.seed for each, _ in loaded]
    conditions = list(
        dict.fromkeys(
            each
            for config, _ in loaded
            for each in config.environment.conditions
        )
    )
    learned = [set(config.environment.conditions) for config, _ in loaded]
    network: OptionScorer | MeanScorer = members[0]
    if any(each != learned[0] for each in learned):
        network = _nearest(
            runs,
            loaded,
            members,
            conditions,
        )
        training["config"]["environment"]["conditions"] = conditions
        under = [
            dict.fromkeys(each.environment.conditions) for each, _ in loaded
        ]
        training["learned_under"] = [list(each) for each in under]
    elif len(members) > 1:
        network = MeanScorer(members)
    return network, layout, config, training


def _nearest(
    runs: Sequence[Path],
    loaded: Sequence[tuple[Config, dict[str, Any]]],
    members: Sequence[OptionScorer],
    conditions: Sequence[str],
) -> NearestScorer:
    """Under each condition those that learned under it."""
    likenesses: dict[str, Likeness] = {}
    for run, (_, kept) in zip(runs, loaded, strict=True):
        if not kept.get("likenesses"):
            raise BadInput(
                f"the checkpoint in {run} does not describe its jobs",
                hint="runs under different conditions can be combined only if this version "
                "trained them: train it again",
            )
        likenesses |= kept["likenesses"]
    shares = torch.zeros(len(conditions), len(members))
    for row, condition in enumerate(conditions):
        by = [
            n
            for n, (each, _) in enumerate(loaded)
            if condition in each.environment.conditions
        ]
        shares[row, by] = 1 / len(by)
    return NearestScorer(
        members, [likenesses[each] for each in conditions], shares
    )


def write_files(
    folder: Path,
    name: str,
    content: bytes,
    card: str,
) -> Path:
    """Writes a model and its card into a folder; the path of the model's file."""
    folder.mkdir(
        parents=True,
        exist_ok=True,
    )
    path = folder / f"{name}.onnx"
    for where, what in (
        (path, content),
        (path.with_suffix(".json"), card.encode()),
    ):
        draft = where.with_name(where.name + ".tmp")
        draft.write_bytes(what)
        os.replace(draft, where)
    return path


def onnx_bytes(
    scorer: OptionScorer | MeanScorer, layout: ObservationLayout
) -> bytes:
    """The scorer as an ONNX model for one observation at a time.

    Weights are kept with 16 bits each: half the size, and less than what learning leaves open.
    """
    empty = layout.empty(1)
    examples = {name: torch.from_numpy(empty[name]) for name in scorer.inputs}
    return traced(_Plain(rounded(scorer).eval()), examples)


def traced(
    network: nn.Module,
    examples: Mapping[str, Tensor],
    open_axes: Mapping[str, Any] | None = None,
) -> bytes:
    """A network with an argument for each of these arrays as an ONNX model, made ``smaller``."""
    # Which the tracing exporter takes, whatever its types say.
    file: Any = io.BytesIO()
    named: dict[str, Any] = {
        "input_names": list(examples),
        "output_names": [OUTPUT],
    }
    named["dynamic_axes"] = open_axes
    with warnings.catch_warnings():
        # The exporter that traces is all that these networks need; the new one wants more packages.
        warnings.simplefilter("ignore")
        arrays = tuple(examples.values())
        torch.onnx.export(
            network,
            arrays,
            file,
            **named,
            opset_version=OPSET,
            dynamo=False,
        )
    return smaller(file.getvalue())


def rounded(network: N) -> N:
    """A network with the weights that its model will have."""
    found = copy.deepcopy(network)
    with torch.no_grad():
        for weights in found.parameters():
            weights.copy_(weights.half().float())
    return found


def smaller(content: bytes) -> bytes:
    """The model with large weights kept as 16-bit numbers; loading makes them 32-bit ones."""
    model = onnx.load_from_string(content)
    casts = []
    for weights in model.graph.initializer:
        values = numpy_helper.to_array(weights)
        if values.dtype != np.float32 or values.size < _SMALL:
            continue
        name = weights.name
        weights.CopyFrom(
            numpy_helper.from_array(values.astype(np.float16), f"{name}.half")
        )
        casts.append(
            helper.make_node(
                "Cast",
                [f"{name}.half"],
                [name],
                to=TensorProto.FLOAT,
            )
        )
    nodes = [*casts, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    onnx.checker.check_model(model)
    smaller: bytes = model.SerializeToString()
    return smaller


def code_version() -> str:
    """Patchlight's version, for a card."""
    try:
        return version("patchlight")
    except PackageNotFoundError:
        return "unknown"


PROGRESS = "progress.csv"
TENSORBOARD = "tensorboard"
