"""Compares trained configurations on test episodes, and joins training runs into one model.

    python -m benchmarks.studies compare FOLDER… [--episodes 40]

FOLDER is what ``patchlight policy train CONFIG --seeds N --output FOLDER`` wrote. For each scenario
it prints the mean blocking rate over the seeds with its 95 % interval, that of the best plain rule
on the same episodes, and what the worst seed blocks less that rule (paired).

    python -m benchmarks.studies join RUN… --output FOLDER --name NAME

RUN is the folder of one run. Runs under the same conditions decide by their mean score; of runs
under different conditions, those decide whose jobs were most like the recent jobs.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from torch import nn

from patchlight.emulation.experiments.pac_ml.episodes import PolicyFaults, make_policy
from patchlight.emulation.experiments.pac_ml.run import find_profiles
from patchlight.emulation.learning.config import Config
from patchlight.emulation.learning.export import export, of_runs
from patchlight.emulation.learning.learner import network_of, play
from patchlight.emulation.learning.network import load_run
from patchlight.emulation.learning.training import scenarios_of
from patchlight.emulation.simulator.ramp.lossnetwork import run_episode
from patchlight.emulation.simulator.ramp.scenario import (
    Scenario,
    mean_and_interval,
    paired_difference,
)
from patchlight.emulation.simulator.ramp.workloads import Workloads

RULES = (
    *("constant-2", "constant-4", "constant-6", "constant-8", "constant-16"),
    *("maximum", "minimum", "sufficient"),
)


def compare(folders: Sequence[Path], episodes: int, profiles: Path | None) -> None:
    """Print a line for each folder and scenario, in percent."""
    workloads = Workloads(find_profiles(profiles).graphs)
    kept: dict[str, dict[str, list[float]]] = {}
    for folder in folders:
        runs = [loaded(run, workloads) for run in sorted(folder.glob("seed-*"))]
        config = runs[0][0]
        scenarios = scenarios_of(config, workloads)
        for name, scenario in zip(config.environment.names, scenarios, strict=True):
            beside = f"{name} {config.environment.rule}"
            if beside not in kept:
                kept[beside] = {rule: rule_rates(scenario, rule, episodes) for rule in RULES}
            rates = [
                play(network, scenario, 0, episodes, config.environment.blocks)
                for _, network in runs
            ]
            means = [mean_and_interval(each).mean for each in rates]
            best = min(kept[beside], key=lambda rule: sum(kept[beside][rule]))
            over, rule = mean_and_interval(means), mean_and_interval(kept[beside][best])
            worst = rates[means.index(max(means))]
            less = paired_difference(worst, kept[beside][best])
            print(
                f"{config.name} {name}: {100 * over.mean:.2f} ± {100 * over.half_width:.2f}; "
                f"{best} {100 * rule.mean:.2f}; worst seed less that "
                f"{100 * less.mean:+.2f} ± {100 * less.half_width:.2f}",
                flush=True,
            )


def loaded(run: Path, workloads: Workloads) -> tuple[Config, nn.Module]:
    """The configuration of a run and its network."""
    config, kept = load_run(run)
    network = network_of(config, scenarios_of(config, workloads)[0])
    network.load_state_dict(kept["average"])
    return config, network


def rule_rates(scenario: Scenario, rule: str, episodes: int) -> list[float]:
    """The blocking rates of a plain rule in the episodes with seeds 0, 1, …"""
    found = []
    for seed in range(episodes):
        policy = make_policy(rule, scenario, seed, None, PolicyFaults())
        found.append(run_episode(scenario, policy, seed).blocking_rate())
    return found


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["compare", "join"])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--episodes", type=int, default=40)
    parser.add_argument("--profiles", type=Path)
    parser.add_argument("--output", type=Path, default=Path("results/learning"))
    parser.add_argument("--name")
    given = parser.parse_args()
    if given.what == "compare":
        compare(given.folders, given.episodes, given.profiles)
    else:
        print(export(*of_runs(given.folders), given.output, given.name))


if __name__ == "__main__":
    main()
