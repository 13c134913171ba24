"""PAC-ML's experiment end to end, on few arrivals: results, report, processes, wrong input."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
from click.testing import CliRunner
from scipy.stats import ttest_1samp

from patchlight.controller.policies.degrees import Constant
from patchlight.emulation.experiments import paper
from patchlight.emulation.experiments.commands.group import experiment
from patchlight.emulation.experiments.commands.pac_ml import (
    print_less_maximum,
    print_tables,
    rows_beside_published,
)
from patchlight.emulation.experiments.pac_ml import run
from patchlight.emulation.experiments.pac_ml.episodes import (
    NAMES,
    ROLL_OUT,
    TableCell,
    TaskRunner,
    check_names,
)
from patchlight.emulation.experiments.pac_ml.results import (
    completion_figure,
    write_report,
)
from patchlight.emulation.experiments.pac_ml.run import (
    PacMlOptions,
    run_experiment,
)
from patchlight.emulation.simulator.executors import Engine
from patchlight.emulation.simulator.figures import FORMATS
from patchlight.emulation.simulator.graphs.profiles import SOURCES
from patchlight.emulation.simulator.ramp.lossnetwork import run_episode
from patchlight.testbed.errors import BadInput
from patchlight.testbed.graphs import builtin_graph
from tests.support.figures import for_a_paper

SHORT = PacMlOptions(
    seeds=2,
    quick=True,
    laws=("A", "D"),
    rules=("ramp-block",),
    horizon_s=6e4,
    policies=("constant-8", "random", ROLL_OUT),
)


@pytest.fixture(autouse=True)
def no_profiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PATCHLIGHT_PROFILES", raising=False)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A roll-out that is quick and no good."""
    monkeypatch.setattr(run, "QUICK_FUTURES", 2)
    monkeypatch.setattr(run, "AHEAD", 5)


def quietly(options: PacMlOptions) -> dict[str, Any]:
    return run_experiment(
        options, lambda words: None, lambda done, total: None
    )


def printed(result: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    print_tables(result)
    return capsys.readouterr().out


def without_clocks(result: dict[str, Any]) -> dict[str, Any]:
    measured = ("started_at", "duration_s", "machine", "processes", "engine")
    kept = {
        name: value for name, value in result.items() if name not in measured
    }
    kept["provenance"] = {**kept["provenance"], "machine": {}}
    for laws in kept["rules"].values():
        for cell in laws.values():
            for figures in cell["policies"].values():
                assert figures.pop("decisions_per_s") > 0
                middle, late = (
                    figures.pop(f"decision_latency_p{p}_s") for p in (50, 99)
                )
                assert 0 < middle <= late
    return kept


@pytest.mark.usefixtures("small")
def test_results_are_the_same_on_any_number_of_processes() -> None:
    few = replace(SHORT, laws=("A",), horizon_s=2e4)
    alone = quietly(few)
    together = quietly(replace(few, engine=Engine("processes", 2)))
    assert together["processes"] == 2
    assert without_clocks(alone) == without_clocks(together)


@pytest.mark.usefixtures("small")
def test_figures_are_those_of_the_episodes() -> None:
    result = quietly(replace(SHORT, laws=("A",)))
    cell = result["rules"]["ramp-block"]["A"]
    runner = TaskRunner(
        [builtin_graph(name) for name in result["profiles"]["models"]], 6e4
    )
    scenario = runner.scenario(TableCell("ramp-block", "A"))
    episodes = [run_episode(scenario, Constant(8), seed) for seed in range(2)]
    figures = cell["policies"]["constant-8"]
    rates = [each.blocking_rate() for each in episodes]
    assert figures["blocking_rate"] == pytest.approx(sum(rates) / 2)
    # Student's t for two episodes.
    assert figures["ci95"] == pytest.approx(
        12.706 * abs(rates[0] - rates[1]) / 2, rel=1e-6
    )
    assert [each["blocking_rate"] for each in figures["episodes"]] == rates
    assert sum(figures["causes"].values()) == pytest.approx(
        figures["blocking_rate"]
    )
    assert figures["jct_mean_s"] == pytest.approx(
        sum(e.jct_mean_s for e in episodes) / 2
    )
    assert (
        cell["hindsight_bound"]["blocking_rate"]
        <= cell["lowest"]["blocking_rate"]
    )


@pytest.mark.usefixtures("small")
def test_the_report_is_json_tables_and_pictures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # One job of 1,000 s's worth of arrivals: no job is completed, one seed has no interval.
    nothing = quietly(
        replace(
            SHORT, seeds=1, horizon_s=2e3, policies=("constant-1", "maximum")
        )
    )
    files = write_report(nothing, tmp_path / "out")
    read = json.loads(
        (tmp_path / "out" / "result.json").read_text(),
        parse_constant=pytest.fail,
    )
    assert read == json.loads(json.dumps(nothing))
    figures = read["rules"]["ramp-block"]["A"]["policies"]["constant-1"]
    assert figures["ci95"] is None
    assert figures["jct_mean_s"] is None
    for number, plot in enumerate(
        ("blocking-ramp-block", "completion-ramp-block")
    ):
        png, pdf, svg = files[1 + 3 * number : 4 + 3 * number]
        assert [file.name for file in (png, pdf, svg)] == [
            f"{plot}.{s}" for s in FORMATS
        ]
        assert png.read_bytes().startswith(b"\x89PNG")
        assert pdf.read_bytes().startswith(b"%PDF")
        # Of one seed there is no interval.
        assert "seed, " not in for_a_paper(svg)
    assert len(files) == 7
    none = replace(SHORT, seeds=1, horizon_s=2e3, policies=("constant-1",))
    drawn = completion_figure(quietly(none), "ramp-block")
    # No job was completed: no panel of that time.
    assert len(drawn.axes) == len(SHORT.laws)
    tables = printed(nothing, capsys)
    for title in ("Blocking rate (%)", "Blocking rate less the best"):
        assert tables.count(title) == 1
    assert not nothing["comparable"]
    assert (
        rows_beside_published(nothing) == []
    )  # Nothing is claimed beside figures that do not compare.


def test_published_figures_stand_beside_only_with_the_published_profiles(
    pipedream: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = replace(
        SHORT, policies=("maximum",), seeds=1, horizon_s=1e6, laws=("A",)
    )
    assert not quietly(options)["comparable"]
    result = quietly(replace(options, profiles=pipedream))
    assert result["comparable"]
    figures = result["rules"]["ramp-block"]["A"]["policies"]["maximum"]
    assert figures["published"] == {
        "blocking_rate": 0.2624,
        "source": paper.NOTEBOOK,
    }
    # The published figures are of the other placement rule.
    assert rows_beside_published(result) == []
    assert "PAC-ML" not in printed(result, capsys)
    result = quietly(
        replace(options, profiles=pipedream, rules=("ramp-first-fit",))
    )
    rate = result["rules"]["ramp-first-fit"]["A"]["policies"]["maximum"][
        "blocking_rate"
    ]
    assert rate == pytest.approx(0.2624, abs=0.02)
    measured = f"{100 * rate:.2f} %"
    points = f"+{100 * (rate - 0.2038):.2f} points"
    row = ("law A", "20.38 %", measured, "maximum", points)
    assert rows_beside_published(result) == [row]
    tables = " ".join(printed(result, capsys).split())
    assert tables.endswith(" ".join(row))
    assert "PAC-ML, best checkpoint (20.38)" in tables


def test_names_come_once() -> None:
    assert check_names(["random", "maximum", "random"]) == [
        "random",
        "maximum",
    ]
    assert len(set(NAMES)) == len(NAMES) == 11


@pytest.mark.usefixtures("small", "undrawn")
def test_the_command_without_profiles(tmp_path: Path) -> None:
    output = tmp_path / "out"
    few = [
        "--seeds",
        "1",
        "--laws",
        "B",
        "--rules",
        "ramp-block",
        "--processes",
        "1",
    ]
    arguments = [
        "pac-ml",
        *few,
        "--policies",
        "constant-4,maximum",
        "--output",
        str(output),
    ]
    result = CliRunner().invoke(experiment, arguments)
    assert result.exit_code == 0, result.output
    assert "its figures cannot be compared" in result.output
    assert "publ." not in result.output
    assert json.loads((output / "result.json").read_text())["rules"][
        "ramp-block"
    ]["B"]


def test_wrong_input_leaves_no_folder_behind(tmp_path: Path) -> None:
    output = tmp_path / "out"
    for wrong in (
        ["--laws", "Z"],
        ["--profiles", str(tmp_path)],
        ["--policies", "best"],
    ):
        result = CliRunner().invoke(
            experiment, ["pac-ml", *wrong, "--output", str(output)]
        )
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
def test_no_policy_is_handed_the_jobs_to_come(
    tmp_path: Path, name: str, law: str
) -> None:
    cheats = tmp_path / "cheats.py"
    cheats.write_text(CHEATS)
    only = f"{cheats}:{name}"
    result = quietly(replace(SHORT, policies=(only,), laws=(law,)))
    figures = result["rules"]["ramp-block"][law]["policies"][only]
    assert figures["faults"] == {"count": 0, "first": ""}


SPY = """
from dataclasses import replace


class Spy:
    \"\"\"Finds the episode by trying small seeds; an error is a job that it knew beforehand.\"\"\"

    def __init__(self, scenario):
        self.scenario, self.seen, self.next = replace(scenario, stream=()), [], 0.55

    def degree(self, cluster, job, legal):
        knew, self.seen = self.next == job.requirement, [*self.seen, job.requirement]
        for seed in range(20):
            needs = [each.requirement for each in self.scenario.jobs(seed)]
            if len(self.seen) < len(needs) and needs[: len(self.seen)] == self.seen:
                self.next = needs[len(self.seen)]
        if knew:
            raise RuntimeError("I knew this job")
        return 4 if 4 in legal else 0
"""


def test_trying_seeds_does_not_tell_the_next_job(tmp_path: Path) -> None:
    spy = tmp_path / "spy.py"
    spy.write_text(SPY)
    options = replace(
        SHORT, policies=(f"{spy}:Spy", "constant-4"), laws=("A",), seeds=1
    )

    def known(options: PacMlOptions) -> tuple[int, dict[str, Any]]:
        result = quietly(options)
        figures = result["rules"]["ramp-block"]["A"]["policies"]
        return figures[f"{spy}:Spy"]["faults"]["count"], result

    # Two in a hundred by chance, of 60 jobs.
    found, result = known(options)
    assert found <= 6
    assert result["salt"] != known(options)[1]["salt"]
    again = known(replace(options, salt=result["salt"]))[1]
    assert (
        again["rules"]["ramp-block"]["A"]["policies"]["constant-4"]["episodes"]
        == (
            result["rules"]["ramp-block"]["A"]["policies"]["constant-4"][
                "episodes"
            ]
        )
    )
    # The seeds of policies that are no programs.
    assert known(replace(options, salt=0))[0] > 50
    assert quietly(replace(options, policies=("constant-4",)))["salt"] == 0


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
        options = replace(
            SHORT,
            policies=(f"{shown}:Shown",),
            laws=("A",),
            seeds=1,
            first_seed=7,
        )
        figures = quietly(options)["rules"]["ramp-block"]["A"]["policies"][
            f"{shown}:Shown"
        ]
        seeds.append(figures["faults"]["first"])
    assert seeds[0] == seeds[1]
    assert "seed 7" not in seeds[0]


@pytest.mark.usefixtures("undrawn")
def test_each_episode_has_a_law_of_its_own_unless_one_is_fixed(
    tmp_path: Path,
) -> None:
    output = tmp_path / "out"
    few = [
        "pac-ml",
        "--seeds",
        "2",
        "--rules",
        "ramp-block",
        "--laws",
        "A,D",
        "--processes",
        "1",
    ]
    few += ["--policies", "constant-2", "--quick", "--output", str(output)]
    rates: dict[str | None, list[dict[str, Any]]] = {}
    for instance in (None, "0", "3"):
        fixed = [] if instance is None else ["--law-instance", instance]
        outcome = CliRunner().invoke(experiment, [*few, *fixed])
        assert outcome.exit_code == 0, outcome.output
        result = json.loads((output / "result.json").read_text())
        assert result["law_instance"] == (
            None if instance is None else int(instance)
        )
        said = (
            "new laws in each"
            if instance is None
            else f"instance {instance} of the laws"
        )
        assert said in " ".join(outcome.output.split())
        laws = result["rules"]["ramp-block"]
        rates[instance] = [
            laws[law]["policies"]["constant-2"]["episodes"] for law in "AD"
        ]
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
    chance: dict[str, float] = {}
    for name, found in lowest["less_constant"].items():
        differences = [
            a - b for a, b in zip(rates[name], rates[constant], strict=True)
        ]
        assert found["difference"] == pytest.approx(fmean(differences))
        # Student's t for four episodes.
        assert found["ci95"] == pytest.approx(
            3.18245 * stdev(differences) / 2, rel=1e-5
        )
        assert found["worse_episodes"] == sum(each > 0 for each in differences)
        chance[name] = float(ttest_1samp(differences, 0.0).pvalue)
        assert found["p"] == pytest.approx(chance[name])
    # Holm: each in its turn has to be less likely by chance than the level over those left.
    ranked = sorted(chance, key=chance.__getitem__)
    sure = [
        chance[name] <= 0.05 / (len(ranked) - rank)
        for rank, name in enumerate(ranked)
    ]
    for rank, name in enumerate(ranked):
        assert lowest["less_constant"][name]["significant"] == all(
            sure[: rank + 1]
        )


def test_only_what_is_significantly_lowest_is_marked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # Two names of one rule: the lowest cannot be told from the other.
    for names, marked in (
        (("maximum", "constant-16"), 0),
        (("constant-1", "constant-8"), 1),
    ):
        result = quietly(replace(SHORT, seeds=3, laws=("A",), policies=names))
        assert result["rules"]["ramp-block"]["A"]["lowest"][
            "below_all"
        ] == bool(marked)
        rows = printed(result, capsys).partition("* below")[0].splitlines()
        assert [row.startswith(names[-1]) for row in rows if "*" in row] == [
            True
        ] * marked
    one_seed = quietly(
        replace(
            SHORT, seeds=1, laws=("A",), policies=("constant-1", "constant-8")
        )
    )
    assert not one_seed["rules"]["ramp-block"]["A"]["lowest"]["below_all"]


def test_tables_fit_80_columns(
    pipedream: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    names = tuple(name for name in NAMES if name != ROLL_OUT)
    first_fit = replace(
        SHORT, rules=("ramp-first-fit",), laws=("A", "B", "C", "D")
    )
    first_fit = replace(first_fit, policies=(*names, "learned-first-fit-any"))
    result = quietly(replace(first_fit, profiles=pipedream))
    result["comparable"] = True
    lines = printed(result, capsys).splitlines()
    assert max(map(len, lines)) <= 80
    for name in names:
        assert sum(line.startswith(f"{name} ") for line in lines) >= 2
    # Its name is longer than the column where intervals are wide.
    learned = [line for line in lines if line.startswith("learned-first-fit")]
    assert len(learned) >= 2
    assert any("±" in line for line in learned)


@pytest.mark.usefixtures("undrawn")
def test_wide_shows_published_rates_and_episodes(
    tmp_path: Path, pipedream: Path
) -> None:
    few = [
        "pac-ml",
        "--seeds",
        "2",
        "--laws",
        "A",
        "--rules",
        "ramp-first-fit",
    ]
    few += [
        "--profiles",
        str(pipedream),
        "--policies",
        "constant-16,maximum",
        "--processes",
        "1",
    ]
    few += ["--output", str(tmp_path / "out")]
    narrow, wide = (
        CliRunner().invoke(experiment, [*few, *more])
        for more in ([], ["--wide"])
    )
    assert "publ." not in narrow.output
    assert "(26.24)" in wide.output
    assert "0 of 2" in wide.output


def test_a_result_says_where_it_comes_from(
    tmp_path: Path, pipedream: Path
) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(MINE)
    short = replace(
        SHORT, laws=("A",), rules=("ramp-first-fit",), horizon_s=2e3, seeds=1
    )
    chosen = ("constant-8", "learned-first-fit-inexact", f"{mine}:Mine")
    options = replace(short, policies=chosen, profiles=pipedream)
    result = quietly(options)
    origin = result["provenance"]
    assert (origin["seeds"], origin["machine"]) == ([0], result["machine"])
    hashes = {
        Path(file).name: digest for file, digest in origin["sha256"].items()
    }
    profiles = {f"{name}.txt" for name in SOURCES}
    assert set(hashes) == {
        *profiles,
        "mine.py",
        *(
            f"learned-first-fit-inexact.{suffix}"
            for suffix in ("onnx", "json")
        ),
    }
    assert hashes["vgg16.txt"] == SOURCES["vgg16"][1]
    assert hashes["mine.py"] == hashlib.sha256(mine.read_bytes()).hexdigest()


MINE = """
class Mine:
    \"\"\"Constant 4, but for the first job.\"\"\"

    def degree(self, cluster, job, legal):
        return min(4, legal[-1]) if cluster.recent else None
"""


@pytest.mark.usefixtures("small", "undrawn")
def test_a_users_policy_stands_beside_the_others(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    output = tmp_path / "out"
    mine.write_text(MINE)
    few = [
        "--seeds",
        "1",
        "--first-seed",
        "100",
        "--laws",
        "A",
        "--rules",
        "ramp-block",
    ]
    beside = ["--policies", f"constant-4,{mine}:Mine,constant:3"]
    arguments = [
        "pac-ml",
        *few,
        "--processes",
        "2",
        *beside,
        "--output",
        str(output),
    ]
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
    # Its row has the number of faults.
    heading, row = (
        next(
            line
            for line in result.output.splitlines()
            if line.startswith(words)
        )
        for words in ("policy", f"{mine.name}:Mine")
    )
    assert heading.split()[-1] == "faults"
    assert row.split()[-1] == "1"
    assert policies["constant-4"]["faults"] == {"count": 0, "first": ""}
    keys = {
        "blocking_rate",
        "ci95",
        "jct_mean_s",
        "decisions_per_s",
        "published",
    }
    assert all(keys <= set(figures) for figures in policies.values())
    mine_rate, constant = (
        policies[n]["blocking_rate"] for n in (f"{mine}:Mine", "constant-4")
    )
    assert mine_rate == pytest.approx(constant, abs=0.03)
    assert mine.name in result.output


def test_policies_that_cannot_run_leave_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(
        "class Mine:\n    def degree(self): ...\n"
    )
    (tmp_path / "no.onnx").write_bytes(b"not a model")
    output = tmp_path / "out"
    broken = (str(tmp_path / "broken.py"), str(tmp_path / "no.onnx"))
    for wrong in (
        *broken,
        "nowhere.py:Mine",
        "nowhere.onnx",
        "fifo",
        "constant",
        "model.pt",
    ):
        arguments = ["pac-ml", "--policies", wrong, "--output", str(output)]
        result = CliRunner().invoke(experiment, arguments)
        assert isinstance(result.exception, BadInput), wrong
        assert not output.exists()


def test_laws_arrivals_and_models_are_what_the_user_says(
    tmp_path: Path,
) -> None:
    few = [
        "pac-ml",
        "--seeds",
        "1",
        "--rules",
        "ramp-block",
        "--processes",
        "1",
    ]
    told = [*few, "--policies", "maximum,constant-8", "--laws", "values:0.5/1"]
    other = ["--arrivals", "poisson:20", "--mix", "gnmt=1", "--milliseconds"]
    command = [*told, *other, "--output", str(tmp_path / "out")]
    done = CliRunner().invoke(experiment, command)
    assert done.exit_code == 0, done.output
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["varied"] == {
        "arrivals": "poisson:20",
        "mix": "gnmt=1",
        "times": "milliseconds",
    }
    assert not result["comparable"]
    cell = result["rules"]["ramp-block"]["values:0.5/1"]
    rates = {
        name: figures["blocking_rate"]
        for name, figures in cell["policies"].items()
    }
    expected = (
        1 - rates["constant-8"] / rates["maximum"]
        if rates["maximum"]
        else None
    )
    assert cell["less_maximum"].get("constant-8") == expected
    # Jobs of 50 steps of milliseconds take seconds.
    assert 0 < cell["policies"]["maximum"]["jct_mean_s"] < 60
    for wrong in ("uniform:0.6:0.2", "values:2", "skewed:x", "E"):
        with pytest.raises(BadInput, match="law"):
            PacMlOptions(laws=(wrong,))


def test_what_is_less_than_maximum_parallelisation_stands_beside_the_papers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    policies = {"maximum": 0.26, "constant-4": 0.13}
    cell = {
        "policies": {name: {} for name in policies},
        "less_maximum": {"constant-4": 0.5},
    }
    print_less_maximum("ramp-first-fit", {"C": cell}, beside=True)
    shown = capsys.readouterr().out
    assert "50.0" in shown
    assert "(56.4)" in shown  # .1166 for .2674
    assert "up to 56.2 %" in shown
