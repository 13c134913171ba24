"""ODDL in packets: trains alternately over optical paths and over one packet switch.

Rates and bytes are divided by ``scale``, as in every emulated lab, so that transfers take as long
as they would. Then everything is slowed down by ``slowdown``: computing, transfers and tuning take
so many times as long, messages of the control network and the nodes' own work do not. All times of
a result are the job's: those measured, divided by the slowdown.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, NamedTuple

from patchlight.emulation.experiments.oddl.conditions import workload
from patchlight.emulation.experiments.oddl.packets.crew import (
    Crew,
    CrewTraining,
    NodeLoad,
    crew_of,
)
from patchlight.emulation.experiments.oddl.packets.isolation import (
    LEAST_PAIRS,
    measure_isolation,
)
from patchlight.emulation.lab.emulated_lab import EmulatedLab
from patchlight.emulation.simulator.results import provenance
from patchlight.testbed.errors import BadInput
from patchlight.testbed.generate.builder import LabBuilder
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.labfile.reader import load_lab
from patchlight.testbed.paths.light_networks import light_networks
from patchlight.testbed.units import format_rate, format_time

_MODEL = "oddl4"


def light_lab(tuning_time_s: float) -> Lab:
    """The built-in lab ``oddl4``, with transceivers that take so long to be tuned."""
    lab = load_lab(_MODEL)
    servers = []
    for server in lab.servers:
        nics = []
        for nic in server.nics:
            assert nic.transceiver is not None
            transceiver = replace(nic.transceiver, tuning_time_s=tuning_time_s)
            nics.append(replace(nic, transceiver=transceiver))
        servers.append(replace(server, nics=tuple(nics)))
    # There is no packet switch here, so no OpenFlow.
    return lab.with_changes(
        name="oddl-light",
        servers=tuple(servers),
        fabric="bridge",
    )


def switch_lab() -> Lab:
    """Its servers, with NICs of the same rate, on one switch that never has to wait."""
    model = load_lab(_MODEL)
    build = LabBuilder(
        "oddl-switch",
        network=str(model.network),
        fabric="bridge",
    )
    build.switch("ideal")
    for host in model.hosts:
        rate = format_rate(host.nic.rate_bps)
        build.fibre(
            build.server(
                host.server.name,
                gpus=["Generic"],
                rate=rate,
            ),
            "ideal",
        )
    return build.lab()


TUNING_TIMES_S = (1e-3, 4e-3, 16e-3, 64e-3)
NODES = 4
ARMS = ("ideal", "kept", "turned")
"""On the switch; on light, the ring as it is; on light, the ring turned for each iteration."""
_LEAST_RATE_BPS = 1e6


@dataclass(frozen=True)
class PacketOptions:
    """The plan of a run: in each of ``rounds``, each network in turn does ``iterations``.

    So for the first of ``tuning_times_s``, one round for the others; in the lab, tuning takes
    ``slowdown`` times as long.
    """

    model: str = "vgg19"
    iterations: int = 4
    rounds: int = 3
    tuning_times_s: tuple[float, ...] = TUNING_TIMES_S
    scale: float = 1000.0
    slowdown: float = 4.0
    replace: bool = False

    def __post_init__(self) -> None:
        if not self.tuning_times_s or any(
            each <= 0 for each in self.tuning_times_s
        ):
            raise BadInput(
                "expected tuning times of more than 0, at least one"
            )
        if self.iterations < 2 or self.iterations % 2 or self.rounds < 1:
            raise BadInput(
                f"{self.rounds} rounds of {self.iterations} iterations: expected 1 or more "
                f"rounds, each with an even number, as the ring is reversed and reversed back"
            )
        if workload(self.model).tokens_bytes:
            raise BadInput(
                f"{self.model} sends tokens and gradients: expected a model that only all-reduces",
                hint="use it with: patchlight experiment oddl --flows",
            )
        if not (self.scale >= 1 and self.slowdown >= 1):
            raise BadInput(
                f"scale {self.scale:g} and slowdown {self.slowdown:g}: expected 1 or more of each"
            )
        if self.emulated_bps < _LEAST_RATE_BPS:
            raise BadInput(
                f"scale {self.scale:g} and slowdown {self.slowdown:g} leave a NIC "
                f"{self.emulated_bps:g} bit/s: expected {_LEAST_RATE_BPS:g} or more",
                hint="give a smaller --scale or --slowdown",
            )

    @property
    def emulated_bps(self) -> float:
        """The rate of a NIC in the emulated lab."""
        slowest_bps = min(
            float(host.nic.rate_bps or "inf") for host in switch_lab().hosts
        )
        return slowest_bps / self.scale / self.slowdown

    @property
    def pairs(self) -> int:
        """Pairs of iterations with and without a flooding neighbour, in all rounds."""
        return max(LEAST_PAIRS, self.rounds * self.iterations)

    def load(self, nodes: int = NODES) -> NodeLoad:
        """A node's work in an iteration of the emulated lab with so many nodes."""
        work = workload(self.model)
        nbytes = max(4, round(work.gradient_bytes / self.scale / 4) * 4)
        sent_bits = 8 * nbytes * 2 * (nodes - 1) / nodes
        return NodeLoad(
            nbytes,
            work.compute_s * self.slowdown,
            sent_bits / self.emulated_bps,
        )


class _Point(NamedTuple):
    """Measurements with one tuning time: rounds of trainings by arm, and lost frames."""

    tuning_time_s: float
    rounds: Sequence[dict[str, CrewTraining]]
    losses: dict[str, dict[str, int]]


def run_packets(
    options: PacketOptions, say: Callable[[str], None]
) -> dict[str, Any]:
    """The content of ``result.json``; ``say`` gets each step. The labs are removed in any case."""
    origin = provenance(())
    began = time.monotonic()
    load = options.load()
    points = []
    scale = options.scale * options.slowdown
    say("starting four servers on one packet switch")
    with (
        EmulatedLab.from_lab(
            switch_lab(), scale, replace=options.replace
        ) as switched,
        crew_of(switched, load) as ideal,
    ):
        ideal.train(1)  # Its connections find their pace.
        for number, tuning_s in enumerate(options.tuning_times_s):
            say(
                f"the same with optical paths, {format_time(tuning_s)} to tune a transceiver"
            )
            in_lab_s = tuning_s * options.slowdown
            lab = light_lab(in_lab_s)
            with (
                EmulatedLab.from_lab(
                    lab, scale, replace=options.replace
                ) as lit,
                crew_of(lit, load, light_networks(lit.lab, {})[0]) as oddl,
            ):
                # Those of both rings do; it leaves them tuned.
                oddl.train(2, turning=True)
                rounds = [
                    _round(ideal, oddl, options.iterations)
                    for _ in range(1 if number else options.rounds)
                ]
                with lit.light as light:
                    points.append(_Point(tuning_s, rounds, light.losses()))
    say("two jobs of two servers with optical paths")
    lab = light_lab(options.tuning_times_s[0] * options.slowdown)
    with EmulatedLab.from_lab(lab, scale, replace=options.replace) as lit:
        half = options.load(NODES // 2)
        isolation = measure_isolation(
            lit,
            half,
            options.pairs,
            options.slowdown,
            say,
        )
        say("taking the labs down")
    return {
        "experiment": "oddl",
        "form": "packets",
        "schema_version": 1,
        **_result(points, options.slowdown),
        "isolation": isolation,
        "model": options.model,
        "nodes": NODES,
        "iteration_s": {
            "compute": load.compute_s / options.slowdown,
            "communication": load.sends_s / options.slowdown,
        },
        "scale": options.scale,
        "slowdown": options.slowdown,
        "emulated_bps": options.emulated_bps,
        "emulated_gradient_bytes": load.gradient_bytes,
        "rounds": options.rounds,
        "iterations_per_round": options.iterations,
        "duration_s": time.monotonic() - began,
        "provenance": origin,
    }


def _round(
    ideal: Crew,
    oddl: Crew,
    iterations: int,
) -> dict[str, CrewTraining]:
    """Each in its turn, so that what else the machine does falls on all of them."""
    return {
        "ideal": ideal.train(iterations),
        "kept": oddl.train(iterations),
        "turned": oddl.train(iterations, turning=True),
    }


def _result(points: Sequence[_Point], slowdown: float) -> dict[str, Any]:
    first = points[0]
    return {
        "training_time_ratio_to_ideal": _ratio(first.rounds, "kept"),
        "training_time_ratios": {
            arm: _ratio(first.rounds, arm) for arm in ARMS[1:]
        },
        "training_time_ratios_of_rounds": {
            arm: [_ratio([each], arm) for each in first.rounds]
            for arm in ARMS[1:]
        },
        "training_s_per_iteration": {
            arm: _mean_iteration_s(first.rounds, arm) / slowdown
            for arm in ARMS
        },
        "stages": {arm: _stages(first.rounds, arm, slowdown) for arm in ARMS},
        "sweep": [
            {
                "tuning_time_s": point.tuning_time_s,
                "ideal_iteration_s": _mean_iteration_s(point.rounds, "ideal")
                / slowdown,
                **{arm: _ratio(point.rounds, arm) for arm in ARMS[1:]},
                "tuning_alone": 1
                + point.tuning_time_s
                * slowdown
                / _mean_iteration_s(point.rounds, "ideal"),
                "frames_lost": {
                    name: sum(by.values()) for name, by in point.losses.items()
                },
            }
            for point in points
        ],
    }


def _ratio(rounds: Sequence[dict[str, CrewTraining]], arm: str) -> float:
    """The training time of an arm over that on the switch, for as many iterations."""
    return _total_s(rounds, arm) / _total_s(rounds, "ideal")


def _total_s(rounds: Sequence[dict[str, CrewTraining]], arm: str) -> float:
    return sum(each[arm].took_s for each in rounds)


def _mean_iteration_s(
    rounds: Sequence[dict[str, CrewTraining]], arm: str
) -> float:
    return _total_s(rounds, arm) / sum(
        len(each[arm].iterations) for each in rounds
    )


def _stages(
    rounds: Sequence[dict[str, CrewTraining]],
    arm: str,
    slowdown: float,
) -> dict[str, dict[str, float]]:
    """The median and the longest time of a node in each stage, in the job's seconds."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for each in rounds:
        for iteration in each[arm].iterations:
            for stage, times_s in iteration.items():
                found[stage] += [one / slowdown for one in times_s]
    return {
        stage: {"median_s": median(times_s), "longest_s": max(times_s)}
        for stage, times_s in found.items()
    }
