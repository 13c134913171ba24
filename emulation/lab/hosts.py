"""Runs commands on the hosts of a lab that is up, and finds their NICs.

An idle NIC is in its server's namespace, a leased one in its worker's. If a server has several
NICs, a command in its namespace could use any of them, or reach another one without the network; so
it gets a namespace of its own, which borrows the NIC.
"""

import fcntl
import os
import shlex
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any

from patchlight.emulation.fabric import build, links
from patchlight.emulation.fabric.lab_state import MARK, LabState
from patchlight.emulation.fabric.plan import (
    FabricPlan,
    PlannedEnd,
    namespace_name,
)
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.lab.model import Host, Lab
from patchlight.testbed.linux import devices, namespaces, rate_limits
from patchlight.testbed.linux.netlink import KernelRefused, Netlink
from patchlight.testbed.linux.processes import process_ids

# FIN-WAIT-1, LAST-ACK, CLOSING: closed here, not yet acknowledged by the peer.
_CLOSING = {"04", "09", "0B"}
_STUCK_S = 2.0
_HOSTS = Path("/etc/hosts")
Command = str | Sequence[str]


class HostUnreachable(PatchlightError):
    """A host's NIC is not in a usable place."""


def write_hosts_file(lab: Lab, run_dir: Path) -> None:
    """Write ``/etc/hosts`` for commands in the lab: the machine's names and those of hosts."""
    own = (
        _HOSTS.read_text(errors="replace")
        if _HOSTS.exists()
        else "127.0.0.1 localhost\n"
    )
    lines = [
        f"{address} {' '.join(aliases)}"
        for address, aliases in lab.names_by_address.items()
    ]
    (run_dir / "hosts").write_text(
        "\n".join(
            [
                own.rstrip(),
                f"# lab {lab.name}",
                *lines,
                "",
            ]
        )
    )


class HostNic:
    """A host's NIC: the ends of its fibre, and its possible namespaces."""

    def __init__(
        self,
        host: Host,
        plan: FabricPlan,
        state: LabState,
    ) -> None:
        self.host = host
        self.state = state
        self.server = namespace_name(state.lab, host.server.name)
        self.command = namespace_name(
            state.lab, f"{host.server.name}.{host.nic.name}"
        )
        ends = (pair for cable in plan.cables for pair in (cable, cable[::-1]))
        planned = (
            (near, far) for near, far in ends if near.namespace == self.server
        )
        found = next(
            (pair for pair in planned if pair[0].name == host.nic.name), None
        )
        if found is None:
            raise HostUnreachable(
                f"{host.name} was not in the lab when it was started"
            )
        self.end, self.far_end = found

    def find(self) -> Path:
        """The NIC's present namespace; ``HostUnreachable`` if it has none."""
        for name in (self.server, self.command):
            path = namespaces.namespace_path(name)
            if namespaces.inode(path) is not None and _holds(
                path, self.end.name
            ):
                return path
        # Follow its fibre: the interface at the other end knows its peer.
        with Netlink(
            namespaces.namespace_path(self.far_end.namespace)
        ) as netlink:
            link = links.list_links(netlink).get(self.far_end.name)
            number = None if link is None else link.peer_namespace_id
            seen = set[int]()
            for path, inode in (
                _process_namespaces() if number is not None else ()
            ):
                if inode in seen:
                    continue
                seen.add(inode)
                with (
                    suppress(OSError, PatchlightError),
                    namespaces.opened(path) as fd,
                ):
                    if links.namespace_id(netlink, fd) == number:
                        return path
        raise HostUnreachable(
            f"looking for the NIC of {self.host.name}: {self.end.name} is neither in "
            f"{self.server} nor in any process's namespace",
            hint=f"rebuild the lab: patchlight emulate up {self.state.source} --replace",
        )

    def move(
        self,
        origin: Path | int,
        target: Path,
        *,
        several_nics: bool,
    ) -> None:
        """Move the NIC and restore what the move loses: address, routes, limit. ``origin`` may be
        an open descriptor; ``several_nics``: the target has others, too."""
        end = self.end
        with namespaces.opened(target) as fd:
            with Netlink(origin) as netlink:
                link = links.list_links(netlink).get(end.name)
                if link is None:
                    raise HostUnreachable(
                        f"moving {end.name}: it is no longer in {origin}"
                    )
                limit = rate_limits.save_limit(netlink, link.index, end.name)
                netlink.run([links.move(link.index, fd, end.name)])
            with namespaces.entered(fd), Netlink() as netlink:
                index = links.list_links(netlink)[end.name].index
                settings = build.nic_requests(
                    end, index, several_nics=several_nics
                )
                if limit is not None:
                    rate_limits.restore_limit(
                        netlink,
                        index,
                        end.name,
                        limit,
                    )
                netlink.run([links.set_up(index, end.name), *settings])
                if self.state.datapath == "netdev":
                    devices.set_tx_checksum(end.name, False)
                devices.settle_link(end.name)


def _holds(path: Path, interface: str) -> bool:
    with Netlink(path) as netlink:
        return interface in links.list_links(netlink)


def _process_namespaces() -> Iterator[tuple[Path, int]]:
    for pid in process_ids():
        path = Path(f"/proc/{pid}/ns/net")
        if (number := namespaces.inode(path)) is not None:
            yield path, number


def _unsent_bytes(path: Path) -> int | None:
    """Unsent bytes of a namespace's closed TCP connections; ``None`` without any."""
    with namespaces.entered(path):
        lines = Path("/proc/thread-self/net/tcp").read_text().splitlines()[1:]
    closing = [
        fields for fields in map(str.split, lines) if fields[3] in _CLOSING
    ]
    return (
        sum(int(fields[4].partition(":")[0], 16) for fields in closing)
        if closing
        else None
    )


class BorrowedNic:
    """A namespace in which a command has only the host's NIC, until it is returned."""

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
                # Other commands may share it: the last one returns it.
                self._users = self._open_file("users")
                fcntl.flock(self._users, fcntl.LOCK_SH)

    def give_back(self) -> None:
        """Return the NIC to its server, if no other command uses it. Idempotent."""
        users = self._users
        self._users = None
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
        server = self._nic.host.server.name
        nic = self._nic.end.name
        path = self.run_dir / "borrowed" / f"{server}.{nic}.{kind}"
        # Only root may open and lock it.
        path.parent.mkdir(
            mode=0o700,
            exist_ok=True,
        )
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
                nic.move(
                    namespaces.namespace_path(nic.server),
                    path,
                    several_nics=False,
                )
            except KernelRefused as error:
                namespaces.delete(nic.command)
                raise HostUnreachable(
                    f"borrowing {nic.end.name} of {nic.host.server.name}: {error.message}",
                    hint="a worker may have just taken it: try again",
                ) from error
        return path

    def _put_back(self) -> None:
        path = namespaces.namespace_path(self._nic.command)
        number = namespaces.inode(path)
        if number is None or not _holds(path, self._nic.end.name):
            return
        if any(inode == number for _, inode in _process_namespaces()):
            # The command left a process running, which keeps the NIC.
            return
        # A command may end before its last bytes are sent: they need the NIC.
        unsent = -1
        since = time.monotonic()
        while (
            time.monotonic() - since < _STUCK_S
            and (now := _unsent_bytes(path)) is not None
        ):
            if now != unsent:
                unsent = now
                since = time.monotonic()
            time.sleep(0.01)
        self._nic.move(
            path,
            namespaces.namespace_path(self._nic.server),
            several_nics=True,
        )
        namespaces.delete(self._nic.command)


class CommandResult(subprocess.CompletedProcess[str]):
    """The result of a command: ``args``, ``exit_status`` and ``output`` (both streams)."""

    @property
    def exit_status(self) -> int:
        """0 for success; minus the signal's number if a signal ended it."""
        return self.returncode

    @property
    def output(self) -> str:
        """Its standard output and standard error."""
        return self.stdout


class HostProcess(subprocess.Popen[str]):
    """A command that runs on a host; a context manager, or call ``wait``."""

    def __init__(
        self,
        borrowed: BorrowedNic,
        command: Command,
        **options: Any,
    ) -> None:
        self._borrowed = borrowed
        arguments = (
            shlex.split(command) if isinstance(command, str) else list(command)
        )
        environment = {
            **(options.pop("env", None) or os.environ),
            MARK: str(borrowed.run_dir),
        }
        # The child's mount namespace shows the lab's file as /etc/hosts.
        file = borrowed.run_dir / "hosts"
        see_names = partial(namespaces.see_file_at, file, _HOSTS)
        try:
            # The child starts in this thread's namespace.
            with namespaces.entered(borrowed.namespace):
                super().__init__(
                    arguments,
                    env=environment,
                    text=True,
                    preexec_fn=see_names
                    if file.exists() and _HOSTS.exists()
                    else None,
                    **options,
                )
        except FileNotFoundError as error:
            borrowed.give_back()
            raise HostUnreachable(
                f"running {arguments[0]}: command not found"
            ) from error
        except BaseException:
            borrowed.give_back()
            raise

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; then the NIC is back."""
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
    """One NIC of an emulated lab; runs commands."""

    def __init__(
        self,
        host: Host,
        plan: FabricPlan,
        state: LabState,
    ) -> None:
        self.host = host
        self._plan = plan
        self._state = state

    @property
    def _nic(self) -> HostNic:
        return HostNic(self.host, self._plan, self._state)

    @property
    def name(self) -> str:
        """``server1.gpu0``."""
        return self.host.name

    @property
    def address(self) -> str:
        """The address of its NIC."""
        return str(self.host.nic.address)

    @property
    def is_virtual(self) -> bool:
        """Whether its server is a virtual machine."""
        return self._state.servers == "vm"

    def run(
        self,
        command: Command,
        *,
        timeout: float | None = None,
        input: str | None = None,
    ) -> CommandResult:
        """Run a command to its end. On ``subprocess.TimeoutExpired`` it is killed."""
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
        return CommandResult(process.args, status, output)

    def popen(
        self,
        command: Command,
        *,
        stdin: int | IO[Any] | None = None,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        env: dict[str, str] | None = None,
    ) -> subprocess.Popen[str]:
        """Start a command; the streams are those of ``subprocess.Popen``, in text. Where servers
        are virtual machines it sees all NICs of the server, and no ``env``."""
        if self.is_virtual:
            return subprocess.Popen(
                self._over_ssh(command),
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                text=True,
            )
        borrowed = BorrowedNic(self._nic)
        return HostProcess(
            borrowed,
            command,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=env,
        )

    def _over_ssh(self, command: Command) -> list[str]:
        """The command as root of the virtual machine that the host is in."""
        words = shlex.join(
            shlex.split(command) if isinstance(command, str) else command
        )
        terminal = ["-t"] if os.isatty(0) else []
        ssh = [
            "ssh",
            "-q",
            *terminal,
            "-F",
            str(self._state.ssh_config),
        ]
        return [*ssh, self.host.server.name, f"sudo -n {words}"]

    @contextmanager
    def borrowed(self) -> Iterator[Path]:
        """A namespace that has only this NIC, inside the block; ``BadInput`` for virtual
        machines."""
        if self.is_virtual:
            raise BadInput(
                f"the NIC of {self.name} is inside a virtual machine",
                hint=f"only some programs run there: emulate exec {self.name} -- ping or iperf3",
            )
        nic = BorrowedNic(self._nic)
        try:
            yield nic.namespace
        finally:
            nic.give_back()

    @property
    def far_end(self) -> PlannedEnd:
        """The other end of the NIC's fibre: a port of a switch or an OCS."""
        return self._nic.far_end

    def namespace(self) -> Path:
        """The NIC's present namespace: the server's, a command's, or a worker's."""
        return self._nic.find()
