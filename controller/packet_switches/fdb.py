"""Drives switches with a static forwarding table (FDB) by commands over SSH.

A table is a mapping of texts: a MAC leads to an interface, and an IPv4 address to the MAC that the
switch answers for it. A record on the switch, which a restart of it removes, holds the entries that
Patchlight has set and the settings from before: the next controller knows them, and nothing of
others is changed.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from patchlight.controller.circuits.contract import DeviceRefused
from patchlight.controller.circuits.dialect import (
    DEFAULT_TIMEOUTS,
    Session,
    Timeouts,
)
from patchlight.controller.circuits.protocols.ssh_commands import (
    CommandClient,
    CommandConnection,
    CommandDialect,
    Login,
)
from patchlight.controller.packet_switches.contract import (
    Applied,
    Lack,
    PortState,
    Station,
    SwitchState,
    Wish,
)
from patchlight.controller.packet_switches.ports import Matched
from patchlight.testbed.lab.model import PacketSwitch

Table = Mapping[str, str]
_MARK = "--- patchlight ---"


@dataclass(
    frozen=True,
    slots=True,
)
class Record:
    """The entries that Patchlight has set, also those that it has tried to replace or remove, and
    the settings of interfaces from before."""

    ours: Mapping[str, Sequence[str]] = field(default_factory=dict)
    before: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> "Record":
        """The record in a file; an empty one if that is empty or damaged."""
        try:
            value = json.loads(text)
            return cls(dict(value["ours"]), dict(value["before"]))
        except (ValueError, KeyError, TypeError):
            return cls()

    def text(self) -> str:
        """As in the file."""
        return json.dumps(
            {"ours": dict(self.ours), "before": dict(self.before)}
        )


@dataclass(
    frozen=True,
    slots=True,
)
class Found:
    """What a switch has: its static entries, its ports by interface, and the present settings."""

    table: Table
    ports: Mapping[str, PortState]
    settings: Mapping[str, Any]
    record: Record


@dataclass(
    frozen=True,
    slots=True,
)
class TableChange:
    """What turns one table into another; ``held`` are keys with an entry of others, which stays."""

    removes: Table
    adds: Table
    held: Table


def plan(
    have: Table,
    ours: Mapping[str, Sequence[str]],
    wanted: Table,
) -> TableChange:
    """The smallest change to the wanted entries that leaves those of others."""
    own = {
        key: value for key, value in have.items() if value in ours.get(key, ())
    }
    removes = {key: value for key, value in own.items() if key not in wanted}
    adds = {}
    held = {}
    for key, value in wanted.items():
        if have.get(key) == value:
            continue
        if key in have and key not in own:
            held[key] = have[key]
        else:
            adds[key] = value
    return TableChange(removes, adds, held)


class FdbDriver(ABC):
    """See ``PacketSwitchDriver``. ``login`` connects to the switch."""

    _answers_arp = False

    def __init__(
        self,
        switch: PacketSwitch,
        password: str,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
        login: Login = CommandConnection.log_in,
    ) -> None:
        self._switch = switch
        session = Session.of(switch, password, timeouts)
        self._client = CommandClient(session, CommandDialect(), login)
        self._wish = Wish()
        self._interfaces: Mapping[int, str] = {}
        self._missing: Mapping[int, str] = {}

    @property
    def name(self) -> str:
        """The switch's name in the lab."""
        return self._switch.name

    async def open(self) -> None:
        """Connect and log in."""
        await self._client.open()

    async def close(self) -> None:
        """Log out; the switch goes on forwarding."""
        await self._client.close()

    async def set_forwarding(self, wish: Wish) -> Applied:
        """Change what differs from the wish, and read it back."""
        self._wish = wish
        found = await self._found()
        wanted = self._table(wish)
        change = plan(found.table, found.record.ours, wanted)
        settings = self._settings_to_change(found)
        words = ""
        if change.removes or change.adds or settings:
            # It is written first: after a crash, whatever was set of it is known to be ours.
            own = {
                k: v
                for k, v in found.table.items()
                if v in found.record.ours.get(k, ())
            }
            ours = {k: [v] for k, v in own.items()}
            # A switch may refuse to replace an entry: the old one remains ours, too.
            ours |= {
                k: list({v, own.get(k, v)}) for k, v in change.adds.items()
            }
            before = {
                **{k: found.settings[k] for k in settings},
                **found.record.before,
            }
            record = Record(ours, before)
            words = await self._change(
                change.removes,
                change.adds,
                settings,
                record,
            )
            found = await self._found()
        changed = len(change.removes) + sum(
            found.table.get(key) == value for key, value in change.adds.items()
        )
        lacks = tuple(
            self._lacks(
                wish,
                wanted,
                found,
                change.held,
                words,
            )
        )
        return Applied(changed, lacks, self._foreign(found, wanted))

    async def read(self) -> SwitchState:
        """The present forwarding and counters."""
        found = await self._found()
        wanted = self._table(self._wish)
        by_interface = {
            interface: port for port, interface in self._interfaces.items()
        }
        places = {}
        for station in self._wish.places:
            port = by_interface.get(found.table.get(station.mac, ""))
            keys = [key for key in self._keys(station) if key != station.mac]
            settled = all(
                found.table.get(key) == wanted.get(key) for key in keys
            )
            if (
                port is not None
                and settled
                and not self._settings_to_change(found)
            ):
                places[station] = port
        ports = {
            port: found.ports[interface]
            for port, interface in self._interfaces.items()
            if interface in found.ports
        }
        missing = {
            port: self._missing_words(port)
            for port in self._wish.ports - ports.keys()
        }
        return SwitchState(
            places,
            ports,
            self._foreign(found, wanted),
            missing,
        )

    async def release(self) -> None:
        """Remove what Patchlight has set, and restore the settings from before."""
        found = await self._found()
        self._wish = Wish()
        if removes := plan(found.table, found.record.ours, {}).removes:
            words = await self._change(
                removes,
                {},
                {},
                found.record,
            )
            found = await self._found()
            if left := plan(found.table, found.record.ours, {}).removes:
                message = (
                    f"{self.name}: {len(left)} of Patchlight's entries remain"
                )
                raise DeviceRefused(message, words=words)
        await self._change(
            {},
            {},
            found.record.before,
            None,
        )

    # -- what a kind of switch adds -----------------------------------------------------------

    @abstractmethod
    async def _found(self) -> Found:
        """What the switch has now; calls ``_know_ports``."""

    @abstractmethod
    async def _change(
        self,
        removes: Table,
        adds: Table,
        settings: Mapping[str, Any],
        record: Record | None,
    ) -> str:
        """Write the record (``None``: remove it), change settings and entries; returns what the
        switch refused, as it says it."""

    @abstractmethod
    def _settings_to_change(self, found: Found) -> Mapping[str, Any]:
        """The settings that the wish's ports lack."""

    def _reason(self, words: str) -> str:
        """What the switch said, in the terms of every switch."""
        lines = [
            line.strip()
            for line in words.splitlines()
            if not line.startswith("Command failed")
        ]
        last = next(
            filter(None, reversed(lines)), "it does not appear in the table"
        )
        full = (
            "no space left",
            "no buffer space",
            "table full",
            "table is full",
        )
        return (
            "table full"
            if any(text in words.lower() for text in full)
            else last.removeprefix("RTNETLINK answers: ")[:200]
        )

    # -- the rest ---------------------------------------------------------------------------

    async def _read_all(self, *commands: str) -> list[str]:
        """The output of each of these commands."""
        script = f"\necho; echo '{_MARK}'\n".join(commands)
        # Without a login shell the path may lack the system's programs.
        text = f"PATH=$PATH:/usr/sbin:/sbin\n{script}\nexit 0\n"
        output, _ = await self._client.run("sh", text)
        return [part.strip() for part in output.split(f"\n{_MARK}\n")]

    async def _run_as_root(self, script: str) -> str:
        """Run a shell script that changes something; returns its errors."""
        command = "sh" if self._switch.user == "root" else "sudo -n sh"
        text = f"PATH=$PATH:/usr/sbin:/sbin\n{script}\n"
        _, errors = await self._client.run(command, text, changes=True)
        return errors

    def _know_ports(
        self, matched: Matched[str], there: Collection[str]
    ) -> None:
        """Store the ports' interfaces, as far as they are ``there``."""
        self._interfaces = {
            p: name for p, name in matched.found.items() if name in there
        }
        self._missing = {
            **matched.missing,
            **{
                port: f"no port {port}: {name} is not a port of {self._joined_in()}"
                for port, name in matched.found.items()
                if name not in there
            },
        }

    def _missing_words(self, port: int) -> str:
        return self._missing.get(port, f"no port {port}")

    def _keys(self, station: Station) -> list[str]:
        return [
            station.mac,
            *([str(station.address)] if self._answers_arp else []),
        ]

    def _table(self, wish: Wish) -> Table:
        table: dict[str, str] = {}
        for station, port in wish.places.items():
            if port in self._interfaces:
                values = (self._interfaces[port], station.mac)
                table.update(zip(self._keys(station), values, strict=False))
        return table

    def _lacks(
        self,
        wish: Wish,
        wanted: Table,
        found: Found,
        held: Table,
        words: str,
    ) -> Iterable[Lack]:
        for station, port in wish.places.items():
            keys = self._keys(station)
            if port not in self._interfaces:
                yield Lack(station, self._missing_words(port))
            elif other := next(
                (held[key] for key in keys if key in held), None
            ):
                yield Lack(station, f"another entry points to {other}")
            elif any(found.table.get(key) != wanted[key] for key in keys):
                yield Lack(station, self._reason(words))

    def _foreign(self, found: Found, wanted: Table) -> tuple[str, ...]:
        ours = found.record.ours
        interfaces = set(self._lab_interfaces())
        others = {
            key: value
            for key, value in found.table.items()
            if value not in ours.get(key, ())
            and wanted.get(key) != value
            and (key in wanted or value in interfaces)
        }
        return tuple(
            f"another's entry {key} -> {value}"
            for key, value in sorted(others.items())
        )

    def _lab_interfaces(self) -> Sequence[str]:
        return [
            self._interfaces[p]
            for p in sorted(self._wish.ports)
            if p in self._interfaces
        ]

    def _joined_in(self) -> str:
        return self._switch.bridge

    def _nonsense(
        self,
        what: str,
        text: str,
        error: Exception,
    ) -> DeviceRefused:
        said = text.strip()[:100]
        return DeviceRefused(
            f"{self.name}: unexpected answer to {what}: {said!r}",
            words=str(error),
        )


def quoted_lines(lines: Collection[str]) -> str:
    """Lines as the input of a command of a shell script; none may be the mark of its end."""
    return (
        "<<'PATCHLIGHT'\n"
        + "".join(f"{line}\n" for line in lines)
        + "PATCHLIGHT"
    )
