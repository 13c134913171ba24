"""Bringing nodes together: the request of another scheduler that places the work itself."""

from collections.abc import Mapping, Sequence

from patchlight.controller.changes.device_maps import Decide, circuits_in
from patchlight.controller.changes.parts import CircuitParts
from patchlight.controller.changes.record import Refused
from patchlight.controller.policies.topology import CannotRegroup, regroup
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.labmaps import with_spectra
from patchlight.testbed.lab.model import Host, Lab
from patchlight.testbed.lab.portmap import AnyMap, PortMap
from patchlight.testbed.lab.wiring import circuit_ports


async def bringing_together(parts: CircuitParts, nodes: Sequence[str], force: bool) -> Decide:
    """What lights the NICs of these nodes' GPUs onto one packet switch, with the fewest moves.

    A node is a server or a host, by name. Circuits of running jobs stay, but with ``force`` they
    move like others. The ``Decide`` raises ``CannotRegroup`` where no switch has the room, and
    ``Refused`` where it would have without the running jobs. ``BadInput`` for a node that the lab
    does not have, or that has no GPU with a NIC at an OCS.
    """
    lab = parts.lab
    names = [host.name for host in hosts_of(lab, nodes)]
    locked, failed = await parts.closed_ports()
    busy = {host.endpoint: _jobs_at(parts, host) for host in lab.hosts}
    at = circuit_ports(lab, [nic for nic, jobs in busy.items() if jobs])
    staying = {ocs: {*ports} for ocs, ports in locked.items()}
    if not force:
        for ocs, port in at.values():
            staying.setdefault(ocs, set()).add(port)

    def decide(maps: Mapping[str, AnyMap]) -> dict[str, PortMap]:
        try:
            now, circuits = with_spectra(lab, maps), circuits_in(maps)
            return regroup(now, circuits, [names], locked=staying, failed=failed)
        except CannotRegroup as error:
            if force or not at:
                raise
            jobs = sorted({job for each in busy.values() for job in each})
            raise Refused(
                f"{', '.join(nodes)} cannot be brought together while the circuits of "
                f"{', '.join(jobs)} stay: {error.message}",
                hint="wait for the job, choose other nodes, or say --force: jobs pause while "
                "their light moves",
            ) from error

    return decide


def hosts_of(lab: Lab, nodes: Sequence[str]) -> list[Host]:
    """The hosts with a GPU of these servers and hosts, each once; ``BadInput`` as above."""
    if not nodes:
        raise BadInput("name the nodes to be brought together: servers of the lab, or hosts")
    servers = {server.name for server in lab.servers}
    found: dict[str, Host] = {}
    for name in nodes:
        hosts = [host for host in lab.hosts if name in servers and host.server.name == name]
        hosts = [host for host in hosts or [lab.host(name)] if host.gpu is not None]
        if not hosts:
            raise BadInput(f"{name} has no GPU with a NIC: there is nothing to bring together")
        found.update({host.name: host for host in hosts})
    return list(found.values())


def _jobs_at(parts: CircuitParts, host: Host) -> list[str]:
    return parts.traffic.jobs_using(frozenset({host.endpoint}))
