"""An emulated lab of packet switches with an sshd, for tests of their drivers; and what happens to
real ones."""

import json
import os
import random
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from patchlight import EmulatedLab
from patchlight.controller.packet_switches.conformance import stations
from patchlight.controller.packet_switches.contract import Wish
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

# ``bridge`` on a switch whose table has room for so many entries, or that answers nonsense.
_SHIM = r"""#!/bin/sh
if [ -e /run/garbage ]; then echo '{"half an answer'; exit 0; fi
if [ ! -e /run/limit ]; then exec /usr/sbin/bridge "$@"; fi
case "$*" in *batch*) ;; *) exec /usr/sbin/bridge "$@" ;; esac
while read -r line; do
    case $line in "fdb replace"*)
        entries=$(/usr/sbin/bridge fdb show br br0 | grep -c ' static')
        if [ "$entries" -ge "$(cat /run/limit)" ]; then
            echo "RTNETLINK answers: No space left on device" >&2
            continue
        fi ;;
    esac
    /usr/sbin/bridge $line
done
"""

# As after a boot: nobody gets in before all is done, and this session is the only one that goes on.
_RELOAD = r"""
import json, os, signal, subprocess
from pathlib import Path

def read(pid, name):
    try:
        return Path(f"/proc/{pid}/{name}").read_text().replace("\0", " ")
    except OSError:
        return ""

def ancestors(pid):
    while pid > 1:
        yield pid
        status = read(pid, "stat").rpartition(")")[2].split()
        pid = int(status[1]) if status else 0

def pids_of(*words):
    pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    return {pid for pid in pids if all(word in read(pid, "cmdline") for word in words)}

listening = pids_of("sshd: ", "[listener]")
for pid in listening:
    os.kill(pid, signal.SIGSTOP)
pids = pids_of()
others = pids_of("sshd: ") - listening - set(ancestors(os.getpid()))
for pid in [pid for pid in pids if others & set(ancestors(pid))]:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
for port in os.listdir("/sys/class/net/br0/brif"):
    for master in (["nomaster"], ["master", "br0"]):
        subprocess.run(["ip", "link", "set", port, *master], check=True)
for record in Path("/run").glob("patchlight-*"):
    record.unlink()
saved, config = Path("/var/lib/sonic/saved_db.json"), Path("/var/lib/sonic/config_db.json")
if saved.exists():
    config.write_text(saved.read_text())
    subprocess.run(["config", "reload"], check=True)
for pid in listening:
    os.kill(pid, signal.SIGCONT)
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
        if self.is_sonic:
            # The first one finds it as it was installed.
            self.sudo(
                "cd /var/lib/sonic; [ -e saved_db.json ] || cp config_db.json saved_db.json"
            )
        else:
            self.sudo(
                "cat >/usr/local/sbin/bridge; chmod 755 /usr/local/sbin/bridge",
                _SHIM,
            )

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

    # -- faults -----------------------------------------------------------------------------

    def _sonic_faults(self, **faults: Any) -> None:
        self.sudo("cat >/var/lib/sonic/faults.json", json.dumps(faults))

    def full_table(self, entries: int) -> None:
        if self.is_sonic:
            self._sonic_faults(table_size=entries)
        else:
            self.sudo(f"echo {entries} >/run/limit")

    def refuse(self, mac: str) -> None:
        assert self.is_sonic
        self._sonic_faults(refused=[mac])

    def answer_nonsense(self) -> None:
        if self.is_sonic:
            self._sonic_faults(garbage=True)
        else:
            self.sudo("touch /run/garbage")

    def heal(self) -> None:
        self.sudo("rm -f /run/limit /run/garbage /var/lib/sonic/faults.json")

    def reload(self) -> None:
        """It restarts: all that runs ends, what was not saved is lost, then it can be reached."""
        self.sudo("python3 -", _RELOAD)

    def lose_sessions(self) -> None:
        """Each login of the user ends, this one too."""
        config = self._lab.run_dir / "ssh/config"
        kill = 'for c in /proc/[0-9]*/cmdline; do tr "\\0" " " <$c | grep -q "^sshd: admin" && '
        kill += 'kill -9 "$(echo $c | cut -d/ -f3)"; done'
        command = [
            "ssh",
            "-q",
            "-F",
            str(config),
            self.name,
            f"sudo sh -c '{kill}'",
        ]
        subprocess.run(command, capture_output=True, check=False, timeout=60)

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


def stations_at(random: random.Random, ports: Iterable[int]) -> Wish:
    """Four to twelve stations at ports drawn for each."""
    every = stations(12)
    numbers = sorted(ports)
    chosen = random.sample(every, random.randint(4, 12))
    return Wish(
        {each: random.choice(numbers) for each in chosen}, frozenset(numbers)
    )
