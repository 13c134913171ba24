from pathlib import Path

import pytest

from patchlight.testbed.errors import BadInput
from patchlight.testbed.graphs import BUILTIN_NAMES, builtin_graph, read_graph
from patchlight.testbed.graphs.builtin import layers_of
from patchlight.testbed.graphs.layers import GpuModel

# Parameters, and multiply-adds of one sample's forward pass, as the models' authors and
# torchvision's or Hugging Face's model cards give them.
PUBLISHED = {
    "alexnet": (61_100_840, 0.714e9),
    "vgg16": (138_357_544, 15.470e9),
    "vgg19": (143_667_240, 19.632e9),
    "resnet18": (11_689_512, 1.814e9),
    "resnet50": (25_557_032, 4.089e9),
    "squeezenet1_0": (1_248_424, 0.819e9),
    "bert-large": (335_141_888, None),
    "gpt2": (124_439_808, None),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_and_arithmetic_are_the_published_ones(name: str) -> None:
    net = layers_of(name)
    parameters, macs = PUBLISHED[name]
    assert net.graph().parameter_bytes == 4 * parameters
    if macs is not None:
        assert net.macs == pytest.approx(macs, rel=0.001)


def test_attention_networks_cost_two_flops_a_parameter_and_token_at_least() -> (
    None
):
    net = layers_of("bert-large")
    embeddings = (30522 + 512 + 2) * 1024
    dense = PUBLISHED["bert-large"][0] - embeddings
    # The pooler sees one token of 512; biases and norms are no multiply-adds: 1 % of slack.
    attention = 24 * 2 * 512 * 512 * 1024
    assert net.macs == pytest.approx(512 * dense + attention, rel=0.01)


@pytest.mark.parametrize("name", BUILTIN_NAMES)
def test_all_are_marked_as_computed_for_a_gpu(name: str) -> None:
    graph = builtin_graph(name)
    assert graph.origin == "computed"
    assert "A100" in graph.device
    assert "not measured" in graph.notes
    assert graph.batch
    assert 0 < graph.forward_ms < graph.backward_ms


@pytest.mark.parametrize(
    "name", ["alexnet", "vgg16", "resnet18", "squeezenet1_0", "gnmt"]
)
def test_memory_is_near_that_of_pipedreams_profile(
    name: str, pipedream: Path
) -> None:
    profile = read_graph(pipedream / f"{name}.txt")
    computed = builtin_graph(name)
    assert computed.parameter_bytes == pytest.approx(
        profile.parameter_bytes, rel=0.001
    )
    # The profile of GNMT counts the LSTMs' states and the views of lists too.
    slack = 0.15 if name == "gnmt" else 0.02
    assert computed.activation_bytes == pytest.approx(
        profile.activation_bytes, rel=slack
    )


def test_another_batch_and_another_gpu() -> None:
    usual = builtin_graph("vgg16")
    double = builtin_graph("vgg16", batch=256)
    assert double.activation_bytes == 2 * usual.activation_bytes
    assert double.parameter_bytes == usual.parameter_bytes
    slow = builtin_graph("vgg16", gpu=GpuModel("slow", 1e12, 1e11))
    assert slow.forward_ms > 10 * usual.forward_ms
    assert slow.device == "slow"


def test_an_unknown_name_or_batch() -> None:
    with pytest.raises(BadInput, match="did you mean 'vgg16'"):
        builtin_graph("vgg-16")
    with pytest.raises(BadInput, match="batch of 0"):
        builtin_graph("vgg16", batch=0)
