"""Loads a model of the user's to measure: ``file.py:function``, or a built-in one by name.

The function gives a module and example inputs, a tensor or several; it may take ``batch``. This
module needs PyTorch.
"""

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from patchlight.testbed.errors import BadInput
from patchlight.testbed.graphs.builtin import BUILTIN_NAMES, build
from patchlight.testbed.graphs.profiling.torch_models import TorchLayers
from patchlight.testbed.io.issues import nearest

_EXPECTED = (
    "the function returns (model, inputs): a torch.nn.Module and a tensor or a tuple of tensors; "
    "with --batch it takes a parameter named batch"
)


class Loaded(NamedTuple):
    """A model to measure, a mini-batch for it, and how many samples that is."""

    name: str
    model: nn.Module
    inputs: tuple[torch.Tensor, ...]
    batch: int


def load_model(name: str, batch: int | None, device: str = "cpu") -> Loaded:
    """A built-in model, made on the device, or what the function in ``file.py:function`` gives.

    ``BadInput`` for an unknown name, and for a file or function that fails or gives other things.
    """
    if name in BUILTIN_NAMES:
        with torch.device(device):
            net = build(name, TorchLayers, batch)
            return Loaded(name, net.module(), net.example_inputs(), net.batch)
    file, colon, function = name.rpartition(":")
    if not colon:
        raise BadInput(
            f"no model {name!r} to measure: {nearest(name, BUILTIN_NAMES)}",
            hint="or give FILE.py:FUNCTION",
        )
    return _from_function(Path(file), function, batch)


def _from_function(file: Path, function: str, batch: int | None) -> Loaded:
    what = f"{file}:{function}"
    make = _function(file, function)
    takes = inspect.signature(make).parameters
    if batch is not None and "batch" not in takes:
        raise BadInput(f"{what} takes no batch: it cannot be told to take {batch}", hint=_EXPECTED)
    given = _guarded(lambda: make() if batch is None else make(batch=batch), f"calling {what}")
    model, inputs = given if isinstance(given, tuple) and len(given) == 2 else (None, None)
    inputs = (inputs,) if isinstance(inputs, torch.Tensor) else inputs
    if not isinstance(model, nn.Module) or not (
        isinstance(inputs, tuple | list)
        and inputs
        and all(isinstance(tensor, torch.Tensor) for tensor in inputs)
    ):
        raise BadInput(
            f"{what} gave {type(given).__name__}, not a model and inputs", hint=_EXPECTED
        )
    samples = inputs[0].shape[0] if inputs[0].dim() else 1
    if batch is not None and samples != batch:
        raise BadInput(
            f"{what} was told to take a batch of {batch}; its first input holds {samples}",
            hint=_EXPECTED,
        )
    return Loaded(f"{file.stem}:{function}", model, tuple(inputs), samples)


def _function(file: Path, name: str) -> Callable[..., Any]:
    if not file.is_file():
        raise BadInput(f"loading the model from {file}: there is no such file")
    spec = importlib.util.spec_from_file_location(f"patchlight_model_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise BadInput(f"loading the model from {file}: expected a Python file, NAME.py")
    module = importlib.util.module_from_spec(spec)
    # Where the file's own imports and pickles of its classes look.
    sys.modules[spec.name] = module
    _guarded(lambda: spec.loader.exec_module(module), f"loading the model from {file}")  # type: ignore[union-attr]
    make = getattr(module, name, None)
    if not callable(make):
        functions = [n for n, value in vars(module).items() if inspect.isfunction(value)]
        raise BadInput(
            f"{file} has no function {name!r}: {nearest(name, functions)}", hint=_EXPECTED
        )
    return make  # type: ignore[no-any-return]


def _guarded(call: Callable[[], Any], doing: str) -> Any:
    """The user's own code may fail in any way: say where it did."""
    try:
        return call()
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
        line = f":{error.lineno}" if isinstance(error, SyntaxError) else ""
        raise BadInput(f"{doing}{line}: {type(error).__name__}: {error}{where}") from error
