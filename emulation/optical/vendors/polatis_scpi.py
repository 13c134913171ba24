"""The SCPI side of an emulated Polatis. Error codes are those of SCPI-1999."""

import re
from collections.abc import Iterable

from patchlight.controller.circuits.protocols.scpi import channels
from patchlight.emulation.optical.device import EmulatedOcs
from patchlight.emulation.optical.protocols.scpi_server import ScpiError, ScpiServer
from patchlight.emulation.optical.switch_matrix import Reason, RequestRefused
from patchlight.emulation.optical.vendors.polatis import SOFTWARE, PolatisSwitch

_POWER_LIMIT = 256  # ports in one question for power
_LIST = re.compile(r"\s*\(@([^()]*)\)\s*")
_LISTS = re.compile(r"\s*\(@([^()]*)\)\s*,\s*\(@([^()]*)\)\s*")
_SHORT = {
    "switch": "swit", "connect": "conn", "subtract": "sub", "disconnect": "disc",
    "state": "stat", "enable": "enab", "disable": "dis", "power": "pow",
    "system": "syst", "error": "err", "pmonitor": "pmon",
}  # fmt: skip


class PolatisScpiServer(ScpiServer):
    """SCPI with its commands."""

    by_hand = "printf ':oxc:swit:conn:stat?\\n' | nc -q 1 {host} {port}"
    short_forms = _SHORT

    _device: EmulatedOcs

    def __init__(self, device: EmulatedOcs) -> None:
        super().__init__(device)
        self._switch = switch = PolatisSwitch(device)
        self._commands |= {
            "*idn?": self._identity,
            "oxc:swit:size?": self._size,
            "oxc:swit:conn:add": lambda text: switch.connect(*_two_lists(text, even=True)),
            "oxc:swit:conn:only": lambda text: switch.only(*_two_lists(text, even=True)),
            "oxc:swit:conn:sub": lambda text: switch.disconnect(*_two_lists(text, even=False)),
            "oxc:swit:disc:all": lambda text: switch.disconnect_all(),
            "oxc:swit:conn:stat?": self._connections,
            "oxc:swit:conn:port?": self._partner,
            "oxc:swit:port:stat?": self._port_states,
            "oxc:swit:port:enab": lambda text: switch.enable(_numbers(text), on=True),
            "oxc:swit:port:dis": lambda text: switch.enable(_numbers(text), on=False),
            "pmon:pow?": self._power,
        }

    def _refusal(self, refusal: RequestRefused) -> ScpiError:
        port = refusal.port
        code, message = {
            Reason.NO_PORT: (-222, f"Data out of range;port {port}"),
            Reason.BUSY: (-221, f"Settings conflict;port {port} twice"),
            Reason.LOCKED: (-221, f"Settings conflict;port {port} is disabled"),
            Reason.FAILED: (-240, f"Hardware error;port {port} has failed"),
        }.get(refusal.reason, (-200, "Execution error"))
        return ScpiError(code, message)

    async def _identity(self, parameters: str) -> str:
        return f"Polatis,{self._switch.model},{self._switch.serial},{SOFTWARE}"

    async def _size(self, parameters: str) -> str:
        return f"{self._switch.numbering.ins},{self._switch.numbering.outs}"

    async def _connections(self, parameters: str) -> str:
        pairs = self._switch.pairs()
        return f"{_listed(i for i, _ in pairs)},{_listed(o for _, o in pairs)}"

    async def _partner(self, parameters: str) -> str:
        if not parameters.strip().isdigit():
            raise ScpiError(-104, "Data type error")
        partner = self._switch.partner(int(parameters))
        return '""' if partner is None else f'"{partner}"'

    async def _port_states(self, parameters: str) -> str:
        numbers = _numbers(parameters) if parameters else list(self._switch.numbers)
        return f"({','.join(self._switch.state(number) for number in numbers)})"

    async def _power(self, parameters: str) -> str:
        numbers = _numbers(parameters)
        if len(numbers) > _POWER_LIMIT:
            raise ScpiError(-223, f"Too much data;{len(numbers)} ports, at most {_POWER_LIMIT}")
        powers = await self._switch.power(numbers)
        for number in numbers:
            if not self._switch.has_monitor(number):
                raise ScpiError(-241, f"Hardware missing;no power monitor at port {number}")
        return f"({','.join(f'{dbm:.2f}' for dbm in powers)})"


def _two_lists(text: str, *, even: bool) -> tuple[list[int], list[int]]:
    match = _LISTS.fullmatch(text)
    if match is None:
        raise ScpiError(-171, "Invalid expression")
    ins, outs = _channels(match[1]), _channels(match[2])
    if len(ins) != len(outs) and (even or (ins and outs)):
        raise ScpiError(-108, "Parameter not allowed;lists of different length")
    return ins, outs


def _numbers(text: str) -> list[int]:
    match = _LIST.fullmatch(text)
    if match is None:
        raise ScpiError(-171, "Invalid expression")
    return _channels(match[1])


def _channels(text: str) -> list[int]:
    try:
        return channels(text)
    except ValueError as error:
        raise ScpiError(-171, "Invalid expression") from error


def _listed(numbers: Iterable[int]) -> str:
    return f"(@{','.join(map(str, numbers))})"
