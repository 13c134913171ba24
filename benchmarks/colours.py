"""What a frame costs whose way depends on its wavelength, and what a change of a wavelength costs.

The emulated light follows all light beforehand, so that a frame is redirected once, however many
devices it passes. Beside it two other ways: frames that pass device by device, over a link for each
fibre, and a VLAN tag for the channel in Open vSwitch (in the datapath that this kernel has).
Processor time is that of the sender, in whose system calls the kernel does it, and of Open vSwitch.
"""

import os
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import figure
from patchlight.emulation.fabric import links
from patchlight.emulation.fabric import links as redirects
from patchlight.emulation.fabric.build import datapath_type, new_bridge
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.optical_links import Light
from patchlight.testbed.lab.spectrum import Channel
from patchlight.testbed.labfile.reader import parse_lab
from patchlight.testbed.linux import namespaces
from patchlight.testbed.linux.netlink import Netlink
from tests.support.private_ovs import PrivateOvs

FRAMES = 50_000
ROUNDS = 5
# To nobody, from nobody, of an experimental type, 200 bytes in all.
_FRAME = b"\x02\0\0\0\0\1" + b"\x02\0\0\0\0\2" + b"\x88\xb5" + bytes(186)
# A star or the wavelength switches of a lab like oddl4, each on channels of their own.
_FIRST = 100
_BURST = 250
_LAB = """
name: large
network: 10.0.0.0/16
servers:
{servers}
wavelength_switches: [{{name: wss1, inputs: {n}, cross_connects: ["1-2@193.100"]}}]
passive_parts: [{{name: star1, kind: coupler, ports: {n}}}]
fibres: ["server[1-{n}].nic0 - {device}.[1-{n}]"]
"""


def run() -> list[dict[str, Any]]:
    """The figures. Needs root."""
    bare, once, thrice = (_per_frame_us(devices) for devices in (0, 1, 3))
    tagged = _tagged_us()
    kind = f"VLAN tag in Open vSwitch ({datapath_type()})"
    return [
        figure("a frame over a bare link", bare, "µs of CPU"),
        figure(
            "a frame through three devices, redirected once", once, "µs of CPU"
        ),
        figure("  device by device", thrice, "µs of CPU"),
        figure(
            "  the same, by a tag",
            once,
            "µs of CPU",
            peer=kind,
            peer_value=tagged,
        ),
        *(
            figure(
                f"following a retuned laser among {n} on a {device}",
                ms,
                "ms of CPU",
            )
            for n, device in (
                (4, "star"),
                (16, "star"),
                (64, "star"),
                (64, "switch"),
            )
            for ms in [_retuned_ms(n, "star1" if device == "star" else "wss1")]
        ),
    ]


def _per_frame_us(devices: int) -> float:
    """Over so many devices, with a link between each two."""
    with _namespace() as path, Netlink(path) as netlink:
        _lay_links(netlink, devices + 1)
        for device in range(devices):
            inp = _FIRST + 1 + 2 * device
            out = _FIRST + 2 + 2 * device
            redirects.ready_ingress(netlink, [inp])
            netlink.run(redirects.redirect("it", inp, [out]))
        return median(_sent_us(path, f"b{devices}") for _ in range(ROUNDS))


def _tagged_us() -> float:
    """Through one bridge that tags what comes in and untags what goes out."""
    with (
        tempfile.TemporaryDirectory() as folder,
        PrivateOvs("pl-bench-ovs", Path(folder)) as ovs,
    ):
        path = Path(ovs.netns)
        with Netlink(path) as netlink:
            _lay_links(netlink, 2)
        ovs.vsctl(*new_bridge("br0", 1, datapath_type(), learning=False)[1:])
        for number, port in ((1, "b0"), (2, "a1")):
            add = ("add-port", "br0", port)
            ovs.vsctl(
                *add,
                "--",
                "set",
                "Interface",
                port,
                f"ofport_request={number}",
            )
        tag = "in_port=1,vlan_tci=0,actions=push_vlan:0x8100,set_field:4196->vlan_vid,resubmit(,1)"
        ovs.ofctl("add-flow", "br0", tag)
        ovs.ofctl(
            "add-flow", "br0", "table=1,dl_vlan=100,actions=pop_vlan,output:2"
        )
        return median(_sent_us(path, "b1", ovs.pid) for _ in range(ROUNDS))


def _sent_us(path: Path, last: str, helper: int | None = None) -> float:
    """Processor time for each frame that came in at ``last``, the helper's and the sender's."""
    with namespaces.entered(path), Netlink() as netlink:
        sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        sender.bind(("a0", 0))
        before = links.list_links(netlink)[last].rx_packets
        used_s = -time.process_time() - _processor_s(helper)
        for first in range(0, FRAMES, _BURST):
            for _ in range(_BURST):
                sender.send(_FRAME)
            # What copies frames in a process of its own must not fall behind.
            deadline = time.monotonic() + 1.0
            waiting_s = time.process_time()
            while (
                links.list_links(netlink)[last].rx_packets - before
                < first + _BURST
            ):
                if helper is None or time.monotonic() > deadline:
                    break
                time.sleep(0.001)
            used_s -= time.process_time() - waiting_s
        used_s += time.process_time() + _processor_s(helper)
        came = links.list_links(netlink)[last].rx_packets - before
        sender.close()
    if came < FRAMES / 2:
        raise PatchlightError(f"of {FRAMES} frames {came} came through")
    return used_s / came * 1e6


def _processor_s(pid: int | None) -> float:
    if pid is None:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _lay_links(netlink: Netlink, count: int) -> None:
    for link in range(count):
        near = _FIRST + 2 * link
        far = _FIRST + 1 + 2 * link
        here = links.LinkEnd(f"a{link}", near, up=True)
        netlink.run(
            [
                links.add_veth(here, links.LinkEnd(f"b{link}", far)),
                links.set_up(far, f"b{link}"),
            ]
        )


@contextmanager
def _namespace() -> Iterator[Path]:
    name = "pl-bench-colours"
    path = namespaces.create(name)
    try:
        yield path
    finally:
        namespaces.delete(name)


def _retuned_ms(servers: int, device: str) -> float:
    """Following the light once more after one laser was tuned to a channel that it never had."""
    nics = (
        f"  - {{name: server{n}, nics: [{{name: nic0, address: 10.0.{n}.1, "
        f"transceiver: {{channel: {Channel(8 * n)}, tunable: 191.000-199.000}}}}]}}"
        for n in range(1, servers + 1)
    )
    lab = parse_lab(
        _LAB.format(servers="\n".join(nics), n=servers, device=device)
    )
    ends = [host.endpoint for host in lab.hosts]
    channels = {end: Channel(8 * n) for n, end in enumerate(ends, 1)}
    light = Light(lab, {}, None, channels)
    assert light.arrivals
    times_s = []
    for channel in range(servers + 1, servers + 1 + ROUNDS):
        began_s = time.process_time()
        light = light.retuned(channels | {ends[0]: Channel(8 * channel)}, ())
        assert light.arrivals
        assert not light.meetings
        times_s.append(time.process_time() - began_s)
    return median(times_s) * 1e3
