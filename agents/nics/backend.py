"""Gives the NICs of one server to workers, takes them back, and reads their status."""

from collections.abc import Mapping

from patchlight.agents.errors import NicError, NicGone, log
from patchlight.agents.nics import announcing, moving, status
from patchlight.agents.nics.state import NicAccess, NicState, WorkerNetwork
from patchlight.testbed.lab.model import Nic
from patchlight.testbed.linux import namespaces
from patchlight.testbed.wire.agent_status import NicStatus, RdmaStatus


class NicBackend:
    """The NICs of this machine, and the network namespaces of its workers, by name. A simulation
    overrides all of it.

    Methods may block, except ``announce``. ``home`` is the namespace of idle NICs: that of this
    process.
    """

    def __init__(self) -> None:
        self.home = namespaces.process_namespace()

    def key(self, interface: str) -> str:
        """A name of an interface that is the same in all labs on this server."""
        return f"{namespaces.inode(self.home)} {interface}"

    def find(self, nic: Nic) -> NicAccess:
        """How a worker can get this NIC; ``NicError`` if it cannot."""
        return namespaces.inside(self.home, lambda: moving.find_access(nic))

    def read(self, access: NicAccess) -> NicState:
        """The present settings of a NIC, which ``take_back`` restores."""
        return namespaces.inside(self.home, lambda: moving.read_nic(access))

    def give(
        self,
        state: NicState,
        namespace: str,
        network: WorkerNetwork,
    ) -> None:
        """Move a NIC into a worker's namespace and set it up; on ``NicError`` it stays at home."""
        path = namespaces.namespace_path(namespace)
        namespaces.inside(
            self.home, lambda: moving.give_nic(state, path, network)
        )

    def take_back(self, state: NicState, namespace: str) -> str:
        """End a worker's processes, move its NIC home and delete its namespace. Returns what was
        lost, as text. ``NicError`` keeps a namespace that still has the NIC."""
        path = namespaces.namespace_path(namespace)
        lost = ""
        namespaces.end_all(namespace)
        try:
            moving.take_nic_back(state, path, self.home)
        except NicGone:
            lost = status.GONE.format(state.interface)
            log.error("namespace %s: %s", namespace, lost)
        except NicError:
            # Keep a namespace that still has the NIC: a virtual NIC would be destroyed with it.
            if not moving.is_in(path, state.interface):
                namespaces.delete(namespace)
            raise
        namespaces.delete(namespace)
        return lost

    def block_egress(self, namespace: str, interface: str) -> None:
        """Drop everything that a held worker sends. Idempotent."""
        moving.block_egress(namespaces.namespace_path(namespace), interface)

    def unblock_egress(self, namespace: str) -> None:
        """Undo ``block_egress``. Idempotent."""
        moving.unblock_egress(namespaces.namespace_path(namespace))

    def problem(self, place: status.NicPlace) -> status.NicProblem | None:
        """The problem of a worker's NIC; ``None`` if it is healthy."""
        return status.problem_of(place.namespace, place.state.interface)

    def rdma(self, place: status.NicPlace) -> RdmaStatus | None:
        """The RDMA device of a worker's NIC; ``None`` without one."""
        return status.rdma_status(place)

    def idle_status(self, nic: Nic) -> NicStatus:
        """The status of a NIC that no worker has."""
        return status.idle_status(nic, self.home)

    def leased_status(
        self,
        nic: Nic,
        worker: str,
        place: status.NicPlace | None,
        rdma: RdmaStatus | None,
        problem: status.NicProblem | None,
    ) -> NicStatus:
        """The status of a NIC that a worker has; ``place`` is ``None`` before it has moved."""
        return status.leased_status(
            nic,
            self.home,
            worker,
            place,
            rdma,
            problem,
        )

    def announce_once(self, place: status.NicPlace) -> None:
        """Announce a worker's NIC to the switches; ``OSError`` if that fails."""
        announcing.announce_once(place)

    async def announce(
        self,
        place: status.NicPlace,
        neighbours: announcing.Neighbours,
        token: str,
        wait_s: float,
        mtu: int | None,
    ) -> list[str]:
        """Announce a NIC; the addresses of the neighbours that nothing was received from."""
        return await announcing.announce(
            place,
            neighbours,
            token,
            wait_s,
            mtu,
        )

    def probe(
        self,
        names: Mapping[str, str],
        token: str,
        listen_s: float,
    ) -> Mapping[str, status.Ear]:
        """What idle NICs receive while all of them send probes with this token."""
        return namespaces.inside(
            self.home, lambda: status.probe(names, token, listen_s)
        )
