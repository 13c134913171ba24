"""From a network that weighs options to the two files of a model."""

import hashlib
import io
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from patchlight.controller.policies.contract import (
    KINDS,
    ClusterShape,
    ClusterView,
    GpuSite,
    JobView,
)
from patchlight.controller.policies.options.card import OptionsCard
from patchlight.controller.policies.options.learned import load_options
from patchlight.controller.policies.options.listing import Listing
from patchlight.controller.policies.options.observation import (
    ARRAYS,
    MOST_OPERATIONS,
    SCHEMA,
    VERSION,
    Observer,
)
from patchlight.emulation.learning.export import OPSET, code_version, rounded, smaller, write_files
from patchlight.emulation.learning.labs.config import LabConfig
from patchlight.emulation.learning.labs.network import INPUTS, OneDecision, OptionNetwork

_OPEN = {name: f"number of {name}" for name in ARRAYS if name not in ("state", "links", "amounts")}
# These have a row for each row of another.
_OPEN |= {"links": _OPEN["edges"], "amounts": _OPEN["touched"]}


def export_lab_model(
    network: OptionNetwork,
    config: LabConfig,
    training: Mapping[str, Any],
    folder: Path,
    name: str | None = None,
    notes: str = "",
) -> Path:
    """Writes the model into ``folder`` and reads it back as a user would; the ONNX file's path.

    The card has as tested range that of ``training``'s test, nothing where there was none.
    """
    name = name or config.name
    content = lab_onnx_bytes(network)
    labs = config.labs
    tested = training.get("tested", {})
    card = OptionsCard(
        name,
        config.learns,
        SCHEMA,
        VERSION,
        MOST_OPERATIONS,
        f"random labs of up to {labs.largest} GPUs from seed {labs.first_seed} on, loads "
        f"{labs.lowest_load:g} to {labs.highest_load:g}",
        tested.get("tested_range", {}),
        code_version(),
        hashlib.sha256(content).hexdigest(),
        notes or _notes(training),
        json.loads(json.dumps(training)),
    )
    path = write_files(folder, name, content, card.written())
    for kind in KINDS:
        if kind in card.kinds:
            load_options(path, kind)
    return path


def _notes(training: Mapping[str, Any]) -> str:
    """How little it was trained, and what came of it."""
    said = f"Learned from {training['steps']:,} decisions in {training['labs']:,} random labs"
    if "tested" not in training:
        return f"{said}; never tested."
    tested = training["tested"]
    name, (mean, spread) = max(tested["jct_over"].items(), key=lambda each: each[1][0])
    return (
        f"{said}; mean JCT {mean:.3f} ± {spread:.3f} times that of {name}, the best of those it "
        f"was compared with, on {tested['labs']} other labs."
    )


def lab_onnx_bytes(network: OptionNetwork) -> bytes:
    """The network as an ONNX model of one decision, of any size."""
    sites = tuple(GpuSite(f"gpu{n}", n // 2, n // 4) for n in range(8))
    shape = ClusterShape(sites, tuple("abcd"), ("tor1", "tor2"))
    cluster, job, observer = ClusterView(0.0, shape, 0), JobView("job", 2), Observer()
    outlook = observer.outlook(cluster)
    options = Listing().placements(outlook, job, 2, with_circuits=False)
    seen = observer.observe("placement", outlook, job, options)
    examples = tuple(torch.from_numpy(seen[name]) for name in INPUTS)
    file: Any = io.BytesIO()  # which the tracing exporter takes, whatever its types say
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            OneDecision(rounded(network).eval()),
            examples,
            file,
            input_names=list(INPUTS),
            output_names=["scores"],
            dynamic_axes={**{k: {0: v} for k, v in _OPEN.items()}, "scores": {0: "options"}},
            opset_version=OPSET,
            dynamo=False,
        )
    return smaller(file.getvalue())
