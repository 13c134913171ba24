"""A control variate: the influence of which jobs happened to come is taken off the samples.

The sampled value of a cluster depends on which jobs come next, far more than on the
cluster. Who comes is independent of the cluster, so what a kind of job brings on average,
less what jobs bring on average, can be taken off each sample: its mean stays, its noise shrinks to
a third. Both averages are kept for each kind of cluster, as a strict job costs a full
cluster more than an empty one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from patchlight.emulation.learning.vector_episodes import VectorEpisodes

_Floats = NDArray[np.float64]
_Ints = NDArray[np.intp]
_PARTS = 8  # kinds of cluster by how much of it is free
_OLD, _YOUNG, _SHARE_RATE = 300.0, 30.0, 0.003


class ControlVariate:
    """Means of scores by scenario, kind of cluster and kind of job.

    A kind of cluster is the largest number of servers that some block has free, and the share of
    servers free; a kind of job its model and the least degree that meets its limit.
    """

    def __init__(self, episodes: VectorEpisodes) -> None:
        degrees, graphs = len(episodes.layout.degrees), len(episodes.nodes)
        scenarios = len(episodes.scenarios)
        clusters, jobs = (len(episodes.block_sizes) + 1) * (_PARTS + 1), graphs * degrees
        self._degrees = degrees
        self._mean = np.zeros((scenarios, clusters, jobs))
        self._seen = np.zeros((scenarios, clusters, jobs))
        self._share = np.full((scenarios, jobs), 1.0 / jobs)
        self._updates = 0

    def kinds(self, episodes: VectorEpisodes) -> tuple[_Ints, _Ints, _Ints]:
        """Scenario, kind of cluster and kind of job of each environment, E each."""
        largest = np.zeros(episodes.num_envs, int)
        for place, free in enumerate(episodes.has_block):
            largest[free] = place + 1
        part = (episodes.free * _PARTS // episodes.layout.servers).astype(int)
        enough = episodes.expected_s <= episodes.limit_s[:, None]
        job = episodes.graph * self._degrees + enough.argmax(axis=1)
        return episodes.scenario_of.copy(), largest * (_PARTS + 1) + part, job

    def of(self, kinds: tuple[_Ints, _Ints, _Ints]) -> _Floats:
        """How much more than the mean job these jobs bring to such clusters, E."""
        scenario, cluster, job = kinds
        mean_job = (self._share[scenario] * self._mean[scenario, cluster]).sum(axis=1)
        found: _Floats = self._mean[scenario, cluster, job] - mean_job
        return found

    def learn(self, kinds: tuple[_Ints, _Ints, _Ints], scores: _Floats) -> None:
        """Take the scores of these, E, into the means."""
        scenario, _, job = kinds
        np.add.at(self._seen, kinds, 1.0)
        change = np.zeros_like(self._mean)
        np.add.at(change, kinds, scores - self._mean[kinds])
        self._mean += change / np.clip(self._seen, _YOUNG, _OLD)
        self._updates += 1
        rate = max(_SHARE_RATE, 1.0 / self._updates)
        for each in range(len(self._share)):
            if (mine := scenario == each).any():
                found = np.bincount(job[mine], minlength=self._share.shape[1]) / mine.sum()
                self._share[each] += rate * (found - self._share[each])
