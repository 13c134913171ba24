"""Finds policies: built in, installed (entry points), in a user's Python file, or learned.

A policy is written ``[KIND:]NAME[:PARAMETER…]``, with NAME one of ``policies()``,
``FILE.py[:CLASS]`` or ``FILE.onnx``, and each parameter ``KEY=VALUE`` or, for the next one in
the constructor's order, plain ``VALUE``: ``fifo``, ``placement:random:seed=3``, ``constant:8``,
``mine.py:Mine:alpha=0.5``.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from patchlight.controller.policies.contract import KINDS, Policy, PolicyKind, kind_of
from patchlight.controller.policies.files import load_object
from patchlight.controller.policies.recipe import Recipe, with_written
from patchlight.testbed.errors import BadInput
from patchlight.testbed.io.issues import nearest

GROUP = "patchlight.policies"
"""Entry points of this group are policies; each is called ``KIND.NAME``."""

BUILT_IN: Mapping[PolicyKind, Mapping[str, str]] = {
    "partition": {
        "constant": "partition:Constant",
        "maximum": "partition:Maximum",
        "sip-ml": "partition:Maximum",
        "minimum": "partition:Minimum",
        "sufficient": "partition:Sufficient",
        "least-delay": "options.least_delay:LeastDelayPartition",
        "random": "partition:RandomDegree",
    },
    "placement": {
        "first-fit": "placement:FirstFit",
        "best-fit": "placement:BestFit",
        "consolidated": "placement:Consolidated",
        "rack-aware": "placement:RackAware",
        "fragmentation-aware": "placement:FragmentationAware",
        "regroup": "placement:RegroupPlacement",
        "cheapest": "cheapest:CheapestPlacement",
        "least-delay": "options.least_delay:LeastDelayPlacement",
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
        "least-delay": "options.least_delay:LeastDelayTopology",
        "ring": "engineered:Ring",
        "matching": "engineered:Matching",
        "totient": "engineered:Totient",
    },
    "elasticity": {
        "rigid": "elasticity:Rigid",
        "give-and-take": "elasticity:GiveAndTake",
        "least-delay": "options.least_delay:LeastDelayElasticity",
    },
}
DEFAULTS: Mapping[PolicyKind, str] = {
    "partition": "sufficient",
    "placement": "consolidated",
    "order": "fifo",
    "topology": "keep",
    "elasticity": "rigid",
}

_GONE = {
    **dict.fromkeys(("learned-first-fit", "learned-first-fit-anew"), "learned-first-fit-any"),
    **dict.fromkeys(("learned-block", "learned-block-far"), "learned-block-choice"),
    "learned-lab": "least-delay",
}
"""Models of earlier versions, each with the policy to use instead."""
_FILE = re.compile(r"(?P<path>.+?\.(?P<suffix>py|onnx))(?::(?P<rest>.*))?", re.DOTALL)
_PICKLED = (".pkl", ".pickle", ".pt", ".pth", ".joblib", ".zip", ".ckpt")


def find(text: str, kind: PolicyKind | None = None) -> Recipe:
    """The policy written ``text``; ``kind`` where only one makes sense.

    ``BadInput`` if there is none, if several kinds have one of this name, if it is of another
    kind, or if a parameter is none of its own.
    """
    head, _, rest = text.partition(":")
    asked = next((k for k in KINDS if k == head), None)
    if asked is not None:
        if kind not in (None, asked):
            raise BadInput(f"{text!r} is no {kind} policy: it says it is one of {asked}")
        kind, text = asked, rest
    if match := _FILE.fullmatch(text):
        recipe, parameters = _from_file(Path(match["path"]), match["suffix"], match["rest"], kind)
    else:
        name, *parameters = text.split(":")
        recipe = _named(name, kind)
    if kind is not None and recipe.kind != kind:
        raise BadInput(f"{text!r} is no {kind} policy: it is one of {recipe.kind}")
    return with_written(recipe, parameters) if parameters else recipe


def check_policy(text: str, kind: PolicyKind) -> None:
    """``BadInput`` if there is no such policy; a file is only looked for, and not run."""
    head, _, rest = text.partition(":")
    if match := _FILE.fullmatch(rest if head == kind else text):
        if not Path(match["path"]).is_file():
            raise BadInput(f"no policy file {match['path']}: there is no such file")
    else:
        find(text, kind)


def load_policy(text: str, kind: PolicyKind, **offered: Any) -> Policy:
    """``find`` and ``make`` in one."""
    return find(text, kind).make(**offered)


def is_built_in(text: str, kind: PolicyKind) -> bool:
    """Whether ``text`` names one of ours; no file of a user is run to find that out."""
    head, _, rest = text.partition(":")
    named = rest if head == kind else text
    return _FILE.fullmatch(named) is None and named.partition(":")[0] in BUILT_IN[kind]


def policies(kind: PolicyKind | None = None) -> list[Recipe]:
    """All that have a name, by kind: built in, learned and shipped, installed."""
    found: dict[tuple[PolicyKind, str], Recipe] = {}
    for each in (*_built_in(), *_shipped(), *_installed()):
        if kind in (None, each.kind):
            found.setdefault((each.kind, each.name), each)
    return sorted(found.values(), key=lambda each: KINDS.index(each.kind))


def _named(name: str, kind: PolicyKind | None) -> Recipe:
    if kind is not None and name in BUILT_IN[kind]:
        return _ours(kind, name)  # what is shipped and installed is looked for in files
    known = policies(kind)
    found = [each for each in known if each.name == name]
    if len(found) == 1 or (found and found[0].path and len({each.path for each in found}) == 1):
        return found[0]  # of a model that decides several things, the first, as of its file
    if found:
        listed = " or ".join(f"{each.kind}:{name}" for each in found)
        raise BadInput(f"several kinds of policy are called {name!r}: write {listed}")
    if name in _GONE:
        raise BadInput(f"policy {name!r} was removed", hint=f"use {_GONE[name]!r} instead")
    if Path(name).suffix in _PICKLED:
        raise BadInput(
            f"{name} is no policy file: expected FILE.py:CLASS or FILE.onnx",
            hint="pickled models are never loaded; export them with 'patchlight policy export'",
        )
    what = f"{kind} policies are" if kind else "policies are"
    raise BadInput(f"no policy {name!r}: {nearest(name, [e.name for e in known], what)}")


def _built_in() -> Iterator[Recipe]:
    for kind, names in BUILT_IN.items():
        yield from (_ours(kind, name) for name in names)


def _ours(kind: PolicyKind, name: str) -> Recipe:
    return Recipe(kind, name, "built in", partial(_attribute, BUILT_IN[kind][name]))


def _attribute(place: str) -> Any:
    module, _, attribute = place.partition(":")
    return getattr(import_module(f"patchlight.controller.policies.{module}"), attribute)


def _shipped() -> Iterator[Recipe]:
    try:
        from patchlight.controller.policies.model_files import shipped_models
    except ModuleNotFoundError:
        # Plain policies are there without ONNX Runtime too.
        return
    for name, path in shipped_models().items():
        for recipe in _learned(path):
            yield replace(recipe, name=name, origin="learned, shipped")


def _learned(path: Path) -> list[Recipe]:
    """A recipe for each kind of the model in a file."""
    from patchlight.controller.policies.model_files import kinds_of

    origin = f"learned, {path}"
    return [
        Recipe(kind, str(path), origin, partial(_load, path, kind), path=path)
        for kind in kinds_of(path)
    ]


def _load(path: Path, kind: PolicyKind) -> Any:
    try:
        changed = path.stat().st_mtime_ns
    except OSError as error:
        raise BadInput(f"cannot read policy file {path}: {error.strerror or error}") from error
    return _load_once(path.resolve(), changed, kind)


@lru_cache(maxsize=16)
def _load_once(path: Path, changed: int, kind: PolicyKind) -> Any:
    from patchlight.controller.policies.learned import load_learned
    from patchlight.controller.policies.model_files import CardError, weighs_options
    from patchlight.controller.policies.options.learned import load_options

    try:
        is_for_options = weighs_options(path)
    except CardError:
        is_for_options = False  # The other one says what is wrong.
    return load_options(path, kind) if is_for_options else load_learned(path)


def _installed() -> Iterator[Recipe]:
    for point in entry_points(group=GROUP):
        kind = next((k for k in KINDS if point.name.startswith(f"{k}.")), None)
        if kind is not None:
            name = point.name.removeprefix(f"{kind}.")
            yield Recipe(kind, name, f"installed, {point.value}", partial(_import, point))


def _import(point: EntryPoint) -> Any:
    try:
        return point.load()
    except Exception as error:
        raise BadInput(
            f"policy {point.name!r} is installed as {point.value} but cannot be imported: "
            f"{type(error).__name__}: {error}"
        ) from error


def _from_file(
    path: Path, suffix: str, rest: str | None, asked: PolicyKind | None
) -> tuple[Recipe, list[str]]:
    parts = rest.split(":") if rest else []
    if suffix == "onnx":
        if not path.is_file():
            raise BadInput(f"no policy file {path}: there is no such file")
        of_kinds = {recipe.kind: recipe for recipe in _learned(path)}
        first = next(iter(of_kinds.values()))
        return of_kinds.get(asked, first) if asked else first, parts
    name = parts.pop(0) if parts and parts[0].isidentifier() else None
    found = load_object(path, name)
    kind = kind_of(found)
    assert kind is not None
    called = name or getattr(found, "__name__", "")
    written = f"{path}:{called}" if called else str(path)
    return Recipe(kind, written, f"file {path}", lambda: found, path=path), parts
