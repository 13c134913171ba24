"""Which protocol server stands in for a device, by the name of the driver that drives it.

A package adds one with an entry point in the group ``patchlight.emulated_ocs``: its name is the
driver's, and it loads a subclass of ``ProtocolServer``.
"""

from __future__ import annotations

import os
from typing import cast

from patchlight.controller.circuits.registry import PlugIns
from patchlight.emulation.optical.device import EmulatedOcs
from patchlight.emulation.optical.protocols.server import ProtocolServer, Users
from patchlight.testbed.errors import BadInput
from patchlight.testbed.files.issues import nearest
from patchlight.testbed.lab import CircuitSwitch
from patchlight.testbed.ocs_drivers import OCS_DRIVERS

_DEVICES = PlugIns(
    "patchlight.emulated_ocs",
    {
        driver.name: f"patchlight.emulation.optical.vendors.{driver.device}"
        for driver in OCS_DRIVERS.values()
        if driver.device
    },
)
emulated_drivers = _DEVICES.names


def server_class(driver: str) -> type[ProtocolServer]:
    """The server that speaks to this driver; ``BadInput`` if there is none."""
    try:
        return cast(type[ProtocolServer], _DEVICES.load(driver))
    except KeyError:
        known = nearest(driver, emulated_drivers(), "there are")
        raise BadInput(f"no emulated switch speaks {driver!r}: {known}") from None


def server_of(device: EmulatedOcs) -> ProtocolServer:
    """The server of the device's driver, with the lab file's users."""
    return server_class(device.switch.driver)(device, users_of(device.switch))


def users_of(switch: CircuitSwitch) -> Users:
    """The lab file's users, with the passwords of their environment variables, else any."""
    named = {user.name: user.password_env for user in switch.emulated.users}
    variables = {switch.user: switch.password_env, **named}
    return {
        name: os.environ.get(variable) if variable else None for name, variable in variables.items()
    }
