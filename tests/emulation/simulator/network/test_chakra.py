"""Chakra traces as a job: their times against closed forms, and traces that make no sense."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from patchlight.cli.main import cli
from patchlight.emulation.simulator.network import Failure, Slowness, Trouble, network_of
from patchlight.emulation.simulator.network.chakra import COLLECTIVE_TYPES, read_chakra, run_chakra
from patchlight.emulation.simulator.network.chakra_file import NODE_TYPES
from patchlight.testbed.errors import BadInput

# Loops are compiled once, where nothing is on the disk yet.
pytestmark = pytest.mark.xdist_group("networks")

IDEAL = network_of("ideal:nodes=4,rate=8Gbps,latency=0ns")
Node = dict[str, Any]


def node(number: int, kind: str, needs: Sequence[int] = (), s: float = 0.0, **attr: Any) -> Node:
    return {
        "id": number,
        "type": kind,
        "needs": list(needs),
        "micros": round(s * 1e6),
        "attr": attr,
    }


def meets(number: int, what: str, size: int, needs: Sequence[int] = (), group: str = "") -> Node:
    attr: Node = {"comm_type": COLLECTIVE_TYPES.index(what), "comm_size": size}
    attr |= {"pg_name": group} if group else {}
    return node(number, "COMM_COLL_NODE", needs, **attr)


def varint(value: int) -> bytes:
    more = value >> 7
    return bytes([value & 0x7F | (0x80 if more else 0)]) + (varint(more) if more else b"")


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def binary(each: Mapping[str, Any]) -> bytes:
    """A node as the schema has it; needs as one packed list, and as repeated numbers."""
    message = field(1, each["id"]) + field(3, NODE_TYPES.index(each["type"]))
    message += field(2, b"a name") + field(5, b"".join(map(varint, each["needs"])))
    message += b"".join(field(4, need) for need in each["needs"])
    message += field(7, each["micros"]) if each["micros"] else b""
    for name, value in each["attr"].items():
        text = isinstance(value, str)
        inside = field(29, value.encode()) if text else field(9, value)
        message += field(10, field(1, name.encode()) + inside)
    return message


def as_json(each: Mapping[str, Any]) -> str:
    """As protobuf writes it: numbers of 64 bits as text, nothing for 0."""
    attr = [
        {"name": k, **({"stringVal": v} if isinstance(v, str) else {"int64Val": str(v)})}
        for k, v in each["attr"].items()
    ]
    found: Node = {"type": each["type"], "attr": attr}
    found |= {"id": str(each["id"])} if each["id"] else {}
    found |= {"dataDeps": [str(need) for need in each["needs"]]} if each["needs"] else {}
    found |= {"durationMicros": str(each["micros"])} if each["micros"] else {}
    return json.dumps(found, indent=2)


def written(folder: Path, ranks: Sequence[Sequence[Node]], suffix: str = ".json") -> list[Path]:
    files = [folder / f"job.{number}{suffix}" for number in range(len(ranks))]
    for file, nodes in zip(files, ranks, strict=True):
        if suffix == ".json":
            file.write_text('{"version": "0.0.4"}' + "".join(map(as_json, nodes)))
        else:
            messages = [field(1, b"0.0.4"), *map(binary, nodes)]
            file.write_bytes(b"".join(varint(len(each)) + each for each in messages))
    return files


def seconds(files: Sequence[Path], trouble: Trouble | None = None, spec: str = "") -> float:
    network = network_of(spec) if spec else IDEAL
    return run_chakra(network, read_chakra(files), np.arange(4), trouble or Trouble())


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
def test_a_training_step_takes_what_its_longest_way_takes(tmp_path: Path, suffix: str) -> None:
    files = written(tmp_path, [training(rank) for rank in range(4)], suffix)
    # A ring of four moves 1.5 times the bytes at 1 GB/s; computing hides behind the first one.
    assert seconds(files) == pytest.approx(0.25 + 1.5 + 3.0 + 0.125, rel=1e-9)
    slow = Trouble([Slowness(2, 3.0)])
    # Rank 2 computes 0.75 s, 1.5 s beside the first ring, and 0.375 s.
    assert seconds(files, slow) == pytest.approx(0.75 + 1.5 + 3.0 + 0.375, rel=1e-9)
    stalled = Trouble(failures=[Failure("link", 0, 1.0, 2.0)])
    assert seconds(files, stalled) == pytest.approx(5.875, rel=1e-9)
    # The network of light takes its time once, and each of two collectives has its circuits made.
    light = "oddl:nodes=4,rate=8Gbps,latency=0ns,switching=1ms,setup=100ms"
    assert seconds(files, spec=light) == pytest.approx(4.875 + 0.1 + 2e-3, rel=1e-9)


def test_collectives_of_groups_sends_and_all_types_have_their_closed_forms(tmp_path: Path) -> None:
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
        assert seconds(files) == pytest.approx(lasts_s, rel=1e-6, abs=1e-6), kind
    pairs = [
        [meets(1, "ALL_REDUCE", size, group=group), meets(2, "ALL_REDUCE", size, [1], group)]
        for group in ("a", "a", "b", "b")
    ]
    assert seconds(written(tmp_path, pairs)) == pytest.approx(1.6, rel=1e-9)
    sends = node(1, "COMM_SEND_NODE", comm_dst=1, comm_tag=3, comm_size=size)
    gets = node(4, "COMM_RECV_NODE", comm_src=0, comm_tag=3, comm_size=size)
    stages = [[sends], [gets, node(5, "COMP_NODE", [4], 0.1)]]
    assert seconds(written(tmp_path, stages)) == pytest.approx(0.9, rel=1e-9)


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        (
            [[node(1, "COMP_NODE", [2], 1.0), node(2, "COMP_NODE", [1], 1.0)]],
            r"in a circle: .*job\.0\.json: node [12]",
        ),
        ([[node(1, "COMP_NODE", [8], 1.0)]], r"job\.0\.json: node 1 waits for node 8"),
        ([[node(1, "COMPUTE", s=1.0)]], r"node 1: no type COMPUTE"),
        ([[node(1, "COMP_NODE"), node(1, "COMP_NODE")]], r"node 1: there are two"),
        ([[meets(1, "ALL_REDUCE", 9)], []], r"node 1: rank 1 does not take part"),
        ([[meets(1, "GATHER", 9)]] * 2, r"node 1: a collective of the type GATHER"),
        ([[meets(1, "ALL_REDUCE", n)] for n in (8, 9)], r"node 1: ranks do not agree"),
        ([[node(1, "COMM_COLL_NODE", comm_size=3)]] * 2, r"node 1: .* without comm_type"),
        ([[meets(1, "ALL_REDUCE", -9)]] * 2, r"node 1: comm_size is -9"),
        ([[node(1, "COMM_SEND_NODE", comm_dst=1, comm_size=3)], []], r"node 1: no other rank"),
        ([[node(1, "COMM_SEND_NODE", comm_dst=0, comm_size=3)]], r"node 1: rank 0 cannot"),
        ([[node(1, "COMP_NODE", num_ops=7)]], r"node 1 says how many operations"),
        ([], "at least one rank"),
    ],
)
def test_traces_that_make_no_sense_are_refused_with_file_and_node(
    tmp_path: Path, ranks: list[list[Node]], said: str
) -> None:
    with pytest.raises(BadInput, match=said):
        read_chakra(written(tmp_path, ranks))


def test_files_that_are_no_traces_and_jobs_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    for name, content, said in (
        ("cut.et", b"\x00\x20\x08", "ends within a message"),
        ("long.et", b"\xff" * 9, "no length at byte 0"),
        ("other.et", b"\x00\x02\x0a\xff", "no Chakra trace"),
        ("other.json", b'{} {"id": []}', "no Chakra trace as JSON"),
        ("list.json", b"{} []", "no Chakra trace as JSON"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(BadInput, match=said):
            read_chakra([tmp_path / name])
    with pytest.raises(BadInput, match="cannot be read"):
        read_chakra([tmp_path / "none.et"])
    operations = read_chakra(written(tmp_path, [training(rank) for rank in range(4)]))
    with pytest.raises(BadInput, match="4 ranks is given 3 nodes"):
        run_chakra(IDEAL, operations, np.arange(3))
    broken = Trouble(failures=[Failure("node", 0, 1.0, 2.0)])
    with pytest.raises(BadInput, match="no checkpoints"):
        run_chakra(IDEAL, operations, np.arange(4), broken)


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
    assert (found["experiment"], found["nodes"], found["compute_s"]) == ("chakra", 8, 0.875)
    # One of the files stands for all of them; with a slow node and a link that fails.
    trouble = ["--slow", "2:3.0", "--fail", "link:0@1s+1s"]
    one = simulated("--chakra", str(tmp_path / "job.2.json"), *network, *out, *trouble, "--json")
    found = json.loads(one.stdout)
    assert found["completion_s"] == pytest.approx(0.75 + 1.5 + 1.0 + 3.0 + 0.375, rel=1e-9)
    assert found["slow"] == ["2:3.0"]


def test_what_cannot_be_simulated_is_said_with_its_place(tmp_path: Path) -> None:
    written(tmp_path, [[node(1, "COMP_NODE", [8], 1.0)]] * 3)
    written(tmp_path, [training(0)], ".et")
    job, network = str(tmp_path / "job"), ["--network", "ideal:nodes=4"]
    said = {
        (job, *network): "there are Chakra traces .*job.RANK.et and .*job.RANK.json",
        (f"{job}.0.json", *network): r"job\.0\.json: node 1 waits for node 8",
        (str(tmp_path / "jib"), *network): r"there is no Chakra trace .*jib\.0\.et",
        (f"{job}.0.et",): "--chakra needs a --network",
        (f"{job}.0.et", *network, "--jobs", "3", "--order", "srpt"): "excludes --jobs, --order",
    }
    for arguments, words in said.items():
        refused = simulated("--chakra", *arguments)
        assert isinstance(refused.exception, BadInput), refused.output
        assert re.search(words, refused.exception.message), refused.exception.message
    (tmp_path / "job.1.json").unlink()
    missing = simulated("--chakra", f"{job}.2.json", *network)
    assert isinstance(missing.exception, BadInput)
    assert re.search(r"job\.1\.json is missing: rank 2", missing.exception.message)
    nothing = simulated(*network)
    assert isinstance(nothing.exception, BadInput)
    assert "give a --trace FILE, or --chakra" in nothing.exception.message
