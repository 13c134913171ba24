"""Formats the rows and lines of the dashboard's tables and cards."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from patchlight.cli.dashboard.lab_view import Circuit, LabView
from patchlight.cli.ocs import progress_line
from patchlight.console.events import event_words
from patchlight.console.rendering import harmless, span, when
from patchlight.testbed.units import format_rate, format_time
from patchlight.testbed.wire.rest.circuits import (
    ChangeAnswer,
    ClaimAnswer,
    Lock,
    MapChangeAnswer,
    Pressed,
)
from patchlight.testbed.wire.rest.jobs import (
    IterationReport,
    JobInList,
    LightMove,
)

Row = dict[str, Any]

_MOST_MEETINGS = 3
_MOST_GPUS = 8
_SHORT_S = 1e-3  # shorter stages are hidden
# Stages of a change in which its circuits are down.
_DARK_STAGES = ("break", "make", "verify")
# In the order of a change.
_STAGES = (
    "waiting",
    "read",
    "plan",
    "check",
    "drain",
    *_DARK_STAGES,
    "flows",
    "announce",
    "undrain",
)


def took(seconds: float) -> str:
    """A time with three digits, like ``39.1 ms``."""
    return _spaced(format_time(max(1e-6, float(f"{seconds:.3g}"))))


def rate(bps: float) -> str:
    """A rate with three digits, like ``30.5 Gb/s``."""
    return _spaced(format_rate(float(f"{bps:.3g}"))).replace("bps", "b/s")


def _spaced(quantity: str) -> str:
    spaced = re.sub(
        r"(?<=\d)(?=[A-Za-z])",
        "\N{NO-BREAK SPACE}",
        quantity,
        count=1,
    )
    return spaced.replace("us", "µs")


def job_row(
    job: JobInList,
    view: LabView,
    iteration_s: float | None,
    sends_bps: float | None,
) -> Row:
    """A job in a list; ``iteration_s`` and ``sends_bps`` are measured, ``None`` if unknown."""
    wanted = job.spec.iterations
    done = job.iterations_done
    predicted_s = job.predicted_iteration_s
    return {
        "id": job.id,
        "name": harmless(job.spec.name),
        "colour": view.colours.get(job.id, ""),
        "state": job.state,
        "why": harmless(" ".join(job.message.split())),
        "user": harmless(job.by),
        "gpus": gpus_words(job.hosts),
        "done": f"{done} of {wanted}" if wanted else str(done),
        "iteration": "" if iteration_s is None else took(iteration_s),
        "predicted": "" if predicted_s is None else took(predicted_s),
        "sends": "" if sends_bps is None else rate(sends_bps),
        "submitted": when(job.submitted_at),
    }


def gpus_words(hosts: Sequence[str]) -> str:
    """The first GPUs of a job, without their servers if unambiguous."""
    short = [host.partition(".")[2] or host for host in hosts]
    names = short if len(set(short)) == len(short) else hosts
    return ", ".join(names[:_MOST_GPUS]) + _more(len(hosts) - _MOST_GPUS)


def job_lines(
    row: Row,
    job: JobInList,
    view: LabView,
) -> list[str]:
    """A job on the Lab page: its GPUs, switches and pace, or why it waits."""
    pace = f"iteration {row['iteration']}" if row["iteration"] else ""
    pace += (
        f", predicted {row['predicted']}" if pace and row["predicted"] else ""
    )
    sends = f"sends {row['sends']}" if row["sends"] else ""
    at = f"{row['gpus']}: {paths_words(job, view)}" if job.hosts else ""
    return [
        line
        for line in (at, "; ".join(filter(None, (pace, sends))), row["why"])
        if line
    ]


def paths_words(job: JobInList, view: LabView) -> str:
    """The devices that a job's NICs are connected to, and the switches between."""
    ways: dict[str, int] = {}
    for name in job.hosts:
        host = view.lab.host_names.get(name)
        if host is None:
            continue
        path = view.links.paths.get(host.endpoint)
        sends = host.nic.transceiver
        way = f"{sends.channel} THz" if sends is not None else "no link"
        if path is not None:
            through = ", ".join(device for device, _ in path.through)
            way = f"{path.sink.device}" + (
                f" through {through}" if through else ""
            )
        ways[way] = ways.get(way, 0) + 1
    counted = {
        way: count if len(ways) > 1 else 1 for way, count in ways.items()
    }
    return "; ".join(
        way if count == 1 else f"{count} × {way}"
        for way, count in counted.items()
    )


def measured_iteration_s(reports: Collection[IterationReport]) -> float | None:
    """The mean time of the latest iterations; ``None`` without reports."""
    latest = [r.compute_s + r.communication_s for r in list(reports)[-40:]]
    return fmean(latest) if latest else None


def change_row(change: ChangeAnswer, view: LabView) -> Row:
    """A change of circuits in a list."""
    lasted_s = (change.finished_at or 0.0) - change.started_at
    message = (
        "" if change.message == "done" else f": {harmless(change.message)}"
    )
    result = f"{change.state} in {took(lasted_s)}{message}"
    if dark := dark_s(change):
        result += f"; outage {took(dark)}"
    return {
        "id": change.id,
        "at": when(change.started_at),
        "by": harmless(change.by),
        "why": harmless(change.why),
        "changes": changes_words(change.changes),
        "result": "in progress" if change.state == "intent" else result,
        "stages": _stages(change, _SHORT_S),
        "can_undo": view.can_undo(change),
    }


def dark_s(change: ChangeAnswer) -> float:
    """The outage of a change's circuits, in seconds."""
    return float(
        sum(change.stages_s.get(stage, 0.0) for stage in _DARK_STAGES)
    )


def _stages(change: ChangeAnswer, at_least_s: float) -> str:
    stages = [
        (name, s) for name, s in change.stages_s.items() if s >= at_least_s
    ]
    return ", ".join(f"{name} {took(spent)}" for name, spent in stages)


def stage_rows(change: ChangeAnswer, now: float) -> list[tuple[str, str]]:
    """The stages of a change as text, and whether each is ``done``, ``now`` or ``next``."""
    spent = change.stages_s
    progress = change.progress
    current = progress.stage if progress else ""
    rows = [
        (f"{name} {took(seconds)}", "done")
        for name, seconds in spent.items()
        if name != current
    ]
    if progress:
        so_far = span(max(0.0, now - progress.since))
        rows.append((f"{progress_line(progress)}, for {so_far}", "now"))
    if current in _STAGES:
        idle = set(spent)
        if planned := change.changes.values():
            idle |= {
                stage
                for stage, key in (("break", "breaks"), ("make", "makes"))
                if not any(getattr(each, key) for each in planned)
            }
        rows += [
            (name, "next")
            for name in _STAGES[_STAGES.index(current) + 1 :]
            if name not in idle
        ]
    return rows


def changes_words(changes: Mapping[str, MapChangeAnswer]) -> str:
    """The cross-connects that a change breaks and makes, by circuit switch."""
    return "; ".join(
        " ".join(
            [
                f"{ocs}:",
                *(f"−{c}" for c in each.breaks),
                *(f"+{c}" for c in each.makes),
            ]
        )
        for ocs, each in changes.items()
    )


def last_change_lines(
    view: LabView,
    gains: Mapping[str, LightMove],
    now: float,
) -> list[str]:
    """The changes in progress, and the last one: its result, outage and effect on jobs."""
    change = view.last_change
    lines = [
        f"change {c.id} in progress: {progress_line(c.progress)}"
        for c in view.under_way
        if c.progress
    ]
    if change is None:
        return lines or ["No circuits have been changed yet."]
    by = f" by {harmless(change.by)}" if change.by else ""
    ended_at = change.finished_at or change.started_at
    ago = span(max(0.0, now - ended_at))
    lines.append(f"change {change.id}{by}: {change.state} {ago} ago")
    lines += [harmless(change.why)] if change.why else []
    changes = change.changes.values()
    broken = sum(len(each.breaks) for each in changes)
    made = sum(len(each.makes) for each in changes)
    lines.append(
        f"{broken} cross-connects broken and {made} made in "
        f"{took(ended_at - change.started_at)}; outage {took(dark_s(change))}"
    )
    stages = _stages(change, _SHORT_S)
    lines += [stages] if stages else []
    lines += [harmless(change.message)] if change.state != "committed" else []
    lines += [f"{job}: {gain_words(gain)}" for job, gain in gains.items()]
    return lines


def gain_words(gain: LightMove) -> str:
    """The iteration time of a job before and after a change of its circuits."""
    before = gain.measured_before_s
    after = gain.measured_after_s
    if not before or not after:
        return "not enough iterations to compare before and after"
    faster = (
        f", {before / after:.1f} × faster" if before > 1.05 * after else ""
    )
    return f"iteration {took(before)} before, {took(after)} after{faster}"


def latest_words(view: LabView, now: float) -> str:
    """The last event: a change of circuits, or a job's start or end."""
    found = [(0.0, "")]
    if change := view.last_change:
        why = f" ({harmless(change.why)})" if change.why else ""
        found.append(
            (
                change.finished_at or change.started_at,
                f"change {change.id} {change.state}{why}",
            )
        )
    for job in view.jobs:
        ended = job.finished_at
        at, state = (
            (ended, job.state) if ended else (job.runs_since or 0.0, "started")
        )
        found.append((at, f"job {job.id} {state}"))
    at, words = max(found)
    return f"Last: {words}, {span(max(0.0, now - at))} ago." if at else ""


def summary(view: LabView) -> str:
    """The lab's devices (while all answer) and jobs, as a sentence."""
    devices = (
        (len(view.lab.servers), "server"),
        (len(view.lab.packet_switches), "packet switch"),
        (len(view.lab.optical_switches), "optical switch"),
    )
    up = (
        ", ".join(_counted(count, name) for count, name in devices if count)
        + " up; "
    )
    busy = len(view.job_of_host)
    return (
        f"{'' if view.silent else up}{_counted(len(view.at_work), 'job')} running on {busy} of "
        f"{_counted(len(view.lab.hosts), 'GPU')}, {len(view.waiting)} waiting."
    )


def _counted(count: int, name: str) -> str:
    plural = "es" if name.endswith("ch") else "s"
    return f"{count} {name}{'' if count == 1 else plural}"


def problems(
    view: LabView,
    stopped: Pressed | None,
    trouble: str,
) -> list[tuple[str, bool]]:
    """The faults, worst first, and whether each is an error or a caution."""
    bad = [trouble] if trouble else []
    bad += [
        w if name in w else f"{name} {w}" for name, w in view.silent.items()
    ]
    bad += [
        f"{host} has no link: {reason}"
        for host, reason in view.without_link.items()
    ]
    caution = []
    if stopped is not None:
        why = f": {stopped.why}" if stopped.why else ""
        caution.append(f"stop button pressed by {stopped.by}{why}")
    for condition, words, among in (
        ("dark", "no optical power, or missing", bad),
        ("drifting", "drift, not committed", caution),
        ("degraded", "optical power too low", caution),
    ):
        ports = [
            f"{c.ocs} {c.ports}"
            for c in view.circuits
            if c.condition == condition
        ]
        if ports:
            among.append(
                f"{words}: {', '.join(ports[:6])}{_more(len(ports) - 6)}"
            )
    if (light := view.links.light) is not None:
        bad += [str(meeting) for meeting in light.meetings[:_MOST_MEETINGS]]
    locks = view.locked_ports.items()
    if locked := [
        f"{ocs}.{place}" for (ocs, _), at in locks for place, _ in at
    ]:
        caution.append(
            f"locked: {', '.join(locked[:6])}{_more(len(locked) - 6)}"
        )
    if view.status and view.status.drained:
        caution.append("the queue is drained: jobs do not start")
    for part in view.status.parts if view.status else ():
        if part.faults and not part.running:
            bad.append(f"controller, {part.name}: {part.last_fault}")
    return [(harmless(w), True) for w in bad] + [
        (harmless(w), False) for w in caution
    ]


def _more(count: int) -> str:
    return f" and {count} more" if count > 0 else ""


def circuit_row(circuit: Circuit, job_names: Mapping[str, str]) -> Row:
    """A circuit in a list."""
    return {
        "id": f"{circuit.ocs} {circuit.ports}",
        "channel": circuit.channel,
        "inp": circuit.ports.inp,
        "source": str(circuit.source or ""),
        "out": circuit.ports.out,
        "sink": str(circuit.sink or ""),
        "in_dbm": _dbm(circuit.in_dbm),
        "out_dbm": _dbm(circuit.out_dbm),
        "expected_dbm": _dbm(circuit.expected_dbm),
        "job": harmless(job_names.get(circuit.job, circuit.job)),
        "condition": circuit.said,
        "words": harmless(circuit.words),
    }


def _dbm(power: float | None) -> str:
    return "" if power is None else f"{power:.1f}"


def device_rows(view: LabView, name: str) -> list[Row]:
    """The ports of a device with a fibre: the other end, and what it is connected to."""
    rows = []
    by_port: dict[tuple[str, int], list[Circuit]] = {}
    for circuit in view.circuits:
        for port in {circuit.ports.inp, circuit.ports.out}:
            by_port.setdefault((circuit.ocs, port), []).append(circuit)
    for end, (other, fibre) in view.lab.fibre_ends.items():
        if end.device != name:
            continue
        light = ""
        peer = view.links.peer(end)
        if peer is not None:
            light = f"connected to {peer}"
        elif end.device in view.switch_maps:
            circuits = by_port.get((name, int(end.port)), ())
            parts = []
            for c in circuits:
                dbm = [
                    f"{power:.1f}"
                    for power in (c.in_dbm, c.out_dbm)
                    if power is not None
                ]
                powers = f" ({' → '.join(dbm)} dBm)" if dbm else ""
                parts.append(f"{c.ports} {c.said}{powers}")
            light = "; ".join(parts)
        at = (name, int(end.port)) if end.port.isdecimal() else ("", 0)
        locks = [lock for _, lock in view.locked_ports.get(at, ())]
        rows.append(
            {
                "id": end.port,
                "leads": str(other),
                "rate": rate(fibre.rate_bps)
                if fibre.rate_bps
                else "unlimited",
                "light": light or "no circuit",
                "lock": harmless("; ".join(map(_lock_words, locks))),
            }
        )
    return rows


def _lock_words(lock: Lock) -> str:
    by = f"claim {lock.claim}" if lock.claim else lock.by
    return f"{lock.kind} by {by} {lock.why}"


def claims_words(claims: Iterable[ClaimAnswer]) -> list[str]:
    """A line on each claim that waits or is held."""
    live = [c for c in claims if c.state in ("waiting", "held", "overdue")]
    return [
        harmless(
            f"claim {claim.name} is {claim.state}: {', '.join(claim.hosts)} "
            f"{claim.words or claim.why}"
        )
        for claim in live
    ]


def health_rows(view: LabView) -> list[Row]:
    """The state of the devices, the agents and the controller."""
    rows: list[Row] = []

    def add(
        name: str,
        kind: str,
        words: str,
        good: bool,
    ) -> None:
        rows.append(
            {
                "id": f"{kind} {name}",
                "name": name,
                "kind": kind,
                "good": good,
            }
        )
        rows[-1]["words"] = harmless(words)

    if view.status is None:
        return rows
    for ocs in view.status.circuit_switches:
        silence = (
            f"no answer since {when(ocs.since)}: {ocs.words}"
            if ocs.since
            else ""
        )
        add(
            ocs.name,
            "circuit switch",
            silence or "answers",
            bool(ocs.reachable),
        )
    for switch in view.status.switches:
        connected = switch.connected
        lacks = switch.lacks or ""
        words = "connected" if connected else switch.trouble or "not connected"
        words = "forwards by itself" if connected is None else lacks or words
        add(
            switch.name,
            "packet switch",
            words,
            connected is not False and not lacks,
        )
    for agent in view.status.agents:
        well = agent.reachable and not agent.problems
        words = "; ".join(agent.problems) or "answers"
        if not agent.reachable:
            words = (
                f"{agent.presence}, no answer for "
                f"{span(agent.silence_s)}: {agent.words}"
            )
        add(
            agent.server,
            "agent",
            words,
            bool(well),
        )
    parts = view.status.parts
    for part in parts:
        if part.faults:
            words = "running" if part.running else "restarting"
            words += f"; failed {part.faults} ×, last: {part.last_fault}"
            add(
                part.name,
                "part of the controller",
                words,
                bool(part.running),
            )
    whole = sum(not part.faults for part in parts)
    add(
        "controller",
        "process",
        f"{_counted(whole, 'part')} running without faults",
        True,
    )
    engine = view.status.engine
    words = f"running, engine {engine}" if engine else "not running"
    add(
        "OpenFlow speaker",
        "process",
        words,
        bool(engine),
    )
    return rows


def event_row(event: Mapping[str, Any]) -> Row:
    """An event in a list."""
    return {
        "id": event.get("number", f"skipped {event.get('first')}"),
        "at": when(event["at"]) if "at" in event else "",
        "words": harmless(" ".join(event_words(event).split())[:300]),
    }
