"""The driver ``sonic``: switches that run SONiC with config-driven static L2 forwarding, over SSH.

For the lab's VLAN it switches learning and the flooding of unknown frames off, and enters each MAC
in the table ``FDB`` of the configuration (sonic-net/SONiC pull request 2468), by
``config apply-patch``; nothing is saved. Broadcasts are flooded, for ARP, and multicasts, for IPv6
neighbour discovery. An entry counts once the switch's hardware has it. Not run against hardware:
tested with the emulated switch only.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from patchlight.controller.circuits.contract import DeviceRefused
from patchlight.controller.packet_switches.contract import PortState
from patchlight.controller.packet_switches.fdb import (
    FdbDriver,
    Found,
    Record,
    Table,
    quoted_lines,
)
from patchlight.controller.packet_switches.ports import (
    Matched,
    match_numbers,
    match_ports,
)
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.model import PacketSwitch

_WANTED = {"mac_learning": "disabled", "unknown_unicast_flood": "disabled"}


class Sonic(FdbDriver):
    """A switch that runs SONiC. See ``PacketSwitchDriver`` for the methods."""

    # Each reading starts several programs on the switch's processor.
    period_s = 5.0

    def __init__(
        self,
        switch: PacketSwitch,
        password: str,
        **more: Any,
    ) -> None:
        super().__init__(switch, password, **more)
        if switch.vlan is None:
            raise BadInput(
                f"{switch.name}: a switch with driver sonic needs 'vlan'"
            )
        self._vlan = f"Vlan{switch.vlan}"
        self._record = f"/run/patchlight-{self._vlan}.json"
        self._entries = 0  # of all VLANs

    def _joined_in(self) -> str:
        return self._vlan

    async def _found(self) -> Found:
        vlan = self._vlan
        record, *dumps = await self._read_all(
            f"cat {self._record} 2>/dev/null",
            _dump("CONFIG_DB", "*"),
            _dump("ASIC_DB", "ASIC_STATE:SAI_OBJECT_TYPE_FDB_ENTRY:*"),
            _dump("APPL_DB", "PORT_TABLE:*"),
            _dump("COUNTERS_DB", "COUNTERS_PORT_NAME_MAP"),
            _dump("COUNTERS_DB", "COUNTERS:oid:0x1000000*"),
        )
        try:
            config, hardware, links, names, counters = map(_rows, dumps)
            programmed = {
                json.loads(key.partition("FDB_ENTRY:")[2])["mac"].lower()
                for key in hardware
            }
            fdb = _table(config, "FDB")
            self._entries = len(fdb)
            table = {}
            for key, row in fdb.items():
                its_vlan, _, mac = key.partition("|")
                if its_vlan == vlan and mac.lower() in programmed:
                    table[mac.lower()] = row["port"]
            oids = names.get("COUNTERS_PORT_NAME_MAP", {})
            states = {}
            for key in _table(config, "VLAN_MEMBER"):
                its_vlan, _, name = key.partition("|")
                if its_vlan != vlan:
                    continue
                counted = counters.get(f"COUNTERS:{oids.get(name)}", {})
                rx, tx = (
                    int(counted.get(f"SAI_PORT_STAT_IF_{side}_OCTETS", 0))
                    for side in ("IN", "OUT")
                )
                is_up = (
                    links.get(f"PORT_TABLE:{name}", {}).get("oper_status")
                    == "up"
                )
                states[name] = PortState(rx, tx, is_up)
            of_vlan = _table(config, "VLAN").get(vlan)
            there = {name for name in states if f"PORT_TABLE:{name}" in links}
            self._know_ports(self._matched(_table(config, "PORT")), there)
        except (ValueError, KeyError, TypeError) as error:
            raise self._nonsense(
                "sonic-db-dump", "\n".join(dumps), error
            ) from error
        settings = (
            {}
            if of_vlan is None
            else {key: of_vlan.get(key) for key in _WANTED}
        )
        return Found(
            table,
            states,
            settings,
            Record.parse(record),
        )

    def _matched(self, ports: Mapping[str, Mapping[str, str]]) -> Matched[str]:
        if self._switch.interfaces:
            called = {
                name: (name, row.get("alias", ""))
                for name, row in ports.items()
            }
            return match_ports(
                dict(enumerate(self._switch.interfaces, 1)), called
            )
        # Ports of a breakout share the index of their plug.
        indices = {name: row.get("index", "") for name, row in ports.items()}
        return match_numbers(range(1, self._switch.ports + 1), indices)

    def _settings_to_change(self, found: Found) -> Mapping[str, Any]:
        return {
            key: want
            for key, want in _WANTED.items()
            if found.settings.get(key, want) != want
        }

    async def _change(
        self,
        removes: Table,
        adds: Table,
        settings: Mapping[str, Any],
        record: Record | None,
    ) -> str:
        patch = [self._setting(key, value) for key, value in settings.items()]
        # An empty table is refused.
        if removes and len(removes) == self._entries:
            patch.append({"op": "remove", "path": "/FDB"})
            self._entries = 0
        else:
            patch += [
                {"op": "remove", "path": f"/FDB/{self._vlan}|{mac}"}
                for mac in removes
            ]
        if record is not None:
            await self._write(record)
        words = await self._patched(patch) if patch else ""
        words += await self._added(list(adds.items()))
        if record is None:
            await self._run_as_root(f"rm -f {self._record}")
        return words

    def _setting(self, key: str, value: str | None) -> dict[str, Any]:
        path = f"/VLAN/{self._vlan}/{key}"
        return (
            {"op": "remove", "path": path}
            if value is None
            else _add(path, value)
        )

    async def _added(self, entries: Sequence[tuple[str, str]]) -> str:
        """Add these in one patch; a patch that is refused is halved, to find what is not."""
        if not entries:
            return ""
        rows = {f"{self._vlan}|{mac}": {"port": port} for mac, port in entries}
        adds = [_add(f"/FDB/{key}", row) for key, row in rows.items()]
        words = await self._patched(
            adds if self._entries else [_add("/FDB", rows)]
        )
        if not words:
            self._entries += len(entries)
            return ""
        if len(entries) == 1:
            return words
        half = len(entries) // 2
        return await self._added(entries[:half]) + await self._added(
            entries[half:]
        )

    async def _patched(self, patch: Sequence[Mapping[str, Any]]) -> str:
        """Apply a patch (RFC 6902), all of it or nothing; returns the reason if it is refused."""
        try:
            await self._run_as_root(
                "file=$(mktemp) || exit 1\n"
                f"cat >$file {quoted_lines([json.dumps(patch)])}\n"
                "config apply-patch $file >&2\nstatus=$?\nrm -f $file\nexit $status"
            )
        except DeviceRefused as refused:
            return f"{refused.words}\n"
        return ""

    async def _write(self, record: Record) -> None:
        temporary = f"{self._record}.new"
        await self._run_as_root(
            f"cat >{temporary} {quoted_lines([record.text()])}\nmv {temporary} {self._record}"
        )


def _add(path: str, value: object) -> dict[str, Any]:
    return {"op": "add", "path": path, "value": value}


def _dump(database: str, keys: str) -> str:
    return f"sonic-db-dump -n {database} -y -k '{keys}'"


def _rows(text: str) -> Mapping[str, Mapping[str, str]]:
    return {key: row["value"] for key, row in json.loads(text or "{}").items()}


def _table(
    config: Mapping[str, Mapping[str, str]], name: str
) -> Mapping[str, Mapping[str, str]]:
    """The rows of one table of CONFIG_DB."""
    return {
        k.removeprefix(f"{name}|"): r
        for k, r in config.items()
        if k.startswith(f"{name}|")
    }
