"""Policies in a user's own Python file: nothing has to be installed.

The file is executed, as any program that its user runs. Files that other programs pickled are
never loaded: a learned policy is an ONNX file with its card.
"""

import hashlib
import importlib.util
import inspect
import sys
import traceback
from functools import lru_cache
from pathlib import Path
from types import ModuleType

from patchlight.controller.policies.contract import METHODS, kind_of
from patchlight.testbed.errors import BadInput
from patchlight.testbed.io.issues import nearest


def load_object(path: Path, name: str | None) -> object:
    """The class or object called ``name`` in a Python file; without a name the only policy there.

    ``BadInput`` with the place in the file if it cannot be run, or has no such policy.
    """
    module = run_file(path)
    here = {
        found: value
        for found, value in vars(module).items()
        if not found.startswith("_")
        # NumPy, say, has a function called ``place``.
        and not inspect.ismodule(value)
        and kind_of(value) is not None
        and getattr(value, "__module__", module.__name__) == module.__name__
    }
    if name is None:
        if len(here) != 1:
            asked = f"{path}:NAME with NAME one of {', '.join(here)}" if here else _wanted()
            raise BadInput(f"{path} has {len(here) or 'no'} policies: expected {asked}")
        (name,) = here
    if not hasattr(module, name):
        hint = nearest(name, here, "its policies are") if here else f"expected {_wanted()}"
        raise BadInput(f"{path} has no {name!r}: {hint}")
    found: object = getattr(module, name)
    check_methods(found, f"{path}:{name}")
    return found


def check_methods(policy: object, called: str) -> None:
    """``BadInput`` unless a class or object has one policy's method, with its arguments."""
    kind = kind_of(policy)
    if kind is None:
        has = [m for m in METHODS.values() if callable(getattr(policy, m, None))]
        what = f"has {' and '.join(has)}, more than one" if has else "is no policy: it has none"
        raise BadInput(f"{called} {what} of a policy's methods: expected {_wanted()}")
    method = getattr(policy, METHODS[kind])
    asked = _ARGUMENTS[METHODS[kind]]
    given = ("self", *asked) if inspect.isclass(policy) else asked
    try:
        inspect.signature(method).bind(*given)
    except TypeError as error:
        raise BadInput(
            f"{called}: its method {METHODS[kind]} cannot be called with ({', '.join(asked)}): "
            f"{error}"
        ) from error
    except ValueError:  # Written in C, without a signature: the first decision will tell.
        pass


_ARGUMENTS = {
    "degree": ("cluster", "job", "legal"),
    "place": ("cluster", "job", "workers"),
    "priority": ("cluster", "job", "progress"),
    "circuits": ("cluster", "groups"),
    "resize": ("cluster", "jobs", "queue"),
}


def _wanted() -> str:
    listed = ", ".join(f"{method} ({kind})" for kind, method in METHODS.items())
    return f"a class or object with one of the methods {listed}"


def run_file(path: Path, what: str = "policy file") -> ModuleType:
    """A user's Python file as a module; ``BadInput`` with the place in it if it cannot be run."""
    try:
        changed = path.stat().st_mtime_ns
    except OSError as error:
        why = error.strerror or str(error)
        raise BadInput(f"cannot read the {what} {path}: {why}") from error
    return _run_once(path, path.resolve(), changed)


@lru_cache(maxsize=64)
def _run_once(path: Path, resolved: Path, changed: int) -> ModuleType:
    """Once for each state of the file, however many policies are made of it."""
    # Named for its whole path, so that two files of one name stay apart.
    digest = hashlib.sha256(str(resolved).encode()).hexdigest()[:12]
    name = f"patchlight_policy_{resolved.stem}_{digest}"
    spec = importlib.util.spec_from_file_location(name, resolved)
    if spec is None or spec.loader is None:
        raise BadInput(f"{path} cannot be read as Python")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up while they are made.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        sys.modules.pop(name, None)
        # The error's own file and line: it may be in a module that the file imports.
        raise BadInput(f"{error.filename}:{error.lineno}: {error.msg}") from error
    except (Exception, SystemExit) as error:
        sys.modules.pop(name, None)
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(resolved)]
        place = f"{path}:{lines[-1]}" if lines else str(path)
        said = str(error) or "no message"
        raise BadInput(f"{place}: {type(error).__name__} while it was run: {said}") from error
    return module
