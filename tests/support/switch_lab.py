"""An emulated lab of packet switches with an sshd, for tests of their drivers; and what happens to
real ones."""

import json
import os
import random
import subprocess
from pathlib import Path
from typing import Any

from patchlight import EmulatedLab
from patchlight.testbed.lab.model import PacketSwitch
from patchlight.testbed.linux import namespaces

# Six NICs, three on each switch.
SWITCHES = """
network: 192.168.20.0/24
servers:
  - name: server[1-6]
    nics: [{name: nic0, address: "192.168.20.[11-16]"}]
packet_switches:
  - {name: bridge1, driver: linux-bridge, address: "10.0.0.7:22", ports: 3}
  - {name: sonic1, driver: sonic, address: "10.0.0.8:22", ports: 3, vlan: 100}
fibres:
  - server[1-3].nic0 - bridge1.[1-3]
  - server[4-6].nic0 - sonic1.[1-3]
"""


def switch_lab(folder: Path, prefix: str = "sw") -> EmulatedLab:
    path = folder / "switches.yaml"
    path.write_text(f"name: {prefix}{os.getpid()}\n{SWITCHES}")
    return EmulatedLab.from_file(path, 1000, controller=False, agents=False)


def static_entries(lab: EmulatedLab, switch: str) -> dict[str, str]:
    """The static entries of an emulated switch with a Linux bridge, by MAC, from its kernel."""
    path = namespaces.namespace_path(f"pl.{lab.lab.name}.{switch}")
    command = [
        "nsenter",
        f"--net={path}",
        "bridge",
        "-json",
        "fdb",
        "show",
        "br",
        "br0",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = json.loads(done.stdout)
    return {
        row["mac"]: row["ifname"]
        for row in rows
        if row.get("state") == "static"
    }


class SwitchUnderTest:
    """One switch of such a lab, as its operator sees it."""

    def __init__(self, lab: EmulatedLab, name: str) -> None:
        self._lab = lab
        self.name = name
        self.switch: PacketSwitch = next(
            s for s in lab.lab.packet_switches if s.name == name
        )
        self.is_sonic = self.switch.driver == "sonic"

    def sudo(self, command: str, text: str = "") -> str:
        config = self._lab.run_dir / "ssh/config"
        whole = [
            "ssh",
            "-q",
            "-F",
            str(config),
            self.name,
            f"sudo sh -c '{command}'",
        ]
        return subprocess.run(
            whole,
            input=text,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout

    def table(self) -> dict[str, str]:
        """The static entries in the kernel, without any way of Patchlight's."""
        return static_entries(self._lab, self.name)

    def lose_port(self, port: int, *, again: bool = False) -> None:
        """A port leaves the bridge, or is in it again."""
        where = "master br0" if again else "nomaster"
        self.sudo(
            f"ip link set {self.switch.interface_names[port - 1]} {where}"
        )

    def meddle(self, mac: str, port: int) -> None:
        """An operator has this MAC lead to a port."""
        interface = self.switch.interface_names[port - 1]
        if self.is_sonic:
            path = f"/FDB/Vlan100|{mac}"
            rows = {f"Vlan100|{mac}": {"port": interface}}
            has = bool(self.table())
            value: Any = {"port": interface} if has else rows
            patch = [
                {"op": "add", "path": path if has else "/FDB", "value": value}
            ]
            self.sudo(
                "cat >/run/patch; config apply-patch /run/patch",
                json.dumps(patch),
            )
        else:
            self.sudo(
                f"/usr/sbin/bridge fdb replace {mac} dev {interface} master static"
            )

    def undo(self, mac: str, port: int) -> None:
        interface = self.switch.interface_names[port - 1]
        if self.is_sonic:
            path = f"/FDB/Vlan100|{mac}" if len(self.table()) > 1 else "/FDB"
            patch = [{"op": "remove", "path": path}]
            self.sudo(
                "cat >/run/patch; config apply-patch /run/patch",
                json.dumps(patch),
            )
        elif self.table().get(mac) == interface:
            self.sudo(f"/usr/sbin/bridge fdb del {mac} dev {interface} master")


def drawn(seed: int) -> random.Random:
    """A generator whose seed is printed when a test fails."""
    print(f"seed {seed}")
    return random.Random(seed)
