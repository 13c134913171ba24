"""Emulates the programs of a switch that runs SONiC, which forwards by a Linux bridge.

This file is also those programs, on a switch that has nothing of Patchlight: ``config apply-patch``
changes CONFIG_DB, a JSON file, and the bridge as SONiC's daemons change the hardware;
``sonic-db-dump`` shows CONFIG_DB, and from the kernel what ASIC_DB, APPL_DB and COUNTERS_DB have.
Faults are in a file: ``table_size``, ``refused`` MACs, ``garbage`` instead of answers.
"""

import argparse
import fcntl
import fnmatch
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from patchlight.testbed.lab.model import PacketSwitch

FOLDER = Path("/var/lib/sonic")
_CONFIG = "config_db.json"
_FAULTS = "faults.json"
_BRIDGE = "bridge"
_FLOODS = {
    "unknown_unicast_flood": "flood",
    "unknown_multicast_flood": "mcast_flood",
}
_FLOODS["broadcast_flood"] = "bcast_flood"
Database = dict[str, dict[str, dict[str, str]]]


def install(root: Path, switch: "PacketSwitch") -> None:
    """Put the programs and the first configuration into a switch's file system."""
    folder = root / str(FOLDER)[1:]
    programs = root / "usr/local/bin"
    for each in (folder, programs):
        each.mkdir(
            mode=0o755,
            parents=True,
        )
    for program in ("config", "sonic-db-dump"):
        (programs / program).write_text(
            f"#!/usr/bin/python3 -IS\n{Path(__file__).read_text()}"
        )
        (programs / program).chmod(0o755)
    (folder / _CONFIG).write_text(json.dumps(first_config(switch)))
    (folder / _BRIDGE).write_text(switch.bridge)


def first_config(switch: "PacketSwitch") -> Database:
    """CONFIG_DB of a switch whose ports are all members of its VLAN."""
    vlan = f"Vlan{switch.vlan}"
    names = switch.interface_names
    return {
        "PORT": {name: {"index": str(n)} for n, name in enumerate(names, 1)},
        "VLAN": {vlan: {"vlanid": str(switch.vlan)}},
        "VLAN_MEMBER": {
            f"{vlan}|{name}": {"tagging_mode": "untagged"} for name in names
        },
    }


class PatchRefused(Exception):
    """A patch that SONiC does not apply."""


def patched(database: Any, patch: list[dict[str, Any]]) -> Any:
    """CONFIG_DB after a patch (RFC 6902), which changes it in place; ``PatchRefused``."""
    for step in patch:
        *above, last = (
            p.replace("~1", "/").replace("~0", "~")
            for p in step["path"].split("/")[1:]
        )
        at = database
        for name in above:
            if name not in at:
                raise PatchRefused(
                    f"JsonPatchConflict: member '{name}' not found"
                )
            at = at[name]
        if step["op"] == "remove":
            if last not in at:
                raise PatchRefused(
                    f"can't remove a non-existent object '{last}'"
                )
            del at[last]
        else:
            at[last] = step["value"]
    return database


def check(database: Database, refused: list[str]) -> None:
    """``PatchRefused`` unless CONFIG_DB may be so."""
    for table, rows in database.items():
        if not rows:
            raise PatchRefused(
                f"given patch will produce empty tables which is not allowed: {table}"
            )
    for key, row in database.get("FDB", {}).items():
        vlan, _, mac = key.partition("|")
        if not re.fullmatch("([0-9a-f]{2}:){5}[0-9a-f]{2}", mac) or set(
            row
        ) != {"port"}:
            raise PatchRefused(f"data loading failed: FDB {key}")
        if (
            f"{vlan}|{row['port']}" not in database["VLAN_MEMBER"]
            or mac in refused
        ):
            raise PatchRefused(f"given config failed validation: FDB {key}")


def _programs(database: Database, faults: dict[str, Any]) -> None:
    """Bring the bridge to what the configuration says, as far as the table has room."""
    bridge = (FOLDER / _BRIDGE).read_text()
    wanted = {
        key.partition("|")[2]: row["port"]
        for key, row in database.get("FDB", {}).items()
    }
    present = _hardware(bridge)
    fdb = [
        f"fdb del {m} dev {p} master"
        for m, p in present.items()
        if wanted.get(m) != p
    ]
    kept = sum(wanted.get(mac) == port for mac, port in present.items())
    new = [
        (mac, port) for mac, port in wanted.items() if present.get(mac) != port
    ]
    room = faults.get("table_size", 1 << 20) - kept
    fdb += [
        f"fdb replace {m} dev {p} master static"
        for m, p in new[: max(0, room)]
    ]
    ip = []
    there = {port["ifname"] for port in _ports(bridge)}
    (row,) = database["VLAN"].values()
    for key in database["VLAN_MEMBER"]:
        said = f"learning {'off' if row.get('mac_learning') == 'disabled' else 'on'}"
        for name, flag in _FLOODS.items():
            said += f" {flag} {'off' if row.get(name) == 'disabled' else 'on'}"
        if (port := key.partition("|")[2]) in there:
            ip.append(f"link set dev {port} type bridge_slave {said}")
    for program, lines in (("bridge", fdb), ("ip", ip)):
        command = [
            f"/usr/sbin/{program}",
            "-force",
            "-batch",
            "-",
        ]
        subprocess.run(
            command,
            input="\n".join(lines),
            text=True,
            check=False,
        )


def _json_of(*command: str) -> Any:
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout or "[]")


def _hardware(bridge: str) -> dict[str, str]:
    rows = _json_of(
        "/usr/sbin/bridge",
        "-json",
        "fdb",
        "show",
        "br",
        bridge,
    )
    return {
        row["mac"]: row["ifname"]
        for row in rows
        if row.get("state") == "static"
    }


def _ports(bridge: str) -> list[dict[str, Any]]:
    rows = _json_of(
        "/usr/sbin/ip",
        "-s",
        "-json",
        "link",
        "show",
        "master",
        bridge,
    )
    return [row for row in rows if row]


def rows_of(
    name: str,
    config: Database,
    hardware: Iterable[str],
    ports: Sequence[dict[str, Any]],
) -> dict[str, dict[str, str]]:
    """The rows of one database by key: of CONFIG_DB, or of others what the driver reads.

    ``hardware`` are the MACs that are programmed; ``ports`` as ``ip -s -json link`` shows them.
    """
    if name == "CONFIG_DB":
        return {
            f"{table}|{key}": row
            for table, rows in config.items()
            for key, row in rows.items()
        }
    if name == "ASIC_DB":
        head = "ASIC_STATE:SAI_OBJECT_TYPE_FDB_ENTRY:"
        ids = {"bvid": "oid:0x26", "switch_id": "0"}
        return {
            head + json.dumps({**ids, "mac": m.upper()}): {} for m in hardware
        }
    if name == "APPL_DB":
        up = {port["ifname"]: port["operstate"].lower() for port in ports}
        return {
            f"PORT_TABLE:{port}": {"oper_status": state}
            for port, state in up.items()
        }
    oids = {
        port["ifname"]: f"oid:0x1000000{port['ifindex']:06x}" for port in ports
    }
    counted = {}
    for port in ports:
        sides = zip(("IN", "OUT"), ("rx", "tx"), strict=True)
        counted[f"COUNTERS:{oids[port['ifname']]}"] = {
            f"SAI_PORT_STAT_IF_{there}_OCTETS": str(
                port["stats64"][here]["bytes"]
            )
            for there, here in sides
        }
    return {"COUNTERS_PORT_NAME_MAP": oids, **counted}


def main(program: str, arguments: list[str]) -> str:
    """Run one of the programs; returns what it prints, or exits with an error."""
    faults: dict[str, Any] = {}
    if (FOLDER / _FAULTS).exists():
        faults = json.loads((FOLDER / _FAULTS).read_text())
    if faults.get("garbage"):
        return "Traceback (most recent call last): redis.exceptions.BusyLoadingError"
    path = FOLDER / _CONFIG
    if program == "sonic-db-dump":
        parser = argparse.ArgumentParser()
        parser.add_argument("-n")
        parser.add_argument("-k", default="*")
        parser.add_argument("-y", action="store_true")
        said = parser.parse_args(arguments)
        bridge = (FOLDER / _BRIDGE).read_text()
        config = json.loads(path.read_text())
        rows = rows_of(
            said.n,
            config,
            _hardware(bridge),
            _ports(bridge),
        ).items()
        shown = {
            k: {"type": "hash", "value": v}
            for k, v in rows
            if fnmatch.fnmatchcase(k, said.k)
        }
        return json.dumps(shown)
    if os.geteuid():
        sys.exit("Root privileges are required for this operation")
    with path.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        config = json.load(file)
        if arguments[:1] == ["apply-patch"]:
            try:
                config = patched(
                    config, json.loads(Path(arguments[1]).read_text())
                )
                check(config, faults.get("refused", []))
            except PatchRefused as refused:
                sys.exit(f"Failed to apply patch due to: {refused}")
        elif arguments[:1] != ["reload"]:
            sys.exit(f"no such command: {arguments}")
        _programs(config, faults)
        file.seek(0)
        file.truncate()
        json.dump(config, file)
    return "Patch applied successfully."


if __name__ == "__main__":
    print(main(Path(sys.argv[0]).name, sys.argv[1:]))
