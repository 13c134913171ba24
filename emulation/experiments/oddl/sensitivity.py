"""What ODDL's own time depends on: who schedules, how long that takes, how many channels."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from patchlight.emulation.experiments.oddl.conditions import Light, mean_iteration_s
from patchlight.emulation.experiments.oddl.workloads import workload
from patchlight.emulation.simulator.network import PlacedJob, network_of
from patchlight.emulation.simulator.network.jobs import ONCE

_SCHEDULERS = ("collective", "first-come")
_CONTROL_S = (0.0, 10e-6, 100e-6, 1e-3, 10e-3)
_TUNING_S = (10e-9, 1e-6, 25e-6, 1e-3)
# 50 GHz apart: in half of the C band, in the C band, and in C and L band.
_CHANNELS = (48, 96, 192)


def sensitivity(models: Sequence[str], nodes: int, light: Light) -> list[dict[str, Any]]:
    """Rows: what is varied, and an iteration's time over that on an ideal switch, by model."""
    base = {"scheduler": light.scheduler, "control_s": 0.0, "tuning_s": light.tuning_s}
    variants: list[dict[str, Any]] = [
        {**base, "scheduler": scheduler, "control_s": control_s}
        for scheduler in _SCHEDULERS
        for control_s in _CONTROL_S
    ]
    variants += [{**base, "tuning_s": tuning_s} for tuning_s in _TUNING_S]
    variants += [{**base, "channels": channels} for channels in _CHANNELS]
    ideal = {model: _iteration_s(f"ideal:nodes={nodes}", model, nodes, light) for model in models}
    rows = []
    for each in variants:
        spec = (
            f"oddl:nodes={nodes},setup=0ns,scheduler={each['scheduler']},"
            f"switching={each['tuning_s'] * 1e9:g}ns,control={each['control_s'] * 1e9:g}ns"
        )
        spec += f",channels={each['channels']}" if "channels" in each else ""
        ratios = {model: _iteration_s(spec, model, nodes, light) / ideal[model] for model in models}
        rows.append({"nodes": nodes, **each, "to_ideal": ratios})
    return rows


def _iteration_s(spec: str, name: str, nodes: int, light: Light) -> float:
    model = workload(name)
    ranks = np.arange(nodes)
    job = PlacedJob(ranks, model.compute_s, model.rounds(nodes), ONCE, messages_s=light.message_s)
    return mean_iteration_s(network_of(spec), job)
