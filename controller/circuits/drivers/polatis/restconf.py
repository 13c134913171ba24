"""The driver ``polatis-restconf``: Polatis (HUBER+SUHNER) switches over RESTCONF (HTTPS).

Run against the emulated device only so far; paths, bodies and keys are in
``http/dialects.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from patchlight.controller.circuits.alarms import AlarmLog, Standing
from patchlight.controller.circuits.contract import (
    Alarm,
    Capabilities,
    Condition,
    DeviceRefused,
    DirectedPort,
    Identity,
    PortState,
    Severity,
)
from patchlight.controller.circuits.dialects import corrected
from patchlight.controller.circuits.drivers.one_step import Held, PatchingDriver, lit_dbm
from patchlight.controller.circuits.numbering import Numbering
from patchlight.controller.circuits.protocols.http import answers
from patchlight.controller.circuits.protocols.http.client import HttpClient, Reply
from patchlight.controller.circuits.protocols.http.dialects import POLATIS, PolatisRestconfDialect
from patchlight.controller.circuits.protocols.session import Session
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab import CircuitSwitch
from patchlight.testbed.portmap import CrossConnect


class PolatisRestconf(PatchingDriver):
    """A Polatis OCS. See ``CircuitDriver`` for what the methods do."""

    def __init__(
        self, switch: CircuitSwitch, password: str, dialect: PolatisRestconfDialect | None = None
    ) -> None:
        self._dialect = dialect or corrected(switch.driver, POLATIS)
        super().__init__(switch, self._dialect.list_limit)
        self._client = HttpClient(Session.of(switch, password), self._dialect)
        self._numbering: Numbering | None = None
        self._capabilities = Capabilities(bulk=True, port_enable=True)
        self._etag = ""
        self._last: Mapping[CrossConnect, Held] = {}
        self._alarms = AlarmLog()

    @property
    def capabilities(self) -> Capabilities:
        """What the device can do; which power monitors it has is known after ``open``."""
        return self._capabilities

    async def open(self) -> None:
        """Learn the size and which power monitors there are."""
        await self._known()

    async def close(self) -> None:
        """Let go; circuits stay."""
        await self._client.close()

    async def identify(self) -> Identity:
        """From ``product-information``."""
        dialect = self._dialect
        try:
            said = answers.only((await self._client.get(dialect.identity)).body)
        except ValueError as error:
            raise self._client.nonsense(dialect.identity, str(error)) from error
        keys = (dialect.model_key, dialect.serial_key, dialect.version_key)
        return Identity(
            answers.text(said, dialect.vendor_key) or dialect.vendor,
            *(answers.text(said, key) for key in keys),
        )

    async def alarms(self) -> tuple[Alarm, ...]:
        """The device's list of alarms, each as it appeared there."""
        try:
            rows = (await self._rows(self._dialect.system_alarms))[0]
        except DeviceRefused as refusal:
            if refusal.code != "404":
                raise
            rows = []
        now = dict.fromkeys(answers.short(row) for row in rows)
        self._alarms.stands(Standing(self._severity(words), self.name, words) for words in now)
        return self._alarms.all

    async def port_states(self) -> Mapping[DirectedPort, PortState]:
        """From ``port-config``: enabled, disabled, failed or unsupported."""
        key = self._dialect.status_key
        states = {port: answers.text(row, key) for port, row in (await self._ports()).items()}
        return {
            port: PortState(self._condition(said), said)
            for port, said in states.items()
            if port.number <= self.ports
        }

    async def power(self, ports: Iterable[DirectedPort]) -> Mapping[DirectedPort, float | None]:
        """From ``opm-power``, for the ports that have monitors."""
        wanted = self._wanted_ports(ports)
        if not wanted:
            return {}
        said = await self._per_port(self._dialect.power)
        key, dark = self._dialect.power_key, self._dialect.dark_dbm
        return {
            port: lit_dbm(answers.text(said[port], key), dark) for port in wanted if port in said
        }

    async def enable(self, ports: Iterable[DirectedPort], *, on: bool = True) -> None:
        """Switch single ports on or off (capability ``port_enable``)."""
        numbering, wanted = await self._known(), self._wanted_ports(ports)
        state = self._dialect.enabled if on else self._dialect.disabled
        numbers = (numbering.to_number(port.side, port.number) for port in wanted)
        rows = (self._dialect.port_state.format(port=n, state=state) for n in numbers)
        async with self._writing.change():
            self._just_read.forget()
            body = self._dialect.ports_body.format(pairs=",".join(rows))
            await self._client.change("PATCH", self._dialect.ports, body)

    # --- what a patching driver needs -------------------------------------------------------

    async def _table(self) -> Mapping[CrossConnect, Held]:
        numbering, path, table = await self._known(), self._dialect.circuits, {}
        found, reply = await self._rows(path)
        for row in found:
            try:
                numbers = [
                    answers.number(row, key)
                    for key in (self._dialect.ingress_key, self._dialect.egress_key)
                ]
            except ValueError as error:
                raise self._client.nonsense(path, str(error)) from error
            cross_connect = numbering.to_directed(*numbers)
            if cross_connect is None:
                raise self._client.nonsense(path, answers.short(row))
            table[cross_connect] = Held()
        self._last, self._etag = table, reply.etag
        return table

    async def _make(self, pairs: Sequence[CrossConnect]) -> None:
        if not pairs:
            return
        self._check_free(pairs)
        numbering, dialect = await self._known(), self._dialect
        rows = (
            dialect.pair.format(
                ingress=numbering.to_number("in", c.inp), egress=numbering.to_number("out", c.out)
            )
            for c in pairs
        )
        body = dialect.body.format(pairs=",".join(rows))
        await self._tell("PATCH", dialect.circuits, body)

    async def _break(self, pairs: Sequence[CrossConnect]) -> None:
        numbering, refused = await self._known(), []
        async with self._client.series(len(pairs)):
            for c in pairs:
                ingress = numbering.to_number("in", c.inp)
                try:
                    await self._tell("DELETE", self._dialect.delete.format(ingress=ingress))
                except DeviceRefused as refusal:
                    if refusal.code != "404":
                        refused.append(refusal.words)
                    if refusal.code == "412":
                        break
        if refused:
            raise DeviceRefused(f"{self.name} refused {refused[0]}", words="; ".join(refused))

    # --- inside -----------------------------------------------------------------------------

    def _check_free(self, pairs: Sequence[CrossConnect]) -> None:
        """The device would take ports from their circuits without a word; we do not."""
        held = {f"in:{c.inp}": c for c in self._last} | {f"out:{c.out}": c for c in self._last}
        for c in pairs:
            for port in (f"in:{c.inp}", f"out:{c.out}"):
                if (there := held.get(port, c)) != c:
                    words = f"{port} is in use on the device: {there}"
                    raise DeviceRefused(f"{self.name}: {words}", words=words)

    async def _tell(self, method: str, path: str, body: str = "") -> None:
        guard = {"If-Match": self._etag} if self._dialect.guard and self._etag else {}
        try:
            reply = await self._client.change(method, path, body, guard)
        except DeviceRefused:
            self._writing.told = True
            raise
        self._writing.told = True
        # The map is another now: what guards the next step of ours is its ETag, if it is told.
        self._etag = reply.etag

    async def _rows(self, path: str) -> tuple[list[Mapping[str, Any]], Reply]:
        reply = await self._client.get(path)
        try:
            return list(answers.rows(reply.body)), reply
        except ValueError as error:
            raise self._client.nonsense(path, str(error)) from error

    async def _known(self) -> Numbering:
        """How many inputs and outputs; asked once, with all else that never changes."""
        if self._numbering is not None:
            return self._numbering
        model = (await self.identify()).model
        if re.search(self._dialect.any_to_any, model):
            raise PatchlightError(
                f"{self.name} is a {model}: a switch of single fibres, any to any",
                hint="this driver knows switches with inputs and outputs only",
            )
        size = re.search(self._dialect.size, model)
        if size is None:
            raise self._client.nonsense(self._dialect.identity, f"no size in {model!r}")
        numbering = Numbering.polatis(int(size["ins"]), int(size["outs"]))
        numbering.check_holds(self.name, self.ports)
        sides = {port.side for port in await self._listed(self._dialect.power, numbering)}
        self._capabilities = replace(
            self._capabilities, power_in="in" in sides, power_out="out" in sides
        )
        self._numbering = numbering
        return numbering

    async def _ports(self) -> dict[DirectedPort, Mapping[str, Any]]:
        return await self._per_port(self._dialect.ports)

    async def _per_port(self, path: str) -> dict[DirectedPort, Mapping[str, Any]]:
        return await self._listed(path, await self._known())

    async def _listed(
        self, path: str, numbering: Numbering
    ) -> dict[DirectedPort, Mapping[str, Any]]:
        """The rows of a list by their port; none where the device has no such list."""
        try:
            rows = (await self._rows(path))[0]
        except DeviceRefused as refusal:
            if refusal.code != "404":
                raise
            return {}
        try:
            numbers = [(answers.number(row, self._dialect.port_key), row) for row in rows]
        except ValueError as error:
            raise self._client.nonsense(path, str(error)) from error
        ports = ((numbering.to_port(number), row) for number, row in numbers)
        return {port: row for port, row in ports if port is not None}

    def _condition(self, said: str) -> Condition:
        if said == self._dialect.enabled:
            return "ready"
        if said == self._dialect.disabled:
            return "locked"
        return "absent" if re.fullmatch(self._dialect.absent, said) else "failed"

    def _severity(self, words: str) -> Severity:
        if re.search(self._dialect.critical, words):
            return "critical"
        return "major" if re.search(self._dialect.major, words) else "minor"
