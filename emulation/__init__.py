"""Labs made of software: the fabric, the optical switches, and what runs in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from emulation.emulated_lab import EmulatedLab

__all__ = ["EmulatedLab"]


def __getattr__(name: str) -> Any:
    # Lazy: the services of a lab import their own part of this package alone.
    if name == "EmulatedLab":
        from emulation.emulated_lab import EmulatedLab

        return EmulatedLab
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
