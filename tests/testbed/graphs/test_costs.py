"""What operations cost, as far as graphs say without their times."""

import numpy as np
import pytest

from patchlight.testbed.graphs import ComputationGraph, Operation
from patchlight.testbed.graphs.builtin import BUILTIN_NAMES, layers_of
from patchlight.testbed.graphs.model import multiply_adds, operation_costs


@pytest.mark.parametrize("name", BUILTIN_NAMES)
def test_arithmetic_is_near_that_of_the_layers(name: str) -> None:
    layers = layers_of(name)
    found = operation_costs(layers.graph())[:, 0].sum()
    # Products of activations in attention have no weights to reckon by.
    most = 0.15 if name in ("gpt2", "bert-large", "tiny-transformer", "gnmt") else 0.01
    assert found == pytest.approx(layers.batch * layers.macs, rel=most)


def test_profiles_kinds_are_understood() -> None:
    def of(kind: str, written: int, weights: int) -> float:
        return multiply_adds(Operation("1", kind, 1.0, 1.0, 4 * written, 4 * weights))

    assert of("Conv2d(3, 8, kernel_size=(3, 3), stride=(1, 1))", 8 * 10, 8 * 3 * 9) == 10 * 216
    assert of("Linear(in_features=4, out_features=2, bias=True)", 6, 8) == 0  # not PipeDream's
    assert of("EmuBidirLSTM(  (bidir): LSTM(4, 4, bidirectional=True))", 80, 256) == 10 * 256
    assert of("ReLU(inplace)", 100, 0) == 0


def test_times_play_no_part_and_edges_do() -> None:
    def graph(ms: float) -> ComputationGraph:
        each = tuple(Operation(str(n), "Add", ms, 2 * ms, 10 * (n + 1), n) for n in range(3))
        return ComputationGraph("g", each, ((0, 2), (1, 2)))

    found = operation_costs(graph(1.0))
    assert np.array_equal(found, operation_costs(graph(7.0)))
    assert found[2].tolist() == [0, 10 + 20, 30, 2]
