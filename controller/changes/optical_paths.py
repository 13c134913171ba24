"""Joining two ends by light wherever they are plugged in, over one circuit switch or several."""

from collections.abc import Mapping, Sequence

from patchlight.controller.changes.device_maps import Decide, circuits_in
from patchlight.controller.changes.parts import CircuitParts
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.model import Endpoint, Lab
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.lab.switchmap import AnyMap


async def lighting(parts: CircuitParts, pairs: Sequence[tuple[str, str]]) -> Decide:
    """What lights a path between the two ends of each pair, with the fewest changes.

    An end is a NIC or a host, a packet switch (any port of it), or a port of one. The ``Decide``
    raises ``NoLight`` where ports or trunks do not do. ``BadInput`` for an end that the lab does
    not have or that no fibre joins to a circuit switch, and for a pair of one end.
    """
    # SciPy takes a while to be imported, and a controller may never need it.
    from patchlight.controller.policies.engineering.paths import Wish, plan_paths
    from patchlight.controller.policies.engineering.traffic import CircuitSite, sites_of

    lab, sites = parts.lab, {site.name: site for site in sites_of(parts.lab)}
    wishes = []
    for pair in pairs:
        ends = [_site_name(lab, text) for text in pair]
        for text, end in zip(pair, ends, strict=True):
            if end in sites:
                continue
            at = lab.fibre_ends.get(Endpoint.parse(end)) if "." in end else None
            if at is None or at[0].device not in lab.circuit_fibres:
                raise BadInput(f"{text} is not plugged into an OCS: no fibre joins it to one")
            # A port that is named is an end by itself, and none of its switch's any more.
            port = at[0].device, int(at[0].port)
            for site in list(sites.values()):
                if port in site.ports:
                    left = tuple(each for each in site.ports if each != port)
                    sites[site.name] = CircuitSite(site.name, left, site.gpus)
            sites[end] = CircuitSite(end, (port,))
        if ends[0] == ends[1]:
            raise BadInput(f"{pair[0]}:{pair[1]} is one end: expected two different ones")
        wishes.append(Wish(ends[0], (ends[1],)))
    locked, failed = await parts.closed_ports()

    def decide(maps: Mapping[str, AnyMap]) -> Mapping[str, PortMap]:
        known = tuple(sites.values())
        return plan_paths(lab, circuits_in(maps), wishes, locked=locked, failed=failed, sites=known)

    return decide


def _site_name(lab: Lab, text: str) -> str:
    """The end that a text means; ``BadInput`` if the lab has none of that name."""
    if text in lab.host_names:
        return str(lab.host_names[text].endpoint)
    if any(switch.name == text for switch in lab.packet_switches):
        return text
    endpoint = Endpoint.parse(text)
    lab.device(endpoint.device)  # says so if there is none
    return text
