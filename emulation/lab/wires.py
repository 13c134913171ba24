"""The fibres of a lab that is up: looked at, cut, spliced, delayed.

A fibre is cut by taking one of its ends down, that of a switch where there is one: NICs move about.
The kernel holds all of it; nothing is kept here.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from patchlight.emulation.fabric import links
from patchlight.emulation.fabric.lab_state import LabState
from patchlight.emulation.fabric.plan import FabricPlan, PlannedEnd
from patchlight.emulation.lab.hosts import EmulatedHost
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.model import Endpoint, Fibre, Lab
from patchlight.testbed.lab.optical_links import is_end
from patchlight.testbed.linux import rate_limits as netem
from patchlight.testbed.linux.namespaces import namespace_path
from patchlight.testbed.linux.netlink import Netlink
from patchlight.testbed.linux.rate_limits import Impairment


@dataclass(frozen=True, slots=True)
class FibreState:
    """A fibre as it is now; ``impairment`` is that of the end that is worse off."""

    fibre: Fibre
    up: bool
    impairment: Impairment


@dataclass(frozen=True, slots=True)
class _End:
    """An end of a fibre, and the namespace that it is in now."""

    planned: PlannedEnd
    namespace: Path


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
        """The ports that a name means: one, a host's, or all of a device."""
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
        """Fibres as they are now; each namespace is looked at once."""
        seen: dict[Path, tuple[Mapping[str, links.KernelLink], Mapping[int, Impairment]]] = {}
        states = []
        for fibre in fibres:
            up, worst = True, netem.NOT_IMPAIRED
            for end in self._ends(fibre):
                if end.namespace not in seen:
                    with Netlink(end.namespace) as netlink:
                        seen[end.namespace] = (
                            links.list_links(netlink),
                            netem.read_impairments(netlink),
                        )
                here, impaired = seen[end.namespace]
                link = here[end.planned.name]
                # What is dark for lack of light is not cut.
                up = up and (link.up or link.alias == links.HELD_DARK)
                worst = max(worst, impaired.get(link.index, worst), key=_badness)
            states.append(FibreState(fibre, up, worst))
        return states

    def set_up(self, fibre: Fibre, *, up: bool) -> None:
        """Cut a fibre, or splice it again."""
        ends = sorted(self._ends(fibre), key=lambda end: end.planned.address is not None)
        with Netlink(ends[0].namespace) as netlink:
            name = ends[0].planned.name
            link = links.list_links(netlink)[name]
            requests = [(links.set_up if up else links.set_down)(link.index, name)]
            if link.alias:
                # The emulated light looks anew whether any comes out of the fibre.
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
        netem.check_supported()
        with ExitStack() as stack:
            requests = []
            for end in self._ends(fibre):
                netlink = stack.enter_context(Netlink(end.namespace))
                name, rate_bps = end.planned.name, end.planned.rate_bps
                index = links.list_links(netlink)[name].index
                request = netem.impair_request(index, name, impairment, rate_bps)
                requests.append((netlink, request))
            for netlink, request in requests:
                netlink.run([request])

    def _ends(self, fibre: Fibre) -> Iterator[_End]:
        cable = self._plan.cables[self._lab.fibres.index(fibre)]
        hosts = {host.endpoint: host for host in self._lab.hosts}
        for endpoint, planned in zip((fibre.a, fibre.b), cable, strict=True):
            if endpoint in hosts:
                nic = EmulatedHost(hosts[endpoint], self._plan, self._state)
                yield _End(planned, nic.namespace())
            else:
                yield _End(planned, namespace_path(planned.namespace))


def _badness(impairment: Impairment) -> tuple[float, float, float]:
    return (impairment.packet_loss, impairment.delay_s, impairment.jitter_s)
