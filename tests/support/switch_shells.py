"""Switches whose drivers run shell scripts over SSH, in memory: a Linux bridge, and SONiC.

A script is run statement by statement. The switch's own programs answer from a model of its tables;
what SONiC's do with CONFIG_DB is that of the emulated switch.
"""

import asyncio
import copy
import fnmatch
import functools
import json
import shlex
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from patchlight.emulation.servers import sonic
from patchlight.testbed.lab.model import PacketSwitch

Statement = tuple[Sequence[str], str, Sequence[str]]
"""Words, the file that the output goes into, and the lines of the input."""


@functools.lru_cache(maxsize=256)
def statements(script: str) -> Sequence[Statement]:
    """The statements of a driver's script, without assignments and what follows a failure."""
    left = deque(script.splitlines())
    found = []
    while left:
        line, marked, _ = left.popleft().partition(" <<'PATCHLIGHT'")
        lines = []
        while marked and (text := left.popleft()) != "PATCHLIGHT":
            lines.append(text)
        for statement in line.partition(" || ")[0].split("; "):
            words = shlex.split(statement)
            into = next(
                (word[1:] for word in words if word.startswith(">")), ""
            )
            words = [
                word for word in words if not word.startswith((">", "2>"))
            ]
            if words and "=" not in words[0]:
                found.append((words, into, lines))
    return found


class SwitchShell(ABC):
    """The shell of one switch. ``ports`` are its present interfaces, and whether each is up."""

    def __init__(self, switch: PacketSwitch) -> None:
        self.switch = switch
        self.ports = dict.fromkeys(switch.interface_names, True)
        self.refuses = 0
        """How many of the next entries it refuses."""
        self.files: dict[str, str] = {}

    @property
    @abstractmethod
    def table(self) -> Mapping[str, str]:
        """The interface to which each MAC leads."""

    @property
    @abstractmethod
    def flooded(self) -> frozenset[str]:
        """The interfaces by which frames leave that are not in the table."""

    @abstractmethod
    def enter(self, mac: str, interface: str | None) -> None:
        """An operator makes an entry, or removes it."""

    @abstractmethod
    def program(
        self, words: Sequence[str], lines: Sequence[str]
    ) -> tuple[str, Sequence[str]]:
        """Output and errors of one of its programs, with these lines as its input."""

    async def run(self, command: str, text: str) -> tuple[int, str, str]:
        """Exit status, output and errors of a command with this input."""
        status = 0
        said = ""
        errors = ""
        for words, into, lines in statements(text):
            if command != "sh":  # it changes something, and may be interrupted
                await asyncio.sleep(0.001)  # others have a turn in the middle
            match words:
                case ["exit", code]:
                    status = status if code == "$status" else int(code)
                case ["cat"]:
                    self.files[into] = "".join(f"{line}\n" for line in lines)
                case ["cat", name]:
                    said += self.files.get(name, "")
                case ["echo", *rest]:
                    said += " ".join(rest) + "\n"
                case ["mv", old, new]:
                    self.files[new] = self.files.pop(old)
                case ["rm", "-f", name]:
                    self.files.pop(name, None)
                case ["true"]:
                    pass
                case _:
                    output, wrong = self.program(words, lines)
                    status = int(bool(wrong))
                    said += output
                    errors += "".join(f"{error}\n" for error in wrong)
        return status, said, errors

    def refused(self) -> bool:
        """Whether it refuses one more entry."""
        self.refuses -= 1
        return self.refuses >= 0

    def _links(self) -> list[dict[str, Any]]:
        """As ``ip -s -json link`` shows them."""
        counted = {"rx": {"bytes": 0}, "tx": {"bytes": 0}}
        return [
            {
                "ifname": name,
                "ifindex": n,
                "operstate": "UP" if up else "DOWN",
                "stats64": counted,
            }
            for n, (name, up) in enumerate(self.ports.items(), 3)
        ]


class BridgeShell(SwitchShell):
    """A Linux bridge, which learns and floods until it is told otherwise."""

    _FLAGS = (
        "learning",
        "flood",
        "mcast_flood",
        "bcast_flood",
        "proxy_arp",
        "proxy_arp_wifi",
    )

    def __init__(self, switch: PacketSwitch) -> None:
        super().__init__(switch)
        self._fdb: dict[str, str] = {}
        self._neighbours: dict[str, str] = {}
        self._flags = {
            name: dict.fromkeys(self._FLAGS, True) for name in self.ports
        }

    @property
    def table(self) -> Mapping[str, str]:
        """See ``SwitchShell``. An interface that has gone takes its entries and flags with it."""
        for name in self._flags.keys() - self.ports.keys():
            self._fdb = {
                mac: there for mac, there in self._fdb.items() if there != name
            }
            self._flags[name] = dict.fromkeys(self._FLAGS, True)
        return self._fdb

    @property
    def flooded(self) -> frozenset[str]:
        """See ``SwitchShell``."""
        return frozenset(
            name for name in self.ports if self._flags[name]["flood"]
        )

    def enter(self, mac: str, interface: str | None) -> None:
        """See ``SwitchShell``."""
        self._fdb.pop(mac, None)
        if interface is not None:
            self._fdb[mac] = interface

    def program(
        self, words: Sequence[str], lines: Sequence[str]
    ) -> tuple[str, Sequence[str]]:
        """``ip`` and ``bridge``."""
        match words:
            case ["ip", "-s", "-d", "-json", "link", *_]:
                links = self._links()
                for link in links:
                    link["linkinfo"] = {
                        "info_slave_data": self._flags[link["ifname"]]
                    }
                return json.dumps(links), ()
            case ["bridge", "-json", "fdb", *_]:
                rows = [
                    {"mac": m, "ifname": n, "state": "static"}
                    for m, n in self.table.items()
                ]
                return json.dumps(rows), ()
            case ["ip", "-json", "neigh", *_]:
                seen = [
                    {"dst": ip, "lladdr": mac}
                    for ip, mac in self._neighbours.items()
                ]
                return json.dumps(seen), ()
            case [_, "-force", "-batch", "-"]:
                return "", [
                    error
                    for line in lines
                    if (error := self._obey(line.split()))
                ]
        raise AssertionError(words)

    @staticmethod
    def _named(words: Sequence[str]) -> str:
        return words[words.index("dev") + 1]

    def _obey(self, words: Sequence[str]) -> str:
        match words:
            case ["link" | "fdb", _, *_] if (
                self._named(words) not in self.ports
            ):
                return f'Cannot find device "{self._named(words)}"'
            case [
                "link",
                "set",
                "dev",
                name,
                "type",
                "bridge_slave",
                *flags,
                "fdb_flush",
            ]:
                said = zip(flags[::2], flags[1::2], strict=True)
                self._flags[name] |= {
                    flag: value == "on" for flag, value in said
                }
            case ["fdb", "del", mac, "dev", name, "master"]:
                if self._fdb.get(mac) != name:
                    return "RTNETLINK answers: No such file or directory"
                del self._fdb[mac]
            case ["fdb", "replace", _, "dev", _, "master", "static"] if (
                self.refused()
            ):
                return "RTNETLINK answers: No space left on device"
            case ["fdb", "replace", mac, "dev", name, "master", "static"]:
                self._fdb[mac] = name
            case ["neigh", "del", address, "dev", _]:
                self._neighbours.pop(address, None)
            case ["neigh", "replace", address, "lladdr", mac, *_]:
                self._neighbours[address] = mac
            case _:
                raise AssertionError(words)
        return ""


class SonicShell(SwitchShell):
    """A switch that runs SONiC."""

    def __init__(self, switch: PacketSwitch) -> None:
        super().__init__(switch)
        self._config = sonic.first_config(switch)

    @property
    def table(self) -> Mapping[str, str]:
        """See ``SwitchShell``."""
        rows = self._config.get("FDB", {}).items()
        return {key.partition("|")[2]: row["port"] for key, row in rows}

    @property
    def flooded(self) -> frozenset[str]:
        """See ``SwitchShell``."""
        (vlan,) = self._config["VLAN"].values()
        return frozenset(
            self.ports
            if vlan.get("unknown_unicast_flood") != "disabled"
            else ()
        )

    def enter(self, mac: str, interface: str | None) -> None:
        """See ``SwitchShell``."""
        key = f"Vlan{self.switch.vlan}|{mac}"
        rows = self._config.pop("FDB", {})
        rows.pop(key, None)
        if interface is not None:
            rows[key] = {"port": interface}
        if rows:
            self._config["FDB"] = rows

    def program(
        self, words: Sequence[str], lines: Sequence[str]
    ) -> tuple[str, Sequence[str]]:
        """``sonic-db-dump`` and ``config``."""
        match words:
            case ["sonic-db-dump", "-n", name, "-y", "-k", pattern]:
                rows = sonic.rows_of(
                    name, self._config, self.table, self._links()
                )
                keys = fnmatch.filter(rows, pattern)
                return json.dumps(
                    {k: {"type": "hash", "value": rows[k]} for k in keys}
                ), ()
            case ["config", "apply-patch", path]:
                patch = json.loads(self.files[path])
                try:
                    if (
                        any("FDB" in step["path"] for step in patch)
                        and self.refused()
                    ):
                        raise sonic.PatchRefused(
                            "SAI_STATUS_TABLE_FULL: table full"
                        )
                    config = sonic.patched(copy.deepcopy(self._config), patch)
                    sonic.check(config, [])
                except sonic.PatchRefused as refused:
                    return "", [f"Failed to apply patch due to: {refused}"]
                self._config = config
                return "", ()
        raise AssertionError(words)
