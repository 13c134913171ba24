"""Finds drivers of packet switches by name: built-in, and of other packages.

A package adds one with an entry point in the group ``patchlight.packet_switch_drivers``: its name
is the driver's, and it loads a callable ``(PacketSwitch, password) -> PacketSwitchDriver``.
"""

from collections.abc import Callable
from typing import cast

from patchlight.controller.circuits.registry import PlugIns
from patchlight.controller.packet_switches.contract import PacketSwitchDriver
from patchlight.testbed.lab.model import PacketSwitch
from patchlight.testbed.lab.packet_drivers import (
    PACKET_DRIVER_GROUP,
    PACKET_DRIVERS,
)

PacketDriverFactory = Callable[[PacketSwitch, str], PacketSwitchDriver]

# Switches with OpenFlow share the speaker, which connects to none of them: see ``PacketSwitches``.
_DRIVERS = PlugIns(
    PACKET_DRIVER_GROUP,
    {
        row.name: f"patchlight.controller.packet_switches.{row.driver}"
        for row in PACKET_DRIVERS.values()
        if row.driver
    },
)


def open_packet_driver(
    switch: PacketSwitch, password: str = ""
) -> PacketSwitchDriver:
    """The driver of this switch, not yet connected.

    ``BadInput`` if no driver has that name, ``PatchlightError`` if it cannot be loaded.
    """
    factory = cast(
        PacketDriverFactory, _DRIVERS.require(switch.name, switch.driver)
    )
    return factory(switch, password)
