"""Learning to weigh options in random labs: a run, its model, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

pytest.importorskip("torch", reason="PyTorch is not installed: extra 'learn'")
pytest.importorskip("onnx", reason="onnx is not installed: extra 'learn'")

from patchlight.cli.main import cli
from patchlight.controller.policies.options.learned import (
    LearnedElasticity,
    LearnedPlacement,
    LearnedTopology,
    WeighsPartitions,
)
from patchlight.controller.policies.options.least_delay import LeastDelayPlacement
from patchlight.controller.policies.registry import load_policy
from patchlight.emulation.learning.config import CONFIGS, ConfigError
from patchlight.emulation.learning.labs.config import (
    Fitting,
    GraphNetwork,
    HeldOut,
    LabConfig,
    Labs,
    Trials,
    is_for_labs,
    parse_lab_config,
)
from patchlight.emulation.learning.labs.export import export_lab_model
from patchlight.emulation.learning.labs.fitting import fit
from patchlight.emulation.learning.labs.network import OptionNetwork
from patchlight.emulation.learning.labs.policies import policies_of
from patchlight.emulation.learning.labs.run import LabRun, load_lab_run
from patchlight.emulation.learning.labs.script import Next, Script, of_these
from patchlight.emulation.learning.labs.what_if import Looking, Tried, WhatIf, episode_of, open_for
from patchlight.emulation.simulator.executors import Engine
from patchlight.emulation.simulator.randomlabs.episodes import Episode
from patchlight.testbed.errors import BadInput

# What PyTorch imports at a first optimizer, and the compiled loops, are had once.
pytestmark = pytest.mark.xdist_group("training")

CONFIG = LabConfig(
    "tiny",
    ("placement", "topology"),
    steps=4,
    labs=Labs(largest=16, jobs=10, lowest_load=1.2, highest_load=1.3),
    network=GraphNetwork(width=4, rounds=1),
    what_if=Trials(decisions=2, options=2, horizon=8),
    testing=HeldOut(labs=2, largest=16),
)


def test_a_run_is_trained_kept_and_exported(tmp_path: Path) -> None:
    said: list[str] = []
    report = LabRun(CONFIG, tmp_path / "run", said.append).learn()
    assert report.training["steps"] >= CONFIG.steps
    assert set(report.tested.jct_over) >= {"consolidated", "cheapest+cheapest"}
    assert any("testing on 2 labs" in line for line in said)
    path = export_lab_model(report.network, CONFIG, report.training, tmp_path / "model")
    card = json.loads(path.with_suffix(".json").read_text())
    assert card["kinds"] == ["placement", "topology"]
    assert card["tested_range"]["gpus"][1] <= 16
    # The model plays as the network does, up to the precision that its weights are kept with.
    placement, topology = load_policy(str(path), "placement"), load_policy(str(path), "topology")
    assert isinstance(placement, LearnedPlacement)
    assert isinstance(topology, LearnedTopology)
    episode = episode_of(CONFIG, 3)
    played = episode.play(placement, topology).jobs["jct_s"]
    network = episode.play(*policies_of(report.network, CONFIG.learns)).jobs["jct_s"]
    assert np.mean(played) == pytest.approx(np.mean(network), rel=0.05)
    with pytest.raises(BadInput, match="holds a run already"):
        LabRun(CONFIG, tmp_path / "run").learn()
    _, config, about = load_lab_run(tmp_path / "run")
    assert (config, about["steps"]) == (CONFIG, report.training["steps"])
    arguments = ["policy", "export", str(tmp_path / "run"), str(tmp_path / "out"), "--name", "mine"]
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0, done.output
    assert "never tested" in json.loads((tmp_path / "out" / "mine.json").read_text())["notes"]


def test_training_is_the_same_each_time_and_on_any_engine() -> None:
    first, second = WhatIf(CONFIG), WhatIf(CONFIG)
    told = list[int]()
    first.look(tell=lambda: told.append(first.steps))
    second.look(Engine("processes", 2))
    assert told[-1] == first.steps == second.steps >= CONFIG.steps > told[0]
    assert len(told) == first.episodes == second.episodes
    for one, other in zip(first.tried, second.tried, strict=True):
        assert (one.seed, one.worth) == (other.seed, other.worth)
        for mine, its in zip(one.seen, other.seen, strict=True):
            assert all(np.array_equal(mine[name], its[name]) for name in mine)
    again = WhatIf(CONFIG)
    again.restore(first.state())
    assert [each.worth for each in again.tried] == [each.worth for each in first.tried]
    earlier = {"seed": 0, "seen": {"nodes": 0}, "worth": [1.0]}
    with pytest.raises(BadInput, match="earlier version"):
        again.restore({"steps": 1, "episodes": 1, "tried": [earlier]})


def test_what_pays_is_learned_and_what_does_not_is_forgotten() -> None:
    found = WhatIf(CONFIG)
    found.look()
    (seen,) = found.tried[0].seen
    pair = of_these(seen, [0, 1])
    assert len(pair["options"]) == 2
    assert set(pair["touched"][:, 0].tolist()) <= {0, 1}
    config = replace(CONFIG, fitting=Fitting(learning_rate=0.02, n_epochs=30))
    # In all labs the option that the rule does not take is the better one, or none is.
    pays = fit(config, [Tried(seed, [pair], [-3.0, 3.0]) for seed in range(40)])
    (kind,) = pays.corrects
    assert kind == found.tried[0].kind
    gain = pays.gains[kind]
    assert (gain.changed, gain.decisions) == (8, 8)
    assert gain.gain == pytest.approx(6.0)
    said = list[str]()
    never = fit(config, [Tried(seed, [pair], [3.0, -3.0]) for seed in range(40)], said.append)
    assert (never.corrects, never.gains[kind].changed) == ([], 0)
    assert len(said) == 30


def test_another_of_those_that_wait_is_tried_as_the_next_one() -> None:
    config = replace(CONFIG, learns=("placement", "topology", "order"), steps=12)
    config = replace(config, labs=replace(config.labs, lowest_load=4.0, highest_load=4.0))
    looking, episode = Looking(config), episode_of(config, 1000)
    played = Script(policies=looking._policies)
    looking._play(episode, played)
    turns = [each for each in played.decisions if isinstance(each.answers[0], Next)]
    assert turns, "no two jobs waited at once"
    sooner = 0
    for decision in turns:
        # Who comes first takes the fewest GPU-seconds, and each is seen as it came.
        ranks = [played.turns[answer.job][1] for answer in decision.answers]
        assert len(decision.seen) == len(ranks) >= 2
        assert ranks == sorted(ranks)
        assert decision.seen_of([1])[0] is decision.seen[1]
        started = []
        for answer in decision.answers[:2]:
            script = Script(played.answers[: decision.number], next=answer)
            jobs = looking._play(episode, script).jobs
            started.append(dict(zip(jobs["name"], jobs["started_s"], strict=True)))
        usual, other = (answer.job for answer in decision.answers[:2])
        assert started[0][usual] <= started[0][other]
        assert started[1][other] <= started[0][other]
        sooner += started[1][other] < started[0][other]
    assert sooner, "whoever was to be next began no sooner"
    found = WhatIf(config)
    found.look()
    assert any(len(each.seen) == len(each.worth) > 1 for each in found.tried)
    assert set(fit(config, found.tried).gains) <= {"placement", "topology", "order"}


ELASTIC = replace(
    CONFIG,
    name="elastic",
    learns=("elasticity",),
    labs=replace(CONFIG.labs, jobs=14, lowest_load=1.0, highest_load=1.0),
)
PARTED = replace(ELASTIC, name="parted", learns=("partition",))


def opened_of(config: LabConfig, seed: int) -> Episode:
    return open_for(config.learns, episode_of(config, seed))


def test_elasticity_is_trained_alone_and_decides_where_jobs_come(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    text = json.dumps(ELASTIC.as_data(), indent=1)
    (tmp_path / "config.yaml").write_text(text)
    runner = CliRunner()
    train = ["policy", "train", str(tmp_path / "config.yaml"), "--output", str(folder)]
    done = runner.invoke(cli, train)
    assert done.exit_code == 0, done.output
    for name in ("keep", "keep+fifo+give-and-take", "keep+fifo+least-delay"):
        rule = f"least-delay:circuits=false+{name}".removesuffix("+keep")
        assert f"mean JCT over that of {rule}: " in done.output
    path = folder / "elastic.onnx"
    assert f"--elasticity {path}" in done.output
    assert json.loads(path.with_suffix(".json").read_text())["kinds"] == ["elasticity"]
    LabRun(ELASTIC, folder).resume()
    network, config, about = load_lab_run(folder)
    assert config == ELASTIC
    assert set(about["fitted"]["gains"]) <= {"elasticity"}
    done = runner.invoke(cli, ["policy", "show", str(path), "--lab", "ofc2022"])
    assert "elasticity policy, learned" in done.output
    trace = tmp_path / "jobs.csv"
    rows = [f"2017-10-09 07:0{n}:00,{900 + 300 * n},{2 + n % 2},900,a" for n in range(6)]
    trace.write_text("\n".join(["timestamp,duration,num_gpus,gpu_time,cluster", *rows]))
    compared = ["policy", "evaluate", str(path), "rigid", "--trace", str(trace), "--json"]
    compared += [
        "--lab",
        "ofc2022",
        "--processes",
        "1",
        "--output",
        str(tmp_path / "out"),
        "--strict",
    ]
    done = runner.invoke(cli, compared)
    assert done.exit_code == 0, done.output
    assert [row["resizes"] > 0 for row in json.loads(done.output)["runs"]] == [True, False]
    # The model plays as the network does, up to the precision that its weights are kept with.
    model, episode = load_policy(str(path), "elasticity"), opened_of(ELASTIC, 3)
    assert isinstance(model, LearnedElasticity)
    played = policies_of(network, ELASTIC.learns)
    assert isinstance(played.placement, LeastDelayPlacement)
    ends = episode.play(played.placement, elasticity=model).jobs["jct_s"]
    assert np.mean(ends) == pytest.approx(np.mean(episode.play(*played).jobs["jct_s"]), rel=0.05)


def test_before_training_the_workers_are_those_of_the_rule() -> None:
    elasticity, episode = load_policy("least-delay", "elasticity"), opened_of(ELASTIC, 7)
    untrained = policies_of(OptionNetwork(ELASTIC.network), ELASTIC.learns)
    rule = replace(ELASTIC, learns=("placement",))
    ends = [
        list(episode.play(untrained.placement, elasticity=each).jobs["jct_s"])  # type: ignore[arg-type]
        for each in (untrained.elasticity, elasticity, None)
    ]
    assert ends[0] == ends[1] != ends[2]
    # Where elasticity is not learned, the same jobs come, and none of them is elastic.
    assert not any(job.degrees for job in episode_of(rule, 7).jobs)
    assert list(episode_of(rule, 7).play(untrained.placement).jobs["jct_s"]) == ends[2]


@pytest.mark.parametrize("learns", [("elasticity",), ("placement", "order", "elasticity")])
def test_other_numbers_of_workers_are_tried(learns: tuple[str, ...]) -> None:
    config = replace(ELASTIC, learns=learns, what_if=replace(ELASTIC.what_if, decisions=6))
    looking, episode = Looking(config), opened_of(config, 1000)
    played = Script(policies=looking._policies)
    ends = looking._play(episode, played).jobs["jct_s"]
    # What is answered is what a script without policies answers: decisions are only noted.
    again = Script()
    assert list(looking._play(episode, again).jobs["jct_s"]) == list(ends)
    assert again.answers == played.answers
    # A place is decided about once for each job that begins, not for each that could go on.
    placed = [each for each in played.answers if isinstance(each, list)]
    assert len(placed) == ("placement" in learns) * len(episode.jobs)
    resized = [each for each in played.decisions if isinstance(each.answers[0], dict)]
    assert resized
    different = 0
    for decision in resized[:4]:
        before = played.answers[: decision.number]
        for number in decision.ranked[:2]:
            script = Script([*before, decision.answers[number]])
            result = looking._play(episode, script)
            assert script.answers[: len(before) + 1] == script.given
            different += list(result.jobs["jct_s"]) != list(ends)
            if number == decision.ranked[0]:
                assert list(result.jobs["jct_s"]) == list(ends)
    assert different
    found = looking(1000)
    assert {each.kind for each in found} >= {"elasticity"}
    assert {each.kind for each in found} <= set(learns)


def test_partition_is_trained_and_decides_where_jobs_come(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    (tmp_path / "config.yaml").write_text(json.dumps(PARTED.as_data(), indent=1))
    runner = CliRunner()
    train = ["policy", "train", str(tmp_path / "config.yaml"), "--output", str(folder)]
    done = runner.invoke(cli, train)
    assert done.exit_code == 0, done.output
    rule = "mean JCT over that of least-delay:circuits=false"
    assert f"{rule}: " in done.output
    for name in ("maximum", "constant:4", "least-delay"):
        assert f"{rule}+keep+fifo+rigid+{name}: " in done.output
    assert "nan" not in done.output
    path = folder / "parted.onnx"
    assert f"--partition {path}" in done.output
    compared = ["simulate", "--trace", "helios", "--jobs", "20", "--lab", "ofc2022", "--strict"]
    compared += ["--partition", f"as-asked,{path}", "--output", str(tmp_path / "out"), "--json"]
    done = runner.invoke(cli, compared)
    assert done.exit_code == 0, done.output
    first, second = json.loads(done.stdout)["runs"]
    assert first["jct_s"]["mean"] != second["jct_s"]["mean"]
    network, *_ = load_lab_run(folder)
    model, played = load_policy(str(path), "partition"), policies_of(network, PARTED.learns)
    episode = opened_of(PARTED, 3)
    ends = episode.play(played.placement, partition=model).jobs["jct_s"]  # type: ignore[arg-type]
    assert np.mean(ends) == pytest.approx(np.mean(episode.play(*played).jobs["jct_s"]), rel=0.05)


def test_before_training_jobs_are_parted_by_the_rule() -> None:
    rule, episode = load_policy("least-delay", "partition"), opened_of(PARTED, 7)
    untrained = policies_of(OptionNetwork(PARTED.network), PARTED.learns)
    found = [
        episode.play(untrained.placement, partition=each).jobs  # type: ignore[arg-type]
        for each in (untrained.partition, rule, load_policy("maximum", "partition"))
    ]
    assert list(found[0]["jct_s"]) == list(found[1]["jct_s"]) != list(found[2]["jct_s"])
    assert len(set(found[0]["gpus"])) > 1


@pytest.mark.parametrize("learns", [("partition",), ("partition", "placement", "topology")])
def test_other_partitions_are_tried(learns: tuple[str, ...]) -> None:
    config = replace(PARTED, learns=learns, what_if=replace(PARTED.what_if, decisions=6))
    looking, episode = Looking(config), opened_of(config, 1000)
    played = Script(policies=looking._policies)
    ends = looking._play(episode, played).jobs["jct_s"]
    again = Script()
    assert list(looking._play(episode, again).jobs["jct_s"]) == list(ends)
    assert again.answers == played.answers
    parted = [each for each in played.decisions if isinstance(each.answers[0], int)]
    different = 0
    for decision in parted[:4]:
        before = played.answers[: decision.number]
        script = Script([*before, decision.answers[decision.ranked[1]]])
        different += list(looking._play(episode, script).jobs["jct_s"]) != list(ends)
    assert different
    found = {each.kind for each in looking(1000)}
    assert "partition" in found
    assert found <= set(learns)


def test_jobs_are_drawn_by_laws_lab_by_lab() -> None:
    config = replace(CONFIG, labs=replace(CONFIG.labs, traces=("drawn", "helios")))
    for seed, same in ((6, True), (7, False)):
        jobs = episode_of(config, seed).jobs
        assert len(jobs) == CONFIG.labs.jobs
        assert (jobs == episode_of(CONFIG, seed).jobs) is same


def test_before_training_the_order_is_that_of_the_rule() -> None:
    config = replace(CONFIG, labs=replace(CONFIG.labs, lowest_load=4.0, highest_load=4.0))
    order = policies_of(OptionNetwork(CONFIG.network), ("placement", "order")).order
    episode, placed = episode_of(config, 7), load_policy("consolidated", "placement")
    rule = load_policy("least-delay", "order")
    ends = [episode.play(placed, None, each).jobs["jct_s"] for each in (order, rule)]  # type: ignore[arg-type]
    assert list(ends[0]) == list(ends[1])
    assert list(ends[0]) != list(episode.play(placed).jobs["jct_s"])  # type: ignore[arg-type]


def test_before_training_the_option_of_the_lowest_cost_is_taken() -> None:
    learned, *_ = policies_of(OptionNetwork(CONFIG.network), ("placement",))
    assert isinstance(learned, LearnedPlacement)
    placement: LearnedPlacement = learned
    seen: list[bool] = []

    class Watched:
        def place(self, cluster, job, workers):  # type: ignore[no-untyped-def]
            outlook = placement.outlook(cluster)
            options = placement.options(outlook, job, workers)
            ring = placement.place(cluster, job, workers)
            if options:
                best_s = min(option.prospect.cost_s for option in options)
                taken = [o.prospect.cost_s for o in options if set(o.gpus) == set(ring or ())]
                seen.append(min(taken) == pytest.approx(best_s))
            return ring

    episode_of(CONFIG, 5).play(Watched())
    assert seen
    assert all(seen)


def test_shipped_configurations_are_read() -> None:
    for name in (
        "lab-small",
        "lab-circuits",
        "lab-elastic",
        "lab-partition",
        "learned-lab",
        "learned-lab-partition",
    ):
        text = (CONFIGS / f"{name}.yaml").read_text()
        assert is_for_labs(text)
        assert parse_lab_config(text).name == name
    assert not is_for_labs((CONFIGS / "small.yaml").read_text())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: a\nlearns: [placement, weather]\n", "weather"),
        ("name: a\nlearns: [partition, elasticity]\n", "lacks 'placement'"),
        ("name: a\nlearns: [topology]\n", "lacks 'placement'"),
        (
            "name: a\nlearns: [order, elasticity]\n",
            "lacks 'placement'.*'elasticity' or 'partition' alone",
        ),
        ("name: a\nlearns: [placement]\nafterstates: {gamma: 1}\n", "afterstates"),
        ("name: a\nlearns: [placement]\nlabs: {lowest_load: 2, highest_load: 1}\n", "over"),
        ("name: a\nlearns: [placement]\nlabs: {traces: []}\n", "'traces' is empty"),
        ("name: a\nlearns: [placement]\nlabs: {traces: [philly]}\n", "drawn, helios, pai"),
    ],
)
def test_a_configuration_with_mistakes_is_refused(text: str, message: str) -> None:
    assert is_for_labs(text)
    with pytest.raises(ConfigError, match=message):
        parse_lab_config(text)


def test_a_checkpoint_of_another_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no checkpoint"):
        LabRun(CONFIG, tmp_path).resume()


def test_the_shipped_model_is_what_its_card_says() -> None:
    placement, topology = (load_policy("learned-lab", kind) for kind in ("placement", "topology"))
    assert isinstance(placement, LearnedPlacement)
    assert isinstance(topology, LearnedTopology)
    card = placement.card
    written = parse_lab_config((CONFIGS / "learned-lab.yaml").read_text())
    assert card.training["config"] == json.loads(json.dumps(written.as_data()))
    assert card.tested_range["gpus"] == [8.0, 128.0]
    assert np.isfinite(episode_of(CONFIG, 7).play(placement, topology).jobs["jct_s"]).all()


def test_the_shipped_model_of_partition_decides_otherwise_than_the_rule() -> None:
    model = load_policy("learned-lab-partition", "partition")
    assert isinstance(model, WeighsPartitions)
    written = parse_lab_config((CONFIGS / "learned-lab-partition.yaml").read_text())
    assert model.card.training["config"] == json.loads(json.dumps(written.as_data()))
    assert model.card.training["fitted"]["corrects"] == ["partition"]
    episode, placement = opened_of(PARTED, 7), load_policy("consolidated", "placement")
    learned, rule = (
        episode.play(placement, partition=each).jobs  # type: ignore[arg-type]
        for each in (model, load_policy("least-delay", "partition"))
    )
    assert np.isfinite(learned["jct_s"]).all()
    assert list(learned["gpus"]) != list(rule["gpus"])
