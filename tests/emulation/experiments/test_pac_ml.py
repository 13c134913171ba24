"""PAC-ML's experiment end to end, on few arrivals: results, report, processes, wrong input."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
from click.testing import CliRunner

from patchlight.cli.experiment.group import experiment
from patchlight.controller.policies.partition import Constant
from patchlight.emulation.experiments.pac_ml import paper, run
from patchlight.emulation.experiments.pac_ml.episodes import (
    NAMES,
    ROLL_OUT,
    Cell,
    TaskRunner,
    check_names,
)
from patchlight.emulation.experiments.pac_ml.report import (
    rows_beside_published,
    tables_of,
    write_report,
)
from patchlight.emulation.experiments.pac_ml.run import (
    ExperimentOptions,
    find_profiles,
    run_experiment,
)
from patchlight.emulation.simulator.executors import Engine
from patchlight.emulation.simulator.ramp.lossnetwork import run_episode
from patchlight.testbed.errors import BadInput
from patchlight.testbed.graphs import builtin_graph

SHORT = ExperimentOptions(
    seeds=2,
    quick=True,
    laws=("A", "D"),
    rules=("ramp-block",),
    horizon_s=6e4,
    policies=("constant-8", "random", ROLL_OUT),
)


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A roll-out that is quick and no good."""
    monkeypatch.setattr(run, "QUICK_FUTURES", 2)
    monkeypatch.setattr(run, "AHEAD", 5)


def quietly(options: ExperimentOptions) -> dict[str, Any]:
    return run_experiment(options, lambda words: None, lambda done, total: None)


def without_clocks(result: dict[str, Any]) -> dict[str, Any]:
    measured = ("started_at", "duration_s", "machine", "processes", "engine")
    kept = {name: value for name, value in result.items() if name not in measured}
    kept["provenance"] = {**kept["provenance"], "machine": {}}
    for laws in kept["rules"].values():
        for cell in laws.values():
            for figures in cell["policies"].values():
                assert figures.pop("decisions_per_s") > 0
                middle, late = (figures.pop(f"decision_latency_p{p}_s") for p in (50, 99))
                assert 0 < middle <= late
    return kept


@pytest.mark.usefixtures("small")
def test_results_are_the_same_on_any_number_of_processes() -> None:
    few = replace(SHORT, horizon_s=2e4)
    alone, together = quietly(few), quietly(replace(few, engine=Engine("processes", 2)))
    assert together["processes"] == 2
    assert without_clocks(alone) == without_clocks(together)


@pytest.mark.usefixtures("small")
def test_figures_are_those_of_the_episodes() -> None:
    result = quietly(replace(SHORT, laws=("A",)))
    cell = result["rules"]["ramp-block"]["A"]
    runner = TaskRunner([builtin_graph(name) for name in result["profiles"]["models"]], 6e4)
    scenario = runner.scenario(Cell("ramp-block", "A"))
    episodes = [run_episode(scenario, Constant(8), seed) for seed in range(2)]
    figures = cell["policies"]["constant-8"]
    rates = [each.blocking_rate() for each in episodes]
    assert figures["blocking_rate"] == pytest.approx(sum(rates) / 2)
    # Student's t for two episodes.
    assert figures["ci95"] == pytest.approx(12.706 * abs(rates[0] - rates[1]) / 2, rel=1e-6)
    assert [each["blocking_rate"] for each in figures["episodes"]] == rates
    assert sum(figures["causes"].values()) == pytest.approx(figures["blocking_rate"])
    assert figures["jct_mean_s"] == pytest.approx(sum(e.jct_mean_s for e in episodes) / 2)
    assert cell["hindsight_bound"]["blocking_rate"] <= cell["lowest"]["blocking_rate"]


@pytest.mark.usefixtures("small")
def test_the_report_is_json_tables_and_pictures(tmp_path: Path) -> None:
    # One job of 1,000 s's worth of arrivals: no job is completed, one seed has no interval.
    nothing = quietly(replace(SHORT, seeds=1, horizon_s=2e3, policies=("constant-1", "maximum")))
    files = write_report(nothing, tmp_path / "out")
    read = json.loads((tmp_path / "out" / "result.json").read_text(), parse_constant=pytest.fail)
    assert read == json.loads(json.dumps(nothing))
    figures = read["rules"]["ramp-block"]["A"]["policies"]["constant-1"]
    assert figures["ci95"] is None
    assert figures["jct_mean_s"] is None
    pictures = [file.name for file in files[1:]]
    assert pictures == ["blocking-ramp-block.png", "completion-ramp-block.png"]
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files[1:])
    assert len(tables_of(nothing)) == 3
    assert not nothing["comparable"]
    assert (
        rows_beside_published(nothing) == []
    )  # Nothing is claimed beside figures that do not compare.


def test_published_figures_stand_beside_only_with_the_published_profiles(
    tmp_path: Path, pipedream: Path
) -> None:
    options = replace(SHORT, policies=("maximum",), seeds=1, horizon_s=1e6, laws=("A",))
    assert not quietly(options)["comparable"]
    result = quietly(replace(options, profiles=pipedream))
    assert result["comparable"]
    figures = result["rules"]["ramp-block"]["A"]["policies"]["maximum"]
    assert figures["published"] == {"blocking_rate": 0.2624, "source": paper.NOTEBOOK}
    # The published figures are of the other placement rule.
    assert rows_beside_published(result) == []
    assert len(tables_of(result)) == 2
    result = quietly(replace(options, profiles=pipedream, rules=("ramp-first-fit",)))
    rate = result["rules"]["ramp-first-fit"]["A"]["policies"]["maximum"]["blocking_rate"]
    assert rate == pytest.approx(0.2624, abs=0.02)
    row = ("law A", "0.2038", f"{rate:.4f}", "maximum", f"+{100 * (rate - 0.2038):.2f} points")
    assert rows_beside_published(result) == [row]
    beside = tables_of(result)[-1]
    assert tuple(cell for column in beside.columns for cell in column.cells) == row


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ExperimentOptions(laws=("A", "E")), "no requirement law 'E'"),
        (lambda: ExperimentOptions(laws=()), "no laws to run"),
        (lambda: ExperimentOptions(rules=("ramp-blok",)), "did you mean 'ramp-block'"),
        (lambda: ExperimentOptions(policies=("constant-3",)), "no policy 'constant-3'"),
        (lambda: ExperimentOptions(seeds=0), "cannot run 0 seeds"),
        (lambda: ExperimentOptions(first_seed=-1), "the first seed is -1"),
        (lambda: ExperimentOptions(added=("constant",)), "has to be told 'degree'"),
        (lambda: ExperimentOptions(added=("fifo",)), "no policy 'fifo'"),
        (lambda: find_profiles(Path("/nowhere")), "/nowhere is not a folder"),
    ],
)
def test_wishes_that_cannot_be(make: Callable[[], object], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        make()


def test_names_come_once() -> None:
    assert check_names(["random", "maximum", "random"]) == ["random", "maximum"]
    assert len(set(NAMES)) == len(NAMES) == 11


@pytest.mark.usefixtures("small")
def test_the_command_without_profiles(tmp_path: Path) -> None:
    output = tmp_path / "out"
    few = ["--seeds", "1", "--laws", "B", "--rules", "ramp-block", "--processes", "1"]
    arguments = ["pac-ml", *few, "--policies", "constant-4,maximum", "--output", str(output)]
    result = CliRunner().invoke(experiment, arguments)
    assert result.exit_code == 0, result.output
    assert "its figures are then no comparison" in result.output
    assert "publ." not in result.output
    assert json.loads((output / "result.json").read_text())["rules"]["ramp-block"]["B"]


def test_wrong_input_leaves_no_folder_behind(tmp_path: Path) -> None:
    output = tmp_path / "out"
    for wrong in (["--laws", "Z"], ["--profiles", str(tmp_path)], ["--policies", "best"]):
        result = CliRunner().invoke(experiment, ["pac-ml", *wrong, "--output", str(output)])
        assert isinstance(result.exception, BadInput)
        assert not output.exists()


# Whatever they are handed, they look for the jobs to come in it.
CHEATS = """
from dataclasses import replace
import numpy as np


class BySeed:
    \"\"\"Draws the episode from the scenario and the seed that it was given.\"\"\"

    def __init__(self, scenario, seed):
        self.known = [scenario.jobs(seed)]

    def degree(self, cluster, job, legal):
        for jobs in self.known:
            number = int(job.name)
            if number < len(jobs) and jobs[number].requirement == job.requirement:
                seen = [each.requirement for each in jobs[: number + 1]]
                past = [each.requirement for each in cluster.recent]
                if number > 5 and seen[-1 - len(past) : -1] == past:
                    raise RuntimeError("I know the jobs to come")
        return 4 if 4 in legal else 0


class ByLooks(BySeed):
    \"\"\"Compares the jobs that came with every episode that its scenario can draw.\"\"\"

    def __init__(self, scenario, seed):
        self.known = [scenario.jobs(each) for each in range(20)]


class ByPreview(BySeed):
    \"\"\"Looks for a scenario behind the view.\"\"\"

    def __init__(self):
        self.known = []

    def degree(self, cluster, job, legal):
        for each in cluster.preview.args:
            if not self.known and hasattr(each, "jobs"):
                self.known = [each.jobs(number) for number in range(20)]
        return super().degree(cluster, job, legal)
"""


@pytest.mark.parametrize("name", ["BySeed", "ByLooks", "ByPreview"])
@pytest.mark.parametrize("law", ["A", "D"])
def test_no_policy_is_handed_the_jobs_to_come(tmp_path: Path, name: str, law: str) -> None:
    cheats = tmp_path / "cheats.py"
    cheats.write_text(CHEATS)
    only = f"{cheats}:{name}"
    result = quietly(replace(SHORT, policies=(only,), laws=(law,)))
    figures = result["rules"]["ramp-block"][law]["policies"][only]
    assert figures["faults"] == {"count": 0, "first": ""}


def test_policies_get_a_seed_that_is_not_the_episodes(tmp_path: Path) -> None:
    shown = tmp_path / "shown.py"
    shown.write_text(
        "class Shown:\n"
        "    def __init__(self, seed):\n"
        "        self.seed = seed\n\n"
        "    def degree(self, cluster, job, legal):\n"
        "        raise RuntimeError(f'seed {self.seed}')\n"
    )
    seeds = []
    for _ in range(2):
        options = replace(SHORT, policies=(f"{shown}:Shown",), laws=("A",), seeds=1, first_seed=7)
        figures = quietly(options)["rules"]["ramp-block"]["A"]["policies"][f"{shown}:Shown"]
        seeds.append(figures["faults"]["first"])
    assert seeds[0] == seeds[1]
    assert "seed 7" not in seeds[0]


def test_each_episode_has_a_law_of_its_own_unless_one_is_fixed(tmp_path: Path) -> None:
    output = tmp_path / "out"
    few = ["pac-ml", "--seeds", "3", "--rules", "ramp-block", "--laws", "A,D", "--processes", "1"]
    few += ["--policies", "constant-2", "--output", str(output)]
    rates: dict[str | None, list[dict[str, Any]]] = {}
    for instance in (None, "0", "3"):
        fixed = [] if instance is None else ["--law-instance", instance]
        outcome = CliRunner().invoke(experiment, [*few, *fixed])
        assert outcome.exit_code == 0, outcome.output
        result = json.loads((output / "result.json").read_text())
        assert result["law_instance"] == (None if instance is None else int(instance))
        said = "laws made anew" if instance is None else f"instance {instance} of the laws"
        assert said in " ".join(outcome.output.split())
        laws = result["rules"]["ramp-block"]
        rates[instance] = [laws[law]["policies"]["constant-2"]["episodes"] for law in "AD"]
    # Law A has no instances.
    assert rates[None][0] == rates["0"][0] == rates["3"][0]
    assert rates[None][1] != rates["0"][1] != rates["3"][1] != rates[None][1]


def test_policies_are_compared_seed_by_seed() -> None:
    names = ("constant-4", "constant-8", "maximum", "random")
    result = quietly(replace(SHORT, seeds=4, laws=("A",), policies=names))
    cell = result["rules"]["ramp-block"]["A"]
    rates = {
        name: [each["blocking_rate"] for each in figures["episodes"]]
        for name, figures in cell["policies"].items()
    }
    lowest = cell["lowest"]
    assert lowest["policy"] == min(names, key=lambda name: sum(rates[name]))
    constant = lowest["constant"]
    assert constant in ("constant-4", "constant-8")
    assert set(lowest["less_constant"]) == set(names) - {constant}
    for name, found in lowest["less_constant"].items():
        differences = [a - b for a, b in zip(rates[name], rates[constant], strict=True)]
        assert found["difference"] == pytest.approx(fmean(differences))
        # Student's t for four episodes.
        assert found["ci95"] == pytest.approx(3.182 * stdev(differences) / 2, rel=1e-6)
        assert found["worse_episodes"] == sum(each > 0 for each in differences)
        assert found["significant"] == (abs(found["difference"]) > found["ci95"])


def test_only_what_is_significantly_lowest_is_bold() -> None:
    # Two names of one rule: the lowest cannot be told from the other.
    for names, bold in ((("maximum", "constant-16"), 0), (("constant-1", "constant-8"), 1)):
        result = quietly(replace(SHORT, seeds=3, laws=("A",), policies=names))
        assert result["rules"]["ramp-block"]["A"]["lowest"]["below_all"] == bool(bold)
        cells = [cell for column in tables_of(result)[0].columns for cell in column.cells]
        assert [getattr(cell, "style", "") for cell in cells].count("bold") == bold
    one_seed = quietly(replace(SHORT, seeds=1, laws=("A",), policies=("constant-1", "constant-8")))
    assert not one_seed["rules"]["ramp-block"]["A"]["lowest"]["below_all"]


MINE = """
class Mine:
    \"\"\"Constant 4, but for the first job.\"\"\"

    def degree(self, cluster, job, legal):
        return min(4, legal[-1]) if cluster.recent else None
"""


@pytest.mark.usefixtures("small")
def test_a_users_policy_stands_beside_the_others(tmp_path: Path) -> None:
    mine, output = tmp_path / "mine.py", tmp_path / "out"
    mine.write_text(MINE)
    few = ["--seeds", "1", "--first-seed", "100", "--laws", "A", "--rules", "ramp-block"]
    beside = ["--policies", "constant-4", "--policy", f"{mine}:Mine", "--policy", "constant:3"]
    arguments = ["pac-ml", *few, "--processes", "2", *beside, "--output", str(output)]
    result = CliRunner().invoke(experiment, arguments)
    assert result.exit_code == 0, result.output
    read = json.loads((output / "result.json").read_text())
    policies = read["rules"]["ramp-block"]["A"]["policies"]
    assert list(policies) == ["constant-4", f"{mine}:Mine", "constant:3"]
    assert read["seeds"] == [100]
    assert [e["seed"] for e in policies["constant-4"]["episodes"]] == [100]
    assert policies[f"{mine}:Mine"]["faults"]["count"] == 1
    assert "it answered None" in policies[f"{mine}:Mine"]["faults"]["first"]
    assert "it answered None" in result.output
    assert policies["constant-4"]["faults"] == {"count": 0, "first": ""}
    keys = {"blocking_rate", "ci95", "jct_mean_s", "decisions_per_s", "published"}
    assert all(keys <= set(figures) for figures in policies.values())
    mine_rate, constant = (policies[n]["blocking_rate"] for n in (f"{mine}:Mine", "constant-4"))
    assert mine_rate == pytest.approx(constant, abs=0.03)
    assert mine.name in result.output


def test_policies_that_cannot_run_leave_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("class Mine:\n    def degree(self): ...\n")
    (tmp_path / "no.onnx").write_bytes(b"not a model")
    output = tmp_path / "out"
    broken = (str(tmp_path / "broken.py"), str(tmp_path / "no.onnx"))
    for wrong in (*broken, "nowhere.py:Mine", "nowhere.onnx", "fifo", "constant", "model.pt"):
        arguments = ["pac-ml", "--policy", wrong, "--output", str(output)]
        result = CliRunner().invoke(experiment, arguments)
        assert isinstance(result.exception, BadInput), wrong
        assert not output.exists()
