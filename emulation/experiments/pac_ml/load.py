"""Blocking over load: the same policies with jobs that come more and less often."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from patchlight.emulation.experiments.pac_ml.run import PacMlOptions, run_policies
from patchlight.emulation.experiments.pac_ml.variation import Variation
from patchlight.emulation.simulator import figures
from patchlight.emulation.simulator.executors import Engine
from patchlight.emulation.simulator.ramp.scenario import PAC_ML_HORIZON_S, FixedArrivals
from patchlight.emulation.simulator.results import write_report
from patchlight.testbed.errors import BadInput

SCHEMA_VERSION = 1
_SERIAL = Engine("serial")


@dataclass(frozen=True)
class LoadOptions:
    """Which policies, and how far apart jobs come, in seconds."""

    policies: tuple[str, ...]
    intervals_s: tuple[float, ...]
    law: str = "A"
    rule: str = "ramp-first-fit"
    poisson: bool = False
    mix: str | None = None
    seeds: int = 10
    first_seed: int = 0
    profiles: Path | None = None
    engine: Engine = _SERIAL

    def at(self, interval_s: float) -> PacMlOptions:
        """The experiment at one load: as many jobs as at any other."""
        kind = "poisson" if self.poisson else "fixed"
        varied = Variation.parse(arrivals=f"{kind}:{interval_s:g}", mix=self.mix)
        return PacMlOptions(
            seeds=self.seeds,
            first_seed=self.first_seed,
            profiles=self.profiles,
            laws=(self.law,),
            rules=(self.rule,),
            policies=self.policies,
            engine=self.engine,
            horizon_s=PAC_ML_HORIZON_S * interval_s / FixedArrivals().interval_s,
            variation=varied,
        )


def run_loads(options: LoadOptions, tell: Callable[[int, int], None]) -> dict[str, Any]:
    """What ``result.json`` holds; ``tell`` hears (done, in all). Ctrl-C keeps what is finished."""
    if not options.intervals_s:
        raise BadInput("no load to run: name at least one interval between jobs")
    each = [options.at(interval_s) for interval_s in options.intervals_s]
    found: list[dict[str, Any]] = []
    origin: Any = {}
    profiles: Any = {}
    interrupted = False
    for number, experiment in enumerate(each):

        def told(done: int, wanted: int, before: int = number) -> None:
            tell(before * wanted + done, len(each) * wanted)

        try:
            runs = run_policies(experiment, told)
        except KeyboardInterrupt:
            if not found:
                raise
            interrupted = True
            break
        origin, profiles = runs.provenance, runs.profiles.words
        if runs.interrupted:
            interrupted = True
            break
        (policies,) = runs.cells.values()
        rates = {
            name: {"blocking_rate": figures.blocking_rate, "ci95": figures.ci95}
            for name, figures in policies.items()
        }
        found.append({"interval_s": options.intervals_s[number], "policies": rates})
    if not found:
        raise KeyboardInterrupt
    return {
        "experiment": "pac-ml-load",
        "schema_version": SCHEMA_VERSION,
        "provenance": origin,
        "profiles": profiles,
        "law": options.law,
        "rule": options.rule,
        "poisson": options.poisson,
        "mix": options.mix,
        "seeds": list(range(options.first_seed, options.first_seed + options.seeds)),
        "interrupted": interrupted,
        "loads_finished": len(found),
        "loads_wanted": len(each),
        "policies": list(found[0]["policies"]),
        "loads": found,
    }


def write_loads(result: dict[str, Any], folder: Path) -> list[Path]:
    """``result.json`` and the plot into a folder; the files, ``result.json`` first."""
    note = ""
    if result["interrupted"]:
        note = f"interrupted: {result['loads_finished']} of {result['loads_wanted']} loads"
    plots = {"blocking-over-load": lambda: loads_figure(result)}
    return write_report(result, folder, plots, note=note)


def loads_figure(result: dict[str, Any]) -> Figure:
    """Blocking rates by how often jobs come, a line for each policy."""
    figure = figures.new(3.6, figures.COLUMN_IN)
    axis = figure.subplots()
    loads: Sequence[dict[str, Any]] = sorted(result["loads"], key=lambda each: each["interval_s"])
    rates = [1000 / each["interval_s"] for each in loads]
    curves = {}
    for name in result["policies"]:
        found = [each["policies"][name] for each in loads]
        blocked = [[each["blocking_rate"] for each in found], [each["ci95"] or 0 for each in found]]
        curves[name.rpartition("/")[2]] = [np.array(column) for column in blocked]
    for number, (names, (means, spread)) in enumerate(figures.merged(curves)):
        label = figures.label(names, len(curves))
        axis.errorbar(rates, means, spread, label=label, capsize=2, **figures.look(number))
    axis.set_xlabel("jobs in 1,000 s" + (" (Poisson)" if result["poisson"] else ""))
    axis.set_ylabel(f"blocking rate ({len(result['seeds'])} seeds, 95 % interval)")
    axis.set_ylim(bottom=0)
    axis.set_title(f"law {result['law']}, {result['rule']}")
    figures.legend(figure, 2)
    return figure
