"""An optical circuit switch of a lab that is up, as a program uses it."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any

from patchlight.client.client import ControllerClient
from patchlight.emulation.fabric.lab_state import run_dir
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.lab.model import CircuitSwitch, Endpoint, Lab
from patchlight.testbed.lab.portmap import PortMap

if TYPE_CHECKING:
    from patchlight.testbed.wire.rest.changes import Change

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

    def connect(self, *circuits: str, why: str = "") -> Change:
        """Make circuits, whatever is in their way: ``"1-7"``, ``"2>8"``, ``"gpu0:tor1.2"``.

        What stands around a colon are hosts or ports whose fibres end on this OCS. The record of
        the change.
        """
        texts = [self._numbered(text) for text in circuits]
        return self._controller.reconfigure({self.switch.name: texts}, why=why)

    def disconnect(self, *ports: int, why: str = "") -> Change:
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
