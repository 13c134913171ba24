"""Emulated labs for tests: what is made, what it carries, and what is left of it."""

import subprocess
import sys
from pathlib import Path

from patchlight.emulation.fabric import lab_state as states
from patchlight.emulation.lab.hosts import EmulatedHost
from patchlight.emulation.lab.services import LabKeywords
from patchlight.testbed import generate
from patchlight.testbed.labfile.writer import write_lab
from patchlight.testbed.linux import namespaces

SWITCHES_ONLY: LabKeywords = {"controller": False, "agents": False}

TWO_TORS = """
name: two-tors
network: 192.168.10.0/24
servers:
  - name: server1
    gpus: [{name: gpu0, model: Tesla M40}, {name: gpu1, model: Titan V}]
    nics: [{name: nic0, address: 192.168.10.11, rate: 40Gbps, gpu: gpu0},
           {name: nic1, address: 192.168.10.12, rate: 40Gbps, gpu: gpu1}]
  - name: server2
    gpus: [{name: gpu2, model: Tesla M40}]
    nics: [{name: nic0, address: 192.168.10.13, rate: 40Gbps, gpu: gpu2}]
packet_switches: [{name: tor1, datapath_id: 1, ports: 3}, {name: tor2, datapath_id: 2, ports: 3}]
fibres:
  - {ends: [server1.nic0, tor1.1], rate: 100Gbps}
  - {ends: [server1.nic1, tor1.2]}
  - {ends: [server2.nic0, tor2.1]}
  - {ends: [tor1.3, tor2.3], rate: 10Gbps}
"""

RECEIVE = """
import socket, sys, time
listener = socket.create_server(("0.0.0.0", 5000))
print("listening", flush=True)
client, _ = listener.accept()
client.settimeout(10)
got, first = 0, None
while data := client.recv(1 << 16):
    first = first or time.monotonic()
    got += len(data)
print(got * 8 / (time.monotonic() - first))
"""
SEND = """
import socket, sys, time
client = socket.create_connection((sys.argv[1], 5000))
end = time.monotonic() + float(sys.argv[2])
while time.monotonic() < end:
    client.sendall(bytes(1 << 14))
"""


def tree(tmp_path: Path, hosts: int, fabric: str = "openvswitch") -> Path:
    path = tmp_path / f"tree{hosts}-{fabric}.yaml"
    path.write_text(write_lab(generate.tree(hosts, fabric=fabric)))
    return path


def pings(a: EmulatedHost, b: EmulatedHost) -> bool:
    return a.run(f"ping -c 1 -W 2 {b.address}").exit_status == 0


def left_of(name: str) -> list[str]:
    """Everything on this machine that says it is of this lab."""
    remains = namespaces.names_with_prefix(f"pl.{name}.")
    remains += [str(path) for path in states.RUN_ROOT.glob(f"*{name}*")]
    for process in Path("/proc").iterdir():
        try:
            if f"/run/patchlight/{name}".encode() in (process / "environ").read_bytes():
                remains.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return remains


def tcp_bps(sender: EmulatedHost, receiver: EmulatedHost, seconds: float = 2.0) -> float:
    """What one TCP connection carries: payload bits per second at the receiver."""
    with receiver.popen([sys.executable, "-c", RECEIVE], stdout=subprocess.PIPE) as listening:
        assert listening.stdout is not None
        assert listening.stdout.readline() == "listening\n"
        sent = sender.run([sys.executable, "-c", SEND, receiver.address, str(seconds)], timeout=30)
        assert sent.exit_status == 0, sent.output
        rate_bps = float(listening.stdout.read())
        listening.wait()
    return rate_bps
