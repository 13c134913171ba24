"""Compares trained configurations on test episodes, and joins training runs into one model.

    python -m benchmarks.studies compare FOLDER… [--episodes 40] [--law-instance 0]

FOLDER is what ``patchlight policy train CONFIG --seeds N --output FOLDER`` wrote. For each scenario
it prints the mean blocking rate over the seeds with its 95 % interval, that of the best plain rule
on the same episodes, and what the worst seed blocks less that rule (paired). Of PAC-ML's agent it
prints each seed, with its last and its best weights, and which degrees it takes.

    python -m benchmarks.studies selected [--law-instance 0]

prints what a constant degree seems to block when, as in PAC-ML's study, the best of so many means
of three episodes is taken as its figure.

    python -m benchmarks.studies join RUN… --output FOLDER --name NAME

RUN is the folder of one run. Runs under the same conditions decide by their mean score; of runs
under different conditions, those decide whose jobs were most like the recent jobs.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from torch import nn

from patchlight.emulation.experiments.pac_ml.episodes import (
    PolicyFaults,
    make_policy,
)
from patchlight.emulation.experiments.pac_ml.run import find_profiles
from patchlight.emulation.learning.config import Config
from patchlight.emulation.learning.export import export, of_runs
from patchlight.emulation.learning.learner import network_of, play
from patchlight.emulation.learning.network import load_run
from patchlight.emulation.learning.training import scenarios_of
from patchlight.emulation.learning.vector_episodes import (
    Finished,
    VectorEpisodes,
)
from patchlight.emulation.simulator.ramp.lossnetwork import run_episode
from patchlight.emulation.simulator.ramp.scenario import (
    Scenario,
    mean_and_interval,
    pac_ml_scenario,
    paired_difference,
)
from patchlight.emulation.simulator.ramp.workloads import Workloads

RULES = (
    "constant-2",
    "constant-4",
    "constant-6",
    "constant-8",
    "constant-16",
    "maximum",
    "minimum",
    "sufficient",
)

PUBLISHED = {"A": (4, 643), "B": (16, 136), "C": (4, 188), "D": (2, 102)}
"""The degree that PAC-ML's agent ends with on each law, and how often it was evaluated."""
FRESH = 700_000
"""The first seed of episodes that no training and no choice of weights has seen."""


def compare(
    folders: Sequence[Path],
    episodes: int,
    profiles: Path | None,
    instance: int | None = None,
) -> None:
    """Print a line for each folder and scenario, in percent."""
    workloads = Workloads(find_profiles(profiles).graphs)
    kept: dict[str, dict[str, list[float]]] = {}
    for folder in folders:
        runs = [
            loaded(run, workloads) for run in sorted(folder.glob("seed-*"))
        ]
        config = runs[0][0]
        if config.algorithm == "dqn":
            for run in sorted(folder.glob("seed-*")):
                agent(run, workloads, episodes, instance)
            continue
        scenarios = scenarios_of(config, workloads)
        for name, scenario in zip(
            config.environment.names, scenarios, strict=True
        ):
            beside = f"{name} {config.environment.rule}"
            if beside not in kept:
                kept[beside] = {
                    rule: rule_rates(scenario, rule, episodes)
                    for rule in RULES
                }
            rates = [
                play(network, scenario, 0, episodes, config.environment.blocks)
                for _, network in runs
            ]
            means = [mean_and_interval(each).mean for each in rates]
            best = min(kept[beside], key=lambda rule: sum(kept[beside][rule]))
            over = mean_and_interval(means)
            rule = mean_and_interval(kept[beside][best])
            worst = rates[means.index(max(means))]
            less = paired_difference(worst, kept[beside][best])
            print(
                f"{config.name} {name}: {100 * over.mean:.2f} ± {100 * over.half_width:.2f}; "
                f"{best} {100 * rule.mean:.2f}; worst seed less that "
                f"{100 * less.mean:+.2f} ± {100 * less.half_width:.2f}",
                flush=True,
            )


def agent(
    run: Path, workloads: Workloads, episodes: int, instance: int | None
) -> None:
    """Print what PAC-ML's agent blocks in fresh episodes with its last and with its best weights,
    and how often it takes each degree.
    """
    config, kept = load_run(run)
    config = replace(
        config, environment=replace(config.environment, law_instance=instance)
    )
    for name, scenario in zip(
        config.environment.names, scenarios_of(config, workloads), strict=True
    ):
        for which, its in (("last", kept), ("best", kept["best"])):
            network = network_of(config, scenario)
            network.load_state_dict(its["average"])
            counts = np.zeros(len(scenario.workloads.degrees) + 1, int)
            found = mean_and_interval(
                play(network, scenario, FRESH, episodes, counts=counts)
            )
            shares = zip(
                (0, *scenario.workloads.degrees),
                counts / counts.sum(),
                strict=True,
            )
            taken = ", ".join(
                f"{degree}: {share:.3f}" for degree, share in shares if share
            )
            print(
                f"{run} {name}, {which} weights, {its['steps']:,} decisions: "
                f"{100 * found.mean:.2f} ± {100 * found.half_width:.2f}; degrees {taken}",
                flush=True,
            )


def selected(
    profiles: Path | None, instance: int | None, episodes: int
) -> None:
    """Print for each law what a constant degree blocks, and the least mean of three episodes among
    as many as PAC-ML's study had: the mean of 2,000 draws, and between what 95 % of them are.
    """
    workloads = Workloads(find_profiles(profiles).graphs)
    rng = np.random.default_rng(0)
    for law, (degree, evaluations) in PUBLISHED.items():
        scenario = pac_ml_scenario(workloads, law, law_instance=instance)
        together = VectorEpisodes([scenario], episodes, FRESH)
        action = np.full(episodes, together.layout.actions.index(degree))
        finished = list[Finished]()
        while len(finished) < episodes:
            finished += together.step(action)[1]
        rates = 100 * np.array([each.blocking_rate for each in finished])
        least = [
            rng.choice(rates, (evaluations, 3)).mean(axis=1).min()
            for _ in range(2000)
        ]
        low, high = np.percentile(least, [2.5, 97.5])
        print(
            f"{law}, degree {degree}: {rates.mean():.2f}, deviation {rates.std(ddof=1):.2f}; least "
            f"of {evaluations} means of 3: {np.mean(least):.2f} ({low:.2f} to {high:.2f})",
            flush=True,
        )


def loaded(run: Path, workloads: Workloads) -> tuple[Config, nn.Module]:
    """The configuration of a run and its network."""
    config, kept = load_run(run)
    network = network_of(config, scenarios_of(config, workloads)[0])
    network.load_state_dict(kept["average"])
    return config, network


def rule_rates(
    scenario: Scenario, rule: str, episodes: int, first: int = 0
) -> list[float]:
    """The blocking rates of a plain rule in the episodes with seeds ``first`` and later."""
    found = []
    for seed in range(first, first + episodes):
        policy = make_policy(rule, scenario, seed, None, PolicyFaults())
        found.append(run_episode(scenario, policy, seed).blocking_rate())
    return found


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["compare", "join", "selected"])
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--law-instance", type=int)
    parser.add_argument("--episodes", type=int, default=40)
    parser.add_argument("--profiles", type=Path)
    parser.add_argument(
        "--output", type=Path, default=Path("results/learning")
    )
    parser.add_argument("--name")
    given = parser.parse_args()
    if given.what == "compare":
        compare(
            given.folders, given.episodes, given.profiles, given.law_instance
        )
    elif given.what == "selected":
        selected(given.profiles, given.law_instance, given.episodes)
    else:
        print(export(*of_runs(given.folders), given.output, given.name))


if __name__ == "__main__":
    main()
