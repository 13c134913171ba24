"""Sites: what light can join. A NIC that is plugged into an OCS, or a packet switch that is."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from patchlight.controller.policies.engineering.traffic import Matrix
from patchlight.testbed.lab.model import Endpoint, Lab, PacketSwitch

Port = tuple[str, int]
"""A port of an OCS."""


@dataclass(frozen=True, slots=True)
class Site:
    """One end of light paths: its OCS ports, and the GPUs (by number) whose traffic goes there."""

    name: str
    ports: tuple[Port, ...]
    gpus: tuple[int, ...] = field(default=())


def sites_of(lab: Lab) -> tuple[Site, ...]:
    """Every NIC and packet switch with fibres to an OCS, in the order of the lab file.

    GPUs are numbered as in a cluster's shape. Those of a packet switch are the ones whose NICs are
    plugged into it; where an OCS decides that, the NIC is a site itself.
    """
    ports: dict[str, list[Port]] = {}
    for ocs, ends in lab.circuit_ends.items():
        for number, end in sorted(ends.items()):
            ports.setdefault(_site_name(lab, end), []).append((ocs, number))
    gpus: dict[str, list[int]] = {}
    for number, host in enumerate(host for host in lab.hosts if host.gpu is not None):
        if (fibre := lab.fibre_ends.get(host.endpoint)) is not None:
            device = fibre[0].device
            at_ocs = device in lab.circuit_ends
            gpus.setdefault(str(host.endpoint) if at_ocs else device, []).append(number)
    names = [*(str(host.endpoint) for host in lab.hosts), *(s.name for s in lab.packet_switches)]
    return tuple(
        Site(name, tuple(ports[name]), tuple(gpus.get(name, ()))) for name in names if name in ports
    )


def _site_name(lab: Lab, end: Endpoint) -> str:
    return end.device if isinstance(lab.device(end.device), PacketSwitch) else str(end)


def between_sites(traffic: Matrix, sites: Sequence[Site]) -> Matrix:
    """The traffic between sites, of that between GPUs; what stays at a site is none."""
    member = np.zeros((len(sites), len(traffic)))
    for row, site in enumerate(sites):
        member[row, list(site.gpus)] = 1.0
    found = np.asarray(member @ traffic @ member.T, np.float64)
    np.fill_diagonal(found, 0.0)
    return found


def order_of(ring: Sequence[int], sites: Sequence[Site]) -> list[int]:
    """The sites that a ring of GPUs visits, by number, in its order, each once."""
    at = {gpu: number for number, site in enumerate(sites) for gpu in site.gpus}
    return list(dict.fromkeys(at[gpu] for gpu in ring if gpu in at))
