"""Where a host's NIC is, and how a command borrows it and gives it back.

It is in its server's namespace, in a command's or in a worker's. Who borrows it has it in a
namespace of its own, without the other NICs of the server.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from patchlight.emulation.fabric import build, links
from patchlight.emulation.fabric.lab_state import LabState
from patchlight.emulation.fabric.plan import FabricPlan, PlannedEnd, namespace_name
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.model import Host
from patchlight.testbed.linux import devices, namespaces, rate_limits
from patchlight.testbed.linux.netlink import KernelRefused, Netlink
from patchlight.testbed.linux.processes import process_ids

# FIN-WAIT-1, LAST-ACK, CLOSING: closed here, not yet acknowledged by the other side.
_CLOSING = {"04", "09", "0B"}
_STUCK_S = 2.0


class HostUnreachable(PatchlightError):
    """A host's NIC is not where a command could use it."""


class HostNic:
    """A host's NIC: the ends of its fibre, and the namespaces that it may be in."""

    def __init__(self, host: Host, plan: FabricPlan, state: LabState) -> None:
        self.host, self.state = host, state
        self.server = namespace_name(state.lab, host.server.name)
        self.command = namespace_name(state.lab, f"{host.server.name}.{host.nic.name}")
        self.end, self.far_end = self._ends(plan)

    def _ends(self, plan: FabricPlan) -> tuple[PlannedEnd, PlannedEnd]:
        for a, b in plan.cables:
            for near, far in ((a, b), (b, a)):
                if (near.namespace, near.name) == (self.server, self.host.nic.name):
                    return near, far
        raise HostUnreachable(f"{self.host.name} is not in the lab as it was made")

    def find(self) -> Path:
        """The namespace that holds the NIC now; ``HostUnreachable`` if none does."""
        for name in (self.server, self.command):
            path = namespaces.namespace_path(name)
            if namespaces.inode(path) is not None and _holds(path, self.end.name):
                return path
        path_of_process = self._by_far_end()
        if path_of_process is None:
            raise HostUnreachable(
                f"looking for the NIC of {self.host.name}: {self.end.name} is neither in "
                f"{self.server} nor in the namespace of any process",
                hint=f"Make the lab anew: patchlight emulate up {self.state.source} --replace",
            )
        return path_of_process

    def move(self, origin: Path | int, target: Path, *, several_nics: bool) -> None:
        """Move it between namespaces, and set up again what a move loses: address, routes, limit.

        ``origin`` may be an open descriptor; ``several_nics``: where it goes are others, too.
        """
        end = self.end
        fd = namespaces.open_namespace(target)
        try:
            with Netlink(origin) as netlink:
                link = links.list_links(netlink).get(end.name)
                if link is None:
                    raise HostUnreachable(f"moving {end.name}: it is not in {origin} any more")
                limit = rate_limits.save_limit(netlink, link.index, end.name)
                netlink.run([links.move(link.index, fd, end.name)])
            with namespaces.entered(fd), Netlink() as netlink:
                index = links.list_links(netlink)[end.name].index
                settings = build.nic_requests(end, index, several_nics=several_nics)
                if limit is not None:
                    rate_limits.restore_limit(netlink, index, end.name, limit)
                netlink.run([links.set_up(index, end.name), *settings])
                if self.state.datapath == "netdev":
                    devices.set_tx_checksum(end.name, False)
                devices.settle_link(end.name)
        finally:
            os.close(fd)

    def _by_far_end(self) -> Path | None:
        """Follow the NIC's fibre: the interface at its far end knows where its peer is."""
        with Netlink(namespaces.namespace_path(self.far_end.namespace)) as netlink:
            link = links.list_links(netlink).get(self.far_end.name)
            if link is None or link.peer_namespace_id is None:
                return None
            seen = set[int]()
            for path, number in _process_namespaces():
                if number in seen:
                    continue
                seen.add(number)
                with suppress(OSError, PatchlightError):
                    fd = namespaces.open_namespace(path)
                    try:
                        if links.namespace_id(netlink, fd) == link.peer_namespace_id:
                            return path
                    finally:
                        os.close(fd)
        return None


def _holds(path: Path, interface: str) -> bool:
    with Netlink(path) as netlink:
        return interface in links.list_links(netlink)


def _process_namespaces() -> Iterator[tuple[Path, int]]:
    for pid in process_ids():
        path = Path(f"/proc/{pid}/ns/net")
        if (number := namespaces.inode(path)) is not None:
            yield path, number


def _let_connections_end(path: Path) -> None:
    """Return once TCP has sent what ended commands left with it, or gets nowhere with it.

    A command may end long before its last bytes are out; without the NIC they never would be.
    """
    unsent, since = -1, time.monotonic()
    while time.monotonic() - since < _STUCK_S:
        now = _unsent_bytes(path)
        if now is None:
            return
        if now != unsent:
            unsent, since = now, time.monotonic()
        time.sleep(0.01)


def _unsent_bytes(path: Path) -> int | None:
    """What closed TCP connections of a namespace have still to send; ``None``: there are none."""
    with namespaces.entered(path):
        lines = Path("/proc/thread-self/net/tcp").read_text().splitlines()[1:]
    closing = [fields for fields in map(str.split, lines) if fields[3] in _CLOSING]
    return sum(int(fields[4].partition(":")[0], 16) for fields in closing) if closing else None


class BorrowedNic:
    """A namespace in which a command has the host's NIC, and no other, until it is given back."""

    def __init__(self, nic: HostNic) -> None:
        self._nic = nic
        self._users: int | None = None
        self.run_dir = nic.state.run_dir
        if len(nic.host.server.nics) == 1:
            self.namespace = nic.find()
            return
        with self._locked():
            self.namespace = nic.find()
            if self.namespace.name == nic.server:
                self.namespace = self._take()
            if self.namespace.name == nic.command:
                # Others may run commands with it too: the last one out gives it back.
                self._users = self._open_file("users")
                fcntl.flock(self._users, fcntl.LOCK_SH)

    def give_back(self) -> None:
        """Put the NIC back on its server, if no other command uses it; harmless again."""
        users, self._users = self._users, None
        if users is None:
            return
        try:
            if self.run_dir.exists():
                with self._locked(), suppress(BlockingIOError):
                    fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    self._put_back()
        finally:
            os.close(users)

    def _open_file(self, kind: str) -> int:
        path = (
            self.run_dir / "borrowed" / f"{self._nic.host.server.name}.{self._nic.end.name}.{kind}"
        )
        path.parent.mkdir(mode=0o700, exist_ok=True)
        # Whoever could open it could hold the lock.
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fd = self._open_file("lock")
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _take(self) -> Path:
        nic = self._nic
        path = namespaces.namespace_path(nic.command)
        with namespaces.kept_namespace():
            if namespaces.inode(path) is None:
                namespaces.create_here(nic.command)
                namespaces.set_sysctl("ipv6/conf/all/disable_ipv6", 1)
                namespaces.set_sysctl("ipv4/ip_forward", 0)
                with Netlink() as netlink:
                    netlink.run([links.set_up(links.LOOPBACK, "lo")])
            try:
                nic.move(namespaces.namespace_path(nic.server), path, several_nics=False)
            except KernelRefused as error:
                namespaces.delete(nic.command)
                raise HostUnreachable(
                    f"borrowing {nic.end.name} of {nic.host.server.name}: {error.message}",
                    hint="A worker may have taken it just now: try again.",
                ) from error
        return path

    def _put_back(self) -> None:
        path = namespaces.namespace_path(self._nic.command)
        number = namespaces.inode(path)
        if number is None or not _holds(path, self._nic.end.name):
            return
        if any(inode == number for _, inode in _process_namespaces()):
            # The command left something running: it keeps the NIC for as long.
            return
        _let_connections_end(path)
        self._nic.move(path, namespaces.namespace_path(self._nic.server), several_nics=True)
        namespaces.delete(self._nic.command)
