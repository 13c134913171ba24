"""How a network does on labs that it was never trained on, beside the built-in policies."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from patchlight.controller.policies.options.card import lab_range
from patchlight.emulation.learning.labs.config import LabConfig
from patchlight.emulation.learning.labs.network import OptionNetwork
from patchlight.emulation.learning.labs.policies import policies_of
from patchlight.emulation.learning.labs.what_if import episode_of, open_for
from patchlight.emulation.simulator.randomlabs.comparison import Policies, played_jct_s

_PLAIN = tuple(
    Policies(name) for name in ("first-fit", "consolidated", "rack-aware", "fragmentation-aware")
)
_LIT = (*_PLAIN, Policies("regroup", "regroup"), Policies("cheapest", "cheapest"))


def beside(kinds: Sequence[str]) -> tuple[Policies, ...]:
    """What a model of these kinds is compared with, the rule that it begins as last."""
    lit, ordered, elastic = (kind in kinds for kind in ("topology", "order", "elasticity"))
    rule = Policies(
        "least-delay" if lit else "least-delay:circuits=false",
        "least-delay" if lit else "keep",
        "least-delay" if ordered else "fifo",
    )
    others = _LIT if lit else _PLAIN if "placement" in kinds else ()
    sorted_by = tuple(each._replace(order="srpt") for each in others if ordered)
    resized = ("rigid", "give-and-take", "least-delay") if elastic else ("rigid",)
    split = ("maximum", "constant:4", "least-delay") if "partition" in kinds else ()
    rules = [rule._replace(elasticity=each) for each in resized]
    opened = [rules[-1]._replace(partition=each) for each in split]
    return (*others, *sorted_by, *rules, *opened)


@dataclass(frozen=True)
class Tested:
    """The mean completion time over that of each built-in choice, lab by lab: mean and 95 %.

    ``tested_range`` has the lowest and highest of each measure of these labs.
    """

    labs: int
    jct_over: Mapping[str, tuple[float, float]]
    tested_range: Mapping[str, tuple[float, float]]

    @property
    def words(self) -> list[str]:
        """A line for each it is compared with."""
        return [
            f"mean JCT over that of {name}: {mean:.3f} ± {spread:.3f} ({self.labs} labs)"
            for name, (mean, spread) in self.jct_over.items()
        ]


def run_test(
    network: OptionNetwork,
    config: LabConfig,
    tell: Callable[[int, int], None] = lambda done, of: None,
) -> Tested:
    """Play the labs of the configuration's test with the network and with each built-in choice."""
    testing, count = config.testing, config.testing.labs
    drawn = replace(config.labs, largest=testing.largest, mixed=testing.mixed)
    tested = replace(config, labs=drawn)
    built_in = beside(config.learns)
    ratios: dict[str, list[float]] = {policies.name: [] for policies in built_in}
    measures: dict[str, list[float]] = {}
    for number in range(count):
        episode = episode_of(tested, testing.first_seed + number)
        for name, value in lab_range(episode.lab).items():
            measures.setdefault(name, []).append(value)
        played = open_for(config.learns, episode)
        learned = _mean_s(played.play(*policies_of(network, config.learns)).jobs["jct_s"])
        for policies in built_in:
            ratios[policies.name].append(learned / _mean_s(played_jct_s(episode, policies)))
        tell(number + 1, count)
    return Tested(
        count,
        {name: _interval(each) for name, each in ratios.items()},
        {name: (min(each), max(each)) for name, each in measures.items()},
    )


def _mean_s(jct_s: Sequence[float]) -> float:
    return float(np.mean(jct_s))


def _interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half-width of the 95 % interval, both rounded."""
    spread = 1.96 * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return round(float(np.mean(values)), 4), round(spread, 4)
