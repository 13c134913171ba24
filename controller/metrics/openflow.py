"""The OpenFlow speaker and the packet switches, as metrics."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from patchlight.controller.metrics.families import Family, by_name, counter, gauge, single

if TYPE_CHECKING:
    from patchlight.controller.openflow.client import Speaker
    from patchlight.controller.openflow.packet_switches import PacketSwitches

_RATES_OF_S = 5.0
_PER_BYTE = 8
_COUNTED = {
    "connections": "How often a packet switch connected to the speaker.",
    "sent": "OpenFlow messages that went to a packet switch.",
    "received": "OpenFlow messages that came from a packet switch.",
    "errors": "OpenFlow errors that a packet switch sent.",
}
_NAMES = {"sent": "sent_messages", "received": "received_messages"}
_REFUSED_FOR = ("tls", "certificate", "second", "unknown")


def openflow_metrics(
    speaker: Speaker, switches: PacketSwitches, unknown_switch_connections: int
) -> Iterator[Family]:
    """Every family, from what the speaker told last."""
    yield single("speaker_up", "Whether the OpenFlow speaker runs.", float(speaker.connected))
    about = "How often the OpenFlow speaker was started again."
    yield counter("speaker_restarts", about, (), [((), float(speaker.restarts))])
    connected = {name: float(there) for name, there in switches.connected().items()}
    about = "Whether a packet switch is connected to the speaker."
    yield gauge("packet_switch_connected", about, ("switch",), by_name(connected))
    strangers = float(unknown_switch_connections)
    about = "Connections of switches that are not in the lab file."
    yield counter("speaker_unknown_switch_connections", about, (), [((), strangers)])
    yield from _traffic(switches)
    rates = switches.rates_bps(since=time.time() - _RATES_OF_S)
    received = {host: rx_bps / _PER_BYTE for host, (_, rx_bps) in rates.items()}
    sent = {host: tx_bps / _PER_BYTE for host, (tx_bps, _) in rates.items()}
    about = f"by its switch port, as in the lab: the mean of the last {_RATES_OF_S:g} seconds."
    for name, values in (("receive", received), ("transmit", sent)):
        words = f"What a host has to {name}, {about}"
        yield gauge(f"host_{name}_bytes_per_second", words, ("host",), by_name(values))


def _traffic(switches: PacketSwitches) -> Iterator[Family]:
    by_switch = switches.traffic_by_switch()
    of_switch = ("switch",)
    for key, about in _COUNTED.items():
        values = {name: float(each[key]) for name, each in by_switch.items()}
        name = f"packet_switch_{_NAMES.get(key, key)}"
        yield counter(name, about, of_switch, by_name(values))
    echo = {name: t["echo_s"] for name, t in by_switch.items() if t["echo_s"] is not None}
    about = "How long a connected packet switch took to answer the last echo."
    yield gauge("packet_switch_echo_seconds", about, of_switch, by_name(echo))
    waiting = {name: float(each["waiting"]) for name, each in by_switch.items()}
    about = "What waits in the speaker to be sent to a packet switch."
    yield gauge("packet_switch_waiting_sends", about, of_switch, by_name(waiting))
    refused = dict.fromkeys(_REFUSED_FOR, 0.0) | dict(switches.refused)
    about = "Connections to the OpenFlow speaker that did not get in."
    yield counter("speaker_refused_connections", about, ("reason",), by_name(refused))
