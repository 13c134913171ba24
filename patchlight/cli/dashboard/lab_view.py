"""What a page shows of a lab, worked out of what its controller says: all of it values."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from patchlight.testbed.lab import Endpoint, Host, Lab
from patchlight.testbed.light import LightPath
from patchlight.testbed.portmap import CrossConnect, PortMap
from patchlight.testbed.wiring import Links, trace_links

Answer = Mapping[str, Any]
Condition = Literal["well", "changing", "locked", "drifting", "degraded", "dark"]
"""How a circuit is; what is worse comes later."""

AT_WORK = ("reconfiguring", "preparing", "running", "paused")
WAITING = ("queued", "blocked")
# Okabe and Ito's colours, which people with any colour vision can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
NO_JOB = "#8a8a8a"


def job_colours(before: Mapping[str, str], job_ids: Sequence[str]) -> dict[str, str]:
    """A colour for each of these jobs: the one that it has, else the one that fewest have."""
    chosen = {job: colour for job, colour in before.items() if job in job_ids}
    for job in job_ids:
        if job not in chosen:
            chosen[job] = min(COLOURS, key=list(chosen.values()).count)
    return chosen


@dataclass(frozen=True)
class Circuit:
    """One cross-connect of an OCS: which job's light it carries, and how it is, in words.

    Powers are in dBm, ``None`` where they are not known. ``rate_bps`` is the light path's.
    """

    ocs: str
    ports: CrossConnect
    source: Endpoint | None
    sink: Endpoint | None
    job: str
    condition: Condition
    words: str
    in_dbm: float | None = None
    out_dbm: float | None = None
    expected_dbm: float | None = None
    rate_bps: int | None = None


@dataclass(frozen=True)
class LabView:
    """A lab and what is known of it now: answers of its controller, as they came."""

    lab: Lab
    jobs: Sequence[Answer] = ()
    maps: Answer = field(default_factory=dict)
    light: Answer = field(default_factory=dict)
    drift: Answer = field(default_factory=dict)
    locks: Sequence[Answer] = ()
    changes: Sequence[Answer] = ()
    status: Answer = field(default_factory=dict)
    colours: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def port_maps(self) -> dict[str, PortMap]:
        """The map of each OCS; as last known of one that does not answer."""
        listed = {
            name: found["map"] if found["map"] is not None else found.get("assumed", [])
            for name, found in self.maps.items()
            if name in self.lab.circuit_fibres
        }
        return {name: PortMap.parse(texts) for name, texts in listed.items()}

    @cached_property
    def links(self) -> Links:
        """Where the light goes."""
        return trace_links(self.lab, self.port_maps)

    @cached_property
    def at_work(self) -> list[Answer]:
        """Jobs that have hosts, the oldest first."""
        return [job for job in self.jobs if job["state"] in AT_WORK]

    @cached_property
    def job_of_host(self) -> dict[str, str]:
        """The id of the job that has a host, by the host's full name."""
        names = self.lab.host_names
        return {
            names[name].name: job["id"]
            for job in self.at_work
            for name in job["hosts"]
            if name in names
        }

    @cached_property
    def host_at(self) -> dict[Endpoint, Host]:
        """The host whose NIC is there."""
        return {host.endpoint: host for host in self.lab.hosts}

    def job_of_path(self, path: LightPath) -> str:
        """The job whose NIC sends or gets this light; empty if there is none."""
        for end in (path.source, path.sink):
            host = self.host_at.get(end)
            if host is not None and host.name in self.job_of_host:
                return self.job_of_host[host.name]
        return ""

    @cached_property
    def path_through(self) -> dict[tuple[str, CrossConnect], LightPath]:
        """The light path that passes each cross-connect, where one does."""
        return {hop: path for path in self.links.paths.values() for hop in path.hops}

    @cached_property
    def under_way(self) -> Answer | None:
        """The change of circuits that is not at its end, if there is one."""
        return next((c for c in reversed(self.changes) if c["state"] == "intent"), None)

    @cached_property
    def last_change(self) -> Answer | None:
        """The latest change that came to its end and was to move light."""
        ended = (c for c in reversed(self.changes) if c["state"] != "intent" and c["changes"])
        return next(ended, None)

    @cached_property
    def locked_ports(self) -> dict[tuple[str, int], Answer]:
        """Locks by OCS and port."""
        return {(lock["ocs"], lock["port"]): lock for lock in self.locks}

    def moving(self, ocs: str) -> tuple[set[str], set[str]]:
        """What the change under way breaks and makes on an OCS."""
        change = (self.under_way or {}).get("changes", {}).get(ocs, {})
        return set(change.get("breaks", ())), set(change.get("makes", ()))

    @cached_property
    def circuits(self) -> list[Circuit]:
        """Every cross-connect, by OCS and input; those that are missing or being made included."""
        return [each for name in self.port_maps for each in self._circuits_of(name)]

    def _circuits_of(self, ocs: str) -> Iterable[Circuit]:
        readings = {r["cross_connect"]: r for r in self.light.get(ocs, {}).get("circuits", ())}
        drift = self.drift.get(ocs, {})
        missing, unknown = set(drift.get("missing", ())), set(drift.get("unknown", ()))
        breaks, makes = self.moving(ocs)
        present = list(self.port_maps[ocs])
        there = set(map(str, present))
        absent = [PortMap.parse([text]) for text in sorted((missing | makes) - there)]
        unreachable = self.maps[ocs].get("unreachable", "")
        for c in sorted({*present, *(c for m in absent for c in m)}):
            text = str(c)
            path = self.path_through.get((ocs, c))
            seen: Answer = readings.get(text, {})
            condition, words = self._how(ocs, c, seen)
            if text in missing:
                condition, words = "dark", "committed, and not on the device"
            elif text in unknown:
                condition, words = "drifting", "on the device, and nobody committed it"
            if text in breaks | makes:
                condition, words = "changing", "is being changed"
            if unreachable:
                words = f"as last known: {unreachable}"
            yield Circuit(
                ocs,
                c,
                path.source if path else None,
                path.sink if path else None,
                self.job_of_path(path) if path else "",
                condition,
                words,
                seen.get("in_dbm"),
                seen.get("out_dbm"),
                seen.get("expected_dbm"),
                path.rate_bps if path else None,
            )

    def _how(self, ocs: str, c: CrossConnect, seen: Answer) -> tuple[Condition, str]:
        verdict, words = seen.get("verdict", ""), str(seen.get("words", ""))
        if verdict == "failed":
            return "dark", words
        if verdict == "degraded":
            return "degraded", words
        for port in c:
            if lock := self.locked_ports.get((ocs, port)):
                why = f": {lock['why']}" if lock["why"] else ""
                return "locked", f"port {port} is locked by {lock['by']}{why}"
        return "well", words

    @cached_property
    def silent(self) -> dict[str, str]:
        """Which devices are not well, and what is said of it."""
        status = self.status
        found: dict[str, str] = {}
        for ocs in status.get("circuit_switches", ()):
            if not ocs["reachable"]:
                found[ocs["name"]] = f"does not answer: {ocs['words']}"
        for switch in status.get("switches", ()):
            if not switch["connected"]:
                found[switch["name"]] = "is not connected"
        for agent in status.get("agents", ()):
            if not agent["reachable"]:
                found[agent["server"]] = f"its agent is {agent['presence']}: {agent['words']}"
            elif agent["problems"]:
                found[agent["server"]] = "; ".join(agent["problems"])
        return found

    @cached_property
    def gpu_names(self) -> list[str]:
        """All GPUs by their full names, in the lab's order."""
        return [f"{server.name}.{gpu.name}" for server in self.lab.servers for gpu in server.gpus]
