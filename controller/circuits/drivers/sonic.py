"""The driver ``sonic-ocs``: switches that run SONiC with its OCS model, over RESTCONF (HTTPS).

Tested with the emulated device only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from patchlight.controller.circuits import contract
from patchlight.controller.circuits.dialect import Bare, Template, filled
from patchlight.controller.circuits.drivers import rest
from patchlight.controller.circuits.drivers.sonic_tables import (
    SonicDialect,
    SonicRow,
    SonicTables,
)
from patchlight.controller.circuits.protocols.http import (
    HttpDialect,
    in_json,
    in_url,
)
from patchlight.testbed.lab.portmap import CrossConnect


@dataclass(frozen=True)
class SonicOcsDialect(HttpDialect, SonicDialect):
    """What a switch that runs SONiC takes, by its models ``sonic-ocs`` and ``sonic-ocs-states``.

    ``{inp}`` and ``{out}`` are port numbers, ``{id}`` is a cross-connect's id, ``{rows}`` a list of
    ``row``. An earlier revision of the model has one status for a cross-connect::

        states = "/data/sonic-ocs:sonic-ocs/OCS_CROSS_CONNECT_TABLE"
        state_keys = "status"
        up = "enabled"
        port_states = "/data/sonic-ocs:sonic-ocs/OCS_PORT_TABLE"
        port_state_key = "oper_status"
        losses = "/data/sonic-ocs:sonic-ocs/OCS_FACTORY_INSERTION_LOSS_TABLE"
    """

    FIELDS: ClassVar[frozenset[str]] = frozenset({"inp", "out", "id", "rows"})

    base: str = "/restconf"
    media_type: str = "application/yang-data+json"
    circuits: str = "/data/sonic-ocs:sonic-ocs/OCS_CROSS_CONNECT"
    ports: str = "/data/sonic-ocs:sonic-ocs/OCS_PORT"
    states: str = "/data/sonic-ocs-states:sonic-ocs-states/OCS_CROSS_CONNECT"
    port_states: str = "/data/sonic-ocs-states:sonic-ocs-states/OCS_PORT"
    losses: str = (
        "/data/sonic-ocs-states:sonic-ocs-states/OCS_FACTORY_INSERTION_LOSS"
    )
    identity: str = "/data/sonic-device_metadata:sonic-device_metadata/DEVICE_METADATA/localhost"
    row: Template = (
        '{{"cross_connect_id":"{id}","a_side":"{inp}A","b_side":"{out}B"}}'
    )
    body: Template = '{{"sonic-ocs:OCS_CROSS_CONNECT":{{"OCS_CROSS_CONNECT_LIST":[{rows}]}}}}'
    delete: Template = "/data/sonic-ocs:sonic-ocs/OCS_CROSS_CONNECT/OCS_CROSS_CONNECT_LIST={id}"
    id_key: str = "cross_connect_id"
    port_key: str = "simplex_port_id"
    override_key: str = "config_status"
    model_key: str = "hwsku"
    name_key: str = "hostname"


SONIC = SonicOcsDialect()


class SonicOcs(SonicTables, rest.RestDriver[SonicRow]):
    """An OCS that runs SONiC. See ``CircuitDriver`` for the methods."""

    built_in = SONIC
    _dialect: SonicOcsDialect

    async def open(self) -> None:
        """Connect to the device, and check that it has the lab's ports."""
        await self._check_ports()

    async def identify(self) -> contract.Identity:
        """From the device's metadata: its hardware and name."""
        dialect = self._dialect
        (metadata,) = await self._rows(dialect.identity) or [{}]
        model = rest.json_text(metadata, dialect.model_key) or "OCS"
        return contract.Identity(
            dialect.vendor,
            model,
            "",
            "",
            rest.json_text(metadata, dialect.name_key),
        )

    async def _make(self, pairs: Sequence[CrossConnect]) -> None:
        dialect = self._dialect
        rows = ",".join(
            filled(
                dialect.row,
                in_json,
                id=self._id(c),
                inp=c.inp,
                out=c.out,
            )
            for c in pairs
        )
        await self._tell(
            "PATCH",
            dialect.circuits,
            filled(dialect.body, in_json, rows=Bare(rows)),
        )

    async def _break(
        self,
        pairs: Sequence[CrossConnect],
        table: Mapping[CrossConnect, SonicRow],
    ) -> None:
        # What only the hardware has can be deleted once it is in the configuration.
        if unknown := [
            c for c in pairs if c in table and not table[c].configured
        ]:
            await self._make(unknown)
        refused: list[str] = []
        async with self.client.series(len(pairs)):
            for c in pairs:
                with self._noting(refused, done="404"):
                    await self._tell(
                        "DELETE",
                        filled(self._dialect.delete, in_url, id=self._id(c)),
                    )
        self._raise_if(refused)

    async def _rows(self, place: str) -> list[Mapping[str, Any]]:
        """The rows of a list, wherever it is nested; an empty list is not found."""
        return await self.client.read(place, _innermost, missing=[])

    def _nonsense(self, command: str, answer: str) -> contract.DeviceRefused:
        return self.client.nonsense(command, answer)


def _innermost(body: object) -> list[Mapping[str, Any]]:
    """The list, or one object as a list, within objects of one key each."""
    while isinstance(body, dict) and len(body) == 1:
        (inner,) = body.values()
        if not isinstance(inner, (dict, list)):
            return [body]
        body = inner
    if isinstance(body, dict):
        return [body] if body else []
    return rest.json_rows(body)
