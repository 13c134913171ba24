"""Environments of optical paths: which flow gets the next path, and on which channel."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from patchlight.emulation.learning.envs.light_jobs import LightJobs, LightRun
from patchlight.emulation.learning.envs.queued import (
    MaskedEnv,
    Observation,
    unit,
)
from patchlight.emulation.learning.envs.registry import (
    Heuristic,
    first_allowed,
)
from patchlight.testbed.errors import BadInput
from patchlight.testbed.paths.scheduling import FlowRequest, PathNetwork

FLOW_FEATURES = 5
"""Time to send it, its job's bytes that are ready and not sent, time it waits, tuned, round."""


class FlowsEnv(MaskedEnv):
    """An episode is jobs on one network of light, from the first computation to the last flow.

    The reward of a step is −∫ jobs that communicate dt until the next decision, in units of the
    mean time that a collective takes at least; over an episode it adds up to the time of all
    collectives. Times are seen as t/(t + that mean). An action that is not allowed is taken for the
    first one that is, and ``info`` says ``illegal``.
    """

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
        self._shown = shown
        self._flows = list[FlowRequest]()
        nodes = self.network.nodes
        self.action_space = spaces.Discrete(actions)
        self.observation_space = spaces.Dict(
            {
                "nodes": unit(nodes, 2),
                "flows": unit(shown, FLOW_FEATURES),
                "ends": spaces.Box(
                    0,
                    nodes - 1,
                    (shown, 2),
                    np.int64,
                ),
                "waiting": unit(1),
                "action_mask": spaces.MultiBinary(actions),
                **extra,
            }
        )
        self._mask = np.zeros(actions, np.int8)

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

    def step(
        self, action: np.int64
    ) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Give a flow a path, and go on until there is one for another."""
        run = self._running()
        chosen = int(action)
        illegal = not self._mask[chosen]
        if self._flows:
            self._act(int(self._mask.argmax()) if illegal else chosen)
        busy_s = self._next_decision()
        over = not self._flows
        info: dict[str, Any] = {"illegal": illegal} if illegal else {}
        if over:
            info["collective_mean_s"] = sum(run.collectives_s) / len(
                run.collectives_s
            )
        return self._observe(), -busy_s / self.unit_s, over, False, info

    # -- what the kinds of environment differ in

    @abstractmethod
    def _choices(self) -> None:
        """Write the mask of what can be done with the flows that fit, of which there is one."""

    @abstractmethod
    def _act(self, action: int) -> None:
        """Give a flow a path, as an allowed action says."""

    @abstractmethod
    def _features(self) -> Observation:
        """What is seen in addition to nodes and flows."""

    # -- time and observations

    def _running(self) -> LightRun:
        if self.run is None:
            raise gymnasium.error.ResetNeeded(
                "call reset() before the first step()"
            )
        return self.run

    def _next_decision(self) -> float:
        run = self._running()
        busy_s = 0.0
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
        run = self._running()
        unit_s = self.unit_s
        network = self.network
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
        nodes = np.array(
            [[min(a), min(b)] for a, b in zip(sends, hears, strict=True)],
            np.float32,
        )
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
        run = self._running()
        unit_s = self.unit_s
        sending_s = self.network.sending_s(flow.nbytes)
        waited_s = run.waited_s(flow)
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
    return PathNetwork(
        8,
        4,
        100e9,
        1e-3,
    )


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
        self,
        network: PathNetwork | None = None,
        jobs: LightJobs | None = None,
        shown: int = 32,
    ) -> None:
        if shown < 1:
            raise BadInput(f"{shown} flows are shown: expected 1 or more")
        super().__init__(
            shown,
            shown,
            network,
            jobs,
            {"channels": unit(1)},
        )

    def _choices(self) -> None:
        self._mask[: len(self._flows)] = 1

    def _act(self, action: int) -> None:
        self._running().give(self._flows[action])

    def _features(self) -> Observation:
        taken = (
            0
            if self.network.routes is not None
            else len(self._running().paths.granted)
        )
        return {
            "channels": np.array(
                [1 - taken / self.network.channels], np.float32
            )
        }


# Sent in 0.08 to 4 ms, so that it matters what is tuned.
_JOBS = LightJobs(
    iterations=10,
    least_bytes=1e6,
    most_bytes=50e6,
    most_computing=4.0,
)

CHANNEL_FEATURES = 4
"""In use, tuned for the flow, free for longer than others, pairs of nodes still tuned to it."""


def longest_free(env: "FlowChannelEnv", seen: Observation) -> int:
    """The one to which both ends are tuned, or else the longest free: what schedulers do."""
    return _most(seen, 2)


def least_tuned(env: "FlowChannelEnv", seen: Observation) -> int:
    """The one to which both ends are tuned, or else that to which the fewest pairs are."""
    return _most(seen, 3, -1.0)


def _most(
    seen: Observation,
    feature: int,
    sign: float = 1.0,
) -> int:
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

    def __init__(
        self, network: PathNetwork | None = None, jobs: LightJobs | None = None
    ) -> None:
        network = network or PathNetwork(
            8,
            8,
            100e9,
            1e-3,
        )
        if network.routes is not None:
            raise BadInput(
                "the channels of this network determine the destination, so there is no choice",
                hint="use a PathNetwork without routes: a coupler",
            )
        channels = network.channels
        extra = {"channels": unit(channels, CHANNEL_FEATURES)}
        super().__init__(
            channels,
            1,
            network,
            jobs or _JOBS,
            extra,
        )

    def _choices(self) -> None:
        self._mask[self._running().paths.channels()] = 1

    def _act(self, action: int) -> None:
        self._running().give(self._flows[0], action)

    def _features(self) -> Observation:
        paths = self._running().paths
        count = self.network.channels
        seen = np.zeros((count, CHANNEL_FEATURES), np.float32)
        seen[:, 0] = 1
        for place, channel in enumerate(paths.channels()):
            seen[channel, [0, 2]] = 0, 1 - place / count
        for channel, pairs in paths.pairs_tuned().items():
            seen[channel, 3] = pairs / (pairs + 1)
        if (
            self._flows
            and (tuned := paths.tuned_channel(self._flows[0])) is not None
        ):
            seen[tuned, 1] = 1
        return {"channels": seen}
