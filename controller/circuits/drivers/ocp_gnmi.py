"""The driver ``ocp-gnmi``: OCP's model of an optical circuit switch (0.8.0), over gNMI.

A cross-connect is an entry of ``/connections``, from an input to an output; it is up when its
status is ``CONNECTED``. A call is one ``Set``. Names of new entries begin with ``owner`` and are
never used again; entries of other names belong to other clients, and stay. Tested with the emulated
device only; ``docs/ocs-drivers.md`` has the gaps of the model, and what this driver makes of each.
"""

import asyncio
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from patchlight.controller.circuits import contract
from patchlight.controller.circuits.dialect import (
    DEFAULT_TIMEOUTS,
    NumberedDialect,
    Template,
    Timeouts,
    filled,
)
from patchlight.controller.circuits.drivers.base import (
    NumberedDriver,
    Numbering,
)
from patchlight.controller.circuits.drivers.table import Row, RowState
from patchlight.controller.circuits.protocols import gnmi
from patchlight.testbed.lab.model import OpticalSwitch
from patchlight.testbed.lab.portmap import CrossConnect


@dataclass(frozen=True)
class OcpGnmiDialect(gnmi.GnmiDialect, NumberedDialect):
    """What a switch with OCP's model takes.

    ``owner``: how names of Patchlight's entries begin; with an empty one every entry is its own.
    ``input_port`` and ``output_port`` are names of components, with ``{port}``; if empty, the ports
    of a group ``INPUT-ONLY`` are inputs and those of ``OUTPUT-ONLY`` outputs, in the order of
    their ``index``, and of a group ``ANY`` the first half are inputs. ``monitors``: the sides with
    power monitors, like ``"in,out"``; if empty, those that ever told a power.
    """

    FIELDS: ClassVar[frozenset[str]] = frozenset({"port"})

    models: str = (
        "ocp-ocs-optical-switch ocp-ocs-optical-switch-connections "
        "ocp-ocs-optical-switch-port"
    )
    owner: str = "patchlight-"
    input_port: Template = ""
    output_port: Template = ""
    monitors: str = ""
    chassis: str = "/components/component[name=chassis]/state"
    alarms: str = "/system/alarms"
    vendor: str = "OCP"
    list_limit: int = 1 << 16


OCP = OcpGnmiDialect()
_STATES: Mapping[str, RowState] = {
    "CONNECTED": "up",
    "FAILED": "failed",
    "INVALID": "entered",
}
_GOING = "PENDING_DELETION"
_PORT = ("components", ("component", "*"), "ocp-ocs-port")
_ENTRY = ("connections", ("port-connection", "*"), "state")
_POWER: Mapping[contract.Side, str] = {
    "in": "input-optical-power",
    "out": "output-optical-power",
}
_SEVERITIES: Mapping[str, contract.Severity] = {
    "CRITICAL": "critical",
    "MAJOR": "major",
    "MINOR": "minor",
}
_POLL_S = 0.02
_SETTLE_S = 10.0
_FEW = 16


class OcpGnmi(NumberedDriver):
    """A switch with OCP's model. See ``CircuitDriver`` for the methods."""

    built_in = OCP
    client_class = gnmi.GnmiClient
    client: gnmi.GnmiClient
    _dialect: OcpGnmiDialect
    # A device answers before its mirrors rest.
    _looks_at_once = False

    def __init__(
        self,
        switch: OpticalSwitch,
        password: str,
        dialect: OcpGnmiDialect | None = None,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
    ) -> None:
        super().__init__(
            switch,
            password,
            dialect,
            timeouts,
        )
        self._names: dict[contract.DirectedPort, str] = {}
        self._ports: dict[str, contract.DirectedPort] = {}
        self._group_of: dict[str, str] = {}
        self._joins: dict[str, set[str]] = {}
        self._fresh: set[str] = set()
        self._invalid: list[str] = []
        self._errors: dict[str, int] = {}
        self._monitored: set[contract.Side] = set()
        self.client.on_change = (
            (*_ENTRY, "status"),
            (*_ENTRY, "status-reason"),
            (*_PORT, "state", "status"),
        )
        self.client.sampled = (
            *((*_PORT, "state", power) for power in _POWER.values()),
            (*_PORT, "state", "counters", "total-error-count"),
        )
        self.client.heard = self._heard

    async def identify(self) -> contract.Identity:
        """From the component of the chassis, if there is one."""
        dialect = self._dialect
        steps = gnmi.parsed_path(dialect.chassis)
        state = await self._optional(steps)
        return contract.Identity(
            str(state.get("mfg-name") or dialect.vendor),
            str(state.get("part-no") or "optical-switch"),
            str(state.get("serial-no", "")),
            str(state.get("software-version", "")),
            str(state.get("description", "")),
        )

    async def port_states(self) -> contract.PortStates:
        """Locked means not enabled; the device itself reports failed."""
        await self._numbering()
        found = gnmi.at(
            await self.client.get(_PORT), "components", "component"
        )
        states = {}
        for port in self._all_ports():
            ocs_port = gnmi.at(found, self._names[port], "ocp-ocs-port")
            state = gnmi.at(ocs_port, "state")
            words = str(state.get("status", ""))
            condition: contract.Condition = "ready"
            if not ocs_port:
                condition = "absent"
                words = "not listed"
            elif (gnmi.at(ocs_port, "config") | state).get("enabled") is False:
                condition = "locked"
                words = f"disabled, {words}"
            elif words == "FAILED":
                condition = "failed"
            states[port] = contract.PortState(condition, words)
        return states

    async def power(
        self, ports: Iterable[contract.DirectedPort]
    ) -> contract.Powers:
        """At inputs what enters, at outputs what leaves; only on sides with monitors."""
        asked = self._checked_ports(ports)
        await self._numbering()
        names = [self._names[port] for port in asked]
        if not names:
            return {}
        tree = await self.client.get(
            *(
                ("components", ("component", name), "ocp-ocs-port", "state")
                for name in (names if len(names) <= _FEW else ["*"])
            )
        )
        powers = self._powers_in(tree)
        return {
            port: powers.get(port)
            for port in asked
            if port.side in self._monitored
        }

    async def alarms(self) -> tuple[contract.Alarm, ...]:
        """The device's list of alarms, and what it told of entries, ports and errors."""
        found = gnmi.at(
            await self._optional(gnmi.parsed_path(self._dialect.alarms)),
            "alarm",
        )
        alarms = self.client.alarms
        rows = [gnmi.at(row, "state") for row in found.values()]
        alarms.stands(
            contract.Standing(
                _SEVERITIES.get(
                    str(row.get("severity")).rpartition(":")[2], "notice"
                ),
                self.client.shown(str(row.get("resource", ""))),
                self.client.shown(str(row.get("text", ""))),
            )
            for row in rows
        )
        return alarms.all

    async def _optional(self, steps: gnmi.Steps) -> dict[str, Any]:
        """What the device has there; empty if it has no such path."""
        if not steps:
            return {}
        try:
            tree = await self.client.get(steps)
        except contract.DeviceRefused as refusal:
            if refusal.code == "PERMISSION_DENIED":
                raise
            tree = {}
        return gnmi.at(tree, *gnmi.keys_of(steps))

    async def _learn(self) -> Numbering:
        tree = await self.client.get(
            ("optical-switch", "state"),
            (*_PORT, "state"),
        )
        groups = gnmi.at(tree, "optical-switch", "state", "port-groups")
        self._joins = {
            name: {*gnmi.at(group, "connection-groups")}
            for name, group in groups.items()
        }
        states = {
            name: state
            for name, row in gnmi.at(tree, "components", "component").items()
            if (state := gnmi.at(row, "ocp-ocs-port", "state"))
        }
        self._group_of = {
            name: str(state.get("group", "")) for name, state in states.items()
        }
        try:
            indices = {n: int(s.get("index", 0)) for n, s in states.items()}
        except (TypeError, ValueError) as error:
            raise self._nonsense("Get of its ports", str(error)) from error
        by_index = sorted(states, key=lambda name: (indices[name], name))
        sides = self._sides(
            by_index, {n: g.get("direction", "ANY") for n, g in groups.items()}
        )
        self._names = {
            contract.DirectedPort(side, number): name
            for side, names in sides.items()
            for number, name in enumerate(names, 1)
        }
        self._ports = {name: port for port, name in self._names.items()}
        self._monitored = set()
        self.capabilities = contract.Capabilities()
        for side in contract.SIDES:
            if side in self._dialect.monitors.split(","):
                self._has_monitor(side)
        self._powers_in(tree)
        return Numbering.polatis(len(sides["in"]), len(sides["out"]))

    def _sides(
        self, by_index: Sequence[str], directions: Mapping[str, str]
    ) -> dict[contract.Side, list[str]]:
        """The names of inputs and outputs, in the order of their canonical numbers."""
        members: dict[str, list[str]] = {}
        for name in by_index:
            members.setdefault(self._group_of[name], []).append(name)
        inputs = set[str]()
        for group, names in members.items():
            direction = directions.get(group, "ANY")
            half = {"INPUT-ONLY": len(names), "OUTPUT-ONLY": 0}.get(
                direction, len(names) // 2
            )
            inputs.update(names[:half])
        found: dict[contract.Side, list[str]] = {"in": [], "out": []}
        for name in by_index:
            found["in" if name in inputs else "out"].append(name)
        templates = self._dialect.input_port, self._dialect.output_port
        for side, template in zip(contract.SIDES, templates, strict=True):
            if template:
                given = (
                    filled(template, str, port=n)
                    for n in range(1, self.ports + 1)
                )
                found[side] = [name for name in given if name in by_index]
        return found

    def _powers_in(
        self, tree: gnmi.Tree
    ) -> dict[contract.DirectedPort, float]:
        """The powers that the ports of the tree tell; a side that tells one has monitors."""
        powers = {}
        for name, row in gnmi.at(tree, "components", "component").items():
            if (port := self._ports.get(name)) is None:
                continue
            state = gnmi.at(row, "ocp-ocs-port", "state")
            try:
                powers[port] = float(state[_POWER[port.side]])
            except KeyError:
                continue
            except (TypeError, ValueError) as error:
                raise self._nonsense("Get of powers", str(error)) from error
            self._has_monitor(port.side)
        return powers

    def _has_monitor(self, side: contract.Side) -> None:
        self._monitored.add(side)
        self.capabilities = contract.Capabilities(
            power_in="in" in self._monitored,
            power_out="out" in self._monitored,
        )

    async def _rows(self, numbering: Numbering) -> Mapping[CrossConnect, Row]:
        entries = gnmi.at(
            await self.client.get(("connections",)),
            "connections",
            "port-connection",
        )
        table: dict[CrossConnect, Row] = {}
        self._invalid = []
        for name, entry in entries.items():
            state = gnmi.at(entry, "config") | gnmi.at(entry, "state")
            ports = [
                self._ports.get(str(state.get(f"{side}put-port-name")))
                for side in contract.SIDES
            ]
            status = str(state.get("status", "its status is not reported"))
            told = state.get("status-reason")
            words = f"{status}: {told}" if told else status
            words = self.client.shown(words)
            if status == "INVALID" and name not in self._fresh:
                # It holds no port. What is ours goes with the next Set.
                self._invalid += [name] * self._is_ours(name)
                continue
            inp, out = ports
            if (
                inp is None
                or out is None
                or (inp.side, out.side) != contract.SIDES
            ):
                continue
            c = CrossConnect(inp.number, out.number)
            if c not in table or table[c].state != "up":
                table[c] = Row(
                    _STATES.get(status, "coming"),
                    words,
                    name,
                )
        return table

    def _is_ours(self, name: str) -> bool:
        return name.startswith(self._dialect.owner)

    async def _make(self, pairs: Sequence[CrossConnect]) -> None:
        await self._numbering()
        updates: dict[gnmi.Steps, Mapping[str, Any]] = {}
        refused = []
        for c in pairs:
            inp = self._names[contract.DirectedPort("in", c.inp)]
            out = self._names[contract.DirectedPort("out", c.out)]
            groups = [self._group_of.get(name, "") for name in (inp, out)]
            if all(groups) and groups[1] not in self._joins.get(groups[0], ()):
                refused.append(
                    f"the device cannot connect a port of group {groups[0]} ({inp}) to a port of "
                    f"group {groups[1]} ({out})"
                )
                continue
            owner = self._dialect.owner
            name = f"{owner}{c.inp}-{c.out}-{secrets.token_hex(4)}"
            steps = ("connections", ("port-connection", name), "config")
            updates[steps] = {
                "name": name,
                "input-port-name": inp,
                "output-port-name": out,
            }
            self._fresh.add(name)
        if updates:
            with self._telling():
                await self.client.change(self._entries(self._invalid), updates)
        self._raise_if(refused)

    async def _activate(
        self, pairs: Sequence[CrossConnect], table: Mapping[CrossConnect, Row]
    ) -> None:
        # An invalid entry may come up later, or never: it goes at once.
        await self._break(pairs, table)
        self._raise_if([table[c].words for c in pairs])

    async def _break(
        self, pairs: Sequence[CrossConnect], table: Mapping[CrossConnect, Row]
    ) -> None:
        names = {c: table[c].conn for c in pairs if c in table}
        ours = [name for name in names.values() if self._is_ours(name)]
        if ours:
            with self._telling():
                await self.client.change(
                    self._entries([*ours, *self._invalid]), {}
                )
            self._fresh.difference_update(ours)
        self._raise_if(
            [
                f"the entry {name!r} belongs to another client and stays"
                for name in names.values()
                if not self._is_ours(name)
            ]
        )

    def _entries(self, names: Iterable[str]) -> list[gnmi.Steps]:
        return [("connections", ("port-connection", name)) for name in names]

    async def _left(
        self, pairs: Sequence[CrossConnect], words: Mapping[CrossConnect, str]
    ) -> Mapping[CrossConnect, object]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._switch.switching_time_s + _SETTLE_S
        while True:
            table = await self._just_read.read(self._table)
            going = any(
                c in table and table[c].words.startswith(_GOING) for c in pairs
            )
            if not going or loop.time() > deadline:
                return table
            await asyncio.sleep(_POLL_S)

    def _heard(self, keys: tuple[str, ...], value: Any) -> None:
        """Something that the device told unasked."""
        name = keys[2] if len(keys) > 2 else ""
        words = ""
        match keys[-1]:
            case "status" if value in ("FAILED", "INVALID"):
                words = f"{name} is {value}"
            case "status-reason" if value:
                words = f"{name}: {value}"
            case "total-error-count" if name in self._ports:
                count = int(value)
                if count > self._errors.get(name, count):
                    words = f"{name}: {count} errors since boot"
                self._errors[name] = count
            case power if power in _POWER.values() and name in self._ports:
                if power == _POWER[self._ports[name].side]:
                    self._has_monitor(self._ports[name].side)
        if words:
            shown = self.client.shown
            self.client.alarms.note("major", shown(name), shown(words))
