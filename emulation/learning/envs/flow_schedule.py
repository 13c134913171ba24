"""``patchlight/FlowSchedule-v0``: which ready flow gets the next path of light?"""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from patchlight.emulation.learning.envs.flows import FlowsEnv
from patchlight.emulation.learning.envs.light_jobs import LightJobs
from patchlight.emulation.learning.envs.queued import Observation, unit
from patchlight.emulation.learning.envs.registry import Heuristic, first_allowed
from patchlight.testbed.errors import BadInput
from patchlight.testbed.paths.contract import PathNetwork


def shortest(env: "FlowScheduleEnv", seen: Observation) -> int:
    """The flow with the fewest bytes."""
    return _least(seen, seen["flows"][:, 0])


def smallest_collective(env: "FlowScheduleEnv", seen: Observation) -> int:
    """A flow of the collective with the fewest bytes left (as Varys, SIGCOMM 2014)."""
    return _least(seen, seen["flows"][:, 1])


def rounds_first(env: "FlowScheduleEnv", seen: Observation) -> int:
    """Rounds in order, and a round in which nodes have several flows in shifts."""
    shift = (seen["ends"][:, 1] - seen["ends"][:, 0]) % env.network.nodes
    return _least(seen, seen["flows"][:, 4] * env.network.nodes + shift)


def tuned_first(env: "FlowScheduleEnv", seen: Observation) -> int:
    """A flow whose ends need no tuning, if there is one."""
    return _least(seen, 1 - seen["flows"][:, 3])


def _least(seen: Observation, costs: npt.NDArray[Any]) -> int:
    return int(np.where(seen["action_mask"] > 0, costs, np.inf).argmin())


class FlowScheduleEnv(FlowsEnv):
    """Jobs train over one network of light; an action is the flow that gets the next path.

    A node has tunable transceivers, and there are fewer channels than nodes. Jobs compute, then
    send a collective, iteration by iteration. The action is one of the first ``shown`` ready flows
    for which a transmitter, a receiver and a channel are free; the path is the one that is tuned
    soonest. No flow waits where a path is free, as in every scheduler of paths, so there is no
    waiting.

    Seen are the graph of nodes and flows, padded: ``nodes`` (for how long the transmitter and the
    receiver that is free first is busy), ``flows`` (time to send it, bytes of its collective that
    are ready and not sent, time waited, whether it is tuned, its round) from and to ``ends``; free
    channels; flows that wait.
    """

    per_action: ClassVar[tuple[str, ...]] = ("flows",)
    heuristics: ClassVar[Mapping[str, Heuristic]] = {
        "first-come": first_allowed,
        "shortest": shortest,
        "rounds-first": rounds_first,
        "smallest-collective": smallest_collective,
        "tuned-first": tuned_first,
    }

    def __init__(
        self, network: PathNetwork | None = None, jobs: LightJobs | None = None, shown: int = 32
    ) -> None:
        if shown < 1:
            raise BadInput(f"{shown} flows are shown: expected 1 or more")
        super().__init__(shown, shown, network, jobs, {"channels": unit(1)})

    def _choices(self) -> None:
        self._mask[: len(self._flows)] = 1

    def _act(self, action: int) -> None:
        self._running().give(self._flows[action])

    def _features(self) -> Observation:
        taken = 0 if self.network.routes is not None else len(self._running().paths.granted)
        return {"channels": np.array([1 - taken / self.network.channels], np.float32)}
