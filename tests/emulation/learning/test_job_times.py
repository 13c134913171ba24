"""Jobs whose times nobody tells, other models and RAMPs, and remaining times that are off."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

for _package in ("torch", "gymnasium", "onnx"):
    pytest.importorskip(_package, reason=f"{_package} is not installed: extra 'learn'")

import torch  # noqa: E402
from click.testing import CliRunner  # noqa: E402

from patchlight.controller.policies.learned import load_learned  # noqa: E402
from patchlight.controller.policies.observation import RampObserver  # noqa: E402
from patchlight.emulation.experiments.pac_ml.training_range import outside_training  # noqa: E402
from patchlight.emulation.experiments.pac_ml.variation import Variation  # noqa: E402
from patchlight.emulation.learning.commands.learn import export as export_command  # noqa: E402
from patchlight.emulation.learning.config import ConfigError, Network, parse_config  # noqa: E402
from patchlight.emulation.learning.elsewhere import elsewhere  # noqa: E402
from patchlight.emulation.learning.job_times import JobTimes, TimedGraphs  # noqa: E402
from patchlight.emulation.learning.network import OptionScorer  # noqa: E402
from patchlight.emulation.learning.players import AfterstatePlayer, play  # noqa: E402
from patchlight.emulation.learning.study import Study  # noqa: E402
from patchlight.emulation.learning.training import Run  # noqa: E402
from patchlight.emulation.learning.vector_episodes import VectorEpisodes  # noqa: E402
from patchlight.emulation.simulator.ramp import Episode, Workloads, run_episode  # noqa: E402
from patchlight.testbed.errors import BadInput  # noqa: E402
from patchlight.testbed.graphs import builtin_graph  # noqa: E402
from tests.support.tiny_models import GRAPHS  # noqa: E402

TINY = """
name: tiny
steps: 300
environment: {laws: [A], law_instance: 0, num_envs: 16, horizon_s: 2e4}
network: {hidden: [8], busy_after_ks: [1, 4], cluster: blocks}
evaluation: {seeds: 1}
"""


def test_times_of_models_never_seen_are_estimated_from_their_graphs() -> None:
    torch.manual_seed(0)
    names = ("alexnet", "resnet18", "squeezenet1_0")
    scenario = Variation().scenario(Workloads([*map(builtin_graph, names)]), "A", "ramp-first-fit")
    others = Workloads([builtin_graph("vgg16")])

    def off(by: str) -> float:
        times = JobTimes(Network(times=by, graph_width=8, graph_rounds=1))
        times.fit([scenario], 0)
        assert not any(weights.requires_grad for weights in times.parameters())
        found = times.of_models(TimedGraphs(others))
        assert found is not None
        return abs(float(found[0]) - math.log(others.sequential_s[0]))

    by_graph = off("graph")
    assert by_graph < 0.2
    assert by_graph < off("size") / 2


def test_what_is_told_of_a_job_is_not_its_time() -> None:
    config = parse_config(TINY.replace("blocks}", "blocks, times: size}"))
    run = Run(config, GRAPHS, Path("nowhere"))
    episodes = VectorEpisodes(run.scenarios, 8, 0)
    scorer = OptionScorer(run.layout, config.network, 0.98)
    player = AfterstatePlayer(scorer, episodes.workloads)
    before = player.scores(episodes)
    episodes.expected_s *= 2.0
    episodes.sequential_s *= 2.0
    episodes.mask[:, 1:] = False
    assert np.array_equal(player.scores(episodes), before)
    assert np.isfinite(before[:, 1:]).any()
    episodes.limit_s /= 1000.0  # With less time nothing is worth the trying.
    assert (player.scores(episodes)[:, 1:] < before[:, 1:]).any()


def test_a_study_of_other_models_and_ramps(tmp_path: Path) -> None:
    configs = [
        parse_config(TINY),
        parse_config(TINY.replace("tiny", "by-limit").replace("blocks}", "blocks, times: limit}")),
    ]
    beside = elsewhere(GRAPHS, ["tiny-transformer"], ["2x4x2"])
    result = Study(configs, [0], range(2), GRAPHS, tmp_path, lambda line: None, beside).run()
    scenarios = ["A", "A, other models", "A, 2x4x2"]
    assert [row["scenario"] for row in result["rows"]] == 2 * scenarios
    assert [row["as_told"] is None for row in result["rows"]] == 3 * [True] + 3 * [False]
    assert result["beside"]["2x4x2"] == {"models": ["alexnet", "vgg16"], "ramp": [2, 4, 2]}
    assert not list((tmp_path / "by-limit").rglob("*.onnx"))
    # As many jobs, and as much work for what there is.
    plain = Run(configs[0], GRAPHS, tmp_path / "new").scenarios[0]
    there = beside[1].scenarios(configs[0], plain.workloads)["A, 2x4x2"]
    assert there.arrivals.mean_interval_s == 2 * plain.arrivals.mean_interval_s
    assert len(there.jobs(0)) == len(plain.jobs(0))
    # The model for that RAMP, without more training, decides as it did there.
    given = [str(tmp_path / "tiny" / "seed-0"), str(tmp_path), "--ramp", "2x4x2"]
    assert CliRunner().invoke(export_command, given).exit_code == 0
    model = load_learned(tmp_path / "tiny.onnx", ramp=(2, 4, 2))
    rates = result["rows"][2]["by_training_seed"][0]
    assert np.mean([run_episode(there, model, n).blocking_rate() for n in (0, 1)]) == pytest.approx(
        rates
    )
    said = outside_training(model.card, Variation.parse(ramp="2x4x2"), "A", [], published=False)
    assert "trained on a RAMP of 4×4×2 servers" in said
    given[0] = str(tmp_path / "by-limit" / "seed-0")
    refused = CliRunner().invoke(export_command, given)
    assert "estimates times that nobody tells" in str(refused.exception)


def test_remaining_times_that_are_off_are_so_for_all_who_look() -> None:
    varied = Variation(horizon_s=3e4, remaining_error=0.3)
    workloads = Workloads(GRAPHS)
    scenario = varied.scenario(workloads, "A", "ramp-first-fit")
    exact = Variation(horizon_s=3e4).scenario(workloads, "A", "ramp-first-fit")
    assert scenario.jobs(0) == exact.jobs(0)
    vector, single = VectorEpisodes([scenario], 1, 0), Episode(scenario, 0)
    true, observer, off = Episode(exact, 0), RampObserver(vector.layout), 0
    arrays = vector.layout.empty(1)
    for _ in range(25):
        seen = vector.observe(arrays)["remaining"][0]
        assert np.allclose(seen, observer.observe(*single.question())["remaining"], atol=2e-4)
        ends = [{each.ends_s for each in e.question().cluster.running} for e in (single, true)]
        off += len(ends[0] - ends[1])
        action = int(np.flatnonzero(vector.mask[0])[-1])
        degree = vector.layout.actions[action]
        # What becomes of jobs does not hang on what is told.
        assert single.decide(degree) == true.decide(degree)
        vector.step(np.array([action]))
    assert off > 5


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("network: {times: graph}", "'times: graph' needs a 'graph_width'"),
        ("network: {times: size, observation: pac-ml}", "'pac-ml' has its own"),
        ("algorithm: masked-dqn\nnetwork: {times: size}", "where times are not told"),
        ("environment: {remaining_error: -1}", "a number from 0 to 3"),
    ],
)
def test_settings_that_make_no_sense(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_config(f"name: a\n{text}\n")


def test_what_is_trained_on_or_bound_to_its_ramp_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="alexnet: trained on"):
        elsewhere(GRAPHS, ["alexnet"], [])
    config = parse_config(TINY.replace("cluster: blocks", "cluster: servers"))
    scenario = elsewhere(GRAPHS, [], ["2x4x2"])[0].scenarios(config, Workloads(GRAPHS))
    run = Run(config, GRAPHS, tmp_path)
    scorer = OptionScorer(run.layout, config.network, 0.98)
    with pytest.raises(BadInput, match="serves other shapes"):
        play(scorer, scenario["A, 2x4x2"], 0, 1)


def test_what_is_as_ever_is_not_in_a_card() -> None:
    data = json.dumps(parse_config(TINY).as_data())
    assert "remaining_error" not in data
    assert "times" not in json.loads(data)["network"]
