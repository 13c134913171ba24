"""Networks by name: ``fat-tree:k=16,taper=2``, ``torus:dims=4x4x4``, ``lab:ofc2022``."""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from patchlight.emulation.simulator.network.contract import ETHERNET_BYTES, Network, tcp
from patchlight.emulation.simulator.network.topologies.direct import astra, lab, torus
from patchlight.emulation.simulator.network.topologies.optical import (
    oddl,
    ramp,
    rotornet,
    sip_ocs,
    sip_ring,
)
from patchlight.emulation.simulator.network.topologies.packet import (
    fat_tree,
    ideal,
    leaf_spine,
    rail_only,
)
from patchlight.emulation.simulator.network.topologies.topoopt import topoopt
from patchlight.testbed.errors import BadInput, nearest
from patchlight.testbed.units import parse_rate, parse_time

NETWORKS: Mapping[str, Callable[..., Network]] = {
    "ideal": ideal,
    "fat-tree": fat_tree,
    "leaf-spine": leaf_spine,
    "rail-only": rail_only,
    "torus": torus,
    "topoopt": topoopt,
    "sip-ring": sip_ring,
    "sip-ocs": sip_ocs,
    "ramp": ramp,
    "oddl": oddl,
    "rotornet": rotornet,
}
"""What makes each kind of network; the parameters of a spec are those of the function."""

_MTU = 1500


def network_of(spec: str) -> Network:
    """The network that a spec names.

    ``BadInput`` says which names, parameters and values there are. ``two-tor-ocs`` is the built-in
    lab ``ofc2022``; ``lab:NAME`` and the name of a lab file are labs, ``astra:FILE`` is a network
    file of ASTRA-sim. All have ``mtu`` (bytes; of
    labs 1500, of others 0, without headers and acknowledgements) and ``frame`` (bytes around each
    packet).
    """
    name, _, rest = spec.strip().partition(":")
    parts = [part for part in rest.split(",") if part]
    if name == "two-tor-ocs":
        name, parts = "lab", ["ofc2022", *parts]
    elif name.split(",")[0].endswith((".yaml", ".yml")):
        name, parts = "lab", spec.split(",")
    mtu, make = 0, NETWORKS.get(name)
    if name in ("lab", "astra") and parts:
        made = lab if name == "lab" else astra
        make, parts, mtu = partial(made, file=parts[0]), parts[1:], _MTU * (name == "lab")
    if make is None:
        known = [*NETWORKS, "two-tor-ocs", "lab", "astra"]
        raise BadInput(
            f"no network {name!r}: {nearest(name, known)}",
            hint="like fat-tree:k=16,taper=2, or lab:FILE, or astra:FILE",
        )
    signature = inspect.signature(make).parameters.values()
    own = {each.name: each.default for each in signature if each.name not in ("spec", "file")}
    takes: dict[str, Any] = {**own, "mtu": mtu, "frame": ETHERNET_BYTES}
    given: dict[str, Any] = {}
    for part in parts:
        key, equals, text = (each.strip() for each in part.partition("="))
        if key not in takes or not equals:
            said = ", ".join(f"{key}={_shown(default)}" for key, default in takes.items())
            raise BadInput(f"{spec}: {part!r} is no parameter of {name}: it has {said}")
        if key in given:
            raise BadInput(f"{spec}: {key} stands there twice")
        given[key] = _value(spec, key, text, takes[key])
    mtu, frame_bytes = given.pop("mtu", mtu), given.pop("frame", ETHERNET_BYTES)
    network = make(spec, **given)
    if not mtu:
        return network
    try:
        return replace(network, framing=tcp(mtu, frame_bytes))
    except BadInput as error:
        raise BadInput(f"{spec}: {error.message}") from error


def _shown(default: object) -> str:
    return "x".join(map(str, default)) if isinstance(default, tuple) else str(default)


def _value(spec: str, key: str, text: str, default: object) -> object:
    """A parameter's value, of the kind that its default is."""
    try:
        if key.endswith("rate"):
            return float(parse_rate(text))
        if key in ("latency", "switching", "slot", "control", "setup"):
            return parse_time(text)
        if isinstance(default, str):
            return text
        if isinstance(default, tuple):
            return tuple(_whole(each) for each in text.split("x"))
        if isinstance(default, int):
            return 0 if key == "mtu" and text == "0" else _whole(text)
        number = float(text)
    except (ValueError, BadInput) as error:
        raise BadInput(f"{spec}: {key}={text}: {_why(error, default)}") from error
    if not (math.isfinite(number) and number > 0):
        raise BadInput(f"{spec}: {key}={text}: expected a number above 0")
    return number


def _whole(text: str) -> int:
    number = int(text)
    if not 1 <= number <= 1 << 20:
        raise ValueError(text)
    return number


def _why(error: Exception, default: object) -> str:
    if isinstance(error, BadInput):
        return error.message
    if isinstance(default, tuple):
        return "expected whole numbers joined by x, like 4x4x4"
    return "expected a whole number above 0" if isinstance(default, int) else "expected a number"
