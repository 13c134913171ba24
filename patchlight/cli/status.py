"""``patchlight status``: how a lab is, on one screen."""

from collections.abc import Iterator
from typing import Any

import click

from patchlight.cli.scrape import Scrape
from patchlight.console.connection import connect, controller_options
from patchlight.console.rendering import Coloured, Table, listing_options, print_json, span

Row = tuple[str, Coloured]
_MOST_NAMES = 4


@click.command()
@listing_options
@controller_options
def status(lab_name: str | None, address: str | None, as_json: bool) -> None:
    """How the lab is, on one screen: jobs, GPUs, light, packet switches, agents.

    What is not well is red or yellow. No device is asked for it: 'patchlight ocs verify' does
    that, and 'patchlight controller status' says of each device how it is.
    """
    with connect(lab_name, address) as client:
        found = Scrape.of(client)
    rows = list(status_rows(found))
    if as_json:
        print_json(_as_json(rows))
        return
    table = Table("part", "how it is", title=_title(found))
    for what, words in rows:
        table.add_row(what, words)
    table.print()


def _title(found: Scrape) -> str:
    (labels, _), *_ = found.of_metric("controller_info") or [({}, 1.0)]
    return f"lab {labels.get('lab', '?')}, Patchlight {labels.get('version', '?')}"


def _as_json(rows: list[Row]) -> list[dict[str, Any]]:
    return [{"of": of, "words": words.text, "meaning": words.meaning} for of, words in rows]


def status_rows(found: Scrape) -> Iterator[Row]:
    """What there is to say, each with what that means."""
    yield "jobs", _jobs(found)
    yield "queue", _queue(found)
    yield "GPUs", _gpus(found)
    names = sorted(found.by("ocs_up", "ocs"))
    troubled = [ocs for ocs in names if ocs_words(found, ocs).meaning != "good"]
    shown = [*troubled, *(ocs for ocs in names if ocs not in troubled)][:_MOST_NAMES]
    for ocs in shown:
        yield ocs, ocs_words(found, ocs)
    if len(names) > len(shown):
        left = len(names) - len(shown)
        bad = len(set(troubled) - set(shown))
        words = f"{left} more, {bad} of them not well" if bad else f"{left} more, all well"
        yield "circuit switches", Coloured(words, "bad" if bad else "good")
    yield "changes", _changes(found)
    yield "packet switches", _all_there(found, "packet_switch_connected", "switch", "connected")
    yield "agents", _all_there(found, "agent_up", "server", "answer")
    if as_root := found.by("agent_root_workers", "server"):
        words = (
            f"run as root on {_named(sorted(as_root))}: whoever submits jobs reads all files there"
        )
        yield "workers", Coloured(words, "caution")
    yield "controller", _controller(found)


def _counted(counts: dict[str, float], *states: str) -> str:
    return ", ".join(f"{counts[s]:.0f} {s}" for s in states if counts.get(s)) or "none"


def _jobs(found: Scrape) -> Coloured:
    counts = found.by("jobs", "state")
    at_work = _counted(counts, "running", "paused", "preparing", "reconfiguring")
    over = _counted(counts, "done", "failed", "stopped")
    words = f"{'none runs' if at_work == 'none' else at_work}; over: {over}"
    return Coloured(words, "caution" if counts.get("paused") else "good")


def _queue(found: Scrape) -> Coloured:
    counts = found.by("queue_jobs", "state")
    words = "no job waits"
    if sum(counts.values()):
        words = _counted(counts, "queued", "blocked")
        words += f", the first for {span(found.total('queue_longest_wait_seconds'))}"
    if found.total("queue_drained"):
        return Coloured(f"{words}; drained: no job is started", "caution")
    return Coloured(words, "caution" if counts.get("blocked") else "good")


def _gpus(found: Scrape) -> Coloured:
    usable, busy = found.by("gpu_up", "gpu"), found.by("gpu_utilization_ratio", "gpu")
    allocated = found.by("gpu_allocated", "gpu")
    words = f"{len(allocated)} of {len(usable | allocated)} in jobs"
    if told := [busy[gpu] for gpu in allocated if gpu in busy]:
        words += f", busy {sum(told) / len(told):.0%}".replace("%", " %")
    if power := found.total("gpu_power_watts"):
        words += f", all draw {power:.0f} W"
    lost = [gpu for gpu, well in sorted(usable.items()) if not well]
    if lost:
        return Coloured(f"{words}; cannot be used: {_named(lost)}", "bad")
    return Coloured(words, "good")


def ocs_words(found: Scrape, ocs: str) -> Coloured:
    """How one circuit switch is."""
    if not found.total("ocs_up", ocs=ocs):
        return Coloured("does not answer", "bad")
    words = [f"answers, {found.total('ocs_cross_connects', ocs=ocs):.0f} cross-connects"]
    verdicts = found.by("ocs_circuits", "verdict", ocs=ocs)
    drift = found.by("ocs_drift_cross_connects", "kind", ocs=ocs)
    bad = [f"{verdicts['failed']:.0f} dark"] if verdicts.get("failed") else []
    bad += [f"{drift['missing']:.0f} missing"] if drift.get("missing") else []
    caution = [f"{verdicts['degraded']:.0f} degraded"] if verdicts.get("degraded") else []
    caution += [f"{drift['unknown']:.0f} that nobody committed"] if drift.get("unknown") else []
    quiet = []
    if locked := found.total("ocs_locked_ports", ocs=ocs):
        quiet.append(f"{locked:.0f} ports locked")
    if alarms := found.total("ocs_alarms_total", ocs=ocs):
        quiet.append(f"{alarms:.0f} alarms since the controller started")
    text = ", ".join([*words, *bad, *caution, *quiet])
    return Coloured(text, "bad" if bad else "caution" if caution else "good")


def _changes(found: Scrape) -> Coloured:
    counts = found.by("reconfigurations", "state")
    words = _counted(counts, "committed", "refused", "rolled-back", "unknown")
    if found.total("reconfiguration_in_progress"):
        words += "; one is under way"
    if found.total("changes_stopped"):
        return Coloured(f"{words}; the stop button is pressed", "bad")
    return Coloured(words, "bad" if counts.get("unknown") else "good")


def _all_there(found: Scrape, metric: str, label: str, verb: str) -> Coloured:
    there = found.by(metric, label)
    away = [name for name, is_there in sorted(there.items()) if not is_there]
    words = f"{len(there) - len(away)} of {len(there)} {verb}"
    return Coloured(f"{words}; not: {_named(away)}", "bad") if away else Coloured(words, "good")


def _controller(found: Scrape) -> Coloured:
    faults = {**found.by("part_faults_total", "part"), **found.by("policy_faults_total", "policy")}
    failed = [f"{name} failed {count:.0f} times" for name, count in faults.items() if count]
    if not found.total("speaker_up"):
        return Coloured("; ".join(["its OpenFlow speaker does not run", *failed]), "bad")
    restarts = found.total("speaker_restarts_total")
    if restarts:
        failed.append(f"the OpenFlow speaker was started again {restarts:.0f} times")
    return Coloured("; ".join(["runs", *failed]), "caution" if failed else "good")


def _named(names: list[str]) -> str:
    left_out = len(names) - _MOST_NAMES
    more = f" and {left_out} more" if left_out > 0 else ""
    return ", ".join(names[:_MOST_NAMES]) + more
