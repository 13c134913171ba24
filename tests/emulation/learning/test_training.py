"""Training runs: configurations, learning, going on, export."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import studies
from patchlight.controller.policies.files import MODELS
from patchlight.controller.policies.learned import load_learned, read_card
from patchlight.controller.policies.observation import (
    INTERVAL,
    ObservationLayout,
)
from patchlight.emulation.experiments.pac_ml.episodes import (
    PolicyFaults,
    make_policy,
)
from patchlight.emulation.learning.afterstates import (
    AfterstateLearner,
    Teacher,
)
from patchlight.emulation.learning.config import (
    CONFIGS,
    Config,
    ConfigError,
    Network,
    find_config,
    parse_config,
    read_config,
    with_conditions,
    with_start,
)
from patchlight.emulation.learning.export import export, of_runs, rounded
from patchlight.emulation.learning.labs.network import (
    is_for_labs,
    parse_lab_config,
)
from patchlight.emulation.learning.learner import play
from patchlight.emulation.learning.network import (
    ClusterValue,
    OptionScorer,
    load_run,
    scorer_of,
)
from patchlight.emulation.learning.policy_iteration import (
    PolicyIterationLearner,
)
from patchlight.emulation.learning.training import (
    TrainingRun,
    scenarios_of,
    train_with_seeds,
)
from patchlight.emulation.simulator.ramp.lossnetwork import run_episode
from patchlight.emulation.simulator.ramp.scenario import pac_ml_scenario
from patchlight.emulation.simulator.ramp.workloads import Workloads, law
from patchlight.testbed.errors import BadInput, PatchlightError
from tests.support.tables import below, unmarked
from tests.support.tiny_models import GRAPHS

for _package in ("torch", "gymnasium", "onnx"):
    pytest.importorskip(
        _package, reason=f"{_package} is not installed: extra 'learn'"
    )


# What PyTorch imports at a first optimizer, and the compiled loops, are had once.
pytestmark = pytest.mark.xdist_group("training")

TINY = """
name: tiny
steps: 4000
environment: {laws: [A, D], law_instance: 0, num_envs: 32, horizon_s: 1e5, rule: ramp-block}
network: {hidden: [16], busy_after_ks: [1, 4, 10]}
evaluation: {seeds: 2, every_steps: 2000}
"""


def test_a_tiny_run_learns_writes_a_model_and_goes_on(tmp_path: Path) -> None:
    lines: list[str] = []
    shorter = TINY.replace("4000", "1500").replace("2000", "700")
    config = parse_config(shorter)
    run = TrainingRun(config, GRAPHS, tmp_path / "run", lines.append)
    report = run.learn()
    assert report.training["steps"] >= 1500
    assert len(lines) >= 2
    assert "A 0." in lines[-1]
    rows = (tmp_path / "run" / "progress.csv").read_text().splitlines()
    assert rows[0].startswith(
        "steps,wall_s,loss,blocking_in_training,blocking_A"
    )
    assert len(rows) == 1 + len(
        [line for line in lines if "blocking: A 0." in line]
    )

    assert isinstance(report.scorer, OptionScorer)
    path = export(
        report.scorer, run.layout, config, report.training, tmp_path / "model"
    )
    policy = load_learned(path)
    assert (policy.card.ramp, policy.card.placement_rule) == (
        (4, 4, 2),
        "ramp-block",
    )
    assert policy.card.training["config"]["environment"]["laws"] == ["A", "D"]
    # The model plays as the network does, in single episodes as in episodes.
    scenario = run.scenarios[0]
    rates = [
        run_episode(scenario, policy, seed).blocking_rate()
        for seed in (500, 501)
    ]
    assert rates == pytest.approx(
        play(rounded(report.scorer), scenario, 500, 2)
    )

    with pytest.raises(BadInput, match="already has a run"):
        TrainingRun(config, GRAPHS, tmp_path / "run").learn()
    longer = TrainingRun(
        parse_config(shorter.replace("1500", "2500")), GRAPHS, tmp_path / "run"
    )
    longer.resume()
    assert longer.learn().training["steps"] >= 2500
    other = TrainingRun(
        parse_config(shorter.replace("[16]", "[8]")), GRAPHS, tmp_path / "run"
    )
    with pytest.raises(BadInput, match="another configuration"):
        other.resume()
    with pytest.raises(BadInput, match=r"no checkpoint\.pt"):
        TrainingRun(config, GRAPHS, tmp_path / "nothing").resume()
    # A checkpoint beside the configuration another network.
    (tmp_path / "mixed").mkdir()
    shutil.copy(tmp_path / "run" / "checkpoint.pt", tmp_path / "mixed")
    (tmp_path / "mixed" / "config.json").write_text(
        json.dumps(other.config.as_data())
    )
    with pytest.raises(BadInput, match="another network"):
        scorer_of(*load_run(tmp_path / "mixed"))

    kept_config, kept = load_run(tmp_path / "run")
    scorer, layout = scorer_of(kept_config, kept)
    assert layout == run.layout
    assert scorer.inputs == ("remaining", "mask", "recent")
    again = export(*of_runs([tmp_path / "run"]), tmp_path / "out", "again")
    assert load_learned(again).card.training["steps"] >= 2500


def test_learning_from_play_beats_chance() -> None:
    config = parse_config(
        TINY.replace("[A, D]", "[D]")
        + "afterstates: {teacher: {D: 2}, teacher_only_fraction: 1, ema_rate: 0.05}\n"
    )
    scenario = scenarios_of(config, GRAPHS)[0]
    learner = AfterstateLearner(config, [scenario])
    for _ in range(8):
        learner.round()
    drawn = [
        run_episode(
            scenario,
            make_policy("random", scenario, seed, None, PolicyFaults()),
            seed,
        )
        for seed in range(500, 504)
    ]
    chance = np.mean([episode.blocking_rate() for episode in drawn])
    assert np.mean(play(learner.average, scenario, 500, 4)) < 0.8 * chance


@pytest.mark.parametrize(
    ("algorithm", "make", "sooner"),
    [
        ("afterstates", AfterstateLearner, ""),
        (
            "policy-iteration",
            PolicyIterationLearner,
            "policy_iteration: {learning_starts: 1}",
        ),
    ],
    ids=["afterstates", "policy-iteration"],
)
def test_a_seed_fixes_the_weights(
    algorithm: str, make: Any, sooner: str
) -> None:
    config = parse_config(
        TINY.replace("steps", f"algorithm: {algorithm}\nsteps", 1) + sooner
    )
    scenarios = scenarios_of(config, GRAPHS)

    def trained(config: Config) -> torch.Tensor:
        learner = make(config, scenarios)
        for _ in range(4):
            learner.round()
        return torch.cat(
            [weights.flatten() for weights in learner.average.parameters()]
        )

    first = trained(config)
    assert torch.equal(first, trained(config))
    assert not torch.equal(first, trained(replace(config, seed=1)))


def test_weights_that_are_no_numbers_end_a_run(tmp_path: Path) -> None:
    config = parse_config(TINY + "afterstates: {learning_rate: 1e30}\n")
    with pytest.raises(PatchlightError, match="'tiny' has diverged"):
        TrainingRun(config, GRAPHS, tmp_path / "run").learn()


def test_the_teacher_keeps_to_its_rule() -> None:
    config = parse_config(TINY)
    scenarios = scenarios_of(config, GRAPHS)
    episodes = AfterstateLearner(config, scenarios).episodes
    teacher = Teacher(episodes, [4, "sufficient"])
    for _ in range(30):
        actions = teacher.actions(episodes)
        assert episodes.mask[np.arange(episodes.num_envs), actions].all()
        degrees = np.array(episodes.layout.actions)[actions]
        assert set(degrees[episodes.scenario_of == 0]) <= {0, 4}
        episodes.step(actions)


@pytest.mark.parametrize(
    ("marked", "message"),
    below("""
lacks 'name'
    ‸steps: 1
unknown key 'colour'
    name: a⏎‸colour: red
did you mean 'num_envs'
    name: a⏎environment:⏎  ‸num_env: 3
a whole number from 1
    name: a⏎steps: ‸many
    name: a⏎steps: ‸0
at most 1
    name: a⏎afterstates: {gamma: ‸1.5}
afterstates
    name: a⏎algorithm: ‸magic
no requirement law 'E': expected one of A
    name: a⏎environment: {laws: [A, ‸E]}
invalid arrivals 'often:3'
    name: a⏎environment: ‸{conditions: [often:3]}
'conditions' is empty
    name: a⏎environment: ‸{conditions: []}
expected a list
    name: a⏎environment: {laws: ‸A}
no teacher 'no'
    name: a⏎afterstates: {teacher: {A: ‸no}}
'laws' is empty
    name: a⏎environment: ‸{laws: []}
'busy_after_ks' is empty
    name: a⏎network: ‸{busy_after_ks: []}
unknown key 'ppo'
    name: a⏎‸ppo: {n_epochs: 4}
is not of algorithm 'afterstates'
    ‸name: a⏎policy_iteration: {near: 4}
servers
    name: a⏎network: {cluster: ‸blocks}
'graph_width' is of the observation
    name: a⏎network: ‸{graph_width: 4}
these are 'policy-it
    ‸name: a⏎algorithm: policy-iteration⏎network: {observation: pac-ml}
these are 'dqn' and 'patchlight'
    ‸name: a⏎algorithm: dqn
needs exact remaining times
    ‸name: a⏎algorithm: policy-iteration⏎environment: {remaining_error: 0.3}
a whole number from 2
    name: a⏎algorithm: policy-iteration⏎policy_iteration: {options: ‸1}
is not a name
    name: ‸a b
"""),
)
def test_mistakes_in_a_configuration_are_named_with_their_place(
    marked: str, message: str
) -> None:
    text, line, column = unmarked(marked)
    with pytest.raises(ConfigError, match=message) as caught:
        parse_config(text, "c.yaml")
    first = caught.value.issues[0]
    assert (first.file, first.line, first.column) == ("c.yaml", line, column)


@pytest.mark.parametrize(
    ("text", "message"), [("name: [a", "not YAML"), ("", "empty")]
)
def test_what_is_no_configuration_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config(text)


def test_all_mistakes_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config("name: a\nsteps: x\ncolour: red\nseed: -1")
    assert len(caught.value.issues) == 3


def test_a_teacher_of_a_degree_that_is_not_there_is_refused(
    tmp_path: Path,
) -> None:
    config = parse_config(TINY + "afterstates: {teacher: {A: 5, D: 2}}\n")
    with pytest.raises(BadInput, match="degree 5"):
        TrainingRun(config, GRAPHS, tmp_path)
    config = parse_config(TINY + "afterstates: {teacher: {D: 2}}\n")
    with pytest.raises(BadInput, match="no degree for law A"):
        TrainingRun(config, GRAPHS, tmp_path)


@pytest.mark.parametrize(
    "path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem
)
def test_the_configurations_that_come_along_name_files_that_exist(
    path: Path,
) -> None:
    named = re.findall(r"[\w/.-]+\.(?:onnx|json|md|yaml)", path.read_text())
    root = Path(__file__).parents[3]
    assert [name for name in named if not (root / name).is_file()] == []


@pytest.mark.parametrize(
    ("config", "model"),
    [
        ("ramp-block-choice", "learned-block-choice"),
        ("ramp-first-fit-inexact", "learned-first-fit-inexact"),
    ],
)
def test_cards_of_shipped_models_hold_their_configurations(
    config: str, model: str
) -> None:
    kept = read_card(MODELS / f"{model}.json").training["config"]
    assert parse_config(json.dumps(dict(kept))) == read_config(
        find_config(Path(config))
    )


def test_the_model_for_any_load_says_what_its_members_learned_under() -> None:
    training = read_card(MODELS / "learned-first-fit-any.json").training
    members = [tuple(each) for each in training["learned_under"]]
    kept = parse_config(json.dumps(dict(training["config"])))
    assert set(kept.environment.conditions) == {
        each for member in members for each in member
    }
    first = with_start(with_conditions(kept, members[0]), "")
    assert first == read_config(find_config(Path("ramp-first-fit-iterated")))
    others = read_config(find_config(Path("ramp-first-fit-underload")))
    assert members[-1] == others.environment.conditions


def test_a_run_may_fix_the_instance_of_the_laws() -> None:
    text = "name: a\nenvironment: {laws: [D], law_instance: 3}\n"
    (fixed,) = scenarios_of(parse_config(text), GRAPHS)
    (anew,) = scenarios_of(
        parse_config(text.replace(", law_instance: 3", "")), GRAPHS
    )
    assert fixed.law == law("D", 3)
    assert anew.law == law("D", None)


@pytest.mark.parametrize(
    "path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem
)
def test_the_configurations_that_come_along_can_be_read(path: Path) -> None:
    if is_for_labs(text := path.read_text()):
        assert parse_lab_config(text).name == path.stem
        return
    config = read_config(find_config(Path(path.stem)))
    assert config.name == path.stem
    assert config.environment.first_seed >= 1000
    evaluation = config.evaluation
    assert evaluation.first_seed >= 500
    assert evaluation.first_seed + evaluation.seeds <= 1000


def test_each_law_comes_under_each_condition() -> None:
    conditions = "conditions: [fixed:800, 'poisson:2000 vgg16=1'], training_horizon_s: 4e5"
    config = parse_config(
        TINY.replace("rule: ramp-block", f"rule: ramp-block, {conditions}")
    )
    assert config.environment.names[::3] == [
        "A fixed:800",
        "D poisson:2000 vgg16=1",
    ]
    tested = scenarios_of(config, GRAPHS)
    assert isinstance(tested[0].workloads, Workloads)
    assert all(each.workloads is tested[0].workloads for each in tested)
    assert [each.law.name for each in tested] == ["A", "D", "A", "D"]
    # As many jobs come under each.
    assert [each.horizon_s for each in tested] == [8e4, 8e4, 2e5, 2e5]
    assert {job.graph for job in tested[3].jobs(0)} == {1}
    learned = scenarios_of(config, tested[0].workloads, training=True)
    assert [each.horizon_s for each in learned] == [3.2e5, 3.2e5, 8e5, 8e5]


def test_worths_that_are_looked_up_are_those_that_are_multiplied() -> None:
    layout = ObservationLayout((4, 4, 2), (1, 2, 4))
    network = Network(hidden=(8, 4), busy_after_ks=(5, 1, 3))
    value = ClusterValue(layout, network)
    rng = np.random.default_rng(0)
    # Some on the edge of being busy.
    times = np.array([0.0, 1.0, 2.0, 3.0, 4.0, 9.0]) + 1e-3
    left = torch.from_numpy(
        rng.choice(times, (40, layout.servers)).astype(np.float32)
    )
    recent = torch.from_numpy(
        rng.random((40, *layout.shapes["recent"])).astype(np.float32) + 0.1
    )
    recent[:20, INTERVAL] = 1.0
    for _ in range(2):
        with torch.no_grad():
            # Learned on, its worths are other ones.
            for weights in value.parameters():
                weights.add_(torch.randn_like(weights))
            assert torch.allclose(
                value.worth(left, recent), value(left, recent), atol=1e-3
            )
            assert float(value(left, recent).std()) > 0.1


def test_several_seeds_make_one_model(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    laws = (
        TINY.replace("[A, D]", "[D]")
        .replace("1e5", "3e4")
        .replace("4000", "500")
    )
    config = parse_config(laws)
    path = train_with_seeds(
        config, 2, GRAPHS, "tiny", tmp_path / "tiny", False, print
    )
    assert path == tmp_path / "tiny" / "tiny.onnx"
    card = load_learned(path).card
    assert card.training["training_seeds"] == [0, 1]
    assert card.training["profiles"] == "tiny"
    with pytest.raises(BadInput, match="already has a run"):
        train_with_seeds(
            config, 2, GRAPHS, "tiny", tmp_path / "tiny", False, print
        )
    # All are trained: only the model is written again, and it is the same.
    before = path.read_bytes()
    assert (
        train_with_seeds(
            config, 2, GRAPHS, "tiny", tmp_path / "tiny", True, print
        )
        == path
    )
    assert path.read_bytes() == before

    other = shutil.copytree(tmp_path / "tiny" / "seed-1", tmp_path / "other")
    described = json.loads((other / "config.json").read_text())
    described["environment"]["rule"] = "ramp-first-fit"
    (other / "config.json").write_text(json.dumps(described))
    with pytest.raises(
        BadInput, match="another network, placement rule or RAMP"
    ):
        of_runs([tmp_path / "tiny" / "seed-0", other])

    theirs = parse_config(
        laws.replace("name: tiny", "name: theirs\nalgorithm: dqn").replace(
            "hidden", "observation: pac-ml, graph_width: 4, hidden"
        )
    )
    assert (
        train_with_seeds(
            theirs, 2, GRAPHS, "tiny", tmp_path / "theirs", False, print
        )
        is None
    )
    with pytest.raises(BadInput, match="PAC-ML's observation"):
        of_runs([tmp_path / "theirs" / "seed-0"])

    monkeypatch.setattr(
        studies, "find_profiles", lambda folder: SimpleNamespace(graphs=GRAPHS)
    )
    capsys.readouterr()
    studies.compare([tmp_path / "tiny", tmp_path / "theirs"], 2, None)
    ours, *and_theirs = capsys.readouterr().out.splitlines()
    assert re.match(
        r"tiny D: [\d.]+ ± [\d.]+; \S+ [\d.]+; worst seed less that [+-]", ours
    )
    # Two seeds, each with its last and its best weights.
    assert len(and_theirs) == 4
    for line in and_theirs:
        shares = re.findall(r"\d+: ([\d.]+)", line.partition("degrees ")[2])
        assert sum(map(float, shares)) == pytest.approx(1, abs=0.01), line


def test_the_best_of_many_means_is_below_the_mean(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        studies, "find_profiles", lambda folder: SimpleNamespace(graphs=GRAPHS)
    )
    studies.selected(None, 0, 8)
    for line, (law_name, (degree, _)) in zip(
        capsys.readouterr().out.splitlines(),
        studies.PUBLISHED.items(),
        strict=True,
    ):
        found = re.match(
            rf"{law_name}, degree {degree}: ([\d.]+), .*3: ([\d.]+) ", line
        )
        assert found is not None
        scenario = pac_ml_scenario(GRAPHS, law_name, law_instance=0)
        rates = studies.rule_rates(
            scenario, f"constant-{degree}", 8, studies.FRESH
        )
        assert float(found[1]) == pytest.approx(100 * np.mean(rates), abs=0.5)
        assert 100 * min(rates) - 0.01 <= float(found[2])
        # On law B no episode of these models differs from another.
        assert float(found[2]) < float(found[1]) or np.ptp(rates) == 0


def test_a_run_begins_with_the_weights_of_an_earlier_one(
    tmp_path: Path,
) -> None:
    config = parse_config(TINY.replace("4000", "500"))
    report = TrainingRun(config, GRAPHS, tmp_path / "run").learn()
    begun = with_start(config, str(tmp_path / "run"))
    assert begun == parse_config(
        TINY.replace("4000", "500")
        + f"afterstates: {{start: {tmp_path / 'run'}}}\n"
    )
    learner = AfterstateLearner(begun, scenarios_of(begun, GRAPHS))
    scenario = scenarios_of(config, GRAPHS)[1]
    assert play(learner.scorer, scenario, 500, 2) == play(
        report.scorer, scenario, 500, 2
    )
    small = parse_config(TINY.replace("[16]", "[8]"))
    with pytest.raises(BadInput, match="has another network"):
        AfterstateLearner(
            with_start(small, str(tmp_path / "run")),
            scenarios_of(small, GRAPHS),
        )
