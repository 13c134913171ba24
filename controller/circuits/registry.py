"""Drivers by name: ours (``testbed/ocs_drivers.py``), and those that other packages add.

A package adds one with an entry point in the group ``patchlight.ocs_drivers``: its name is
the driver's, and it loads a callable ``(CircuitSwitch, password) -> CircuitDriver``.
"""

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pkgutil import resolve_name
from typing import cast

from patchlight.controller.circuits.contract import CircuitDriver
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.lab import CircuitSwitch
from patchlight.testbed.ocs_drivers import DRIVER_GROUP, OCS_DRIVERS

DriverFactory = Callable[[CircuitSwitch, str], CircuitDriver]


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


_DRIVERS = PlugIns(
    DRIVER_GROUP,
    {d.name: f"patchlight.controller.circuits.drivers.{d.driver}" for d in OCS_DRIVERS.values()},
)
driver_names = _DRIVERS.names


def open_driver(circuit_switch: CircuitSwitch, password: str = "") -> CircuitDriver:
    """The driver of this OCS, not yet connected: ``await driver.open()`` does that.

    ``BadInput`` if no driver has that name, ``PatchlightError`` if it cannot be loaded.
    """
    name = circuit_switch.driver
    try:
        factory = cast(DriverFactory, _DRIVERS.load(name))
    except KeyError:
        known = driver_names()
        near = difflib.get_close_matches(name, known, n=1)
        raise BadInput(
            f"{circuit_switch.name}: no driver is called {name!r}: "
            + (f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}")
        ) from None
    return factory(circuit_switch, password)


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
