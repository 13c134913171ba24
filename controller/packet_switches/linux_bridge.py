"""The driver ``linux-bridge``: switches with a Linux bridge, over SSH with ``ip`` and ``bridge``.

On the lab's ports nothing is learned or flooded: frames go to static entries only, and the bridge
itself answers ARP requests for the lab's stations (``proxy_arp``). So loops of such switches are
harmless. A switch that learns would learn from such an answer that the station is behind the
bridge: at ports to one, the bridge answers only for stations elsewhere (``proxy_arp_wifi`` of their
ports), and passes on what other ARP requests it hears.

A bridge that filters VLANs has the entries in ``vlan``, and answers for it if it has an interface
there, like ``br0.10``.
"""

import json
from collections.abc import Mapping
from typing import Any

from patchlight.controller.packet_switches.contract import PortState
from patchlight.controller.packet_switches.fdb import (
    FdbDriver,
    Found,
    Record,
    Table,
    quoted_lines,
)
from patchlight.controller.packet_switches.ports import match_ports
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.model import PacketSwitch

_OFF = ("learning", "flood", "mcast_flood", "bcast_flood")
_ANSWER = ("proxy_arp", "proxy_arp_wifi")
_WANTED = {**dict.fromkeys(_OFF, False), **dict.fromkeys(_ANSWER, True)}
_TO_LEARNING = {
    **_WANTED,
    **dict.fromkeys(_ANSWER, False),
    "bcast_flood": True,
}


class LinuxBridge(FdbDriver):
    """A Linux bridge. See ``PacketSwitchDriver`` for the methods."""

    _answers_arp = True

    def __init__(
        self,
        switch: PacketSwitch,
        password: str,
        **more: Any,
    ) -> None:
        super().__init__(switch, password, **more)
        self._names = dict(enumerate(switch.interface_names, 1))
        self._vlan = "" if switch.vlan is None else f" vlan {switch.vlan}"
        self._answering = (
            switch.bridge
            if switch.vlan is None
            else f"{switch.bridge}.{switch.vlan}"
        )
        self._record = f"/run/patchlight-{self._answering}.json"
        for name in (*self._names.values(), switch.bridge):
            if (
                not name.replace("-", "")
                .replace("_", "")
                .replace(".", "")
                .isalnum()
            ):
                raise BadInput(
                    f"{switch.name}: {name!r} is not an interface name"
                )

    async def _found(self) -> Found:
        bridge = self._switch.bridge
        record, links, fdb, neighbours = await self._read_all(
            f"cat {self._record} 2>/dev/null",
            f"ip -s -d -json link show master {bridge}",
            f"bridge -json fdb show br {bridge}",
            f"ip -json neigh show dev {self._answering} nud permanent",
        )
        try:
            ports = {}
            settings = {}
            called = dict[str, list[str]]()
            for link in json.loads(links or "[]"):
                if name := link.get("ifname"):
                    counters = link["stats64"]
                    up = link.get("operstate") == "UP"
                    rx, tx = (
                        int(counters[side]["bytes"]) for side in ("rx", "tx")
                    )
                    ports[name] = PortState(rx, tx, up)
                    called[name] = [name, *link.get("altnames", ())]
                    said = link["linkinfo"]["info_slave_data"]
                    settings[name] = {key: bool(said[key]) for key in _WANTED}
            table = {
                entry["mac"]: entry["ifname"]
                for entry in json.loads(fdb or "[]")
                if entry.get("state") == "static"
                and entry.get("vlan", self._switch.vlan) == self._switch.vlan
            }
            for each in json.loads(neighbours or "[]"):
                if "." in each.get("dst", ""):
                    table[each["dst"]] = each["lladdr"]
        except (ValueError, KeyError, TypeError) as error:
            raise self._nonsense(
                "ip and bridge", links + fdb + neighbours, error
            ) from error
        self._know_ports(match_ports(self._names, called), ports)
        return Found(
            table,
            ports,
            settings,
            Record.parse(record),
        )

    def _settings_to_change(self, found: Found) -> Mapping[str, Any]:
        learning = {
            self._interfaces.get(port) for port in self._wish.to_learning
        }
        wanted = {
            name: _TO_LEARNING if name in learning else _WANTED
            for name in self._lab_interfaces()
        }
        return {
            k: want
            for k, want in wanted.items()
            if found.settings.get(k, want) != want
        }

    async def _change(
        self,
        removes: Table,
        adds: Table,
        settings: Mapping[str, Any],
        record: Record | None,
    ) -> str:
        ip = []
        fdb = []
        for name, values in settings.items():
            said = " ".join(
                f"{key} {'on' if on else 'off'}" for key, on in values.items()
            )
            # What was learned there goes: it could lead elsewhere than the static entries.
            ip.append(
                f"link set dev {name} type bridge_slave {said} fdb_flush"
            )
        for key, value in removes.items():
            if ":" in key:
                fdb.append(f"fdb del {key} dev {value} master{self._vlan}")
            else:
                ip.append(f"neigh del {key} dev {self._answering}")
        for key, value in adds.items():
            if ":" in key:
                fdb.append(
                    f"fdb replace {key} dev {value} master static{self._vlan}"
                )
            else:
                ip.append(
                    f"neigh replace {key} lladdr {value} dev {self._answering} nud permanent"
                )
        write = f"rm -f {self._record}"
        if record is not None:
            temporary = f"{self._record}.new"
            write = f"cat >{temporary} {quoted_lines([record.text()])}\n"
            write += f"mv {temporary} {self._record} || exit 1"
        batches = (
            [f"bridge -force -batch - {quoted_lines(fdb)}"] if fdb else []
        )
        batches += [f"ip -force -batch - {quoted_lines(ip)}"] if ip else []
        # Without Patchlight's settings the entries are to be gone, and with them to be there.
        steps = (
            [write, *reversed(batches)]
            if record is not None
            else [*batches, write]
        )
        return await self._run_as_root("\n".join([*steps, "exit 0"]))
