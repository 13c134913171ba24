"""The jobs of an episode as arrays, for many episodes side by side."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from patchlight.controller.policies.observation import Array, recent_features
from patchlight.emulation.simulator.ramp.scenario import Scenario
from patchlight.testbed.errors import BadInput

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class EpisodeJobs:
    """The jobs of one episode as columns; of the last ones some may not be decided on."""

    graph: NDArray[np.intp]
    beta: _Floats
    arrived_s: _Floats
    recent: Array
    decisions: int
    horizon_s: float
    told_over_true: _Floats | None

    @classmethod
    def of(cls, scenario: Scenario, seed: int) -> EpisodeJobs:
        """Of the episode with this seed; ``BadInput`` if it has none to decide on."""
        jobs = scenario.jobs(seed)
        if not jobs or jobs[0].arrived_s >= scenario.horizon_s:
            raise BadInput(f"the episode with seed {seed} has no job to decide on")
        return cls(
            np.array([job.graph for job in jobs]),
            np.array([job.requirement for job in jobs]),
            np.array([job.arrived_s for job in jobs]),
            recent_features(
                [job.requirement for job in jobs],
                [job.sequential_s for job in jobs],
                [*(job.arrived_s for job in jobs), scenario.horizon_s],
            ),
            sum(job.arrived_s < scenario.horizon_s for job in jobs),
            scenario.horizon_s,
            scenario.told_over_true(seed, len(jobs)),
        )
