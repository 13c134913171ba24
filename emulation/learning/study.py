"""Configurations beside each other: each trained several times, all tested on the same episodes.

What one training run came to says little: chance decides, too. So a study trains each
configuration with several seeds, tests each on episodes that none was trained or chosen on, and
says the mean over the seeds with its interval, and the worst. Networks of one configuration also
decide together, by the mean of their scores: the model that a study leaves of it.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from patchlight.emulation.experiments.pac_ml.episodes import PolicyFaults, make_policy
from patchlight.emulation.learning.config import Config
from patchlight.emulation.learning.export import export, of_runs
from patchlight.emulation.learning.learner import play
from patchlight.emulation.learning.network import OptionScorer
from patchlight.emulation.learning.run_folder import CHECKPOINT
from patchlight.emulation.learning.training import TrainingRun, scenarios_of
from patchlight.emulation.simulator.ramp.lossnetwork import run_episode
from patchlight.emulation.simulator.ramp.scenario import (
    Scenario,
    mean_and_interval,
    paired_difference,
)
from patchlight.emulation.simulator.ramp.workloads import Workloads
from patchlight.testbed.errors import BadInput
from patchlight.testbed.graphs import ComputationGraph

SCHEMA_VERSION = 1
RULES = (
    *("constant-2", "constant-4", "constant-6", "constant-8", "constant-16"),
    *("maximum", "minimum", "sufficient"),
)
"""What learned policies are compared with: constant degrees and plain rules."""
_EPISODES_APART = 10_000_000


@dataclass(frozen=True)
class Trial:
    """A configuration's network after training with one seed, and what it blocked.

    ``rates`` has for each scenario's name the blocking rate of each test episode.
    """

    config: str
    seed: int
    steps: int
    rates: Mapping[str, Sequence[float]]


class Study:
    """Trains and tests in a folder. What is in it already is gone on with.

    ``episodes`` are the seeds of the test's, ``say`` hears of the progress.
    """

    def __init__(
        self,
        configs: Sequence[Config],
        seeds: Sequence[int],
        episodes: range,
        graphs: Sequence[ComputationGraph],
        folder: Path,
        say: Callable[[str], None],
    ) -> None:
        names = [config.name for config in configs]
        if len(set(names)) < len(names):
            raise BadInput(f"configurations of a study need names of their own: {names}")
        rules = {config.environment.rule for config in configs}
        if len(rules) > 1:
            raise BadInput(f"one study, one placement rule: these have {', '.join(sorted(rules))}")
        for config in configs:
            tested = range(config.environment.first_seed, 2**62)
            if episodes.stop > tested.start or episodes.start < 0:
                raise BadInput(
                    f"test episodes {episodes.start} to {episodes.stop - 1} are among those that "
                    f"{config.name!r} trains on, from {tested.start} on: choose lower ones"
                )
        self.configs, self.seeds, self.episodes = tuple(configs), tuple(seeds), episodes
        self._workloads, self.folder, self._say = Workloads(graphs), folder, say

    def run(self) -> dict[str, Any]:
        """All trials and the rules beside them, as ``study.json`` holds it."""
        trials = []
        # Seed by seed: interrupted, all configurations are equally far.
        for seed in self.seeds:
            for config in self.configs:
                trials.append(self._trial(seeded(config, seed)))
        scenarios: dict[str, Scenario] = {}
        for config in self.configs:
            scenarios |= self._scenarios(config)
        together = {
            config.name: self._together(config)
            for config in self.configs
            if len(self.seeds) > 1 and config.network.has_model
        }
        self._say("the plain rules")
        rules = {name: self._rules(scenario) for name, scenario in scenarios.items()}
        result = {
            "study": [config.name for config in self.configs],
            "schema_version": SCHEMA_VERSION,
            "training_seeds": list(self.seeds),
            "episodes": [self.episodes.start, self.episodes.stop - 1],
            "models": list(self._workloads.names),
            "rows": [
                row
                for config in self.configs
                for row in rows_of(
                    [t for t in trials if t.config == config.name], rules, together.get(config.name)
                )
            ],
            "rules": rules,
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "study.json").write_text(json.dumps(result, indent=1) + "\n")
        return result

    def _trial(self, config: Config) -> Trial:
        folder = self.folder / config.name / f"seed-{config.seed}"
        kept = folder / "tested.json"
        wanted, scenarios = [self.episodes.start, self.episodes.stop], self._scenarios(config)
        if kept.is_file():
            found = json.loads(kept.read_text())
            if found["episodes"] == wanted and list(found["rates"]) == list(scenarios):
                return Trial(config.name, config.seed, found["steps"], found["rates"])
        self._say(f"{config.name}, training seed {config.seed}")
        run = TrainingRun(config, self._workloads, folder, self._say)
        if (folder / CHECKPOINT).exists():
            run.resume()
        report = run.learn()
        network, test = report.scorer, self._test(config)
        rates = {name: play(network, each, *test) for name, each in scenarios.items()}
        if isinstance(network, OptionScorer):
            export(network, run.layout, config, report.training, folder)
        trial = Trial(config.name, config.seed, int(report.training["steps"]), rates)
        found = {"episodes": wanted, "steps": trial.steps, "rates": rates}
        kept.write_text(json.dumps(found) + "\n")
        return trial

    def _together(self, config: Config) -> dict[str, list[float]]:
        """What the networks of all seeds block by their mean scores, which become a model."""
        folder = self.folder / config.name
        mean, *_ = model = of_runs([folder / f"seed-{seed}" for seed in self.seeds])
        export(*model, folder)
        test, scenarios = self._test(config), self._scenarios(config)
        return {name: play(mean, scenario, *test) for name, scenario in scenarios.items()}

    def _test(self, config: Config) -> tuple[int, int, int]:
        """The first of the test's episodes, how many, and from how many blocks is chosen."""
        return self.episodes.start, len(self.episodes), config.environment.blocks

    def _scenarios(self, config: Config) -> dict[str, Scenario]:
        """All that it is tested under, by name."""
        names = config.environment.names
        return dict(zip(names, scenarios_of(config, self._workloads), strict=True))

    def _rules(self, scenario: Scenario) -> dict[str, list[float]]:
        """What plain rules block in the same episodes."""

        def rate(name: str, seed: int) -> float:
            policy = make_policy(name, scenario, seed, None, PolicyFaults())
            return run_episode(scenario, policy, seed).blocking_rate()

        return {name: [rate(name, seed) for seed in self.episodes] for name in RULES}


def seeded(config: Config, seed: int) -> Config:
    """A configuration with another training seed: other weights, draws and episodes."""
    first = config.environment.first_seed + _EPISODES_APART * seed
    environment = replace(config.environment, first_seed=first)
    return replace(config, seed=seed, environment=environment)


def rows_of(
    trials: Sequence[Trial],
    rules: Mapping[str, Mapping[str, Sequence[float]]],
    together: Mapping[str, Sequence[float]] | None = None,
) -> list[dict[str, Any]]:
    """The results of a configuration's trials, scenario by scenario.

    ``less_best`` is what the worst of the training seeds blocks less the best plain rule, paired
    by episode; ``less_maximum`` by which share the mean is less than maximum parallelisation's;
    ``together`` what the networks of all seeds block by their mean scores.
    """
    rows = []
    for name in trials[0].rates:
        each = {trial.seed: list(trial.rates[name]) for trial in trials}
        means = {seed: sum(rates) / len(rates) for seed, rates in each.items()}
        over_seeds = mean_and_interval(list(means.values()))
        worst = max(means, key=means.__getitem__)
        within = mean_and_interval(each[worst])
        beside = {rule: sum(rates) / len(rates) for rule, rates in rules[name].items()}
        best = min(beside, key=beside.__getitem__)
        less = paired_difference(each[worst], rules[name][best])
        rows.append(
            {
                "config": trials[0].config,
                "scenario": name,
                "steps": trials[0].steps,
                "training_seeds": list(each),
                "mean": over_seeds.mean,
                "ci95_over_training_seeds": over_seeds.half_width if len(each) > 1 else None,
                "by_training_seed": means,
                "worst_seed": worst,
                "worst": within.mean,
                "worst_ci95_over_episodes": within.half_width,
                "best_rule": best,
                "best_rule_rate": beside[best],
                "less_best": less.mean,
                "less_best_ci95": less.half_width,
                "less_maximum": 1 - over_seeds.mean / beside["maximum"],
                "together": None,
            }
        )
        if together is not None:
            rates = together[name]
            less = paired_difference(rates, rules[name][best])
            rows[-1]["together"] = {
                "mean": (mean := mean_and_interval(rates)).mean,
                "ci95_over_episodes": mean.half_width,
                "less_best": less.mean,
                "less_best_ci95": less.half_width,
                "less_maximum": 1 - mean.mean / beside["maximum"],
            }
    return rows
