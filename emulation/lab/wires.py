"""The fibres of a lab that is up (read, cut, spliced, delayed), and its optical circuit switches.

A fibre is cut by taking one of its ends down, that of a switch where there is one: NICs move about.
The kernel holds all of it; nothing is kept here.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patchlight.client.client import ControllerClient
from patchlight.emulation.fabric import links
from patchlight.emulation.fabric.lab_state import LabState, run_dir
from patchlight.emulation.fabric.plan import FabricPlan, PlannedEnd
from patchlight.emulation.lab.hosts import EmulatedHost
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.lab.model import CircuitSwitch, Endpoint, Fibre, Lab
from patchlight.testbed.lab.optical_links import is_end
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.linux import rate_limits
from patchlight.testbed.linux.namespaces import namespace_path
from patchlight.testbed.linux.netlink import Netlink
from patchlight.testbed.linux.rate_limits import Impairment

if TYPE_CHECKING:
    from patchlight.testbed.wire.rest.changes import Change

_CONTROL_DEADLINE_S = 30.0


@dataclass(frozen=True, slots=True)
class FibreState:
    """A fibre as it is now; ``impairment`` is that of the worse end."""

    fibre: Fibre
    up: bool
    impairment: Impairment


class Wires:
    """The fibres of one lab that is up. Needs root."""

    def __init__(self, lab: Lab, plan: FabricPlan, state: LabState) -> None:
        self._lab, self._plan, self._state = lab, plan, state

    def between(self, a: str, b: str) -> Fibre:
        """The fibre between two ports, hosts or devices; ``BadInput`` unless there is one."""
        sides = [self._ports(name) for name in (a, b)]
        joined = [
            fibre
            for fibre in self._lab.fibres
            if (fibre.a in sides[0] and fibre.b in sides[1])
            or (fibre.b in sides[0] and fibre.a in sides[1])
        ]
        if len(joined) == 1:
            return joined[0]
        if joined:
            several = ", ".join(f"{fibre.a} – {fibre.b}" for fibre in joined[:6])
            raise BadInput(f"{len(joined)} fibres join {a} and {b}: {several}: name the ports")
        ends = self._lab.fibre_ends
        near = [f"{port} – {ends[port][0]}" for side in sides for port in side if port in ends][:6]
        raise BadInput(
            f"no fibre joins {a} and {b}",
            hint=f"fibres there: {', '.join(near) or 'none'}; through an OCS there are two",
        )

    def _ports(self, name: str) -> set[Endpoint]:
        """The ports with that name: one, a host's, or all of a device."""
        if name in self._lab.host_names:
            return {self._lab.host_names[name].endpoint}
        if "." in name:
            port = Endpoint.parse(name)
            self._lab.device(port.device)
            return {port}
        device = self._lab.device(name)
        return {end for end in self._lab.fibre_ends if end.device == device.name}

    def state(self, fibre: Fibre) -> FibreState:
        """A fibre as it is now."""
        return self.states([fibre])[0]

    def states(self, fibres: Sequence[Fibre]) -> list[FibreState]:
        """Fibres as they are now; each namespace is read once."""
        seen: dict[Path, tuple[Mapping[str, links.KernelLink], Mapping[int, Impairment]]] = {}
        states = []
        for fibre in fibres:
            up, worst = True, rate_limits.NOT_IMPAIRED
            for end, namespace in self._ends(fibre):
                if namespace not in seen:
                    with Netlink(namespace) as netlink:
                        impairments = rate_limits.read_impairments(netlink)
                        seen[namespace] = (links.list_links(netlink), impairments)
                here, impaired = seen[namespace]
                link = here[end.name]
                # What is dark for lack of light is not cut.
                up = up and (link.up or link.alias == links.HELD_DARK)
                worst = max(worst, impaired.get(link.index, worst), key=_badness)
            states.append(FibreState(fibre, up, worst))
        return states

    def set_up(self, fibre: Fibre, *, up: bool) -> None:
        """Cut a fibre, or splice it again."""
        end, namespace = min(self._ends(fibre), key=lambda pair: pair[0].address is not None)
        with Netlink(namespace) as netlink:
            link = links.list_links(netlink)[end.name]
            requests = [(links.set_up if up else links.set_down)(link.index, end.name)]
            if link.alias:
                # The emulated light checks again whether any comes out of the fibre.
                requests.insert(0, links.set_alias(link.index, ""))
            netlink.run(requests)

    def impair(self, fibre: Fibre, impairment: Impairment) -> None:
        """Delay or lose what the fibre carries, both ways, beside its rate; ``NoNetem``."""
        if not 0 <= impairment.packet_loss <= 1 or impairment.jitter_s > impairment.delay_s:
            raise BadInput(
                "expected a packet loss from 0 to 100%, and a jitter of at most the delay"
            )
        if self._lab.coloured and not any(is_end(self._lab, e.device) for e in (fibre.a, fibre.b)):
            raise BadInput(
                f"no frame passes the fibre {fibre.a} – {fibre.b} by itself: packets are delayed "
                "or lost on fibres of NICs and packet switches only, where wavelengths matter"
            )
        rate_limits.check_supported()
        with ExitStack() as stack:
            requests = []
            for end, namespace in self._ends(fibre):
                netlink = stack.enter_context(Netlink(namespace))
                index = links.list_links(netlink)[end.name].index
                request = rate_limits.impair_request(index, end.name, impairment, end.rate_bps)
                requests.append((netlink, request))
            for netlink, request in requests:
                netlink.run([request])

    def _ends(self, fibre: Fibre) -> Iterator[tuple[PlannedEnd, Path]]:
        """Its ends, and the namespaces that they are in now."""
        cable = self._plan.cables[self._lab.fibres.index(fibre)]
        hosts = {host.endpoint: host for host in self._lab.hosts}
        for endpoint, planned in zip((fibre.a, fibre.b), cable, strict=True):
            if endpoint in hosts:
                nic = EmulatedHost(hosts[endpoint], self._plan, self._state)
                yield planned, nic.namespace()
            else:
                yield planned, namespace_path(planned.namespace)


def _badness(impairment: Impairment) -> tuple[float, float, float]:
    return (impairment.packet_loss, impairment.delay_s, impairment.jitter_s)


class LabOcs:
    """One OCS. Changes are the controller's transactions, and errors are the controller's."""

    def __init__(self, lab: Lab, switch: CircuitSwitch, controller: ControllerClient) -> None:
        self.switch = switch
        self._lab, self._controller = lab, controller

    @property
    def map(self) -> PortMap:
        """The cross-connects that it has now."""
        return PortMap.parse(self._controller.circuits()[self.switch.name]["map"] or ())

    def connect(self, *circuits: str, why: str = "") -> Change:
        """Make circuits, whatever is in their way: ``"1-7"``, ``"2>8"``, ``"gpu0:tor1.2"``.

        On both sides of a colon are hosts or ports whose fibres end on this OCS. Returns the record
        of the change.
        """
        texts = []
        for text in circuits:
            a, colon, b = text.partition(":")
            texts.append(f"{self._port(a)}-{self._port(b)}" if colon else text)
        return self._controller.reconfigure({self.switch.name: texts}, why=why)

    def disconnect(self, *ports: int, why: str = "") -> Change:
        """Free ports, both ways; the record of the change."""
        disconnect = {self.switch.name: ports}
        return self._controller.reconfigure({}, disconnect=disconnect, why=why)

    def fault(self, **settings: Any) -> dict[str, Any]:
        """Have the emulated device fail: ``fail_ports=[3]``, ``stall_s=2``, …; returns its faults.

        The names are those of a lab file's faults; ``BadInput`` for others.
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
