"""The models that jobs train on RAMP, their run time at each degree, and their deadlines.

A job is blocked if it takes longer than β times its time on one device. The four laws of β named A
to D are those of PAC-ML's experiments, with two decimals between 0.10 and 1.00: A uniform, and
B, C and D skewed normals leaning to strict, to neither, and to lenient requirements.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from patchlight.controller.policies.contract import ClusterShape, GpuSite
from patchlight.emulation.simulator.ramp.ramp import (
    PAC_ML_SHAPE,
    Block,
    PlacementRule,
    Ramp,
    RampShape,
    place,
)
from patchlight.emulation.simulator.ramp.steps import RampTiming, step_time
from patchlight.testbed.errors import BadInput
from patchlight.testbed.graphs import (
    ComputationGraph,
    PartitionedGraph,
    mirror,
    partition,
)

A100_MEMORY_BYTES = 80e9
MAX_DEGREE = 16
TRAINING_STEPS = 50


class Plan(NamedTuple):
    """A model at a degree: the blocks it needs, and whether a server's memory surely holds it."""

    graph: PartitionedGraph
    splits: tuple[int, ...]
    max_split: int
    fits_memory: bool


@dataclass(
    frozen=True,
    slots=True,
)
class Device:
    """The GPU of each server, and the unit of the profiles' times.

    ``seconds_per_ms`` 1.0 counts a profile's milliseconds as seconds, as PAC-ML's simulator
    does; 0.001 counts them as milliseconds.
    """

    memory_bytes: float = A100_MEMORY_BYTES
    seconds_per_ms: float = 1.0


class Workloads:
    """Models on a cluster, with their completion times.

    Completion times are simulated when first used, and kept. An operation that would be split
    into a number of parts that no shape serves (10, 12 or 14 on PAC-ML's cluster) is split into
    the next lower number. A policy may choose 0 or one of ``degrees``: those that a RAMP shape
    serves, up to ``max_degree``.
    """

    def __init__(
        self,
        graphs: Sequence[ComputationGraph],
        shape: RampShape = PAC_ML_SHAPE,
        timing: RampTiming | None = None,
        device: Device | None = None,
        steps: int = TRAINING_STEPS,
        max_degree: int = MAX_DEGREE,
    ) -> None:
        if not graphs:
            raise BadInput("cannot make workloads of no computation graphs")
        self.graphs = tuple(graphs)
        self.ramp = Ramp(shape)
        self.timing = timing or RampTiming(groups=shape.groups)
        self.device = device or Device()
        self.steps = steps
        self.max_degree = max_degree
        self.names = tuple(graph.name for graph in graphs)
        self.degrees = tuple(
            degree for degree in self.ramp.degrees if degree <= max_degree
        )
        training = [mirror(graph) for graph in graphs]
        self.training = tuple(training)
        self.sequential_s = tuple(
            each.sequential_ms * self.device.seconds_per_ms * steps
            for each in training
        )
        self.demand_bytes = tuple(each.demand_bytes for each in training)
        self.plans: tuple[dict[int, Plan], ...] = tuple(
            {
                degree: self._plan(
                    partition(each, degree, served=self.ramp.degrees)
                )
                for degree in self.degrees
            }
            for each in training
        )
        self._numbers = {
            id(graph): number for number, graph in enumerate(self.graphs)
        }
        self._expected = {
            rule: tuple(
                ExpectedTimes(self, number, rule)
                for number in range(len(self.graphs))
            )
            for rule in PlacementRule
        }
        self._by_blocks: dict[
            tuple[int, int, tuple[tuple[int, ...], ...]], float
        ] = {}
        self._by_pattern: dict[tuple[int, int, object], float] = {}

    def _plan(self, graph: PartitionedGraph) -> Plan:
        # A server holds at most one part of each operation, which counts once for both passes.
        most = float(graph.part_bytes[: graph.training.half].sum())
        splits = graph.forward_splits
        return Plan(
            graph,
            splits,
            splits[-1],
            most <= self.device.memory_bytes,
        )

    def completion_s(
        self,
        graph: int,
        degree: int,
        blocks: tuple[Block, ...],
    ) -> float:
        """The completion time of model ``graph`` at ``degree``, placed on ``blocks``.

        ``blocks`` are those of the plan's ``splits``, in that order.
        """
        # Without their masks, which are as long as the cluster has servers.
        key = (graph, degree, tuple([block.servers for block in blocks]))
        if (known := self._by_blocks.get(key)) is None:
            pattern = (graph, degree, self._pattern(blocks))
            if (known := self._by_pattern.get(pattern)) is None:
                known = self._by_pattern[pattern] = self._simulate(
                    graph, degree, blocks
                )
            self._by_blocks[key] = known
        return known

    def _simulate(
        self,
        graph: int,
        degree: int,
        blocks: tuple[Block, ...],
    ) -> float:
        plan = self.plans[graph][degree]
        servers = {len(block.servers): block.servers for block in blocks}
        placed = [servers[count] for count in plan.graph.splits]
        seconds_per_ms = self.device.seconds_per_ms
        return self.steps * step_time(
            plan.graph,
            self.ramp,
            self.timing,
            placed,
            seconds_per_ms,
        )

    def _pattern(
        self, blocks: tuple[Block, ...]
    ) -> tuple[tuple[int, int, int], ...]:
        """The servers with groups, racks and places renumbered in order of appearance.

        Times depend on which servers share a group, rack or place, not on where they are.
        """
        seen: tuple[dict[int, int], ...] = ({}, {}, {})
        found = []
        for block in blocks:
            for server in block.servers:
                c, r, s = (
                    known.setdefault(value, len(known))
                    for known, value in zip(
                        seen, self.ramp.coordinates(server), strict=True
                    )
                )
                found.append((c, r, s))
        return tuple(found)

    def expected_s(
        self,
        graph: int,
        degree: int,
        rule: PlacementRule,
    ) -> float:
        """The completion time of a job that is alone on the cluster."""
        blocks = place(
            self.ramp,
            rule,
            self.plans[graph][degree].splits,
            0,
        )
        if blocks is None:
            raise BadInput(
                f"{self.names[graph]!r} at degree {degree} does not fit on an empty cluster"
            )
        return self.completion_s(graph, degree, blocks)

    def expected(self, rule: PlacementRule) -> tuple[Mapping[int, float], ...]:
        """For each model ``expected_s`` by degree, where a server's memory holds it."""
        return self._expected[rule]

    def number_of(self, graph: ComputationGraph | None) -> int:
        """The index of a model; ``BadInput`` if it is not one of these."""
        # By identity: a graph's own hash goes over all its operations. Numbers that came with a
        # pickle are those of other objects.
        number = self._numbers.get(id(graph), 0)
        if self.graphs[number] is graph:
            return number
        if graph is None or graph not in self.graphs:
            name = (
                "a job without a graph" if graph is None else repr(graph.name)
            )
            raise BadInput(
                f"{name} is not one of the models: {', '.join(self.names)}"
            )
        number = self.graphs.index(graph)
        if self.graphs[number] is graph:
            self._numbers[id(graph)] = number
        return number

    @cached_property
    def cluster(self) -> ClusterShape:
        """The RAMP as policies see it: one GPU a server, numbered as the RAMP's servers."""
        shape = self.ramp.shape
        racks = [
            f"group{c}.rack{r}"
            for c in range(shape.groups)
            for r in range(shape.racks)
        ]
        servers = [
            f"{rack}.server{s}" for rack in racks for s in range(shape.servers)
        ]
        return ClusterShape(
            gpus=tuple(
                GpuSite(f"{name}.gpu0", number, number // shape.servers)
                for number, name in enumerate(servers)
            ),
            servers=tuple(servers),
            racks=tuple(racks),
            ramp=(shape.groups, shape.racks, shape.servers),
        )


class ExpectedTimes(Mapping[int, float]):
    """The completion time of a model at each degree when it is alone; simulated when first used."""

    def __init__(
        self,
        workloads: Workloads,
        graph: int,
        rule: PlacementRule,
    ) -> None:
        self._workloads = workloads
        self._graph = graph
        self._rule = rule
        self._degrees = tuple(
            d
            for d in workloads.degrees
            if workloads.plans[graph][d].fits_memory
        )
        self._known: dict[int, float] = {}

    def __getitem__(self, degree: int) -> float:
        if degree not in self._known:
            if degree not in self._degrees:
                raise KeyError(degree)
            self._known[degree] = self._workloads.expected_s(
                self._graph, degree, self._rule
            )
        return self._known[degree]

    def __iter__(self) -> Iterator[int]:
        return iter(self._degrees)

    def __len__(self) -> int:
        return len(self._degrees)


LEAST = 0.1
MOST = 1.0
DECIMALS = 2
DRAWS = 50_000
BINS = 1000


class RequirementLaw(Protocol):
    """Draws requirements; the same generator state gives the same ones."""

    @property
    def name(self) -> str:
        """The law's name in tables."""

    def shares(
        self, rng: np.random.Generator
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The fractions β that ``sample`` draws from, each in (0, 1], and their probabilities."""

    def sample(
        self, rng: np.random.Generator, count: int
    ) -> NDArray[np.float64]:
        """``count`` fractions β, each in (0, 1]."""


@dataclass(
    frozen=True,
    slots=True,
)
class Choice:
    """One of these values, with equal probability."""

    name: str
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.values or not all(0 < value <= 1 for value in self.values):
            raise BadInput(
                f"law {self.name!r}: expected values over 0 and up to 1"
            )

    def shares(
        self, rng: np.random.Generator
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Each of the values with the same probability."""
        count = len(self.values)
        return np.array(self.values), np.full(count, 1 / count)

    def sample(
        self, rng: np.random.Generator, count: int
    ) -> NDArray[np.float64]:
        """Each of the values with the same probability."""
        return rng.choice(np.array(self.values), size=count)


@dataclass(
    frozen=True,
    slots=True,
)
class SkewNormal:
    """A skewed normal squeezed into [0.1, 1], made as in PAC-ML's experiments.

    Of 50,000 skew-normal numbers the lowest becomes 0 and the highest 1; values below 0.1
    become 0.1; jobs draw from a histogram of them. As two extremes set the scale, each
    ``instance``, the seed of these numbers, is another law: under D some 3 to 10 jobs of 100
    require β ≤ 0.5. Instance 0 is, number for number, that of PAC-ML's runs with seed 0;
    ``None`` makes a new one at each call of ``sample``.
    """

    name: str
    skewness: float
    instance: int | None = None

    def shares(
        self, rng: np.random.Generator
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The law's histogram."""
        if self.instance is None:
            return _histogram(self.skewness, int(rng.integers(2**32)))
        return _kept_histogram(self.skewness, self.instance)

    def sample(
        self, rng: np.random.Generator, count: int
    ) -> NDArray[np.float64]:
        """Draws from the law's histogram."""
        values, shares = self.shares(rng)
        return rng.choice(
            values,
            size=count,
            p=shares,
        )


def _histogram(
    skewness: float, seed: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    # The legacy generator and SciPy's way from two normals to a skew-normal one (Azzalini),
    # because PAC-ML's law depends on each number drawn.
    rng = np.random.RandomState(seed)
    first = rng.normal(size=DRAWS)
    second = rng.normal(size=DRAWS)
    lean = skewness / math.sqrt(1 + skewness * skewness)
    drawn = np.where(first >= 0, 1, -1) * (
        lean * first + math.sqrt(1 - lean * lean) * second
    )
    drawn = (drawn - drawn.min()) / (drawn.max() - drawn.min()) * MOST
    counts, edges = np.histogram(np.maximum(drawn, LEAST), bins=BINS)
    return np.round(edges[1:], DECIMALS), counts / counts.sum()


_kept_histogram = lru_cache(_histogram)


def uniform(
    name: str,
    least: float = LEAST,
    most: float = MOST,
) -> Choice:
    """All hundredths from ``least`` to ``most``."""
    hundredths = range(round(least * 100), round(most * 100) + 1)
    return Choice(name, tuple(n / 100 for n in hundredths))


_SKEWNESS = {"B": 5.0, "C": 0.0, "D": -5.0}
LAW_NAMES = ("A", *_SKEWNESS)
"""The four laws of PAC-ML's experiments."""


def law(name: str, instance: int | None = None) -> RequirementLaw:
    """The law with this name or description; ``BadInput`` lists the valid ones.

    Descriptions: ``uniform:0.2:0.6``, hundredths from one to the other; ``skewed:-2``, a
    skewed normal like those of B, C and D with another skewness; ``values:0.25/0.5/1``, one of
    these with equal probability. ``instance``: see ``SkewNormal``.
    """
    if name in LAW_NAMES:
        return (
            SkewNormal(name, _SKEWNESS[name], instance)
            if name in _SKEWNESS
            else uniform(name)
        )
    kind, _, written = name.partition(":")
    try:
        match kind:
            case "uniform":
                least, most = (float(each) for each in written.split(":"))
                if 0 < least <= most <= 1:
                    return uniform(name, least, most)
            case "skewed":
                if math.isfinite(skewness := float(written)):
                    return SkewNormal(name, skewness, instance)
            case "values":
                return Choice(
                    name, tuple(float(each) for each in written.split("/"))
                )
    except ValueError:
        pass
    raise BadInput(
        f"no requirement law {name!r}: expected one of {', '.join(LAW_NAMES)}, or one like "
        "uniform:0.2:0.6, skewed:-2 or values:0.25/0.5/1"
    )


def fixed(values: Sequence[float]) -> Choice:
    """A law of these values, with equal probability."""
    return Choice("/".join(f"{value:g}" for value in values), tuple(values))
