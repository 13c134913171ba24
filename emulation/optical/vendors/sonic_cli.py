"""Emulates the command line of an OCS that runs SONiC, over SSH.

Commands, modes and tables follow SONiC's design of its OCS (rev. 0.5, section 9); the commands that
``sonic-cli-gen`` makes follow the guide to its virtual machine. Of the words of successes and
refusals only those are known that the tests of sonic-mgmt look for: ``cross-connect succeeded``,
``existing cross-connect ID``, ``does not exist``.
"""

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import ClassVar

from patchlight.controller.circuits.contract import SIDES, DirectedPort, Side
from patchlight.emulation.optical.device import EmulatedOcs
from patchlight.emulation.optical.matrices import Phase
from patchlight.emulation.optical.protocols.ssh_server import (
    CommandServer,
    Ran,
)
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.portmap import CrossConnect

_LETTERS: dict[Side, str] = {"in": "A", "out": "B"}
_PORT = re.compile(r"([1-9][0-9]{0,5})([AB])", re.IGNORECASE)
_MODES = ("safe", "update", "overwrite")
_STATES = ("normal", "force_blocked", "powered_off")
_STATUS = {
    Phase.PARKED: "blocked",
    Phase.SWITCHING: "tuning",
    Phase.LIT: "tuned",
    Phase.FAILED: "failed",
}
_PATH_WIDTH = 32
_VERSION = """\

SONiC Software Version: SONiC.ocs.0-emulated
SONiC OS Version: 12
Distribution: Debian 12

Platform: x86_64-ocs-kvm_x86_64-r0
HwSKU: OCS-V
ASIC: ocs
Serial Number: EMU-{name}
Model Number: N/A
"""
_SAVE = """\
Running command: /usr/local/bin/sonic-cfggen -d --print-data > /etc/sonic/config_db.json
"""
_RELOAD = """\
Disabling container monitoring ...
Stopping SONiC target ...
Running command: /usr/local/bin/sonic-cfggen -j /etc/sonic/config_db.json --write-to-db
Restarting SONiC target ...
Enabling container monitoring ...
"""
_HELP = """\
Usage: config [OPTIONS] COMMAND [ARGS]...

Options:
  -?, -h, --help  Show this message and exit.
"""
_ADD_HELP = """\
Usage: config ocs cross-connect add [OPTIONS] <cross_connects>
                                    [safe|update|overwrite]

  Add OCS cross-connects

Options:
  -?, -h, --help  Show this message and exit.
"""


class _Refused(Exception):
    def __init__(self, words: str, status: int = 1) -> None:
        super().__init__(words)
        self.status = status


class _Misused(Exception):
    """A usage error: of click's, on the standard error."""


class SonicOcsCliServer(CommandServer):
    """``show`` and ``config`` of an OCS. ``config`` needs root, that is ``sudo``.

    ``generated``: it has the commands that ``sonic-cli-gen`` makes, ``written`` those of ``ocs``.
    ``stale``: cross-connects in the hardware but not in the configuration. ``unplaced``: in the
    configuration, but without light, as a port is blocked or another's. ``keeps_displaced``: the
    mode ``update`` leaves them there, rather than delete them.
    """

    by_hand = "ssh -p {port} {user}@{host} show ocs cross-connect status"
    generated: ClassVar[bool] = True
    written: ClassVar[bool] = True
    keeps_displaced: ClassVar[bool] = False

    _device: EmulatedOcs

    def __init__(self, device: EmulatedOcs) -> None:
        super().__init__(device)
        self.prompt = f"{device.switch.user}@{device.switch.name}:~$ "
        self.stale: set[CrossConnect] = set()
        self.unplaced: dict[CrossConnect, None] = {}
        self.labels: dict[DirectedPort, str] = {}
        self._overrides: dict[DirectedPort, str] = {}
        self._shown: dict[str, Callable[[], str]] = {
            "version": lambda: _VERSION.format(name=device.switch.name)
        }
        if self.written:
            self._shown |= {
                "ocs cross-connect config": self._config,
                "ocs cross-connect status": self._status,
                "ocs port config": self._port_config,
                "ocs port status": self._port_status,
                "ocs port-mapping": self._port_mapping,
                "ocs factory-insertion-loss": self._losses,
            }
        if self.generated:
            self._shown |= {
                "ocs-cross-connect": self._generated_config,
                "ocs-cross-connect-table": self._generated_status,
                "ocs-port": self._generated_port_config,
                "ocs-port-table": self._generated_port_status,
            }

    def report(self, text: str) -> None:
        """Refuse: alarms are the states of ports."""
        raise BadInput("a SONiC OCS has no alarms: use fail_ports")

    async def _run(self, user: str, command: str) -> Ran:
        try:
            words = shlex.split(command)
        except ValueError as error:
            return Ran(2, errors=f"bash: {error}\n".encode())
        is_root = user == "root"
        if words[:1] == ["sudo"]:
            words = [w for w in words[1:] if w != "-n"]
            is_root = True
        faults = self._device.faults
        changes = words[:1] == ["config"] and not _asks_help(words)
        async with faults.around_command(changes=changes) as refused:
            await self._device.settle()
            try:
                if changes and not is_root:
                    raise _Misused(
                        "Root privileges are required for this operation"
                    )
                if changes and not self._device.may_change(user):
                    raise _Misused(
                        "sudo: a password is required: this user may only look"
                    )
                if refused:
                    raise _Refused(refused)
                ran = Ran(output=(await self._do(words)).encode())
            except _Refused as refusal:
                ran = Ran(refusal.status, f"Error: {refusal}\n".encode())
            except _Misused as misuse:
                status = 2 if "Usage" in str(misuse) else 1
                ran = Ran(status, errors=f"{misuse}\n".encode())
            await self._device.settle()
        is_whole = faults.truncate == 0
        return Ran(
            ran.status,
            faults.spoilt(ran.output),
            ran.errors,
            is_whole,
        )

    async def _do(self, words: Sequence[str]) -> str:
        self._place_again()
        match words:
            case ["true"] | []:
                return ""
            case ["hostname"]:
                return f"{self._device.switch.name}\n"
            case ["show", *what]:
                return self._show(what)
            case ["config", "ocs", *_] if not self.written:
                raise _no_command("config", "ocs")
            case ["config", *what] if _asks_help(words):
                return _ADD_HELP if "add" in what else _HELP
            case ["config", "ocs", "cross-connect", verb, *rest]:
                return self._cross_connect(verb, rest)
            case ["config", "ocs", "port", what, name, value]:
                return self._set_port(what, name, value)
            case ["config", "save" | "reload" as verb, *rest]:
                return await self._keep(verb, rest)
            case ["config", "ocs-cross-connect" | "ocs-port", *rest]:
                return self._generated(words[1], rest)
            case ["config", name, *_]:
                raise _no_command("config", name)
            case [name, *_]:
                raise _Refused(f"bash: {name}: command not found", 127)
        raise _no_command("config", "")

    def _show(self, what: Sequence[str]) -> str:
        name = " ".join(what)
        if name in self._shown:
            return self._shown[name]()
        if _asks_help(what) or any(
            each.startswith(f"{name} ") for each in self._shown
        ):
            begun = " ".join(w for w in what if not w.startswith("-"))
            commands = "\n".join(
                f"  {each.removeprefix(begun).split()[0]}"
                for each in self._shown
                if each.startswith(f"{begun} ")
            )
            return (
                f"Usage: show {begun} [OPTIONS] COMMAND [ARGS]...\n\n"
                f"Commands:\n{commands}\n"
            )
        known = 0
        while any(
            each.startswith(" ".join([*what[: known + 1], ""]))
            for each in self._shown
        ):
            known += 1
        raise _no_command(" ".join(["show", *what[:known]]), what[known])

    # --- changes -----------------------------------------------------------------------------

    def _cross_connect(self, verb: str, arguments: list[str]) -> str:
        usage = "Usage: config ocs cross-connect"
        match verb, arguments:
            case "add", [listed]:
                self._add(self._listed(listed), "update")
            case "add", [listed, mode] if mode in _MODES:
                self._add(self._listed(listed), mode)
            case "add", [_, mode]:
                raise _Misused(
                    f"{usage} add [OPTIONS] <cross_connects> [{'|'.join(_MODES)}]\n\n"
                    f"Error: Invalid value for mode: {mode!r}"
                )
            case "delete", [listed]:
                self._delete(self._listed(listed))
            case _:
                raise _Misused(
                    f"{usage} {verb} [OPTIONS] <cross_connects>\n\nError: wrong arguments"
                )
        return f"{verb.capitalize()} OCS cross-connect succeeded\n"

    def _listed(self, text: str) -> list[CrossConnect]:
        """``1A-2B``, ``1A-2B,3A-4B`` or ``1A..3A-4B..6B``, or mixed."""
        found: list[CrossConnect] = []
        for item in filter(None, text.split(",")):
            sides = item.split("-")
            if len(sides) != 2:
                raise _Refused(f"invalid cross-connect {item}")
            inputs, outputs = (
                self._range(part, side)
                for part, side in zip(sides, SIDES, strict=True)
            )
            if len(inputs) != len(outputs):
                raise _Refused(f"ranges of different length in {item}")
            found += map(CrossConnect, inputs, outputs)
        if not found:
            raise _Refused("no cross-connect")
        return list(dict.fromkeys(found))

    def _range(self, text: str, side: Side) -> range:
        first, _, last = text.partition("..")
        numbers = []
        for name in (first, last or first):
            port = self._port(name)
            if port.side != side:
                raise _Refused(f"port {name} is on the wrong side")
            numbers.append(port.number)
        return range(numbers[0], numbers[1] + 1)

    def _port(self, name: str) -> DirectedPort:
        match = _PORT.fullmatch(name)
        if match is None or int(match[1]) > self._device.switch.ports:
            raise _Refused(f"invalid port {name}")
        side: Side = "in" if match[2].upper() == "A" else "out"
        return DirectedPort(side, int(match[1]))

    def _add(self, pairs: Sequence[CrossConnect], mode: str) -> None:
        held = self._configured() + sorted(self.stale)
        ways = dict.fromkeys(pairs)
        if len({c.inp for c in ways}) < len(ways) or len(
            {c.out for c in ways}
        ) < len(ways):
            raise _Refused("a port is in several cross-connects")
        displaced = [
            old
            for old in held
            if old not in ways
            and any(old.inp == c.inp or old.out == c.out for c in ways)
        ]
        if mode == "safe" and displaced:
            raise _Refused(
                f"port is used by existing cross-connect {_id(displaced[0])}"
            )
        if mode == "overwrite":
            displaced = [old for old in held if old not in ways]
        for old in displaced:
            self._forget(old)
            if mode == "update" and self.keeps_displaced:
                self.unplaced[old] = None
        for c in pairs:
            self.stale.discard(c)
            if c not in held:
                self._place(c)

    def _delete(self, pairs: Sequence[CrossConnect]) -> None:
        configured = self._configured()
        for c in pairs:
            if c not in configured:
                raise _Refused(f"cross-connect {_id(c)} does not exist")
        for c in pairs:
            self._forget(c)

    def _forget(self, c: CrossConnect) -> None:
        self.stale.discard(c)
        self.unplaced.pop(c, None)
        self._device.remove_all([self._device.matrix.find(c)])

    def _place(self, c: CrossConnect) -> None:
        """Put a configured cross-connect into the hardware, if its ports are free."""
        matrix = self._device.matrix
        ports = _ports_of(c)
        if any(self._is_blocked(port) or matrix.at(*port) for port in ports):
            self.unplaced[c] = None
        else:
            self._device.make((c,))

    def _place_again(self) -> None:
        waiting = list(self.unplaced)
        self.unplaced.clear()
        for c in waiting:
            self._place(c)

    def _is_blocked(self, port: DirectedPort) -> bool:
        return self._override(port) != "normal"

    def _override(self, port: DirectedPort) -> str:
        if port.number in self._device.matrix.locked:
            return "force_blocked"
        return self._overrides.get(port, "normal")

    def _set_port(self, what: str, name: str, value: str) -> str:
        port = self._port(name)
        if what == "label":
            self.labels[port] = value
            return ""
        if what != "state" or value not in _STATES:
            raise _Misused(
                "Usage: config ocs port state [OPTIONS] <port> [normal|force_blocked]\n\n"
                f"Error: Invalid value: {value!r}"
            )
        self._overrides[port] = value
        if value != "normal":
            for c in self._configured():
                if port in _ports_of(c):
                    self._forget(c)
                    self.unplaced[c] = None
        self._place_again()
        return ""

    async def _keep(self, verb: str, arguments: list[str]) -> str:
        if "-y" not in arguments and "--yes" not in arguments:
            asked = {
                "save": "Existing files will be overwritten, continue?",
                "reload": "Clear current config and reload config in config_db format from the "
                "default config file(s) ?",
            }
            raise _Misused(f"{asked[verb]} [y/N]: \nAborted!")
        if verb == "save":
            return _SAVE
        # Each change was saved when it was made.
        for c in self.stale:
            self._device.remove_all([self._device.matrix.find(c)])
        self.stale.clear()
        await self._device.reboot(keep_map=True)
        return _RELOAD

    def _generated(self, table: str, arguments: list[str]) -> str:
        if not self.generated:
            raise _no_command("config", table)
        match table, arguments:
            case (
                "ocs-cross-connect",
                ["add", name, "--a-side", a_side, "--b-side", b_side],
            ):
                (c,) = pairs = self._listed(f"{a_side}-{b_side}")
                if _id(c) != name.upper():
                    raise _Refused(f"{name} is not {_id(c)}")
                self._add(pairs, "safe")
            case "ocs-cross-connect", ["delete", name]:
                self._delete(self._listed(name))
            case "ocs-port", ["update", name, "--config-status", value]:
                return self._set_port("state", name, value)
            case "ocs-port", ["update", name, "--label", value]:
                return self._set_port("label", name, value)
            case _:
                raise _Misused(f"Usage: config {table} [OPTIONS] COMMAND")
        return ""

    # --- tables ------------------------------------------------------------------------------

    def _in_hardware(self) -> list[CrossConnect]:
        matrix = self._device.matrix
        return [c for circuit in matrix for c in circuit.directions]

    def _configured(self) -> list[CrossConnect]:
        held = [c for c in self._in_hardware() if c not in self.stale]
        return sorted([*held, *self.unplaced])

    def _states(self) -> Iterator[tuple[CrossConnect, str]]:
        for c in sorted({*self._in_hardware(), *self.unplaced}):
            circuit = self._device.matrix.find(c)
            phase = Phase.PARKED if circuit is None else circuit.phase
            yield c, _STATUS[phase]

    def _each_port(self) -> Iterator[tuple[DirectedPort, str]]:
        for number in range(1, self._device.switch.ports + 1):
            for side in SIDES:
                yield DirectedPort(side, number), f"{number}{_LETTERS[side]}"

    def _of_port(self, port: DirectedPort) -> tuple[str, str]:
        """The port at its other end, if it has one, and its state."""
        target = ""
        status = "blocked"
        for c, state in self._states():
            ends = _ports_of(c)
            if port in ends:
                (other,) = (each for each in ends if each != port)
                target = f"{other.number}{_LETTERS[other.side]}"
                status = state
        if port.number in self._device.matrix.failed:
            status = "failed"
        return target, status

    def _config(self) -> str:
        return _table(
            ("id", "a_side", "b_side"),
            (_sides(c) for c in self._configured()),
        )

    def _status(self) -> str:
        return _table(
            ("id", "a_side", "b_side", "a_side_status", "b_side_status"),
            ((*_sides(c), state, state) for c, state in self._states()),
        )

    def _port_config(self) -> str:
        return _table(("id", "label", "state"), self._settings())

    def _settings(self) -> Iterator[tuple[str, str, str]]:
        for port, name in self._each_port():
            yield name, self.labels.get(port, ""), self._override(port)

    def _port_status(self) -> str:
        head = (
            "id",
            "connector_type",
            "connector_pin",
            "target_simplex_port_id",
            "status",
        )
        pins: dict[Side, str] = {"in": "2", "out": "1"}
        return _table(
            head,
            (
                (name, "LC UPC", pins[port.side], *self._of_port(port))
                for port, name in self._each_port()
            ),
        )

    def _port_mapping(self) -> str:
        ports = self._device.switch.ports
        # The module of the design has 84 ports, 64 of them at the faceplate.
        engine = 84 if ports == 64 else ports
        half = -(-ports // 2)
        heads = (
            ("Faceplate Port #", "Engine Port #") * 4,
            (f"{ports}x{ports} Port #", f"{engine}x{engine} Port #") * 4,
        )
        rows = [
            [
                text
                for letter in "AB"
                for number in (row, row + half)
                for text in (f"{number}{letter}", f"{letter}-{number}")
                if number <= ports
            ]
            for row in range(1, half + 1)
        ]
        widths = (17, 14) * 4
        lines = [*heads, ["-" * width for width in widths], *rows]
        return "\n" + "".join(_line(cells, widths) for cells in lines)

    def _losses(self) -> str:
        head = (
            "id",
            "frequency_THz",
            "temperature_C",
            "loss_dB",
            "accuracy_dB",
        )
        numbers = range(1, self._device.switch.ports + 1)
        pairs = (CrossConnect(inp, out) for inp in numbers for out in numbers)
        return _table(
            head,
            (
                (
                    _id(c),
                    "228.85",
                    "28",
                    f"{self._device.loss_db(c):.2f}",
                    "0.1",
                )
                for c in pairs
            ),
            numeric=range(1, 5),
        )

    def _generated_config(self) -> str:
        return _table(
            ("CROSS CONNECT ID", "A SIDE", "B SIDE"),
            (_sides(c) for c in self._configured()),
        )

    def _generated_status(self) -> str:
        whole = {"tuned": "enabled", "failed": "failed"}
        return _table(
            ("CROSS CONNECT ID", "STATUS", "PHYSICAL PATH"),
            (
                (
                    _id(c),
                    whole.get(state, "switching"),
                    f"{c.inp}A, panel IN {c.inp}, panel OUT {c.out}, {c.out}B"[
                        :_PATH_WIDTH
                    ],
                )
                for c, state in self._states()
            ),
        )

    def _generated_port_config(self) -> str:
        return _table(
            ("SIMPLEX PORT ID", "LABEL", "CONFIG STATUS"), self._settings()
        )

    def _generated_port_status(self) -> str:
        head = (
            "SIMPLEX PORT ID",
            "CONNECTOR TYPE",
            "CONNECTOR PIN",
            "TARGET SIMPLEX PORT ID",
            "OPER STATUS",
        )
        now = (
            (name, *self._of_port(port)) for port, name in self._each_port()
        )
        whole = {"tuned": "connected", "tuning": "blocked"}
        return _table(
            head,
            (
                (name, "Duplex LC", "0", target, whole.get(status, status))
                for name, target, status in now
            ),
            numeric=(2,),
        )


def _asks_help(words: Sequence[str]) -> bool:
    return bool({"-h", "-?", "--help"} & {*words})


def _no_command(program: str, name: str) -> _Misused:
    return _Misused(
        f"Usage: {program} [OPTIONS] COMMAND [ARGS]...\n"
        f'Try "{program} -h" for help.\n\nError: No such command "{name}".'
    )


def _id(c: CrossConnect) -> str:
    return f"{c.inp}A-{c.out}B"


def _sides(c: CrossConnect) -> tuple[str, str, str]:
    return _id(c), f"{c.inp}A", f"{c.out}B"


def _ports_of(c: CrossConnect) -> tuple[DirectedPort, DirectedPort]:
    return DirectedPort("in", c.inp), DirectedPort("out", c.out)


def _table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    numeric: Sequence[int] = (),
) -> str:
    """A table as ``tabulate`` prints it: columns are at least two wider than their names."""
    body = list(rows)
    widths = [
        max(len(name) + 2, *(len(row[at]) for row in body), 0)
        for at, name in enumerate(head)
    ]
    lines = [head, ["-" * width for width in widths], *body]
    return "".join(_line(cells, widths, numeric) for cells in lines)


def _line(
    cells: Sequence[str],
    widths: Sequence[int],
    numeric: Sequence[int] = (),
) -> str:
    padded = (
        cell.rjust(width) if at in numeric else cell.ljust(width)
        for at, (cell, width) in enumerate(zip(cells, widths, strict=False))
    )
    return "  ".join(padded).rstrip() + "\n"
