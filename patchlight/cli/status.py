"""``patchlight status``: how a lab is, on one screen."""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from patchlight.cli.job.listing import kinds_of_workers
from patchlight.console import rendering as out
from patchlight.console.connection import with_client
from patchlight.testbed.lab.reach import as_text
from patchlight.testbed.units import format_rate

if TYPE_CHECKING:
    from patchlight.client.client import ControllerClient
    from patchlight.testbed.wire.rest.lab import Status

_PREFIX = "patchlight_"

Sample = tuple[Mapping[str, str], float]
"""Labels and a value."""
Row = tuple[str, out.Coloured]
_MOST_NAMES = 4
_COUNTS = {
    "jobs": ("jobs", "state"),
    "queue": ("queue_jobs", "state"),
    "changes": ("reconfigurations", "state"),
    "cross_connects": ("ocs_cross_connects", "ocs"),
    "missing_or_unknown": ("ocs_drift_cross_connects", "ocs"),
}


@dataclass(frozen=True)
class Scrape:
    """Samples by the name of their metric, without ``patchlight_``; ``at`` is Unix time."""

    at: float
    samples: Mapping[str, list[Sample]]

    @classmethod
    def of(cls, client: ControllerClient) -> Scrape:
        """A controller's metrics now. It asks no device for them."""
        return cls.read(client.metrics(), time.time())

    @classmethod
    def read(cls, text: str, at: float) -> Scrape:
        """Metrics in Prometheus' text format."""
        from prometheus_client.parser import text_string_to_metric_families

        samples: defaultdict[str, list[Sample]] = defaultdict(list)
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name.startswith(_PREFIX):
                    name = sample.name.removeprefix(_PREFIX)
                    samples[name].append((sample.labels, sample.value))
        return cls(at, dict(samples))

    def of_metric(self, name: str, **labels: str) -> list[Sample]:
        """The samples of a metric that have these labels."""
        found = self.samples.get(name, [])
        return [
            s
            for s in found
            if all(s[0].get(k) == value for k, value in labels.items())
        ]

    def total(self, name: str, **labels: str) -> float:
        """Their sum; 0 if there are none."""
        return sum(value for _, value in self.of_metric(name, **labels))

    def by(
        self,
        name: str,
        label: str,
        **labels: str,
    ) -> dict[str, float]:
        """Their sums by the value of one label."""
        sums: defaultdict[str, float] = defaultdict(float)
        for said, value in self.of_metric(name, **labels):
            sums[said[label]] += value
        return dict(sums)


@click.command()
@out.listing_options
@with_client
def status(client: ControllerClient, as_json: bool) -> None:
    """Show the state of a lab: jobs, GPUs, circuits, packet switches, agents.

    Problems are red or yellow. For monitoring, the exit code is 1 if anything is red. --wide adds
    a table of every switch, agent and part of the controller. It contacts no device: use
    'patchlight ocs verify' to measure circuits.
    """
    found = Scrape.of(client)
    answer = client.status()
    rows = list(status_rows(found))
    kinds = kinds_of_workers(agent.workers for agent in answer.agents)
    if kinds:
        rows.append(("workers", out.Coloured(kinds, "good")))
    if cut := {each.host: each.reason for each in answer.hosts_without_link}:
        rows.append(
            ("hosts without a link", out.Coloured(as_text(cut), "bad"))
        )
    if as_json:
        lines = [
            {"of": of, "words": said.text, "meaning": said.meaning}
            for of, said in rows
        ]
        counts = {
            name: found.by(metric, label)
            for name, (metric, label) in _COUNTS.items()
        }
        out.print_json({"lines": lines, "counts": counts, **answer.as_json})
    else:
        title = f"lab {answer.lab}, Patchlight {answer.version}"
        out.Table(
            "part",
            "state",
            title=title,
            rows=rows,
        ).print()
        if out.is_wide():
            out.say("")
            _devices(answer).print()
            if uplinks := list(uplink_rows(found)):
                out.say("")
                numeric = out.numbers("sends", "share", "even")
                title = "Uplinks: equal-cost ports"
                out.Table(
                    "port",
                    "to",
                    *numeric,
                    title=title,
                    rows=uplinks,
                ).print()
    if any(said.meaning == "bad" for _, said in rows):
        sys.exit(1)


def status_rows(found: Scrape) -> Iterator[Row]:
    """A line on each part of the lab, in the colour of its meaning."""
    yield "jobs", _jobs(found)
    yield "queue", _queue(found)
    yield "GPUs", _gpus(found)
    names = sorted(found.by("ocs_up", "ocs"))
    troubled = [
        ocs for ocs in names if ocs_words(found, ocs).meaning != "good"
    ]
    shown = [*troubled, *(ocs for ocs in names if ocs not in troubled)][
        :_MOST_NAMES
    ]
    for ocs in shown:
        yield ocs, ocs_words(found, ocs)
    if len(names) > len(shown):
        left = len(names) - len(shown)
        bad = len(set(troubled) - set(shown))
        words = (
            f"{left} more, {bad} with problems"
            if bad
            else f"{left} more, no problem"
        )
        yield "circuit switches", out.Coloured(words, "bad" if bad else "good")
    yield "changes", _changes(found)
    if found.by("claim_age_seconds", "claim"):
        yield "claims", _claims(found)
    yield "packet switches", _packet_switches(found)
    yield (
        "agents",
        _all_there(
            found,
            "agent_up",
            "server",
            "answer",
        ),
    )
    if as_root := found.by("agent_root_workers", "server"):
        words = f"run as root on {_named(sorted(as_root))}"
        yield (
            "workers",
            out.Coloured(
                f"{words}: users who submit jobs can read all files on those servers",
                "caution",
            ),
        )
    yield "controller", _controller(found)


def _counted(counts: dict[str, float], *states: str) -> str:
    return (
        ", ".join(f"{counts[s]:.0f} {s}" for s in states if counts.get(s))
        or "none"
    )


def _jobs(found: Scrape) -> out.Coloured:
    counts = found.by("jobs", "state")
    at_work = _counted(
        counts,
        "running",
        "paused",
        "preparing",
        "reconfiguring",
    )
    over = _counted(
        counts,
        "done",
        "failed",
        "stopped",
    )
    words = (
        f"{'none running' if at_work == 'none' else at_work}; ended: {over}"
    )
    if {at_work, over} == {"none"}:
        words = "no jobs yet"
    return out.Coloured(words, "caution" if counts.get("paused") else "good")


def _queue(found: Scrape) -> out.Coloured:
    counts = found.by("queue_jobs", "state")
    words = "no job waiting"
    if sum(counts.values()):
        words = _counted(counts, "queued", "blocked")
        words += f", longest wait {out.span(found.total('queue_longest_wait_seconds'))}"
    if found.total("queue_drained"):
        return out.Coloured(f"{words}; drained: no job starts", "caution")
    return out.Coloured(words, "caution" if counts.get("blocked") else "good")


def _gpus(found: Scrape) -> out.Coloured:
    usable = found.by("gpu_up", "gpu")
    busy = found.by("gpu_utilization_ratio", "gpu")
    allocated = found.by("gpu_allocated", "gpu")
    words = f"{len(allocated)} of {len(usable | allocated)} in jobs"
    if told := [busy[gpu] for gpu in allocated if gpu in busy]:
        words += f", busy {sum(told) / len(told):.0%}".replace("%", " %")
    if power := found.total("gpu_power_watts"):
        words += f", together {power:.0f} W"
    if lost := [gpu for gpu, well in sorted(usable.items()) if not well]:
        return out.Coloured(f"{words}; unusable: {_named(lost)}", "bad")
    return out.Coloured(words, "good")


def ocs_words(found: Scrape, ocs: str) -> out.Coloured:
    """The state of one circuit switch."""
    if not found.total("ocs_up", ocs=ocs):
        return out.Coloured("does not answer", "bad")
    words = [
        f"answers, {found.total('ocs_cross_connects', ocs=ocs):.0f} cross-connects"
    ]
    verdicts = found.by("ocs_circuits", "verdict", ocs=ocs)
    drift = found.by("ocs_drift_cross_connects", "kind", ocs=ocs)
    bad = (
        [f"{verdicts['failed']:.0f} without optical power"]
        if verdicts.get("failed")
        else []
    )
    bad += [f"{drift['missing']:.0f} missing"] if drift.get("missing") else []
    bad += (
        [f"{drift['unknown']:.0f} not committed"]
        if drift.get("unknown")
        else []
    )
    caution = (
        [f"{verdicts['degraded']:.0f} degraded"]
        if verdicts.get("degraded")
        else []
    )
    quiet = []
    if locked := found.total("ocs_locked_ports", ocs=ocs):
        quiet.append(f"{out.counted(locked, 'port')} locked")
    if alarms := found.total("ocs_alarms_total", ocs=ocs):
        quiet.append(
            f"{out.counted(alarms, 'alarm')} since the controller started"
        )
    text = ", ".join(
        [
            *words,
            *bad,
            *caution,
            *quiet,
        ]
    )
    return out.Coloured(
        text, "bad" if bad else "caution" if caution else "good"
    )


def _changes(found: Scrape) -> out.Coloured:
    counts = found.by("reconfigurations", "state")
    words = _counted(
        counts,
        "committed",
        "refused",
        "rolled-back",
        "unknown",
    )
    if found.total("reconfiguration_in_progress"):
        words += "; one is in progress"
    if found.total("changes_stopped"):
        return out.Coloured(f"{words}; the stop button is pressed", "bad")
    return out.Coloured(words, "bad" if counts.get("unknown") else "good")


def _claims(found: Scrape) -> out.Coloured:
    words = []
    for state in ("waiting", "held", "overdue"):
        ages_s = found.by("claim_age_seconds", "claim", state=state)
        if ages_s:
            longest = out.span(max(ages_s.values()))
            words.append(f"{state}: {_named([*ages_s])}, for up to {longest}")
    overdue = found.by("claim_age_seconds", "claim", state="overdue")
    return out.Coloured("; ".join(words), "caution" if overdue else "good")


def _all_there(
    found: Scrape,
    metric: str,
    label: str,
    verb: str,
) -> out.Coloured:
    there = found.by(metric, label)
    if not there:
        return out.Coloured("none", "good")
    away = [name for name, is_there in sorted(there.items()) if not is_there]
    words = f"{len(there) - len(away)} of {len(there)} {verb}"
    return (
        out.Coloured(f"{words}; not: {_named(away)}", "bad")
        if away
        else out.Coloured(words, "good")
    )


def _packet_switches(found: Scrape) -> out.Coloured:
    said = _all_there(
        found,
        "packet_switch_connected",
        "switch",
        "connected",
    )
    if not found.by("packet_switch_connected", "switch"):
        said = out.Coloured("none that the controller programs", "good")
    lacking = found.by("packet_switch_lacking_entries", "switch")
    if full := [
        f"{name} lacks {n:.0f} entries" for name, n in lacking.items() if n
    ]:
        return out.Coloured(f"{said.text}; {_named(full)}", "bad")
    missing = found.by("packet_switch_missing_ports", "switch")
    if gone := [
        f"{name} lacks {out.counted(n, 'port')}"
        for name, n in missing.items()
        if n
    ]:
        return out.Coloured(f"{said.text}; {_named(gone)}", "bad")
    if mute := [
        n
        for n, up in found.by("packet_switch_snmp_up", "switch").items()
        if not up
    ]:
        return out.Coloured(
            f"{said.text}; no SNMP from {_named(mute)}", "caution"
        )
    return said


def _controller(found: Scrape) -> out.Coloured:
    faults = {
        **found.by("part_faults_total", "part"),
        **found.by("policy_faults_total", "policy"),
    }
    failed = [
        f"{name} failed {out.counted(count, 'time')}"
        for name, count in faults.items()
        if count
    ]
    if not found.total("speaker_up"):
        return out.Coloured(
            "; ".join(["its OpenFlow speaker is down", *failed]), "bad"
        )
    if restarts := found.total("speaker_restarts_total"):
        failed.append(
            f"the OpenFlow speaker restarted {out.counted(restarts, 'time')}"
        )
    return out.Coloured(
        "; ".join(["runs", *failed]), "caution" if failed else "good"
    )


def _named(names: list[str]) -> str:
    left_out = len(names) - _MOST_NAMES
    more = f" and {left_out} more" if left_out > 0 else ""
    return ", ".join(names[:_MOST_NAMES]) + more


def uplink_rows(found: Scrape) -> Iterator[tuple[str, ...]]:
    """What goes by each of several equally near ports, its share, and an even one."""
    samples = found.of_metric("packet_switch_uplink_transmit_bytes_per_second")
    totals = defaultdict[tuple[str, str], float](float)
    for labels, rate in samples:
        totals[labels["switch"], labels["equal"]] += rate
    for labels, rate in samples:
        total = totals[labels["switch"], labels["equal"]]
        equal = labels["equal"].split(",")
        share = f"{rate / total:.1%}".replace("%", " %") if total else ""
        even = f"{1 / len(equal):.1%}".replace("%", " %")
        port = f"{labels['switch']}.{labels['port']}"
        sends = format_rate(round(8 * rate))
        yield port, labels["peer"], sends, share, even


def _devices(answer: Status) -> out.Table:
    title = f"lab {answer.lab}, engine {answer.engine}"
    table = out.Table(
        out.Column("device", whole=True),
        "kind",
        "state",
        title=title,
    )
    for switch in answer.switches:
        state = (
            out.Coloured("connected", "good")
            if switch.connected
            else out.Coloured("away", "bad")
        )
        if switch.snmp_problem:
            state = out.Coloured(
                f"{state.text}; {switch.snmp_problem}", "caution"
            )
        if switch.connected is None:
            state = out.Coloured("not controlled by Patchlight", "good")
        if switch.without_groups:
            text = f"{state.text}; fixed paths, as it has no select groups"
            state = out.Coloured(text, "caution")
        if switch.ports_down:
            ports = ", ".join(map(str, switch.ports_down))
            state = out.Coloured(
                f"{state.text}; no link at port {ports}", "caution"
            )
        if switch.trouble:
            state = out.Coloured(f"away: {switch.trouble}", "bad")
        if foreign := switch.foreign:
            more = f" and {len(foreign) - 1} more" if foreign[1:] else ""
            state = out.Coloured(
                f"connected; foreign entries: {foreign[0]}{more}", "caution"
            )
        if switch.lacks:
            state = out.Coloured(f"connected; {switch.lacks}", "bad")
        if missing := switch.ports_missing:
            more = f" and {len(missing) - 1} more" if missing[1:] else ""
            state = out.Coloured(f"{state.text}; {missing[0]}{more}", "bad")
        if switch.second_from:
            state = out.Coloured(
                f"connected; another from {switch.second_from} is refused",
                "bad",
            )
        told = switch.datapath_id
        kind = (
            f"packet switch ({switch.driver})"
            if told is None
            else f"packet switch {told:#x}"
        )
        table.add_row(switch.name, kind, state)
    for ocs in answer.circuit_switches:
        reach = out.Coloured("answers", "good")
        if not ocs.reachable:
            silent_s = time.time() - (ocs.since or time.time())
            reach = out.Coloured(
                f"silent for {silent_s:.0f} s: {ocs.words}", "bad"
            )
        table.add_row(ocs.name, "circuit switch", reach)
    for agent in answer.agents:
        words = "; ".join(("answers", *agent.problems))
        if not agent.reachable:
            why = f": {agent.words}" if agent.words else ""
            words = (
                f"{agent.presence}, silent for {agent.silence_s:.0f} s{why}"
            )
        well = agent.reachable and not agent.problems
        table.add_row(
            agent.server,
            "agent",
            out.Coloured(words, "good" if well else "bad"),
        )
    for words in answer.nic_differences:
        table.add_row("NICs", "on one circuit", out.Coloured(words, "caution"))
    light = answer.light
    if light.defragment:
        seen = (
            f", last at {out.when(light.looked_at)}" if light.looked_at else ""
        )
        table.add_row(
            "circuits", "of running jobs", f"rewired{seen}: {light.words}"
        )
    if answer.drained:
        table.add_row(
            "queue",
            "of jobs",
            out.Coloured("drained: no job starts", "caution"),
        )
    for policy in answer.policy_faults:
        words = f"failed {out.counted(policy.faults, 'time')}: {policy.last}"
        table.add_row(
            policy.policy,
            f"{policy.kind} policy",
            out.Coloured(words, "bad"),
        )
    for part in answer.parts:
        if part.faults:
            now = "runs" if part.running else "restarts"
            words = (
                f"{now}; failed {out.counted(part.faults, 'time')}, "
                f"last: {part.last_fault}"
            )
            table.add_row(
                part.name,
                "part of the controller",
                out.Coloured(words, "bad"),
            )
    return table
