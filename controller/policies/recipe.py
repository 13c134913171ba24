"""A policy that was found, before it is made: what it is called and what it can be told."""

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast, get_args

from patchlight.controller.policies.contract import Policy, PolicyKind, kind_of
from patchlight.controller.policies.files import check_methods
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.io.issues import nearest

# ``*args`` and ``**kwargs``: nobody has to give these.
_ANY_NUMBER = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_HINTS = {
    "scenario": "it plans with the simulator: use it in 'patchlight experiment pac-ml' or "
    "'patchlight policy evaluate'"
}


@dataclass(frozen=True)
class PolicyRecipe:
    """A policy that was found: ``make`` makes one. ``origin`` says where it comes from.

    ``given`` are the parameters that were written with its name; ``path`` is the file of one
    that comes from a file.
    """

    kind: PolicyKind
    name: str
    origin: str
    load: Callable[[], Any]
    given: Mapping[str, Any] = field(default_factory=dict)
    path: Path | None = None

    @cached_property
    def factory(self) -> Any:
        """Its class, or an object that is the policy already; loaded when first asked for."""
        found = self.load()
        if kind_of(found) != self.kind:
            check_methods(found, self.name)
            raise BadInput(f"{self.name} is no {self.kind} policy: it is one of {kind_of(found)}")
        return found

    @property
    def text(self) -> str:
        """As it is written where the kind is known."""
        return ":".join([self.name, *(f"{key}={value}" for key, value in self.given.items())])

    @property
    def documentation(self) -> str:
        """What its author wrote about it."""
        card = getattr(self.factory, "card", None)
        return str(card.notes) if card is not None else inspect.getdoc(self.factory) or ""

    @property
    def about(self) -> str:
        """The first line of that."""
        return self.documentation.partition("\n")[0]

    @property
    def parameters(self) -> tuple[inspect.Parameter, ...]:
        """What can be given to it."""
        maker = self._maker
        return () if maker is None else tuple(inspect.signature(maker).parameters.values())

    @property
    def _maker(self) -> Any:
        """What takes its parameters: its class, or ``with_parameters`` of one that is made."""
        found = self.factory
        return found if inspect.isclass(found) else getattr(found, "with_parameters", None)

    @property
    def parameters_in_words(self) -> list[str]:
        """Each as ``seed: int = 0``."""
        return [str(parameter).replace("'", "") for parameter in self.parameters]

    @property
    def lacks(self) -> tuple[str, ...]:
        """The parameters that have to be given and were not."""
        return tuple(
            p.name
            for p in self.parameters
            if p.default is p.empty and p.name not in self.given and p.kind not in _ANY_NUMBER
        )

    def _renewed(self) -> Any:
        """The object as its file made it: what it learns in one run must not leak into others."""
        if hasattr(self.factory, "card"):
            return self.factory
        try:
            return copy.deepcopy(self.factory)
        except Exception:  # It holds what cannot be copied, like a lock or an open file.
            return self.factory

    def make(self, **offered: Any) -> Policy:
        """A new policy. Of ``offered`` it gets what its constructor names and nobody gave.

        ``BadInput`` if a parameter is missing or wrong.
        """
        maker = self._maker
        if maker is None:
            return cast(Policy, self._renewed())
        named = {p.name for p in self.parameters}
        arguments = {**{k: v for k, v in offered.items() if k in named}, **self.given}
        lacking = [name for name in self.lacks if name not in arguments]
        if lacking:
            raise BadInput(
                f"{self.kind} policy {self.name!r} has to be told {lacking[0]!r}",
                hint=_HINTS.get(lacking[0], f"write it {self.name}:{lacking[0]}=VALUE"),
            )
        try:
            policy = maker(**arguments)
        except PatchlightError:
            raise
        except Exception as error:
            raise BadInput(
                f"{self.kind} policy {self.text!r} could not be made: {type(error).__name__}: "
                f"{error}"
            ) from error
        check_methods(policy, self.text)
        return cast(Policy, policy)


def with_written(recipe: PolicyRecipe, written: Sequence[str]) -> PolicyRecipe:
    """The recipe with parameters as they are written: ``KEY=VALUE``, or ``VALUE`` for the next.

    ``BadInput`` for one that it does not have, or that is there twice, or of another type.
    """
    known = {p.name: p for p in recipe.parameters if p.kind not in _ANY_NUMBER}
    if not known:
        raise BadInput(f"{recipe.kind} policy {recipe.name!r} has no parameters")
    given: dict[str, Any] = {}
    order = iter(known)
    for text in written:
        key, sign, value = text.partition("=")
        if not sign:
            key, value = next((name for name in order if name not in given), ""), text
        called = f"{recipe.kind} policy {recipe.name!r}"
        if key in given:
            raise BadInput(f"{called}: {key} is there twice")
        if key not in known:
            raise BadInput(
                f"{called}: {(key or value)!r} is none of its parameters: "
                f"{nearest(key, known, 'these are')}"
            )
        given[key] = _value(recipe, known[key], value)
    return replace(recipe, given=given)


def _value(recipe: PolicyRecipe, parameter: inspect.Parameter, text: str) -> Any:
    """The text as what the parameter's annotation, else its default, says that it is."""
    asked = parameter.annotation
    if asked is parameter.empty and parameter.default not in (parameter.empty, None):
        asked = type(parameter.default)
    asked = next((each for each in get_args(asked) if each is not type(None)), asked)
    name = getattr(asked, "__name__", asked)
    readers = [name] if name in _READERS else list(_READERS)
    for reader in readers:
        try:
            return _READERS[reader](text)
        except ValueError:
            continue
    raise BadInput(
        f"{recipe.kind} policy {recipe.name!r}: {parameter.name} is {text!r}: expected "
        f"{_WORDS[readers[0]]}"
    )


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


# In the order in which they are tried where nothing says which.
_READERS: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "bool": _truth, "str": str}
_WORDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a text"}
