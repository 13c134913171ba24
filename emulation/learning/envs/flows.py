"""What the environments over paths of light share."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from patchlight.emulation.learning.envs.light_jobs import LightJobs, LightRun
from patchlight.emulation.learning.envs.queued import Observation, unit
from patchlight.testbed.paths.contract import FlowRequest, PathNetwork

FLOW_FEATURES = 5
"""Time to send it, its job's bytes that are ready and not sent, time it waits, tuned, round."""


class FlowsEnv(gymnasium.Env[Observation, np.int64]):
    """An episode is jobs on one network of light, from the first computation to the last flow.

    The reward of a step is −∫ jobs that communicate dt until the next decision, in units of the
    mean time that a collective takes at least; over an episode it adds up to the time of all
    collectives. Times are seen as t/(t + that mean). An action that is not allowed is taken for the
    first one that is, and ``info`` says ``illegal``.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 - Gymnasium's own name
    figure: ClassVar[str] = "collective_mean_s"

    def __init__(
        self,
        actions: int,
        shown: int,
        network: PathNetwork | None,
        jobs: LightJobs | None,
        extra: Mapping[str, spaces.Space[Any]],
    ) -> None:
        self.network = network or default_network()
        self.jobs = jobs or LightJobs()
        self.run: LightRun | None = None
        self._shown, self._flows = shown, list[FlowRequest]()
        nodes = self.network.nodes
        self.action_space = spaces.Discrete(actions)
        self.observation_space = spaces.Dict(
            {
                "nodes": unit(nodes, 2),
                "flows": unit(shown, FLOW_FEATURES),
                "ends": spaces.Box(0, nodes - 1, (shown, 2), np.int64),
                "waiting": unit(1),
                "action_mask": spaces.MultiBinary(actions),
                **extra,
            }
        )
        self._mask: npt.NDArray[np.int8] = np.zeros(actions, np.int8)

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
        run, chosen = self._running(), int(action)
        illegal = not self._mask[chosen]
        if self._flows:
            self._act(int(self._mask.argmax()) if illegal else chosen)
        busy_s = self._next_decision()
        over = not self._flows
        info: dict[str, Any] = {"illegal": illegal} if illegal else {}
        if over:
            info["collective_mean_s"] = sum(run.collectives_s) / len(run.collectives_s)
        return self._observe(), -busy_s / self.unit_s, over, False, info

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """Which actions are allowed now."""
        return self._mask.astype(bool)

    # -- what the kinds of environment differ in

    @abstractmethod
    def _choices(self) -> None:
        """Write the mask of what can be done with the flows that fit, of which there is one."""

    @abstractmethod
    def _act(self, action: int) -> None:
        """Give a flow a path, as an allowed action says."""

    @abstractmethod
    def _features(self) -> Observation:
        """What is seen besides nodes and flows."""

    # -- time and observations

    def _running(self) -> LightRun:
        if self.run is None:
            raise gymnasium.error.ResetNeeded("call reset() before the first step()")
        return self.run

    def _next_decision(self) -> float:
        run, busy_s = self._running(), 0.0
        self._flows = run.paths.fitting(self._shown)
        while not self._flows and run.goes_on:
            busy_s += run.advance()
            self._flows = run.paths.fitting(self._shown)
        self._mask[:] = 0
        if self._flows:
            self._choices()
        else:  # The episode is over; a mask allows something all the same.
            self._mask[0] = 1
        return busy_s

    def _observe(self) -> Observation:
        run, unit_s, network = self._running(), self.unit_s, self.network
        flows = np.zeros((self._shown, FLOW_FEATURES), np.float32)
        ends = np.zeros((self._shown, 2), np.int64)
        if found := self._flows:
            flows[: len(found)] = [self._flow(flow) for flow in found]
            ends[: len(found)] = [flow[1:3] for flow in found]
        sends = [[0.0] * network.transmitters for _ in range(network.nodes)]
        hears = [[0.0] * network.receivers for _ in range(network.nodes)]
        for grant in run.paths.granted:
            left_s = grant.ends_s - run.now_s
            sends[grant.source][grant.transmitter] = left_s
            hears[grant.destination][grant.receiver] = left_s
        nodes = np.array([[min(a), min(b)] for a, b in zip(sends, hears, strict=True)], np.float32)
        waiting = len(run.paths.waiting)
        return {
            "nodes": nodes / (nodes + np.float32(unit_s)),
            "flows": flows,
            "ends": ends,
            "waiting": np.array([waiting / (waiting + 10)], np.float32),
            "action_mask": self._mask.copy(),
            **self._features(),
        }

    def _flow(self, flow: FlowRequest) -> list[float]:
        run, unit_s = self._running(), self.unit_s
        sending_s, waited_s = self.network.sending_s(flow.nbytes), run.waited_s(flow)
        left_s = self.network.sending_s(run.bytes_left[run.job_of(flow)])
        return [
            sending_s / (sending_s + unit_s),
            left_s / (left_s + unit_s),
            waited_s / (waited_s + unit_s),
            float(run.paths.tuned_channel(flow) is not None),
            flow.round / (flow.round + 1),
        ]


def default_network() -> PathNetwork:
    """A coupler: 8 nodes at 100 Gb/s share 4 channels, and tune in 1 ms."""
    return PathNetwork(8, 4, 100e9, 1e-3)
