"""Lists the environments, and finds those of other packages by their entry points.

An environment of ours says by ``figure`` which key of the last step's information is what counts
(less is better), and has ``heuristics`` and perhaps ``trained`` models by name: functions of the
environment and its observation that give an action. ``per_action`` names the arrays of the
observation that have a row for each of the first actions.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium.vector import SyncVectorEnv, VectorEnv
from numpy.typing import NDArray

from patchlight.controller.policies.files import run_file
from patchlight.testbed.errors import BadInput, nearest

Environment = gymnasium.Env[Any, Any]
Heuristic = Callable[[Any, Any], int]
"""The action of a rule, for an environment and what was observed in it last."""


@dataclass(frozen=True)
class Registered:
    """An environment of ours: what is decided in it, over which simulator."""

    name: str
    decision: str
    simulator: str
    entry_point: str
    vector_entry_point: str | None = None


def _registered(
    name: str,
    decision: str,
    simulator: str,
    module: str,
    has_vector: bool = False,
) -> Registered:
    """The classes of an environment are named for it."""
    kind = f"patchlight.emulation.learning.envs.{module}:{name}"
    vector = f"{kind}VectorEnv" if has_vector else None
    return Registered(
        f"patchlight/{name}-v0",
        decision,
        simulator,
        f"{kind}Env",
        vector,
    )


ENVIRONMENTS: tuple[Registered, ...] = (
    _registered(
        "RampPartition",
        "the number of parts of a job",
        "RAMP loss network",
        "ramp_partition",
        has_vector=True,
    ),
    _registered(
        "RampServers",
        "the block of servers of a job",
        "RAMP loss network",
        "ramp_servers",
    ),
    _registered(
        "Placement",
        "the first server of the next job",
        "queue",
        "topology",
    ),
    _registered(
        "Schedule",
        "the next waiting job",
        "queue",
        "queued",
    ),
    _registered(
        "Topology",
        "the circuits of the next job",
        "queue, on a lab",
        "topology",
    ),
    _registered(
        "Elasticity",
        "the running job to resize",
        "queue",
        "ramp_servers",
    ),
    _registered(
        "OperationPlacement",
        "the server of the next part of a split model",
        "a training step on a RAMP",
        "operations",
    ),
    _registered(
        "OperationOrder",
        "the next ready operation",
        "a training step on a RAMP",
        "operations",
    ),
    _registered(
        "FlowSchedule",
        "the flow of the next path",
        "optical paths",
        "flows",
    ),
    _registered(
        "FlowChannel",
        "the channel of the next flow",
        "optical paths",
        "flows",
    ),
)


def register_all() -> None:
    """Let ``gymnasium.make`` know them."""
    for each in ENVIRONMENTS:
        gymnasium.register(
            each.name,
            entry_point=each.entry_point,
            vector_entry_point=each.vector_entry_point,
        )


@dataclass(frozen=True)
class EnvironmentRecipe:
    """Makes an environment, or several; ``registered`` is its entry among ours, if any."""

    name: str
    registered: Registered | None
    make: Callable[[], Environment]
    make_many: Callable[[int], VectorEnv[Any, Any, Any]]


def find_environment(name: str) -> EnvironmentRecipe:
    """One of ours, with or without ``patchlight/`` and version, or ``FILE.py:CLASS``.

    ``BadInput`` for what is neither; a file is executed, as any program that its user runs.
    """
    path, colon, called = name.rpartition(":")
    if colon and path.endswith(".py"):
        return _in_file(name, Path(path), called)
    known = {_short(each.name): each for each in ENVIRONMENTS}
    found = known.get(_short(name))
    if found is None:
        hint = nearest(_short(name), sorted(known), "the environments are")
        raise BadInput(
            f"no environment {name!r}: {hint}",
            hint="your own environment is FILE.py:CLASS",
        )
    make = partial(_made, found.name)
    in_turns = None if found.vector_entry_point else "sync"
    many = partial(gymnasium.make_vec, found.name, vectorization_mode=in_turns)
    return EnvironmentRecipe(
        found.name,
        found,
        make,
        many,
    )


def _short(name: str) -> str:
    return name.removeprefix("patchlight/").removesuffix("-v0").casefold()


def _made(name: str) -> Environment:
    return gymnasium.make(name).unwrapped


def _in_file(
    name: str,
    path: Path,
    called: str,
) -> EnvironmentRecipe:
    there = vars(run_file(path, "environment's file"))
    if called not in there:
        kinds = [
            k
            for k, v in there.items()
            if isinstance(v, type) and issubclass(v, gymnasium.Env)
        ]
        hint = (
            nearest(called, kinds, "its environments are")
            if kinds
            else "it has no environment"
        )
        raise BadInput(f"{path} has no {called!r}: {hint}")
    found = there[called]
    if not (isinstance(found, type) and issubclass(found, gymnasium.Env)):
        raise BadInput(
            f"{name} is not an environment: expected a subclass of gymnasium.Env",
            hint="docs/environments.md has an example of 40 lines",
        )
    return EnvironmentRecipe(
        name,
        None,
        found,
        lambda count: SyncVectorEnv([found] * count),
    )


def heuristics_of(env: Environment) -> Mapping[str, Heuristic]:
    """The rules that an environment names."""
    return cast(Mapping[str, Heuristic], getattr(env, "heuristics", {}))


def trained_of(env: Environment) -> Mapping[str, Heuristic]:
    """The trained models that an environment names."""
    return cast(Mapping[str, Heuristic], getattr(env, "trained", {}))


def masks_of(env: Environment) -> NDArray[np.bool_]:
    """Which actions are allowed now; ``BadInput`` where the environment does not say."""
    masks = getattr(env, "action_masks", None)
    if masks is None:
        raise BadInput(
            f"{type(env).__name__} has no action_masks()",
            hint="give it one: a bool for each action, true where it is allowed now",
        )
    return np.asarray(masks())


def first_allowed(env: Environment, seen: Any) -> int:
    """The lowest action that is allowed."""
    return int(masks_of(env).argmax())
