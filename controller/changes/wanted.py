"""Computes the maps that a request wants from the present maps (``Decide``)."""

from collections.abc import Mapping, Sequence

from patchlight.controller.changes.device_maps import Decide, circuits_in
from patchlight.controller.changes.parts import CircuitParts
from patchlight.controller.changes.record import ChangeOptions, Refused
from patchlight.controller.policies.topology import CannotRegroup, regroup
from patchlight.controller.storage.store import UNREADABLE
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.model import Endpoint, Host, Lab
from patchlight.testbed.lab.portmap import AnyMap, PortMap
from patchlight.testbed.lab.wiring import (
    circuit_ports,
    recorded_map,
    with_spectra,
)


def undoing(
    parts: CircuitParts, number: int
) -> tuple[Decide, dict[str, AnyMap]]:
    """What undoes one change only, and the entries that it makes.

    ``Refused`` if it is already undone; the ``Decide`` raises it if later changes use the ports.
    ``BadInput`` for an unknown or uncommitted change.
    """
    record = parts.store.reconfiguration(number)
    if record is None:
        raise BadInput(
            f"unknown change {number}: see 'patchlight ocs history'"
        )
    if record.state != "committed":
        raise BadInput(f"change {number} is {record.state}: nothing to undo")
    if record.message == UNREADABLE:
        raise BadInput(f"change {number} cannot be undone: {UNREADABLE}")
    if by := parts.store.undone_by(number).get(number):
        hint = f"to redo it: patchlight ocs rollback {by}"
        raise Refused(
            f"change {number} was already undone by change {by}", hint=hint
        )
    lab = parts.lab
    changes = record.changes
    made = {
        name: recorded_map(lab, name, c.makes) for name, c in changes.items()
    }
    broken = {
        name: recorded_map(lab, name, c.breaks) for name, c in changes.items()
    }

    def decide(maps: Mapping[str, AnyMap]) -> dict[str, AnyMap]:
        wanted = {}
        clashes = []
        for name in made:
            present = frozenset(maps[name])
            clashes += [
                f"{name} {c} is gone" for c in made[name] if c not in present
            ]
            kept = maps[name].without(made[name])
            clashes += [
                f"{name} {c.inp} or {c.out} is in use"
                for c in broken[name].clashing(kept)
                if c not in present
            ]
            wanted[name] = kept.joined(broken[name])
        if clashes:
            raise Refused(
                f"change {number} cannot be undone alone: {'; '.join(clashes)}",
                hint="undo the later changes of these ports first: patchlight ocs history",
            )
        return wanted

    return decide, broken


async def bringing_together(
    parts: CircuitParts,
    nodes: Sequence[str],
    force: bool,
) -> Decide:
    """What connects the NICs of these nodes' GPUs to one packet switch, with the fewest moves.

    A node is a server or a host, by name. Circuits of running jobs and of claims move only
    with ``force``. The
    ``Decide`` raises ``CannotRegroup`` if no switch has room, and ``Refused`` if one would have
    room without the running jobs. ``BadInput`` for an unknown node, or one without usable GPUs.
    """
    lab = parts.lab
    names = [host.name for host in hosts_of(lab, nodes)]
    locked, failed = await parts.closed_ports(ChangeOptions(force=force))
    using = parts.traffic.jobs_using
    busy = {
        host.endpoint: using(frozenset({host.endpoint})) for host in lab.hosts
    }
    at = circuit_ports(lab, [nic for nic, jobs in busy.items() if jobs])
    staying = {ocs: {*ports} for ocs, ports in locked.items()}
    if not force:
        for ocs, port in at.values():
            staying.setdefault(ocs, set()).add(port)

    def decide(maps: Mapping[str, AnyMap]) -> dict[str, PortMap]:
        try:
            now = with_spectra(lab, maps)
            circuits = circuits_in(maps)
            return regroup(
                now,
                circuits,
                [names],
                locked=staying,
                failed=failed,
            )
        except CannotRegroup as error:
            if force or not at:
                raise
            jobs = sorted({job for each in busy.values() for job in each})
            raise Refused(
                f"{', '.join(nodes)} cannot be connected to one switch without moving circuits "
                f"of {', '.join(jobs)}: {error.message}",
                hint="wait for the job, choose other nodes, or use --force, which pauses jobs "
                "while their circuits change",
            ) from error

    return decide


def hosts_of(lab: Lab, nodes: Sequence[str]) -> list[Host]:
    """The hosts of these nodes that have a GPU, each once; ``BadInput`` as above."""
    if not nodes:
        raise BadInput(
            "name the nodes to connect: servers of the lab, or hosts"
        )
    servers = {server.name for server in lab.servers}
    found: dict[str, Host] = {}
    for name in nodes:
        hosts = [
            host
            for host in lab.hosts
            if name in servers and host.server.name == name
        ]
        hosts = [
            host for host in hosts or [lab.host(name)] if host.gpu is not None
        ]
        if not hosts:
            raise BadInput(f"{name} has no GPU with a NIC")
        found.update({host.name: host for host in hosts})
    return list(found.values())


async def lighting(
    parts: CircuitParts,
    pairs: Sequence[tuple[str, str]],
    force: bool = False,
) -> Decide:
    """What connects the two ends of each pair by an optical path, with the fewest changes.

    An end is a NIC or a host, a packet switch (any port of it), or a port of one. The ``Decide``
    raises ``Refused`` if ports or trunks are too few; those of claims need ``force``. ``BadInput``
    for an unknown end, one without a fibre to a circuit switch, and a pair of equal ends.
    """
    # SciPy is slow to import, and many controllers never need it.
    from patchlight.controller.policies.engineering.paths import (
        NoLight,
        Wish,
        plan_paths,
    )
    from patchlight.controller.policies.engineering.traffic import (
        CircuitSite,
        sites_of,
    )

    lab = parts.lab
    sites = {site.name: site for site in sites_of(parts.lab)}
    wishes = []
    for pair in pairs:
        ends = [_site_name(lab, text) for text in pair]
        for text, end in zip(pair, ends, strict=True):
            if end in sites:
                continue
            at = (
                lab.fibre_ends.get(Endpoint.parse(end)) if "." in end else None
            )
            if at is None or at[0].device not in lab.circuit_fibres:
                raise BadInput(f"{text} has no fibre to an OCS")
            # A named port is an end by itself, and not available as one of its switch's.
            port = at[0].device, int(at[0].port)
            for site in list(sites.values()):
                if port in site.ports:
                    left = tuple(each for each in site.ports if each != port)
                    sites[site.name] = CircuitSite(site.name, left, site.gpus)
            sites[end] = CircuitSite(end, (port,))
        if ends[0] == ends[1]:
            raise BadInput(
                f"{pair[0]}:{pair[1]} are the same end: expected two different ends"
            )
        wishes.append(Wish(ends[0], (ends[1],)))
    locked, failed = await parts.closed_ports(ChangeOptions(force=force))

    def decide(maps: Mapping[str, AnyMap]) -> Mapping[str, PortMap]:
        known = tuple(sites.values())
        present = circuits_in(maps)
        closed = {"locked": locked, "failed": failed}
        try:
            return plan_paths(
                lab,
                present,
                wishes,
                sites=known,
                **closed,
            )
        except NoLight as error:
            raise Refused(error.message, hint=error.hint) from error

    return decide


def _site_name(lab: Lab, text: str) -> str:
    """The end that a text names; ``BadInput`` if unknown."""
    if text in lab.host_names:
        return str(lab.host_names[text].endpoint)
    if any(switch.name == text for switch in lab.packet_switches):
        return text
    endpoint = Endpoint.parse(text)
    lab.device(endpoint.device)  # raises BadInput if unknown
    return text
