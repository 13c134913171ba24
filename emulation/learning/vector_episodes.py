"""Simulates many loss networks at once, as arrays, for fast learning.

Each of ``num_envs`` environments plays one episode of a scenario after the other, as ``Episode``
does, and comes job for job to the same result. Its cluster is a row of numbers: when each server is
free again. So one step of all is some dozens of array operations. Servers do not break here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from patchlight.controller.policies.observation import (
    LONGEST,
    UNIT_S,
    Array,
    Observation,
    ObservationLayout,
    graph_features,
)
from patchlight.emulation.learning.episode_arrays import (
    BlockChoices,
    BlockTable,
    JobColumns,
)
from patchlight.emulation.simulator.ramp.lossnetwork import EPSILON_S
from patchlight.emulation.simulator.ramp.ramp import PlacementRule, sub_blocks
from patchlight.emulation.simulator.ramp.scenario import Scenario
from patchlight.testbed.errors import BadInput

_ROUNDING = 1 + 1e-12
_Floats = NDArray[np.float64]


@dataclass(
    frozen=True,
    slots=True,
)
class Finished:
    """An episode that ended: which it was, and its faithful blocking rate."""

    env: int
    scenario: int
    seed: int
    blocking_rate: float


def layout_of(scenario: Scenario) -> ObservationLayout:
    """How a learned policy sees a scenario's cluster."""
    shape = scenario.workloads.ramp.shape
    return ObservationLayout(
        (shape.groups, shape.racks, shape.servers), scenario.workloads.degrees
    )


class VectorEpisodes:
    """Episodes with the seeds ``first_seed``, ``first_seed`` + 1, … in ``num_envs`` environments.

    ``scenarios`` take turns, one for each episode; they share workloads and placement rule. With
    ``staggered``, the first episode of each environment is begun somewhere in its middle, with an
    empty cluster, so that not all end at once; such an episode's result is left out.

    Action 0 refuses, 1 to D take a degree on the first free block. With ``blocks`` of more than 1,
    where a rule places a job in one block, D times as many follow: each degree on the other block
    that does the least harm, then on the next (``BlockChoices``).

    Public arrays; E environments, D degrees, A = blocks · D + 1 actions, S servers, G graphs:

    | array | shape | what |
    |---|---|---|
    | ``now_s`` | E | when the waiting job came, in seconds |
    | ``graph`` | E | its computation graph, 0 to G − 1 |
    | ``beta`` | E | the part of its sequential time in which it must complete |
    | ``sequential_s``, ``limit_s`` | E | its time on one GPU; that within which it must complete |
    | ``expected_s`` | E × D | about how long it takes |
    | ``fits`` | E × D | whether it has a place now |
    | ``mask`` | E × A | which actions can succeed |
    | ``free`` | E | how many servers are free |
    | ``has_block`` | list of E | for each of ``block_sizes``, whether a block is free |
    | ``recent`` | E × RECENT_FEATURES | what the jobs before it asked for |
    | ``graphs`` | two of G × … | the computation graphs' operations and edges |
    | ``scenario_of``, ``seed_of`` | E | the episode's scenario and seed |
    | ``jobs`` | list of E | all jobs of the episode |
    | ``episode_start`` | E | whether the job is the first of its episode |
    | ``blocked``, ``unfinished`` | E | the episode's jobs so far: blocked, to run at its end |
    """

    def __init__(
        self,
        scenarios: Sequence[Scenario],
        num_envs: int,
        first_seed: int,
        staggered: bool = False,
        blocks: int = 1,
    ) -> None:
        first = scenarios[0]
        if any(
            s.workloads is not first.workloads or s.rule != first.rule
            for s in scenarios
        ):
            raise BadInput(
                "parallel scenarios need the same workloads and placement rule"
            )
        if any(s.failures is not None for s in scenarios):
            raise BadInput(
                "vector episodes cannot simulate server failures: use single episodes"
            )
        if blocks > 1 and first.rule != PlacementRule.RAMP_BLOCK:
            raise BadInput(
                f"a block is chosen under {PlacementRule.RAMP_BLOCK.value}, not {first.rule}"
            )
        self.scenarios = tuple(scenarios)
        self.num_envs = num_envs
        self.blocks = blocks
        self.layout = layout_of(first)
        self.workloads = first.workloads
        self.rule = first.rule
        size = self.layout.servers
        graphs = len(self.workloads.names)
        self._rows = np.arange(num_envs)
        self._prepare_blocks(blocks)
        self._prepare_times()
        # When each server is free again.
        self._until = np.zeros((num_envs, size))
        self._told: _Floats | None = (
            None  # of the remaining time, if that is not what it is
        )
        if any(s.remaining_error for s in scenarios):
            self._told = np.ones((num_envs, size))
        self._columns = JobColumns(self.scenarios, num_envs, first_seed)
        self.jobs = self._columns.jobs
        self.scenario_of = self._columns.scenario_of
        self.seed_of = self._columns.seed_of
        self._whole = np.ones(num_envs, bool)
        self.episode_start = np.ones(num_envs, bool)
        self._position = np.zeros(num_envs, int)
        self._first_times = np.full(
            (num_envs, graphs, len(self.block_sizes)), np.nan
        )
        self.blocked = np.zeros(num_envs, int)
        self.unfinished = np.zeros(num_envs, int)
        if staggered:
            rng = np.random.default_rng([first_seed, num_envs])
            for env, jobs in enumerate(self.jobs):
                self._position[env] = rng.integers(jobs.decisions)
                self._whole[env] = self._position[env] == 0
        self._decide_options()

    # What is the same in all environments.

    @cached_property
    def graphs(self) -> tuple[Array, Array]:
        """``nodes`` and ``edges``: features of each model's computation graph."""
        each = (graph_features(graph) for graph in self.workloads.graphs)
        nodes, edges = zip(*each, strict=True)
        return np.stack(nodes), np.stack(edges)

    def _prepare_blocks(self, blocks: int) -> None:
        workloads = self.workloads
        degrees = self.layout.degrees
        plans = workloads.plans
        self.block_sizes = sorted(
            {
                n
                for each in plans
                for plan in each.values()
                for n in plan.splits
            }
        )
        self._table = BlockTable(workloads.ramp, self.block_sizes)
        self._choices = (
            BlockChoices(self._table, blocks) if blocks > 1 else None
        )
        self._degrees = np.array(degrees)
        self._needs = np.zeros(
            (len(plans), len(degrees), len(self.block_sizes)), bool
        )
        self._largest = np.zeros((len(plans), len(degrees)), int)
        self._possible = np.zeros((len(plans), len(degrees)), bool)
        for graph, each in enumerate(plans):
            for column, degree in enumerate(degrees):
                plan = each[degree]
                whole = self.rule == PlacementRule.RAMP_BLOCK
                for count in plan.splits[-1:] if whole else plan.splits:
                    self._needs[
                        graph, column, self.block_sizes.index(count)
                    ] = True
                self._largest[graph, column] = self.block_sizes.index(
                    plan.max_split
                )
                self._possible[graph, column] = plan.fits_memory

    def _prepare_times(self) -> None:
        workloads = self.workloads
        degrees = self.layout.degrees
        graphs = range(len(workloads.names))
        most = int(self._table.begin[-1])
        self._expected_s = np.array(
            [
                [
                    workloads.expected_s(g, degree, self.rule)
                    for degree in degrees
                ]
                for g in graphs
            ]
        )
        self._times = np.full((len(graphs), len(degrees), most), np.nan)

    # What is each environment's own.

    def _decide_options(self) -> None:
        """Where each environment's waiting job would go at each degree."""
        rows = self._rows
        position = self._position
        self.now_s: _Floats = self._columns.arrived_s[rows, position]
        self.graph = self._columns.graph[rows, position]
        self.beta = self._columns.beta[rows, position]
        alone = np.array(self.workloads.sequential_s)[self.graph]
        self.sequential_s = alone
        self.limit_s = self.beta * alone
        self.expected_s = self.expected_at(self.graph)
        self._left = np.maximum(
            self._until - self.now_s[:, None] - EPSILON_S, 0.0
        )
        self.free = self.layout.servers - np.count_nonzero(self._left, axis=1)
        first = self._table.first_free(self._left)
        self.has_block = list((first >= 0).T)
        missing = self._needs[self.graph] & (first < 0)[:, None, :]
        self.fits = ~missing.any(axis=2) & self._possible[self.graph]
        self.fits &= self._degrees <= self.free[:, None]
        legal = self.fits & (self.expected_s <= self.limit_s[:, None])
        self._blocks = first[:, None, :]
        parts = [np.ones((self.num_envs, 1), bool), legal]
        if self._choices is not None:
            largest = self._largest[self.graph]
            wanted = np.zeros(first.shape, bool)
            wanted[np.nonzero(legal)[0], largest[legal]] = True
            self._blocks = self._choices.of(self._left, first, wanted)
            there = (
                self._blocks[
                    rows[:, None, None], self._choices.others, largest[:, None]
                ]
                >= 0
            )
            parts.append((there & legal[:, None]).reshape(self.num_envs, -1))
        self.mask = np.concatenate(parts, axis=1)

    def expected_at(self, graph: NDArray[np.intp]) -> _Floats:
        """About how long these models' jobs take at each degree, N × D."""
        found: _Floats = self._expected_s[graph]
        return found

    def servers(
        self, envs: NDArray[np.intp], actions: NDArray[np.intp]
    ) -> NDArray[np.bool_]:
        """The servers, N × S, that jobs of these environments would get by these actions."""
        column, choice = self._parted(actions)
        needs = self._needs[self.graph[envs], column]
        return self._table.taken(needs, self._blocks[envs, choice])

    def _parted(
        self, actions: NDArray[np.intp]
    ) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Of actions above 0 the degree's column and which of its blocks it is."""
        choice, column = np.divmod(
            np.maximum(actions - 1, 0), len(self._degrees)
        )
        return column, choice

    def afterstates(
        self, envs: NDArray[np.intp], actions: NDArray[np.intp]
    ) -> Array:
        """How long each server would be busy after these actions, N × S, in ``UNIT_S``.

        As the servers are now after an action that cannot succeed.
        """
        left = self._left[envs]
        if self._told is not None:
            left *= self._told[envs]
        now = np.minimum((left + EPSILON_S * (left > 0)) / UNIT_S, LONGEST)
        found: Array = now.astype(np.float32)
        column, _ = self._parted(actions)
        placed = np.flatnonzero((actions > 0) & self.mask[envs, actions])
        lasting_s = self.expected_s[envs, column]
        lasting = np.minimum(lasting_s[placed] / UNIT_S, LONGEST)
        taken = self.servers(envs[placed], actions[placed])
        found[placed] = np.where(taken, lasting[:, None], found[placed])
        return found

    def remaining(self, out: Array | None = None) -> Array:
        """Afterstates of all actions, E × A × S."""
        shape = (*self.mask.shape, self.layout.servers)
        envs, actions = (each.ravel() for each in np.indices(shape[:2]))
        found: Array = self.afterstates(envs, actions).reshape(shape)
        if out is None:
            return found
        out[:] = found
        return out

    def observe(self, out: Observation) -> Observation:
        """The observation of every environment, written into ``out``'s arrays."""
        self.remaining(out["remaining"])
        out["options"][:], out["job"][:] = self._described()
        out["mask"][:] = self.mask
        out["recent"][:] = self.recent
        for name, features in zip(
            ("nodes", "edges"), self.graphs, strict=True
        ):
            np.take(
                features,
                self.graph,
                axis=0,
                out=out[name],
            )
        return out

    def _described(self) -> tuple[Array, Array]:
        """``options`` and ``job`` of every environment."""
        size = self.layout.servers
        options = np.zeros(
            (self.num_envs, *self.layout.shapes["options"]), np.float32
        )
        job = np.zeros((self.num_envs, *self.layout.shapes["job"]), np.float32)
        options[:, 1:, 0] = np.array(self.layout.degrees) / size
        options[:, 1:, 1] = np.minimum(self.expected_s / UNIT_S, LONGEST)
        options[:, 1:, 2] = np.minimum(
            self.expected_s / self.limit_s[:, None], LONGEST
        )
        envs, column = np.nonzero(self.mask[:, 1 : 1 + len(self._degrees)])
        options[envs, 1 + column, 3] = (
            self.servers(envs, 1 + column).sum(axis=1) / size
        )
        job[:, 0] = np.minimum(self.beta, 1.0)
        job[:, 1] = np.minimum(self.sequential_s / UNIT_S, LONGEST)
        job[:, 2] = np.minimum(self.limit_s / UNIT_S, LONGEST)
        job[:, 3] = self.free / size
        return options, job

    @property
    def running(self) -> NDArray[np.intp]:
        """How many jobs run in every environment; two that end at one moment count once."""
        ends = np.sort(self._left, axis=1)
        found: NDArray[np.intp] = (
            np.diff(
                ends,
                axis=1,
                prepend=0.0,
            )
            > 0
        ).sum(axis=1)
        return found

    @property
    def recent(self) -> Array:
        """What the jobs before the waiting ones asked for."""
        found: Array = self._columns.recent[self._rows, self._position]
        return found

    def step(
        self, actions: NDArray[np.intp]
    ) -> tuple[NDArray[np.bool_], list[Finished]]:
        """Decide in every environment: who was accepted (E), and which episodes ended.

        ``actions`` has one for each. Where an episode ended, the next one has begun.
        """
        column, choice = self._parted(actions)
        # Another block than the first one is there only where the mask has it.
        there = self.fits[self._rows, column] & (
            (choice == 0) | self.mask[self._rows, actions]
        )
        accepted = (actions > 0) & there
        lasting = np.zeros(self.num_envs)
        if accepted.any():
            chosen = np.flatnonzero(accepted)
            lasting[chosen] = self._lasting(chosen, actions[chosen])
            accepted &= lasting <= self.limit_s * _ROUNDING
            chosen = np.flatnonzero(accepted)
            ends = self.now_s + lasting
            servers = self.servers(chosen, actions[chosen])
            self._until[chosen] = np.where(
                servers, ends[chosen, None], self._until[chosen]
            )
            if self._told is not None:
                told = np.array(
                    [self._told_of(env) for env in chosen.tolist()]
                )
                self._told[chosen] = np.where(
                    servers, told[:, None], self._told[chosen]
                )
            self.unfinished += accepted & (
                ends > self._columns.horizon_s + EPSILON_S
            )
        self.blocked += ~accepted
        self._position += 1
        self.episode_start = self._position >= self._columns.decisions
        over = np.flatnonzero(self.episode_start)
        finished = self._finish(over) if len(over) else []
        self._decide_options()
        return accepted, finished

    def _lasting(
        self, envs: NDArray[np.intp], actions: NDArray[np.intp]
    ) -> _Floats:
        """How long these environments' jobs take by these actions, on the servers they get."""
        graph = self.graph[envs]
        column, choice = self._parted(actions)
        largest = self._largest[graph, column]
        mine = self._blocks[envs, choice]
        place = mine[np.arange(len(envs)), largest]
        if self.scenarios[0].reuse_first_time:
            found = self._first_times[envs, graph, largest]
        else:
            found = self._times[graph, column, place]
        for number in np.flatnonzero(np.isnan(found)).tolist():
            env = int(envs[number])
            g = int(graph[number])
            c = int(column[number])
            degree = self.layout.degrees[c]
            splits = self.workloads.plans[g][degree].splits
            most = int(largest[number])
            if self.rule == PlacementRule.RAMP_BLOCK:
                block = self._table.block(most, place[number])
                blocks = sub_blocks(self.workloads.ramp, block, splits)
            else:
                sizes = [self.block_sizes.index(n) for n in splits]
                blocks = tuple(
                    self._table.block(n, mine[number, n]) for n in sizes
                )
            found[number] = self.workloads.completion_s(g, degree, blocks)
            if self.scenarios[0].reuse_first_time:
                self._first_times[env, g, most] = found[number]
            else:
                self._times[g, c, place[number]] = found[number]
        return found

    def _told_of(self, env: int) -> float:
        """What is told of the remaining time of an environment's waiting job, as a share."""
        told = self.jobs[env].told_over_true
        return 1.0 if told is None else float(told[self._position[env]])

    def _finish(self, envs: NDArray[np.intp]) -> list[Finished]:
        finished = []
        for env in envs.tolist():
            if self._whole[env]:
                blocked = int(self.blocked[env] + self.unfinished[env])
                rate = blocked / len(self.jobs[env].graph)
                scenario = int(self.scenario_of[env])
                seed = int(self.seed_of[env])
                finished.append(
                    Finished(
                        env,
                        scenario,
                        seed,
                        rate,
                    )
                )
        self._columns.draw(envs.tolist())
        self._until[envs] = 0.0
        self._first_times[envs] = np.nan
        self.blocked[envs] = self.unfinished[envs] = self._position[envs] = 0
        self._whole[envs] = True
        return finished
