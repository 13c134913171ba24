"""Placement policy *consolidated*: the fewest packet switches that hold a job's workers.

Pure. Chosen where a job names no hosts of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from testbed.lab import Host, Lab
from testbed.wiring import Links


def consolidated(
    lab: Lab, links: Links, free: Collection[str], workers: int, compute_s: Mapping[str, float]
) -> tuple[str, ...] | None:
    """``workers`` free hosts whose GPU model the job knows, packed under few switches.

    The fullest fit first: a switch that holds the whole job with the least room left over;
    else the roomiest switches in turn. ``None`` if there are not enough free hosts.
    """
    by_switch: dict[str, list[Host]] = {}
    for host in lab.hosts:
        if host.name in free and host.gpu is not None and host.gpu.model in compute_s:
            switch = links.switch_of(lab, host.endpoint) or ""
            by_switch.setdefault(switch, []).append(host)
    whole = [hosts for hosts in by_switch.values() if len(hosts) >= workers]
    if whole:
        return tuple(h.name for h in min(whole, key=len)[:workers])
    roomiest_first = sorted(by_switch.values(), key=len, reverse=True)
    chosen = [host.name for hosts in roomiest_first for host in hosts][:workers]
    return tuple(chosen) if len(chosen) == workers else None
