"""Run commands as a host of an emulated lab: with its NIC, wherever the NIC is just now.

An idle NIC is in its server's namespace, a leased one in its worker's. Where a server has one
NIC, a command simply runs in the server's namespace. Where it has several, a command there
could leave by any of them, and would reach its neighbour NIC without any network in between;
so it gets a namespace of its own, which borrows the NIC and gives it back at the end.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from patchlight.emulation.fabric import build, links, names
from patchlight.emulation.fabric.lab_state import MARK, LabState
from patchlight.emulation.fabric.plan import FabricPlan, PlannedEnd
from patchlight.emulation.lab.hostnames import names_for_child
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab import Host
from patchlight.testbed.linux import ethtool, namespaces
from patchlight.testbed.linux.netlink import KernelRefused, Netlink

# FIN-WAIT-1, LAST-ACK, CLOSING: closed here, not yet acknowledged by the other side.
_CLOSING = {"04", "09", "0B"}
_STUCK_S = 2.0
Command = str | Sequence[str]


class HostUnreachable(PatchlightError):
    """A host's NIC is not where a command could use it."""


class Result(subprocess.CompletedProcess[str]):
    """What a command did: ``args``, ``exit_status`` and ``output`` (both streams, as written)."""

    @property
    def exit_status(self) -> int:
        """0 if it succeeded; minus the signal's number if a signal ended it."""
        return self.returncode

    @property
    def output(self) -> str:
        """What it wrote to standard output and standard error."""
        return self.stdout


class HostProcess(subprocess.Popen[str]):
    """A command that runs on a host; use it as a context manager, or ``wait`` for it."""

    def __init__(self, borrowed: BorrowedNic, command: Command, **options: Any) -> None:
        self._borrowed = borrowed
        arguments = shlex.split(command) if isinstance(command, str) else list(command)
        environment = {**(options.pop("env", None) or os.environ), MARK: str(borrowed.run_dir)}
        try:
            # The child begins in the namespace that this thread is in when it forks.
            with namespaces.entered(borrowed.namespace):
                super().__init__(
                    arguments,
                    env=environment,
                    text=True,
                    preexec_fn=names_for_child(borrowed.run_dir),
                    **options,
                )
        except FileNotFoundError as error:
            borrowed.give_back()
            raise HostUnreachable(f"running {arguments[0]}: there is no such command") from error
        except BaseException:
            borrowed.give_back()
            raise

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; the NIC is back where it was then."""
        status = super().wait(timeout)
        self._borrowed.give_back()
        return status

    def poll(self) -> int | None:
        """The exit status, or ``None`` while it runs."""
        status = super().poll()
        if status is not None:
            self._borrowed.give_back()
        return status


class EmulatedHost:
    """One NIC of an emulated lab, with what runs on it."""

    def __init__(self, host: Host, plan: FabricPlan, state: LabState) -> None:
        self.host = host
        self._plan = plan
        self._state = state

    @property
    def name(self) -> str:
        """``server1.gpu0``."""
        return self.host.name

    @property
    def address(self) -> str:
        """The address of its NIC."""
        return str(self.host.nic.address)

    def run(
        self, command: Command, *, timeout: float | None = None, input: str | None = None
    ) -> Result:
        """Run a command to its end. ``subprocess.TimeoutExpired`` ends it by force."""
        with self.popen(
            command,
            stdin=subprocess.DEVNULL if input is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ) as process:
            try:
                output, _ = process.communicate(input, timeout)
            except BaseException:
                process.kill()
                raise
            status = process.wait()
        return Result(process.args, status, output)

    def popen(
        self,
        command: Command,
        *,
        stdin: int | IO[Any] | None = None,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        env: dict[str, str] | None = None,
    ) -> HostProcess:
        """Start a command; the streams are those of ``subprocess.Popen``, in text."""
        borrowed = BorrowedNic(self.host, self._plan, self._state)
        return HostProcess(borrowed, command, stdin=stdin, stdout=stdout, stderr=stderr, env=env)

    def namespace(self) -> Path:
        """The namespace that the NIC is in now: the server's, a command's, or a worker's."""
        return find_nic(self.host, self._plan, self._state)


def _server_namespace(host: Host, state: LabState) -> Path:
    return namespaces.namespace_path(names.namespace_name(state.lab, host.server.name))


def _command_namespace(host: Host, state: LabState) -> str:
    return names.namespace_name(state.lab, f"{host.server.name}.{host.nic.name}")


def find_nic(host: Host, plan: FabricPlan, state: LabState) -> Path:
    """The namespace that holds a host's NIC now; ``HostUnreachable`` if none does."""
    server = _server_namespace(host, state)
    own = namespaces.namespace_path(_command_namespace(host, state))
    for path in (server, own):
        if namespaces.inode(path) is not None and _holds(path, host.nic.name):
            return path
    path_of_process = _by_far_end(host, plan)
    if path_of_process is None:
        raise HostUnreachable(
            f"looking for the NIC of {host.name}: {host.nic.name} is neither in {server.name} "
            "nor in the namespace of any process",
            hint=f"Make the lab anew: patchlight emulate up {state.source} --replace",
        )
    return path_of_process


def _holds(path: Path, interface: str) -> bool:
    with Netlink(path) as netlink:
        return interface in links.list_links(netlink)


def _by_far_end(host: Host, plan: FabricPlan) -> Path | None:
    """Follow the NIC's fibre: the interface at its far end knows where its peer is."""
    far = _far_end(host, plan)
    with Netlink(namespaces.namespace_path(far.namespace)) as netlink:
        link = links.list_links(netlink).get(far.name)
        if link is None or link.peer_namespace_id is None:
            return None
        for path in _namespaces_of_processes():
            with suppress(OSError, PatchlightError):
                fd = namespaces.open_namespace(path)
                try:
                    if links.namespace_id(netlink, fd) == link.peer_namespace_id:
                        return path
                finally:
                    os.close(fd)
    return None


def _far_end(host: Host, plan: FabricPlan) -> PlannedEnd:
    for a, b in plan.cables:
        for near, far in ((a, b), (b, a)):
            if near.mac == host.nic.mac and near.name == host.nic.name:
                return far
    raise HostUnreachable(f"{host.name} is not in the lab as it was made")


def _namespaces_of_processes() -> Iterator[Path]:
    seen: set[int] = set()
    for entry in os.listdir("/proc"):
        path = Path(f"/proc/{entry}/ns/net")
        number = namespaces.inode(path) if entry.isdigit() else None
        if number is not None and number not in seen:
            seen.add(number)
            yield path


def _processes_in(number: int) -> Iterator[int]:
    for entry in os.listdir("/proc"):
        if entry.isdigit() and namespaces.inode(f"/proc/{entry}/ns/net") == number:
            yield int(entry)


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

    def __init__(self, host: Host, plan: FabricPlan, state: LabState) -> None:
        self._host = host
        self._state = state
        self._end = build.planned_nic(plan, state.lab, host.server.name, host.nic.name)
        self._users: int | None = None
        self.run_dir = state.run_dir
        server = _server_namespace(host, state)
        if len(host.server.nics) == 1:
            self.namespace = find_nic(host, plan, state)
            return
        with self._locked():
            present = find_nic(host, plan, state)
            if present == server:
                present = self._take(server)
            if present.name == _command_namespace(host, state):
                # Others may run commands with it too: the last one out gives it back.
                self._users = os.open(self._file("users"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
                fcntl.flock(self._users, fcntl.LOCK_SH)
            self.namespace = present

    def give_back(self) -> None:
        """Put the NIC back on its server, if no other command uses it; harmless again."""
        users, self._users = self._users, None
        if users is None:
            return
        try:
            if not self.run_dir.exists():
                return
            with self._locked():
                try:
                    fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return
                self._put_back()
        finally:
            os.close(users)

    def _file(self, kind: str) -> Path:
        directory = self.run_dir / "borrowed"
        directory.mkdir(exist_ok=True)
        return directory / f"{self._host.server.name}.{self._host.nic.name}.{kind}"

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fd = os.open(self._file("lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _take(self, server: Path) -> Path:
        name = _command_namespace(self._host, self._state)
        path = namespaces.namespace_path(name)
        with namespaces.kept_namespace():
            if namespaces.inode(path) is None:
                namespaces.create_here(name)
                namespaces.set_sysctl("ipv6/conf/all/disable_ipv6", 1)
                namespaces.set_sysctl("ipv4/ip_forward", 0)
                with Netlink() as netlink:
                    netlink.run([links.set_up(links.LOOPBACK, "lo")])
            try:
                self._move(server, path, several_nics=False)
            except KernelRefused as error:
                namespaces.delete(name)
                raise HostUnreachable(
                    f"borrowing {self._host.nic.name} of {self._host.server.name}: {error.message}",
                    hint="A worker may have taken it just now: try again.",
                ) from error
        return path

    def _put_back(self) -> None:
        name = _command_namespace(self._host, self._state)
        path = namespaces.namespace_path(name)
        number = namespaces.inode(path)
        if number is None or not _holds(path, self._end.name):
            return
        if any(True for _ in _processes_in(number)):
            # The command left something running: it keeps the NIC for as long.
            return
        _let_connections_end(path)
        self._move(path, _server_namespace(self._host, self._state), several_nics=True)
        namespaces.delete(name)

    def _move(self, origin: Path, target: Path, *, several_nics: bool) -> None:
        """Move the NIC, and set up again what a move loses: address, routes, limit."""
        end = self._end
        fd = namespaces.open_namespace(target)
        try:
            with Netlink(origin) as netlink:
                link = links.list_links(netlink).get(end.name)
                if link is None:
                    raise HostUnreachable(f"moving {end.name}: it is not in {origin.name} any more")
                netlink.run([links.move(link.index, fd, end.name)])
        finally:
            os.close(fd)
        with namespaces.entered(target), Netlink() as netlink:
            index = links.list_links(netlink)[end.name].index
            netlink.run(
                [
                    links.set_up(index, end.name),
                    *build.nic_requests(end, index, several_nics=several_nics),
                ]
            )
            if self._state.datapath == "netdev":
                ethtool.set_tx_checksum(end.name, False)
            ethtool.settle_link(end.name)
