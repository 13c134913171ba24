"""Port maps as JSON text, as the controller's REST API gives and takes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab import Lab
from patchlight.testbed.portmap import PortMap


def parse_maps(text: str, lab: Lab, source: str = "the maps") -> dict[str, PortMap]:
    """``{"ocs1": ["1-7", "2>8"]}`` → a map for each OCS of ``lab`` named in it.

    The controller's answer, ``{"ocs1": {"map": […]}}``, is taken as well. ``BadInput`` names
    ``source``, the OCS and what is wrong: no JSON, an unknown OCS, a port outside it or one
    used twice.
    """
    try:
        maps = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{source}: not JSON: {error}") from error
    if not isinstance(maps, dict):
        raise BadInput(f'{source}: expected cross-connects by OCS, like {{"ocs1": ["1-7"]}}')
    return {name: _parse_map(name, texts, lab, source) for name, texts in maps.items()}


def maps_as_json(maps: Mapping[str, PortMap]) -> dict[str, list[str]]:
    """The maps as ``parse_maps`` reads them."""
    return {name: list(port_map.texts) for name, port_map in maps.items()}


def _parse_map(name: str, texts: Any, lab: Lab, source: str) -> PortMap:
    switch = lab.circuit_switch(name)
    if isinstance(texts, dict):
        texts = texts.get("map")
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise BadInput(f'{source}: {name}: expected a list of cross-connects, like ["1-7"]')
    try:
        port_map = PortMap.parse(texts)
        port_map.check(switch.ports)
    except BadInput as error:
        raise BadInput(f"{source}: {name}: {error.message}") from error
    return port_map
