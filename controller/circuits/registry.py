"""Drivers by name: ours (``testbed/lab/ocs_drivers.py``), and those that other packages add.

A package adds one with an entry point in the group ``patchlight.ocs_drivers``: its name is
the driver's, and it loads a callable ``(CircuitSwitch, password) -> CircuitDriver``. In the group
``patchlight.wss_drivers`` it is ``(WavelengthSwitch, password) -> WavelengthDriver``.
"""

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pkgutil import resolve_name
from typing import cast, overload

from patchlight.controller.circuits.contract import CircuitDriver, WavelengthDriver
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.lab.model import CircuitSwitch, OpticalSwitch
from patchlight.testbed.lab.ocs_drivers import (
    DRIVER_GROUP,
    OCS_DRIVERS,
    WSS_DRIVER_GROUP,
    WSS_DRIVERS,
    OcsDriver,
)
from patchlight.testbed.lab.wavelengths import WavelengthSwitch

DriverFactory = Callable[[CircuitSwitch, str], CircuitDriver]
_AnyFactory = Callable[[OpticalSwitch, str], CircuitDriver | WavelengthDriver]


@dataclass(frozen=True)
class PlugIns:
    """Factories by name: ours (``module:name``), and those that packages add to ``group``.

    Loaded when first asked for: the libraries of one need not be there for the others.
    """

    group: str
    ours: Mapping[str, str]

    def names(self) -> tuple[str, ...]:
        """All of them, ours first."""
        return tuple(dict.fromkeys((*self.ours, *sorted(self._theirs()))))

    def load(self, name: str) -> object:
        """The factory; ``KeyError`` if there is none of that name.

        ``PatchlightError`` if it is another package's and cannot be loaded.
        """
        if name in self.ours:
            return resolve_name(self.ours[name])
        theirs = self._theirs()[name]
        try:
            return theirs.load()
        except Exception as error:
            raise PatchlightError(
                f"loading {name!r}: {error}",
                hint=f"it comes from an entry point in the group {self.group}: "
                "check that package's installation",
            ) from error

    def _theirs(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=self.group)}


def _plug_ins(group: str, rows: Mapping[str, OcsDriver]) -> PlugIns:
    places = {d.name: f"patchlight.controller.circuits.drivers.{d.driver}" for d in rows.values()}
    return PlugIns(group, places)


_DRIVERS = _plug_ins(DRIVER_GROUP, OCS_DRIVERS)
_WSS_DRIVERS = _plug_ins(WSS_DRIVER_GROUP, WSS_DRIVERS)
driver_names = _DRIVERS.names
wss_driver_names = _WSS_DRIVERS.names


@overload
def open_driver(switch: CircuitSwitch, password: str = "") -> CircuitDriver: ...
@overload
def open_driver(switch: WavelengthSwitch, password: str = "") -> WavelengthDriver: ...
def open_driver(switch: OpticalSwitch, password: str = "") -> CircuitDriver | WavelengthDriver:
    """The driver of this switch, not yet connected: ``await driver.open()`` does that.

    ``BadInput`` if no driver has that name, ``PatchlightError`` if it cannot be loaded.
    """
    name, drivers = switch.driver, _DRIVERS
    other, kind = _WSS_DRIVERS, "wavelength"
    if isinstance(switch, WavelengthSwitch):
        drivers, other, kind = _WSS_DRIVERS, _DRIVERS, "circuit"
    try:
        factory = cast(_AnyFactory, drivers.load(name))
    except KeyError:
        known = drivers.names()
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
        if name in other.names():
            hint = f"that one drives {kind} switches; known: {', '.join(known)}"
        raise BadInput(f"{switch.name}: no driver is called {name!r}: {hint}") from None
    return factory(switch, password)


def password_of(switch: OpticalSwitch) -> str:
    """The switch's password from the environment variable that the lab file names, or ``""``."""
    variable = switch.password_env
    if variable is None:
        return ""
    if variable not in os.environ:
        raise BadInput(
            f"the password of {switch.name} is to be in the environment variable "
            f"{variable}, which is not set",
            hint=f"export {variable}=… before starting",
        )
    return os.environ[variable]
