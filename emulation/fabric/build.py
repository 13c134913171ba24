"""Make a planned fabric: namespaces, links, addresses, bridges, limits.

Each namespace is made, entered once, and given all it needs in one batch; what belongs to
the far end of a link waits until all namespaces are there. 256 hosts take well under a second.
"""

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable

from patchlight.emulation.fabric import links
from patchlight.emulation.fabric.plan import FabricPlan, PlannedEnd
from patchlight.testbed.linux import devices, namespaces, rate_limits
from patchlight.testbed.linux import rate_limits as netem
from patchlight.testbed.linux.netlink import Netlink, Request

# Routing tables of NICs that share a server; the tables below are the kernel's own.
_FIRST_TABLE = 1000


def build_links(
    plan: FabricPlan, made: Callable[[str, int], None], *, offload: bool, bridges: bool
) -> None:
    """Make the namespaces and links of a plan.

    ``made`` is told of each namespace and its inode; ``offload`` leaves checksum offload on;
    ``bridges`` makes the packet switches too, as Linux bridges (else the caller makes them, and
    limits their ports with ``limit_switch_ports``). Raises ``PatchlightError``; what was made
    so far stays for the caller to remove.
    """
    namespaces.prepare_directory()
    work = _Work(plan, offload=offload)
    try:
        with namespaces.kept_namespace():
            for name in plan.namespaces:
                made(name, work.make(name))
        if bridges:
            fabric = work.later[plan.fabric]
            fabric[:0] = [links.add_bridge(b.name, b.index) for b in plan.bridges]
            index_of = {bridge.name: bridge.index for bridge in plan.bridges}
            for end in _ends(plan):
                if end.bridge is not None:
                    fabric.append(links.set_master(end.index, index_of[end.bridge], end.name))
        for name, requests in work.later.items():
            with Netlink(namespaces.namespace_path(name)) as netlink:
                netlink.run(requests)
                if name in work.limited:
                    rate_limits.verify_limits(netlink, work.limited[name])
        _settle_links(plan)
    finally:
        work.close()
    if bridges:
        limit_switch_ports(plan)


def _settle_links(plan: FabricPlan) -> None:
    """Return once every link that is up carries frames."""
    interfaces = defaultdict[str, list[str]](list)
    for end in _ends(plan):
        if end.up:
            interfaces[end.namespace].append(end.name)
    with namespaces.kept_namespace():
        for namespace, names in interfaces.items():
            namespaces.enter(namespaces.namespace_path(namespace))
            for name in names:
                devices.settle_link(name)


def _ends(plan: FabricPlan) -> Iterable[PlannedEnd]:
    return (end for cable in plan.cables for end in cable)


def limit_switch_ports(plan: FabricPlan) -> None:
    """Limit what packet-switch ports send, and read it back."""
    with Netlink(namespaces.namespace_path(plan.fabric)) as netlink:
        netlink.run([rate_limits.limit_request(*limit) for limit in _port_limits(plan)])
        ports = (end for end in _ends(plan) if end.bridge is not None)
        netlink.run([request for end in ports for request in _impair(end)])
    verify_switch_ports(plan)


def verify_switch_ports(plan: FabricPlan) -> None:
    """Raise ``NotShaped`` if a packet-switch port has lost its limit."""
    with Netlink(namespaces.namespace_path(plan.fabric)) as netlink:
        rate_limits.verify_limits(netlink, _port_limits(plan))


def _port_limits(plan: FabricPlan) -> list[tuple[int, str, float]]:
    return [
        (end.index, end.name, end.rate_bps)
        for end in _ends(plan)
        if end.bridge is not None and end.rate_bps is not None
    ]


class _Work:
    """The state of one ``build_links``: which namespaces are there, and what is left to do."""

    def __init__(self, plan: FabricPlan, *, offload: bool) -> None:
        self._offload = offload
        self._servers = set(plan.servers)
        self._cables = defaultdict[str, list[tuple[PlannedEnd, PlannedEnd]]](list)
        for a, b in plan.cables:
            self._cables[a.namespace].append((a, b))
            if b.namespace != a.namespace:
                self._cables[b.namespace].append((b, a))
        self._nics = Counter(end.namespace for end in _ends(plan) if end.address is not None)
        self._open: dict[str, int] = {}
        self._made: set[str] = set()
        self.later = defaultdict[str, list[Request]](list)
        self.limited = defaultdict[str, list[tuple[int, str, float]]](list)

    def close(self) -> None:
        for fd in self._open.values():
            os.close(fd)

    def make(self, name: str) -> int:
        """Make one namespace, this thread in it, and the links to those made before."""
        inode = namespaces.create_here(name)
        self._made.add(name)
        _set_sysctls(several_nics=self._nics[name] > 1)
        if name not in self._servers:
            # Few, and each an end of many links: kept open. Servers are many, with few links.
            self._open[name] = namespaces.open_namespace(namespaces.namespace_path(name))
        requests = [links.set_up(links.LOOPBACK, "lo")]
        opened: list[int] = []
        try:
            made_here = []
            for near, far in self._cables[name]:
                if far.namespace in self._made:
                    requests.append(self._link(near, far, opened))
                    requests.extend(self._settings(near))
                    made_here.append(near)
                    if far.up:
                        self.later[far.namespace].append(links.set_up(far.index, far.name))
                    self.later[far.namespace] += self._settings(far)
            with Netlink() as netlink:
                netlink.run(requests)
                if name in self.limited and name in self._servers:
                    rate_limits.verify_limits(netlink, self.limited.pop(name))
        finally:
            for fd in opened:
                os.close(fd)
        if not self._offload:
            for end in made_here:
                if end.address is not None:
                    devices.set_tx_checksum(end.name, False)
        return inode

    def _link(self, near: PlannedEnd, far: PlannedEnd, opened: list[int]) -> Request:
        namespace: int | None = None
        if far.namespace != near.namespace:
            namespace = self._open.get(far.namespace)
            if namespace is None:
                namespace = namespaces.open_namespace(namespaces.namespace_path(far.namespace))
                opened.append(namespace)
        return links.add_veth(
            links.LinkEnd(near.name, near.index, near.mac, up=near.up),
            links.LinkEnd(far.name, far.index, far.mac, namespace),
        )

    def _settings(self, end: PlannedEnd) -> list[Request]:
        """What an end needs besides its link; a packet-switch port gets its limit later."""
        requests: list[Request] = []
        rate_bps = end.rate_bps if end.bridge is None else None
        if end.address is not None:
            several_nics = self._nics[end.namespace] > 1
            if several_nics:
                table = _FIRST_TABLE + end.index
                requests.append(links.add_source_rule(end.address.ip, table))
            requests += nic_requests(end, end.index, several_nics=several_nics)
        if rate_bps is not None:
            requests.append(rate_limits.limit_request(end.index, end.name, rate_bps))
            self.limited[end.namespace].append((end.index, end.name, rate_bps))
        if end.bridge is None:
            requests += _impair(end)
        return requests


def _impair(end: PlannedEnd) -> list[Request]:
    if not end.impairment:
        return []
    return [netem.impair_request(end.index, end.name, end.impairment, end.rate_bps)]


def nic_requests(end: PlannedEnd, index: int, *, several_nics: bool) -> list[Request]:
    """Address, and route of its own where NICs share a namespace, of a NIC that is up."""
    assert end.address is not None
    requests = [links.add_address(index, end.address, end.name)]
    if several_nics:
        table = _FIRST_TABLE + end.index
        requests.append(links.add_subnet_route(index, end.address, table, end.name))
    return requests


def _set_sysctls(*, several_nics: bool) -> None:
    """Settings of the namespace that this thread has just made."""
    # No IPv6 in the data network, so none of its neighbour chatter through the switches.
    namespaces.set_sysctl("ipv6/conf/all/disable_ipv6", 1)
    # A new namespace takes these over from the host, where Docker turns forwarding on.
    namespaces.set_sysctl("ipv4/ip_forward", 0)
    if several_nics:
        # Several NICs in one subnet: each answers for its own address alone, and takes packets
        # in whatever the main routing table thinks is the way back.
        namespaces.set_sysctl("ipv4/conf/all/arp_ignore", 1)
        namespaces.set_sysctl("ipv4/conf/all/arp_announce", 2)
        for scope in ("all", "default"):
            namespaces.set_sysctl(f"ipv4/conf/{scope}/rp_filter", 0)
