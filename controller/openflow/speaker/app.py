"""Patchlight's own OpenFlow application: hands what switches say to the registry.

A plain Ryu application, which runs unchanged on OS-Ken (see ``engine``). It decides nothing
and never waits, so that events of one switch cannot hold up those of another.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from ryu.base import app_manager
from ryu.controller import ofp_event
from ryu.controller.handler import CONFIG_DISPATCHER, DEAD_DISPATCHER, MAIN_DISPATCHER, set_ev_cls
from ryu.ofproto import ofproto_v1_3 as ofp

from patchlight.controller.openflow.speaker.switch import port_of
from patchlight.controller.openflow.speaker.switch_registry import SwitchRegistry

_PORT_CHANGES = {ofp.OFPPR_ADD: "added", ofp.OFPPR_DELETE: "removed", ofp.OFPPR_MODIFY: "changed"}
_Handler = TypeVar("_Handler", bound=Callable[..., None])


def _on(events: Any, states: Any) -> Callable[[_Handler], _Handler]:
    """The engine's ``set_ev_cls``, which has no types."""
    decorate: Callable[[_Handler], _Handler] = set_ev_cls(events, states)
    return decorate


class Patchlight(app_manager.RyuApp):  # type: ignore[misc]
    """Tells ``SwitchRegistry`` of switches, ports, replies and errors."""

    OFP_VERSIONS = (ofp.OFP_VERSION,)

    def __init__(self, *args: Any, patchlight: SwitchRegistry, **contexts: Any) -> None:
        super().__init__(*args, **contexts)
        self._registry = patchlight

    @_on(ofp_event.EventOFPSwitchFeatures, CONFIG_DISPATCHER)
    def on_features(self, event: Any) -> None:
        """A switch said its datapath id."""
        self._registry.features(event.msg.datapath, event.msg.datapath_id)

    @_on(ofp_event.EventOFPStateChange, [MAIN_DISPATCHER, DEAD_DISPATCHER])
    def on_state(self, event: Any) -> None:
        """A switch is ready, or gone."""
        if event.state == MAIN_DISPATCHER:
            self._registry.up(event.datapath)
        else:
            self._registry.down(event.datapath)

    @_on(ofp_event.EventOFPPortStatus, MAIN_DISPATCHER)
    def on_port(self, event: Any) -> None:
        """A port of a switch came, went or changed."""
        message = event.msg
        if message.desc.port_no <= ofp.OFPP_MAX:
            change = _PORT_CHANGES.get(message.reason, "changed")
            self._registry.port(message.datapath, port_of(message.desc), change)

    @_on(ofp_event.EventOFPPacketIn, MAIN_DISPATCHER)
    def on_frame(self, event: Any) -> None:
        """A switch handed over a frame."""
        message = event.msg
        port = message.match.get("in_port", 0)
        self._registry.frame(message.datapath, port, message.cookie, bytes(message.data))

    @_on(
        [
            ofp_event.EventOFPBarrierReply,
            ofp_event.EventOFPEchoReply,
            ofp_event.EventOFPErrorMsg,
            ofp_event.EventOFPFlowStatsReply,
            ofp_event.EventOFPPortStatsReply,
            ofp_event.EventOFPPortDescStatsReply,
            ofp_event.EventOFPDescStatsReply,
        ],
        MAIN_DISPATCHER,
    )
    def on_reply(self, event: Any) -> None:
        """A switch did all it was told, refuses, counts, or describes itself or its ports."""
        if (switch := self._registry.of(event.msg.datapath)) is not None:
            switch.on_reply(event.msg)
