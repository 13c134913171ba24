"""From a trained scorer to the two files of a baseline."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from patchlight.emulation.learning.baseline_files import BaselineCard, load_baseline
from patchlight.emulation.learning.baselines.config import BaselineConfig
from patchlight.emulation.learning.baselines.scorer import ActionScorer
from patchlight.emulation.learning.export import code_version, rounded, traced, write_files


class _Scores(nn.Module):
    """The scorer without its value, with an argument for each array, as ONNX wants it."""

    def __init__(self, scorer: ActionScorer) -> None:
        super().__init__()
        self.scorer = scorer

    def forward(self, *arrays: Tensor) -> Tensor:
        found: Tensor = self.scorer(dict(zip(self.scorer.inputs, arrays, strict=True)))
        return found[:, :-1]


def export_baseline(
    scorer: ActionScorer,
    config: BaselineConfig,
    environment: str,
    figure: str,
    training: Mapping[str, Any],
    folder: Path,
) -> Path:
    """Writes the model into ``folder`` and reads it back as a user would; the ONNX file's path."""
    examples = {name: torch.zeros(1, *shape) for name, shape in scorer.inputs.items()}
    content = traced(_Scores(rounded(scorer).eval()), examples)
    card = BaselineCard(
        config.name,
        environment,
        config.algorithm,
        {name: list(shape) for name, shape in scorer.inputs.items()},
        scorer.actions,
        figure,
        code_version(),
        hashlib.sha256(content).hexdigest(),
        f"Learned by {config.algorithm} from {training['steps']:,} decisions"
        + (f" after imitating {config.teacher.rule}." if config.teacher.rule else "."),
        json.loads(json.dumps(training)),
    )
    path = write_files(folder, config.name, content, card.written())
    load_baseline.cache_clear()  # A file of that name may have been another one.
    load_baseline(path)
    return path
