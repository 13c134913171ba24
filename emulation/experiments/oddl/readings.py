"""ODDL beside other networks under many readings of what was compared."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from patchlight.emulation.experiments.oddl import conditions
from patchlight.emulation.experiments.paper import SPEEDUPS
from patchlight.emulation.simulator.network.contract import (
    Network,
    Round,
    collective,
)
from patchlight.emulation.simulator.network.engine import run
from patchlight.emulation.simulator.network.jobs import (
    ONCE,
    PlacedJob,
    program_of,
    sessions_of,
)
from patchlight.emulation.simulator.network.sharing import Ints
from patchlight.emulation.simulator.network.specs import network_of
from patchlight.emulation.simulator.results import provenance
from patchlight.testbed.graphs.layers import GPUS

NEAR = 0.1
"""So far from a published speedup a reading may be to give it."""

# Of several jobs on a network, so many iterations are timed, after the first few.
_TIMED = 4
_BEFORE = 2
_STEP_S = 5e-6
_TCP_STEP_S = 50e-6
_RETUNED_S = 25e-6


class Reading(NamedTuple):
    """A network beside ODDL, who is on it, and what they send.

    Others take ``load`` of the rate of links between nodes' own; each step of a collective takes
    ``step_s`` more than its bits.
    """

    compared: str
    spec: str
    placement: str
    collective: str
    jobs: int = 1
    load: float = 0.0
    step_s: float = _STEP_S


def readings_of(radix: int) -> Iterator[Reading]:
    """All of them, on k³/4 nodes."""
    nodes = radix**3 // 4
    for taper in (1, 2, 4):
        tree = f"fat-tree:k={radix},taper={taper}"
        for placement in PLACEMENTS:
            yield Reading("fat_tree", tree, placement, "ring")
        if taper < 4:
            for each in ("hierarchical", "halving-doubling"):
                yield Reading("fat_tree", tree, "in order", each)
            yield Reading("fat_tree", tree, "in order", "ring", load=0.5)
            yield Reading("fat_tree", tree, "random", "ring", 16)
    tree = f"fat-tree:k={radix}"
    yield Reading("fat_tree", tree, "in order", "ring", step_s=_TCP_STEP_S)
    sip = f"sip-ring:nodes={nodes}"
    both = f"{sip},directions=2"
    yield Reading("sip_ring", sip, "in order", "ring")
    yield Reading(
        "sip_ring", sip, "in order", "ring", step_s=_STEP_S + _RETUNED_S
    )
    yield Reading("sip_ring", sip, "in order", "ring", 4)
    yield Reading("sip_ring", sip, "in order", "halving-doubling")
    yield Reading("sip_ring", both, "in order", "ring")
    yield Reading("sip_ring", both, "in order", "two-rings")
    yield Reading("sip_ring", both, "in order", "ring", load=0.2)
    split = f"{both},fibres=5"
    yield Reading("sip_ring", split, "in order", "ring")
    authors = "switching=20us,slot=100us"
    yield Reading("sip_ring", f"{split},{authors}", "in order", "ring")
    waves = "wavelengths=20,microrings=20,channel_rate=25Gbps"
    yield Reading("sip_ring", f"{split},{waves},{authors}", "in order", "ring")


PLACEMENTS = ("in order", "racks in random order", "random")


def _placed(placement: str, radix: int, rng: np.random.Generator) -> Ints:
    """The nodes of a cluster in the order of ranks."""
    nodes = np.arange(radix**3 // 4)
    if placement == "random":
        return rng.permutation(nodes)
    if placement == "in order":
        return nodes
    return rng.permutation(nodes.reshape(-1, radix // 2)).reshape(-1)


def communication_s(
    network: Network,
    rings: Sequence[Ints],
    rounds: Sequence[Round],
    step_s: float,
) -> float:
    """How long the communication of equal jobs takes that do nothing else, in the mean."""
    jobs = [
        PlacedJob(
            nodes,
            0.0,
            rounds,
            ONCE,
            messages_s=step_s,
        )
        for nodes in rings
    ]
    program = program_of(
        network, jobs, [sessions_of(network, job) for job in jobs]
    )
    outcome = run(program, _TIMED + _BEFORE, _BEFORE)
    return float(
        ((outcome.ends_s - outcome.marks_s) / (outcome.done - _BEFORE)).mean()
    )


def loaded(network: Network, load: float) -> Network:
    """The network where others take so much of each link that is not a node's own."""
    left = np.ones(len(network.capacity_bps))
    left[2 * network.nodes :] -= load
    return replace(network, capacity_bps=network.capacity_bps * left)


def run_readings(radix: int, model: str, seed: int) -> dict[str, Any]:
    """The content of ``result.json``: ``f`` is the time to communicate over that on ODDL, where it
    takes ``oddl_s``; ``speedups`` are ratios of iterations, by preset of the computing time."""
    nodes = radix**3 // 4
    origin = provenance([seed])
    oddl = network_of(f"oddl:nodes={nodes},setup=0ns")
    work = conditions.workload(model)
    computes_s = {
        name: conditions.workload(model, name).compute_s for name in GPUS
    }
    rows = []
    for each in readings_of(radix):
        order = _placed(each.placement, radix, np.random.default_rng(seed))
        rings = list(order.reshape(each.jobs, -1))
        rounds = collective(
            each.collective, nodes // each.jobs, work.gradient_bytes
        )
        network = loaded(network_of(each.spec), each.load)
        oddl_s = communication_s(oddl, rings[:1], rounds, _STEP_S)
        f = communication_s(network, rings, rounds, each.step_s) / oddl_s
        speedups = {
            name: (compute_s + f * oddl_s) / (compute_s + oddl_s)
            for name, compute_s in computes_s.items()
        }
        rows.append(
            {**each._asdict(), "oddl_s": oddl_s, "f": f, "speedups": speedups}
        )
    published = SPEEDUPS.get((model, nodes), {})
    return {
        "experiment": "oddl",
        "form": "readings",
        "schema_version": 1,
        "model": model,
        "nodes": nodes,
        "gpus": {name: gpu.statement for name, gpu in GPUS.items()},
        "compute_s": computes_s,
        "readings": rows,
        "paper": dict(published),
        "given_by": given_by(rows, published),
        "provenance": origin,
    }


def given_by(
    rows: Sequence[Mapping[str, Any]], published: Mapping[str, float]
) -> dict[str, dict[str, list[int]]]:
    """The readings (numbers of rows) that give each published speedup, by preset."""
    return {
        gpu: {
            compared: [
                number
                for number, row in enumerate(rows)
                if row["compared"] == compared
                and abs(row["speedups"][gpu] - speedup) <= NEAR
            ]
            for compared, speedup in published.items()
        }
        for gpu in GPUS
    }
