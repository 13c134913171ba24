"""The folder of a training run, read back: its configuration and its checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from patchlight.controller.policies.observation import Layout
from patchlight.emulation.learning.config import Config, parse_config
from patchlight.emulation.learning.network import OptionScorer
from patchlight.testbed.errors import BadInput, PatchlightError

CHECKPOINT, CONFIG = "checkpoint.pt", "config.json"


def load_run(folder: Path) -> tuple[Config, dict[str, Any]]:
    """The configuration and the checkpoint in a run's folder; ``BadInput`` if it has none."""
    try:
        config = parse_config((folder / CONFIG).read_text(), str(folder / CONFIG))
        kept = torch.load(folder / CHECKPOINT, weights_only=True)
    except PatchlightError:
        raise
    except FileNotFoundError as error:
        raise BadInput(
            f"{folder} is no training run: it has no {Path(error.filename).name}",
            hint="give the folder that 'patchlight policy train' wrote",
        ) from error
    except Exception as error:
        raise BadInput(f"cannot read the checkpoint in {folder}: {error}") from error
    return config, kept


def scorer_of(config: Config, kept: dict[str, Any]) -> tuple[OptionScorer, Layout]:
    """The scorer that a checkpoint holds, and the layout it is for."""
    groups, racks, servers = kept["ramp"]
    layout = Layout((groups, racks, servers), tuple(kept["degrees"]))
    scorer = OptionScorer(layout, config.network, float(kept["discount"]))
    scorer.load_state_dict(kept["average"])
    return scorer, layout
