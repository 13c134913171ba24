"""Pictures as plain values: shapes by name, of which those that differ are sent to a browser."""

from collections.abc import Mapping
from typing import TypeAlias

Look: TypeAlias = dict[str, str | float]
Shape: TypeAlias = "tuple[str, Mapping[str, str | float], str | list[Shape]]"
"""An SVG element as a plain value: its tag, its attributes, and its text or what is inside."""
Shapes = dict[str, Shape]
"""A layer, by names: what is the same thing as before has the same name."""


def about(words: str, device: str, parts: list[Shape], **name: str) -> Shape:
    """A thing that says something of itself when the mouse is on it, and opens a device."""
    named = {f"data_{kind}": its for kind, its in name.items()}
    return shape("g", [shape("title", words), *parts], data_device=device, **named)


def text(
    x: float,
    y: float,
    words: str,
    size: float,
    *,
    anchor: str = "middle",
    bold: bool = False,
    quiet: bool = False,
    upwards: bool = False,
) -> Shape:
    """Words at a place, ``size`` pixels high."""
    look: Look = {"font_size": size, "text_anchor": anchor}
    look |= {"font_weight": "bold"} if bold else {}
    look |= {"css": "pl-small"} if quiet else {}
    look |= {"transform": f"rotate(-90 {tenths(x)} {tenths(y)})"} if upwards else {}
    return shape("text", words, x=tenths(x), y=tenths(y), **look)


def shape(tag: str, inside: str | list[Shape], /, **attributes: str | float) -> Shape:
    """An element; ``css`` is its class, other attributes have dashes in place of underscores."""
    named = {"css": "class"}
    return (tag, {named.get(n, n.replace("_", "-")): v for n, v in attributes.items()}, inside)


def tenths(pixels: float) -> float:
    """As exactly as a picture needs it: no more digits are sent."""
    return round(pixels, 1)
