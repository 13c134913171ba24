"""The emulation's share of an optical switch in a lab file: faults, and who may log in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Value = str | int | float | bool | tuple[int, ...] | tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class OcsFault:
    """One object for an emulated device's control socket, and when it comes.

    ``after_s`` seconds after the device began to answer; or, if ``after_changes`` is not 0,
    once so many commands that change something have come: it befalls the next one.
    """

    settings: tuple[tuple[str, Value], ...]
    after_s: float = 0.0
    after_changes: int = 0

    @classmethod
    def of(
        cls, settings: Mapping[str, Any], *, after_s: float = 0.0, after_changes: int = 0
    ) -> OcsFault:
        """From plain values, as JSON has them."""
        items = tuple((key, _frozen(value)) for key, value in settings.items())
        return cls(items, after_s, after_changes)

    @property
    def control(self) -> dict[str, Any]:
        """The object, as the control socket takes it."""
        return {key: _plain(value) for key, value in self.settings}


@dataclass(frozen=True, slots=True)
class OcsUser:
    """Somebody who may log in; without ``password_env`` with any password."""

    name: str
    password_env: str | None = None
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Emulation:
    """The emulation's share of an optical switch in a lab file; the controller reads none of it.

    ``conflict_time_s``: new circuits take busy ports from the old ones, which takes so long
    in all; ``None``: such a circuit is refused.
    """

    faults: tuple[OcsFault, ...] = ()
    users: tuple[OcsUser, ...] = ()
    conflict_time_s: float | None = None

    def __bool__(self) -> bool:
        return self != Emulation()


def _frozen(value: Any) -> Value:
    if isinstance(value, dict):
        return tuple((str(key), float(item)) for key, item in value.items())
    return tuple(value) if isinstance(value, list) else value


def _plain(value: Value) -> Any:
    if not isinstance(value, tuple):
        return value
    if value and isinstance(value[0], tuple):
        return dict(value)
    return list(value)
