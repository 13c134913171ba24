"""Policies of a queue by name or file. Those that users wrote are guarded: faults are reported."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from patchlight.controller.policies.contract import PolicyKind
from patchlight.controller.policies.guard import (
    Fault,
    GuardedOrder,
    GuardedPlacement,
    GuardedTopology,
)
from patchlight.controller.policies.registry import DEFAULTS, find, load_policy
from patchlight.emulation.simulator.cluster.scheduling import Policies

_SHOWN = 5
_GUARDS: dict[PolicyKind, Any] = {
    "order": GuardedOrder,
    "placement": GuardedPlacement,
    "topology": GuardedTopology,
}


def load_policies(
    order: str, placement: str, topology: str, seed: int, faults: list[str]
) -> Policies:
    """The policies of these names; ``faults`` is told of the first few that each commits."""
    return Policies(
        _load("order", order, seed, faults),
        _load("placement", placement, seed, faults),
        None if topology == "keep" else _load("topology", topology, seed, faults),
    )


def check_policies(
    orders: Iterable[str], placements: Iterable[str], topologies: Iterable[str]
) -> None:
    """``BadInput`` for the first policy that there is not, or that cannot be made."""
    for kind, names in zip(_GUARDS, (orders, placements, topologies), strict=True):
        for name in names:
            load_policy(name, kind, seed=0)


def _load(kind: PolicyKind, name: str, seed: int, faults: list[str]) -> Any:
    recipe = find(name, kind)
    policy = recipe.make(seed=seed)
    if recipe.origin == "built in":
        return policy
    default = load_policy(DEFAULTS[kind], kind, seed=seed)
    return _GUARDS[kind](policy, default, recipe.text, partial(_note, faults))


def _note(faults: list[str], fault: Fault) -> None:
    if len(faults) < _SHOWN:
        faults.append(str(fault))
    elif len(faults) == _SHOWN:
        faults.append("and more of them")
