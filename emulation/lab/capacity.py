"""Measures what this machine carries in emulated labs, and chooses a lab's scale.

A small lab sends over TCP for a second. The measure is CPU time, so a busy machine gives the same
result as an idle one. The result is cached.
"""

import json
import os
import platform
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from patchlight.emulation.fabric import build
from patchlight.emulation.fabric.plan import plan_fabric
from patchlight.testbed.generate.generate import single
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.linux.processes import processor_ticks
from patchlight.testbed.units import format_rate

# Makes a lab at scale 1 without a controller, up inside a ``with`` block.
Emulate = Callable[[Lab], Any]
CACHE = Path("/var/cache/patchlight/capacity.json")
_SECONDS = 1.0
# Switches may take half of the CPU time: workers and a second switch need the rest.
_SHARE = 0.5
_NIC_BPS = 10_000_000_000
"""The assumed rate of a NIC with a GPU if the lab file has none."""


def machine_rate_bps(
    fabric: str,
    say: Callable[[str], None],
    emulated_lab: Emulate,
) -> int:
    """The total rate of packet switches on this machine in bit/s, measured if not known."""
    datapath = build.datapath_type() if fabric == "openvswitch" else fabric
    cores = len(os.sched_getaffinity(0))
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = (
        line.partition(":")[2].strip()
        for line in lines
        if line.startswith("model name")
    )
    machine = f"{platform.release()}, {cores} × {next(models, platform.machine())}, {datapath}"
    known: dict[str, int] = {}
    with suppress(OSError, ValueError):
        known = dict(json.loads(CACHE.read_text()))
    if machine not in known:
        say("measuring the packet rate of this machine (once)")
        known[machine] = _measured_bps(fabric, cores, emulated_lab)
        with suppress(OSError):
            CACHE.parent.mkdir(
                parents=True,
                exist_ok=True,
            )
            new = CACHE.with_suffix(f".{os.getpid()}")
            new.write_text(json.dumps(known))
            new.replace(CACHE)
    return known[machine]


def _measured_bps(
    fabric: str,
    cores: int,
    emulated_lab: Emulate,
) -> int:
    lab = single(
        2,
        name=f"measure-{os.getpid()}",
        fabric=fabric,
    )
    with emulated_lab(lab) as emulated:
        pids = [
            each.pid
            for each in emulated.state.processes
            if each.name == "ovs-vswitchd"
        ]

        def switch_s() -> float:
            return sum(map(processor_ticks, pids)) / os.sysconf("SC_CLK_TCK")

        began_s = switch_s()
        own_s = time.process_time()
        bits = emulated.iperf("h1", "h2", _SECONDS) * _SECONDS
        own_s = time.process_time() - own_s
        used_s = switch_s() - began_s
    # A userspace switch has one thread; everything else shares the CPUs.
    return int(float(f"{bits / max(used_s, (used_s + own_s) / cores):.2g}"))


def nics_bps(lab: Lab) -> float:
    """The maximum total rate of a lab's NICs at scale 1, in bit/s."""
    ends = plan_fabric(lab.with_changes(scale=1.0)).ends
    limits = {
        str(end.address.ip): end.rate_bps
        for end in ends
        if end.address is not None
    }
    usual = {
        str(h.nic.address): float(_NIC_BPS)
        for h in lab.hosts
        if h.gpu is not None
    }
    return sum(
        limit or usual.get(address, 0.0) for address, limit in limits.items()
    )


def scale_for(needed_bps: float, machine_bps: float) -> float:
    """The smallest of 1, 10, 100, … at which this machine carries the NICs' total rate."""
    scale = 1.0
    while needed_bps / scale > _SHARE * machine_bps:
        scale *= 10
    return scale


def suited(
    lab: Lab,
    scale: float | None,
    say: Callable[[str], None],
    emulated_lab: Emulate,
) -> Lab:
    """The lab with this machine's rate, and with a suitable scale unless one is given or in the lab
    file. Reports the scale, or warns if it is too small."""
    machine_bps = machine_rate_bps(lab.fabric, say, emulated_lab)
    needed_bps = nics_bps(lab)
    fits = scale_for(needed_bps, machine_bps)
    carries = (
        f"this machine carries about {format_rate(machine_bps)}, the lab's NICs send up to "
        f"{format_rate(needed_bps)}"
    )
    if scale is None:
        say(f"scale {fits:g}: {carries}")
    elif needed_bps / scale > machine_bps:
        say(
            f"warning: at scale {scale:g} jobs take longer than in the lab: {carries}; use "
            f"--scale {fits:g}"
        )
    return lab.with_changes(
        scale=fits if scale is None else scale,
        machine_rate_bps=machine_bps,
    )
