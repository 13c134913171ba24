"""Chakra traces as a job: their times against closed forms, and traces that make no sense."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from patchlight.cli.main import cli
from patchlight.emulation.simulator.network.chakra import (
    PlacedTrace,
    run_chakra,
)
from patchlight.emulation.simulator.network.chakra_job import read_chakra
from patchlight.emulation.simulator.network.specs import (
    Failure,
    Slowness,
    Trouble,
    network_of,
)
from patchlight.testbed.errors import BadInput
from tests.support.chakra_traces import Node, exchange, meets, node, written

# Loops are compiled once, where nothing is on the disk yet.
pytestmark = pytest.mark.xdist_group("networks")

IDEAL = network_of("ideal:nodes=4,rate=8Gbps,latency=0ns")


def seconds(
    files: Sequence[Path], trouble: Trouble | None = None, spec: str = ""
) -> float:
    network = network_of(spec) if spec else IDEAL
    [found] = run_chakra(
        network,
        [PlacedTrace(read_chakra(files), np.arange(network.nodes))],
        trouble or Trouble(),
    )
    return found


IDLE = [node(9, "COMP_NODE", s=1e-3)]


def training(rank: int) -> list[Node]:
    """Forward, backward beside the first all-reduce, the second one, and the optimizer."""
    return [
        node(0, "COMP_NODE", s=0.25),
        meets(1, "ALL_REDUCE", 10**9, [0]),
        node(2, "COMP_NODE", [0], 0.5),
        node(7, "METADATA_NODE", [1, 2]),
        meets(3, "ALL_REDUCE", 2 * 10**9, [7]),
        node(4, "COMP_NODE", [3], 0.125),
    ]


@pytest.mark.parametrize("suffix", [".json", ".et"])
def test_a_training_step_takes_what_its_longest_way_takes(
    tmp_path: Path, suffix: str
) -> None:
    files = written(tmp_path, [training(rank) for rank in range(4)], suffix)
    # A ring of four moves 1.5 times the bytes at 1 GB/s; computing hides behind the first one.
    assert seconds(files) == pytest.approx(0.25 + 1.5 + 3.0 + 0.125, rel=1e-9)
    slow = Trouble([Slowness(2, 3.0)])
    # Rank 2 computes 0.75 s, 1.5 s beside the first ring, and 0.375 s.
    assert seconds(files, slow) == pytest.approx(
        0.75 + 1.5 + 3.0 + 0.375, rel=1e-9
    )
    stalled = Trouble(failures=[Failure("link", 0, 1.0, 2.0)])
    assert seconds(files, stalled) == pytest.approx(5.875, rel=1e-9)
    # The network of light takes its time once, and each of two collectives has its circuits made.
    light = "oddl:nodes=4,rate=8Gbps,latency=0ns,switching=1ms,setup=100ms"
    assert seconds(files, spec=light) == pytest.approx(
        4.875 + 0.1 + 2e-3, rel=1e-9
    )


def test_collectives_of_groups_sends_and_all_types_have_their_closed_forms(
    tmp_path: Path,
) -> None:
    size = 8 * 10**8
    expected = {
        "ALL_GATHER": 3 * 0.8,
        "REDUCE_SCATTER": 3 / 4 * 0.8,
        "ALL_TO_ALL": 3 / 4 * 0.8,
        "BROADCAST": 2 * 0.8,
        "BARRIER": 0.0,
    }
    for kind, lasts_s in expected.items():
        files = written(tmp_path, [[meets(5, kind, size)]] * 4)
        assert seconds(files) == pytest.approx(lasts_s, rel=1e-6, abs=1e-6), (
            kind
        )
    pairs = [
        [
            meets(1, "ALL_REDUCE", size, group=group),
            meets(2, "ALL_REDUCE", size, [1], group),
        ]
        for group in ("a", "a", "b", "b")
    ]
    assert seconds(written(tmp_path, pairs)) == pytest.approx(1.6, rel=1e-9)
    sends = node(1, "COMM_SEND_NODE", comm_dst=1, comm_tag=3, comm_size=size)
    gets = node(4, "COMM_RECV_NODE", comm_src=0, comm_tag=3, comm_size=size)
    stages = [[sends], [gets, node(5, "COMP_NODE", [4], 0.1)]]
    assert seconds(written(tmp_path, stages)) == pytest.approx(0.9, rel=1e-9)


@pytest.mark.parametrize("suffix", [".json", ".et"])
def test_a_send_does_not_wait_for_its_receive(
    tmp_path: Path, suffix: str
) -> None:
    # The form of ASTRA-sim's custom collectives: each rank sends on, then receives, then adds up.
    size = 10**8
    steps = 3
    add_s = 0.01
    ring: list[list[Node]] = []
    for rank in range(4):
        nodes: list[Node] = []
        for step in range(steps):
            at = 3 * step
            nodes.append(
                exchange(
                    at, "SEND", (rank + 1) % 4, size, [at - 1] if step else []
                )
            )
            nodes.append(exchange(at + 1, "RECV", (rank - 1) % 4, size, [at]))
            nodes.append(node(at + 2, "COMP_NODE", [at + 1], add_s))
        ring.append(nodes)
    assert seconds(written(tmp_path, ring, suffix)) == pytest.approx(
        steps * (0.1 + add_s), rel=1e-9
    )
    # A sender goes on when its bits have arrived, though the receiver asks for them later.
    late = [
        [exchange(1, "SEND", 1, size), node(2, "COMP_NODE", [1], 0.3)],
        [node(1, "COMP_NODE", s=0.5), exchange(2, "RECV", 0, size, [1])],
    ]
    assert seconds(written(tmp_path, late, suffix)) == pytest.approx(
        0.5, rel=1e-9
    )


@pytest.mark.parametrize("suffix", [".json", ".et"])
def test_a_receive_of_another_size_than_its_send_is_refused(
    tmp_path: Path, suffix: str
) -> None:
    size = 10**9
    # Of two pairs with one tag, the second differs.
    ranks = [
        [exchange(1, "SEND", 1, size), exchange(2, "SEND", 1, size, [1])],
        [exchange(5, "RECV", 0, size), exchange(6, "RECV", 0, 2 * size, [5])],
    ]
    files = written(tmp_path, ranks, suffix)
    with pytest.raises(BadInput) as caught:
        read_chakra(files)
    first, second = files
    assert caught.value.message == (
        f"{second}: node 6 receives {2 * size} bytes, but {first}: node 2 sends {size}"
    )
    assert "--skip-bad" in (caught.value.hint or "")
    job = read_chakra(files, skip_bad=True)
    assert job.notes == {
        "receives with another size than their send; the send's size counts": 1
    }
    assert run_chakra(
        IDEAL, [PlacedTrace(job, np.arange(2))]
    ) == pytest.approx([2.0], rel=1e-9)
    del ranks[1][1]["attr"]["comm_size"]
    assert not read_chakra(written(tmp_path, ranks, suffix)).notes


def test_dependencies_that_are_not_in_the_file_are_left_out_and_counted(
    tmp_path: Path,
) -> None:
    cut = [
        node(1, "COMP_NODE", [0, 8], 0.5),
        node(2, "COMP_NODE", [1, 9], 0.25),
    ]
    job = read_chakra(written(tmp_path, [cut]), skip_bad=True)
    assert job.notes == {
        "dependencies left out, because their nodes are not in the file": 3
    }
    assert run_chakra(IDEAL, [PlacedTrace(job, np.arange(1))]) == [0.75]
    # As converters of PyTorch traces write it: control dependencies against the data's.
    called = [
        node(1, "COMP_NODE", s=0.5) | {"control": [2]},
        node(2, "COMP_NODE", [1], 0.25),
    ]
    files = written(tmp_path, [called])
    with pytest.raises(BadInput, match="in a cycle") as caught:
        read_chakra(files)
    assert "--skip-bad" in (caught.value.hint or "")
    job = read_chakra(files, skip_bad=True)
    assert job.notes == {
        "control dependencies left out, because they form a cycle": 1
    }
    assert run_chakra(IDEAL, [PlacedTrace(job, np.arange(1))]) == [0.75]
    # A cycle of data dependencies stays one.
    with pytest.raises(BadInput, match="in a cycle"):
        read_chakra(
            written(tmp_path, [[node(1, "COMP_NODE", [1], 1.0)]]),
            skip_bad=True,
        )
    alone = [node(1, "COMP_NODE", s=1.0), meets(2, "ALL_REDUCE", 9)]
    notes = read_chakra(written(tmp_path, [alone])).notes
    assert notes == {"collectives of one rank, which take no time": 1}


GRAPH = """{"workload_graph": [
 {"Id": 5, "Name": "mm", "NodeType": 4, "ctrlDeps": [], "data_deps": [], "runtime": 250000,
  "is_cpu_op": true},
 {"Id": 6, "Name": "c10d::allreduce_", "NodeType": 7, "data_deps": [5], "runtime": 50000,
  "is_cpu_op": true},
 {"Id": 7, "Name": "ncclKernel", "NodeType": 7, "data_deps": [6], "is_cpu_op": false,
  "comm_type": 0, "comm_size": 1000000000}]}"""


def test_json_may_have_the_names_of_the_schema(tmp_path: Path) -> None:
    files = written(tmp_path, [training(rank) for rank in range(4)])
    lasts_s = seconds(files)
    for file in files:
        text = file.read_text()
        for key in ("dataDeps", "durationMicros", "int64Val"):
            text = text.replace(key, re.sub("([A-Z])", r"_\1", key).lower())
        file.write_text(text)
    assert "data_deps" in files[0].read_text()
    assert seconds(files) == lasts_s


def test_the_json_of_chakras_feeder_is_read(tmp_path: Path) -> None:
    files = [tmp_path / f"graph.{rank}.json" for rank in range(4)]
    for file in files:
        file.write_text(GRAPH)
    # The call on the processor takes its time; the kernel is a ring of four at 1 GB/s.
    assert seconds(files) == pytest.approx(0.25 + 0.05 + 1.5, rel=1e-9)
    files[0].write_text(GRAPH.replace('"comm_type": 0,', ""))
    with pytest.raises(
        BadInput,
        match=r"graph\.0\.json: node 7: a COMM_COLL_NODE without comm_type",
    ):
        read_chakra(files)


ASTRA = "topology: [{}]\nnpus_count: [{}]\nbandwidth: [{}]  # GB/s\nlatency: [{}]  # ns\n"


def test_network_files_of_astra_sim_have_its_closed_forms(
    tmp_path: Path,
) -> None:
    def network(*values: str) -> str:
        (tmp_path / "net.yml").write_text(ASTRA.format(*values))
        return f"astra:{tmp_path}/net.yml"

    ring = written(tmp_path, [[meets(1, "ALL_REDUCE", 1 << 20)]] * 8)
    # 14 steps of an eighth of a MiB; a GB/s is 2**30 bytes a second, a switch is two links.
    step_s = (1 << 17) / (50 * 2**30)
    expected = {
        ("Ring", "8", "50", "500"): 14 * (step_s + 500e-9),
        ("FullyConnected", "8", "50", "500"): 14 * (step_s + 500e-9),
        ("Switch", "8", "50.0", "500.0"): 14 * (step_s + 1000e-9),
        # From 1 to 2 it goes through both dimensions: the narrower and all latencies count.
        ("Ring, Switch", "2, 4", "200, 50", "50, 500"): 14
        * (step_s + 1050e-9),
    }
    for values, lasts_s in expected.items():
        assert seconds(ring, spec=network(*values)) == pytest.approx(
            lasts_s, rel=1e-9
        ), values
    # Ring 2 x mesh 4 x switch 2: 0 is next to 1 in the ring, 2 in the mesh, and 8 at the switch.
    spec = network(
        "Ring, FullyConnected, Switch",
        "2, 4, 2",
        "200, 100, 50",
        "50, 500, 2000",
    )
    for other, gb_s, latency_s in (
        (1, 200, 50e-9),
        (6, 100, 500e-9),
        (8, 50, 4e-6),
    ):
        ranks = [[node(1, "COMP_NODE", s=1e-9)] for _ in range(16)]
        ranks[0] = [exchange(1, "SEND", other, 1 << 30)]
        ranks[other] = [exchange(1, "RECV", 0, 1 << 30)]
        lasts_s = seconds(written(tmp_path, ranks), spec=spec)
        assert lasts_s == pytest.approx(1 / gb_s + latency_s, rel=1e-9), other
    for values, said in (
        (("Torus", "8", "50", "500"), "topology is .*expected a list of Ring"),
        (("Ring", "8, 2", "50", "500"), "npus_count is .*for each dimension"),
        (
            ("Ring", "1", "50", "500"),
            "npus_count is .*a whole number of 2 or more",
        ),
        (
            ("Ring", "8", "tbd", "500"),
            "bandwidth is .*a number of 1e-09 or more",
        ),
        (("Ring", "8", "50", "-1"), "latency is .*0 or more"),
        (("FullyConnected", "9999", "50", "0"), "99,980,001 links"),
    ):
        with pytest.raises(BadInput, match=said):
            network_of(network(*values))
    (tmp_path / "net.yml").write_text("topology: [Ring]\n")
    with pytest.raises(
        BadInput,
        match=r"not a network file of ASTRA-sim: expected topology, npus_co",
    ):
        network_of(f"astra:{tmp_path}/net.yml")
    with pytest.raises(BadInput, match="cannot read the network file"):
        network_of("astra:none.yml")


def test_several_jobs_share_a_network(tmp_path: Path) -> None:
    for name, size in (("a", 10**9), ("b", 2 * 10**9)):
        (tmp_path / name).mkdir()
        far = [exchange(1, "SEND", 1, size)], [exchange(1, "RECV", 0, size)]
        written(tmp_path / name, far)
    # Two leaves of two: a has 0 and 1, b has 2 and 3; each pair is on one leaf.
    a, b = (str(tmp_path / name / "job") for name in "ab")
    out = str(tmp_path / "out")
    spec = "leaf-spine:leaves=4,hosts=1,spines=1,rate=8Gbps,latency=0ns"
    arguments = ["--network", spec, "--output", out, "--json"]
    found = json.loads(
        simulated("--chakra", a, "--chakra", f"{b}@+30s", *arguments).stdout
    )
    said = [
        (each["first_node"], each["begins_s"], each["completion_s"])
        for each in found["jobs"]
    ]
    assert said == [
        (0, 0.0, pytest.approx(1.0)),
        (2, 30.0, pytest.approx(2.0)),
    ]
    assert (found["ranks"], found["completion_s"]) == (4, pytest.approx(32.0))
    shown = simulated("--chakra", a, "--chakra", f"{b}@+30s", *arguments[:-1])
    assert f"{b} from 30 s: 2 ranks, 1 operations" in shown.output
    assert "All are done after 32 s" in shown.output
    # On the same link each has half of it until the first is done.
    jobs = [
        read_chakra([tmp_path / name / f"job.{rank}.json" for rank in (0, 1)])
        for name in "ab"
    ]
    nodes = [np.array([0, 2]), np.array([1, 3])]
    shared = network_of(
        "leaf-spine:leaves=2,hosts=2,spines=1,taper=2,rate=8Gbps,latency=0ns"
    )
    placed = [
        PlacedTrace(job, each) for job, each in zip(jobs, nodes, strict=True)
    ]
    assert run_chakra(shared, placed) == pytest.approx([2.0, 3.0])
    later = [placed[0], placed[1]._replace(begins_s=0.5)]
    assert run_chakra(shared, later) == pytest.approx([1.5, 2.5])
    for more, words in (
        (
            ["--chakra", b, "--chakra", a],
            "has 4 nodes: the Chakra jobs need 6",
        ),
        (["--chakra", f"{b}@+30"], "'30' is not a time"),
    ):
        refused = simulated("--chakra", a, *more, *arguments)
        assert isinstance(refused.exception, BadInput), refused.output
        assert words in refused.exception.message


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        (
            [[node(1, "COMP_NODE", [2], 1.0), node(2, "COMP_NODE", [1], 1.0)]],
            r"in a cycle: .*job\.0\.json: node [12]",
        ),
        (
            [[node(1, "COMP_NODE", [8], 1.0)]],
            r"job\.0\.json: node 1 waits for the unknown node 8",
        ),
        ([[node(1, "COMPUTE", s=1.0)]], r"node 1: no type COMPUTE"),
        (
            [[node(1, "INVALID_NODE", s=1.0)]],
            r"node 1: no type INVALID_NODE: (?!.*'INVALID_NODE')",
        ),
        (
            [[node(1, "COMP_NODE", s=-5.0)]],
            r"job\.0\.json: node 1 lasts -5000000 µs",
        ),
        (
            [[node(1, "COMP_NODE"), node(1, "COMP_NODE")]],
            r"node 1: two nodes",
        ),
        (
            [[meets(1, "ALL_REDUCE", 9)], IDLE],
            r"node 1: rank 1 does not take part",
        ),
        (
            [[meets(1, "GATHER", 9)]] * 2,
            r"node 1: collectives of the type GATHER",
        ),
        (
            [[meets(1, "ALL_REDUCE", n)] for n in (8, 9)],
            r"node 1: ranks differ",
        ),
        (
            [[node(1, "COMM_COLL_NODE", comm_size=3)]] * 2,
            r"node 1: .* without comm_type",
        ),
        ([[meets(1, "ALL_REDUCE", -9)]] * 2, r"node 1: comm_size is -9"),
        (
            [[node(1, "COMM_SEND_NODE", comm_dst=1, comm_size=3)], IDLE],
            r"node 1: no other rank",
        ),
        (
            [IDLE, [node(1, "COMM_RECV_NODE", comm_src=0, comm_size=3)]],
            r"node 1: no other rank",
        ),
        ([IDLE, []], r"job\.1\.json has no nodes"),
        (
            [[node(1, "COMP_NODE"), node(2, "METADATA_NODE", [1])]],
            r"have no durations",
        ),
        (
            [[node(1, "COMM_SEND_NODE", comm_dst=0, comm_size=3)]],
            r"node 1: rank 0 cannot",
        ),
        (
            [[node(1, "COMP_NODE", num_ops=7)]],
            r"node 1 has a number of operations",
        ),
        ([], "at least one rank"),
    ],
)
def test_traces_that_make_no_sense_are_refused_with_file_and_node(
    tmp_path: Path, ranks: list[list[Node]], said: str
) -> None:
    with pytest.raises(BadInput, match=said):
        read_chakra(written(tmp_path, ranks))


def test_files_that_are_no_traces_and_jobs_that_do_not_fit_are_refused(
    tmp_path: Path,
) -> None:
    for name, content, said in (
        ("cut.et", b"\x00\x20\x08", "ends within a message"),
        ("long.et", b"\xff" * 9, "no length at byte 0"),
        ("other.et", b"\x00\x02\x0a\xff", "not a Chakra trace"),
        ("other.json", b'{} {"id": []}', "not a Chakra trace in JSON"),
        ("list.json", b"{} []", "not a Chakra trace in JSON"),
        ("marked.json", b'\xef\xbb\xbf{"a": 1}', "its first object has a"),
        ("empty.et", b"", "has no nodes"),
        ("empty.json", b"", "has no nodes"),
        ("metadata.json", b'{"version": "0.0.4"}', "has no nodes"),
        ("any.json", b'{"a": 1}', "its first object has a"),
        ("any.json", b"[1, 2]", "expected an object"),
        ("node.et", b"\x02\x08\x01", "does not begin with its metadata"),
        ("deep.json", b"[" * 100_000, "maximum recursion depth"),
        (
            "graph.json",
            b'{"workload_graph": [{"Id": 1}]}',
            "not a Chakra trace in JSON.*'NodeType'",
        ),
        (
            "pytorch.et",
            b'{"schema": "1.0.2-chakra.0.0.4", "nodes": []}',
            "an execution trace of",
        ),
        ("kineto.json", b'{"traceEvents": []}', "a Kineto trace of PyTorch"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(BadInput, match=said) as caught:
            read_chakra([tmp_path / name])
        foreign = "PyTorch" in caught.value.message
        assert not foreign or "chakra_trace_link" in (
            caught.value.hint or ""
        ), name
    with pytest.raises(BadInput, match="cannot be read"):
        read_chakra([tmp_path / "none.et"])
    job = read_chakra(written(tmp_path, [training(rank) for rank in range(4)]))
    with pytest.raises(BadInput, match="4 ranks got 3 nodes"):
        run_chakra(IDEAL, [PlacedTrace(job, np.arange(3))])
    broken = Trouble(failures=[Failure("node", 0, 1.0, 2.0)])
    with pytest.raises(BadInput, match="no checkpoints"):
        run_chakra(IDEAL, [PlacedTrace(job, np.arange(4))], broken)


def simulated(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["simulate", *arguments])


def test_traces_from_the_command_line(tmp_path: Path) -> None:
    written(tmp_path, [training(rank) for rank in range(4)])
    out = ["--output", str(tmp_path / "out")]
    spec = "ideal:nodes=8,rate=8Gbps,latency=0ns"
    network = ["--network", spec]
    done = simulated("--chakra", str(tmp_path / "job"), *network, *out)
    assert done.exit_code == 0, done.output
    assert f"4 ranks, 14 operations on {spec}: 4.875 s" in done.output
    found = json.loads((tmp_path / "out/result.json").read_text())
    assert (found["experiment"], found["nodes"], found["compute_s"]) == (
        "chakra",
        8,
        0.875,
    )
    # One of the files stands for all of them; with a slow node and a link that fails.
    trouble = ["--slow", "2:3.0", "--failures", "link:0@1s+1s"]
    one = simulated(
        "--chakra",
        str(tmp_path / "job.2.json"),
        *network,
        *out,
        *trouble,
        "--json",
    )
    found = json.loads(one.stdout)
    assert found["completion_s"] == pytest.approx(
        0.75 + 1.5 + 1.0 + 3.0 + 0.375, rel=1e-9
    )
    assert found["slow"] == ["2:3.0"]
    # The time of computations is that of their operations, where they say only these.
    written(
        tmp_path, [[node(n, "COMP_NODE", num_ops=10**12) for n in (1, 2)]] * 4
    )
    done = simulated(
        "--chakra",
        str(tmp_path / "job"),
        *network,
        *out,
        "--peak-flops",
        "2e12",
    )
    assert (
        ": 1 s; the busiest GPU stream or CPU thread computes for 1 s in total"
        in done.output
    )


def test_what_cannot_be_simulated_is_said_with_its_place(
    tmp_path: Path,
) -> None:
    written(tmp_path, [[node(1, "COMP_NODE", [8], 1.0)]] * 3)
    written(tmp_path, [training(0)], ".et")
    job = str(tmp_path / "job")
    network = ["--network", "ideal:nodes=4"]
    said = {
        (
            job,
            *network,
        ): "both .*job.RANK.et and .*job.RANK.json",
        (
            f"{job}.0.json",
            *network,
        ): r"job\.0\.json: node 1 waits for the unknown node 8",
        (
            str(tmp_path / "jib"),
            *network,
        ): r"no Chakra trace .*jib\.0\.et",
        (f"{job}.0.et",): "--chakra needs a --network",
        (
            f"{job}.0.et",
            *network,
            "--jobs",
            "3",
            "--order",
            "srpt",
        ): "excludes --jobs, --order",
    }
    for arguments, words in said.items():
        refused = simulated("--chakra", *arguments)
        assert isinstance(refused.exception, BadInput), refused.output
        assert re.search(words, refused.exception.message), (
            refused.exception.message
        )
    (tmp_path / "job.1.json").unlink()
    missing = simulated("--chakra", f"{job}.2.json", *network)
    assert isinstance(missing.exception, BadInput)
    assert re.search(
        r"job\.1\.json is missing: rank 2", missing.exception.message
    )
    speed = simulated("--trace", "helios", "--peak-flops", "312e12")
    assert isinstance(speed.exception, BadInput)
    assert "--peak-flops needs --chakra" in speed.exception.message
    nothing = simulated(*network)
    assert isinstance(nothing.exception, BadInput)
    assert "give a --trace FILE, or --chakra" in nothing.exception.message
