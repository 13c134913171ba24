"""``patchlight policy evaluate``: how well policies do in the simulator."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click

from patchlight.console import rendering as out
from patchlight.console.commands import lab_option, only_some_finished
from patchlight.console.connection import offline_lab
from patchlight.console.options import complete_policy, results_option
from patchlight.emulation.experiments.commands.pac_ml import episode_options
from patchlight.testbed.errors import BadInput

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Evaluation:
    """A row for each law and policy, of all finished episodes, and how they were run."""

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
    """Figures of partition policies on PAC-ML's cluster; ``other`` as in ``Variation.parse``."""
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


def as_table(found: Sequence[dict[str, Any]]) -> out.Table:
    """What ``of_partition`` found, for people."""
    seeds = found[0]["seeds"]
    other = "".join(f", {what} {text}" for what, text in found[0]["varied"].items())
    title = f"{found[0]['rule']}{other}, seeds {seeds[0]} to {seeds[-1]}, mean ± 95 %"
    figures = ("blocked", "JCT (s)", "degree", "decisions/s", "faults")
    numbers = (out.Column(name, whole=True, right=True) for name in figures)
    table = out.Table("policy", "law", *numbers, title=title)
    for row in found:
        rate, spread = row["blocking_rate"], row["ci95"]
        table.add_row(
            row["policy"],
            row["law"],
            "–" if rate is None else f"{rate:.4f}" + (f" ± {spread:.4f}" if spread else ""),
            _number(row["jct_mean_s"], "{:.0f}"),
            _number(row["mean_degree"], "{:.1f}"),
            _number(row["decisions_per_s"], "{:,.0f}"),
            out.Coloured(str(row["faults"]["count"] or ""), "bad"),
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


# Options of ``evaluate`` that only partition policies have.
_ONLY_PARTITION = (
    *("laws", "law_instance", "rule", "seeds"),
    *("profiles", "ramp", "arrivals", "mix", "failures", "milliseconds", "remaining_error"),
)
_FILE, _COUNT = click.Path(path_type=Path), click.IntRange(1, 1_000_000)


@click.command()
@click.argument("names", metavar="POLICY…", nargs=-1, required=True, shell_complete=complete_policy)
@click.option(
    "--law",
    "laws",
    multiple=True,
    metavar="LAW",
    help="Law of jobs' requirements, A to D or like uniform:0.2:0.6, skewed:-2, "
    "values:0.25/0.5/1; may be given again.  [default: A]",
)
@click.option(
    "--rule", default="ramp-block", help="How operations are placed: ramp-block or ramp-first-fit."
)
@click.option("--seeds", type=_COUNT, default=5, help="Episodes of each kind.")
@episode_options
@click.option("--ramp", metavar="GxRxS", help="Groups × racks × servers.  [default: 4x4x2]")
@click.option(
    "--remaining-error",
    type=click.FloatRange(0, 3),
    default=0.0,
    metavar="SHARE",
    help="Policies are told remaining times that are off by so much, like 0.3 (log-normal).",
)
@click.option(
    "--failures",
    metavar="UP:DOWN",
    help="Mean times that a server works and is mended, like 30d:4h.",
)
@click.option(
    "--trace",
    type=_FILE,
    metavar="FILE",
    help="The jobs, as simulate takes them; without it partition policies run PAC-ML's.",
)
@lab_option(
    "With --trace: the cluster is a lab's.  [default: 16x16x8; ofc2022 for topology]", "lab"
)
@click.option("--strict", is_flag=True, help="A policy that fails is an error (exit code 1).")
@results_option("results/evaluate-<time>, or simulate-<time>")
@out.listing_options
def evaluate(
    names: tuple[str, ...],
    seeds: int,
    first_seed: int,
    trace: Path | None,
    lab: str | None,
    processes: int | None,
    strict: bool,
    output: Path | None,
    as_json: bool,
    **of_partitions: Any,
) -> None:
    """How well policies do in the simulator.

    Partition policies run PAC-ML's cluster. All others, and these with --trace, run its jobs,
    as 'patchlight simulate' does, which has more options. Both print a table and write result.json;
    Ctrl-C keeps what is finished.
    """
    from patchlight.emulation.simulator.commands.simulate import refuse_faults, run_simulation
    from patchlight.emulation.simulator.results import results_folder, write_report

    kinds = {_kind_of(name) for name in names}
    if len(kinds) > 1:
        raise BadInput(f"cannot compare policies of different kinds: {', '.join(sorted(kinds))}")
    kind = kinds.pop()
    if kind != "partition" or trace is not None:
        if trace is None:
            raise BadInput(
                f"{names[0]} is a policy of kind {kind}: expected --trace FILE with jobs"
            )
        _refuse(_ONLY_PARTITION, "is for partition policies on PAC-ML's cluster, without --trace")
        from patchlight.emulation.simulator.cluster import Settings
        from patchlight.emulation.simulator.cluster.trace_simulation import SimulationOptions
        from patchlight.emulation.simulator.executors import Engine

        compared: dict[str, Any] = {
            kind: tuple(dict.fromkeys(name.removeprefix(f"{kind}:") for name in names))
        }
        options = SimulationOptions(
            trace,
            lab=offline_lab(lab) if lab else ("ofc2022" if kind == "topology" else None),
            settings=Settings(seed=first_seed),
            engine=Engine("processes", processes or 0),
            **compared,
        )
        run_simulation(options, output, strict, as_json)
        return
    _refuse(("lab",), "is for jobs of a --trace: without one partition policies run PAC-ML's")
    counted = range(first_seed, first_seed + seeds)
    folder = results_folder(output, "evaluate")
    with out.progress_bar("%", out.console(stderr=as_json)) as tell:
        found = of_partition(names, counted, processes or 0, tell=tell, **of_partitions)
    written, *_ = write_report(found.result, folder)
    figures = found.rows
    if as_json:
        out.print_json(figures)
    else:
        as_table(figures).print()
        for words in (*faults_of(figures), *warnings_of(figures)):
            out.say(words, err=True)
        out.say(f"Figures: {written}")
    if found.interrupted:
        only_some_finished(found.episodes_finished, found.episodes_wanted, "episodes")
    if strict:
        refuse_faults(sum(row["faults"]["count"] for row in figures))


def _refuse(options: tuple[str, ...], message: str) -> None:
    """``BadInput`` if one of these options was given, which would mean nothing."""
    context = click.get_current_context()
    for name in options:
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            raise BadInput(
                f"--{'law' if name == 'laws' else name.replace('_', '-')} {message}",
                hint="'patchlight simulate' has the options of a cluster with a queue",
            )


def _kind_of(name: str) -> str:
    """Of a policy by any name; names of PAC-ML's experiment, like constant-8, are partitions."""
    from patchlight.controller.policies.registry import find
    from patchlight.emulation.experiments.pac_ml.episodes import NAMES
    from patchlight.emulation.simulator.cluster.sweep import AS_ASKED

    return "partition" if name == AS_ASKED or name in NAMES else find(name).kind
