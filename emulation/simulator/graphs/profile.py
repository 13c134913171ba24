"""Measures a PyTorch model, operation by operation, and gives its computation graph.

Each operation runs by itself: some runs to warm up, then the median of some more, forward and
backward. What feeds what is traced with ``torch.fx``. This module needs PyTorch.
"""

import operator
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import fx, nn

from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.graphs.model import ComputationGraph, Operation

Clock = Callable[[Callable[[], Any]], tuple[Any, float]]
"""Calls a function; gives its result and the milliseconds it took on the device."""


def clock_of(device: torch.device) -> Clock:
    """The clock of a device: CUDA's events on a GPU, else the processor's."""
    return _on_gpu if device.type == "cuda" else _on_cpu


def _on_cpu(call: Callable[[], Any]) -> tuple[Any, float]:
    begun = time.perf_counter()
    result = call()
    return result, 1e3 * (time.perf_counter() - begun)


def _on_gpu(call: Callable[[], Any]) -> tuple[Any, float]:
    begun = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    ended = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    # What was put in the queue before must not be counted.
    torch.cuda.synchronize()
    begun.record()
    result = call()
    ended.record()
    ended.synchronize()
    return result, float(begun.elapsed_time(ended))


def device_name(device: torch.device) -> str:
    """The name of the device."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    threads = torch.get_num_threads()
    models = []
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        models = [
            line.partition(":")[2]
            for line in file
            if line.startswith("model name")
        ]
    processor = models[0].strip() if models else "CPU"
    return f"{processor}, {threads} thread{'' if threads == 1 else 's'}"


def tensors_in(value: Any) -> list[torch.Tensor]:
    """All tensors in a value: itself, or those in its tuples, lists and dictionaries."""
    tensors: list[torch.Tensor] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        tensors.append(tensor)
        return tensor

    mapped(value, note)
    return tensors


def mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The value with each tensor in it changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: mapped(item, change) for key, item in value.items()}
    if isinstance(value, tuple | list):
        parts = [mapped(item, change) for item in value]
        # A tuple with named fields is made from its fields.
        return (
            type(value)(*parts)
            if hasattr(value, "_fields")
            else type(value)(parts)
        )
    return value


Progress = Callable[[int, int, str], None]
"""Told before each step: how many are done, of how many, and the next one's name."""


def profile(
    model: nn.Module,
    inputs: tuple[torch.Tensor, ...],
    name: str,
    *,
    device: str = "cpu",
    repeats: int = 10,
    warm_ups: int = 3,
    batch: int | None = None,
    progress: Progress | None = None,
) -> ComputationGraph:
    """The measured graph of a model in training, in milliseconds of this device.

    The model and its inputs (a mini-batch) are moved to ``device``. Outputs and weights count in
    bytes as PyTorch holds them; weights that several operations share count for the first.
    ``BadInput`` if the model cannot be traced; ``PatchlightError`` if an operation fails.
    """
    on = torch.device(device)
    traced = model.to(on).train()
    if not isinstance(traced, fx.GraphModule):
        try:
            traced = fx.symbolic_trace(traced)
        except Exception as error:
            raise BadInput(
                f"tracing the model {name!r} with torch.fx: {type(error).__name__}: {error}",
                hint="the control flow of the forward pass must not depend on input values; move "
                "those parts into a torch.nn module, or profile parts",
            ) from error
    profiler = _Profiler(
        traced,
        on,
        (warm_ups, repeats),
        progress or (lambda *_: None),
    )
    profiler.run([tensor.to(on) for tensor in inputs])
    return ComputationGraph(
        name,
        tuple(profiler.operations),
        tuple(profiler.edges),
        profiler.loss,
        "profiled",
        device_name(on),
        batch,
        f"measured with PyTorch {torch.__version__}, each operation alone: median of "
        f"{repeats} runs after {warm_ups} to warm up",
    )


@dataclass(slots=True)
class _Value:
    """A step's result, its source operations, and whether training needs its gradient."""

    value: Any
    sources: tuple[int, ...] = ()
    learnt: bool = False


_Measured = tuple[float, float, Any]
"""Milliseconds forward and backward, and what came out."""


class _Profiler:
    """Goes through a traced model step by step, and measures each step that is an operation."""

    def __init__(
        self,
        traced: fx.GraphModule,
        device: torch.device,
        runs: tuple[int, int],
        progress: Progress,
    ) -> None:
        self.traced = traced
        self.progress = progress
        self.warm_ups, self.repeats = runs
        self.clock = clock_of(device)
        self.operations: list[Operation] = []
        self.edges: list[tuple[int, int]] = []
        self.loss = -1
        self._values: dict[fx.Node, _Value] = {}
        self._names: set[str] = set()
        self._owned: set[int] = set()

    def run(self, inputs: list[torch.Tensor]) -> None:
        """The whole model, once."""
        nodes = list(self.traced.graph.nodes)
        last_use = {
            used: node for node in nodes for used in node.all_input_nodes
        }
        waiting = iter(inputs)
        for done, node in enumerate(nodes):
            self.progress(done, len(nodes), node.name)
            if node.op == "placeholder":
                if (given := next(waiting, None)) is not None:
                    whole = 0.0, 0.0, given
                    self._values[node] = self._operation(
                        node,
                        "Input",
                        whole,
                        0,
                        learnt=False,
                    )
                elif node.args:
                    self._values[node] = _Value(node.args[0])
                else:
                    raise BadInput(
                        f"profiling: the model's input {node.name!r} is not in the example"
                    )
            elif node.op == "get_attr":
                value = operator.attrgetter(str(node.target))(self.traced)
                self._values[node] = _Value(
                    value, (), getattr(value, "requires_grad", False)
                )
            elif node.op == "output":
                self.loss = max(self._sources(node), default=-1)
            else:
                self._values[node] = self._step(node)
            # Only what is still to be used is kept: a model's activations are large.
            for used in node.all_input_nodes:
                if last_use[used] is node:
                    del self._values[used]
        self.progress(len(nodes), len(nodes), "")

    def _step(self, node: fx.Node) -> _Value:
        call, module = self._callable(node)
        parameters = (
            [p for p in module.parameters() if p.requires_grad]
            if module
            else []
        )
        parameters += [
            v.value
            for v in self._inputs(node)
            if isinstance(v.value, nn.Parameter)
        ]
        if module is not None:
            kind = (
                type(module).__name__
                if list(module.children())
                else repr(module)
            )
        else:
            kind = str(getattr(node.target, "__name__", node.target))
        try:
            with torch.no_grad():
                first = call(*self._arguments(node, []))
            if not tensors_in(first) or self._takes_apart(node):
                # It only takes apart what is there, or looks at its shape.
                sources = self._sources(node) if tensors_in(first) else ()
                return _Value(
                    first, sources, any(v.learnt for v in self._inputs(node))
                )
            del first
            measured = self._measured(node, call, parameters)
        except Exception as error:
            raise PatchlightError(
                f"profiling operation {node.name!r} ({kind}): {type(error).__name__}: {error}",
                hint="if memory ran out, use a smaller --batch; else check that the model runs "
                "on the example inputs in training mode",
            ) from error
        learnt = bool(parameters) or any(v.learnt for v in self._inputs(node))
        own = {
            id(p): p
            for p in [*(module.parameters() if module else ()), *parameters]
        }
        held = sum(
            p.numel() * p.element_size()
            for i, p in own.items()
            if i not in self._owned
        )
        self._owned |= own.keys()
        return self._operation(
            node,
            kind,
            measured,
            held,
            learnt,
        )

    def _measured(
        self,
        node: fx.Node,
        call: Callable[..., Any],
        parameters: Sequence[torch.Tensor],
    ) -> _Measured:
        forward = []
        backward = []
        output: Any = None
        for _ in range(self.warm_ups + self.repeats):
            leaves: list[torch.Tensor] = []
            arguments = self._arguments(node, leaves)
            output, took = self.clock(partial(call, *arguments))
            forward.append(took)
            ends = [
                tensor for tensor in tensors_in(output) if tensor.requires_grad
            ]
            starts = [*leaves, *parameters]
            if ends and starts:
                ones = [torch.ones_like(end) for end in ends]
                back = partial(
                    torch.autograd.grad,
                    ends,
                    starts,
                    ones,
                    allow_unused=True,
                )
                backward.append(self.clock(back)[1])
        return (
            statistics.median(forward[self.warm_ups :]),
            statistics.median(backward[self.warm_ups :] or [0.0]),
            mapped(output, torch.Tensor.detach),
        )

    def _arguments(
        self, node: fx.Node, leaves: list[torch.Tensor]
    ) -> tuple[Any, ...]:
        """Fresh arguments of the step, keywords last as one; ``leaves`` gets the learnt ones."""

        def given(other: fx.Node) -> Any:
            known = self._values[other]

            def copied(tensor: torch.Tensor) -> torch.Tensor:
                if isinstance(tensor, nn.Parameter):
                    return tensor
                leaf = tensor.detach()
                if known.learnt and leaf.is_floating_point():
                    leaves.append(leaf.requires_grad_())
                # A step that works in place may do so on the copy, as on no leaf.
                return leaf.clone()

            return mapped(known.value, copied)

        return fx.map_arg(node.args, given), fx.map_arg(node.kwargs, given)

    def _callable(
        self, node: fx.Node
    ) -> tuple[Callable[..., Any], nn.Module | None]:
        """The function that the step calls, its arguments and keywords, and its module, if any."""
        if node.op == "call_module":
            module = self.traced.get_submodule(str(node.target))
            return (lambda args, kwargs: module(*args, **kwargs)), module
        if node.op == "call_method":
            name = str(node.target)
            return (
                lambda args, kwargs: getattr(args[0], name)(
                    *args[1:], **kwargs
                )
            ), None
        function: Callable[..., Any] = node.target  # type: ignore[assignment]
        return (lambda args, kwargs: function(*args, **kwargs)), None

    def _takes_apart(self, node: fx.Node) -> bool:
        """Whether the step picks from a tuple or reads an attribute, which costs nothing."""
        if node.target is getattr:
            return True
        whole = node.args[0] if node.args else None
        picked = node.target is operator.getitem and isinstance(whole, fx.Node)
        return picked and not isinstance(
            self._values[whole].value,  # type: ignore[index]
            torch.Tensor,
        )

    def _operation(
        self,
        node: fx.Node,
        kind: str,
        measured: _Measured,
        parameter_bytes: int,
        learnt: bool,
    ) -> _Value:
        index = len(self.operations)
        forward_ms, backward_ms, output = measured
        held = sum(
            tensor.numel() * tensor.element_size()
            for tensor in tensors_in(output)
        )
        times = (round(forward_ms, 6), round(backward_ms, 6))
        # The module's path in the model or the step's name; numbered if it comes again.
        name = str(node.target) if node.op == "call_module" else node.name
        numbered = name
        number = 1
        while numbered in self._names:
            number += 1
            numbered = f"{name}#{number}"
        self._names.add(numbered)
        self.operations.append(
            Operation(
                numbered,
                kind,
                *times,
                held,
                parameter_bytes,
            )
        )
        self.edges += [(source, index) for source in self._sources(node)]
        return _Value(output, (index,), learnt)

    def _inputs(self, node: fx.Node) -> list[_Value]:
        return [self._values[used] for used in node.all_input_nodes]

    def _sources(self, node: fx.Node) -> tuple[int, ...]:
        return tuple(
            dict.fromkeys(
                s for value in self._inputs(node) for s in value.sources
            )
        )
