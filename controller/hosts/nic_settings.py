"""Where NICs that light joins are set differently: reported, never changed. Pure."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from patchlight.testbed.lab.model import Host, Lab
from patchlight.testbed.lab.wiring import Links
from patchlight.testbed.wire.agent_status import NicStatus


def differences(lab: Lab, links: Links | None, nics: Mapping[str, NicStatus]) -> list[str]:
    """What differs between NICs at both ends of a circuit, or at one packet switch, in words.

    MTU, DSCP (what packets are marked with, and which priority each is) and PFC; ``nics`` is what
    agents said of each, by ``server.nic``. A packet switch does not say how its own ports are set.
    """
    found = []
    for hosts in () if links is None else _together(lab, links):
        settings = {host: _settings(host, nics.get(str(host.endpoint))) for host in hosts}
        for name in ("MTU", "PFC", "DSCP", "DSCP's priorities"):
            by_value: dict[str, list[str]] = defaultdict(list)
            for host, told in settings.items():
                if name in told:
                    by_value[told[name]].append(str(host.endpoint))
            if len(by_value) > 1:
                # The ones that are least are told first: they are likely those to be mended.
                rows = sorted(by_value.items(), key=lambda row: (len(row[1]), row[0]))
                found.append(f"{name} differs: " + "; ".join(map(_row, rows)))
    return found


def _row(row: tuple[str, Sequence[str]]) -> str:
    value, endpoints = row
    more = f" and {len(endpoints) - 3} more" if len(endpoints) > 3 else ""
    return f"{value} at {', '.join(endpoints[:3])}{more}"


def _together(lab: Lab, links: Links) -> Iterator[Sequence[Host]]:
    """The hosts that should be set alike: the two of a circuit, those lit to one switch."""
    hosts = {host.endpoint: host for host in lab.hosts}
    at_switch: dict[str, list[Host]] = defaultdict(list)
    for endpoint, host in hosts.items():
        peer = links.peer(endpoint)
        if peer is None:
            continue
        if peer not in hosts:
            at_switch[peer.device].append(host)
        elif endpoint < peer:
            yield host, hosts[peer]
    yield from at_switch.values()


def _settings(host: Host, told: NicStatus | None) -> dict[str, str]:
    settings = {"DSCP": "none" if host.nic.dscp is None else str(host.nic.dscp)}
    if told is None:
        return settings
    if told.mtu is not None:
        settings["MTU"] = str(told.mtu)
    if told.pfc is not None:
        settings["PFC"] = ", ".join(map(str, told.pfc)) or "off"
    if told.dscp_priorities is not None:
        pairs = sorted(told.dscp_priorities.items())
        settings["DSCP's priorities"] = ", ".join(f"{d} is {p}" for d, p in pairs) or "none"
    return settings
