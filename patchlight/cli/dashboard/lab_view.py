"""Computes a lab's view for pages from its controller's answers."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from patchlight.testbed.lab.model import Endpoint, Host, Lab
from patchlight.testbed.lab.optical_links import Entry, LightPath, Signal
from patchlight.testbed.lab.portmap import AnyMap
from patchlight.testbed.lab.spectrum import Channel, ChannelConnect
from patchlight.testbed.lab.wiring import Links, Place, lab_links, parse_map
from patchlight.testbed.wire.rest import circuits as rest
from patchlight.testbed.wire.rest.jobs import JobInList
from patchlight.testbed.wire.rest.lab import Status

Condition = Literal["up", "changing", "locked", "drifting", "degraded", "dark"]
"""The condition of a circuit, from best to worst."""

AT_WORK = ("reconfiguring", "preparing", "running", "paused")
WAITING = ("queued", "blocked")
# Okabe and Ito's colours, distinguishable with colour blindness.
JOB_COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
)
NO_JOB = "#8a8a8a"


def job_colours(
    before: Mapping[str, str], job_ids: Sequence[str]
) -> dict[str, str]:
    """A colour for each of these jobs: its previous one, else the least used."""
    chosen = {job: colour for job, colour in before.items() if job in job_ids}
    for job in job_ids:
        if job not in chosen:
            chosen[job] = min(JOB_COLOURS, key=list(chosen.values()).count)
    return chosen


@dataclass(frozen=True)
class Circuit:
    """One entry of a switch's map, the job that uses it, and its condition.

    At a wavelength switch ``ports`` have a channel. ``source``, ``sink`` and ``rate_bps`` are those
    of its optical path if there is exactly one. Unknown powers are ``None``.
    """

    ocs: str
    ports: Entry
    source: Endpoint | None
    sink: Endpoint | None
    job: str
    condition: Condition
    words: str
    in_dbm: float | None = None
    out_dbm: float | None = None
    expected_dbm: float | None = None
    rate_bps: int | None = None

    @property
    def said(self) -> str:
        """The condition as text."""
        said = {"dark": "no optical power", "degraded": "power too low"}
        return said.get(self.condition, self.condition)

    @property
    def channel(self) -> str:
        """The channel of a wavelength switch; empty for all wavelengths."""
        return (
            str(self.ports.channel)
            if isinstance(self.ports, ChannelConnect)
            else ""
        )


@dataclass(frozen=True)
class LabView:
    """A lab and its present state: its controller's answers."""

    lab: Lab
    jobs: Sequence[JobInList] = ()
    maps: Mapping[str, rest.OcsMap] = field(default_factory=dict)
    light: Mapping[str, rest.LightAnswer] = field(default_factory=dict)
    drift: Mapping[str, rest.DriftOf] = field(default_factory=dict)
    locks: Sequence[rest.Lock] = ()
    changes: Sequence[rest.ChangeAnswer] = ()
    status: Status | None = None
    colours: Mapping[str, str] = field(default_factory=dict)

    def keep(self, before: "LabView") -> None:
        """Reuse the optical paths of an earlier view if they are equal: they are slow."""
        if self.lab is before.lab and self.maps == before.maps:
            for name in ("switch_maps", "links", "path_through"):
                if name in vars(before):
                    vars(self)[name] = vars(before)[name]

    @cached_property
    def switch_maps(self) -> dict[str, AnyMap]:
        """The map of each optical switch; the last known one if it does not answer.

        A wavelength switch without a driver has the map of the lab file.
        """
        found: dict[str, AnyMap] = {}
        for switch in self.lab.optical_switches:
            told = self.maps.get(switch.name)
            if told is not None:
                texts = told.assumed if told.map is None else told.map
                found[switch.name] = parse_map(switch, texts or [])
            elif not switch.driver:
                found[switch.name] = switch.initial
        return found

    @cached_property
    def links(self) -> Links:
        """The present optical links."""
        return lab_links(self.lab, self.switch_maps)

    def signals_at(self, end: Endpoint) -> list[Signal]:
        """The signals that arrive at a port, in a lab with wavelengths."""
        if self.links.light is None or end not in self.lab.fibre_ends:
            return []
        return self.links.light.signals_on.get(self.lab.fibre_ends[end][0], [])

    @cached_property
    def at_work(self) -> list[JobInList]:
        """Jobs that have hosts, oldest first."""
        return [job for job in self.jobs if job.state in AT_WORK]

    @cached_property
    def waiting(self) -> list[JobInList]:
        """Jobs that wait for GPUs, oldest first."""
        return [job for job in self.jobs if job.state in WAITING]

    @cached_property
    def job_of_host(self) -> dict[str, str]:
        """The id of the job that has a host, by the host's full name."""
        names = self.lab.host_names
        return {
            names[name].name: job.id
            for job in self.at_work
            for name in job.hosts
            if name in names
        }

    @cached_property
    def host_at(self) -> dict[Endpoint, Host]:
        """The host with that NIC."""
        return {host.endpoint: host for host in self.lab.hosts}

    @cached_property
    def job_names(self) -> dict[str, str]:
        """The names of the jobs, by id."""
        return {job.id: job.spec.name for job in self.jobs}

    @cached_property
    def labels(self) -> dict[str, str]:
        """The names of the jobs by id, with the id where several have one name."""
        names = list(self.job_names.values())
        return {
            job: name if names.count(name) == 1 else f"{name} {job}"
            for job, name in self.job_names.items()
        }

    @cached_property
    def groups(self) -> dict[str, set[str]]:
        """The servers of each packet switch, of each job by its id, and each server alone."""
        found: dict[str, set[str]] = {}
        for host in self.lab.hosts:
            server = host.server.name
            switch = self.links.switch_of(self.lab, host.endpoint)
            for group in (switch, self.job_of_host.get(host.name), server):
                if group:
                    found.setdefault(group, set()).add(server)
        return found

    def part(self, servers: Collection[str]) -> Lab:
        """The lab with these servers only, and with the devices on their paths."""
        kept = set(servers)
        for host in self.lab.hosts:
            if host.server.name in servers:
                path = self.links.paths.get(host.endpoint)
                if path is not None:
                    kept |= {path.sink.device, *dict(path.through)}
        lab = self.lab
        there = {
            field: tuple(d for d in getattr(lab, field) if d.name in kept)
            for field in (
                "servers",
                "packet_switches",
                "circuit_switches",
                "wavelength_switches",
                "passive_parts",
            )
        }
        fibres = tuple(
            f for f in lab.fibres if {f.a.device, f.b.device} <= kept
        )
        return lab.with_changes(**there, fibres=fibres)

    def job_of_path(self, path: LightPath) -> str:
        """The job whose NIC sends or receives on this path; empty without one."""
        return self.job_at(path.source) or self.job_at(path.sink)

    def job_at(self, end: Endpoint) -> str:
        """The job with that NIC; empty without one."""
        host = self.host_at.get(end)
        return "" if host is None else self.job_of_host.get(host.name, "")

    def job_of_signals(self, signals: Iterable[Signal]) -> str:
        """The one job that uses these signals; empty without one, or with several."""
        paths = self.links.paths
        jobs = {
            self.job_at(s.source)
            if s.source not in paths
            else self.job_of_path(paths[s.source])
            for s in signals
        } - {""}
        return jobs.pop() if len(jobs) == 1 else ""

    @cached_property
    def path_through(self) -> dict[tuple[str, Entry], LightPath]:
        """The optical path through each entry of a switch's map, if there is exactly one."""
        paths = self.links.paths.values()
        return {
            passed: path
            for path in paths
            for passed, _ in self.links.passed(path)
        }

    @cached_property
    def under_way(self) -> list[rest.ChangeAnswer]:
        """The unfinished changes of circuits, oldest first."""
        return [c for c in self.changes if c.state == "intent"]

    @cached_property
    def last_change(self) -> rest.ChangeAnswer | None:
        """The latest finished change of circuits."""
        ended = (
            c
            for c in reversed(self.changes)
            if c.state != "intent" and c.changes
        )
        return next(ended, None)

    def can_undo(self, change: rest.ChangeAnswer) -> bool:
        """Whether a change can be undone: its circuits exist, and its old ports are free."""
        if (
            change.state != "committed"
            or not change.changes
            or change.undone_by is not None
        ):
            return False
        for ocs, moved in change.changes.items():
            if (present := self.switch_maps.get(ocs)) is None:
                return False
            made = type(present).parse(moved.makes)
            broken = type(present).parse(moved.breaks)
            there = frozenset(present)
            kept = present.without(made)
            if not there.issuperset(made) or not there.issuperset(
                broken.clashing(kept)
            ):
                return False
        return True

    @cached_property
    def locked_ports(
        self,
    ) -> dict[tuple[str, int], list[tuple[Place, rest.Lock]]]:
        """Locks by switch and port, with their places."""
        found: dict[tuple[str, int], list[tuple[Place, rest.Lock]]] = {}
        for lock in self.locks:
            channel = lock.channel
            place = Place(
                lock.port, Channel.parse(channel) if channel else None
            )
            found.setdefault((lock.ocs, lock.port), []).append((place, lock))
        return found

    @cached_property
    def circuits(self) -> list[Circuit]:
        """Every entry of a map, by switch and input; also missing ones, and those in progress."""
        return [
            each
            for name in self.switch_maps
            for each in self._circuits_of(name)
        ]

    def _circuits_of(self, ocs: str) -> Iterator[Circuit]:
        light = self.light.get(ocs)
        readings = {
            r.cross_connect: r for r in (light.circuits if light else ())
        }
        drift = self.drift.get(ocs)
        present = self.switch_maps[ocs]
        missing = set(drift.missing if drift else ())
        unknown = set(drift.unknown if drift else ())
        moving = [c.changes[ocs] for c in self.under_way if ocs in c.changes]
        breaks = {text for change in moving for text in change.breaks}
        makes = {text for change in moving for text in change.makes}
        absent = (missing | makes) - set(present.one_way_texts)
        # Missing entries may conflict: each is a map of its own.
        others = {c for text in absent for c in type(present).parse([text])}
        told = self.maps.get(ocs)
        unreachable = told.unreachable if told else ""
        for c in sorted({*present, *others}):
            text = str(c)
            path = self.path_through.get((ocs, c))
            signals: list[Signal] = []
            if isinstance(c, ChannelConnect):
                for signal in self.signals_at(Endpoint(ocs, str(c.inp))):
                    if signal.channel is not None and signal.channel.within(
                        c.channel
                    ):
                        signals.append(signal)
            seen = readings.get(text)
            condition, words = self._how(ocs, c, seen)
            if text in missing:
                condition = "dark"
                words = "committed, but not on the device"
            elif text in unknown:
                condition = "drifting"
                words = "on the device, but not committed"
            if text in breaks | makes:
                condition = "changing"
                words = "being changed"
            if unreachable:
                words = f"last known: {unreachable}"
            elif signals and path is None and condition == "up":
                words = f"signals of {', '.join(map(str, signals))}"
            yield Circuit(
                ocs,
                c,
                path.source if path else None,
                path.sink if path else None,
                self.job_of_path(path)
                if path
                else self.job_of_signals(signals),
                condition,
                words,
                seen.in_dbm if seen else None,
                seen.out_dbm if seen else None,
                seen.expected_dbm if seen else None,
                path.rate_bps if path else None,
            )

    def _how(
        self,
        ocs: str,
        c: Entry,
        seen: rest.CircuitLight | None,
    ) -> tuple[Condition, str]:
        verdict = seen.verdict if seen else ""
        words = seen.words if seen else ""
        if verdict == "failed":
            return "dark", words
        if verdict == "degraded":
            return "degraded", words
        for port in (c.inp, c.out):
            for place, lock in self.locked_ports.get((ocs, port), ()):
                if place.holds(c):
                    why = f": {lock.why}" if lock.why else ""
                    return (
                        "locked",
                        f"port {place} is locked by {lock.by}{why}",
                    )
        return "up", words

    @cached_property
    def without_link(self) -> dict[str, str]:
        """The hosts that reach no other, with the reason."""
        return {
            told.host: told.reason
            for told in (self.status.hosts_without_link if self.status else ())
        }

    @cached_property
    def silent(self) -> dict[str, str]:
        """Devices with a fault, and a description."""
        status = self.status
        found: dict[str, str] = {}
        if status is None:
            return found
        for ocs in status.circuit_switches:
            if not ocs.reachable:
                found[ocs.name] = f"does not answer: {ocs.words}"
        for switch in status.switches:
            if switch.connected is False:
                found[switch.name] = switch.trouble or "is not connected"
            elif switch.lacks:
                found[switch.name] = switch.lacks
        for agent in status.agents:
            if not agent.reachable:
                found[agent.server] = (
                    f"does not answer: its agent is {agent.presence}"
                )
            elif agent.problems:
                found[agent.server] = "; ".join(agent.problems)
        return found
