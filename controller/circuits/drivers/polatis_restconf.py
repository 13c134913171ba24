"""The driver ``polatis-restconf``: Polatis (HUBER+SUHNER) switches over RESTCONF (HTTPS).

Tested with the emulated device only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from patchlight.controller.circuits import contract
from patchlight.controller.circuits.dialect import (
    Bare,
    Pattern,
    PolatisDialect,
    Template,
    filled,
)
from patchlight.controller.circuits.drivers import rest
from patchlight.controller.circuits.drivers.base import (
    Numbering,
    PolatisDriver,
)
from patchlight.controller.circuits.drivers.table import UP, Row
from patchlight.controller.circuits.protocols.http import (
    HttpClient,
    HttpDialect,
    in_json,
    in_url,
)
from patchlight.testbed.lab.portmap import CrossConnect


@dataclass(frozen=True)
class PolatisRestconfDialect(HttpDialect, PolatisDialect):
    """What a Polatis takes.

    ``{ingress}`` and ``{egress}`` are the device's port numbers, ``{pairs}`` is a list of
    ``pair``. The ``…_key`` entries are keys of the answers.
    ``guard`` sends the map's ETag along with a change, so that the device does nothing if the
    map is no longer the one that was read.
    """

    FIELDS: ClassVar[frozenset[str]] = frozenset(
        {"ingress", "egress", "pairs"}
    )

    base: str = "/api"
    media_type: str = "application/yang-data+json"
    circuits: str = "/data/cross-connects/pair"
    pair: Template = '{{"ingress":{ingress},"egress":{egress}}}'
    body: Template = '{{"pair":[{pairs}]}}'
    delete: Template = "/data/cross-connects/pair={ingress}"
    ports: str = "/data/port-config/port"
    power: str = "/data/opm-power/port"
    identity: str = "/data/product-information"
    system_alarms: str = "/data/system-alarms/alarm"
    guard: bool = True
    ingress_key: str = "ingress"
    egress_key: str = "egress"
    port_key: str = "port-id"
    status_key: str = "status"
    power_key: str = "power"
    vendor_key: str = "manufacturer"
    model_key: str = "model-name"
    serial_key: str = "serial-number"
    version_key: str = "software-version"
    port_absent: Pattern = r"UNSUPPORTED"
    critical: Pattern = r"(?i).*critical.*"
    major: Pattern = r"(?i).*major.*"


POLATIS = PolatisRestconfDialect()


class PolatisRestconf(PolatisDriver):
    """A Polatis OCS. See ``CircuitDriver`` for the methods."""

    built_in = POLATIS
    client_class = HttpClient
    client: HttpClient
    _dialect: PolatisRestconfDialect
    # The last map read, and its ETag.
    _last: Mapping[CrossConnect, Row]
    _etag = ""

    async def identify(self) -> contract.Identity:
        """From ``product-information``."""
        dialect = self._dialect
        product = await self.client.read(dialect.identity, rest.json_object)
        keys = (dialect.model_key, dialect.serial_key, dialect.version_key)
        return contract.Identity(
            rest.json_text(product, dialect.vendor_key) or dialect.vendor,
            *(rest.json_text(product, key) for key in keys),
        )

    async def alarms(self) -> tuple[contract.Alarm, ...]:
        """The device's list of alarms, each as it appeared there."""
        rows = await self.client.read(
            self._dialect.system_alarms, rest.json_rows, missing=[]
        )
        now = dict.fromkeys(rest.json_short(row) for row in rows)
        alarms = self.client.alarms
        critical = self._dialect.critical
        major = self._dialect.major
        alarms.stands(
            contract.Standing(
                rest.severity(words, critical, major), self.name, words
            )
            for words in now
        )
        return alarms.all

    async def _rows(self, numbering: Numbering) -> Mapping[CrossConnect, Row]:
        path = self._dialect.circuits
        reply = await self.client.get(path)
        try:
            pairs = [
                self._cross_connect(row, numbering)
                for row in rest.json_rows(reply.body)
            ]
        except ValueError as error:
            raise self.client.nonsense(path, str(error)) from error
        self._last = dict.fromkeys(pairs, UP)
        self._etag = reply.etag
        return self._last

    async def _make(self, pairs: Sequence[CrossConnect]) -> None:
        # The device would silently take busy ports; Patchlight does not.
        for words in self._busy(pairs, self._last).values():
            raise self._will_not(words)
        dialect = self._dialect
        numbers = await self._numbers(pairs)
        rows = (
            filled(
                dialect.pair,
                in_json,
                ingress=ingress,
                egress=egress,
            )
            for ingress, egress in numbers
        )
        body = filled(dialect.body, in_json, pairs=Bare(",".join(rows)))
        await self._tell("PATCH", dialect.circuits, body)

    async def _break(
        self, pairs: Sequence[CrossConnect], table: Mapping[CrossConnect, Row]
    ) -> None:
        dialect = self._dialect
        numbers = await self._numbers(pairs)
        refused = []
        async with self.client.series(len(pairs)):
            for ingress, _ in numbers:
                try:
                    await self._tell(
                        "DELETE",
                        filled(dialect.delete, in_url, ingress=ingress),
                    )
                except contract.DeviceRefused as refusal:
                    if refusal.code != "404":
                        refused.append(refusal.words)
                    if refusal.code == "412":
                        break
        self._raise_if(refused)

    async def _tell(
        self,
        method: str,
        path: str,
        body: str = "",
    ) -> None:
        guard = (
            {"If-Match": self._etag}
            if self._dialect.guard and self._etag
            else {}
        )
        with self._telling():
            reply = await self.client.change(
                method,
                path,
                body,
                guard,
            )
        # The map has changed: the next step is guarded by its new ETag, if reported.
        self._etag = reply.etag

    async def _monitored_sides(
        self, numbering: Numbering
    ) -> set[contract.Side]:
        return {
            port.side
            for port in await self._listed(self._dialect.power, numbering)
        }

    async def _states(self) -> dict[contract.DirectedPort, str]:
        return await self._per_port(
            self._dialect.ports, self._dialect.status_key
        )

    async def _powers(
        self, ports: Sequence[contract.DirectedPort]
    ) -> dict[contract.DirectedPort, str]:
        return await self._per_port(
            self._dialect.power, self._dialect.power_key
        )

    async def _per_port(
        self, path: str, key: str
    ) -> dict[contract.DirectedPort, str]:
        rows = await self._listed(path, await self._numbering())
        return {port: rest.json_text(row, key) for port, row in rows.items()}

    async def _listed(
        self, path: str, numbering: Numbering
    ) -> dict[contract.DirectedPort, Mapping[str, Any]]:
        """The rows of a list by port; empty if the device has no such list."""
        key = self._dialect.port_key

        def listed(
            body: object,
        ) -> dict[contract.DirectedPort, Mapping[str, Any]]:
            ports = (
                (numbering.to_port(rest.json_number(row, key)), row)
                for row in rest.json_rows(body)
            )
            return {port: row for port, row in ports if port is not None}

        return await self.client.read(path, listed, missing=[])

    def _cross_connect(
        self, row: Mapping[str, Any], numbering: Numbering
    ) -> CrossConnect:
        keys = (self._dialect.ingress_key, self._dialect.egress_key)
        cross_connect = numbering.to_directed(
            *(rest.json_number(row, key) for key in keys)
        )
        if cross_connect is None:
            raise ValueError(rest.json_short(row))
        return cross_connect
