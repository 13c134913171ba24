"""The switches that are connected, what they count, and who is told about it."""

import logging
import time
from collections.abc import Callable
from typing import Any

import eventlet

from patchlight.controller.openflow.protocol import Message
from patchlight.controller.openflow.speaker.switch import Switch, SwitchGone
from patchlight.testbed.errors import PatchlightError

LOG = logging.getLogger(__name__)

_PERIOD_S = 1.0
# Reading flow counters costs some 50 µs an entry: at most this part of the time goes there.
_SHARE_FOR_FLOWS = 0.1
_COUNTERS_DEADLINE_S = 10.0
# A stranger that connects again and again is not to fill the log.
_UNKNOWN_EVERY_S = 60.0


class SwitchRegistry:
    """Every declared switch that is connected. ``publish`` is called with each event.

    ``count``: read their counters once a second.
    """

    def __init__(
        self, declared: frozenset[int], publish: Callable[[Message], None], *, count: bool = True
    ) -> None:
        self.declared = declared
        self._counting = count
        self._publish = publish
        self._switches: dict[int, Switch] = {}
        self._counters: dict[int, Message] = {}
        self._unknown_at = float("-inf")

    def switch(self, datapath_id: int) -> Switch:
        """The connected switch of that id; ``SwitchGone`` if there is none."""
        if datapath_id in self._switches:
            return self._switches[datapath_id]
        if datapath_id not in self.declared:
            raise PatchlightError(
                f"datapath id {datapath_id:#x} is not one of the lab's packet switches",
                hint="declare it in the lab file and start the controller again",
            )
        raise SwitchGone(
            f"switch {datapath_id:#x} is not connected",
            hint="check its controller address and that it is running",
        )

    def of(self, datapath: Any) -> Switch | None:
        """The switch behind this connection, if it is the one that counts."""
        switch = self._switches.get(datapath.id)
        return switch if switch is not None and switch.datapath is datapath else None

    def switches(self) -> list[Message]:
        """Every connected switch with its ports."""
        return [_describe(switch) for switch in self._switches.values()]

    def counters(self) -> list[Message]:
        """The last counters of each connected switch."""
        return list(self._counters.values())

    # -- what the application tells us ----------------------------------------------------

    def unknown(self, datapath: Any) -> None:
        """A switch connected that the lab does not declare: say so, and leave it alone."""
        address = "{}:{}".format(*datapath.address[:2])
        if time.monotonic() - self._unknown_at > _UNKNOWN_EVERY_S:
            self._unknown_at = time.monotonic()
            message = (
                "a switch with datapath id %#x connected from %s: the lab has no such switch; "
            )
            LOG.warning(message + "it is left alone", datapath.id, address)
        self._publish({"event": "unknown-switch", "datapath_id": datapath.id, "address": address})

    def up(self, datapath: Any) -> None:
        """A declared switch finished its handshake."""
        old = self._switches.get(datapath.id)
        switch = self._switches[datapath.id] = Switch(datapath)
        if old is not None:
            # Its old connection has not noticed yet that it is dead.
            LOG.warning("switch %#x connected again from %s", switch.id, switch.address)
            old.on_gone()
        if self._counting:
            eventlet.spawn_n(self._count, switch)
        self._publish({"event": "switch-up", **_describe(switch)})

    def down(self, datapath: Any) -> None:
        """A connection ended."""
        switch = self.of(datapath)
        if switch is not None:
            del self._switches[switch.id]
            self._counters.pop(switch.id, None)
            switch.on_gone()
            self._publish({"event": "switch-down", "datapath_id": switch.id})

    def port(self, datapath: Any, port: dict[str, Any], change: str) -> None:
        """A port appeared, went (``change`` says which) or changed."""
        if self.of(datapath) is not None:
            self._publish({"event": "port", "datapath_id": datapath.id, "change": change, **port})

    # -- counters ---------------------------------------------------------------------------

    def _count(self, switch: Switch) -> None:
        """Read the counters once a second for as long as the connection stands."""
        next_at = flows_at = time.monotonic()
        while self.of(switch.datapath) is switch:
            try:
                with eventlet.Timeout(_COUNTERS_DEADLINE_S):
                    message = self._read(switch, with_flows=time.monotonic() >= flows_at)
                if "flows" in message:
                    flows_at = time.monotonic() + message["read_s"] / _SHARE_FOR_FLOWS - _PERIOD_S
            except SwitchGone:
                return
            except (eventlet.Timeout, PatchlightError) as error:
                LOG.warning("switch %#x: no counters: %s", switch.id, error)
            else:
                self._counters[switch.id] = message
                self._publish(message)
            next_at = max(next_at + _PERIOD_S, time.monotonic())
            eventlet.sleep(next_at - time.monotonic())

    @staticmethod
    def _read(switch: Switch, with_flows: bool) -> Message:
        begun = time.monotonic()
        counted = ("rx_bytes", "tx_bytes", "rx_packets", "tx_packets")
        ports = [
            {"port": stats.port_no, **{name: getattr(stats, name) for name in counted}}
            for stats in switch.port_stats()
        ]
        message: Message = {"event": "counters", "datapath_id": switch.id, "at": time.time()}
        message["ports"] = ports
        if with_flows:
            message["flows"] = [
                {"cookie": s.cookie, "bytes": s.byte_count, "packets": s.packet_count}
                for s in switch.flow_stats()
            ]
        message["read_s"] = time.monotonic() - begun
        return message


def _describe(switch: Switch) -> Message:
    return {"datapath_id": switch.id, "address": switch.address, "ports": switch.ports()}
