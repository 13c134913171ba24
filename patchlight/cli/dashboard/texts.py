"""The rows and lines of text in the dashboard's tables and cards."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from patchlight.cli.dashboard.lab_view import Circuit, LabView
from patchlight.cli.ocs import progress_line
from patchlight.console.rendering import harmless, span, when
from patchlight.testbed.units import format_rate, format_time

Row = dict[str, Any]
Answer = Mapping[str, Any]

_MOST_MEETINGS, _MOST_GPUS = 3, 8
# The stages of a change in which the circuits that it moves are down.
_DARK_STAGES = ("break", "make", "verify")
# In the order in which a change passes them.
_STAGES = ("waiting", "read", "plan", "check", "drain", *_DARK_STAGES, "flows", "undrain")


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
        "gpus": gpus_words(job["hosts"]),
        "done": f"{done} of {wanted}" if wanted else str(done),
        "iteration": "" if iteration_s is None else format_time(iteration_s),
        "predicted": "" if predicted_s is None else format_time(predicted_s),
        "sends": "" if sends_bps is None else format_rate(round(sends_bps)),
        "submitted": when(job["submitted_at"]),
    }


def gpus_words(hosts: Sequence[str]) -> str:
    """The GPUs of a job, without their servers where that says which they are; the first few."""
    short = [host.partition(".")[2] or host for host in hosts]
    names = short if len(set(short)) == len(short) else hosts
    return ", ".join(names[:_MOST_GPUS]) + _more(len(hosts) - _MOST_GPUS)


def light_words(job: Answer, view: LabView) -> str:
    """Where a job's NICs are connected to, and by which devices."""
    ways: dict[str, int] = {}
    for name in job["hosts"]:
        host = view.lab.host_names.get(name)
        if host is None:
            continue
        path, sends = view.links.paths.get(host.endpoint), host.nic.transceiver
        way = f"{sends.channel} THz" if sends is not None else "dark"
        if path is not None:
            through = ", ".join(device for device, _ in path.through)
            way = f"{path.sink.device}" + (f" by {through}" if through else "")
        ways[way] = ways.get(way, 0) + 1
    counted = {way: count if len(ways) > 1 else 1 for way, count in ways.items()}
    return "; ".join(way if count == 1 else f"{count} × {way}" for way, count in counted.items())


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
        "stages": _stages(change),
        "changes": changes_words(change["changes"]),
        "message": harmless(change["message"]),
        "can_undo": change["state"] == "committed"
        and bool(change["changes"])
        and "undone_by" not in change,
    }


def dark_s(change: Answer) -> float:
    """For how long the circuits that a change moved were down, in seconds."""
    return float(sum(change["stages_s"].get(stage, 0.0) for stage in _DARK_STAGES))


def _stages(change: Answer, at_least_s: float = 0.0) -> str:
    stages = [(name, s) for name, s in change["stages_s"].items() if s >= at_least_s]
    return ", ".join(f"{name} {format_time(max(1e-6, spent))}" for name, spent in stages)


def stage_rows(change: Answer, now: float) -> list[tuple[str, str]]:
    """The stages of a change as text, and whether each is ``done``, ``now`` or ``next``."""
    spent, progress = change["stages_s"], change.get("progress")
    current = progress["stage"] if progress else ""
    rows = [
        (f"{name} {format_time(max(1e-6, took_s))}", "done")
        for name, took_s in spent.items()
        if name != current
    ]
    if progress:
        so_far = span(max(0.0, now - progress["since"]))
        rows.append((f"{progress_line(progress)}, for {so_far}", "now"))
    if current in _STAGES:
        idle = set(spent)
        if planned := change["changes"].values():
            idle |= {
                stage
                for stage, key in (("break", "breaks"), ("make", "makes"))
                if not any(each[key] for each in planned)
            }
        rows += [
            (name, "next") for name in _STAGES[_STAGES.index(current) + 1 :] if name not in idle
        ]
    return rows


def changes_words(changes: Mapping[str, Answer]) -> str:
    """The cross-connects that a change breaks and makes, by circuit switch."""
    return "; ".join(
        " ".join([f"{ocs}:", *(f"−{c}" for c in each["breaks"]), *(f"+{c}" for c in each["makes"])])
        for ocs, each in changes.items()
    )


def last_change_lines(view: LabView, now: float) -> list[str]:
    """The latest change of circuits, its user, and its times."""
    change = view.last_change
    lines = [
        f"change {c['id']} is under way: {progress_line(c['progress'])}"
        for c in view.under_way
        if "progress" in c
    ]
    if change is None:
        return lines or ["no circuit was changed yet"]
    by = f" by {harmless(change['by'])}" if change["by"] else ""
    ago = span(max(0.0, now - change["finished_at"]))
    lines.append(f"change {change['id']}: {change['state']} {ago} ago{by}")
    lines += [harmless(change["why"])] if change["why"] else []
    whole_s = change["finished_at"] - change["started_at"]
    broken, made = (
        sum(len(each[key]) for each in change["changes"].values()) for key in ("breaks", "makes")
    )
    lines.append(
        f"{broken} cross-connects broken and {made} made in {format_time(max(1e-6, whole_s))}; "
        f"their light was away {format_time(max(1e-6, dark_s(change)))}"
    )
    stages = _stages(change, 1e-3)
    lines += [f"of that {stages}"] if stages else []
    lines += [harmless(change["message"])] if change["state"] != "committed" else []
    return lines


def worries(view: LabView, stopped: Answer | None, trouble: str) -> list[str]:
    """The faults, the worst first."""
    found = [trouble] if trouble else []
    if stopped is not None:
        why = f": {stopped['why']}" if stopped["why"] else ""
        found.append(f"the stop button is pressed by {stopped['by']}{why}")
    found += [f"{name} {words}" for name, words in view.silent.items()]
    for condition in ("dark", "drifting", "degraded"):
        bad = [f"{c.ocs} {c.ports}" for c in view.circuits if c.condition == condition]
        if bad:
            found.append(f"{condition}: {', '.join(bad[:6])}{_more(len(bad) - 6)}")
    locks = view.locked_ports.items()
    if (light := view.links.light) is not None:
        found += [str(meeting) for meeting in light.meetings[:_MOST_MEETINGS]]
    if locked := [f"{ocs}.{place}" for (ocs, _), at in locks for place, _ in at]:
        found.append(f"locked: {', '.join(locked[:6])}{_more(len(locked) - 6)}")
    if view.status.get("drained"):
        found.append("the queue is drained: no job is started")
    for part in view.status.get("parts", ()):
        if part["faults"] and not part["running"]:
            found.append(f"part {part['name']} of the controller failed: {part['last_fault']}")
    return [harmless(words) for words in found]


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
        "condition": circuit.condition,
        "words": harmless(circuit.words),
    }


def _dbm(power: float | None) -> str:
    return "" if power is None else f"{power:.1f}"


def device_rows(view: LabView, name: str) -> list[Row]:
    """The ports of a device that have a fibre: its far end, and its light."""
    rows = []
    by_port: dict[tuple[str, int], list[Circuit]] = {}
    for circuit in view.circuits:
        for port in {circuit.ports.inp, circuit.ports.out}:
            by_port.setdefault((circuit.ocs, port), []).append(circuit)
    for end, (other, fibre) in view.lab.fibre_ends.items():
        if end.device != name:
            continue
        light, peer = "", view.links.peer(end)
        if peer is not None:
            light = f"lit to {peer}"
        elif end.device in view.switch_maps:
            circuits = by_port.get((name, int(end.port)), ())
            parts = []
            for c in circuits:
                dbm = [f"{power:.1f}" for power in (c.in_dbm, c.out_dbm) if power is not None]
                powers = f" ({' → '.join(dbm)} dBm)" if dbm else ""
                parts.append(f"{c.ports} {c.condition}{powers}")
            light = "; ".join(parts)
        at = (name, int(end.port)) if end.port.isdecimal() else ("", 0)
        locks = [lock for _, lock in view.locked_ports.get(at, ())]
        rows.append(
            {
                "id": end.port,
                "leads": str(other),
                "rate": format_rate(fibre.rate_bps),
                "light": light or "dark",
                "lock": harmless("; ".join(f"{k['kind']} by {k['by']} {k['why']}" for k in locks)),
            }
        )
    return rows


def health_rows(view: LabView) -> list[Row]:
    """The state of the lab's devices, its agents, and the controller's parts."""
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
    words = f"engine {engine}" if engine else "does not run"
    add("OpenFlow speaker", "process", words, bool(engine))
    return rows


def event_row(event: Answer) -> Row:
    """An event in a list."""
    words = ", ".join(
        f"{key}: {value}"
        for key, value in event.items()
        if key not in ("number", "at", "kind") and value not in ("", None)
    )
    return {
        "id": event.get("number", f"skipped {event.get('first')}"),
        "at": when(event["at"]) if "at" in event else "",
        "kind": event["kind"],
        "words": harmless(words[:300]),
    }
