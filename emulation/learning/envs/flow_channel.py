"""``patchlight/FlowChannel-v0``: over which channel is the next flow sent?"""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from patchlight.emulation.learning.envs.flows import FlowsEnv
from patchlight.emulation.learning.envs.light_jobs import LightJobs
from patchlight.emulation.learning.envs.queued import Observation, unit
from patchlight.emulation.learning.envs.registry import Heuristic, first_allowed
from patchlight.testbed.errors import BadInput
from patchlight.testbed.paths.contract import PathNetwork

# Sent in 0.08 to 4 ms, so that it matters what is tuned.
_JOBS = LightJobs(iterations=10, least_bytes=1e6, most_bytes=50e6, most_computing=4.0)

CHANNEL_FEATURES = 4
"""In use, tuned for the flow, free for longer than others, pairs of nodes still tuned to it."""


def longest_free(env: "FlowChannelEnv", seen: Observation) -> int:
    """The one to which both ends are tuned, or else the longest free: what schedulers do."""
    return _most(seen, 2)


def least_tuned(env: "FlowChannelEnv", seen: Observation) -> int:
    """The one to which both ends are tuned, or else that to which the fewest pairs are."""
    return _most(seen, 3, -1.0)


def _most(seen: Observation, feature: int, sign: float = 1.0) -> int:
    scores = 2 * seen["channels"][:, 1] + sign * seen["channels"][:, feature]
    return int(np.where(seen["action_mask"] > 0, scores, -np.inf).argmax())


class FlowChannelEnv(FlowsEnv):
    """Jobs train over a coupler; an action is the channel of the flow that gets the next path.

    Flows get paths as they came, the first for which both ends and a channel are free. Allowed are
    the free channels. Ends that were last used for each other on the channel need no tuning, so
    what a flow takes now may be what another pair would have found tuned.

    Seen are ``nodes`` (for how long the transmitter and the receiver that is free first is busy),
    the flow in ``flows`` (time to send it, bytes of its collective that are ready and not sent,
    time waited, whether it is tuned, its round), from and to ``ends``, and ``channels`` (in use,
    tuned for this flow, 1 for the longest free down to 0, pairs of nodes that are tuned to it).
    """

    per_action: ClassVar[tuple[str, ...]] = ("channels",)
    heuristics: ClassVar[Mapping[str, Heuristic]] = {
        "first-fit": first_allowed,
        "longest-free": longest_free,
        "least-tuned": least_tuned,
    }

    def __init__(self, network: PathNetwork | None = None, jobs: LightJobs | None = None) -> None:
        network = network or PathNetwork(8, 8, 100e9, 1e-3)
        if network.routes is not None:
            raise BadInput(
                "the channels of this network say where light goes, so there is none to choose",
                hint="give a PathNetwork without routes: a coupler",
            )
        channels = network.channels
        extra = {"channels": unit(channels, CHANNEL_FEATURES)}
        super().__init__(channels, 1, network, jobs or _JOBS, extra)

    def _choices(self) -> None:
        self._mask[self._running().paths.channels()] = 1

    def _act(self, action: int) -> None:
        self._running().give(self._flows[0], action)

    def _features(self) -> Observation:
        paths, count = self._running().paths, self.network.channels
        seen = np.zeros((count, CHANNEL_FEATURES), np.float32)
        seen[:, 0] = 1
        for place, channel in enumerate(paths.channels()):
            seen[channel, [0, 2]] = 0, 1 - place / count
        for channel, pairs in paths.pairs_tuned().items():
            seen[channel, 3] = pairs / (pairs + 1)
        if self._flows and (tuned := paths.tuned_channel(self._flows[0])) is not None:
            seen[tuned, 1] = 1
        return {"channels": seen}
