"""Jobs recorded as Chakra execution traces on a network: how long they take."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from patchlight.emulation.simulator.network.chakra_job import (
    ChakraJob,
    read_chakra,
)
from patchlight.emulation.simulator.network.contract import Network
from patchlight.emulation.simulator.network.engine import Order, run
from patchlight.emulation.simulator.network.jobs import (
    PlacedJob,
    program_of,
    sessions_of,
)
from patchlight.emulation.simulator.network.sharing import Ints
from patchlight.emulation.simulator.network.specs import CALM, Trouble
from patchlight.emulation.simulator.results import provenance
from patchlight.testbed.errors import BadInput, PatchlightError


class PlacedTrace(NamedTuple):
    """A job whose rank r is on ``nodes[r]``, and when it begins."""

    job: ChakraJob
    nodes: Ints
    begins_s: float = 0.0


def run_chakra(
    network: Network,
    placed: Sequence[PlacedTrace],
    trouble: Trouble = CALM,
) -> list[float]:
    """How long each job takes, in seconds from when it begins; they share the network's links.

    An operation begins when what it needs is done and its lanes are free. Circuits are made for
    each that communicates. ``BadInput`` for too few nodes and for nodes that fail: a
    trace has no checkpoints. ``PatchlightError`` if a job cannot go on.
    """
    if any(failure.what == "node" for failure in trouble.failures):
        raise BadInput(
            "nodes of a Chakra job cannot fail: a trace has no checkpoints",
            hint="use failing links or slow nodes",
        )
    jobs: list[PlacedJob] = []
    begins_s: list[float] = []
    delays_s: list[float] = []
    needs: list[tuple[int, ...]] = []
    lanes: list[tuple[int, ...]] = []
    lane = 0
    switching = network.switching
    for job, nodes, job_begins_s in placed:
        if len(nodes) < job.ranks:
            raise BadInput(
                f"a Chakra job of {job.ranks} ranks got {len(nodes)} nodes"
            )
        first = len(jobs)
        for each in job.operations:
            jobs.append(
                PlacedJob(nodes[each.ranks], each.compute_s, each.rounds)
            )
            needs.append(tuple(first + need for need in each.needs))
            lanes.append(tuple(lane + own for own in each.lanes))
            begins_s.append(switching.setup_s + job_begins_s)
            delays_s.append(switching.dark_s if each.rounds else 0.0)
        lane += 1 + max(own for each in job.operations for own in each.lanes)
    followers: list[list[int]] = [[] for _ in jobs]
    for number, before in enumerate(needs):
        for need in before:
            followers[need].append(number)
    order = Order(
        np.array([len(each) for each in needs], np.int64),
        np.cumsum([0, *map(len, followers)], dtype=np.int64),
        np.array([number for each in followers for number in each], np.int64),
        np.array(delays_s, np.float64),
        lanes,
        np.array(
            [each.place for job, _, _ in placed for each in job.operations],
            np.int64,
        ),
    )
    sessions = [sessions_of(network, job) for job in jobs]
    program = program_of(
        network,
        jobs,
        sessions,
        trouble.checked(network),
    )
    outcome = run(
        replace(
            program,
            begins_s=np.array(begins_s, np.float64),
            order=order,
        )
    )
    if len(outcome.stuck):
        raise PatchlightError(
            f"a Chakra job never ends: a link of {network.spec} has no rate"
        )
    ends = np.cumsum([0, *(len(job.operations) for job, _, _ in placed)])
    return [
        float(outcome.ends_s[first:end].max()) - each.begins_s
        for each, first, end in zip(
            placed,
            ends,
            ends[1:],
            strict=False,
        )
    ]


def result_of_chakra(
    network: Network,
    traces: Sequence[tuple[str, Sequence[Path], float]],
    trouble: Trouble = CALM,
    skip_bad: bool = False,
    peak_flops: float | None = None,
) -> dict[str, Any]:
    """The jobs' part of ``result.json``: name, files and start of each.

    Each job has the nodes behind those of the one before it, rank by rank.
    """
    origin = provenance(
        [trouble.seed], [file for _, files, _ in traces for file in files]
    )
    placed: list[PlacedTrace] = []
    taken = 0
    for _, files, begins_s in traces:
        job = read_chakra(files, skip_bad, peak_flops)
        placed.append(
            PlacedTrace(job, np.arange(taken, taken + job.ranks), begins_s)
        )
        taken += job.ranks
    if taken > network.nodes:
        raise BadInput(
            f"{network.spec} has {network.nodes} nodes: the Chakra jobs need {taken}"
        )
    lasts_s = run_chakra(network, placed, trouble)
    jobs = [
        {
            "chakra": name,
            "begins_s": begins_s,
            "first_node": int(each.nodes[0]),
            "ranks": each.job.ranks,
            "operations": len(each.job.operations),
            "completion_s": job_s,
            "compute_s": each.job.compute_s,
            "notes": dict(each.job.notes),
        }
        for (name, _, begins_s), each, job_s in zip(
            traces,
            placed,
            lasts_s,
            strict=True,
        )
    ]
    return {
        "experiment": "chakra",
        "schema_version": 1,
        "network": network.spec,
        "nodes": network.nodes,
        "ranks": taken,
        "operations": sum(len(each.job.operations) for each in placed),
        "completion_s": max(
            each.begins_s + s for each, s in zip(placed, lasts_s, strict=True)
        ),
        "compute_s": max(each.job.compute_s for each in placed),
        "jobs": jobs,
        "provenance": origin,
    }
