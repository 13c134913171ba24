"""Runs random mixes in packets, and shows predicted beside measured times."""

import csv
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from patchlight.client.client import ControllerClient
from patchlight.emulation.experiments.ofc2022.results import MOST_STEAL
from patchlight.emulation.experiments.ofc2022.run import ExperimentClient
from patchlight.emulation.experiments.twin.mixes import (
    JobTimes,
    Mix,
    Overheads,
    draw_mix,
    predicted_times,
)
from patchlight.emulation.lab.emulated_lab import EmulatedLab
from patchlight.emulation.simulator import figures, results
from patchlight.emulation.simulator.results import cpu_ticks, provenance
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.jobs import JobSpec, JobState
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.ocs_drivers import outage_s
from patchlight.testbed.wire.rest.circuits import ChangeAnswer
from patchlight.testbed.wire.rest.jobs import JobAnswer

_UP_S = 60.0
_POLL_S = 0.5
_STALL_S = 300.0
_MOST_STRETCH = 0.05
_MOST_BUSY = 0.95  # of all processor time
_DIFFERS = (
    0.1  # Policies whose mean completion times differ by more have an order.
)
_WAITS = {JobState.QUEUED, JobState.BLOCKED}
CAUSES = ("waited_s", "starts_s", "runs_s", "ends_s")
"""The parts of a completion time, each with its own error."""


class MeasuredJob(NamedTuple):
    """A job's times in packets, how long an iteration took, and how much longer than given it
    computed, as a part."""

    times: JobTimes
    iteration_s: float
    stretch: float


def run_experiment(
    mixes: int,
    seed: int,
    most_servers: int,
    scale: float,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Run so many mixes, from ``seed`` on; the result as in ``result.json``.

    A lab that fails is noted, and Ctrl-C keeps the runs that are finished, if there are any.
    """
    seeds = range(seed, seed + mixes)
    origin = provenance(seeds)
    rows = list[dict[str, Any]]()
    machine = list[dict[str, Any]]()
    changes = list[dict[str, Any]]()
    failed: dict[int, str] = {}
    interrupted = False
    try:
        for number, each in enumerate(seeds):
            mix = draw_mix(each, most_servers)
            size = f"{len(mix.lab.servers)} servers, {len(mix.jobs)} jobs"
            say(f"lab {number + 1} of {mixes}: {size}")
            try:
                run_mix(
                    mix,
                    each,
                    scale,
                    rows,
                    machine,
                    changes,
                    say,
                )
            except PatchlightError as error:
                failed[each] = str(error)
                say(f"this lab failed: {error}")
    except KeyboardInterrupt:
        if not rows:
            raise
        interrupted = True
    if not rows:
        raise PatchlightError(
            f"no lab could be measured: {next(iter(failed.values()))}"
        )
    quiet = [row for row in rows if not row["too_busy"]]
    return {
        "experiment": "twin",
        "schema_version": 1,
        "scale": scale,
        "all": summary_of(rows),
        "quiet": summary_of(quiet),
        "jobs": rows,
        "changes": changes,
        "outages": _errors(changes, "took_s"),
        "labs": machine,
        "failed": failed,
        "interrupted": interrupted,
        "provenance": origin,
    }


def run_mix(
    mix: Mix,
    seed: int,
    scale: float,
    rows: list[dict[str, Any]],
    machine: list[dict[str, Any]],
    changes: list[dict[str, Any]],
    say: Callable[[str], None],
) -> None:
    """Bring a lab up, measure what it needs around jobs, and run its jobs with both policies."""
    with (
        EmulatedLab.from_lab(
            mix.lab,
            scale,
            workers="process",
            real_time=True,
        ) as emulated,
        ControllerClient(emulated.lab.controller_api) as client,
    ):
        lab = emulated.lab
        experiment = ExperimentClient(client)
        experiment.wait_until_complete(_UP_S)
        overheads = measured_overheads(client, lab, mix.jobs[0])
        for policies in mix.policies:
            experiment.reconfigure(lab.initial_maps)
            last = max(each.id for each in client.reconfigurations())
            before = cpu_ticks()
            arrivals_s, measured = _measured(client, mix, policies)
            after = cpu_ticks()
            steal = (after.steal - before.steal) / max(
                1, after.total - before.total
            )
            used = after.busy_since(before)
            busy = _too_busy(
                used, steal, max(each.stretch for each in measured.values())
            )
            predicted = predicted_times(
                lab,
                mix.jobs,
                arrivals_s,
                policies,
                overheads,
            )
            state = {"busy": used, "steal": steal, "too_busy": busy}
            name = "+".join(policies)
            shown = {
                "seed": seed,
                "policies": name,
                "servers": len(lab.servers),
            }
            machine.append({**shown, **overheads._asdict(), **state})
            mine = [
                {
                    **shown,
                    **_row(spec, predicted[spec.name], measured[spec.name]),
                    **state,
                }
                for spec in mix.jobs
            ]
            rows += mine
            changes += [
                {
                    **shown,
                    "driver": lab.circuit_switches[0].driver,
                    "switching_time_s": lab.circuit_switches[
                        0
                    ].switching_time_s,
                    "ocs": len(change.changes),
                    "cross_connects": sum(makes_of(change).values()),
                    "took_s": took_s(change),
                    "predicted_took_s": outage_s(lab, makes_of(change))
                    + overheads.wiring_s,
                    **state,
                }
                for change in client.reconfigurations()
                if change.id > last
                and change.state == "committed"
                and change.changes
            ]
            off = ", ".join(
                f"{row['predicted_runs_s'] / row['runs_s'] - 1:+.1%}"
                for row in mine
            )
            say(
                f"{name}: predicted less measured run time {off}{f'; {busy}' * bool(busy)}"
            )


def _too_busy(
    busy: float,
    steal: float,
    stretch: float,
) -> str:
    """Why the emulating machine was too busy for these figures; empty if it was not."""
    found = []
    if busy > _MOST_BUSY:
        found.append(
            f"no free core: its processors were busy {busy:.0%} of the time"
        )
    if steal > MOST_STEAL:
        found.append(f"the hypervisor withheld {steal:.0%} of its CPU time")
    if stretch > _MOST_STRETCH:
        found.append(
            f"compute phases took {stretch:.0%} longer than specified"
        )
    return "; ".join(found)


def makes_of(change: ChangeAnswer) -> dict[str, int]:
    """How many cross-connects a change made at each OCS."""
    return {name: len(each.makes) for name, each in change.changes.items()}


def took_s(change: ChangeAnswer) -> float:
    """How long a change took beside waiting for the iterations of jobs."""
    return sum(change.stages_s.values()) - change.stages_s.get("drain", 0.0)


def measured_overheads(
    client: ControllerClient, lab: Lab, like: JobSpec
) -> Overheads:
    """The times of starting, ending and rewiring, from one such job on the first and the last GPU,
    which are moved to one packet switch. They differ with what else the machine does."""
    first = lab.hosts[0].name
    last = lab.hosts[-1].name
    spec = replace(
        like,
        name="alone",
        iterations=3,
        workers=0,
        hosts=(first, last),
    )
    job_id = client.submit([spec], "regroup")[0].id
    times = measured_jobs(client, [job_id], [spec])[spec.name].times
    at = {each.state: each.at for each in client.history(job_id)}
    wired_s = at[JobState.PREPARING] - at.get(
        JobState.RECONFIGURING, at[JobState.PREPARING]
    )
    (change,) = client.reconfigurations(1)
    wiring_s = took_s(change) - outage_s(lab, makes_of(change))
    return Overheads(
        times.starts_s - wired_s, times.ends_s, max(0.0, wiring_s)
    )


def _measured(
    client: ControllerClient,
    mix: Mix,
    policies: tuple[str, str],
) -> tuple[list[float], dict[str, MeasuredJob]]:
    """When the jobs came, and what was measured of each, by name."""
    placement, topology = policies
    ids = list[str]()
    began = time.monotonic()
    for spec, arrival_s in zip(mix.jobs, mix.arrivals_s, strict=True):
        time.sleep(max(0.0, began + arrival_s - time.monotonic()))
        given = replace(
            spec,
            placement=placement,
            topology=topology,
        )
        ids.append(client.submit([given])[0].id)
    measured = measured_jobs(client, ids, mix.jobs)
    came = [client.job(job_id).submitted_at for job_id in ids]
    return [at - came[0] for at in came], measured


def measured_jobs(
    client: ControllerClient,
    ids: Sequence[str],
    specs: Sequence[JobSpec],
) -> dict[str, MeasuredJob]:
    """The measurements of these jobs, by name, once all have ended.

    An error if one fails, or nothing happens.
    """
    seen = list[int]()
    deadline = time.monotonic() + _STALL_S
    while True:
        jobs = [client.job(job_id) for job_id in ids]
        for job, spec in zip(jobs, specs, strict=True):
            if job.state in (JobState.FAILED, JobState.STOPPED):
                raise PatchlightError(
                    f"job {spec.name} {job.state}: {job.message}"
                )
        if all(job.state == JobState.DONE for job in jobs):
            pairs = zip(jobs, specs, strict=True)
            return {
                spec.name: _measured_job(client, job, spec)
                for job, spec in pairs
            }
        if (done := [job.iterations_done for job in jobs]) != seen:
            seen = done
            deadline = time.monotonic() + _STALL_S
        if time.monotonic() > deadline:
            raise PatchlightError(
                f"no job finished an iteration for {_STALL_S:.0f} s"
            )
        # Each call takes processor time from what is measured.
        time.sleep(_POLL_S)


def _measured_job(
    client: ControllerClient,
    job: JobAnswer,
    spec: JobSpec,
) -> MeasuredJob:
    reports, _ = client.iterations(job.id)
    starts = [
        each.finished_at - each.compute_s - each.communication_s
        for each in reports
        if each.index == 0
    ]
    began = min(starts)
    last = max(each.finished_at for each in reports)
    placed = next(
        s.at for s in client.history(job.id) if s.state not in _WAITS
    )
    by_rank: dict[int, list[float]] = {}
    for each in reports:
        by_rank.setdefault(each.rank, []).append(each.compute_s)
    computed_s = max(float(np.mean(each)) for each in by_rank.values())
    times = JobTimes(
        tuple(job.hosts),
        placed - job.submitted_at,
        began - placed,
        last - began,
        (job.finished_at or last) - last,
    )
    iterations = 1 + max(each.index for each in reports)
    given_s = max(spec.compute_s.values())
    return MeasuredJob(
        times, (last - began) / iterations, computed_s / given_s - 1
    )


def _row(
    spec: JobSpec,
    predicted: JobTimes,
    measured: MeasuredJob,
) -> dict[str, Any]:
    """One line of the data set. Errors are predicted less measured, in seconds."""
    times = measured.times
    found: dict[str, Any] = {
        "job": spec.name,
        "workers": spec.workers,
        "iterations": spec.iterations,
        "gradient_bytes": spec.gradient_bytes,
        "compute_s": max(spec.compute_s.values()),
        "same_hosts": times.hosts == predicted.hosts,
        "compute_stretch": measured.stretch,
        "iteration_s": measured.iteration_s,
        "predicted_iteration_s": predicted.runs_s / spec.iterations,
    }
    for name in ("jct_s", *CAUSES):
        found[name] = getattr(times, name)
        found[f"predicted_{name}"] = getattr(predicted, name)
    return found


def summary_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Errors of these jobs, as parts of what was measured, and how often policies are in order.

    ``runs`` is of jobs on the hosts that were predicted; ``causes_s`` is the median of the
    absolute error of each part of a completion time.
    """
    if not rows:
        return {"jobs": 0}
    same = [row for row in rows if row["same_hosts"]]
    right, compared = _orders(rows)
    return {
        "jobs": len(rows),
        "same_hosts": len(same),
        "runs": _errors(same, "runs_s"),
        "iteration": _errors(same, "iteration_s"),
        "jct": _errors(rows, "jct_s"),
        "causes_s": {
            name: float(
                np.median(
                    [abs(row[f"predicted_{name}"] - row[name]) for row in rows]
                )
            )
            for name in CAUSES
        },
        "orders_right": right,
        "orders": compared,
    }


def _errors(
    rows: Sequence[Mapping[str, Any]], name: str
) -> dict[str, float] | None:
    if not rows:
        return None
    off = np.array([row[f"predicted_{name}"] / row[name] - 1 for row in rows])
    return {
        "median": float(np.median(np.abs(off))),
        "p95": float(np.percentile(np.abs(off), 95)),
        "bias": float(np.median(off)),
    }


def _orders(rows: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """In how many mixes the better policy was predicted, of those where they differ enough."""
    by_mix: dict[int, dict[str, list[tuple[float, float]]]] = {}
    for row in rows:
        both = row["predicted_jct_s"], row["jct_s"]
        by_mix.setdefault(row["seed"], {}).setdefault(
            row["policies"], []
        ).append(both)
    right = compared = 0
    for found in by_mix.values():
        if len(found) == 2:
            (told, took), (other_told, other_took) = (
                np.mean(each, axis=0) for each in found.values()
            )
            if abs(np.log(took / other_took)) > np.log1p(_DIFFERS):
                compared += 1
                right += bool((told < other_told) == (took < other_took))
    return right, compared


def write_report(result: dict[str, Any], output: Path) -> list[Path]:
    """Write ``result.json``, ``jobs.csv`` and the scatter plot; the files."""

    def table(path: Path) -> None:
        with path.open(
            "w",
            newline="",
            encoding="utf-8",
        ) as file:
            writer = csv.DictWriter(file, list(result["jobs"][0]))
            writer.writeheader()
            writer.writerows(result["jobs"])

    plots = {"twin": lambda: twin_figure(result["jobs"])}
    return results.write_report(
        result,
        output,
        plots,
        {"jobs.csv": table},
    )


def twin_figure(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Predicted over measured; jobs on a machine that was too busy are grey."""
    figure = figures.new(2.4)
    for axis, (name, label) in zip(
        figure.subplots(1, 3),
        (
            ("jct_s", "completion"),
            ("runs_s", "run time"),
            ("waited_s", "waiting"),
        ),
        strict=True,
    ):
        took = np.array([row[name] for row in rows])
        told = np.array([row[f"predicted_{name}"] for row in rows])
        busy = np.array([bool(row["too_busy"]) for row in rows])
        axis.scatter(
            took[busy],
            told[busy],
            s=8,
            color=figures.GREY,
            label="machine too busy",
        )
        axis.scatter(
            took[~busy],
            told[~busy],
            s=8,
            color=figures.BLUE,
            label="machine quiet",
        )
        most = 1.05 * max(1.0, took.max(), told.max())
        axis.plot(
            [0, most],
            [0, most],
            color=figures.VERMILION,
            linewidth=0.8,
        )
        axis.set_xlabel(f"{label}, measured (s)")
        axis.set_ylabel("predicted (s)")
    figures.legend(figure)
    return figure
