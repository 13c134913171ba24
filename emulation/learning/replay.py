"""Replay memory of vectorised play: each observation once, n-step returns made when it is drawn."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_Floats = NDArray[np.float64]
Observed = tuple[NDArray[np.generic], ...]


class Chunk(NamedTuple):
    """Some decisions in a row, T of them in each of E environments.

    ``observed`` are arrays T × E × …, ``actions`` and ``rewards`` T × E; ``last`` T × E says that
    what comes next is of another episode. ``follows`` is whether the first of them comes right
    after the last of the chunk before.
    """

    observed: Observed
    actions: NDArray[np.intp]
    rewards: _Floats
    last: NDArray[np.bool_]
    follows: bool


class Sample(NamedTuple):
    """N drawn decisions: what was seen, the action, the discounted rewards until ``then`` was seen,
    and the discount of what comes after.
    """

    observed: Observed
    actions: NDArray[np.intp]
    returns: _Floats
    discounts: _Floats
    then: Observed


class Replay:
    """The latest ``size`` decisions of one worker's environments, over all of them.

    A window of n steps ends early with its episode, by what was seen before its last decision:
    the end of an episode, as simulated, says nothing of the cluster.
    """

    def __init__(self, size: int, n_steps: int, gamma: float) -> None:
        self._size, self._n_steps, self._gamma = size, n_steps, gamma
        self._kept: list[NDArray[Any]] = []
        self._next = self._rows = 0

    def __len__(self) -> int:
        """The decisions that can be drawn: after the latest of each environment nothing is seen."""
        return (self._rows - 1) * self._kept[-1].shape[1] if self._rows else 0

    def add(self, chunk: Chunk) -> None:
        """Keep a chunk; the oldest decisions give way."""
        arrays = [*chunk.observed, chunk.actions, chunk.rewards, chunk.last]
        count, envs = chunk.last.shape
        if not self._kept:
            rows = max(self._size // envs, count + 1)
            self._kept = [np.zeros((rows, *array.shape[1:]), array.dtype) for array in arrays]
        rows = len(self._kept[0])
        if not chunk.follows and self._rows:
            self._kept[-1][self._next - 1] = True
        places = (self._next + np.arange(count)) % rows
        for kept, array in zip(self._kept, arrays, strict=True):
            kept[places] = array
        self._next = (self._next + count) % rows
        self._rows = min(self._rows + count, rows)

    def sample(self, count: int, rng: np.random.Generator) -> Sample:
        """Draw some decisions, each as likely; fewer, as those at the end of an episode are not."""
        *observed, actions, rewards, last = self._kept
        rows, envs = last.shape
        age = rng.integers(self._rows - 1, size=count)
        env = rng.integers(envs, size=count)
        first = (self._next - self._rows + age) % rows
        returns, length = np.zeros(count), np.zeros(count, int)
        goes_on = np.ones(count, bool)
        for step in range(self._n_steps):
            place = (first + step) % rows
            goes_on &= (age + step < self._rows - 1) & ~last[place, env]
            returns += goes_on * self._gamma**step * rewards[place, env]
            length += goes_on
        drawn = length > 0
        first, env, length = first[drawn], env[drawn], length[drawn]
        then = (first + length) % rows
        return Sample(
            tuple(array[first, env] for array in observed),
            actions[first, env],
            returns[drawn],
            self._gamma**length,
            tuple(array[then, env] for array in observed),
        )
