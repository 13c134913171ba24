"""The NICs of a lab: which MAC each has, and where their settings differ.

What agents said of MACs is kept: a controller that starts again programs the switches before it
has asked them. Different settings are reported, never changed.
"""

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from patchlight.controller.storage.store import Store
from patchlight.testbed.lab.model import Host, Lab
from patchlight.testbed.lab.wiring import Links
from patchlight.testbed.wire.agent_status import AgentStatus, NicStatus

_MARK = "macs"
_log = logging.getLogger(__name__)


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


class NicMacs:
    """The MACs of a lab's NICs. Without a ``store`` nothing is kept."""

    def __init__(self, lab: Lab, store: Store | None = None) -> None:
        self._store = store
        self._assumed = {str(host.endpoint): host.nic.mac for host in lab.hosts}
        self._unsure = {str(host.endpoint) for host in lab.hosts if host.nic.keeps_mac}
        kept = (store.mark(_MARK, dict[str, str]) if store is not None else None) or {}
        self._said = {name: str(mac) for name, mac in kept.items() if name in self._unsure}
        self._owners = {mac: name for name, mac in {**self._assumed, **self._said}.items()}

    def of(self, host: Host) -> str:
        """The MAC that frames for a host are sent to, as far as it is known."""
        return self._said.get(str(host.endpoint), host.nic.mac)

    def unknown(self, hosts: Iterable[Host]) -> set[str]:
        """The servers of those hosts whose NICs' own MACs have not been said yet."""
        return {
            host.server.name
            for host in hosts
            if str(host.endpoint) in self._unsure and str(host.endpoint) not in self._said
        }

    def hear(self, status: AgentStatus) -> bool:
        """Take in what an agent says; whether a NIC has another MAC than was thought.

        A MAC that another NIC has already is not believed: frames for one would reach the other.
        """
        changed = False
        for nic in status.nics:
            name = f"{status.server}.{nic.name}"
            if nic.mac is None or name not in self._unsure:
                continue
            mac, before = nic.mac.lower(), self._said.get(name, self._assumed[name])
            taken = self._owners.get(mac, name)
            if taken != name:
                message = "%s says that its MAC is %s, which %s has: give one of them 'mac: lab'"
                _log.error(message, name, mac, taken)
                continue
            self._owners.pop(before, None)
            self._said[name] = mac
            self._owners[mac] = name
            changed = changed or mac != before
        if changed and self._store is not None:
            differing = {n: m for n, m in self._said.items() if m != self._assumed[n]}
            self._store.set_mark(_MARK, differing)
        return changed
