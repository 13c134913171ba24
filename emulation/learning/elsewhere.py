"""Where networks are tested besides where they were trained: other models, RAMPs of other shapes.

Jobs come so often that the load, the work that comes over what the cluster can do, stays that of
training, and episodes have as many jobs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from patchlight.emulation.experiments.pac_ml.variation import Variation
from patchlight.emulation.learning.config import Config
from patchlight.emulation.simulator.ramp.ramp import RampShape
from patchlight.emulation.simulator.ramp.scenario import FixedArrivals, PoissonArrivals, Scenario
from patchlight.emulation.simulator.ramp.workloads import Workloads
from patchlight.testbed.errors import BadInput
from patchlight.testbed.graphs import ComputationGraph, builtin_graph, read_graph


@dataclass(frozen=True)
class Elsewhere:
    """A place to test at: what tables call it, and its models on its RAMP."""

    name: str
    workloads: Workloads

    def scenarios(self, config: Config, trained: Workloads) -> Mapping[str, Scenario]:
        """What a configuration trains under, here, by name; ``trained`` is where it trains."""
        environment, found = config.environment, {}
        factor = _mean(self.workloads) / _mean(trained)
        factor *= trained.ramp.shape.size / self.workloads.ramp.shape.size
        for name, (law, condition) in zip(environment.names, environment.scenarios, strict=True):
            varied = environment.under(condition)
            varied.check_models(self.workloads.graphs)
            interval_s = varied.arrivals.mean_interval_s * factor
            kind = FixedArrivals if isinstance(varied.arrivals, FixedArrivals) else PoissonArrivals
            varied = replace(
                varied,
                arrivals=kind(interval_s),
                horizon_s=environment.horizon_of(condition) * factor,
                law_instance=environment.law_instance,
            )
            scenario = varied.scenario(self.workloads, law, environment.rule)
            found[f"{name}, {self.name}"] = scenario
        return found


def _mean(workloads: Workloads) -> float:
    return sum(workloads.sequential_s) / len(workloads.sequential_s)


def elsewhere(
    graphs: Sequence[ComputationGraph], models: Sequence[str], ramps: Sequence[str]
) -> list[Elsewhere]:
    """The places that a user names: ``models`` on PAC-ML's RAMP, where there are any, and
    ``graphs`` on each of ``ramps`` (as ``8x8x2``).

    A model is a built-in one or a graph's file. ``BadInput`` for what is neither, or no RAMP.
    """
    found = []
    if models:
        others = [_graph(name) for name in models]
        if same := {each.name for each in others} & {each.name for each in graphs}:
            raise BadInput(f"{', '.join(sorted(same))}: trained on, so not another model")
        found.append(Elsewhere("other models", Workloads(others)))
    for text in dict.fromkeys(ramps):
        shape: RampShape = Variation.parse(ramp=text).ramp
        found.append(Elsewhere(text, Workloads(graphs, shape)))
    return found


def _graph(name: str) -> ComputationGraph:
    path = Path(name)
    return read_graph(path) if path.suffix in (".txt", ".json") else builtin_graph(name)
