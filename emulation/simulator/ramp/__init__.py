"""The flow-level simulator: clusters, networks and jobs as values, time as a number.

``ramp`` is the optical cluster of PAC-ML, ``steps`` simulates one training step on it, and
``lossnetwork`` jobs that come, are accepted or blocked, and go.
"""

from patchlight.emulation.simulator.ramp.lossnetwork import (
    Episode,
    JobOutcome,
    Question,
    run_episode,
)
from patchlight.emulation.simulator.ramp.ramp import PAC_ML_SHAPE, PlacementRule, Ramp, RampShape
from patchlight.emulation.simulator.ramp.scenario import (
    EpisodeResult,
    Scenario,
    blocking_rates,
    pac_ml_scenario,
)
from patchlight.emulation.simulator.ramp.workloads import Workloads

__all__ = [
    "PAC_ML_SHAPE",
    "Episode",
    "EpisodeResult",
    "JobOutcome",
    "PlacementRule",
    "Question",
    "Ramp",
    "RampShape",
    "Scenario",
    "Workloads",
    "blocking_rates",
    "pac_ml_scenario",
    "run_episode",
]
