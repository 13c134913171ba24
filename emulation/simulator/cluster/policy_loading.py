"""Policies of a queue by name or file. Those that users wrote are guarded: faults are reported."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import cast

from patchlight.controller.policies.contract import (
    OrderPolicy,
    PlacementPolicy,
    Policy,
    PolicyKind,
    TopologyPolicy,
)
from patchlight.controller.policies.guard import (
    Fault,
    GuardedOrder,
    GuardedPlacement,
    GuardedTopology,
)
from patchlight.controller.policies.registry import DEFAULTS, Recipe, find

_SHOWN = 5
_BUILT_IN = "built in"


def order_named(text: str, seed: int, faults: list[str]) -> OrderPolicy:
    """The order policy of this name; ``faults`` is told of the first few that it commits."""
    recipe, policy = _made("order", text, seed)
    if recipe.origin == _BUILT_IN:
        return cast(OrderPolicy, policy)
    default = cast(OrderPolicy, _made("order", DEFAULTS["order"], seed)[1])
    return GuardedOrder(cast(OrderPolicy, policy), default, recipe.text, partial(_note, faults))


def placement_named(text: str, seed: int, faults: list[str]) -> PlacementPolicy:
    """The placement policy of this name; ``faults`` as with ``order_named``."""
    recipe, policy = _made("placement", text, seed)
    if recipe.origin == _BUILT_IN:
        return cast(PlacementPolicy, policy)
    default = cast(PlacementPolicy, _made("placement", DEFAULTS["placement"], seed)[1])
    return GuardedPlacement(
        cast(PlacementPolicy, policy), default, recipe.text, partial(_note, faults)
    )


def topology_named(text: str, seed: int, faults: list[str]) -> TopologyPolicy:
    """The topology policy of this name; ``faults`` as with ``order_named``."""
    recipe, policy = _made("topology", text, seed)
    if recipe.origin == _BUILT_IN:
        return cast(TopologyPolicy, policy)
    default = cast(TopologyPolicy, _made("topology", DEFAULTS["topology"], seed)[1])
    return GuardedTopology(
        cast(TopologyPolicy, policy), default, recipe.text, partial(_note, faults)
    )


def check_policies(
    orders: Iterable[str], placements: Iterable[str], topologies: Iterable[str]
) -> None:
    """``BadInput`` for the first policy that there is not, or that cannot be made."""
    kinds: dict[PolicyKind, Iterable[str]] = {
        "order": orders,
        "placement": placements,
        "topology": topologies,
    }
    for kind, texts in kinds.items():
        for text in texts:
            _made(kind, text, 0)


def _made(kind: PolicyKind, text: str, seed: int) -> tuple[Recipe, Policy]:
    recipe = find(text, kind)
    return recipe, recipe.make(seed=seed)


def _note(faults: list[str], fault: Fault) -> None:
    if len(faults) < _SHOWN:
        faults.append(str(fault))
    elif len(faults) == _SHOWN:
        faults.append("and more of them")
