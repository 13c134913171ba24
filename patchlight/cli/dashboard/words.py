"""What tables and cards of the dashboard say: rows and lines of text, made of values."""

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from patchlight.cli.dashboard.lab_view import Circuit, LabView
from patchlight.cli.rendering import harmless, span, when
from patchlight.testbed.units import format_rate, format_time

Row = dict[str, Any]
Answer = Mapping[str, Any]

# Of a change's stages, those in which the light of what it moves is away.
_DARK_STAGES = ("break", "make", "verify")


def ago(at: float, now: float | None = None) -> str:
    """How long ago a Unix time was, as nobody needs to know exactly."""
    return f"{span(max(0.0, (time.time() if now is None else now) - at))} ago"


def job_row(job: Answer, view: LabView, iteration_s: float | None, sends_bps: float | None) -> Row:
    """A job in a list; ``iteration_s`` and ``sends_bps`` were measured, ``None`` without."""
    wanted, done = job["spec"]["iterations"], job["iterations_done"]
    predicted_s = job.get("predicted_iteration_s")
    return {
        "id": job["id"],
        "name": harmless(job["spec"]["name"]),
        "colour": view.colours.get(job["id"], ""),
        "state": job["state"],
        "why": harmless(job["message"]),
        "user": harmless(job["by"]),
        "gpus": ", ".join(host.partition(".")[2] or host for host in job["hosts"]),
        "done": f"{done} of {wanted}" if wanted else str(done),
        "iteration": "" if iteration_s is None else format_time(iteration_s),
        "predicted": "" if predicted_s is None else format_time(predicted_s),
        "sends": "" if sends_bps is None else format_rate(round(sends_bps)),
        "submitted": when(job["submitted_at"]),
    }


def measured_iteration_s(reports: Sequence[Answer]) -> float | None:
    """The mean of the latest iterations' times; ``None`` where none were reported."""
    latest = [r["compute_s"] + r["communication_s"] for r in list(reports)[-40:]]
    return fmean(latest) if latest else None


def change_row(change: Answer) -> Row:
    """A change of circuits in a list."""
    began, ended = change["started_at"], change["finished_at"]
    return {
        "id": change["id"],
        "at": when(began),
        "state": "under way" if change["state"] == "intent" else change["state"],
        "by": harmless(change["by"]),
        "why": harmless(change["why"]),
        "took": "" if ended is None else format_time(max(1e-6, ended - began)),
        "dark": format_time(dark) if (dark := dark_s(change)) else "",
        "stages": stages_words(change),
        "changes": changes_words(change["changes"]),
        "message": harmless(change["message"]),
        "can_undo": change["state"] == "committed" and bool(change["changes"]),
    }


def dark_s(change: Answer) -> float:
    """For how long the light of what a change moved was away, in seconds."""
    return float(sum(change["stages_s"].get(stage, 0.0) for stage in _DARK_STAGES))


def stages_words(change: Answer) -> str:
    """What each stage of a change took."""
    stages = change["stages_s"].items()
    return ", ".join(f"{name} {format_time(max(1e-6, spent))}" for name, spent in stages)


def changes_words(changes: Mapping[str, Answer]) -> str:
    """The cross-connects that a change breaks and makes, by circuit switch."""
    words = []
    for ocs, change in changes.items():
        parts = [
            f"{ocs}:",
            *(f"−{c}" for c in change["breaks"]),
            *(f"+{c}" for c in change["makes"]),
        ]
        words.append(" ".join(parts))
    return "; ".join(words)


def last_change_lines(view: LabView, now: float) -> list[str]:
    """What the latest change of circuits was, who wanted it, and what it cost."""
    change = view.last_change
    if change is None:
        return ["no circuit was changed yet"]
    by = f" by {harmless(change['by'])}" if change["by"] else ""
    lines = [f"{change['id']}: {change['state']} {ago(change['finished_at'], now)}{by}"]
    lines += [harmless(change["why"])] if change["why"] else []
    whole_s = change["finished_at"] - change["started_at"]
    lines.append(
        f"took {format_time(max(1e-6, whole_s))}, light was away "
        f"{format_time(max(1e-6, dark_s(change)))}"
    )
    lines.append(stages_words(change))
    lines += [harmless(change["message"])] if change["state"] != "committed" else []
    return lines


def worries(view: LabView, stopped: Answer | None, trouble: str) -> list[str]:
    """What is not well, what is worst first."""
    found = [trouble] if trouble else []
    if stopped is not None:
        why = f": {stopped['why']}" if stopped["why"] else ""
        found.append(f"the stop button is pressed by {stopped['by']}{why}")
    found += [f"{name} {words}" for name, words in view.silent.items()]
    for condition in ("dark", "drifting", "degraded"):
        bad = [f"{c.ocs} {c.ports}" for c in view.circuits if c.condition == condition]
        if bad:
            found.append(f"{condition}: {', '.join(bad[:6])}{_more(len(bad) - 6)}")
    if locked := [f"{ocs}.{port}" for ocs, port in view.locked_ports]:
        found.append(f"locked: {', '.join(locked[:6])}{_more(len(locked) - 6)}")
    if view.status.get("drained"):
        found.append("the queue is drained: no job is started")
    for part in view.status.get("parts", ()):
        if part["faults"] and not part["running"]:
            found.append(f"part {part['name']} of the controller failed: {part['last_fault']}")
    return [harmless(words) for words in found]


def _more(count: int) -> str:
    return f" and {count} more" if count > 0 else ""


def circuit_row(circuit: Circuit, job_name: Callable[[str], str] = str) -> Row:
    """A circuit in a list."""
    return {
        "id": f"{circuit.ocs} {circuit.ports}",
        "inp": circuit.ports.inp,
        "source": str(circuit.source or ""),
        "out": circuit.ports.out,
        "sink": str(circuit.sink or ""),
        "in_dbm": _dbm(circuit.in_dbm),
        "out_dbm": _dbm(circuit.out_dbm),
        "expected_dbm": _dbm(circuit.expected_dbm),
        "job": job_name(circuit.job) if circuit.job else "",
        "condition": circuit.condition,
        "words": harmless(circuit.words),
    }


def _dbm(power: float | None) -> str:
    return "" if power is None else f"{power:.1f}"


def device_rows(view: LabView, name: str) -> list[Row]:
    """The ports of a device that have a fibre: where it leads, and what light is on it."""
    rows = []
    by_port: dict[tuple[str, int], list[Circuit]] = {}
    for circuit in view.circuits:
        for port in set(circuit.ports):
            by_port.setdefault((circuit.ocs, port), []).append(circuit)
    for end, (other, fibre) in view.lab.fibre_ends.items():
        if end.device != name:
            continue
        light, peer = "", view.links.peer(end)
        if peer is not None:
            light = f"lit to {peer}"
        elif end.device in view.lab.circuit_fibres:
            circuits = by_port.get((name, int(end.port)), ())
            light = "; ".join(f"{c.ports} {c.condition}{_powers(c)}" for c in circuits)
        lock = view.locked_ports.get((name, int(end.port)) if end.port.isdecimal() else ("", 0))
        rows.append(
            {
                "id": end.port,
                "leads": str(other),
                "rate": format_rate(fibre.rate_bps),
                "light": light or "dark",
                "lock": harmless(f"{lock['kind']} by {lock['by']} {lock['why']}") if lock else "",
            }
        )
    return rows


def _powers(circuit: Circuit) -> str:
    powers = [f"{p:.1f}" for p in (circuit.in_dbm, circuit.out_dbm) if p is not None]
    return f" ({' → '.join(powers)} dBm)" if powers else ""


def health_rows(view: LabView) -> list[Row]:
    """Who of the lab's devices, agents and the controller's parts is there, and how."""
    rows: list[Row] = []

    def add(name: str, kind: str, words: str, good: bool) -> None:
        rows.append({"id": f"{kind} {name}", "name": name, "kind": kind, "good": good})
        rows[-1]["words"] = harmless(words)

    for ocs in view.status.get("circuit_switches", ()):
        silence = f"silent since {when(ocs['since'])}: {ocs['words']}" if ocs["since"] else ""
        add(ocs["name"], "circuit switch", silence or "answers", bool(ocs["reachable"]))
    for switch in view.status.get("switches", ()):
        connected = bool(switch["connected"])
        add(switch["name"], "packet switch", "connected" if connected else "away", connected)
    for agent in view.status.get("agents", ()):
        well = agent["reachable"] and not agent["problems"]
        words = "; ".join(("answers", *agent["problems"]))
        if not agent["reachable"]:
            words = f"{agent['presence']}, silent for {span(agent['silence_s'])}: {agent['words']}"
        add(agent["server"], "agent", words, bool(well))
    for part in view.status.get("parts", ()):
        words = "runs" if part["running"] else "begins again"
        if part["faults"]:
            words += f"; failed {part['faults']} times, last: {part['last_fault']}"
        add(part["name"], "part of the controller", words, bool(part["running"]))
    engine = view.status.get("engine")
    add(
        "OpenFlow speaker",
        "process",
        f"engine {engine}" if engine else "does not run",
        bool(engine),
    )
    return rows


def event_row(event: Answer) -> Row:
    """Something that happened, in a list."""
    said = {
        k: v for k, v in event.items() if k not in ("number", "at", "kind") and v not in ("", None)
    }
    words = ", ".join(f"{key}: {value}" for key, value in said.items())
    return {
        "id": event.get("number", f"skipped {event.get('first')}"),
        "at": when(event["at"]) if "at" in event else "",
        "kind": event["kind"],
        "words": harmless(words[:300]),
    }
