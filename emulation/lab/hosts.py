"""Hosts and optical circuit switches of a lab that is up, as a program uses them.

A host runs commands with its NIC, wherever the NIC is just now. An idle NIC is in its server's
namespace, a leased one in its worker's. Where a server has one NIC, a command simply runs in the
server's namespace. Where it has several, a command there could leave by any of them, and would
reach its neighbour NIC without any network in between; so it gets a namespace of its own, which
borrows the NIC and gives it back at the end.
"""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from patchlight.client.client import ControllerClient
from patchlight.emulation.fabric.lab_state import MARK, LabState, run_dir
from patchlight.emulation.fabric.plan import FabricPlan, PlannedEnd
from patchlight.emulation.lab.borrowed_nic import BorrowedNic, HostNic, HostUnreachable
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.lab.model import CircuitSwitch, Endpoint, Host, Lab
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.linux import namespaces

if TYPE_CHECKING:
    from patchlight.testbed.wire.rest.circuits import ChangeAnswer


_HOSTS = Path("/etc/hosts")
Command = str | Sequence[str]


def write_hosts_file(lab: Lab, run_dir: Path) -> None:
    """Write the ``/etc/hosts`` that commands in the lab see, and they alone.

    The machine's own names, and after them every name that a host of the lab has.
    """
    own = _HOSTS.read_text(errors="replace") if _HOSTS.exists() else "127.0.0.1 localhost\n"
    lines = [f"{address} {' '.join(aliases)}" for address, aliases in lab.names_by_address.items()]
    (run_dir / "hosts").write_text("\n".join([own.rstrip(), f"# lab {lab.name}", *lines, ""]))


class CommandResult(subprocess.CompletedProcess[str]):
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
        # In a mount namespace of its own the child sees the lab's file in place of /etc/hosts.
        file = borrowed.run_dir / "hosts"
        see_names = partial(namespaces.see_file_at, file, _HOSTS)
        try:
            # The child begins in the namespace that this thread is in when it forks.
            with namespaces.entered(borrowed.namespace):
                super().__init__(
                    arguments,
                    env=environment,
                    text=True,
                    preexec_fn=see_names if file.exists() and _HOSTS.exists() else None,
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
    ) -> CommandResult:
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
        return CommandResult(process.args, status, output)

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
        borrowed = BorrowedNic(HostNic(self.host, self._plan, self._state))
        return HostProcess(borrowed, command, stdin=stdin, stdout=stdout, stderr=stderr, env=env)

    @contextmanager
    def borrowed(self) -> Iterator[Path]:
        """A namespace that has the NIC, and no other of its server, inside the block."""
        nic = BorrowedNic(HostNic(self.host, self._plan, self._state))
        try:
            yield nic.namespace
        finally:
            nic.give_back()

    @property
    def far_end(self) -> PlannedEnd:
        """The other end of the NIC's fibre: a switch's or an OCS's port."""
        return HostNic(self.host, self._plan, self._state).far_end

    def namespace(self) -> Path:
        """The namespace that the NIC is in now: the server's, a command's, or a worker's."""
        return HostNic(self.host, self._plan, self._state).find()


_CONTROL_DEADLINE_S = 30.0


class LabOcs:
    """One OCS. Changes are the controller's transactions; what it refuses is an error of its."""

    def __init__(self, lab: Lab, switch: CircuitSwitch, controller: ControllerClient) -> None:
        self.switch = switch
        self._lab, self._controller = lab, controller

    @property
    def map(self) -> PortMap:
        """The cross-connects that it has now."""
        return PortMap.parse(self._controller.circuits()[self.switch.name]["map"] or ())

    def connect(self, *circuits: str, why: str = "") -> ChangeAnswer:
        """Make circuits, whatever is in their way: ``"1-7"``, ``"2>8"``, ``"gpu0:tor1.2"``.

        What stands around a colon are hosts or ports whose fibres end on this OCS. The record of
        the change.
        """
        texts = [self._numbered(text) for text in circuits]
        return self._controller.reconfigure({self.switch.name: texts}, why=why)

    def disconnect(self, *ports: int, why: str = "") -> ChangeAnswer:
        """Free ports, both ways; the record of the change."""
        disconnect = {self.switch.name: ports}
        return self._controller.reconfigure({}, disconnect=disconnect, why=why)

    def fault(self, **settings: Any) -> dict[str, Any]:
        """Have the emulated device fail: ``fail_ports=[3]``, ``stall_s=2``, …; its faults then.

        The names are those of a lab file's faults. ``BadInput`` for what it does not know.
        """
        path = run_dir(self._lab.name) / "optical" / f"{self.switch.name}.control"
        try:
            with socket.socket(socket.AF_UNIX) as control:
                control.settimeout(_CONTROL_DEADLINE_S)
                control.connect(str(path))
                control.sendall(json.dumps(settings).encode() + b"\n")
                with control.makefile() as answers:
                    answer = json.loads(answers.readline())
        except (OSError, ValueError) as error:
            raise PatchlightError(
                f"asking the emulated {self.switch.name} at {path} to fail: {error}",
                hint=f"is it still there? patchlight emulate status {self._lab.name}",
            ) from error
        if not answer["ok"]:
            raise BadInput(f"a fault of {self.switch.name}: {answer['error']}")
        return dict(answer["faults"])

    def _numbered(self, text: str) -> str:
        a, colon, b = text.partition(":")
        return f"{self._port(a)}-{self._port(b)}" if colon else text

    def _port(self, name: str) -> int:
        """The port of this OCS that a host's or a port's fibre ends on."""
        end = (
            self._lab.host(name).endpoint
            if name in self._lab.host_names or "." not in name
            else Endpoint.parse(name)
        )
        other = self._lab.fibre_ends.get(end)
        if other is None or other[0].device != self.switch.name:
            raise BadInput(
                f"no fibre joins {name} and {self.switch.name}",
                hint=f"the fibres are in: patchlight lab show {self._lab.name}",
            )
        return int(other[0].port)
