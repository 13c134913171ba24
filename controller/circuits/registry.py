"""Drivers by name: ours, and those that other packages add.

A package adds one with an entry point in the group ``patchlight.ocs_drivers``: its name is
the driver's, and it loads a callable ``(CircuitSwitch, password) -> CircuitDriver``.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from typing import cast

from patchlight.controller.circuits.contract import CircuitDriver
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.lab import CircuitSwitch

ENTRY_POINT_GROUP = "patchlight.ocs_drivers"

DriverFactory = Callable[[CircuitSwitch, str], CircuitDriver]

# Loaded when first asked for: a driver's libraries need not be there for the others.
_OURS = {
    "calient-tl1": "patchlight.controller.circuits.drivers.calient.tl1:CalientTl1",
    "calient-rest": "patchlight.controller.circuits.drivers.calient.rest:CalientRest",
    "polatis-scpi": "patchlight.controller.circuits.drivers.polatis.scpi:PolatisScpi",
    "polatis-tl1": "patchlight.controller.circuits.drivers.polatis.tl1:PolatisTl1",
    "polatis-restconf": "patchlight.controller.circuits.drivers.polatis.restconf:PolatisRestconf",
    "glimmerglass-tl1": "patchlight.controller.circuits.drivers.glimmerglass:GlimmerglassTl1",
    "polatis-netconf": "patchlight.controller.circuits.drivers.polatis.netconf:PolatisNetconf",
    "telescent-ssh": "patchlight.controller.circuits.drivers.telescent:TelescentSsh",
    "openflow": "patchlight.controller.circuits.drivers.openflow:OpenFlowSwitch",
    "dry-run": "patchlight.controller.circuits.drivers.dry_run:DryRun",
}


def driver_names() -> tuple[str, ...]:
    """Every driver that ``open_driver`` knows, ours first."""
    return tuple(dict.fromkeys((*_OURS, *sorted(_theirs()))))


def open_driver(circuit_switch: CircuitSwitch, password: str = "") -> CircuitDriver:
    """The driver of this OCS, not yet connected: ``await driver.open()`` does that.

    ``BadInput`` if no driver has that name, ``PatchlightError`` if it cannot be loaded.
    """
    return _factory(circuit_switch)(circuit_switch, password)


def password_of(circuit_switch: CircuitSwitch) -> str:
    """The OCS's password from the environment variable that the lab file names, or ``""``."""
    variable = circuit_switch.password_env
    if variable is None:
        return ""
    if variable not in os.environ:
        raise BadInput(
            f"the password of {circuit_switch.name} is to be in the environment variable "
            f"{variable}, which is not set",
            hint=f"export {variable}=… before starting",
        )
    return os.environ[variable]


def _factory(circuit_switch: CircuitSwitch) -> DriverFactory:
    name = circuit_switch.driver
    if name in _OURS:
        module, _, attribute = _OURS[name].partition(":")
        return cast(DriverFactory, getattr(import_module(module), attribute))
    theirs = _theirs()
    if name not in theirs:
        known = driver_names()
        near = difflib.get_close_matches(name, known, n=1)
        raise BadInput(
            f"{circuit_switch.name}: no driver is called {name!r}: "
            + (f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}")
        )
    try:
        return cast(DriverFactory, theirs[name]())
    except Exception as error:
        raise PatchlightError(
            f"loading the driver {name!r} for {circuit_switch.name}: {error}",
            hint=f"it comes from an entry point in the group {ENTRY_POINT_GROUP}: "
            "check that package's installation",
        ) from error


def _theirs() -> dict[str, Callable[[], object]]:
    return {point.name: point.load for point in entry_points(group=ENTRY_POINT_GROUP)}
