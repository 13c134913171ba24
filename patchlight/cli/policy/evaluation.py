"""How ``patchlight policy evaluate`` finds out how well policies do."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from patchlight.cli.rendering import Coloured, Column, Table

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Evaluation:
    """The result: a row for each law and policy, and ``result.json``'s content around them.

    ``interrupted``: the rows are of those episodes that were finished at
    Ctrl-C.
    """

    rows: Sequence[dict[str, Any]]
    interrupted: bool
    episodes_finished: int
    episodes_wanted: int
    duration_s: float
    profiles: Mapping[str, Any]
    provenance: Mapping[str, Any]

    @property
    def result(self) -> dict[str, Any]:
        """What ``result.json`` holds."""
        head = {"evaluation": "partition", "schema_version": SCHEMA_VERSION}
        found = {name: value for name, value in vars(self).items() if name != "rows"}
        return head | found | {"machine": self.provenance["machine"], "policies": self.rows}


def of_partition(
    names: Sequence[str],
    seeds: range,
    processes: int,
    tell: Callable[[int, int], None],
    laws: Sequence[str],
    rule: str,
    profiles: Path | None,
    law_instance: int | None = None,
    milliseconds: bool = False,
    remaining_error: float = 0.0,
    **other: str | None,
) -> Evaluation:
    """Partition policies on PAC-ML's cluster: figures for each law and policy.

    ``processes`` 0 is one for each core. ``tell`` hears of episodes done, of how many. ``other`` is
    to be other than in the paper, see ``Variation.parse``. ``outside_training`` of a row says
    what a learned policy never met. Ctrl-C keeps what is finished; where nothing is, it is raised.
    """
    # Not above: importing NumPy takes longer than --help should.
    from patchlight.emulation.experiments.pac_ml.episodes import card_of
    from patchlight.emulation.experiments.pac_ml.run import PacMlOptions, run_policies
    from patchlight.emulation.experiments.pac_ml.variation import Variation, outside_training
    from patchlight.emulation.simulator.executors import Engine

    varied = Variation.parse(milliseconds=milliseconds, remaining_error=remaining_error, **other)
    options = PacMlOptions(
        seeds=len(seeds),
        first_seed=seeds.start,
        laws=tuple(laws) or ("A",),
        rules=(rule,),
        policies=tuple(names),
        profiles=profiles,
        engine=Engine("processes", processes),
        variation=replace(varied, law_instance=law_instance),
    )
    began = time.monotonic()
    runs = run_policies(options, tell)
    profiled = runs.profiles

    def outside(name: str, law: str) -> list[str]:
        card = card_of(name)
        if card is None:
            return []
        models, published = profiled.models, profiled.published
        return outside_training(card, options.variation, law, models, published)

    shared = {
        "rule": rule,
        "seeds": list(seeds),
        "law_instance": law_instance,
        "varied": {what: text for what, text in other.items() if text is not None}
        | ({"times": "milliseconds"} if milliseconds else {})
        | ({"remaining error": f"{remaining_error:g}"} if remaining_error else {}),
    }
    rows = [
        {
            "policy": name,
            "law": cell.law,
            "outside_training": outside(name, cell.law),
            **shared,
            **asdict(figures),
        }
        for cell, policies in runs.cells.items()
        for name, figures in policies.items()
    ]
    return Evaluation(
        rows,
        runs.interrupted,
        runs.episodes_finished,
        runs.episodes_wanted,
        time.monotonic() - began,
        profiled.words,
        runs.provenance,
    )


def as_table(found: Sequence[dict[str, Any]]) -> Table:
    """What ``of_partition`` found, for people."""
    seeds = found[0]["seeds"]
    other = "".join(f", {what} {text}" for what, text in found[0]["varied"].items())
    title = f"{found[0]['rule']}{other}, seeds {seeds[0]} to {seeds[-1]}, mean ± 95 %"
    figures = ("blocked", "JCT (s)", "degree", "decisions/s", "faults")
    numbers = (Column(name, whole=True, right=True) for name in figures)
    table = Table("policy", "law", *numbers, title=title)
    for row in found:
        rate, spread = row["blocking_rate"], row["ci95"]
        table.add_row(
            row["policy"],
            row["law"],
            "–" if rate is None else f"{rate:.4f}" + (f" ± {spread:.4f}" if spread else ""),
            _number(row["jct_mean_s"], "{:.0f}"),
            _number(row["mean_degree"], "{:.1f}"),
            _number(row["decisions_per_s"], "{:,.0f}"),
            Coloured(str(row["faults"]["count"] or ""), "bad"),
        )
    return table


def faults_of(found: Sequence[dict[str, Any]]) -> list[str]:
    """In words what policies did wrong: the first fault of each."""
    return list(dict.fromkeys(r["faults"]["first"] for r in found if r["faults"]["count"]))


def warnings_of(found: Sequence[dict[str, Any]]) -> list[str]:
    """In words what learned policies were not trained for: their figures do not hold there."""
    outside: dict[str, dict[str, None]] = {}
    for row in found:
        if row["outside_training"]:
            outside.setdefault(row["policy"], {}).update(dict.fromkeys(row["outside_training"]))
    return [f"warning: {name} was {'; '.join(words)}" for name, words in outside.items()]


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)
