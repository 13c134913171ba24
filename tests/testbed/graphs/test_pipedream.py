import textwrap
from pathlib import Path

import pytest

from patchlight.testbed.errors import BadInput
from patchlight.testbed.graphs import GraphFileError, mirror, read_graph

# Nodes, edges, nodes and edges mirrored, forward and backward ms, activations and parameters in
# MB, and one step's time on one device, fifty times over, with milliseconds taken for seconds.
PROFILES = {
    "alexnet": (23, 23, 46, 47, 680.70, 40.52, 1278.7, 244.40, 36061.2),
    "resnet18": (71, 79, 142, 159, 581.07, 152.30, 8582.6, 46.76, 36668.4),
    "squeezenet1_0": (
        68,
        76,
        136,
        153,
        587.88,
        172.12,
        12476.3,
        4.99,
        38000.2,
    ),
    "vgg16": (41, 41, 82, 83, 251.87, 438.63, 14759.2, 553.43, 34525.4),
    "gnmt": (48, 58, 96, 117, 33.53, 55.88, 409.2, 775.06, 4470.8),
}


@pytest.mark.parametrize("name", PROFILES)
def test_the_five_profiles_are_read_whole(name: str, pipedream: Path) -> None:
    (
        nodes,
        edges,
        nodes2,
        edges2,
        forward,
        backward,
        activations,
        parameters,
        jct,
    ) = PROFILES[name]

    graph = read_graph(pipedream / f"{name}.txt")
    training = mirror(graph)

    assert graph.name == name
    assert graph.origin == "profiled"
    assert (len(graph.operations), len(graph.edges)) == (nodes, edges)
    assert (len(training.compute_ms), len(training.edges)) == (nodes2, edges2)
    assert graph.forward_ms == pytest.approx(forward, abs=0.005)
    assert graph.backward_ms == pytest.approx(backward, abs=0.005)
    assert graph.activation_bytes / 1e6 == pytest.approx(activations, abs=0.05)
    assert graph.parameter_bytes / 1e6 == pytest.approx(parameters, abs=0.005)
    assert 50 * training.sequential_ms == pytest.approx(jct, abs=0.06)


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "model.txt"
    path.write_text(textwrap.dedent(text))
    return path


def node(
    number: int, activation: str = "8.000", forward: str = "1.500"
) -> str:
    return (
        f"node{number} -- Op -- forward_compute_time={forward}, backward_compute_time=2.000, "
        f"activation_size={activation}, parameter_size=4.000\n"
    )


def test_a_listed_activation_is_summed(tmp_path: Path) -> None:
    path = write(tmp_path, node(1, "[6291456.0; 131072.0; 131072.0]"))
    assert read_graph(path).operations[0].activation_bytes == 6553600


def test_the_loss_is_the_node_with_the_highest_number(tmp_path: Path) -> None:
    path = write(tmp_path, node(3) + node(1) + node(2) + "\tnode1 -- node3\n")
    graph = read_graph(path)
    assert graph.operations[graph.loss].name == "node3"


def test_a_graph_txt_is_named_after_its_folder(tmp_path: Path) -> None:
    (tmp_path / "vgg16").mkdir()
    (tmp_path / "vgg16" / "graph.txt").write_text(node(1))
    assert read_graph(tmp_path / "vgg16" / "graph.txt").name == "vgg16"


def test_every_mistake_is_named_with_its_line(tmp_path: Path) -> None:
    text = (
        node(1)
        + node(1)
        + node(2, forward="-3.0")
        + node(3, activation="[1.0; many]")
        + "node4 -- Op -- forward_compute_time=1, colour=2\n"
        + "what is this\n"
        + "\tnode1 -- node2\n"
        + "\tnode1 -- node2\n"
        + "\tnode2 -- node9\n"
        + "\tnode2 -- node3\n"
        + "\tnode3 -- node2\n"
        + node(5, forward="inf")
    )
    with pytest.raises(GraphFileError) as refused:
        read_graph(write(tmp_path, text))

    found = [(m.line, m.message) for m in refused.value.issues]
    for line, what in [
        (2, "node1 appears twice"),
        (3, "forward_compute_time is '-3.0'"),
        (4, "activation_size is '[1.0; many]'"),
        (5, "'colour' is unknown"),
        (5, "backward_compute_time is missing"),
        (5, "activation_size is missing"),
        (5, "parameter_size is missing"),
        (6, "cannot read 'what is this'"),
        (8, "already on line 7"),
        (9, "node9 does not exist"),
        (12, "forward_compute_time is 'inf'"),
    ]:
        assert any(at == line and what in message for at, message in found), (
            line,
            what,
            found,
        )
    cycles = [
        (at, message) for at, message in found if "closes a cycle" in message
    ]
    assert len(cycles) == 1
    assert cycles[0][0] in (10, 11)
    assert len(found) == 12
    assert str(refused.value).startswith(f"{tmp_path}/model.txt:2:1: ")


@pytest.mark.parametrize("size", ["1e30", "[1e308; 1e308]", "nan", "[1;-1]"])
def test_a_size_of_nonsense(tmp_path: Path, size: str) -> None:
    with pytest.raises(GraphFileError) as refused:
        read_graph(write(tmp_path, node(1) + node(2, size)))
    (mistake,) = refused.value.issues
    assert (
        mistake.line,
        "expected a number, 0 to 1.15e+18" in mistake.message,
    ) == (2, True)


def test_an_empty_file_and_none_at_all(tmp_path: Path) -> None:
    with pytest.raises(GraphFileError, match="no operations"):
        read_graph(write(tmp_path, ""))
    with pytest.raises(BadInput, match="No such file"):
        read_graph(tmp_path / "absent.txt")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInput, match="not UTF-8"):
        read_graph(tmp_path / "binary.txt")
