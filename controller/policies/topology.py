"""Decides which circuits are up while jobs run.

*regroup* brings each job's NICs under one packet switch. The idea of Yan et al. (OFC 2022): the OCS
is between NICs and ToRs, so a job whose GPUs are spread over racks can be connected to one ToR, and
its ring avoids the inter-ToR link.
"""

from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from patchlight.controller.policies.contract import ClusterView, Groups
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.lab.model import Endpoint, Lab
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.lab.wiring import circuit_ports, trace_links

# The search for an assignment of groups to switches stops after this many tries with the best one
# found; the first one is the greedy one, largest group first.
_SEARCH_LIMIT = 4096

# The maximum circuits for a NIC of no group, over several OCSs; else it stays unconnected.
_WORTH_OF_LIGHT = 20.0

Uplinks = tuple[str, str]
"""An OCS and the packet switch that some of its ports lead to."""
_Port = tuple[str, int]  # OCS, port number

Ports = Mapping[str, Collection[int]]
"""Ports by OCS."""
NO_PORTS: Ports = MappingProxyType({})


class CannotRegroup(PatchlightError):
    """No packet switch has enough ports facing the OCS for a group."""


@dataclass(
    frozen=True,
    slots=True,
)
class SwitchUplinks:
    """Which NICs can be connected to which packet switches, and the present connections."""

    ports: Mapping[Uplinks, tuple[int, ...]]  # the usable ones of these
    nics: Mapping[Endpoint, _Port]  # a NIC's OCS and its port there
    # A NIC's packet switch, and the OCS port there.
    joined: Mapping[Endpoint, tuple[str, int]]
    # NICs whose circuit may be neither broken nor made.
    pinned: frozenset[Endpoint]

    def need(self, group: Sequence[Endpoint]) -> Counter[str]:
        """How many ports the group needs, by OCS; pinned NICs keep theirs."""
        return Counter(
            self.nics[nic][0] for nic in group if nic not in self.pinned
        )

    def moves(self, group: Sequence[Endpoint], switch: str) -> int:
        """How many NICs of the group are not under ``switch`` yet."""
        return sum(self.joined.get(nic, ("", 0))[0] != switch for nic in group)

    @property
    def room(self) -> Counter[Uplinks]:
        """How many ports are usable."""
        return Counter(
            {uplinks: len(ports) for uplinks, ports in self.ports.items()}
        )

    def takes(
        self,
        group: Sequence[Endpoint],
        switch: str,
        room: Mapping[Uplinks, int],
    ) -> bool:
        """Whether ``switch`` has the ports that the group needs, and already its pinned NICs."""
        pinned = [nic for nic in group if nic in self.pinned]
        if self.moves(pinned, switch):
            return False
        return all(
            room.get((ocs, switch), 0) >= n
            for ocs, n in self.need(group).items()
        )


def survey(
    lab: Lab,
    maps: Mapping[str, PortMap],
    locked: Ports,
    failed: Ports,
) -> SwitchUplinks:
    """What ``regroup`` needs to know of a lab with these maps."""
    broken = {ocs: set(ports) for ocs, ports in failed.items() if ports}
    fixed = with_other_ends(maps, locked)
    none = frozenset[int]()
    closed = {
        ocs: fixed.get(ocs, none) | broken.get(ocs, none)
        for ocs in (*fixed, *broken)
    }
    usable: dict[Uplinks, tuple[int, ...]] = {}
    for ocs, ports_of in lab.facing_ports.items():
        shut = closed.get(ocs, none)
        for switch, ports in ports_of.items():
            usable[ocs, switch] = tuple(
                [port for port in ports if port not in shut]
            )
    nics = lab.host_plugs
    joined: dict[Endpoint, tuple[str, int]] = {}
    pinned: list[Endpoint] = []
    for nic, plug in nics.items():
        ocs, port = plug
        if stays := port in closed.get(ocs, none):
            pinned.append(nic)
        at = lit_onto(lab, maps, plug)
        if at is not None and (stays or at[1] not in broken.get(ocs, none)):
            joined[nic] = at
    return SwitchUplinks(
        usable,
        nics,
        joined,
        frozenset(pinned),
    )


def lit_onto(
    lab: Lab,
    maps: Mapping[str, PortMap],
    plug: _Port,
) -> tuple[str, int] | None:
    """The packet switch that a two-way circuit connects to this port, and its port."""
    ocs, port = plug
    out_of = maps[ocs].out_of if ocs in maps else {}
    out = out_of.get(port)
    if (
        out is None
        or out_of.get(out) != port
        or (switch := lab.facing[ocs].get(out)) is None
    ):
        return None
    return switch, out


def with_other_ends(
    maps: Mapping[str, PortMap], locked: Ports
) -> dict[str, set[int]]:
    """Locked ports, and the other ends of their circuits, which also stay."""
    found = {ocs: set(ports) for ocs, ports in locked.items() if ports}
    for ocs, ports in found.items():
        for inp, out in maps.get(ocs, PortMap()):
            if inp in ports or out in ports:
                ports.update((inp, out))
    return found


def regroup(
    lab: Lab,
    maps: Mapping[str, PortMap],
    groups: Sequence[Sequence[str]],
    *,
    locked: Ports = NO_PORTS,
    failed: Ports = NO_PORTS,
    switches: Collection[str] = (),
) -> dict[str, PortMap]:
    """The maps that connect each group of hosts to one packet switch, from ``switches`` if any.

    Few NICs move: one already under its group's switch keeps its circuit, and NICs of no group move
    only if their port is needed. Circuits of ``locked`` ports are neither broken nor made;
    ``failed`` ports get no circuit, and a NIC connected through a failed one on the packet switch's
    side counts as unconnected. Unknown maps may be missing. ``CannotRegroup`` says which group does
    not fit, ``BadInput`` which host is unknown.
    """
    if lab.has_trunks:
        return _regroup_over_trunks(
            lab,
            maps,
            groups,
            locked,
            failed,
            switches,
        )
    site, members = _surveyed(
        lab,
        maps,
        groups,
        locked,
        failed,
    )
    chosen = _choose_switches(site, members, switches)
    return _rewire(site, maps, dict(zip(members, chosen, strict=True)))


def _surveyed(
    lab: Lab,
    maps: Mapping[str, PortMap],
    groups: Sequence[Sequence[str]],
    locked: Ports,
    failed: Ports,
) -> tuple[SwitchUplinks, list[tuple[Endpoint, ...]]]:
    """The site, and the NICs of each group; ``CannotRegroup`` if one cannot be connected."""
    site = survey(
        lab,
        maps,
        locked,
        failed,
    )
    members = [
        tuple(lab.host(name).endpoint for name in group) for group in groups
    ]
    for name, nic in (
        (n, lab.host(n).endpoint) for group in groups for n in group
    ):
        if nic not in site.nics:
            raise CannotRegroup(
                f"cannot regroup {name}: its NIC has no fibre to a circuit switch",
                hint="submit the job with topology 'keep', or connect its NIC to an OCS",
            )
        ocs, port = site.nics[nic]
        if ocs not in maps:
            raise CannotRegroup(
                f"cannot regroup {name}: the map of {ocs}, of its NIC, is unknown",
                hint="wait until that circuit switch answers, or use hosts on another one",
            )
        if nic in site.pinned and nic not in site.joined:
            raise CannotRegroup(
                f"cannot regroup {name}: {ocs}.{port}, of its NIC, is locked or failed and has "
                f"no circuit to a packet switch",
                hint="'patchlight ocs lock' lists the locks; 'ocs verify' the failed ports",
            )
    return site, members


def _regroup_over_trunks(
    lab: Lab,
    maps: Mapping[str, PortMap],
    groups: Sequence[Sequence[str]],
    locked: Ports,
    failed: Ports,
    onto: Collection[str],
) -> dict[str, PortMap]:
    """The same if paths use several circuit switches, exactly."""
    # SciPy is slow to import, and most labs do not need it.
    from patchlight.controller.policies.engineering.paths import (
        NoLight,
        Wish,
        plan_paths,
    )

    switches = tuple(switch.name for switch in lab.packet_switches)
    wanted = (
        tuple(name for name in switches if name in onto) if onto else switches
    )
    links = trace_links(lab, maps)
    hosts = [[lab.host(name) for name in group] for group in groups]
    wishes = [
        Wish(str(host.endpoint), wanted, together=number)
        for number, group in enumerate(hosts)
        for host in group
    ]
    members = {host.endpoint for group in hosts for host in group}
    others = [
        host.endpoint for host in lab.hosts if host.endpoint not in members
    ]
    wishes += [
        Wish(str(nic), switches, worth=_WORTH_OF_LIGHT)
        for nic in circuit_ports(lab, others)
        if links.switch_of(lab, nic) is not None
    ]
    try:
        changed = plan_paths(
            lab,
            maps,
            wishes,
            locked=locked,
            failed=failed,
        )
    except NoLight as error:
        raise CannotRegroup(
            f"cannot regroup: {error.message}", hint=error.hint
        ) from error
    return {**maps, **changed}


def _choose_switches(
    site: SwitchUplinks,
    members: Sequence[tuple[Endpoint, ...]],
    among: Collection[str],
) -> list[str]:
    """A packet switch for each group: fewest NICs moved, then fewest groups sharing one."""
    switches = sorted(
        {switch for _, switch in site.ports if not among or switch in among}
    )
    free = site.room
    order = sorted(range(len(members)), key=lambda i: -len(members[i]))
    best: tuple[tuple[int, int], dict[int, str]] | None = None
    tries = 0

    def search(
        depth: int,
        chosen: dict[int, str],
        moved: int,
    ) -> None:
        nonlocal best, tries
        tries += 1
        if depth == len(order):
            cost = (moved, len(chosen) - len(set(chosen.values())))
            if best is None or cost < best[0]:
                best = (cost, dict(chosen))
            return
        group = members[order[depth]]
        need = site.need(group)
        fitting = [
            switch for switch in switches if site.takes(group, switch, free)
        ]
        taken = set(chosen.values())
        for switch in sorted(
            fitting, key=lambda s: (site.moves(group, s), s in taken, s)
        ):
            cost_so_far = moved + site.moves(group, switch)
            if tries >= _SEARCH_LIMIT or (
                best is not None and cost_so_far > best[0][0]
            ):
                return
            needed = Counter(
                {(ocs, switch): count for ocs, count in need.items()}
            )
            free.subtract(needed)
            search(depth + 1, {**chosen, order[depth]: switch}, cost_so_far)
            free.update(needed)

    search(0, {}, 0)
    if best is None:
        sizes = ", ".join(str(len(group)) for group in members)
        raise CannotRegroup(
            "no packet switch has enough usable ports at the circuit switch for jobs of "
            f"{sizes} workers each under one switch"
            + (
                "; NICs behind locked or failed ports cannot move"
                if site.pinned
                else ""
            ),
            hint="use fewer workers, run the jobs one after the other, or submit them with "
            "topology 'keep'",
        )
    return [best[1][i] for i in range(len(members))]


def _rewire(
    site: SwitchUplinks,
    maps: Mapping[str, PortMap],
    switch_of: Mapping[tuple[Endpoint, ...], str],
) -> dict[str, PortMap]:
    target = {
        nic: switch for group, switch in switch_of.items() for nic in group
    }
    port_of = {
        n: p for n, (s, p) in site.joined.items() if target.get(n, s) == s
    }
    leads_to = {
        (ocs, port): switch
        for (ocs, switch), ports in site.ports.items()
        for port in ports
    }
    held = {(site.nics[nic][0], port) for nic, port in port_of.items()}
    free = {
        (ocs, switch): deque(
            [port for port in ports if (ocs, port) not in held]
        )
        for (ocs, switch), ports in site.ports.items()
    }
    in_the_way: dict[Uplinks, deque[Endpoint]] = {
        uplinks: deque() for uplinks in free
    }
    for nic, port in port_of.items():
        ocs = site.nics[nic][0]
        if nic not in target and (ocs, port) in leads_to:
            in_the_way[ocs, leads_to[ocs, port]].append(nic)
    displaced: list[Endpoint] = []
    for nic, switch in target.items():
        if nic in port_of:
            continue
        uplinks = site.nics[nic][0], switch
        if not free[uplinks]:
            victim = in_the_way[uplinks].popleft()
            free[uplinks].append(port_of.pop(victim))
            displaced.append(victim)
        port_of[nic] = free[uplinks].popleft()
    for nic in displaced:
        ocs = site.nics[nic][0]
        # The most room first; a NIC without a port becomes unconnected.
        roomy = max(
            (p for p in free if p[0] == ocs), key=lambda p: len(free[p])
        )
        if free[roomy]:
            port_of[nic] = free[roomy].popleft()
    nics: dict[str, dict[Endpoint, int]] = {ocs: {} for ocs in maps}
    for nic, (ocs, port) in site.nics.items():
        if ocs in nics:
            nics[ocs][nic] = port
    return {
        ocs: _with_circuits(
            site,
            nics[ocs],
            present,
            port_of,
        )
        for ocs, present in maps.items()
    }


def _with_circuits(
    site: SwitchUplinks,
    nics: Mapping[Endpoint, int],
    present: PortMap,
    port_of: Mapping[Endpoint, int],
) -> PortMap:
    circuits = [
        (port, port_of[nic]) for nic, port in nics.items() if nic in port_of
    ]
    moving = {
        p for nic, p in nics.items() if nic in port_of or nic in site.joined
    }
    touched = moving | {port for pair in circuits for port in pair}
    kept = [
        (c.inp, c.out)
        for c in present
        if c.inp not in touched and c.out not in touched
    ]
    return PortMap.of(
        [*kept, *circuits, *((out, inp) for inp, out in circuits)]
    )


class Keep:
    """Circuits never change."""

    def circuits(
        self, cluster: ClusterView, groups: Groups
    ) -> Mapping[str, PortMap]:
        return {}


class Regroup:
    """Each job's GPUs are connected to one packet switch, with as few moves as possible.

    Yan et al., OFC 2022.
    """

    def circuits(
        self, cluster: ClusterView, groups: Groups
    ) -> Mapping[str, PortMap]:
        """The maps that change; ``CannotRegroup`` if a group fits under no switch."""
        if cluster.lab is None:
            raise BadInput(
                "cannot regroup: this cluster has no circuit switches"
            )
        names = [
            [cluster.shape.gpus[gpu].name for gpu in group] for group in groups
        ]
        locked = cluster.locked
        failed = cluster.failed
        maps = regroup(
            cluster.lab,
            cluster.circuits,
            names,
            locked=locked,
            failed=failed,
        )
        return {
            ocs: m for ocs, m in maps.items() if m != cluster.circuits[ocs]
        }
