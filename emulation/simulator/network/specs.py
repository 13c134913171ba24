"""Networks by name: ``fat-tree:k=16,taper=2``, ``torus:dims=4x4x4``, ``lab:ofc2022``."""

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

from patchlight.emulation.simulator.network.contract import Network
from patchlight.emulation.simulator.network.topologies.direct import topoopt, torus
from patchlight.emulation.simulator.network.topologies.lab import lab
from patchlight.emulation.simulator.network.topologies.packet import (
    fat_tree,
    ideal,
    leaf_spine,
    rail_only,
)
from patchlight.emulation.simulator.network.topologies.ramp import ramp
from patchlight.emulation.simulator.network.topologies.rotornet import rotornet
from patchlight.emulation.simulator.network.topologies.sip import sip_ring
from patchlight.emulation.simulator.network.topologies.switched import oddl, sip_ocs
from patchlight.testbed.errors import BadInput
from patchlight.testbed.files.issues import nearest
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


def network_of(spec: str) -> Network:
    """The network that a spec names.

    ``BadInput`` says which names, parameters and values there are. ``two-tor-ocs`` is the built-in
    lab ``ofc2022``; ``lab:NAME`` and the name of a lab file are labs.
    """
    name, _, rest = spec.strip().partition(":")
    if name == "two-tor-ocs" and not rest:
        return lab(spec, "ofc2022")
    if name == "lab" and rest:
        return lab(spec, rest)
    if spec.endswith((".yaml", ".yml")):
        return lab(spec, spec)
    make = NETWORKS.get(name)
    if make is None:
        known = [*NETWORKS, "two-tor-ocs", "lab"]
        raise BadInput(
            f"no network {name!r}: {nearest(name, known)}",
            hint="like fat-tree:k=16,taper=2, or lab:FILE",
        )
    takes = inspect.signature(make).parameters
    given: dict[str, Any] = {}
    for part in filter(None, rest.split(",")):
        key, equals, text = (each.strip() for each in part.partition("="))
        if key == "spec" or key not in takes or not equals:
            said = ", ".join(
                f"{key}={_shown(takes[key].default)}" for key in takes if key != "spec"
            )
            raise BadInput(f"{spec}: {part!r} is no parameter of {name}: it has {said}")
        if key in given:
            raise BadInput(f"{spec}: {key} stands there twice")
        given[key] = _value(spec, key, text, takes[key].default)
    return make(spec, **given)


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
            return _whole(text)
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
