"""Placement policy *regroup*: GPUs that the OCS can bring under one packet switch.

The placement that goes with the topology policy of that name: a job gets GPUs which
``policies.regroup`` can light onto one switch without taking a running job's ports,
and of such the ones for which the fewest circuits move.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from patchlight.controller.policies.contract import ClusterView, JobView
from patchlight.controller.policies.placement import Consolidated
from patchlight.controller.policies.sets import lowest, members
from patchlight.testbed.lab import Lab
from patchlight.testbed.wiring import circuit_ports


class _Wiring(NamedTuple):
    """What never changes: each GPU's NIC port at its OCS, and the ports facing each switch."""

    lab: Lab
    nics: Mapping[int, tuple[str, int]]
    facing: Mapping[tuple[str, str], frozenset[int]]


class _Choice(NamedTuple):
    """GPUs under one switch; sorted, the best one is the first."""

    moves: int
    left_over: int
    rack: int
    gpus: list[int]


class RegroupPlacement:
    """GPUs that can be lit onto one packet switch with the fewest moves, else *consolidated*.

    Without an OCS it is *consolidated*.
    """

    def __init__(self) -> None:
        self._wiring: _Wiring | None = None
        self._otherwise = Consolidated()

    def place(self, cluster: ClusterView, job: JobView, workers: int) -> Sequence[int] | None:
        """GPUs under one packet switch if they can be; ``None`` lets the job wait."""
        free = cluster.free_for(job)
        if free.bit_count() < workers:
            return None
        if cluster.lab is not None and cluster.lab.circuit_switches:
            wiring = self._look(cluster, cluster.lab)
            # Once for all: a port map makes its table anew each time.
            tables = {ocs: present.out_of for ocs, present in cluster.circuits.items()}
            site = _Site(cluster, wiring, tables, free)
            held = site.held(cluster.occupied)
            racks = range(len(cluster.shape.racks))
            choices = [site.under(rack, held, workers) for rack in racks]
            if possible := [choice for choice in choices if choice is not None]:
                return min(possible).gpus
        return self._otherwise.place(cluster, job, workers)

    def _look(self, cluster: ClusterView, lab: Lab) -> _Wiring:
        if self._wiring is None or self._wiring.lab is not lab:
            numbers = {gpu.name: number for number, gpu in enumerate(cluster.shape.gpus)}
            ends = {host.endpoint: host.name for host in lab.hosts if host.name in numbers}
            at = circuit_ports(lab, ends)
            switches = {switch.name for switch in lab.packet_switches}
            facing: dict[tuple[str, str], set[int]] = {}
            plugged = circuit_ports(lab, [e for e in lab.fibre_ends if e.device in switches])
            for end, (ocs, port) in plugged.items():
                facing.setdefault((ocs, end.device), set()).add(port)
            self._wiring = _Wiring(
                lab,
                {numbers[ends[end]]: port for end, port in at.items()},
                {uplinks: frozenset(ports) for uplinks, ports in facing.items()},
            )
        return self._wiring


class _Site(NamedTuple):
    """The lab now: each OCS's output by input, and the GPUs that the job can have."""

    cluster: ClusterView
    wiring: _Wiring
    tables: Mapping[str, Mapping[int, int]]
    free: int

    def held(self, gpus: int) -> set[tuple[str, int]]:
        """The OCS ports that these GPUs are lit to."""
        places = (self.wiring.nics[gpu] for gpu in members(gpus) if gpu in self.wiring.nics)
        lit = ((ocs, self.tables.get(ocs, {}).get(port)) for ocs, port in places)
        return {(ocs, out) for ocs, out in lit if out is not None}

    def under(self, rack: int, held: set[tuple[str, int]], workers: int) -> _Choice | None:
        """``workers`` free GPUs under one packet switch; ``None`` if it cannot hold them.

        ``held`` are the OCS ports that busy GPUs are lit to.
        """
        here = self.free & self.cluster.shape.rack_gpus[rack]
        room = here.bit_count() - workers
        if room >= 0:
            return _Choice(0, room, rack, lowest(here, workers))
        missing, taken = -room, held | self.held(here)
        movable = self._movable(self.free & ~here)
        movers: list[int] = []
        room = 0
        for (ocs, switch), ports in self.wiring.facing.items():
            if switch == self.cluster.shape.racks[rack] and ocs in self.tables:
                barred = self.cluster.barred.get(ocs, frozenset())
                spare = sum((ocs, port) not in taken and port not in barred for port in ports)
                room += spare
                movers += movable.get(ocs, [])[:spare]
        if len(movers) < missing:
            return None
        return _Choice(missing, room - missing, rack, members(here) + movers[:missing])

    def _movable(self, gpus: int) -> dict[str, list[int]]:
        """Those of the GPUs whose circuits may change, by OCS; the dark ones first."""
        movable: dict[str, list[int]] = {}
        shape = self.cluster.shape
        for gpu in sorted(members(gpus), key=lambda number: shape.gpus[number].rack >= 0):
            ocs, port = self.wiring.nics.get(gpu, ("", 0))
            barred = self.cluster.barred.get(ocs, frozenset())
            lit_to = self.tables.get(ocs, {}).get(port)
            if ocs and port not in barred and lit_to not in barred:
                movable.setdefault(ocs, []).append(gpu)
        return movable
