"""The topology for other schedulers: as values, and as the files that they read."""

from collections.abc import Mapping

import pytest
import yaml

from patchlight.testbed.errors import BadInput
from patchlight.testbed.generate import generate
from patchlight.testbed.generate.builder import LabBuilder
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.lab.topology import (
    FORMATS,
    Topology,
    kueue,
    slurm_conf,
    slurm_yaml,
    topology_of,
)
from patchlight.testbed.lab.wiring import trace_links
from patchlight.testbed.labfile.reader import load_lab


def seen(lab: Lab, maps: Mapping[str, PortMap] | None = None) -> Topology:
    return topology_of(
        lab, trace_links(lab, lab.initial_maps if maps is None else maps)
    )


@pytest.fixture(scope="module")
def ofc2022() -> Lab:
    return load_lab("ofc2022")


def test_nodes_are_under_the_switch_that_they_are_lit_to(ofc2022: Lab) -> None:
    found = seen(ofc2022).as_json
    assert [(n["name"], n["switch"]) for n in found["nodes"]] == [
        ("server1", "tor1"),
        ("server2", "tor2"),
        ("server3", "tor1"),
        ("server4", "tor2"),
    ]
    assert found["nodes"][0]["gpus"][1] == {
        "name": "gpu1",
        "model": "Titan V",
        "nic": "nic1",
        "switch": "tor1",
        "rate_bps": 40_000_000_000,
    }
    assert found["switches"] == [
        {
            "name": tor,
            "block": "block.tor1",
            "fabric": "fabric.tor1",
            "nodes": nodes,
        }
        for tor, nodes in (
            ("tor1", ["server1", "server3"]),
            ("tor2", ["server2", "server4"]),
        )
    ]
    assert found["links"] == [
        {"a": "tor1.7", "b": "tor2.7", "rate_bps": 10_000_000_000}
    ]


def test_a_node_has_one_place_and_a_dark_one_has_none(ofc2022: Lab) -> None:
    # server1 has a GPU under each ToR; server2's NICs are dark; all of server3 moved.
    moved = seen(
        ofc2022, {"ocs1": PortMap.parse(["1-7", "2-14", "5-17", "6-18"])}
    )
    assert [node.switch for node in moved.nodes] == [
        "tor1",
        None,
        "tor2",
        "tor2",
    ]
    text = slurm_conf(moved)
    assert (
        "# server1 is also connected to tor2.\n# server2 is omitted: its NICs are not connected.\n"
        in text
    )
    assert "SwitchName=tor2 Nodes=server3,server4\n" in text
    nodes = [
        each
        for each in yaml.safe_load_all(kueue(moved))
        if each["kind"] == "Node"
    ]
    assert nodes[1]["metadata"] == {"name": "server2", "labels": {}}


def test_slurms_tree_and_blocks(ofc2022: Lab) -> None:
    # As in the man pages topology.yaml(5), May 2025, and topology.conf(5).
    tree, blocks = yaml.safe_load(slurm_yaml(seen(ofc2022)))
    assert list(tree) == ["topology", "cluster_default", "tree"]
    assert tree["cluster_default"] is True
    assert tree["tree"]["switches"] == [
        {"switch": "tor1", "nodes": "server1,server3"},
        {"switch": "tor2", "nodes": "server2,server4"},
        {"switch": "block.tor1", "children": "tor1,tor2"},
    ]
    assert list(blocks) == ["topology", "cluster_default", "block"]
    assert blocks["block"] == {
        "block_sizes": [2],
        "blocks": [
            {"block": "tor1", "nodes": "server1,server3"},
            {"block": "tor2", "nodes": "server2,server4"},
        ],
    }
    assert slurm_conf(seen(ofc2022)).splitlines()[1:] == [
        "SwitchName=tor1 Nodes=server1,server3",
        "SwitchName=tor2 Nodes=server2,server4",
        "SwitchName=block.tor1 Switches=tor1,tor2",
    ]


def test_kueues_levels_are_labels_of_the_nodes(ofc2022: Lab) -> None:
    topology, *nodes = yaml.safe_load_all(kueue(seen(ofc2022)))
    assert (topology["apiVersion"], topology["kind"]) == (
        "kueue.x-k8s.io/v1beta2",
        "Topology",
    )
    levels = [level["nodeLabel"] for level in topology["spec"]["levels"]]
    assert levels[-1] == "kubernetes.io/hostname"
    assert nodes[1] == {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": "server2",
            "labels": dict(
                zip(
                    levels, ("fabric.tor1", "block.tor1", "tor2"), strict=False
                )
            ),
        },
    }
    build = LabBuilder("odd")
    build.server("Server_1", gpus=["A100"])
    with pytest.raises(
        BadInput, match="invalid Kubernetes node name Server_1"
    ):
        kueue(seen(build.lab()))


def switches_of(text: str) -> dict[str, tuple[str, list[str]]]:
    """A topology.conf read: for each switch, what its children are, and these."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, children = line.split()
            kind, _, names = children.partition("=")
            found[name.removeprefix("SwitchName=")] = (kind, names.split(","))
    return found


@pytest.mark.parametrize(
    ("lab", "blocks"),
    [
        (generate.tree(40), 1),
        (generate.fat_tree(16), 4),
        (generate.linear(40), 1),
        (generate.single(8), 0),
    ],
    ids=["tree", "fat tree", "line", "one switch"],
)
def test_every_node_is_in_slurms_tree_once_and_pods_are_blocks(
    lab: Lab, blocks: int
) -> None:
    switches = switches_of(slurm_conf(seen(lab)))
    nodes = [
        name
        for kind, names in switches.values()
        if kind == "Nodes"
        for name in names
    ]
    assert sorted(nodes) == sorted(server.name for server in lab.servers)
    children = [
        n
        for kind, names in switches.values()
        if kind == "Switches"
        for n in names
    ]
    assert len(children) == len(set(children))
    assert len(switches.keys() - set(children)) == 1, "one root"
    assert sum(name.startswith("block.") for name in switches) == blocks


@pytest.mark.parametrize("form", sorted(FORMATS))
def test_the_same_topology_is_the_same_bytes(form: str) -> None:
    lab = load_lab("four-ocs")
    turned = lab.with_changes(fibres=lab.fibres[::-1])
    maps = {
        name: lab.initial_maps[name]
        for name in reversed(list(lab.initial_maps))
    }
    assert FORMATS[form](seen(turned, maps)) == FORMATS[form](seen(lab))


def test_what_reaches_each_other_is_a_fabric() -> None:
    build = LabBuilder("apart")
    for number in (1, 2):
        build.switch(f"tor{number}")
        build.fibre(
            build.server(f"server{number}", gpus=["A100"]), f"tor{number}"
        )
    found = seen(build.lab())
    assert [leaf.fabric for leaf in found.leaves] == [
        "fabric.tor1",
        "fabric.tor2",
    ]
    assert set(switches_of(slurm_conf(found))) == {"tor1", "tor2"}
