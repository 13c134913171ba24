"""What many episodes at once need as arrays: their jobs, and which blocks of a RAMP are free.

Loops are compiled where Numba is installed (extra ``fast``), and slow elsewhere.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from patchlight.controller.policies.observation import (
    RECENT_FEATURES,
    Array,
    recent_features,
)
from patchlight.emulation.simulator.network.sharing import compiled
from patchlight.emulation.simulator.ramp.ramp import Block, Ramp
from patchlight.emulation.simulator.ramp.scenario import Scenario
from patchlight.testbed.errors import BadInput

_Floats = NDArray[np.float64]
_Ints = NDArray[np.int64]
_Bools = NDArray[np.bool_]


class BlockTable:
    """The blocks of some sizes, one after the other, each size in the order of first fit.

    Block b has the servers ``members[first[b]]`` to ``members[first[b + 1] - 1]``; those of the
    k-th size are the ones from ``begin[k]`` to ``begin[k + 1] - 1``.
    """

    def __init__(self, ramp: Ramp, sizes: Sequence[int]) -> None:
        self.sizes = tuple(sizes)
        self.servers = ramp.shape.size
        self.blocks: tuple[tuple[Block, ...], ...] = tuple(
            ramp.blocks(size) for size in sizes
        )
        each = [block.servers for blocks in self.blocks for block in blocks]
        self.members = np.array(
            [server for servers in each for server in servers], np.int64
        )
        self.first = np.cumsum([0, *map(len, each)]).astype(np.int64)
        self.begin = np.cumsum([0, *map(len, self.blocks)]).astype(np.int64)

    def block(self, size: int, number: int) -> Block:
        """Block ``number``, one of the size at this place."""
        return self.blocks[size][int(number - self.begin[size])]

    def first_free(self, left_s: _Floats) -> _Ints:
        """The first free block of each size, E × sizes, −1 where there is none.

        ``left_s`` E × servers is for how long each server is still busy.
        """
        found = np.empty((len(left_s), len(self.sizes)), np.int64)
        _first_free(
            left_s,
            self.members,
            self.first,
            self.begin,
            found,
        )
        return found

    def taken(self, needs: _Bools, chosen: _Ints) -> _Bools:
        """The servers, N × servers, of those ``chosen`` blocks that are needed, both N × sizes."""
        found = np.zeros((len(chosen), self.servers), bool)
        _taken(
            needs,
            chosen,
            self.members,
            self.first,
            found,
        )
        return found


class BlockChoices:
    """Which ``count`` free blocks of a size a policy may choose from.

    The first one, and those that take the fewest other free blocks away, counted in servers.
    """

    def __init__(self, table: BlockTable, count: int) -> None:
        self._table = table
        self.others = np.arange(1, count)[:, None]
        """The places of all but the first one, as a column."""
        sizes = np.diff(table.first)
        is_member = np.zeros((len(sizes), table.servers), np.int64)
        is_member[np.repeat(np.arange(len(sizes)), sizes), table.members] = 1
        # From each other block.
        self._takes = np.where(is_member @ is_member.T > 0, sizes, 0)

    def of(
        self,
        left_s: _Floats,
        first: _Ints,
        wanted: _Bools,
    ) -> _Ints:
        """Of each size these free blocks, E × count × sizes, −1 where there are no more.

        ``left_s`` as for ``BlockTable.first_free``, ``first`` what that found. Others are found
        only of the sizes ``wanted``, E × sizes, and only those blocks count as taken away.
        """
        table = self._table
        found = np.full((len(first), len(self.others) + 1, first.shape[1]), -1)
        found[:, 0] = first
        _least_harmful(
            left_s,
            table.members,
            table.first,
            table.begin,
            self._takes,
            wanted,
            found,
        )
        return found


@dataclass(
    frozen=True,
    slots=True,
)
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
    def of(cls, scenario: Scenario, seed: int) -> "EpisodeJobs":
        """Of the episode with this seed; ``BadInput`` if it has none to decide on."""
        jobs = scenario.jobs(seed)
        if not jobs or jobs[0].arrived_s >= scenario.horizon_s:
            raise BadInput(
                f"the episode with seed {seed} has no job to decide on"
            )
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


class JobColumns:
    """The jobs of an episode in each of E environments, in arrays with a column for each job.

    Episodes have the seeds from ``first_seed`` on, and ``scenarios`` take turns.
    """

    def __init__(
        self,
        scenarios: Sequence[Scenario],
        num_envs: int,
        first_seed: int,
    ) -> None:
        self._scenarios = scenarios
        self._next_seed = first_seed
        self.scenario_of = np.zeros(num_envs, int)
        self.seed_of = np.zeros(num_envs, int)
        self.jobs = [self._drawn(env) for env in range(num_envs)]
        longest = max(len(jobs.graph) for jobs in self.jobs) + 1
        self.arrived_s = np.zeros((num_envs, longest))
        self.beta = np.zeros((num_envs, longest))
        self.graph = np.zeros((num_envs, longest), int)
        self.recent = np.zeros(
            (num_envs, longest + 1, RECENT_FEATURES), np.float32
        )
        self.decisions = np.zeros(num_envs, int)
        self.horizon_s = np.zeros(num_envs)
        self._load(range(num_envs))

    def draw(self, envs: Sequence[int]) -> None:
        """These environments go on to the next episodes."""
        for env in envs:
            self.jobs[env] = self._drawn(env)
        self._load(envs)

    def _drawn(self, env: int) -> "EpisodeJobs":
        seed = self._next_seed
        self._next_seed = self._next_seed + 1
        which = seed % len(self._scenarios)
        self.scenario_of[env] = which
        self.seed_of[env] = seed
        return EpisodeJobs.of(self._scenarios[which], seed)

    def _load(self, envs: Iterable[int]) -> None:
        for env in envs:
            jobs = self.jobs[env]
            many = len(jobs.graph)
            if many >= self.graph.shape[1]:
                wider = many + many // 4
                self.arrived_s = _widened(self.arrived_s, wider)
                self.graph = _widened(self.graph, wider)
                self.beta = _widened(self.beta, wider)
                self.recent = _widened(self.recent, wider + 1)
            self.arrived_s[env, :many] = jobs.arrived_s
            self.horizon_s[env] = jobs.horizon_s
            self.graph[env, :many] = jobs.graph
            self.beta[env, :many] = jobs.beta
            self.recent[env, : many + 1] = jobs.recent
            self.decisions[env] = jobs.decisions


def _widened(array: NDArray, columns: int) -> NDArray:  # type: ignore[type-arg]
    wider = np.zeros((len(array), columns, *array.shape[2:]), array.dtype)
    wider[:, : array.shape[1]] = array
    return wider


@compiled
def _first_free(
    left_s: _Floats,
    members: _Ints,
    first: _Ints,
    begin: _Ints,
    out: _Ints,
) -> None:
    for env in range(len(left_s)):
        for size in range(out.shape[1]):
            out[env, size] = -1
            for block in range(begin[size], begin[size + 1]):
                free = True
                for place in range(first[block], first[block + 1]):
                    if left_s[env, members[place]] > 0:
                        free = False
                        break
                if free:
                    out[env, size] = block
                    break


@compiled
def _is_free(
    left_s: _Floats,
    members: _Ints,
    first: _Ints,
    block: int,
) -> bool:
    for place in range(first[block], first[block + 1]):  # noqa: SIM110  (Numba knows no any)
        if left_s[members[place]] > 0:
            return False
    return True


@compiled
def _least_harmful(
    left_s: _Floats,
    members: _Ints,
    first: _Ints,
    begin: _Ints,
    takes: _Ints,
    wanted: _Bools,
    out: _Ints,
) -> None:
    most = len(first) - 1
    free = np.zeros(len(first) - 1, np.int64)
    left = np.zeros(most, np.bool_)
    harm = np.zeros(most, np.int64)
    for env in range(len(left_s)):
        count = 0
        for size in range(out.shape[2]):
            if not wanted[env, size]:
                continue
            for block in range(begin[size], begin[size + 1]):
                left[block] = _is_free(left_s[env], members, first, block)
                if left[block]:
                    free[count] = block
                    count += 1
        for number in range(count):
            block = free[number]
            harm[block] = 0
            for other in range(count):
                harm[block] += takes[block, free[other]]
        for size in range(out.shape[2]):
            if not wanted[env, size]:
                continue
            left[out[env, 0, size]] = False
            for choice in range(1, out.shape[1]):
                best = -1
                for block in range(begin[size], begin[size + 1]):
                    if left[block] and (best < 0 or harm[block] < harm[best]):
                        best = block
                if best < 0:
                    break
                left[best] = False
                out[env, choice, size] = best


@compiled
def _taken(
    needs: _Bools,
    chosen: _Ints,
    members: _Ints,
    first: _Ints,
    out: _Bools,
) -> None:
    for row in range(len(chosen)):
        for size in range(chosen.shape[1]):
            block = chosen[row, size]
            if needs[row, size] and block >= 0:
                for place in range(first[block], first[block + 1]):
                    out[row, members[place]] = True
