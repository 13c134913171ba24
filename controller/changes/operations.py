"""What operators do with the optical switches: look, undo, repair, save, connect ends and nodes."""

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from patchlight.controller.changes.device_maps import Decide, Drift, Maps, circuits_in
from patchlight.controller.changes.parts import CircuitParts
from patchlight.controller.changes.power import PortReading, PowerVerdict, measures_each
from patchlight.controller.changes.record import Refused, as_texts
from patchlight.controller.changes.transaction import Transactions
from patchlight.controller.circuits.contract import DirectedPort, PortState
from patchlight.controller.policies.topology import CannotRegroup, regroup
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.model import Endpoint, Host, Lab
from patchlight.testbed.lab.portmap import AnyMap, PortMap
from patchlight.testbed.lab.wiring import (
    Place,
    check_place,
    circuit_ports,
    driven,
    recorded_map,
    with_spectra,
)

_NO_MONITOR = PowerVerdict("unverified", "unverified, no power monitor")
_NO_OUTPUT_MONITOR = PowerVerdict("unverified", "unverified, no power monitor at the outputs")


@dataclass(frozen=True)
class DriftReport:
    """How a device differs from the map that ``committed_by`` (a change's number) left.

    ``committed_at`` is Unix time. Both are ``None`` where nothing was committed yet;
    ``unreachable`` says why the drift is not known, and is empty where it is.
    """

    drift: Drift
    committed_by: int | None
    committed_at: float | None
    unreachable: str


@dataclass(frozen=True)
class PowerReport:
    """The power of each circuit of one OCS, and the states of its ports that are not ready.

    ``monitored``: whether the device measures at its outputs. ``unreachable`` says why nothing
    is known, and is empty where it is.
    """

    monitored: bool = False
    readings: list[PortReading] = field(default_factory=list)
    ports: Mapping[DirectedPort, PortState] = field(default_factory=dict)
    unreachable: str = ""


class CircuitOperations:
    """The optical switches of a lab as their operators use them."""

    def __init__(self, parts: CircuitParts, transactions: Transactions) -> None:
        self.parts, self.transactions = parts, transactions

    def named(self, names: Collection[str]) -> list[str]:
        """These optical switches, or all that can be asked if none are named.

        ``BadInput`` if one is not there, or nobody can ask it.
        """
        return [self._driven(name) for name in names] or list(self.parts.drivers)

    def _driven(self, name: str) -> str:
        return driven(self.parts.lab.optical_switch(name))

    def places(self, name: str, given: Iterable[int | str]) -> list[Place]:
        """The ports of a switch, or channels there, that are meant; ``BadInput`` for what is
        none."""
        switch = self.parts.lab.optical_switch(name)
        places = [Place(each) if isinstance(each, int) else Place.parse(each) for each in given]
        for place in places:
            if place.channel is not None:
                check_place(switch, place)
        return places

    async def drift(self) -> dict[str, DriftReport]:
        """How each device differs from its last committed map, and since which change."""
        committed = self.parts.store.committed_maps(lambda _, row: row)
        drift = await self.transactions.drift()
        unread = self.parts.devices.unread
        return {
            name: DriftReport(
                drift.get(name, Drift((), ())),
                committed.get(name, {}).get("reconfiguration"),
                committed.get(name, {}).get("at"),
                unread.get(name, ""),
            )
            for name in self.parts.drivers
            if name in committed or name in unread
        }

    async def power(self, name: str, maps: Maps | None = None) -> PowerReport:
        """The power of each circuit of one switch, and the ports that can carry none.

        With ``maps``, those that were read a moment ago are not read again.
        """
        name = self._driven(name)
        if maps is None:
            maps = await self.parts.maps.read()
        if name in maps.unread:
            return PowerReport(unreachable=maps.unread[name])
        readings = await self._readings(name, maps)
        states = await self.parts.port_states.read(name)
        return PowerReport(
            monitored=self._measures(name),
            readings=readings,
            ports={port: state for port, state in states.items() if state.condition != "ready"},
        )

    def _measures(self, name: str) -> bool:
        return measures_each(self.parts.lab.optical_switch(name), self.parts.drivers[name])

    async def _readings(self, name: str, maps: Maps) -> list[PortReading]:
        driver = self.parts.drivers[name]
        if not (driver.capabilities.power_out or driver.capabilities.power_in):
            return [PortReading(c, None, None, None, None, _NO_MONITOR) for c in maps[name]]
        links = self.parts.maps.links(maps)
        check = self.parts.power_check
        readings = await check.judge(driver, check.should_show(links, name, maps[name]))
        if self._measures(name):
            return readings
        return [replace(reading, verdict=_NO_OUTPUT_MONITOR) for reading in readings]

    async def accept_power(self, names: Collection[str], by: str) -> dict[str, int]:
        """Take the powers of these circuit switches as baselines from now on, but for what has
        failed; how many circuits of each."""
        maps = await self.parts.maps.read()
        counts: dict[str, int] = {}
        for name in self.named(names):
            readings = await self._readings(name, maps)
            good = [reading for reading in readings if reading.verdict.kind != "failed"]
            counts[name] = self.parts.power_check.baselines.begin_anew(name, good)
        self.parts.store.add_event(time.time(), "baselines", {"circuits": counts, "by": by})
        return counts

    def undoing(self, number: int) -> tuple[Decide, dict[str, AnyMap]]:
        """What undoes one change and nothing else, and the entries it asks for.

        ``Refused`` if it is undone; its ``Decide`` raises that where later changes took the ports.
        ``BadInput`` for a change that is not there or did not come about.
        """
        record = self.parts.store.reconfiguration(number)
        if record is None:
            raise BadInput(f"there is no change {number}: 'patchlight ocs history' shows them")
        if record["state"] != "committed":
            raise BadInput(f"change {number} is {record['state']}: there is nothing to undo")
        if by := self.parts.store.undone_by(number).get(number):
            hint = f"to have what it did again: patchlight ocs rollback {by}"
            raise Refused(f"change {number} was already undone by change {by}", hint=hint)
        lab, changes = self.parts.lab, record["changes"]
        made = {name: recorded_map(lab, name, c["makes"]) for name, c in changes.items()}
        broken = {name: recorded_map(lab, name, c["breaks"]) for name, c in changes.items()}

        def decide(maps: Mapping[str, AnyMap]) -> dict[str, AnyMap]:
            wanted, clashes = {}, []
            for name in made:
                present = frozenset(maps[name])
                clashes += [f"{name} {c} is gone" for c in made[name] if c not in present]
                kept = maps[name].without(made[name])
                clashes += [
                    f"{name} {c.inp} or {c.out} is in use"
                    for c in broken[name].clashing(kept)
                    if c not in present
                ]
                wanted[name] = kept.joined(broken[name])
            if clashes:
                raise Refused(
                    f"change {number} cannot be undone by itself: {'; '.join(clashes)}",
                    hint="undo the later changes of these ports first: patchlight ocs history",
                )
            return wanted

        return decide, broken

    def repairing(self, names: Collection[str]) -> dict[str, AnyMap]:
        """The committed maps of these optical switches, to be brought about."""
        committed = self.parts.committed.maps
        for name in names:
            if self._driven(name) not in committed:
                raise Refused(f"nothing was ever committed for {name}: it was never seen yet")
        return {name: committed[name] for name in self.named(names) if name in committed}

    async def save(self, name: str, names: Collection[str], by: str, why: str) -> dict[str, Any]:
        """Keep the present maps under a name; what is kept."""
        maps = await self.parts.maps.read()
        texts = {ocs: as_texts(maps[ocs]) for ocs in self.named(names)}
        record = {"name": name, "maps": texts, "by": by, "why": why, "at": time.time()}
        self.parts.store.save_map(name, record)
        return record

    def saved(self, name: str) -> dict[str, AnyMap]:
        """The maps kept under a name; ``BadInput`` if there are none."""
        saved = self.parts.store.saved_maps()
        if name not in saved:
            raise BadInput(f"no maps are saved as {name!r}: there are {', '.join(saved) or 'none'}")
        return {
            switch: recorded_map(self.parts.lab, switch, texts)
            for switch, texts in saved[name]["maps"].items()
        }


async def bringing_together(parts: CircuitParts, nodes: Sequence[str], force: bool) -> Decide:
    """What lights the NICs of these nodes' GPUs onto one packet switch, with the fewest moves.

    A node is a server or a host, by name. Circuits of running jobs stay, but with ``force`` they
    move like others. The ``Decide`` raises ``CannotRegroup`` where no switch has the room, and
    ``Refused`` where it would have without the running jobs. ``BadInput`` for a node that the lab
    does not have, or that has no GPU with a NIC at an OCS.
    """
    lab = parts.lab
    names = [host.name for host in hosts_of(lab, nodes)]
    locked, failed = await parts.closed_ports()
    busy = {host.endpoint: _jobs_at(parts, host) for host in lab.hosts}
    at = circuit_ports(lab, [nic for nic, jobs in busy.items() if jobs])
    staying = {ocs: {*ports} for ocs, ports in locked.items()}
    if not force:
        for ocs, port in at.values():
            staying.setdefault(ocs, set()).add(port)

    def decide(maps: Mapping[str, AnyMap]) -> dict[str, PortMap]:
        try:
            now, circuits = with_spectra(lab, maps), circuits_in(maps)
            return regroup(now, circuits, [names], locked=staying, failed=failed)
        except CannotRegroup as error:
            if force or not at:
                raise
            jobs = sorted({job for each in busy.values() for job in each})
            raise Refused(
                f"{', '.join(nodes)} cannot be brought together while the circuits of "
                f"{', '.join(jobs)} stay: {error.message}",
                hint="wait for the job, choose other nodes, or say --force: jobs pause while "
                "their light moves",
            ) from error

    return decide


def hosts_of(lab: Lab, nodes: Sequence[str]) -> list[Host]:
    """The hosts with a GPU of these servers and hosts, each once; ``BadInput`` as above."""
    if not nodes:
        raise BadInput("name the nodes to be brought together: servers of the lab, or hosts")
    servers = {server.name for server in lab.servers}
    found: dict[str, Host] = {}
    for name in nodes:
        hosts = [host for host in lab.hosts if name in servers and host.server.name == name]
        hosts = [host for host in hosts or [lab.host(name)] if host.gpu is not None]
        if not hosts:
            raise BadInput(f"{name} has no GPU with a NIC: there is nothing to bring together")
        found.update({host.name: host for host in hosts})
    return list(found.values())


def _jobs_at(parts: CircuitParts, host: Host) -> list[str]:
    return parts.traffic.jobs_using(frozenset({host.endpoint}))


async def lighting(parts: CircuitParts, pairs: Sequence[tuple[str, str]]) -> Decide:
    """What lights a path between the two ends of each pair, with the fewest changes.

    An end is a NIC or a host, a packet switch (any port of it), or a port of one. The ``Decide``
    raises ``NoLight`` where ports or trunks do not do. ``BadInput`` for an end that the lab does
    not have or that no fibre joins to a circuit switch, and for a pair of one end.
    """
    # SciPy takes a while to be imported, and a controller may never need it.
    from patchlight.controller.policies.engineering.paths import Wish, plan_paths
    from patchlight.controller.policies.engineering.traffic import CircuitSite, sites_of

    lab, sites = parts.lab, {site.name: site for site in sites_of(parts.lab)}
    wishes = []
    for pair in pairs:
        ends = [_site_name(lab, text) for text in pair]
        for text, end in zip(pair, ends, strict=True):
            if end in sites:
                continue
            at = lab.fibre_ends.get(Endpoint.parse(end)) if "." in end else None
            if at is None or at[0].device not in lab.circuit_fibres:
                raise BadInput(f"{text} is not plugged into an OCS: no fibre joins it to one")
            # A port that is named is an end by itself, and none of its switch's any more.
            port = at[0].device, int(at[0].port)
            for site in list(sites.values()):
                if port in site.ports:
                    left = tuple(each for each in site.ports if each != port)
                    sites[site.name] = CircuitSite(site.name, left, site.gpus)
            sites[end] = CircuitSite(end, (port,))
        if ends[0] == ends[1]:
            raise BadInput(f"{pair[0]}:{pair[1]} is one end: expected two different ones")
        wishes.append(Wish(ends[0], (ends[1],)))
    locked, failed = await parts.closed_ports()

    def decide(maps: Mapping[str, AnyMap]) -> Mapping[str, PortMap]:
        known = tuple(sites.values())
        return plan_paths(lab, circuits_in(maps), wishes, locked=locked, failed=failed, sites=known)

    return decide


def _site_name(lab: Lab, text: str) -> str:
    """The end that a text means; ``BadInput`` if the lab has none of that name."""
    if text in lab.host_names:
        return str(lab.host_names[text].endpoint)
    if any(switch.name == text for switch in lab.packet_switches):
        return text
    endpoint = Endpoint.parse(text)
    lab.device(endpoint.device)  # says so if there is none
    return text
