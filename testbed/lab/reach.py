"""Finds hosts without a link, which hosts reach each other, and the reasons."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType

from patchlight.testbed.lab.model import Endpoint, Host, Lab, Server
from patchlight.testbed.lab.wiring import Links

_NOTHING: Mapping[str, str] = MappingProxyType({})
_MOST_NAMES = 4


class Reach:
    """What the hosts of a lab reach over these links; ``None``: the links are not known.

    ``lost`` has hosts whose circuit carries no signal, with the reason; ``down`` are ports of
    packet switches to others that carry none. If the lab has wavelength channels, only hosts
    without any path count as cut off.
    """

    def __init__(
        self,
        lab: Lab,
        links: Links | None,
        lost: Mapping[str, str] = _NOTHING,
        down: Collection[Endpoint] = (),
    ) -> None:
        self._lab = lab
        self._links = links
        self._lost = lost
        self._down = down

    @property
    def is_known(self) -> bool:
        """Whether the links are known."""
        return self._links is not None

    @cached_property
    def without_link(self) -> Mapping[str, str]:
        """Each host that reaches no packet switch, or no other host, with the reason."""
        return self.reasons(self._lab.hosts)

    def reasons(self, hosts: Sequence[Host]) -> dict[str, str]:
        """The same for these hosts only."""
        if self._links is None or len(self._lab.hosts) < 2:
            return {}
        found = {host.name: self._why(host, self._links) for host in hosts}
        return {name: why for name, why in found.items() if why}

    def apart(self, hosts: Sequence[Host]) -> Mapping[str, str]:
        """Those of these hosts that the others do not reach, and why."""
        if self._links is None or len(hosts) < 2:
            return {}
        found = {h.name: self._cut(h, self._links) for h in hosts}
        left = [host for host in hosts if not found[host.name]]
        sizes = Counter(self._group[host.name] for host in left)
        for group, _ in sizes.most_common(1):
            mate = next(
                host for host in left if self._group[host.name] == group
            )
            found |= {
                host.name: self.without_link.get(
                    host.name, f"there is no path to {mate.name}"
                )
                for host in left
                if self._group[host.name] != group
            }
        return {name: why for name, why in found.items() if why}

    def _why(self, host: Host, links: Links) -> str:
        if (why := self._cut(host, links)) or self._lab.coloured:
            return why
        (peer,) = links.peers(host.endpoint)
        if isinstance(self._lab.device(peer.device), Server):
            path = links.path(host.endpoint)
            by = (
                ", ".join(f"{ocs} {c.inp}-{c.out}" for ocs, c in path.hops)
                if path
                else ""
            )
            words = (
                f"its NIC is connected to {peer}{f' by {by}' if by else ''}"
            )
            return words if self._lab.packet_switches else ""
        alone = self._sizes[self._group[host.name]] == 1
        return (
            f"it is connected to {peer.device}, from which no other host can be reached"
            if alone
            else ""
        )

    def _cut(self, host: Host, links: Links) -> str:
        """Why a host's NIC has no link; empty if it has one."""
        end = host.endpoint
        if links.peers(end):
            return self._lost.get(host.name, "")
        if end not in self._lab.fibre_ends:
            return "its NIC has no fibre"
        if self._lab.coloured:
            transceiver = host.nic.transceiver
            is_tuned = (
                transceiver is not None and transceiver.tunable is not None
            )
            return "" if is_tuned else "its NIC has no optical path"
        at, _ = self._lab.fibre_ends[end]
        while (port_map := links.maps.get(at.device)) is not None:
            port = int(at.port)
            out = port_map.out_of.get(port)
            back = port_map.in_of.get(port)
            if out is None and back is None:
                return f"no circuit at {at.device} port {port}"
            if out is None or out != back:
                return f"no two-way circuit at {at.device} port {port}"
            if out not in self._lab.circuit_fibres[at.device]:
                return f"its circuit ends at {at.device} port {out}, which has no fibre"
            at, _ = self._lab.circuit_fibres[at.device][out]
        return "its NIC has no optical path"

    @cached_property
    def _sizes(self) -> Mapping[int, int]:
        return Counter(self._group.values())

    @cached_property
    def _group(self) -> Mapping[str, int]:
        if self._links is None or self._lab.coloured:
            return dict.fromkeys((host.name for host in self._lab.hosts), 0)
        switches = {switch.name for switch in self._lab.packet_switches}

        def node(end: Endpoint) -> str:
            return end.device if end.device in switches else str(end)

        joined: defaultdict[str, list[str]] = defaultdict(list)
        for a, b in self._links.pairs():
            if a in self._down or b in self._down:
                continue
            joined[node(a)].append(node(b))
            joined[node(b)].append(node(a))
        groups: dict[str, int] = {}
        for number, host in enumerate(self._lab.hosts):
            waiting = [str(host.endpoint)]
            while waiting:
                if (name := waiting.pop()) not in groups:
                    groups[name] = number
                    waiting += joined[name]
        return {
            host.name: groups[str(host.endpoint)] for host in self._lab.hosts
        }


def as_text(found: Mapping[str, str]) -> str:
    """Hosts with their reasons as one line: four hosts at most, those of one reason together."""
    hosts_of: defaultdict[str, list[str]] = defaultdict(list)
    for host in [*found][:_MOST_NAMES]:
        hosts_of[found[host]].append(host)
    left = len(found) - _MOST_NAMES
    shown = [f"{', '.join(hosts)}: {why}" for why, hosts in hosts_of.items()]
    return "; ".join(
        [*shown, *[f"and {left} more host{'s' * (left > 1)}"] * (left > 0)]
    )
