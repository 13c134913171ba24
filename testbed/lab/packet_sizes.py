"""Finds where a lab's network carries smaller packets than the NICs that it joins."""

from collections.abc import Iterator

from patchlight.testbed.lab.model import Endpoint, Host, Lab

USUAL_MTU = 1500


def largest_mtu(lab: Lab) -> int:
    """The largest MTU of a NIC, in bytes."""
    return max(
        (host.nic.mtu or USUAL_MTU for host in lab.hosts), default=USUAL_MTU
    )


def too_small(lab: Lab) -> Iterator[tuple[Endpoint, str]]:
    """Each fibre's end, with what is wrong, at which larger packets of a NIC would be lost.

    Any circuit may be made, so all that fibres join counts as one network. NICs of different VLANs
    do not meet; those without an ``mtu`` have their server's, which is not known.
    """
    network_of = _networks(lab)
    largest: dict[tuple[str, int | None], Host] = {}
    for host in lab.hosts:
        if host.nic.mtu is not None and host.endpoint in lab.fibre_ends:
            key = network_of[str(host.endpoint)], host.nic.vlan
            largest[key] = max(
                largest.get(key, host), host, key=lambda h: h.nic.mtu or 0
            )
    for host in lab.hosts:
        key = network_of.get(str(host.endpoint), ""), host.nic.vlan
        most = largest.get(key)
        if (
            most is not None
            and host.nic.mtu is not None
            and host.nic.mtu != most.nic.mtu
        ):
            words = f"{host.endpoint} has mtu {host.nic.mtu}"
            yield (
                host.endpoint,
                f"{words}, but {most.endpoint} sends {most.nic.mtu} bytes",
            )
    for switch in lab.packet_switches:
        most = max(
            (
                h
                for (network, _), h in largest.items()
                if network == network_of.get(switch.name)
            ),
            key=lambda h: h.nic.mtu or 0,
            default=None,
        )
        if (
            most is not None
            and switch.mtu is not None
            and switch.mtu < (most.nic.mtu or 0)
        ):
            end = next(
                end for end in lab.fibre_ends if end.device == switch.name
            )
            words = f"{switch.name} carries {switch.mtu} bytes"
            yield end, f"{words}, but {most.endpoint} sends {most.nic.mtu}"


def _networks(lab: Lab) -> dict[str, str]:
    """For each device with fibres, except servers, and each NIC: a name of its network."""
    servers = {server.name for server in lab.servers}

    def node(end: Endpoint) -> str:
        return str(end) if end.device in servers else end.device

    first: dict[str, str] = {}

    def find(name: str) -> str:
        while (upper := first.setdefault(name, name)) != name:
            first[name] = first[upper]
            name = upper
        return name

    for fibre in lab.fibres:
        first[find(node(fibre.a))] = find(node(fibre.b))
    return {name: find(name) for name in [*first]}
