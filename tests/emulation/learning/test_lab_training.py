"""Learning how many workers jobs get in random labs: a run, its model, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from patchlight.cli.main import cli
from patchlight.controller.policies.options.policies import WeighsPartitions
from patchlight.controller.policies.registry import load_policy
from patchlight.emulation.learning.config import CONFIGS, ConfigError
from patchlight.emulation.learning.labs.network import (
    Fitting,
    GraphNetwork,
    HeldOut,
    LabConfig,
    Labs,
    OptionNetwork,
    Trials,
    is_for_labs,
    joined,
    parse_lab_config,
    policy_of,
)
from patchlight.emulation.learning.labs.run import LabRun, fit
from patchlight.emulation.learning.labs.what_if import (
    Looking,
    Script,
    Tried,
    WhatIf,
    episode_of,
    of_these,
    play,
)
from patchlight.emulation.simulator.executors import Engine
from patchlight.emulation.simulator.randomlabs import Episode
from patchlight.testbed.errors import BadInput

pytest.importorskip("torch", reason="PyTorch is not installed: extra 'learn'")
pytest.importorskip("onnx", reason="onnx is not installed: extra 'learn'")


# What PyTorch imports at a first optimizer, and the compiled loops, are had once.
pytestmark = pytest.mark.xdist_group("training")

CONFIG = LabConfig(
    "tiny",
    ("partition",),
    steps=4,
    labs=Labs(largest=16, jobs=14, lowest_load=1.0, highest_load=1.0),
    network=GraphNetwork(width=4, rounds=1, waiting=0),
    what_if=Trials(decisions=2, options=2, horizon=8),
    testing=HeldOut(labs=2, largest=16),
)

PAYS = Fitting(learning_rate=0.02, n_epochs=30)


def opened_of(seed: int) -> Episode:
    return episode_of(CONFIG, seed).opened()


def test_a_run_is_trained_kept_exported_and_decides_where_jobs_come(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "run"
    (tmp_path / "config.yaml").write_text(
        json.dumps(CONFIG.as_data(), indent=1)
    )
    runner = CliRunner()
    train = [
        "policy",
        "train",
        str(tmp_path / "config.yaml"),
        "--output",
        str(folder),
    ]
    done = runner.invoke(cli, train)
    assert done.exit_code == 0, done.output
    assert (
        "has no model: the result is not significantly better than the rule"
        in done.output
    )
    assert not list(folder.glob("tiny.*"))
    # The same run, had it found that the option that the rule does not take is always better.
    kept = torch.load(folder / "checkpoint.pt", weights_only=True)
    state = WhatIf(CONFIG)
    state.restore(kept["trials"])
    pair = of_these(state.tried[0].seen, [0, 1])
    state.tried = [Tried(seed, pair, [-3.0, 3.0]) for seed in range(40)]
    torch.save({**kept, "trials": state.state()}, folder / "checkpoint.pt")
    paying = replace(CONFIG, fitting=PAYS)
    (tmp_path / "config.yaml").write_text(
        json.dumps(paying.as_data(), indent=1)
    )
    done = runner.invoke(cli, [*train, "--resume"])
    assert done.exit_code == 0, done.output
    assert "testing on 2 unseen labs" in done.output
    rule = "mean JCT over that of least-delay:circuits=false"
    assert f"{rule}: " in done.output
    for name in ("maximum", "constant:4", "least-delay"):
        assert f"{rule}+keep+fifo+rigid+{name}: " in done.output
    assert "nan" not in done.output
    path = folder / "tiny.onnx"
    assert f"--partition {path}" in done.output
    card = json.loads(path.with_suffix(".json").read_text())
    assert card["kinds"] == ["partition"]
    assert card["tested_range"]["gpus"][1] <= 16
    shown = runner.invoke(
        cli, ["policy", "show", str(path), "--lab", "ofc2022"]
    )
    assert "partition policy, learned" in shown.output
    compared = [
        "simulate",
        "--trace",
        "helios",
        "--jobs",
        "20",
        "--lab",
        "ofc2022",
        "--strict",
    ]
    compared += [
        "--partition",
        f"as-asked,{path}",
        "--output",
        str(tmp_path / "out"),
        "--json",
    ]
    done = runner.invoke(cli, compared)
    assert done.exit_code == 0, done.output
    first, second = json.loads(done.stdout)["runs"]
    assert first["jct_s"]["mean"] != second["jct_s"]["mean"]
    # The model plays as the network does, up to the precision that its weights are kept with.
    again = LabRun(paying, folder)
    again.resume()
    report = again.learn()
    assert report is not None
    assert report.training["steps"] == card["training"]["steps"]
    model = load_policy(str(path), "partition")
    assert isinstance(model, WeighsPartitions)
    ends = play(opened_of(3), model).jobs["jct_s"]
    expected = play(opened_of(3), policy_of(report.network)).jobs["jct_s"]
    assert np.mean(ends) == pytest.approx(np.mean(expected), rel=0.05)
    with pytest.raises(BadInput, match="already has a run"):
        LabRun(CONFIG, folder).learn()


def test_training_is_the_same_each_time_and_on_any_engine() -> None:
    first = WhatIf(CONFIG)
    second = WhatIf(CONFIG)
    told = list[int]()
    first.look(tell=lambda: told.append(first.steps))
    second.look(Engine("processes", 2))
    assert told[-1] == first.steps == second.steps >= CONFIG.steps > told[0]
    assert len(told) == first.episodes == second.episodes
    for one, other in zip(first.tried, second.tried, strict=True):
        assert (one.seed, one.worth) == (other.seed, other.worth)
        assert all(
            np.array_equal(one.seen[name], other.seen[name])
            for name in one.seen
        )
    again = WhatIf(CONFIG)
    again.restore(first.state())
    assert [each.worth for each in again.tried] == [
        each.worth for each in first.tried
    ]


def test_what_pays_is_learned_and_what_does_not_makes_no_model() -> None:
    found = WhatIf(CONFIG)
    found.look()
    pair = of_these(found.tried[0].seen, [0, 1])
    assert len(pair["options"]) == 2
    assert set(pair["touched"][:, 0].tolist()) <= {0, 1}
    config = replace(CONFIG, fitting=PAYS)
    # In all labs the option that the rule does not take is the better one, or none is.
    pays = fit(config, [Tried(seed, pair, [-3.0, 3.0]) for seed in range(40)])
    assert pays.corrects
    assert pays.gain is not None
    assert (pays.gain.changed, pays.gain.decisions) == (8, 8)
    assert pays.gain.gain == pytest.approx(6.0)
    said = list[str]()
    never = fit(
        config,
        [Tried(seed, pair, [3.0, -3.0]) for seed in range(40)],
        said.append,
    )
    assert not never.corrects
    assert never.gain is not None
    assert never.gain.changed == 0
    assert len(said) == 30


def test_where_few_jobs_wait_the_rule_decides() -> None:
    found = WhatIf(CONFIG)
    found.look()
    pair = of_these(found.tried[0].seen, [0, 1])
    busy, calm = ({**pair, "state": pair["state"].copy()} for _ in range(2))
    busy["state"][0, 4] = 2 / 10
    calm["state"][0, 4] = 1 / 9  # two and one of jobs that wait
    config = replace(
        CONFIG, fitting=PAYS, network=replace(CONFIG.network, waiting=2)
    )
    tried = [
        Tried(seed, seen, [-3.0, 3.0])
        for seed in range(40)
        for seen in (busy, calm)
    ]
    learned = fit(config, tried)
    assert learned.gain is not None
    # Both were learned from, and the other option pays in both.
    assert (learned.gain.changed, learned.gain.decisions) == (8, 16)
    network = learned.network
    for seen, own in ((busy, False), (calm, True)):
        with torch.inference_mode():
            scores = network(joined([seen]))
        assert (
            np.allclose(
                scores, network.plain(torch.from_numpy(seen["options"]))
            )
            is own
        )


def test_before_training_jobs_are_parted_by_the_rule() -> None:
    rule = load_policy("least-delay", "partition")
    episode = opened_of(7)
    untrained = policy_of(OptionNetwork(CONFIG.network))
    found = [
        play(episode, each).jobs  # type: ignore[arg-type]
        for each in (untrained, rule, load_policy("maximum", "partition"))
    ]
    assert (
        list(found[0]["jct_s"])
        == list(found[1]["jct_s"])
        != list(found[2]["jct_s"])
    )
    assert len(set(found[0]["gpus"])) > 1


def test_other_partitions_are_tried() -> None:
    config = replace(CONFIG, what_if=replace(CONFIG.what_if, decisions=6))
    looking = Looking(config)
    episode = opened_of(1000)
    played = Script(policy=looking.policy)
    ends = play(episode, played).jobs["jct_s"]
    # What is answered is what a script without a policy answers: decisions are only noted.
    again = Script()
    assert list(play(episode, again).jobs["jct_s"]) == list(ends)
    assert again.answers == played.answers
    different = 0
    for decision in played.decisions[:4]:
        before = played.answers[: decision.number]
        for number in decision.ranked[:2]:
            script = Script([*before, decision.answers[number]])
            result = play(episode, script)
            assert script.answers[: len(before) + 1] == script.given
            different += list(result.jobs["jct_s"]) != list(ends)
            if number == decision.ranked[0]:
                assert list(result.jobs["jct_s"]) == list(ends)
    assert different
    found = looking(1000)
    assert found
    assert all(
        len(each.seen["options"]) == len(each.worth) > 1 for each in found
    )


def test_jobs_are_drawn_by_laws_lab_by_lab() -> None:
    config = replace(
        CONFIG, labs=replace(CONFIG.labs, traces=("drawn", "helios"))
    )
    for seed, same in ((6, True), (7, False)):
        jobs = episode_of(config, seed).jobs
        assert len(jobs) == CONFIG.labs.jobs
        assert (jobs == episode_of(CONFIG, seed).jobs) is same


def test_shipped_configurations_are_read() -> None:
    for name in ("lab-partition", "learned-lab-partition"):
        text = (CONFIGS / f"{name}.yaml").read_text()
        assert is_for_labs(text)
        assert parse_lab_config(text).name == name
    assert not is_for_labs((CONFIGS / "small.yaml").read_text())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "name: a\nlearns: [weather]\n",
            r"'learns' is \['weather'\]: expected",
        ),
        (
            "name: a\nlearns: []\n",
            r"'learns' is \[\]: expected \['partition'\]",
        ),
        (
            "name: a\nlearns: [partition]\nafterstates: {gamma: 1}\n",
            "afterstates",
        ),
        (
            "name: a\nlearns: [partition]\nlabs: {lowest_load: 2, highest_load: 1}\n",
            "over",
        ),
        (
            "name: a\nlearns: [partition]\nlabs: {traces: []}\n",
            "'traces' is empty",
        ),
        (
            "name: a\nlearns: [partition]\nlabs: {traces: [philly]}\n",
            "drawn, helios, pai",
        ),
    ],
)
def test_a_configuration_with_mistakes_is_refused(
    text: str, message: str
) -> None:
    assert is_for_labs(text)
    with pytest.raises(ConfigError, match=message):
        parse_lab_config(text)


def test_a_checkpoint_of_another_configuration_is_refused(
    tmp_path: Path,
) -> None:
    with pytest.raises(BadInput, match="no checkpoint"):
        LabRun(CONFIG, tmp_path).resume()


def test_the_shipped_model_decides_otherwise_than_the_rule_where_jobs_wait() -> (
    None
):
    model = load_policy("learned-lab-partition", "partition")
    assert isinstance(model, WeighsPartitions)
    written = parse_lab_config(
        (CONFIGS / "learned-lab-partition.yaml").read_text()
    )
    assert model.card.training["config"] == json.loads(
        json.dumps(written.as_data())
    )
    rule = load_policy("least-delay", "partition")
    for load, own in ((1.3, True), (0.05, False)):
        labs = replace(
            CONFIG.labs,
            largest=32,
            jobs=40,
            lowest_load=load,
            highest_load=load,
        )
        episode = episode_of(replace(CONFIG, labs=labs), 7).opened()
        learned, by_rule = (play(episode, each).jobs for each in (model, rule))  # type: ignore[arg-type]
        assert np.isfinite(learned["jct_s"]).all()
        assert (list(learned["gpus"]) != list(by_rule["gpus"])) is own
