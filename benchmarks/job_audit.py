"""What is wrong with a lab in which no job runs, read from its stores by code of its own.

Nothing of the controller's or the agents' readers is used: the database is read with SQL, leases
and the emulated switch's map as JSON, flow entries with ``ovs-ofctl``, processes from ``/proc``.
"""

import json
import re
import sqlite3
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

from patchlight.testbed.lab.model import Lab
from tests.support.waiting import ask

FOLLOWS: Mapping[str, frozenset[str]] = {
    "": frozenset({"queued"}),
    "queued": frozenset(
        {
            "queued",
            "blocked",
            "reconfiguring",
            "preparing",
            "failed",
            "stopped",
        }
    ),
    "blocked": frozenset(
        {"queued", "reconfiguring", "preparing", "failed", "stopped"}
    ),
    "reconfiguring": frozenset({"preparing", "queued", "failed", "stopped"}),
    "preparing": frozenset({"running", "queued", "failed", "stopped"}),
    "running": frozenset({"paused", "done", "queued", "failed", "stopped"}),
    "paused": frozenset({"running", "done", "queued", "failed", "stopped"}),
    "done": frozenset(),
    "failed": frozenset(),
    "stopped": frozenset(),
}
"""The states that a job may come to from each; it begins with none."""


def wrong_with(lab: Lab, run_dir: Path) -> list[str]:
    """Everything that should not be so once all jobs have ended, in words; empty if all is well."""
    return [
        *_jobs(run_dir / "controller" / "controller.db"),
        *_circuits(lab, run_dir),
        *_flows(lab, run_dir),
        *_servers(lab, run_dir),
        *_processes(lab, run_dir),
    ]


def _jobs(database: Path) -> Iterator[str]:
    """Every job ended, its journal explains how, and its reports are those of its life."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as db:
        rows = db.execute(
            "SELECT id, state, record FROM jobs ORDER BY rowid"
        ).fetchall()
        events: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for kind, text in db.execute(
            "SELECT kind, record FROM events ORDER BY number"
        ):
            if kind.startswith("job-"):
                record = json.loads(text)
                events[record["job"]].append(
                    (kind.removeprefix("job-"), record["message"] or "")
                )
        reports: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for job, text in db.execute(
            "SELECT job, record FROM iterations ORDER BY number"
        ):
            reports[job].append(json.loads(text))
        for origin, why in db.execute("SELECT origin, why FROM set_aside"):
            yield f"the record {origin} was set aside: {why}"
    for job, state, text in rows:
        record = json.loads(text)
        if record["state"] != state:
            yield f"job {job}: its row says {state}, and its record {record['state']}"
        yield from (
            f"job {job}: {said}" for said in _life(record, events.pop(job, []))
        )
        yield from (
            f"job {job}: {said}"
            for said in _reports(record, reports.pop(job, []))
        )
    for job in events.keys() | reports.keys():
        yield f"job {job} has events or reports, and is not in the table of jobs"


def _life(
    record: Mapping[str, Any], events: Sequence[tuple[str, str]]
) -> Iterator[str]:
    states = ["", *(state for state, _ in events)]
    for before, after in pairwise(states):
        if after not in FOLLOWS[before]:
            yield f"it came from {before or 'nowhere'} to {after}: {' '.join(states)}"
    if FOLLOWS[record["state"]]:
        yield f"it is {record['state']}: {record['message']}"
    if not events or events[-1] != (record["state"], record["message"] or ""):
        last = events[-1] if events else None
        yield f"it is {record['state']} ({record['message']}), and its last event is {last}"
    for state, message in events:
        if state in ("failed", "stopped", "paused", "blocked") and not message:
            yield f"it came to {state}, and nothing says why"
    if (record["finished_at"] is None) == (not FOLLOWS[record["state"]]):
        yield f"it is {record['state']}, and finished at {record['finished_at']}"
    begun = [
        i
        for i, (state, _) in enumerate(events)
        if state == "queued" and i and _had(events, i)
    ]
    if record["attempt"] != len(begun):
        yield f"attempt {record['attempt']}, and it was queued again {len(begun)} times"
    failures = [
        events[i][1] for i in begun if events[i][1].startswith("failure ")
    ]
    if (
        record["failures"] != len(failures)
        or len(failures) > record["spec"]["retries"]
    ):
        yield (
            f"{record['failures']} failures of {record['spec']['retries']} that it may have: "
            + ("; ".join(failures))
        )
    if any(not events[i][1] for i in begun):
        yield "it was queued again, and nothing says why"


def _had(events: Sequence[tuple[str, str]], index: int) -> bool:
    """Whether the job had hosts before this event: that it is not blocked any more says none."""
    return events[index - 1][0] != "blocked" or bool(events[index][1])


def _reports(
    record: Mapping[str, Any], reports: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    if wrong := {report["check"] for report in reports} - {"ok", ""}:
        yield f"sums were wrong: {wrong}"
    by_rank: dict[tuple[int, int], list[int]] = defaultdict(list)
    for report in reports:
        by_rank[report.get("attempt", 0), report["rank"]].append(
            report["index"]
        )
    for (attempt, rank), indices in by_rank.items():
        if indices != list(range(indices[0], indices[0] + len(indices))):
            yield f"rank {rank} of attempt {attempt} reported {indices}"
    spec = record["spec"]
    if record["state"] == "done" and spec["trainer"] == "synthetic":
        last = range(record["first_iteration"], spec["iterations"])
        for rank in range(len(record["hosts"])):
            if by_rank.get((record["attempt"], rank)) != list(last):
                told = by_rank.get((record["attempt"], rank))
                yield f"rank {rank} was to report {last}, and did {told}"


def _light(run_dir: Path, ocs: str) -> dict[int, int]:
    """The outputs of the emulated switch by input, of circuits that carry light."""
    data = json.loads((run_dir / "optical" / f"{ocs}.json").read_text())
    lit = [
        way
        for each in data["circuits"]
        if each["active"]
        for way in each["directions"]
    ]
    return {int(inp): int(out) for inp, out in lit}


def _circuits(lab: Lab, run_dir: Path) -> Iterator[str]:
    """The journal is closed, no port is locked, and the devices have what it says."""
    with closing(
        sqlite3.connect(
            f"file:{run_dir}/controller/controller.db?mode=ro", uri=True
        )
    ) as db:
        for number, state, text in db.execute(
            "SELECT id, state, record FROM reconfigurations"
        ):
            if state not in ("committed", "rolled-back", "refused"):
                yield f"change {number} is {state}: {json.loads(text).get('message')}"
        for ocs, port, text in db.execute(
            "SELECT ocs, port, record FROM locks"
        ):
            yield f"{ocs}.{port} is locked: {text}"
        committed = dict(db.execute("SELECT ocs, record FROM committed"))
    for switch in lab.circuit_switches:
        lit = sorted(
            f"{inp}>{out}" for inp, out in _light(run_dir, switch.name).items()
        )
        known = sorted(json.loads(committed[switch.name])["map"])
        if lit != known:
            yield f"{switch.name} has {lit}, and the last change left {known}"


def _flows(lab: Lab, run_dir: Path) -> Iterator[str]:
    """Each packet switch sends each lit NIC's frames its way, and has no other entries."""
    (ocs,) = [switch.name for switch in lab.circuit_switches]
    light = _light(run_dir, ocs)
    joined = {
        str(a): str(b) for f in lab.fibres for a, b in ((f.a, f.b), (f.b, f.a))
    }
    trunks = {
        a.partition(".")[0]: a
        for a, b in joined.items()
        if not {a[:3], b[:3]} - {"tor"}
    }
    wanted: dict[str, set[str]] = {
        switch.name: set() for switch in lab.packet_switches
    }
    for host in lab.hosts:
        inp = int(joined[str(host.endpoint)].partition(".")[2])
        if inp not in light or light.get(light[inp]) != inp:
            continue
        tor, _, port = joined[f"{ocs}.{light[inp]}"].partition(".")
        for switch, entries in wanted.items():
            out = port if switch == tor else trunks[switch].partition(".")[2]
            entries.add(f"dl_dst={host.nic.mac} output:{out}")
            entries.add(f"dl_dst=33:33:ff{host.nic.mac[8:]} output:{out}")
            entries.add(f"arp_tpa={host.nic.address} output:{out}")
    for switch, entries in wanted.items():
        there = _entries_of(lab, run_dir, switch)
        if there != entries:
            stale = sorted(there - entries)
            missing = sorted(entries - there)
            yield f"{switch} has flow entries too many: {stale}, too few: {missing}"


def _entries_of(lab: Lab, run_dir: Path, switch: str) -> set[str]:
    text = _output(
        "ip",
        "netns",
        "exec",
        f"pl.{lab.name}.fabric",
        "ovs-ofctl",
        "-O",
        "OpenFlow13",
        "dump-flows",
        f"unix:{run_dir}/ovs/{switch}.mgmt",
    )
    lines = [
        line
        for line in text.splitlines()
        if "actions=" in line and "actions=drop" not in line
    ]
    found = [
        re.search(r"((?:dl_dst|arp_tpa)=[^, ]+).* actions=(.*)$", line)
        for line in lines
    ]
    return {
        f"{hit[1]} {hit[2]}" if hit else line
        for hit, line in zip(found, lines, strict=True)
    }


def _servers(lab: Lab, run_dir: Path) -> Iterator[str]:
    """No lease is on record, and GPUs and NICs are with their servers."""
    for server in lab.servers:
        state = run_dir / "agents" / server.name
        for path in [*state.glob("leases/*"), *state.glob("workers/*")]:
            yield f"{server.name} keeps {path.relative_to(state)}"
        links = json.loads(
            _output("ip", "-n", f"pl.{lab.name}.{server.name}", "-j", "addr")
        )
        here = {link["ifname"]: link for link in links}
        for nic in server.nics:
            link = here.get(nic.name)
            addresses = (
                [each["local"] for each in link["addr_info"]] if link else []
            )
            if (
                link is None
                or str(nic.address) not in addresses
                or "UP" not in link["flags"]
            ):
                yield f"{nic.name} is not as it was in {server.name}: {link}"
        for gpu in server.gpus:
            answer = ask(
                run_dir / "gpus" / f"{server.name}.{gpu.name}.sock",
                {"op": "query"},
            )
            if answer["tenant"] is not None:
                yield f"{gpu.name} of {server.name} is held by {answer['tenant']}"


def _processes(lab: Lab, run_dir: Path) -> Iterator[str]:
    """No worker's namespace is left, and no process but the lab's own."""
    for space in Path("/run/netns").glob(f"pl.{lab.name}.*.w-*"):
        yield f"the namespace {space.name} is left"
    own = (
        "ovsdb-server",
        "ovs-vswitchd",
        "patchlight.emulation.",
        "patchlight controller run",
    )
    for process in Path("/proc").iterdir():
        try:
            command = (
                (process / "cmdline")
                .read_bytes()
                .replace(b"\0", b" ")
                .decode()
            )
            marked = (
                f"PATCHLIGHT_RUN={run_dir}\0"
                in (process / "environ").read_bytes().decode()
            )
        except (OSError, UnicodeDecodeError):
            continue
        agents = (
            "patchlight.agents --lab",
            "patchlight.agents.workers.forking --",
        )
        known = (
            *own,
            *agents,
            "patchlight.controller.packet_switches.openflow.speaker",
        )
        policy = "patchlight.controller.policies" in command
        if (
            marked
            and command
            and not policy
            and not any(word in command for word in known)
        ):
            yield f"process {process.name} is left: {command}"


def _output(*command: str) -> str:
    return subprocess.run(
        command, check=True, capture_output=True, text=True
    ).stdout
