"""Polls packet switches by SNMP for their counters, and reads port states, LLDP neighbours and
learned MACs."""

import asyncio
import logging
import math
import re
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from patchlight.controller.packet_switches.ports import (
    EndNames,
    Matched,
    match_ports,
)
from patchlight.controller.packet_switches.snmp import (
    Column,
    SnmpAgent,
    SnmpFailed,
    SnmpSession,
    SnmpSessionFactory,
    Value,
)
from patchlight.testbed.errors import PatchlightError, in_words
from patchlight.testbed.lab.model import Endpoint, Lab, PacketSwitch
from patchlight.testbed.wire.probe_frames import (
    LldpNeighbour,
    lldp_probe_source,
    sender_of,
)

_log = logging.getLogger(__name__)

Octets = tuple[int, int]
"""Received and sent bytes."""

_MIB = (1, 3, 6, 1, 2, 1)
# IF-MIB: long name, MAC and state; names, counters of 64 bits, and the operator's description.
_IF_DESCR, _IF_MAC, _IF_STATE = ((*_MIB, 2, 2, 1, n) for n in (2, 6, 8))
_IF_NAME, _IF_IN, _IF_OUT, _IF_ALIAS = (
    (*_MIB, 31, 1, 1, 1, n) for n in (1, 6, 10, 18)
)
_UP = 1
_NOT_PRESENT = 6
# LLDP-MIB (IEEE 802.1AB): its own ports; the ids, description and name of the senders heard there.
_LLDP = (1, 0, 8802, 1, 1, 2, 1)
_LOCAL_ID, _LOCAL_ABOUT = ((*_LLDP, 3, 7, 1, n) for n in (3, 4))
_REMOTE = tuple((*_LLDP, 4, 1, 1, n) for n in (4, 5, 6, 7, 8, 9))
# Q-BRIDGE-MIB and BRIDGE-MIB: the bridge port of each learned MAC, and its interface.
_LEARNED = (*_MIB, 17, 7, 1, 2, 2, 1, 2), (*_MIB, 17, 4, 3, 1, 2)
_BRIDGE_PORT_INTERFACE = (*_MIB, 17, 1, 4, 1, 2)
_MAC_NUMBERS = 6

_EVERY_S = 2.0
# The same when an agent is about to renew the counters in its cache, and how late that may be seen.
_OFTEN_S = 0.15
_DOUBT_S = 0.5
# A slow switch is polled for this share of the time at most.
_SHARE = 0.1
_INTERFACES_EVERY_S = 60.0
# Agents cache their counters, for up to 15 s: only then are equal ones an idle switch.
_CACHED_S = 20.0
_LOOK_S = 2.0
_LAST_NUMBER = re.compile(r"(.*?)(\d+)")


@dataclass
class _Cache:
    """When an agent renews the counters that it gives; times are Unix times.

    Agents keep counters for some seconds (net-snmp 3 s), and do not say how old they are. So polls
    are frequent until it is known when they change, and then whenever a change is due.
    """

    period_s: float = 0.0
    renewed_at: float = 0.0
    doubt_s: float = math.inf
    """How long before ``renewed_at`` they were still the same."""
    seen_at: float = -math.inf
    was_new: bool = False
    is_without: bool = False

    def seen(self, at: float, *, new: bool) -> None:
        """A poll at this time had new counters, or the same."""
        since_s = at - self.seen_at
        self.seen_at = at
        self.is_without |= new and self.was_new and since_s < _DOUBT_S
        self.was_new = new
        if not new:
            return
        was_sure = self.is_sure
        before = self.renewed_at
        self.doubt_s = 0.0 if self.is_without else since_s
        self.renewed_at = at
        period_s = (
            at - before
            if was_sure and self.is_sure and not self.is_without
            else 0.0
        )
        # While nothing is counted, there are no changes.
        if not 0 < 1.5 * self.period_s < period_s:
            self.period_s = period_s

    @property
    def is_sure(self) -> bool:
        """Whether the age of the last new counters is known."""
        return self.doubt_s < _DOUBT_S

    def pause_s(self, now: float) -> float:
        """How long to wait before the next poll."""
        if not self.period_s:
            is_idle = self.is_without or now - self.renewed_at > _CACHED_S
            return _EVERY_S if is_idle else _OFTEN_S
        early_s = self.doubt_s + _OFTEN_S
        periods = max(
            1, math.ceil((now - self.renewed_at - early_s) / self.period_s)
        )
        due_s = self.renewed_at + periods * self.period_s - now
        return min(_EVERY_S, max(_OFTEN_S, due_s - early_s))


@dataclass
class _Polled:
    """What is known of one switch: the interface of each port, why others are ``missing``, what
    ports were ``called``, the names of all interfaces with their ends; the last new counters."""

    agent: SnmpAgent
    ports: Mapping[int, int] = field(default_factory=dict)
    missing: Mapping[int, str] = field(default_factory=dict)
    called: Mapping[int, str] = field(default_factory=dict)
    claims: Sequence[tuple[str, str]] = ()
    since: float = -_INTERFACES_EVERY_S
    octets: Mapping[int, Octets] = field(default_factory=dict)
    new_at: float = 0.0
    cache: _Cache = field(default_factory=_Cache)
    problem: str | None = None


@dataclass
class HeardBySwitch:
    """A switch's ports, why others are ``silent``, those that are up, and senders received there:
    of probes, of other LLDP."""

    ends: set[str] = field(default_factory=set)
    silent: dict[str, str] = field(default_factory=dict)
    up: set[str] = field(default_factory=set)
    probes: set[tuple[str, str]] = field(default_factory=set)
    neighbours: set[tuple[LldpNeighbour, str]] = field(default_factory=set)


class Telemetry:
    """The SNMP agents of a lab's packet switches. ``count`` receives a switch's counters: its name,
    the time, and bytes by port number; ``miss`` the ports that a switch without a driver does not
    have, and why; ``open_session`` connects to an agent."""

    def __init__(
        self,
        lab: Lab,
        count: Callable[[str, float, Mapping[int, Octets]], None],
        netns: Path | None = None,
        miss: Callable[[str, Mapping[int, str]], None] = lambda *_: None,
        open_session: SnmpSessionFactory = SnmpSession,
    ) -> None:
        self._lab = lab
        self._count = count
        self._miss = miss
        self._polled = {
            s.name: _Polled(
                SnmpAgent(s.name, open_session(s.name, s.snmp, netns))
            )
            for s in lab.packet_switches
            if s.snmp
        }

    @property
    def problems(self) -> dict[str, str | None]:
        """Why SNMP does not work, by switch that has it; ``None`` if it does."""
        return {name: polled.problem for name, polled in self._polled.items()}

    def close(self) -> None:
        """Close all sockets."""
        for polled in self._polled.values():
            polled.agent.close()

    async def run(self) -> None:
        """Poll every switch; none waits for another."""
        async with asyncio.TaskGroup() as polling:
            for name in self._polled:
                polling.create_task(self._watch(name))
            await asyncio.Event().wait()

    async def _watch(self, name: str) -> None:
        polled = self._polled[name]
        while True:
            began = time.monotonic()
            before = polled.problem
            try:
                await self._poll(name, polled)
                polled.problem = None
            except PatchlightError as error:
                polled.problem = in_words(error)
                polled.since = -_INTERFACES_EVERY_S
            if polled.problem != before:
                words = polled.problem or f"{name} answers by SNMP"
                _log.log(
                    logging.WARNING if polled.problem else logging.INFO,
                    "%s",
                    words,
                )
            took_s = time.monotonic() - began
            pause_s = polled.cache.pause_s(time.time()) - took_s
            is_slow = took_s > _OFTEN_S
            await asyncio.sleep(
                max(pause_s, took_s * (1 / _SHARE - 1) if is_slow else took_s)
            )

    async def _poll(self, name: str, polled: _Polled) -> None:
        await self._know_interfaces(name, polled)
        rows = polled.ports.values()
        received, sent = await polled.agent.walk(_IF_IN, _IF_OUT, rows=rows)
        at = time.time()
        octets = dict[int, Octets]()
        for port, index in polled.ports.items():
            counted = received.get((index,)), sent.get((index,))
            if isinstance(counted[0], int) and isinstance(counted[1], int):
                octets[port] = counted[0], counted[1]
        is_new = octets != polled.octets
        polled.cache.seen(at, new=is_new)
        if any(
            octets.get(port, (-1,)) < then
            for port, then in polled.octets.items()
        ):
            # It has restarted, and may number its interfaces differently.
            polled.since = -_INTERFACES_EVERY_S
        polled.octets = octets
        polled.new_at = polled.new_at or at
        if is_new and polled.cache.is_sure:
            at = polled.cache.renewed_at
        elif at - polled.new_at < _CACHED_S:
            at = 0.0
        if at:
            polled.new_at = at
            self._count(name, at, octets)
        if missing := polled.ports.keys() - octets.keys():
            ports = "any port" if not octets else f"port {min(missing)}"
            raise SnmpFailed(
                f"{name} has no 64-bit counters of {ports} (SNMP's ifHCInOctets): the NICs' own "
                f"counters are shown for them"
            )
        if polled.missing:
            raise SnmpFailed(
                f"{name} has {polled.missing[min(polled.missing)]} (SNMP)"
            )

    async def _know_interfaces(self, name: str, polled: _Polled) -> None:
        if time.monotonic() - polled.since < _INTERFACES_EVERY_S:
            return
        names, aliases = await polled.agent.walk(_IF_NAME, _IF_ALIAS)
        long_names, macs, states = await polled.agent.walk(
            _IF_DESCR, _IF_MAC, _IF_STATE
        )
        # A part that was taken out may keep its row.
        names = {
            row: name
            for row, name in names.items()
            if states.get(row) != _NOT_PRESENT
        }
        switch = self._switch(name)
        used = {
            int(end.port) for end in self._lab.fibre_ends if end.device == name
        } or {1}
        named = _by_index(names)
        called = Interfaces(named, _by_index(long_names), _by_index(aliases))
        matched = _interfaces_again(
            switch,
            used,
            called,
            polled.called,
        )
        polled.ports = matched.found
        polled.missing = matched.missing
        was_there = polled.called.keys()
        polled.called = {
            **polled.called,
            **{p: named[i] for p, i in matched.found.items()},
        }
        if switch.learns:
            told = matched.missing.items()
            self._miss(
                name,
                {p: w for p, w in told if switch.interfaces or p in was_there},
            )
        polled.claims = [
            *_claims_of(
                name,
                polled.ports,
                called,
                macs,
            )
        ]
        polled.since = time.monotonic()

    async def heard(self, name: str, token: str) -> HeardBySwitch | None:
        """What a switch has heard of a search with this token; ``None`` for one without SNMP."""
        polled = self._polled.get(name)
        if polled is None:
            return None
        await self._know_interfaces(name, polled)
        (states,) = await polled.agent.walk(
            _IF_STATE, rows=polled.ports.values()
        )
        by_index = {
            index: f"{name}.{port}" for port, index in polled.ports.items()
        }
        found = HeardBySwitch(ends=set(by_index.values()))
        found.silent = {
            f"{name}.{p}": f"{name} has {why}"
            for p, why in polled.missing.items()
        }
        found.up = {
            end
            for index, end in by_index.items()
            if states.get((index,)) == _UP
        }
        remote = await polled.agent.walk(*_REMOTE)
        local = await polled.agent.walk(_LOCAL_ID, _LOCAL_ABOUT)
        claims = EndNames(polled.claims)
        ends = dict[int, str]()
        for column in local:
            for (number, *_), said in column.items():
                end = claims.only(f"{name} {_text(said)}") or claims.only(
                    _mac(said)
                )
                if end is not None:
                    ends.setdefault(number, end)
        for row in remote[0]:
            number = row[1]
            # A port of LLDP without an interface's name or own MAC has its number.
            end = ends.get(number) or by_index.get(number)
            chassis, chassis_id, port, port_id, about, system = (
                _of(c, row) for c in remote
            )
            if end not in found.ends:
                continue
            source = lldp_probe_source(port_id, about, token)
            if source is not None:
                found.probes.add((source, end))
            fields = {
                1: chassis + chassis_id,
                2: port + port_id,
                4: about,
                5: system,
            }
            # Older neighbours stay for a while at ports that are down.
            if (
                end in found.up
                and (neighbour := sender_of(fields)) is not None
            ):
                found.neighbours.add((neighbour, end))
        return found

    async def behind(self, macs: Collection[str]) -> dict[str, str]:
        """The port of a packet switch behind which each of these MACs is, as the switch says by
        SNMP; none where another packet switch is plugged in."""
        found = defaultdict[str, set[str]](set)
        switches = {switch.name for switch in self._lab.packet_switches}
        answering = {
            name: p
            for name, p in self._polled.items()
            if macs and not p.problem
        }
        for name, polled in answering.items():
            learned = list[tuple[str, str]]()
            with suppress(PatchlightError, TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    learned = await self._learned(name, polled)
            for mac, end in learned:
                there = self._lab.fibre_ends.get(Endpoint.parse(end))
                if mac in macs and (
                    there is None or there[0].device not in switches
                ):
                    found[mac].add(end)
        return {
            mac: min(ends) for mac, ends in found.items() if len(ends) == 1
        }

    async def _learned(
        self, name: str, polled: _Polled
    ) -> list[tuple[str, str]]:
        await self._know_interfaces(name, polled)
        by_index = {
            index: f"{name}.{port}" for port, index in polled.ports.items()
        }
        (interfaces,) = await polled.agent.walk(_BRIDGE_PORT_INTERFACE)
        for column in _LEARNED:
            (rows,) = await polled.agent.walk(column)
            found = []
            for row, bridge_port in rows.items():
                index = interfaces.get((int(bridge_port),), bridge_port)
                if end := by_index.get(int(index)):
                    found.append((bytes(row[-_MAC_NUMBERS:]).hex(":"), end))
            if rows:
                return found
        return []

    def claims(self) -> Iterator[tuple[str, str]]:
        """The names of all switches' interfaces, each with its end: MACs, and ``tor1 swp3``."""
        for polled in self._polled.values():
            yield from polled.claims

    def _switch(self, name: str) -> PacketSwitch:
        return next(s for s in self._lab.packet_switches if s.name == name)


class Interfaces(NamedTuple):
    """A switch's interfaces by index: names, long names, and the operator's descriptions."""

    names: Mapping[int, str]
    long_names: Mapping[int, str]
    about: Mapping[int, str]


def interfaces_of(
    switch: PacketSwitch,
    used: Collection[int],
    there: Interfaces,
) -> Matched[int]:
    """The interface's index of each ``used`` port of a switch, where it is unambiguous.

    Port 3 is the third of the lab file's ``interfaces``: a name, long name or index; else the one
    described as ``tor1.3``; else the one whose name ends in 3, if all ports' names begin alike
    and count from 1. ``SnmpFailed`` if no port can be identified.
    """
    names = there.names
    if not names:
        raise SnmpFailed(
            f"{switch.name} shows no ifXTable by SNMP, with names and 64-bit counters: include "
            f"IF-MIB in its SNMP view"
        )
    if switch.interfaces:
        wanted = {port: switch.interfaces[port - 1] for port in used}
        rows = {
            n: [name, there.long_names.get(n, ""), str(n)]
            for n, name in names.items()
        }
        return match_ports(wanted, rows, shown=names)
    wanted = {port: f"{switch.name}.{port}" for port in used}
    if set(wanted.values()) & set(there.about.values()):
        rows = {n: [name, there.about.get(n, "")] for n, name in names.items()}
        return match_ports(wanted, rows, shown=names)
    beginnings = defaultdict[str, set[int]](set)
    for name in names.values():
        if match := _LAST_NUMBER.fullmatch(name):
            beginnings[match[1]].add(int(match[2]))
    fit = [
        begin
        for begin, numbers in sorted(beginnings.items())
        if numbers >= set(used)
    ]
    fit = [begin for begin in fit if begin.rstrip("-._") == switch.name] or fit
    if len(fit) == 1 and 0 not in beginnings[fit[0]]:
        wanted = {port: f"{fit[0]}{port}" for port in used}
        return match_ports(
            wanted, {n: [name] for n, name in names.items()}, shown=names
        )
    why = (
        f"ports may be {', '.join(f'{f}{min(used)}' for f in fit)}"
        if fit
        else "no names fit"
    )
    if len(fit) == 1:
        why = f"those of {fit[0]} begin with 0, the lab file's ports with 1"
    raise SnmpFailed(
        f"{switch.name} has interfaces {', '.join(sorted(names.values())[:5])}…, and {why}: "
        "name its ports in the lab file with 'interfaces', or describe them there as "
        f"{switch.name}.1, …"
    )


def _interfaces_again(
    switch: PacketSwitch,
    used: Collection[int],
    there: Interfaces,
    called: Mapping[int, str],
) -> Matched[int]:
    """The same of a switch whose ports were ``called`` so: if one has gone, the names of the others
    may no longer show which they are."""
    rows = {index: [name] for index, name in there.names.items()}
    before = match_ports(called, rows, shown=there.names)
    try:
        matched = interfaces_of(switch, used, there)
    except SnmpFailed:
        if not before.found:
            raise
        return before
    return before if matched.missing and before.found else matched


def _claims_of(
    switch: str,
    ports: Mapping[int, int],
    there: Interfaces,
    macs: Column,
) -> Iterator[tuple[str, str]]:
    numbers = {index: port for port, index in ports.items()}
    for index, name in there.names.items():
        end = (
            f"{switch}.{numbers[index]}"
            if index in numbers
            else f"{switch} port {name}"
        )
        said = {
            name,
            there.long_names.get(index, ""),
            there.about.get(index, ""),
        }
        if index in numbers:
            said.add(str(index))
        for text in sorted(said - {""}):
            yield f"{switch} {text}", end
        if mac := _mac(macs.get((index,))):
            yield mac, end


def _by_index(column: Column) -> dict[int, str]:
    return {index: _text(value) for (index, *_), value in column.items()}


def _text(value: Value) -> str:
    return (
        value.decode(errors="replace").strip("\0")
        if isinstance(value, bytes)
        else str(value)
    )


def _mac(value: Value | None) -> str:
    return (
        value.hex(":") if isinstance(value, bytes) and len(value) == 6 else ""
    )


def _of(column: Column, row: tuple[int, ...]) -> bytes:
    """A value as in an LLDP frame: kinds of ids are one byte."""
    value = column.get(row, b"")
    return value if isinstance(value, bytes) else bytes([value])
