"""The driver ``calient-rest``: Calient S160, S162, S320 and Edge640 over HTTPS.

Every cross-connect is made one-way, so that changing one direction never touches the other.
Two-way circuits that somebody else made are read as their two directions, and broken only
whole. The interface tells of circuits and power; it says nothing unasked, and nothing of the
state of a port. Run against the emulated device only so far; paths, bodies and keys are in
``http/dialects.py``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from patchlight.controller.circuits.alarms import AlarmLog, Standing
from patchlight.controller.circuits.contract import (
    Alarm,
    Capabilities,
    DeviceRefused,
    DirectedPort,
    Identity,
    PortState,
    Severity,
    Side,
)
from patchlight.controller.circuits.dialects import corrected
from patchlight.controller.circuits.drivers.calient.ports import to_aid, to_port
from patchlight.controller.circuits.drivers.one_step import Held, PatchingDriver, lit_dbm
from patchlight.controller.circuits.protocols.http import answers
from patchlight.controller.circuits.protocols.http.client import HttpClient
from patchlight.controller.circuits.protocols.http.dialects import CALIENT, CalientRestDialect
from patchlight.controller.circuits.protocols.session import Session
from patchlight.testbed.lab import CircuitSwitch
from patchlight.testbed.portmap import CrossConnect

_SIDES: tuple[Side, ...] = ("in", "out")
_NO_LIMIT = 1 << 16  # this driver makes lists of its own: a two-way circuit must stay whole


@dataclass(frozen=True, slots=True)
class Half:
    """One direction of a circuit: its ``AS,OS,OC``, alarm, and power as text."""

    cross_connect: CrossConnect
    state: str
    alarm: str
    in_power: str
    out_power: str


@dataclass(frozen=True, slots=True)
class Circuit:
    """A row of the device's table."""

    halves: tuple[Half, ...]
    conn: str
    group: str
    name: str

    @property
    def directions(self) -> tuple[CrossConnect, ...]:
        """What it joins."""
        return tuple(half.cross_connect for half in self.halves)


class CalientRest(PatchingDriver):
    """A Calient OCS. See ``CircuitDriver`` for what the methods do."""

    def __init__(
        self, switch: CircuitSwitch, password: str, dialect: CalientRestDialect | None = None
    ) -> None:
        super().__init__(switch, _NO_LIMIT)
        self._dialect = dialect or corrected(switch.driver, CALIENT)
        self._client = HttpClient(Session.of(switch, password), self._dialect)
        self._seen: tuple[Circuit, ...] = ()
        self._alarms = AlarmLog()

    @property
    def capabilities(self) -> Capabilities:
        """What the device can do."""
        return Capabilities(
            bulk=self._dialect.bulk, duplex=True, any_to_any=True, power_in=True, power_out=True
        )

    async def open(self) -> None:
        """Ask who it is, which takes the user and password."""
        await self.identify()

    async def close(self) -> None:
        """Let go; circuits stay."""
        await self._client.close()

    async def identify(self) -> Identity:
        """From the node's configuration and software; empty where it does not say."""
        dialect, said = self._dialect, []
        for path in (dialect.hardware, dialect.software):
            try:
                said.append(answers.only((await self._client.get(path)).body))
            except DeviceRefused as refusal:
                if refusal.code != "404":
                    raise
                said.append({})
            except ValueError as error:
                raise self._client.nonsense(path, str(error)) from error
        return Identity(
            dialect.vendor,
            answers.text(said[0], dialect.model_key),
            answers.text(said[0], dialect.serial_key),
            answers.text(said[1], dialect.version_key),
        )

    async def alarms(self) -> tuple[Alarm, ...]:
        """The alarms that circuits had when they were asked for, each as it appeared."""
        dialect, now = self._dialect, []
        for half in (half for circuit in await self._circuits() for half in circuit.halves):
            if re.fullmatch(dialect.no_alarm, half.alarm):
                continue
            words = f"{self._id(half.cross_connect)}: {half.alarm}"
            now.append(Standing(self._severity(half), str(half.cross_connect), words))
        self._alarms.stands(now)
        return self._alarms.all

    async def port_states(self) -> Mapping[DirectedPort, PortState]:
        """Ports that are listed are taken as ready, others as absent."""
        listed = await self._port_rows()
        return {
            DirectedPort(side, n): PortState("ready", "listed")
            if n in listed
            else PortState("absent", "not listed")
            for side in _SIDES
            for n in range(1, self.ports + 1)
        }

    async def power(self, ports: Iterable[DirectedPort]) -> Mapping[DirectedPort, float | None]:
        """Of circuits as they tell it; of a free input the port's, of a free output none."""
        wanted = self._wanted_ports(ports)
        if not wanted:
            return {}
        said: dict[DirectedPort, str] = {}
        if any(port.side == "in" for port in wanted):
            key = self._dialect.port_power_key
            rows = await self._port_rows()
            said = {DirectedPort("in", n): answers.text(row, key) for n, row in rows.items()}
        for half in (half for circuit in await self._circuits() for half in circuit.halves):
            said[DirectedPort("in", half.cross_connect.inp)] = half.in_power
            said[DirectedPort("out", half.cross_connect.out)] = half.out_power
        return {port: lit_dbm(said.get(port, ""), self._dialect.dark_dbm) for port in wanted}

    # --- what a patching driver needs -------------------------------------------------------

    async def _table(self) -> Mapping[CrossConnect, Held]:
        """Without the parked ones (entered, but not activated): they carry nothing."""
        self._seen = await self._circuits()
        return {
            half.cross_connect: self._held(half)
            for circuit in self._seen
            if not self._parked(circuit)
            for half in circuit.halves
        }

    async def _make(self, pairs: Sequence[CrossConnect]) -> None:
        refused: list[str] = []
        entered = {c for circuit in self._seen for c in circuit.directions}
        new = [c for c in pairs if c not in entered]
        await self._add(new, refused)
        asked, ours = set(pairs), set(new)
        # A unit may light a circuit as it is added, or want that said; others' may lie parked.
        for circuit in await self._circuits():
            if not self._parked(circuit) or not asked.issuperset(circuit.directions):
                continue
            try:
                await self._tell("POST", self._filled(self._dialect.activate, circuit))
            except DeviceRefused as refusal:
                refused.append(refusal.words)
                if ours.issuperset(circuit.directions):
                    await self._delete(circuit)
        if refused:
            raise DeviceRefused(f"{self.name} refused {refused[0]}", words="; ".join(refused))

    async def _break(self, pairs: Sequence[CrossConnect]) -> None:
        asked, refused = set(pairs), []
        circuits = await self._circuits() if pairs else ()
        async with self._client.series(len(pairs)):
            for circuit in circuits:
                if asked.isdisjoint(circuit.directions):
                    continue
                other = next((c for c in circuit.directions if c not in asked), None)
                if other is not None:
                    refused.append(
                        f"{circuit.conn} is a two-way circuit on the device: {other} would break "
                        "with it"
                    )
                    continue
                try:
                    await self._delete(circuit)
                except DeviceRefused as refusal:
                    refused.append(f"{circuit.conn}: {refusal.words}")
        if refused:
            raise DeviceRefused(f"{self.name} refused {refused[0]}", words="; ".join(refused))

    # --- inside -----------------------------------------------------------------------------

    async def _add(self, pairs: Sequence[CrossConnect], refused: list[str]) -> None:
        dialect = self._dialect
        bodies = [dialect.body.format(**self._values(c)) for c in pairs]
        many = dialect.bulk and len(bodies) > 1
        size = dialect.bulk_limit if many else 1
        for start in range(0, len(bodies), size):
            chunk = bodies[start : start + size]
            path, body = (dialect.add, chunk[0])
            if many:
                path, body = dialect.add_bulk, f"[{','.join(chunk)}]"
            try:
                await self._tell("POST", path, body)
            except DeviceRefused as refusal:
                refused.append(refusal.words)

    async def _delete(self, circuit: Circuit) -> None:
        if self._dialect.deactivate and not self._parked(circuit):
            await self._tell("POST", self._filled(self._dialect.deactivate, circuit))
        await self._tell("DELETE", self._filled(self._dialect.delete, circuit))

    async def _tell(self, method: str, path: str, body: str = "") -> None:
        try:
            await self._client.change(method, path, body)
        except DeviceRefused:
            self._writing.told = True
            raise
        self._writing.told = True

    async def _circuits(self) -> tuple[Circuit, ...]:
        path = self._dialect.circuits
        said = (await self._client.get(path)).body
        try:
            return tuple(self._circuit(row) for row in answers.rows(said))
        except ValueError as error:
            raise self._client.nonsense(path, str(error)) from error

    def _circuit(self, row: Mapping[str, Any]) -> Circuit:
        dialect = self._dialect
        first = self._half(row.get(dialect.first_half_key))
        if first is None:
            raise ValueError(f"no circuit can be made of {answers.short(row)}")
        second = self._half(row.get(dialect.second_half_key))
        halves = (first, second) if second and second != first else (first,)
        conn = self._id(first.cross_connect, two_way=len(halves) == 2)
        name = answers.text(row, dialect.name_key) or conn
        return Circuit(halves, conn, answers.text(row, dialect.group_key) or dialect.group, name)

    def _half(self, row: object) -> Half | None:
        """``None`` where there is none; ``ValueError`` where its ports cannot be read."""
        dialect = self._dialect
        if not isinstance(row, dict) or not (conn := answers.text(row, dialect.half_conn_key)):
            return None
        match = re.fullmatch(dialect.half_conn, conn)
        src, dst = (to_port(match["src"]), to_port(match["dst"])) if match else (None, None)
        if src is None or dst is None:
            raise ValueError(f"no ports can be made of {conn!r}")
        return Half(
            CrossConnect(src, dst),
            ",".join(answers.text(row, key) for key in dialect.state_keys.split(",")),
            answers.text(row, dialect.alarm_key),
            answers.text(row, dialect.in_power_key),
            answers.text(row, dialect.out_power_key),
        )

    async def _port_rows(self) -> dict[int, Mapping[str, Any]]:
        path, key = self._dialect.ports, self._dialect.port_key
        try:
            rows = answers.rows((await self._client.get(path)).body)
        except ValueError as error:
            raise self._client.nonsense(path, str(error)) from error
        numbers = ((to_port(answers.text(row, key).partition("/")[0]), row) for row in rows)
        return {number: row for number, row in numbers if number is not None}

    def _held(self, half: Half) -> Held:
        words = f"AS,OS,OC={half.state}"
        if re.fullmatch(self._dialect.up, half.state):
            return Held("up", words)
        return Held("failed" if re.fullmatch(self._dialect.failed, half.state) else "coming", words)

    def _parked(self, circuit: Circuit) -> bool:
        return all(re.fullmatch(self._dialect.parked, half.state) for half in circuit.halves)

    def _severity(self, half: Half) -> Severity:
        if re.fullmatch(self._dialect.critical, half.alarm):
            return "critical"
        return "major" if re.fullmatch(self._dialect.major, half.alarm) else "minor"

    def _id(self, c: CrossConnect, *, two_way: bool = False) -> str:
        template = self._dialect.two_way_id if two_way else self._dialect.one_way_id
        return template.format(src=to_aid(c.inp), dst=to_aid(c.out), conn="", group="", connname="")

    def _values(self, c: CrossConnect) -> dict[str, str]:
        """What fills the body that adds ``c``."""
        conn = self._id(c)
        said = {"src": to_aid(c.inp), "dst": to_aid(c.out), "conn": conn, "connname": conn}
        said["group"] = self._dialect.group
        return {key: json.dumps(value)[1:-1] for key, value in said.items()}

    def _filled(self, template: str, circuit: Circuit) -> str:
        c = circuit.directions[0]
        said = {"src": to_aid(c.inp), "dst": to_aid(c.out), "conn": circuit.conn}
        said |= {"group": circuit.group, "connname": circuit.name}
        return template.format(**{key: quote(value, safe="") for key, value in said.items()})
