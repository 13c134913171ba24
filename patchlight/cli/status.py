"""``patchlight status`` and ``top``: a lab on one screen, from its controller's metrics."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import click

from patchlight.console import rendering as out
from patchlight.console.connection import patiently, with_client
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.reach import as_text
from patchlight.testbed.units import format_rate, parse_time

if TYPE_CHECKING:
    from patchlight.client.client import ControllerClient

_PREFIX = "patchlight_"
_LEAST_S, _LOOKS = 0.5, 5
# Headings, lines between tables, and the lines that count the rows left out.
_LINES_AROUND = 14

Sample = tuple[Mapping[str, str], float]
"""Labels and a value."""
Row = tuple[str, out.Coloured]
_MOST_NAMES = 4


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
        return [s for s in found if all(s[0].get(k) == value for k, value in labels.items())]

    def total(self, name: str, **labels: str) -> float:
        """Their sum; 0 if there are none."""
        return sum(value for _, value in self.of_metric(name, **labels))

    def by(self, name: str, label: str, **labels: str) -> dict[str, float]:
        """Their sums by the value of one label."""
        sums: defaultdict[str, float] = defaultdict(float)
        for said, value in self.of_metric(name, **labels):
            sums[said[label]] += value
        return dict(sums)


@dataclass(frozen=True)
class JobPace:
    """How a job is doing. Rates are over the time between two scrapes, ``None`` without two.

    ``communication`` and ``utilization`` are shares from 0 to 1.
    """

    job_id: str
    name: str
    gpus: tuple[str, ...]
    paused: bool
    done: int
    wanted: int
    iterations_per_s: float | None = None
    communication: float | None = None
    sent_bps: float | None = None
    utilization: float | None = None


def job_paces(now: Scrape, before: Scrape | None) -> list[JobPace]:
    """The pace of each running job between two scrapes."""
    grown = {
        name: _growth(now, before, f"worker_{name}_total")
        for name in ("iterations", "sent_bytes", "compute_seconds", "communication_seconds")
    }
    seconds = now.at - before.at if before is not None else 0.0
    workers = now.by("job_workers", "job_id")
    paused, done = now.by("job_paused", "job_id"), now.by("job_iterations_done", "job_id")
    wanted, busy = now.by("job_iterations_wanted", "job_id"), now.by("gpu_utilization_ratio", "gpu")
    paces = []
    for labels, _ in now.of_metric("job_info"):
        job_id = labels["job_id"]
        gpus = tuple(said["gpu"] for said, _ in now.of_metric("gpu_allocated", job_id=job_id))
        told = [busy[gpu] for gpu in gpus if gpu in busy]
        iterations, sent, compute_s, communication_s = (
            grown[name].get(job_id)
            for name in ("iterations", "sent_bytes", "compute_seconds", "communication_seconds")
        )
        both_s = (compute_s or 0.0) + (communication_s or 0.0)
        rates = seconds > 0 and iterations is not None
        paces.append(
            JobPace(
                job_id,
                labels["name"],
                gpus,
                bool(paused.get(job_id)),
                round(done.get(job_id, 0)),
                round(wanted.get(job_id, 0)),
                (iterations or 0) / max(1, workers[job_id]) / seconds if rates else None,
                (communication_s or 0.0) / both_s if both_s else None,
                8 * (sent or 0.0) / seconds if rates else None,
                sum(told) / len(told) if told else None,
            )
        )
    return paces


def _growth(now: Scrape, before: Scrape | None, name: str) -> dict[str, float]:
    """By how much counters of workers grew, by job; of those that both scrapes have."""
    if before is None:
        return {}
    had = {tuple(sorted(labels.items())): value for labels, value in before.of_metric(name)}
    grown: defaultdict[str, float] = defaultdict(float)
    for labels, value in now.of_metric(name):
        earlier = had.get(tuple(sorted(labels.items())))
        if earlier is not None:
            grown[labels["job_id"]] += max(0.0, value - earlier)
    return dict(grown)


@click.command()
@out.listing_options
@with_client
def status(client: ControllerClient, as_json: bool) -> None:
    """How the lab is, on one screen: jobs, GPUs, light, packet switches, agents.

    What is not well is red or yellow. No device is asked for it: 'patchlight ocs verify' does
    that, and 'patchlight controller status' says of each device how it is.
    """
    found = Scrape.of(client)
    rows = list(status_rows(found))
    if cut := {each["host"]: each["reason"] for each in client.status()["hosts_without_link"]}:
        rows.append(("hosts without a link", out.Coloured(as_text(cut), "bad")))
    (labels, _), *_ = found.of_metric("controller_info") or [({}, 1.0)]
    title = f"lab {labels.get('lab', '?')}, Patchlight {labels.get('version', '?')}"
    answer = [{"of": of, "words": words.text, "meaning": words.meaning} for of, words in rows]
    out.print_answer(
        answer, out.Table("part", "how it is", title=title, rows=rows), as_json=as_json
    )


@click.command()
@click.option("--every", default="2s", metavar="TIME", help="How often it looks.")
@click.option("--once", is_flag=True, help="Print it once; so it is done where no terminal is.")
@out.json_option
@with_client
def top(client: ControllerClient, every: str, once: bool, as_json: bool) -> None:
    """Show jobs, GPUs and circuits as they are, again and again. Ends with Ctrl-C.

    Rates are means over the latest four times between two looks. It takes a terminal of 80 columns
    and 24 lines, and shows more rows on a larger one; over a slow line, look less often. No device
    is asked for it. 'patchlight job top' compares jobs with what was predicted of them.

    With --json it is printed once: jobs, with their rates, and circuit switches.
    """
    every_s = parse_time(every)
    if every_s < _LEAST_S:
        raise BadInput(f"--every {every}: expected {_LEAST_S:g}s or more, like 2s")
    # Workers are heard of some times a second: over a longer time, rates are steadier.
    looks = deque([patiently(lambda: Scrape.of(client))], maxlen=_LOOKS)
    time.sleep(every_s)

    def look() -> tuple[Scrape, Scrape]:
        looks.append(patiently(lambda: Scrape.of(client)))
        return looks[0], looks[-1]

    if not as_json:
        out.live(lambda: screen(*look(), out.terminal_lines()), every_s, once=once)
        return
    before, now = look()
    switches = {ocs: ocs_words(now, ocs).text for ocs in now.by("ocs_up", "ocs")}
    jobs = [asdict(pace) for pace in job_paces(now, before)]
    out.print_json({"jobs": jobs, "circuit_switches": switches})


def status_rows(found: Scrape) -> Iterator[Row]:
    """A line on each part of the lab, in the colour of its meaning."""
    yield "jobs", _jobs(found)
    yield "queue", _queue(found)
    yield "GPUs", _gpus(found)
    names = sorted(found.by("ocs_up", "ocs"))
    troubled = [ocs for ocs in names if ocs_words(found, ocs).meaning != "good"]
    shown = [*troubled, *(ocs for ocs in names if ocs not in troubled)][:_MOST_NAMES]
    for ocs in shown:
        yield ocs, ocs_words(found, ocs)
    if len(names) > len(shown):
        left, bad = len(names) - len(shown), len(set(troubled) - set(shown))
        words = f"{left} more, {bad} of them not well" if bad else f"{left} more, all well"
        yield "circuit switches", out.Coloured(words, "bad" if bad else "good")
    yield "changes", _changes(found)
    yield "packet switches", _all_there(found, "packet_switch_connected", "switch", "connected")
    yield "agents", _all_there(found, "agent_up", "server", "answer")
    if as_root := found.by("agent_root_workers", "server"):
        words = f"run as root on {_named(sorted(as_root))}"
        yield (
            "workers",
            out.Coloured(f"{words}: whoever submits jobs reads all files there", "caution"),
        )
    yield "controller", _controller(found)


def _counted(counts: dict[str, float], *states: str) -> str:
    return ", ".join(f"{counts[s]:.0f} {s}" for s in states if counts.get(s)) or "none"


def _jobs(found: Scrape) -> out.Coloured:
    counts = found.by("jobs", "state")
    at_work = _counted(counts, "running", "paused", "preparing", "reconfiguring")
    over = _counted(counts, "done", "failed", "stopped")
    words = f"{'none runs' if at_work == 'none' else at_work}; over: {over}"
    return out.Coloured(words, "caution" if counts.get("paused") else "good")


def _queue(found: Scrape) -> out.Coloured:
    counts = found.by("queue_jobs", "state")
    words = "no job waits"
    if sum(counts.values()):
        words = _counted(counts, "queued", "blocked")
        words += f", the first for {out.span(found.total('queue_longest_wait_seconds'))}"
    if found.total("queue_drained"):
        return out.Coloured(f"{words}; drained: no job is started", "caution")
    return out.Coloured(words, "caution" if counts.get("blocked") else "good")


def _gpus(found: Scrape) -> out.Coloured:
    usable, busy = found.by("gpu_up", "gpu"), found.by("gpu_utilization_ratio", "gpu")
    allocated = found.by("gpu_allocated", "gpu")
    words = f"{len(allocated)} of {len(usable | allocated)} in jobs"
    if told := [busy[gpu] for gpu in allocated if gpu in busy]:
        words += f", busy {sum(told) / len(told):.0%}".replace("%", " %")
    if power := found.total("gpu_power_watts"):
        words += f", all draw {power:.0f} W"
    if lost := [gpu for gpu, well in sorted(usable.items()) if not well]:
        return out.Coloured(f"{words}; cannot be used: {_named(lost)}", "bad")
    return out.Coloured(words, "good")


def ocs_words(found: Scrape, ocs: str) -> out.Coloured:
    """The state of one circuit switch."""
    if not found.total("ocs_up", ocs=ocs):
        return out.Coloured("does not answer", "bad")
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
    return out.Coloured(text, "bad" if bad else "caution" if caution else "good")


def _changes(found: Scrape) -> out.Coloured:
    counts = found.by("reconfigurations", "state")
    words = _counted(counts, "committed", "refused", "rolled-back", "unknown")
    if found.total("reconfiguration_in_progress"):
        words += "; one is under way"
    if found.total("changes_stopped"):
        return out.Coloured(f"{words}; the stop button is pressed", "bad")
    return out.Coloured(words, "bad" if counts.get("unknown") else "good")


def _all_there(found: Scrape, metric: str, label: str, verb: str) -> out.Coloured:
    there = found.by(metric, label)
    away = [name for name, is_there in sorted(there.items()) if not is_there]
    words = f"{len(there) - len(away)} of {len(there)} {verb}"
    return (
        out.Coloured(f"{words}; not: {_named(away)}", "bad")
        if away
        else out.Coloured(words, "good")
    )


def _controller(found: Scrape) -> out.Coloured:
    faults = {**found.by("part_faults_total", "part"), **found.by("policy_faults_total", "policy")}
    failed = [f"{name} failed {count:.0f} times" for name, count in faults.items() if count]
    if not found.total("speaker_up"):
        return out.Coloured("; ".join(["its OpenFlow speaker does not run", *failed]), "bad")
    if restarts := found.total("speaker_restarts_total"):
        failed.append(f"the OpenFlow speaker was started again {restarts:.0f} times")
    return out.Coloured("; ".join(["runs", *failed]), "caution" if failed else "good")


def _named(names: list[str]) -> str:
    left_out = len(names) - _MOST_NAMES
    more = f" and {left_out} more" if left_out > 0 else ""
    return ", ".join(names[:_MOST_NAMES]) + more


def screen(before: Scrape, now: Scrape, lines: int) -> out.Screen:
    """What is shown on a terminal of so many lines, 24 at least."""
    paces = job_paces(now, before)
    rows = max(24, lines) - _LINES_AROUND
    switches = sorted(now.by("ocs_up", "ocs"))
    for_light = min(len(switches), max(1, rows // 4))
    for_jobs = min(len(paces), max(1, (rows - for_light) // 2))
    return out.Screen(
        _jobs_table(paces, for_jobs, now),
        _gpus_table(paces, now, rows - for_light - for_jobs),
        _light_table(switches, now, for_light),
    )


def _jobs_table(paces: list[JobPace], most: int, now: Scrape) -> out.Table:
    waiting = round(now.total("queue_jobs"))
    table = out.Table(
        out.Column("job", cut=True),
        *out.numbers("GPUs", "done", "in 1 s", "sends", "communicates", "busy"),
        title=f"{time.strftime('%H:%M:%S')}  {len(paces)} jobs run, {waiting} wait",
    )
    for pace in paces[:most]:
        table.add_row(
            out.Coloured(f"{pace.job_id} (paused)", "caution") if pace.paused else pace.job_id,
            str(len(pace.gpus)),
            f"{pace.done}/{pace.wanted}" if pace.wanted else f"{pace.done}",
            "" if pace.iterations_per_s is None else f"{pace.iterations_per_s:.3f}",
            "" if pace.sent_bps is None else format_rate(round(pace.sent_bps)),
            _share(pace.communication),
            _share(pace.utilization),
        )
    _note_left_out(table, len(paces) - most)
    return table


def _gpus_table(paces: list[JobPace], now: Scrape, most: int) -> out.Table:
    job_of = {gpu: pace.job_id for pace in paces for gpu in pace.gpus}
    host_of = {said["gpu"]: said["host"] for said, _ in now.of_metric("gpu_allocated")}
    busy, power = now.by("gpu_utilization_ratio", "gpu"), now.by("gpu_power_watts", "gpu")
    sends = now.by("host_transmit_bytes_per_second", "host")
    usable = now.by("gpu_up", "gpu")
    names = sorted({*usable, *job_of}, key=lambda g: (g not in job_of, job_of.get(g, ""), g))
    table = out.Table(
        out.Column("GPU", cut=True),
        out.Column("job", cut=True),
        *out.numbers("busy", "power", "sends"),
        title=f"{len(job_of)} of {len(names)} GPUs are in jobs",
    )
    for gpu in names[:most]:
        host = host_of.get(gpu, gpu)
        table.add_row(
            gpu if usable.get(gpu, 1) else out.Coloured(f"{gpu} cannot be used", "bad"),
            job_of.get(gpu, out.Coloured("free", "quiet")),
            _share(busy.get(gpu)),
            f"{power[gpu]:.0f} W" if gpu in power else "",
            format_rate(round(8 * sends[host])) if host in sends else "",
        )
    _note_left_out(table, len(names) - most)
    return table


def _light_table(switches: list[str], now: Scrape, most: int) -> out.Table:
    # Those that are not well come first.
    rows = sorted(
        ((ocs, ocs_words(now, ocs)) for ocs in switches), key=lambda row: row[1].meaning == "good"
    )
    columns = (out.Column("circuit switch", cut=True), out.Column("light", cut=True))
    table = out.Table(*columns, rows=rows[:most])
    _note_left_out(table, len(switches) - most)
    return table


def _note_left_out(table: out.Table, left_out: int) -> None:
    if left_out > 0:
        others = [""] * (len(table.columns) - 1)
        table.add_row(out.Coloured(f"and {left_out} more", "quiet"), *others)


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}".replace("%", " %")
