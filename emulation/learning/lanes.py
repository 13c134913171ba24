"""Many loss networks side by side, decided on at once: what makes learning fast.

A *lane* is one episode of a scenario, as an ``Episode`` is, and comes job for job to the same
result. Its cluster is a row of numbers: when each server is free again. So one step of all lanes is
some dozens of array operations, whatever their number. Servers do not break here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from patchlight.controller.policies.observation import (
    LONGEST,
    UNIT_S,
    Array,
    Layout,
    Observation,
    graph_features,
    recent_features,
)
from patchlight.emulation.simulator.ramp.lossnetwork import EPSILON_S
from patchlight.emulation.simulator.ramp.placement import PlacementRule, sub_blocks
from patchlight.emulation.simulator.ramp.scenario import Scenario
from patchlight.testbed.errors import BadInput

_ROUNDING = 1 + 1e-12
_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Finished:
    """An episode that came to its end: which it was, and its faithful blocking rate."""

    lane: int
    scenario: int
    seed: int
    blocking_rate: float


def layout_of(scenario: Scenario) -> Layout:
    """How a learned policy sees a scenario's cluster."""
    shape = scenario.workloads.ramp.shape
    return Layout((shape.groups, shape.racks, shape.servers), scenario.workloads.degrees)


class VectorEpisodes:
    """Episodes with the seeds ``first_seed``, ``first_seed`` + 1, … in ``count`` lanes.

    ``scenarios`` take turns, one for each episode; they share workloads and placement rule. With
    ``staggered``, the first episode of each lane is begun somewhere in its middle, with an empty
    cluster, so that not all end at once; such an episode's result is left out.
    """

    def __init__(
        self, scenarios: Sequence[Scenario], count: int, first_seed: int, staggered: bool = False
    ) -> None:
        first = scenarios[0]
        if any(s.workloads is not first.workloads or s.rule != first.rule for s in scenarios):
            raise BadInput("lanes need scenarios of the same workloads and placement rule")
        if any(s.failures is not None for s in scenarios):
            raise BadInput("lanes cannot simulate servers that break: use single episodes")
        self.scenarios, self.count, self.layout = tuple(scenarios), count, layout_of(first)
        self.workloads, self.rule = first.workloads, first.rule
        self._next_seed = first_seed
        size, graphs = self.layout.servers, len(self.workloads.names)
        self._rows = np.arange(count)
        self._prepare_blocks()
        self._prepare_times()
        described = [graph_features(graph) for graph in self.workloads.graphs]
        self.nodes = np.stack([nodes for nodes, _ in described])
        self.edges = np.stack([edges for _, edges in described])
        self._until = np.zeros((count, size))  # when each server is free again
        self.scenario_of = np.zeros(count, int)
        self.seed_of = np.zeros(count, int)
        self._whole = np.ones(count, bool)
        self.fresh = np.ones(count, bool)  # whose waiting job is the first of its episode
        self._place = np.zeros(count, int)
        self._jobs = [self._draw(lane) for lane in range(count)]
        self._first_times = np.full((count, graphs, len(self.block_sizes)), np.nan)
        self.blocked = np.zeros(count, int)
        self.unfinished = np.zeros(count, int)
        if staggered:
            rng = np.random.default_rng([first_seed, count])
            for lane, jobs in enumerate(self._jobs):
                self._place[lane] = rng.integers(jobs.decisions)
                self._whole[lane] = self._place[lane] == 0
        self._load(self._rows)
        self._look()

    # What is the same in all lanes.

    def _prepare_blocks(self) -> None:
        workloads, degrees = self.workloads, self.layout.degrees
        plans = workloads.plans
        self.block_sizes = sorted(
            {n for each in plans for plan in each.values() for n in plan.splits}
        )
        size = self.layout.servers
        self._blocks = [workloads.ramp.blocks(count) for count in self.block_sizes]
        # A block's servers as a row of 0 and 1; one more row, of none, for "there is no block".
        self._members = []
        for blocks in self._blocks:
            members = np.zeros((len(blocks) + 1, size), np.float32)
            for row, block in enumerate(blocks):
                members[row, list(block.servers)] = 1.0
            self._members.append(members)
        self._needs = np.zeros((len(plans), len(degrees), len(self.block_sizes)), bool)
        self._largest = np.zeros((len(plans), len(degrees)), int)
        self._possible = np.zeros((len(plans), len(degrees)), bool)
        for graph, each in enumerate(plans):
            for column, degree in enumerate(degrees):
                plan = each[degree]
                wanted = plan.splits
                if self.rule == PlacementRule.RAMP_BLOCK:
                    wanted = plan.splits[-1:]
                for count in wanted:
                    self._needs[graph, column, self.block_sizes.index(count)] = True
                self._largest[graph, column] = self.block_sizes.index(plan.max_split)
                self._possible[graph, column] = plan.fits_memory
        self._most_taken = self._needs.any(axis=(0, 1))

    def _prepare_times(self) -> None:
        workloads, degrees = self.workloads, self.layout.degrees
        self._expected_s = np.array(
            [
                [workloads.expected_s(graph, degree, self.rule) for degree in degrees]
                for graph in range(len(workloads.names))
            ]
        )
        most = max(map(len, self._blocks))
        self._times = np.full((len(workloads.names), len(degrees), most), np.nan)

    # What is each lane's own.

    def _draw(self, lane: int) -> _Jobs:
        seed, self._next_seed = self._next_seed, self._next_seed + 1
        which = seed % len(self.scenarios)
        self.scenario_of[lane], self.seed_of[lane] = which, seed
        return _Jobs.of(self.scenarios[which], seed)

    def _load(self, lanes: NDArray[np.intp]) -> None:
        """The jobs of these lanes come into arrays, a column for each job."""
        if not hasattr(self, "_arrived"):
            longest = max(len(jobs.graph) for jobs in self._jobs) + 1
            self._arrived = np.zeros((self.count, longest))
            self._graph = np.zeros((self.count, longest), int)
            self._beta = np.zeros((self.count, longest))
            self._recent = np.zeros(
                (self.count, longest + 1, self.layout.shapes["recent"][0]), np.float32
            )
            self._last = np.zeros(self.count, int)
            self._horizon_s = np.zeros(self.count)
        for lane in lanes.tolist():
            jobs = self._jobs[lane]
            many = len(jobs.graph)
            if many >= self._graph.shape[1]:
                wider = many + many // 4
                self._arrived = _widened(self._arrived, wider)
                self._graph = _widened(self._graph, wider)
                self._beta = _widened(self._beta, wider)
                self._recent = _widened(self._recent, wider + 1)
            self._arrived[lane, :many] = jobs.arrived_s
            self._horizon_s[lane] = jobs.horizon_s
            self._graph[lane, :many] = jobs.graph
            self._beta[lane, :many] = jobs.beta
            self._recent[lane, : many + 1] = jobs.recent
            self._last[lane] = jobs.decisions

    def _look(self) -> None:
        """Where each lane's waiting job would go at each degree."""
        rows, place = self._rows, self._place
        self.now_s: _Floats = self._arrived[rows, place]
        self.graph = self._graph[rows, place]
        self.beta = self._beta[rows, place]
        alone = np.array(self.workloads.sequential_s)[self.graph]
        self.sequential_s = alone
        self.limit_s = self.beta * alone
        self.expected_s = self._expected_s[self.graph]
        self._left = np.maximum(self._until - self.now_s[:, None] - EPSILON_S, 0.0)
        busy = (self._left > 0).astype(np.float32)
        self.free = self.layout.servers - busy.sum(axis=1)
        self._first, self.has_block = [], []
        taken = []
        for members in self._members:
            overlap = busy @ members[:-1].T
            free = overlap == 0
            some = free.any(axis=1)
            first = np.where(some, free.argmax(axis=1), len(members) - 1)
            self.has_block.append(some)
            self._first.append(first)
            taken.append(members[first])
        needs = self._needs[self.graph]  # lanes × degrees × counts
        missing = ~np.stack(self.has_block, axis=1)
        self.fits = ~(needs & missing[:, None, :]).any(axis=2) & self._possible[self.graph]
        self.fits &= np.array(self.layout.degrees) <= self.free[:, None]
        servers = np.zeros((self.count, len(self.layout.degrees), self.layout.servers), np.float32)
        for column, each in enumerate(taken):
            np.maximum(servers, needs[:, :, column, None] * each[:, None, :], out=servers)
        self.servers = servers
        self.mask = np.ones((self.count, len(self.layout.degrees) + 1), bool)
        self.mask[:, 1:] = self.fits & (self.expected_s <= self.limit_s[:, None])

    def remaining(self, out: Array | None = None) -> Array:
        """Afterstates: for each lane, action and server how long it would be busy, in units."""
        shape = (self.count, len(self.layout.degrees) + 1, self.layout.servers)
        found = np.empty(shape, np.float32) if out is None else out
        now = np.minimum((self._left + EPSILON_S * (self._left > 0)) / UNIT_S, LONGEST)
        found[:] = now[:, None, :]
        taken = self.servers * self.mask[:, 1:, None]
        lasting = np.minimum(self.expected_s / UNIT_S, LONGEST).astype(np.float32)
        found[:, 1:] += taken * lasting[:, :, None]
        return found

    def observe(self, out: Observation) -> Observation:
        """The observation of every lane, written into ``out``'s arrays."""
        self.remaining(out["remaining"])
        size = self.layout.servers
        options = out["options"]
        options[:, 0] = 0.0
        options[:, 1:, 0] = np.array(self.layout.degrees) / size
        options[:, 1:, 1] = np.minimum(self.expected_s / UNIT_S, LONGEST)
        options[:, 1:, 2] = np.minimum(self.expected_s / self.limit_s[:, None], LONGEST)
        options[:, 1:, 3] = self.servers.sum(axis=2) * self.mask[:, 1:] / size
        out["mask"][:] = self.mask
        job = out["job"]
        job[:, 0] = np.minimum(self.beta, 1.0)
        job[:, 1] = np.minimum(self.sequential_s / UNIT_S, LONGEST)
        job[:, 2] = np.minimum(self.limit_s / UNIT_S, LONGEST)
        job[:, 3] = self.free / size
        out["recent"][:] = self.recent
        np.take(self.nodes, self.graph, axis=0, out=out["nodes"])
        np.take(self.edges, self.graph, axis=0, out=out["edges"])
        return out

    @property
    def recent(self) -> Array:
        """What the jobs before the waiting ones asked for."""
        found: Array = self._recent[self._rows, self._place]
        return found

    def step(self, actions: NDArray[np.intp]) -> tuple[NDArray[np.bool_], list[Finished]]:
        """Decide in every lane: who was accepted, and which episodes came to their end.

        A lane whose episode ended has begun its next one.
        """
        rows, column = self._rows, actions - 1
        wanted = actions > 0
        accepted = wanted & self.fits[rows, np.maximum(column, 0)]
        lasting = np.zeros(self.count)
        if accepted.any():
            chosen = np.flatnonzero(accepted)
            lasting[chosen] = self._lasting(chosen, column[chosen])
            accepted &= lasting <= self.limit_s * _ROUNDING
            chosen = np.flatnonzero(accepted)
            ends = self.now_s + lasting
            servers = self.servers[chosen, column[chosen]] > 0
            self._until[chosen] = np.where(servers, ends[chosen, None], self._until[chosen])
            self.unfinished += accepted & (ends > self._horizon_s + EPSILON_S)
        self.blocked += ~accepted
        self._place += 1
        self.fresh = self._place >= self._last
        over = np.flatnonzero(self.fresh)
        finished = self._finish(over) if len(over) else []
        self._look()
        return accepted, finished

    def _lasting(self, lanes: NDArray[np.intp], column: NDArray[np.intp]) -> _Floats:
        """How long the jobs of these lanes take at these degrees, on the servers they get."""
        graph = self.graph[lanes]
        largest = self._largest[graph, column]
        if self.scenarios[0].reuse_first_time:
            found = self._first_times[lanes, graph, largest]
        else:
            block = np.stack(self._first, axis=1)[lanes, largest]
            found = self._times[graph, column, block]
        for place in np.flatnonzero(np.isnan(found)).tolist():
            lane, g, c = int(lanes[place]), int(graph[place]), int(column[place])
            degree = self.layout.degrees[c]
            splits = self.workloads.plans[g][degree].splits
            most = int(largest[place])
            whole = self._blocks[most][int(self._first[most][lane])]
            if self.rule == PlacementRule.RAMP_BLOCK:
                blocks = sub_blocks(self.workloads.ramp, whole, splits)
            else:
                where = [self.block_sizes.index(n) for n in splits]
                blocks = tuple(self._blocks[i][int(self._first[i][lane])] for i in where)
            found[place] = self.workloads.completion_s(g, degree, blocks)
            if self.scenarios[0].reuse_first_time:
                self._first_times[lane, g, most] = found[place]
            else:
                self._times[g, c, int(self._first[most][lane])] = found[place]
        return found

    def _finish(self, lanes: NDArray[np.intp]) -> list[Finished]:
        finished = []
        for lane in lanes.tolist():
            if self._whole[lane]:
                blocked = int(self.blocked[lane] + self.unfinished[lane])
                arrivals = len(self._jobs[lane].graph)
                finished.append(
                    Finished(
                        lane,
                        int(self.scenario_of[lane]),
                        int(self.seed_of[lane]),
                        blocked / arrivals,
                    )
                )
            self._jobs[lane] = self._draw(lane)
        self._until[lanes] = 0.0
        self._first_times[lanes] = np.nan
        self.blocked[lanes] = self.unfinished[lanes] = self._place[lanes] = 0
        self._whole[lanes] = True
        self._load(lanes)
        return finished


@dataclass(frozen=True, slots=True)
class _Jobs:
    """The jobs of one episode as columns; of the last ones some may not be decided on."""

    graph: NDArray[np.intp]
    beta: _Floats
    arrived_s: _Floats
    recent: Array
    decisions: int
    horizon_s: float

    @classmethod
    def of(cls, scenario: Scenario, seed: int) -> _Jobs:
        jobs = scenario.jobs(seed)
        if not jobs or jobs[0].arrived_s >= scenario.horizon_s:
            raise BadInput(f"the episode with seed {seed} has no job to decide on")
        return cls(
            np.array([job.graph for job in jobs]),
            np.array([job.requirement for job in jobs]),
            np.array([job.arrived_s for job in jobs]),
            recent_features([j.requirement for j in jobs], [j.sequential_s for j in jobs]),
            sum(job.arrived_s < scenario.horizon_s for job in jobs),
            scenario.horizon_s,
        )


def _widened(array: NDArray, columns: int) -> NDArray:  # type: ignore[type-arg]
    wider = np.zeros((len(array), columns, *array.shape[2:]), array.dtype)
    wider[:, : array.shape[1]] = array
    return wider
