"""Which MAC each NIC has: what the lab file says, or of ports that keep their own, what agents say.

What agents said is kept: a controller that starts again programs the switches before it has
asked them.
"""

import logging
from collections.abc import Iterable

from patchlight.controller.storage.store import Store
from patchlight.testbed.lab.model import Host, Lab
from patchlight.testbed.wire.agent_status import AgentStatus

_MARK = "macs"
_log = logging.getLogger(__name__)


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
