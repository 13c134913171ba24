"""Graphs measured with PyTorch: on the processor, with small models, on one thread."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip(
    "torch", reason="needs PyTorch: pip install 'patchlight[learn]'"
)

from torch import nn  # noqa: E402

from patchlight.emulation.simulator.graphs.profile import profile  # noqa: E402
from patchlight.testbed.errors import BadInput, PatchlightError  # noqa: E402
from patchlight.testbed.graphs import (  # noqa: E402
    BUILTIN_NAMES,
    builtin_graph,
    read_graph,
    write_graph,
)
from patchlight.testbed.graphs.builtin import bert_large, gnmt, gpt2  # noqa: E402
from patchlight.testbed.graphs.layers import A100  # noqa: E402
from patchlight.testbed.graphs.model import ComputationGraph  # noqa: E402
from patchlight.testbed.graphs.torch_models import TorchLayers, load_model  # noqa: E402


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def quick(
    model: nn.Module, *inputs: Any, name: str = "model", device: str = "cpu"
) -> Any:
    return profile(model, inputs, name, device=device, repeats=2, warm_ups=1)


def fed(graph: ComputationGraph) -> set[tuple[str, str]]:
    names = [operation.name for operation in graph.operations]
    return {(names[a], names[b]) for a, b in graph.edges}


@pytest.mark.parametrize("name", BUILTIN_NAMES)
def test_a_built_in_model_is_the_one_its_graph_is_computed_from(
    name: str,
) -> None:
    # Tensors without numbers in them have shapes all the same: no memory and no arithmetic.
    loaded = load_model(name, None, "meta")
    made = profile(
        loaded.model,
        loaded.inputs,
        name,
        device="meta",
        repeats=1,
        warm_ups=0,
        batch=loaded.batch,
    )
    computed = builtin_graph(name)
    assert made.edges == computed.edges
    assert (made.loss, made.batch, made.name) == (
        computed.loss,
        computed.batch,
        name,
    )
    for what in ("activation_bytes", "parameter_bytes"):
        held = [getattr(operation, what) for operation in made.operations]
        assert held == [
            getattr(operation, what) for operation in computed.operations
        ]
    assert computed.parameter_bytes == 4 * sum(
        p.numel() for p in loaded.model.parameters()
    )


def test_alexnet_measured_on_the_processor(tmp_path: Path) -> None:
    loaded = load_model("alexnet", 1)
    begun = time.perf_counter()
    graph = profile(
        loaded.model, loaded.inputs, "alexnet", repeats=3, warm_ups=1, batch=1
    )
    took_ms = 1e3 * (time.perf_counter() - begun)
    assert (graph.origin, graph.batch) == ("profiled", 1)
    assert "1 thread" in graph.device
    assert "median of 3 runs after 1" in graph.notes
    first, convolution, *_ = graph.operations
    assert (first.kind, first.forward_ms, first.backward_ms) == ("Input", 0, 0)
    assert convolution.kind.startswith("Conv2d(3, 64, kernel_size=(11, 11)")
    assert all(
        o.forward_ms > 0 and o.backward_ms > 0 for o in graph.operations[1:]
    )
    # Nothing is counted that did not pass.
    assert 0 < 3 * (graph.forward_ms + graph.backward_ms) < took_ms
    write_graph(graph, tmp_path / "alexnet.json")
    assert read_graph(tmp_path / "alexnet.json") == graph


@pytest.mark.parametrize(
    "recipe",
    [
        lambda net: gnmt(net, length=5, width=8, words=11),
        lambda net: bert_large(net, length=4, width=32, layers=1),
        lambda net: gpt2(net, length=4, width=24, layers=1),
    ],
    ids=["gnmt", "bert", "gpt2"],
)
def test_networks_of_sequences_run(
    recipe: Callable[[TorchLayers], None],
) -> None:
    net = TorchLayers("small", 2, A100)
    recipe(net)
    graph = quick(net.module(), *net.example_inputs())
    computed = net.graph()
    assert graph.edges == computed.edges
    assert graph.parameter_bytes == computed.parameter_bytes
    assert graph.activation_bytes == computed.activation_bytes
    steps = [
        operation
        for operation in graph.operations
        if operation.kind != "Input"
    ]
    assert all(step.forward_ms > 0 and step.backward_ms > 0 for step in steps)


class Twisted(nn.Module):
    """In place, one module twice, a tuple, a free parameter, a frozen one, and shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.act = nn.ReLU(inplace=True)
        self.scale = nn.Parameter(torch.ones(5))
        self.lstm = nn.LSTM(8, 16, batch_first=True)
        self.frozen = nn.Linear(16, 4).requires_grad_(False)

    def forward(self, x: Any) -> Any:
        y = self.act(self.first(x))
        y = self.act(y + self.scale[0] * y)
        sequence = y.flatten(2).transpose(1, 2)
        whole, (_, cells) = self.lstm(sequence)
        return self.frozen(whole[:, -1] + cells.view(x.size(0), -1))


def test_a_model_of_many_kinds_of_steps() -> None:
    graph = quick(Twisted(), torch.randn(2, 3, 4, 4), name="twisted")
    by_name = {operation.name: operation for operation in graph.operations}
    assert {
        "x",
        "first",
        "act",
        "act#2",
        "flatten",
        "transpose",
        "lstm",
        "frozen",
    } <= set(by_name)
    assert {
        ("x", "first"),
        ("first", "act"),
        ("lstm", "view"),
        ("act#2", "flatten"),
    } <= fed(graph)
    # The LSTM gives its sequence and its two states.
    assert by_name["lstm"].activation_bytes == 4 * (2 * 16 * 16 + 2 * 2 * 16)
    assert (
        by_name["act"].parameter_bytes == by_name["act#2"].parameter_bytes == 0
    )
    model = Twisted()
    assert graph.parameter_bytes == 4 * sum(
        p.numel() for p in model.parameters()
    )
    # There is nothing to learn in the frozen layer, but something before it.
    assert by_name["frozen"].backward_ms > 0
    assert by_name["x"].backward_ms == 0
    assert graph.operations[graph.loss].name == "frozen"


def test_time_that_an_operation_takes_is_seen() -> None:
    small, large = (
        quick(nn.Linear(n, n), torch.randn(64, n)) for n in (32, 1024)
    )
    assert (
        large.operations[-1].forward_ms > 5 * small.operations[-1].forward_ms
    )


class Undecided(nn.Module):
    def forward(self, x: Any) -> Any:
        return x if x.sum() > 0 else -x


def test_a_model_that_cannot_be_traced() -> None:
    message = r"tracing the model 'u' with torch\.fx: TraceError"
    with pytest.raises(BadInput, match=message) as error:
        quick(Undecided(), torch.randn(2), name="u")
    assert "depend on input values" in str(error.value)


def test_an_operation_that_fails_is_named() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(5, 5))
    with pytest.raises(
        PatchlightError,
        match=r"profiling operation '_1' \(Linear\(in_features=5",
    ):
        quick(model, torch.randn(2, 4))


def test_an_input_that_is_not_in_the_example() -> None:
    with pytest.raises(
        BadInput, match="the model's input 'input_1' is not in the example"
    ):
        quick(nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("code", "called", "message"),
    [
        (
            "def make(): return 3",
            "make",
            "returned int, expected a model and inputs",
        ),
        (
            "def make(): return 1 / 0",
            "make",
            r"calling .*: ZeroDivisionError: .*mine\.py:1\)",
        ),
        (
            "def make(:",
            "make",
            r"loading the model from .*mine\.py:1: SyntaxError",
        ),
        ("import nowhere_at_all", "make", "ModuleNotFoundError"),
        (
            "def make(): pass",
            "mkae",
            r"has no function 'mkae': did you mean 'make'\?",
        ),
        ("def make(): pass", "make", "returned NoneType"),
    ],
)
def test_a_file_that_gives_no_model(
    tmp_path: Path, code: str, called: str, message: str
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(code)
    with pytest.raises(BadInput, match=message):
        load_model(f"{file}:{called}", None)


def test_a_batch_the_function_does_not_take_or_keep(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import torch\n"
        "def plain(): return torch.nn.Linear(2, 2), torch.ones(3, 2)\n"
        "def told(batch=4): return torch.nn.Linear(2, 2), (torch.ones(batch, 2),)\n"
        "def deaf(batch=4): return torch.nn.Linear(2, 2), torch.ones(4, 2)\n"
    )
    assert load_model(f"{file}:plain", None).batch == 3
    assert load_model(f"{file}:told", 7)[0::3] == ("mine:told", 7)
    with pytest.raises(BadInput, match="has no parameter batch"):
        load_model(f"{file}:plain", 7)
    with pytest.raises(
        BadInput, match="called with a batch of 7, but its first input has 4"
    ):
        load_model(f"{file}:deaf", 7)


def test_a_name_or_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(
        BadInput, match="unknown model 'vgg61': did you mean 'vgg1"
    ):
        load_model("vgg61", None)
    with pytest.raises(BadInput, match="file not found"):
        load_model(f"{tmp_path}/none.py:make", None)
    (tmp_path / "model.txt").write_text("")
    with pytest.raises(BadInput, match=r"expected a Python file, NAME\.py"):
        load_model(f"{tmp_path}/model.txt:make", None)
