"""Training runs: configurations, learning, going on, export."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

for _package in ("torch", "gymnasium", "onnx"):
    pytest.importorskip(_package, reason=f"{_package} is not installed: extra 'learn'")

from click.testing import CliRunner  # noqa: E402

from patchlight.cli.policy.learn import export as export_command  # noqa: E402
from patchlight.controller.policies.learned import load_learned, read_card  # noqa: E402
from patchlight.controller.policies.model_files import MODELS  # noqa: E402
from patchlight.emulation.learning.afterstates import AfterstateLearner, Teacher, play  # noqa: E402
from patchlight.emulation.learning.config import (  # noqa: E402
    CONFIGS,
    ConfigError,
    find_config,
    parse_config,
    read_config,
)
from patchlight.emulation.learning.export import export, rounded  # noqa: E402
from patchlight.emulation.learning.labs.config import is_for_labs, parse_lab_config  # noqa: E402
from patchlight.emulation.learning.network import load_run, scorer_of  # noqa: E402
from patchlight.emulation.learning.training import Run, scenarios_of  # noqa: E402
from patchlight.emulation.simulator.ramp import Workloads, run_episode  # noqa: E402
from patchlight.emulation.simulator.ramp.requirements import law  # noqa: E402
from patchlight.testbed.errors import BadInput  # noqa: E402
from patchlight.testbed.graphs import builtin_graph  # noqa: E402

GRAPHS = [builtin_graph("alexnet"), builtin_graph("vgg16")]
TINY = """
name: tiny
steps: 4000
environment: {laws: [A, D], num_envs: 32, horizon_s: 1e5, rule: ramp-block}
network: {hidden: [16], busy_after_ks: [1, 4, 10]}
evaluation: {seeds: 2, every_steps: 2000}
"""
NO_LAW = "name: a\nenvironment: {laws: [A, E]}"


def test_a_tiny_run_learns_writes_a_model_and_goes_on(tmp_path: Path) -> None:
    lines: list[str] = []
    config = parse_config(TINY)
    run = Run(config, GRAPHS, tmp_path / "run", lines.append)
    report = run.learn()
    assert report.training["steps"] >= 4000
    assert len(lines) >= 2
    assert "A 0." in lines[-1]
    rows = (tmp_path / "run" / "progress.csv").read_text().splitlines()
    assert rows[0].startswith("steps,wall_s,loss,blocking_in_training,blocking_A")
    assert len(rows) == 1 + len(lines)

    path = export(report.scorer, run.layout, config, report.training, tmp_path / "model")
    policy = load_learned(path, ramp=(4, 4, 2), rule="ramp-block")
    assert policy.card.training["config"]["environment"]["laws"] == ["A", "D"]
    # The model plays as the network does, in single episodes as in episodes.
    scenario = run.scenarios[0]
    rates = [run_episode(scenario, policy, seed).blocking_rate() for seed in (500, 501)]
    assert rates == pytest.approx(play(rounded(report.scorer), scenario, 500, 2))

    with pytest.raises(BadInput, match="holds a run already"):
        Run(config, GRAPHS, tmp_path / "run").learn()
    longer = Run(parse_config(TINY.replace("4000", "5000")), GRAPHS, tmp_path / "run")
    longer.resume()
    assert longer.learn().training["steps"] >= 5000
    other = Run(parse_config(TINY.replace("[16]", "[8]")), GRAPHS, tmp_path / "run")
    with pytest.raises(BadInput, match="another configuration"):
        other.resume()
    with pytest.raises(BadInput, match=r"no checkpoint\.pt"):
        Run(config, GRAPHS, tmp_path / "nothing").resume()

    kept_config, kept = load_run(tmp_path / "run")
    scorer, layout = scorer_of(kept_config, kept)
    assert layout == run.layout
    assert scorer.inputs == ("remaining", "mask", "recent")
    done = CliRunner().invoke(
        export_command, [str(tmp_path / "run"), str(tmp_path / "out"), "--name", "again"]
    )
    assert done.exit_code == 0, done.output
    assert load_learned(tmp_path / "out" / "again.onnx").card.training["steps"] >= 5000


def test_maskable_ppo_learns_and_exports_with_the_graph(tmp_path: Path) -> None:
    pytest.importorskip("sb3_contrib", reason="sb3-contrib is not installed: extra 'learn'")
    config = parse_config(
        TINY.replace("steps: 4000", "steps: 512\nalgorithm: maskable-ppo")
        .replace("num_envs: 32", "num_envs: 8")
        .replace("hidden: [16]", "hidden: [16], graph_width: 4")
        + "ppo: {n_steps: 32, batch_size: 128, n_epochs: 1}\n"
    )
    run = Run(config, GRAPHS, tmp_path / "run")
    report = run.learn()
    policy = load_learned(export(report.scorer, run.layout, config, report.training, tmp_path))
    rate = run_episode(run.scenarios[0], policy, 500).blocking_rate()
    assert 0 < rate < 1
    again = Run(config, GRAPHS, tmp_path / "run")
    again.resume()
    assert again.learn().training["steps"] >= 512


def test_learning_from_play_beats_chance() -> None:
    config = parse_config(
        TINY.replace("[A, D]", "[D]").replace("num_envs: 32", "num_envs: 64")
        + "afterstates: {teacher: {D: 2}, teacher_only_fraction: 1, ema_rate: 0.05}\n"
    )
    scenarios = scenarios_of(config, GRAPHS)
    learner = AfterstateLearner(config, scenarios)
    before = np.mean(play(learner.scorer, scenarios[0], 500, 4))
    for _ in range(20):
        learner.round()
    assert np.mean(play(learner.average, scenarios[0], 500, 4)) < before


def test_the_teacher_keeps_to_its_rule() -> None:
    config = parse_config(TINY)
    scenarios = scenarios_of(config, GRAPHS)
    learner = AfterstateLearner(config, scenarios)
    teacher = Teacher(learner.episodes, [4, "sufficient"])
    for _ in range(30):
        episodes = learner.episodes
        actions = teacher.actions(episodes)
        assert episodes.mask[np.arange(episodes.num_envs), actions].all()
        degrees = np.array(episodes.layout.actions)[actions]
        assert set(degrees[episodes.scenario_of == 0]) <= {0, 4}
        episodes.step(actions)


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("steps: 1", 1, 1, "lacks 'name'"),
        ("name: a\ncolour: red", 2, 1, "unknown key 'colour'"),
        ("name: a\nenvironment:\n  num_env: 3", 3, 3, "did you mean 'num_envs'"),
        ("name: a\nsteps: many", 2, 8, "a whole number from 1"),
        ("name: a\nsteps: 0", 2, 8, "a whole number from 1"),
        ("name: a\nafterstates: {gamma: 1.5}", 2, 22, "at most 1"),
        ("name: a\nalgorithm: magic", 2, 12, "afterstates"),
        (NO_LAW, 2, 25, "'E' is not a requirement law: expected one of A"),
        ("name: a\nenvironment: {laws: A}", 2, 21, "expected a list"),
        ("name: a\nafterstates: {teacher: {A: no}}", 2, 28, "no teacher 'no'"),
        ("name: a\nenvironment: {laws: []}", 2, 14, "'laws' is empty"),
        ("name: a\nnetwork: {busy_after_ks: []}", 2, 10, "'busy_after_ks' is empty"),
        ("name: a b", 1, 7, "is not a name"),
        ("name: [a", 1, 1, "not YAML"),
        ("", 1, 1, "empty"),
    ],
)
def test_mistakes_in_a_configuration_are_named_with_their_place(
    text: str, line: int, column: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        parse_config(text, "c.yaml")
    first = caught.value.issues[0]
    assert first.file == "c.yaml"
    if message != "not YAML":
        assert (first.line, first.column) == (line, column)


def test_all_mistakes_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config("name: a\nsteps: x\ncolour: red\nseed: -1")
    assert len(caught.value.issues) == 3


def test_a_teacher_of_a_degree_that_is_not_there_is_refused(tmp_path: Path) -> None:
    config = parse_config(TINY + "afterstates: {teacher: {A: 5, D: 2}}\n")
    with pytest.raises(BadInput, match="degree 5"):
        Run(config, GRAPHS, tmp_path)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_configurations_that_come_along_name_files_that_exist(path: Path) -> None:
    named = re.findall(r"[\w/.-]+\.(?:onnx|json|md|yaml)", path.read_text())
    root = Path(__file__).parents[3]
    assert [name for name in named if not (root / name).is_file()] == []


@pytest.mark.parametrize(
    ("config", "model"),
    [
        ("ramp-first-fit", "learned-first-fit"),
        ("ramp-block", "learned-block"),
        ("ramp-block-far", "learned-block-far"),
    ],
)
def test_cards_of_shipped_models_hold_their_configurations(config: str, model: str) -> None:
    wanted = json.loads(json.dumps(read_config(find_config(Path(config))).as_data()))
    kept = dict(read_card(MODELS / f"{model}.json").training["config"])
    assert kept == wanted
    assert kept["environment"]["law_instance"] == 0


def test_a_run_may_fix_the_instance_of_the_laws() -> None:
    text = "name: a\nenvironment: {laws: [D], law_instance: 3}\n"
    (fixed,) = scenarios_of(parse_config(text), GRAPHS)
    (anew,) = scenarios_of(parse_config(text.replace(", law_instance: 3", "")), GRAPHS)
    assert fixed.law == law("D", 3)
    assert anew.law == law("D", None)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
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


def test_scenarios_share_their_workloads() -> None:
    scenarios = scenarios_of(parse_config(TINY), GRAPHS)
    assert isinstance(scenarios[0].workloads, Workloads)
    assert scenarios[0].workloads is scenarios[1].workloads
