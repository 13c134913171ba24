"""Files of other programs as lab files: what they say is kept, and what is wrong is refused."""

import json
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from patchlight.cli.main import cli
from patchlight.testbed.errors import BadInput
from patchlight.testbed.generate.infragraph import infragraph_of
from patchlight.testbed.generate.slurm_topology import hosts
from patchlight.testbed.labfile.reader import load_lab, read_lab

BOX: dict[str, Any] = {
    "name": "box",
    "components": [
        {"name": "xpu", "count": 2, "choice": "xpu"},
        {"name": "nic", "count": 2, "choice": "nic"},
    ],
    "links": [{"name": "pcie"}],
    # The first NIC is at the second GPU.
    "edges": [
        {
            "ep1": {"component": f"xpu[{1 - n}]"},
            "ep2": {"component": f"nic[{n}]"},
            "scheme": "one2one",
            "link": "pcie",
        }
        for n in range(2)
    ],
}
LEAF: dict[str, Any] = {
    "name": "leaf",
    "components": [
        {"name": "asic", "count": 1, "choice": "switch"},
        {"name": "port", "count": 4, "choice": "port"},
    ],
    "links": [],
    "edges": [],
}


def edge(a: str, b: str, **others: str) -> dict[str, Any]:
    """A cable between ``instance component`` and another."""
    ends = [
        dict(zip(("instance", "component"), end.split(), strict=True))
        for end in (a, b)
    ]
    return {
        "ep1": ends[0],
        "ep2": ends[1],
        "scheme": "one2one",
        "link": "e400",
        **others,
    }


def infrastructure(**others: Any) -> dict[str, Any]:
    return {
        "name": "small",
        "devices": [BOX, LEAF],
        "instances": [
            {"name": "host", "device": "box", "count": 2},
            {"name": "tor", "device": "leaf", "count": 1},
        ],
        "links": [
            {
                "name": "e400",
                "physical": {
                    "bandwidth": {
                        "choice": "gigabytes_per_second",
                        "gigabytes_per_second": 50,
                    },
                    "latency": {"choice": "ns", "ns": 500},
                },
            }
        ],
        "edges": [
            edge("host[0] nic", "tor port[0:2]"),
            edge("host[1] nic", "tor port[2:4]"),
        ],
        **others,
    }


def generated(
    folder: Path,
    content: object,
    *options: str,
    name: str = "file.yaml",
) -> Result:
    file = folder / name
    file.write_text(
        content if isinstance(content, str) else yaml.safe_dump(content)
    )
    said = ["lab", "generate", str(file), "-o", str(folder / "lab.yaml")]
    return CliRunner().invoke(cli, [*said, *options])


def test_an_infrastructure_becomes_a_lab(tmp_path: Path) -> None:
    result = generated(tmp_path, infrastructure())
    assert result.exit_code == 0, result.output
    lab = read_lab(tmp_path / "lab.yaml")
    assert [server.name for server in lab.servers] == ["host-0", "host-1"]
    assert [switch.ports for switch in lab.packet_switches] == [4]
    first, second = lab.servers[0].nics
    assert (first.name, first.gpu) == ("nic0", "gpu1")
    assert (second.name, second.gpu) == ("nic1", "gpu0")
    assert {
        (str(fibre.a), str(fibre.b), fibre.rate_bps, fibre.delay_s)
        for fibre in lab.fibres
    } == {
        (f"host-{host}.nic{nic}", f"tor.{port}", 400_000_000_000, 5e-7)
        for host, nic, port in ((0, 0, 1), (0, 1, 2), (1, 0, 3), (1, 1, 4))
    }


def test_ranks_order_servers_and_gpus(tmp_path: Path) -> None:
    ranks = {"host.0.xpu.0": 3, "host.0.xpu.1": 2, "host.1.xpu.0": 0}
    notes = [
        {"name": name, "attributes": [{"attribute": "rank", "value": str(n)}]}
        for name, n in ranks.items()
    ]
    result = generated(
        tmp_path,
        {
            "infrastructure": infrastructure(),
            "annotations": {"nodes": notes},
        },
    )
    assert result.exit_code == 0, result.output
    lab = read_lab(tmp_path / "lab.yaml")
    assert [server.name for server in lab.servers] == ["host-1", "host-0"]
    # xpu.1 has the lower rank and the first NIC.
    assert lab.servers[1].nics[0].gpu == "gpu0"


def with_core(**others: Any) -> dict[str, Any]:
    core = {**LEAF, "name": "core"}
    return infrastructure(
        devices=[BOX, LEAF, core],
        instances=[
            {"name": "host", "device": "box", "count": 2},
            {"name": "tor", "device": "leaf", "count": 1},
            {"name": "core", "device": "core", "count": 1},
        ],
        edges=[
            edge("host[0] nic", "core port[0:2]"),
            edge("tor port[0:2]", "core port[2:4]"),
        ],
        **others,
    )


def test_an_ocs_is_named_or_annotated(tmp_path: Path) -> None:
    result = generated(tmp_path, with_core(), "--ocs", "core=polatis-scpi")
    assert result.exit_code == 0, result.output
    lab = read_lab(tmp_path / "lab.yaml")
    assert [s.driver for s in lab.circuit_switches] == ["polatis-scpi"]

    attributes = [
        {"attribute": "patchlight.driver", "value": "polatis-tl1"},
        {"attribute": "patchlight.address", "value": "10.0.0.9:3082"},
        {"attribute": "circuits", "value": "1-3, 2-4"},
    ]
    result = generated(
        tmp_path,
        {
            "infrastructure": with_core(),
            "annotations": {
                "nodes": [{"name": "core.0", "attributes": attributes}]
            },
        },
    )
    assert result.exit_code == 0, result.output
    (ocs,) = read_lab(tmp_path / "lab.yaml").circuit_switches
    assert (ocs.driver, ocs.address) == ("polatis-tl1", "10.0.0.9:3082")
    assert set(ocs.initial.texts) == {"1-3", "2-4"}


WRONG: dict[str, tuple[Mapping[str, Any], str]] = {
    "unknown link": (
        {"edges": [edge("host[0] nic", "tor port[0:2]", link="e40")]},
        "'e40' is not a link: did you mean 'e400'",
    ),
    "unknown instance": (
        {"edges": [edge("hots[0] nic", "tor port[0:2]")]},
        "'hots' is not an instance: did you mean 'host'",
    ),
    "index too large": (
        {"edges": [edge("host[2] nic", "tor port[0:2]")]},
        "'host[2]' is out of range: there are 2",
    ),
    "slice too large": (
        {"edges": [edge("host[0] nic", "tor port[3:5]")]},
        "'port[3:5]' is out of range: there are 4",
    ),
    "unequal lists": (
        {"edges": [edge("host[0] nic", "tor port")]},
        "2 ports on one side and 4 on the other",
    ),
    "two cables": (
        {
            "edges": [
                edge("host[0] nic", "tor port[0:2]"),
                edge("host[1] nic[0]", "tor port[1]"),
            ]
        },
        "tor port.1 has two cables, to host-0 nic.1 and to host-1 nic.0",
    ),
    "unknown component": (
        {"edges": [edge("host[0] nics", "tor port[0:2]")]},
        "device box has no component 'nics': did you mean 'nic'",
    ),
    "below a component": (
        {"edges": [edge("host[0] nic.port", "tor port[0:2]")]},
        "continues below a component that is not a device",
    ),
    "ring": (
        {"edges": [edge("host[0] nic", "tor port[0:2]", scheme="ring")]},
        "ring scheme: expected one2one or many2many",
    ),
    "bad slice": (
        {"edges": [edge("host[x] nic", "tor port[0:2]")]},
        "'host[x]' is not an index or a slice",
    ),
    "unknown device": (
        {"instances": [{"name": "host", "device": "bix", "count": 1}]},
        "'bix' is not a device: did you mean 'box'",
    ),
    "same instances": (
        {"instances": [{"name": "host", "device": "box", "count": 1}] * 2},
        "two instances are named 'host'",
    ),
    "no edges": ({"edges": []}, "no server has a cable"),
    "a text for a number": (
        {"instances": [{"name": "host", "device": "box", "count": "many"}]},
        "infrastructure.instances[0].count: ",
    ),
    "in itself": (
        {
            "devices": [
                {
                    "name": "box",
                    "components": [
                        {"name": "box", "count": 1, "choice": "device"}
                    ],
                },
                LEAF,
            ],
            "edges": [],
        },
        "a device contains itself: box in box",
    ),
    "too many": (
        {"instances": [{"name": "host", "device": "box", "count": 10**9}]},
        "infrastructure.instances[0].count: ",
    ),
    "too many in all": (
        {
            "instances": [
                {"name": f"h{n}", "device": "box", "count": 200_000}
                for n in range(3)
            ],
            "edges": [],
        },
        "2,400,000 components: expected at most 2,000,000",
    ),
    "no number as a rate": (
        {
            "links": [
                {
                    "name": "e400",
                    "physical": {
                        "bandwidth": {"gigabits_per_second": float("nan")}
                    },
                }
            ]
        },
        "links[0].physical.bandwidth.gigabits_per_second: ",
    ),
    "transfers": (
        {
            "links": [
                {
                    "name": "e400",
                    "physical": {
                        "bandwidth": {"gigatransfers_per_second": 32}
                    },
                }
            ]
        },
        "GT/s is not the rate of a cable",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_in_an_infrastructure(case: str, tmp_path: Path) -> None:
    others, message = WRONG[case]
    result = generated(tmp_path, infrastructure(**others))
    assert message in str(result.exception)
    assert not (tmp_path / "lab.yaml").exists()


def _fat_tree() -> Any:
    from infragraph.blueprints.devices.generic.generic_switch import Switch
    from infragraph.blueprints.devices.nvidia.dgx import NvidiaDGX
    from infragraph.blueprints.fabrics.clos_fat_tree_fabric import (
        ClosFatTreeFabric,
    )

    return ClosFatTreeFabric(Switch(32), NvidiaDGX("dgx_h100"), 2, [400, 400])


def _three_tiers() -> Any:
    from infragraph.blueprints.devices.generic.generic_switch import Switch
    from infragraph.blueprints.devices.generic.server import Server
    from infragraph.blueprints.fabrics.clos_fat_tree_fabric import (
        ClosFatTreeFabric,
    )

    return ClosFatTreeFabric(Switch(4), Server(), 3, [100, 200, 400])


def _dgx_a100() -> Any:
    from infragraph.blueprints.devices.generic.generic_switch import Switch
    from infragraph.blueprints.devices.nvidia.dgx import NvidiaDGX
    from infragraph.blueprints.fabrics.clos_fat_tree_fabric import (
        ClosFatTreeFabric,
    )

    return ClosFatTreeFabric(Switch(16), NvidiaDGX("dgx_a100"), 2, [])


def _dragonfly() -> Any:
    from infragraph.blueprints.devices.generic.generic_switch import Switch
    from infragraph.blueprints.devices.generic.server import Server
    from infragraph.blueprints.fabrics.dragonfly_fabric import DragonflyFabric

    return DragonflyFabric(Switch(16), Server(), 4, 2, 2)


def _single_tier() -> Any:
    from infragraph.blueprints.devices.amd.mi300x import MI300X
    from infragraph.blueprints.fabrics.single_tier_fabric import (
        SingleTierFabric,
    )

    return SingleTierFabric(MI300X(), 4, 400)


def _mi300x() -> Any:
    from infragraph.blueprints.devices.amd.mi300x import MI300X
    from infragraph.blueprints.devices.generic.generic_switch import Switch
    from infragraph.blueprints.fabrics.clos_fat_tree_fabric import (
        ClosFatTreeFabric,
    )

    return ClosFatTreeFabric(Switch(32), MI300X(), 2, [400, 400])


def _plant_of(text: str) -> tuple[Counter[str], set[tuple[Any, ...]]]:
    """GPUs by server and cables with rate and latency, as the package itself expands them."""
    from infragraph import Infrastructure
    from infragraph.infragraph_service import InfraGraphService

    read = Infrastructure()
    read.deserialize(text)
    service = InfraGraphService()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        service.set_graph(read)
    graph = service.get_networkx_graph()
    gpus = Counter(
        node.rsplit(".", 2)[0]
        for node, of in graph.nodes(data=True)
        if of["type"] == "xpu"
    )
    cables = {
        (*sorted((a, b)), of.get("bandwidth"), of.get("latency"))
        for a, b, of in graph.edges(data=True)
        if a.split(".")[:2] != b.split(".")[:2]
    }
    return gpus, cables


@pytest.mark.parametrize(
    "blueprint",
    [
        _single_tier,
        _fat_tree,
        _mi300x,
        _dgx_a100,
        _three_tiers,
        _dragonfly,
    ],
)
def test_a_blueprint_goes_in_and_comes_out_equal(
    blueprint: Callable[[], Any], tmp_path: Path
) -> None:
    pytest.importorskip("infragraph")
    text = blueprint().serialize("yaml")
    result = generated(tmp_path, text)
    assert result.exit_code == 0, result.output
    left_out = [
        line
        for line in result.stderr.splitlines()
        if line.startswith("left out")
    ]
    assert left_out == [
        "left out: what is inside servers (CPUs, memories, PCIe, NVLink)"
    ]
    back = infragraph_of(read_lab(tmp_path / "lab.yaml"))
    assert _plant_of(back) == _plant_of(text)


@pytest.mark.wings
def test_a_blueprint_runs_in_the_simulator(tmp_path: Path) -> None:
    pytest.importorskip("infragraph")
    text = _single_tier().serialize("yaml")
    assert generated(tmp_path, text).exit_code == 0
    said = ["simulate", "--lab", str(tmp_path / "lab.yaml"), "--jobs", "5"]
    said += ["--trace", "helios", "--output", str(tmp_path / "out")]
    result = CliRunner().invoke(cli, said)
    assert result.exit_code == 0, result.output
    (run,) = json.loads((tmp_path / "out/result.json").read_text())["runs"]
    assert (run["done"], run["gpus"]) == (5, 32)


def test_the_present_links_go_out_without_ocss() -> None:
    pytest.importorskip("infragraph")
    said = ["lab", "show", "ofc2022", "--start", "--format"]
    plant = CliRunner().invoke(cli, [*said, "infragraph"])
    links = CliRunner().invoke(cli, [*said, "infragraph-links"])
    gpus, cables = _plant_of(links.stdout)
    assert sum(gpus.values()) == 6
    assert len(cables) == 7
    assert not any("ocs" in end for cable in cables for end in cable[:2])
    gpus, cables = _plant_of(plant.stdout)
    assert sum(gpus.values()) == 6
    assert len(cables) == len(load_lab("ofc2022").fibres)


CONTAINERLAB = """
name: two racks
topology:
  defaults: {kind: nokia_srlinux}
  groups: {clients: {kind: linux}}
  nodes:
    leaf1:
    leaf2: {kind: ceos}
    client1: {group: clients}
    client2: {kind: linux}
    spare: {kind: linux}
  links:
    - endpoints: ["leaf1:e1-10", "leaf2:eth1"]
    - endpoints: ["client1:eth1", "leaf1:e1-2"]
    - endpoints: [{node: client2, interface: eth1}, {node: leaf2, interface: eth2}]
    - endpoints: ["leaf1:e1-3", "host:tap0"]
    - {type: mgmt-net, endpoint: {node: leaf2, interface: eth9}, host-interface: x}
"""


def test_a_containerlab_topology_becomes_a_lab(tmp_path: Path) -> None:
    result = generated(
        tmp_path,
        CONTAINERLAB,
        "--rate",
        "25Gbps",
        name="racks.clab.yml",
    )
    assert result.exit_code == 0, result.output
    lab = read_lab(tmp_path / "lab.yaml")
    assert lab.name == "two-racks"
    assert [server.name for server in lab.servers] == ["client1", "client2"]
    assert lab.servers[0].nics[0].name == "eth1"
    assert [switch.name for switch in lab.packet_switches] == [
        "leaf1",
        "leaf2",
    ]
    assert {f"{fibre.a} {fibre.b}" for fibre in lab.fibres} == {
        "leaf1.2 leaf2.1",
        "client1.eth1 leaf1.1",
        "client2.eth1 leaf2.2",
    }
    assert {fibre.rate_bps for fibre in lab.fibres} == {25_000_000_000}
    for text in (
        "left out: the link leaf1:e1-3 – host:tap0 to the outside",
        "left out: the link leaf2:eth9 to the outside",
        "left out: the node spare without a link",
    ):
        assert text in result.stderr


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("client1:eth1", "klient1:eth1", "did you mean 'client1'"),
        ("client1:eth1", "client1", "'client1' is not an endpoint"),
        ("client1:eth1", "client2:eth1", "client2 eth1 has two cables"),
        ("{kind: nokia_srlinux}", "{}", "node leaf1 has no kind"),
        ("nodes:", "nodos:", "topology.nodes: "),
    ],
)
def test_what_is_wrong_in_a_containerlab_topology(
    old: str,
    new: str,
    message: str,
    tmp_path: Path,
) -> None:
    result = generated(tmp_path, CONTAINERLAB.replace(old, new, 1))
    assert message in str(result.exception)


def test_a_file_that_aliases_blow_up_is_refused(tmp_path: Path) -> None:
    ends = ", ".join(["a:e1"] * 1000)
    bomb = (
        f"e: &e {{endpoints: [{ends}]}}\nl: &l [{', '.join(['*e'] * 1000)}]\n"
    )
    result = generated(tmp_path, f"{bomb}topology: {{nodes: {{}}, links: *l}}")
    assert "its aliases repeat more than" in str(result.exception)


CONF = """# two racks
SwitchName=s0 Nodes=n[01-02],gpu[1,3] LinkSpeed=100
switchname=s1 nodes=m[0-1] # the last
SwitchName=top Switches=s[0-1]
"""


def test_a_topology_conf_becomes_a_lab_and_comes_back(
    tmp_path: Path,
) -> None:
    result = generated(tmp_path, CONF, "--gpus", "2", name="topology.conf")
    assert result.exit_code == 0, result.output
    lab = read_lab(tmp_path / "lab.yaml")
    names = ["n01", "n02", "gpu1", "gpu3", "m0", "m1"]
    assert [server.name for server in lab.servers] == names
    assert [len(server.nics) for server in lab.servers] == [2] * 6
    for form, name in (("slurm-conf", "topology.conf"), ("slurm", "t.yaml")):
        said = ["lab", "show", str(tmp_path / "lab.yaml"), "--format", form]
        text = CliRunner().invoke(cli, said).stdout
        again = generated(tmp_path, text, "--gpus", "2", name=name)
        assert again.exit_code == 0, again.output
        back = read_lab(tmp_path / "lab.yaml")
        assert [server.name for server in back.servers] == names
        under = {
            fibre.a.device: fibre.b.device
            for fibre in back.fibres
            if fibre.a.device in names
        }
        assert [under[name] for name in names] == ["s0"] * 4 + ["s1"] * 2


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a", ["a"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("r[1-2]n[0,3]", ["r1n0", "r1n3", "r2n0", "r2n3"]),
        ("a[1-2]-ib,b", ["a1-ib", "a2-ib", "b"]),
    ],
)
def test_hostlists(text: str, names: list[str]) -> None:
    assert list(hosts(text, "file:1")) == names


@pytest.mark.parametrize(
    "text", ["n[1-", "n]1[", "n[2-1]", "n[a-b]", "n[[1]]"]
)
def test_hostlists_that_are_none(text: str) -> None:
    with pytest.raises(BadInput, match="is not a list of names"):
        hosts(text, "file:1")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Include other.conf\n", "the file includes another"),
        (
            "SwitchName=a Switches=b\n",
            "switch a has b below it, which has no line",
        ),
        ("SwitchName=a Nodes=x\nFoo=1\n", "'Foo=1' is not a line of"),
        ("SwitchName=a Nodes=x\nSwitchName=a Nodes=y\n", "two switches"),
    ],
)
def test_what_is_wrong_in_a_topology_conf(
    text: str,
    message: str,
    tmp_path: Path,
) -> None:
    result = generated(tmp_path, text, name="topology.conf")
    assert message in str(result.exception)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (["nothing.yaml"], "is neither a topology (single, "),
        (["single"], "single needs --servers"),
        (["single", "--servers", "2", "--gpus", "2"], "--gpus is for Slurm"),
        (
            ["single", "--servers", "2", "--ocs", "calient"],
            "did you mean 'calient-tl1'",
        ),
    ],
)
def test_what_is_wrong_in_the_command(said: list[str], message: str) -> None:
    result = CliRunner().invoke(cli, ["lab", "generate", *said])
    assert message in str(result.exception)
