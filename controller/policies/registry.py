"""Finds policies: built-in, installed (entry points), in a user's Python file, or learned.

A policy is written ``[KIND:]NAME[:PARAMETER…]``, with NAME one of ``policies()``,
``FILE.py[:CLASS]`` or ``FILE.onnx``, and each parameter ``KEY=VALUE`` or, for the next one in
the constructor's order, plain ``VALUE``: ``fifo``, ``placement:random:seed=3``, ``constant:8``,
``mine.py:Mine:alpha=0.5``.
"""

import copy
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, cast, get_args

from patchlight.controller.policies import files
from patchlight.controller.policies.contract import (
    KINDS,
    Policy,
    PolicyKind,
    kind_of,
)
from patchlight.testbed.errors import BadInput, PatchlightError, nearest

GROUP = "patchlight.policies"
"""Entry points of this group are policies, named ``KIND.NAME``."""

BUILT_IN: Mapping[PolicyKind, Mapping[str, str]] = {
    "partition": {
        "constant": "degrees:Constant",
        "best-constant": "degrees:BestConstant",
        "maximum": "degrees:Maximum",
        "sip-ml": "degrees:Maximum",
        "minimum": "degrees:Minimum",
        "sufficient": "degrees:Sufficient",
        "least-delay": "options.policies:LeastDelayPartition",
        "random": "degrees:RandomDegree",
    },
    "placement": {
        "first-fit": "placement:FirstFit",
        "best-fit": "placement:BestFit",
        "consolidated": "placement:Consolidated",
        "rack-aware": "placement:RackAware",
        "fragmentation-aware": "placement:FragmentationAware",
        "regroup": "placement:RegroupPlacement",
        "cheapest": "cheapest:CheapestPlacement",
        "least-delay": "options.policies:LeastDelayPlacement",
        "random": "placement:RandomPlacement",
    },
    "order": {
        "fifo": "order:Fifo",
        "srpt": "order:Srpt",
        "las": "order:LeastAttainedService",
        "deadline": "order:Deadline",
        "fair-share": "order:FairShare",
        "least-delay": "order:LeastDelay",
    },
    "topology": {
        "keep": "topology:Keep",
        "regroup": "topology:Regroup",
        "cheapest": "cheapest:CheapestTopology",
        "least-delay": "options.policies:LeastDelayTopology",
        "ring": "engineered:Ring",
        "matching": "engineered:Matching",
        "totient": "engineered:Totient",
    },
    "elasticity": {
        "rigid": "degrees:Rigid",
        "give-and-take": "degrees:GiveAndTake",
        "least-delay": "options.policies:LeastDelayElasticity",
    },
}
DEFAULTS: Mapping[PolicyKind, str] = {
    "partition": "sufficient",
    "placement": "consolidated",
    "order": "fifo",
    "topology": "keep",
    "elasticity": "rigid",
}

_REMOVED = {
    **dict.fromkeys(
        ("learned-first-fit", "learned-first-fit-anew"),
        "learned-first-fit-any",
    ),
    **dict.fromkeys(
        ("learned-block", "learned-block-far"), "learned-block-choice"
    ),
    "learned-lab": "least-delay",
}
"""Removed models, each with its replacement."""
_FILE = re.compile(
    r"(?P<path>.+?\.(?P<suffix>py|onnx))(?::(?P<rest>.*))?", re.DOTALL
)
_PICKLED = (".pkl", ".pickle", ".pt", ".pth", ".joblib", ".zip", ".ckpt")
# ``*args`` and ``**kwargs``, which are optional.
_ANY_NUMBER = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_HINTS = {
    "scenario": "it plans with the simulator: use it in 'patchlight experiment pac-ml'"
}


@dataclass(frozen=True)
class PolicyRecipe:
    """A policy that was found, with its parameters; ``make`` creates one."""

    kind: PolicyKind
    name: str
    origin: str
    load: Callable[[], Any]
    given: Mapping[str, Any] = field(default_factory=dict)
    path: Path | None = None

    @cached_property
    def factory(self) -> Any:
        """Its class, or a ready policy object; loaded on first use."""
        found = self.load()
        if kind_of(found) != self.kind:
            files.check_methods(found, self.name)
            raise BadInput(
                f"{self.name!r} is of kind {kind_of(found)}, expected {self.kind}"
            )
        return found

    @property
    def text(self) -> str:
        """Its text if the kind is known."""
        return ":".join(
            [
                self.name,
                *(f"{key}={value}" for key, value in self.given.items()),
            ]
        )

    @property
    def documentation(self) -> str:
        """Its author's description."""
        card = getattr(self.factory, "card", None)
        return (
            str(card.notes)
            if card is not None
            else inspect.getdoc(self.factory) or ""
        )

    @property
    def about(self) -> str:
        """The first line of the description."""
        return self.documentation.partition("\n")[0]

    @property
    def parameters(self) -> tuple[inspect.Parameter, ...]:
        """Its parameters."""
        maker = self._maker
        return (
            ()
            if maker is None
            else tuple(inspect.signature(maker).parameters.values())
        )

    @property
    def _maker(self) -> Any:
        found = self.factory
        return (
            found
            if inspect.isclass(found)
            else getattr(found, "with_parameters", None)
        )

    @property
    def parameters_in_words(self) -> list[str]:
        """Each as ``seed: int = 0``."""
        return [
            str(parameter).replace("'", "") for parameter in self.parameters
        ]

    @property
    def lacks(self) -> tuple[str, ...]:
        """Required parameters that were not given."""
        return tuple(
            p.name
            for p in self.parameters
            if p.default is p.empty
            and p.name not in self.given
            and p.kind not in _ANY_NUMBER
        )

    def make(self, **offered: Any) -> Policy:
        """A new policy. It gets those of ``offered`` that its constructor accepts and the user did
        not set.

        ``BadInput`` if a parameter is missing or wrong.
        """
        maker = self._maker
        if maker is None:
            if hasattr(self.factory, "card"):
                return cast(Policy, self.factory)
            try:
                # What it learns in one run must not affect others.
                return cast(Policy, copy.deepcopy(self.factory))
            except Exception:
                # It contains something that cannot be copied, like a lock or an open file.
                return cast(Policy, self.factory)
        named = {p.name for p in self.parameters}
        arguments = {
            **{k: v for k, v in offered.items() if k in named},
            **self.given,
        }
        lacking = [name for name in self.lacks if name not in arguments]
        if lacking:
            raise BadInput(
                f"{self.kind} policy {self.name!r} needs the parameter {lacking[0]!r}",
                hint=_HINTS.get(
                    lacking[0], f"write {self.name}:{lacking[0]}=VALUE"
                ),
            )
        try:
            policy = maker(**arguments)
        except PatchlightError:
            raise
        except Exception as error:
            raise BadInput(
                f"{self.kind} policy {self.text!r} could not be created: {type(error).__name__}: "
                f"{error}"
            ) from error
        files.check_methods(policy, self.text)
        return cast(Policy, policy)


def with_written(recipe: PolicyRecipe, written: Sequence[str]) -> PolicyRecipe:
    """The recipe with parameters from text: ``KEY=VALUE``, or ``VALUE`` for the next.

    ``BadInput`` for an unknown or repeated one, or a wrong type.
    """
    known = {p.name: p for p in recipe.parameters if p.kind not in _ANY_NUMBER}
    if not known:
        raise BadInput(
            f"{recipe.kind} policy {recipe.name!r} has no parameters"
        )
    given: dict[str, Any] = {}
    order = iter(known)
    for text in written:
        key, sign, value = text.partition("=")
        if not sign:
            key = next((name for name in order if name not in given), "")
            value = text
        called = f"{recipe.kind} policy {recipe.name!r}"
        if key in given:
            raise BadInput(f"{called}: {key} appears twice")
        if key not in known:
            raise BadInput(
                f"{called}: unknown parameter {(key or value)!r}: "
                f"{nearest(key, known, 'these are')}"
            )
        given[key] = _value(recipe, known[key], value)
    return replace(recipe, given=given)


def _value(
    recipe: PolicyRecipe,
    parameter: inspect.Parameter,
    text: str,
) -> Any:
    """The text converted to the type of the parameter's annotation or default."""
    asked = parameter.annotation
    if asked is parameter.empty and parameter.default not in (
        parameter.empty,
        None,
    ):
        asked = type(parameter.default)
    asked = next(
        (each for each in get_args(asked) if each is not type(None)), asked
    )
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


# The order of attempts if no type is given.
_READERS: dict[str, Callable[[str], Any]] = {
    "int": int,
    "float": float,
    "bool": lambda text: bool(("false", "true").index(text.lower())),
    "str": str,
}
_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a text",
}


def find(text: str, kind: PolicyKind | None = None) -> PolicyRecipe:
    """The policy in ``text``; ``kind`` if only one is possible.

    ``BadInput`` if it is unknown, ambiguous, of another kind, or has an unknown parameter.
    """
    head, _, rest = text.partition(":")
    asked = next((k for k in KINDS if k == head), None)
    if asked is not None:
        if kind not in (None, asked):
            raise BadInput(f"{text!r} is of kind {asked}, expected {kind}")
        kind = asked
        text = rest
    if match := _FILE.fullmatch(text):
        recipe, parameters = _from_file(
            Path(match["path"]),
            match["suffix"],
            match["rest"],
            kind,
        )
    else:
        name, *parameters = text.split(":")
        recipe = _named(name, kind)
    if kind is not None and recipe.kind != kind:
        raise BadInput(f"{text!r} is of kind {recipe.kind}, expected {kind}")
    return with_written(recipe, parameters) if parameters else recipe


def check_policy(text: str, kind: PolicyKind) -> None:
    """``BadInput`` if there is no such policy; files are not run."""
    if match := _FILE.fullmatch(text.removeprefix(f"{kind}:")):
        if not Path(match["path"]).is_file():
            raise BadInput(f"policy file {match['path']} not found")
    else:
        find(text, kind)


def load_policy(
    text: str,
    kind: PolicyKind,
    **offered: Any,
) -> Policy:
    """``find`` and ``make`` in one."""
    return find(text, kind).make(**offered)


def is_built_in(text: str, kind: PolicyKind) -> bool:
    """Whether ``text`` names a built-in policy; no file is run."""
    named = text.removeprefix(f"{kind}:")
    return (
        _FILE.fullmatch(named) is None
        and named.partition(":")[0] in BUILT_IN[kind]
    )


def policies(kind: PolicyKind | None = None) -> list[PolicyRecipe]:
    """All policies with a name, by kind: built-in, learned and shipped, installed."""
    found: dict[tuple[PolicyKind, str], PolicyRecipe] = {}
    built_in = (
        _ours(of_kind, name)
        for of_kind, names in BUILT_IN.items()
        for name in names
    )
    shipped = (
        replace(
            recipe,
            name=name,
            origin="learned, built in",
        )
        for name, path in files.shipped_models().items()
        for recipe in _learned(path)
    )
    for each in (*built_in, *shipped, *_installed()):
        if kind in (None, each.kind):
            found.setdefault((each.kind, each.name), each)
    return sorted(found.values(), key=lambda each: KINDS.index(each.kind))


def _named(name: str, kind: PolicyKind | None) -> PolicyRecipe:
    if kind is not None and name in BUILT_IN[kind]:
        return _ours(kind, name)  # shipped and installed ones are files
    known = policies(kind)
    found = [each for each in known if each.name == name]
    if len(found) == 1 or (
        found and found[0].path and len({each.path for each in found}) == 1
    ):
        # Of a model that decides several kinds, the first, as for its file.
        return found[0]
    if found:
        listed = " or ".join(f"{each.kind}:{name}" for each in found)
        raise BadInput(
            f"several kinds of policy have the name {name!r}: write {listed}"
        )
    if name in _REMOVED:
        raise BadInput(
            f"policy {name!r} was removed",
            hint=f"use {_REMOVED[name]!r} instead",
        )
    if Path(name).suffix in _PICKLED:
        raise BadInput(
            f"{name} is not a policy file: expected FILE.py:CLASS or FILE.onnx",
            hint="pickled models are not supported; 'patchlight policy train' writes ONNX files",
        )
    what = f"{kind} policies are" if kind else "policies are"
    raise BadInput(
        f"unknown policy {name!r}: {nearest(name, [e.name for e in known], what)}"
    )


def _ours(kind: PolicyKind, name: str) -> PolicyRecipe:
    module, _, attribute = BUILT_IN[kind][name].partition(":")
    place = f"patchlight.controller.policies.{module}"
    return PolicyRecipe(
        kind,
        name,
        "built in",
        lambda: getattr(import_module(place), attribute),
    )


def _learned(path: Path) -> list[PolicyRecipe]:
    return [
        PolicyRecipe(
            kind,
            str(path),
            f"learned, {path}",
            partial(_load, path, kind),
            path=path,
        )
        for kind in files.kinds_of(path)
    ]


def _load(path: Path, kind: PolicyKind) -> Any:
    try:
        changed = path.stat().st_mtime_ns
    except OSError as error:
        raise BadInput(
            f"cannot read policy file {path}: {error.strerror or error}"
        ) from error
    return _load_once(path.resolve(), changed, kind)


@lru_cache(maxsize=16)
def _load_once(
    path: Path,
    changed: int,
    kind: PolicyKind,
) -> Any:
    from patchlight.controller.policies.learned import load_learned
    from patchlight.controller.policies.options.policies import load_options

    try:
        is_for_options = files.weighs_options(path)
    except files.CardError:
        is_for_options = False  # Loading reports what is wrong.
    return load_options(path, kind) if is_for_options else load_learned(path)


def _installed() -> Iterator[PolicyRecipe]:
    for point in entry_points(group=GROUP):
        kind = next((k for k in KINDS if point.name.startswith(f"{k}.")), None)
        if kind is not None:
            name = point.name.removeprefix(f"{kind}.")
            yield PolicyRecipe(
                kind,
                name,
                f"installed, {point.value}",
                partial(_import, point),
            )


def _import(point: EntryPoint) -> Any:
    try:
        return point.load()
    except Exception as error:
        raise BadInput(
            f"policy {point.name!r} is installed as {point.value} but cannot be imported: "
            f"{type(error).__name__}: {error}"
        ) from error


def _from_file(
    path: Path,
    suffix: str,
    rest: str | None,
    asked: PolicyKind | None,
) -> tuple[PolicyRecipe, list[str]]:
    parts = rest.split(":") if rest else []
    if suffix == "onnx":
        if not path.is_file():
            raise BadInput(f"policy file {path} not found")
        of_kinds = {recipe.kind: recipe for recipe in _learned(path)}
        first = next(iter(of_kinds.values()))
        return of_kinds.get(asked, first) if asked else first, parts
    name = parts.pop(0) if parts and parts[0].isidentifier() else None
    found = files.load_object(path, name)
    kind = kind_of(found)
    assert kind is not None
    called = name or getattr(found, "__name__", "")
    written = f"{path}:{called}" if called else str(path)
    return PolicyRecipe(
        kind,
        written,
        f"file {path}",
        lambda: found,
        path=path,
    ), parts
