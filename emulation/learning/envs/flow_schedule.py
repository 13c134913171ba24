"""``patchlight/FlowSchedule-v0``: which ready flow gets the next path of light?"""

from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from patchlight.emulation.learning.envs.light_jobs import LightJobs, LightRun
from patchlight.emulation.learning.envs.queued import Observation, unit
from patchlight.emulation.learning.envs.registry import Heuristic, first_allowed
from patchlight.testbed.errors import BadInput
from patchlight.testbed.paths.contract import FlowRequest, PathNetwork

FLOW_FEATURES = 5
"""Time to send it, its job's bytes that are ready and not sent, time it waits, tuned, round."""


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


class FlowScheduleEnv(gymnasium.Env[Observation, np.int64]):
    """Jobs train over one network of light; an action is the flow that gets the next path.

    A node has tunable transceivers, and there are fewer channels than nodes. Jobs compute, then
    send a collective, iteration by iteration. The action is one of the first ``shown`` ready flows
    for which a transmitter, a receiver and a channel are free; the path is the one that is tuned
    soonest. No flow waits where a path is free, as in every scheduler of paths, so there is no
    waiting. The reward of a step is −∫ jobs that communicate dt until the next decision, in units
    of the mean time that a collective takes at least; over an episode it adds up to the time of all
    collectives. Times are seen as t/(t + that mean).

    Seen are the graph of nodes and flows, padded: ``nodes`` (for how long the transmitter and the
    receiver that is free first is busy), ``flows`` (time to send it, bytes of its collective that
    are ready and not sent, time waited, whether it is tuned, its round) from and to ``ends``; free
    channels; flows that wait. An action that is not allowed is taken for the first one that is.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 - Gymnasium's own name
    figure: ClassVar[str] = "collective_mean_s"
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
        self.network = network or default_network()
        self.jobs = jobs or LightJobs()
        self._shown, nodes = shown, self.network.nodes
        self.action_space = spaces.Discrete(shown)
        self.observation_space = spaces.Dict(
            {
                "nodes": unit(nodes, 2),
                "flows": unit(shown, FLOW_FEATURES),
                "ends": spaces.Box(0, nodes - 1, (shown, 2), np.int64),
                "channels": unit(1),
                "waiting": unit(1),
                "action_mask": spaces.MultiBinary(shown),
            }
        )
        self.run: LightRun | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """New jobs, from their first computation on."""
        super().reset(seed=seed)
        drawn = self.jobs.draw(self.np_random, self.network)
        self.unit_s = sum(job.least_s for job in drawn) / len(drawn)
        self.run = LightRun(self.network, drawn, self.jobs.iterations)
        self._next_decision()
        return self._observe(), {}

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Give a flow a path, and go on until there is one for another."""
        run, number = self._running(), int(action)
        illegal = not 0 <= number < len(self._flows)
        if self._flows:
            run.give(self._flows[0 if illegal else number])
        busy_s = self._next_decision()
        over = not self._flows
        info: dict[str, Any] = {"illegal": illegal} if illegal else {}
        if over:
            info["collective_mean_s"] = sum(run.collectives_s) / len(run.collectives_s)
        return self._observe(), -busy_s / self.unit_s, over, False, info

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """Which of the flows shown can be given a path now."""
        return self._mask.astype(bool)

    def _running(self) -> LightRun:
        if self.run is None:
            raise gymnasium.error.ResetNeeded("call reset() before the first step()")
        return self.run

    def _next_decision(self) -> float:
        run, busy_s = self._running(), 0.0
        self._flows: list[FlowRequest] = run.paths.fitting(self._shown)
        while not self._flows and run.goes_on:
            busy_s += run.advance()
            self._flows = run.paths.fitting(self._shown)
        self._mask = np.zeros(self._shown, np.int8)
        # Where an episode is over nothing can be done; a mask allows something all the same.
        self._mask[: max(1, len(self._flows))] = 1
        return busy_s

    def _observe(self) -> Observation:
        run, unit_s, network = self._running(), self.unit_s, self.network
        flows = np.zeros((self._shown, FLOW_FEATURES), np.float32)
        ends = np.zeros((self._shown, 2), np.int64)
        if found := self._flows:
            flows[: len(found)] = [self._features(flow) for flow in found]
            ends[: len(found)] = [flow[1:3] for flow in found]
        busy = [[0.0] * network.transmitters for _ in range(network.nodes)]
        heard = [[0.0] * network.receivers for _ in range(network.nodes)]
        for grant in (granted := run.paths.granted):
            left_s = grant.ends_s - run.now_s
            busy[grant.source][grant.transmitter] = left_s
            heard[grant.destination][grant.receiver] = left_s
        nodes = np.array([[min(a), min(b)] for a, b in zip(busy, heard, strict=True)], np.float32)
        free = 1.0 if network.routes is not None else 1 - len(granted) / network.channels
        waiting = len(run.paths.waiting)
        return {
            "nodes": nodes / (nodes + np.float32(unit_s)),
            "flows": flows,
            "ends": ends,
            "channels": np.array([free], np.float32),
            "waiting": np.array([waiting / (waiting + 10)], np.float32),
            "action_mask": self._mask.copy(),
        }

    def _features(self, flow: FlowRequest) -> list[float]:
        run, unit_s = self._running(), self.unit_s
        sending_s, waited_s = self.network.sending_s(flow.nbytes), run.waited_s(flow)
        left_s = self.network.sending_s(run.bytes_left[run.job_of(flow)])
        return [
            sending_s / (sending_s + unit_s),
            left_s / (left_s + unit_s),
            waited_s / (waited_s + unit_s),
            float(run.paths.is_tuned(flow)),
            flow.round / (flow.round + 1),
        ]


def default_network() -> PathNetwork:
    """A coupler: 8 nodes at 100 Gb/s share 4 channels, and tune in 1 ms."""
    return PathNetwork(8, 4, 100e9, 1e-3)
