"""What a rank does at the same time: lanes of GPU, CPU and network, streams, and cycles."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from patchlight.emulation.simulator.network.chakra import (
    PlacedTrace,
    run_chakra,
)
from patchlight.emulation.simulator.network.chakra_job import read_chakra
from patchlight.emulation.simulator.network.specs import network_of
from patchlight.testbed.errors import BadInput
from tests.support.chakra_traces import Node, exchange, meets, node, written

# Loops are compiled once, where nothing is on the disk yet.
pytestmark = pytest.mark.xdist_group("networks")

IDEAL = network_of("ideal:nodes=4,rate=8Gbps,latency=0ns")
GB = 10**9


def lasts_s(
    folder: Path, ranks: Sequence[Sequence[Node]], suffix: str = ".json"
) -> float:
    job = read_chakra(written(folder, ranks, suffix))
    [found] = run_chakra(IDEAL, [PlacedTrace(job, np.arange(4))])
    return found


def kernel(
    number: int, needs: Sequence[int] = (), s: float = 1.0, stream: int = 7
) -> Node:
    return node(
        number, "COMP_NODE", needs, s, is_cpu_op=False, stream=stream, tid=1
    )


def call(
    number: int, needs: Sequence[int] = (), s: float = 1.0, tid: int = 1
) -> Node:
    # Chakra's converter gives the stream 0 to what has none.
    return node(
        number, "COMP_NODE", needs, s, is_cpu_op=True, stream=0, tid=tid
    )


@pytest.mark.parametrize("suffix", [".json", ".et"])
def test_streams_and_threads_of_the_trace_are_a_lane_each(
    tmp_path: Path, suffix: str
) -> None:
    # As PyTorch's traces are converted: kernels depend on their launchers only.
    launched = [
        call(1, s=0.25),
        kernel(2, [1]),
        call(3, [1], s=0.25),
        kernel(4, [3]),
    ]
    assert lasts_s(tmp_path, [launched], suffix) == pytest.approx(
        0.25 + 2.0, rel=1e-9
    )
    two_streams = [
        *launched,
        call(5, [3], s=0.25),
        kernel(6, [5], s=2.0, stream=20),
    ]
    assert lasts_s(tmp_path, [two_streams], suffix) == pytest.approx(
        0.75 + 2.0, rel=1e-9
    )
    threads = [call(1), call(2), call(3, tid=9)]
    assert lasts_s(tmp_path, [threads], suffix) == pytest.approx(2.0, rel=1e-9)
    assert read_chakra(
        written(tmp_path, [threads], suffix)
    ).compute_s == pytest.approx(2.0)


def test_a_stream_keeps_its_order(tmp_path: Path) -> None:
    # Kernel 2 waits for another stream, so 3 waits behind it though it needs nothing.
    blocked = [kernel(1, s=5.0, stream=20), kernel(2, [1]), kernel(3)]
    assert lasts_s(tmp_path, [blocked]) == pytest.approx(7.0, rel=1e-9)
    assert lasts_s(tmp_path, [blocked[::-1]]) == pytest.approx(7.0, rel=1e-9)
    # It is the order in which they began, where the trace says it; else that of their numbers.
    began = [
        each | {"starts": at}
        for each, at in zip(blocked, (10, 30, 20), strict=True)
    ]
    for suffix in (".json", ".et"):
        assert lasts_s(tmp_path, [began], suffix) == pytest.approx(
            6.0, rel=1e-9
        )
    # A kernel's needs come before the order of its stream; that is counted.
    against = [kernel(1, [2]), kernel(2)]
    assert lasts_s(tmp_path, [against]) == pytest.approx(2.0, rel=1e-9)
    notes = read_chakra(written(tmp_path, [against])).notes
    assert notes == {
        "operations moved ahead on their stream, because others need them": 1
    }
    # A collective holds up the streams of all its ranks.
    reduces = meets(1, "ALL_REDUCE", GB)
    reduces["attr"]["stream"] = 7
    late = [kernel(0, s=3.0, stream=20), reduces | {"needs": [0]}]
    assert lasts_s(
        tmp_path, [late, [reduces, kernel(2, s=0.5)]]
    ) == pytest.approx(4.5, rel=1e-9)


def test_without_streams_the_first_that_is_ready_goes_first(
    tmp_path: Path,
) -> None:
    # 2 waits for the other rank: 3 does not wait behind it.
    gets = exchange(1, "RECV", 0, GB)
    ranks = [
        [node(1, "COMP_NODE", s=4.0), exchange(2, "SEND", 1, GB, [1])],
        [gets, node(2, "COMP_NODE", [1], 1.0), node(3, "COMP_NODE", s=3.0)],
    ]
    assert lasts_s(tmp_path, ranks) == pytest.approx(6.0, rel=1e-9)


def test_communication_takes_turns(tmp_path: Path) -> None:
    def rank(*streams: int) -> list[Node]:
        first = meets(1, "ALL_REDUCE", GB)
        second = meets(2, "ALL_REDUCE", GB)
        for each, stream in zip((first, second), streams, strict=False):
            each["attr"]["stream"] = stream
        return [first, second, node(3, "COMP_NODE", [1], 1.0)]

    # Rings of four move 1.5 times the bytes: one after the other, or both at half the rate.
    assert lasts_s(tmp_path, [rank()] * 4) == pytest.approx(3.0, rel=1e-9)
    assert lasts_s(tmp_path, [rank(20, 20)] * 4) == pytest.approx(
        3.0, rel=1e-9
    )
    assert lasts_s(tmp_path, [rank(20, 24)] * 4) == pytest.approx(
        4.0, rel=1e-9
    )
    # Groups that overlap in rank 1 take turns there; receives do not hold anything up.
    pair = (
        [meets(1, "ALL_REDUCE", GB, group="a")],
        [meets(1, "ALL_REDUCE", GB, group="b")],
    )
    both = [pair[0][0], meets(2, "ALL_REDUCE", GB, group="b")]
    assert lasts_s(tmp_path, [pair[0], both, pair[1]]) == pytest.approx(
        2.0, rel=1e-9
    )
    sends = [
        [exchange(1, "SEND", 1, GB)],
        [exchange(1, "RECV", 0, GB), exchange(2, "SEND", 2, GB)],
    ]
    assert lasts_s(
        tmp_path, [*sends, [exchange(1, "RECV", 1, GB)]]
    ) == pytest.approx(1.0)


def test_jobs_beside_each_other_share_no_lanes_and_pay_for_their_circuits(
    tmp_path: Path,
) -> None:
    apart = [node(1, "COMP_NODE", s=1.0), node(2, "COMP_NODE", s=1.0)]
    job = read_chakra(written(tmp_path, [apart]))
    placed = [
        PlacedTrace(job, np.array([n]), at) for n, at in ((0, 0.0), (1, 30.0))
    ]
    assert run_chakra(IDEAL, placed) == pytest.approx([2.0, 2.0])
    # The second collective waits for the first, then for its own circuits; the setup is paid once.
    reduces = [meets(1, "ALL_REDUCE", GB), meets(2, "ALL_REDUCE", GB)]
    light = network_of(
        "oddl:nodes=4,rate=8Gbps,latency=0ns,switching=1ms,setup=100ms"
    )
    job = read_chakra(written(tmp_path, [reduces] * 4))
    later = [PlacedTrace(job, np.arange(4), 30.0)]
    assert run_chakra(light, later) == pytest.approx(
        [3.0 + 0.1 + 2e-3], rel=1e-9
    )


def any_trace(seed: int) -> list[list[Node]]:
    """Two ranks that compute on several lanes, with dependencies in any order of numbers."""
    chance = random.Random(seed)
    ranks = []
    for _ in range(2):
        numbers = chance.sample(range(1, 90), chance.randint(1, 25))
        nodes = []
        for at, number in enumerate(numbers):
            needs = chance.sample(
                numbers[:at], min(at, chance.choice((0, 0, 1, 2)))
            )
            s = chance.randint(1, 9) / 8
            attr = {"is_cpu_op": True} if chance.random() < 0.3 else {}
            kind = chance.choice(
                ("COMP_NODE", "COMP_NODE", "MEM_LOAD_NODE", "CHECKPOINT_NODE")
            )
            nodes.append(node(number, kind, needs, s, **attr))
        ranks.append(chance.sample(nodes, len(nodes)))
    return ranks


def by_the_rule(nodes: Sequence[Node]) -> float:
    """Second by second: of what is ready, each free lane takes the first by number."""
    ends: dict[int, float] = {}
    free: dict[str, float] = {}
    waits = sorted(nodes, key=lambda each: int(each["id"]))
    now = 0.0
    while waits:
        for each in list(waits):
            lane = "CPU" if "is_cpu_op" in each["attr"] else each["type"]
            ready = all(
                ends.get(need, np.inf) <= now for need in each["needs"]
            )
            if ready and free.get(lane, 0.0) <= now:
                ends[each["id"]] = free[lane] = now + each["micros"] / 1e6
                waits.remove(each)
        now += 1 / 8
    return max(ends.values())


def test_random_traces_take_what_the_rule_says(tmp_path: Path) -> None:
    for seed in range(60):
        ranks = any_trace(seed)
        expected_s = max(map(by_the_rule, ranks))
        assert lasts_s(tmp_path, ranks) == pytest.approx(
            expected_s, rel=1e-9
        ), seed


def mixed_trace(seed: int) -> list[list[Node]]:
    """Four ranks that compute, meet and send to each other, some of it on streams."""
    chance = random.Random(seed)
    ranks: list[list[Node]] = [[] for _ in range(4)]

    def add(rank: int, each: Node) -> None:
        own = ranks[rank]
        numbers = [before["id"] for before in own]
        needs = chance.sample(
            numbers, min(len(numbers), chance.choice((0, 1, 1, 2)))
        )
        own.append(each | {"id": len(own) + 1, "needs": needs})
        if chance.random() < 0.4:
            own[-1]["attr"] = {
                **each["attr"],
                "stream": chance.choice((7, 20)),
            }

    for _ in range(40):
        kind = chance.choice(("compute", "compute", "reduce", "send"))
        size = chance.randint(1, 9) * 10**8
        if kind == "compute":
            s = chance.randint(1, 9) / 8
            add(
                chance.randrange(4),
                node(0, "COMP_NODE", s=s, is_cpu_op=chance.random() < 0.3),
            )
        elif kind == "reduce":
            members = chance.choice(((0, 1), (2, 3), (0, 1, 2, 3)))
            for rank in members:
                add(rank, meets(0, "ALL_REDUCE", size, group=f"of {members}"))
        else:
            source, destination = chance.sample(range(4), 2)
            add(source, exchange(0, "SEND", destination, size))
            add(destination, exchange(0, "RECV", source, size))
    return ranks


def mixed_results(folder: Path) -> list[float]:
    jobs = [
        read_chakra(written(folder, mixed_trace(seed))) for seed in range(25)
    ]
    spec = "leaf-spine:leaves=2,hosts=2,spines=1,taper=2,rate=8Gbps"
    return [
        run_chakra(network_of(spec), [PlacedTrace(job, np.arange(4))])[0]
        for job in jobs
    ]


@pytest.mark.skipif(
    not find_spec("numba"), reason="Numba is not installed: the extra 'fast'"
)
def test_compiled_and_interpreted_loops_agree(tmp_path: Path) -> None:
    program = (
        f"import pathlib\nfrom {__name__} import mixed_results\n"
        f"print(mixed_results(pathlib.Path({str(tmp_path)!r})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == mixed_results(tmp_path)


def circle_in(said: str) -> list[str]:
    places = said.partition("in a cycle: ")[2].split(" → ")
    return [place.rpartition("/")[2] for place in places]


def test_a_circle_is_named_whole_and_the_shortest(tmp_path: Path) -> None:
    long_one = [
        node(number, "COMP_NODE", [number % 6 + 1], 1.0)
        for number in range(1, 7)
    ]
    behind = [node(9, "COMP_NODE", [6], 1.0), node(10, "COMP_NODE", s=1.0)]
    with pytest.raises(BadInput) as caught:
        read_chakra(written(tmp_path, [behind + long_one]))
    assert circle_in(caught.value.message) == [
        "job.0.json: node 1",
        "node 2",
        "node 3",
        "node 4",
        "node 5",
        "node 6",
        "node 1",
    ]
    # Nothing is offered that would not help, with --skip-bad neither.
    for skip_bad in (False, True):
        with pytest.raises(BadInput) as caught:
            read_chakra(written(tmp_path, [behind + long_one]), skip_bad)
        assert "--skip-bad" not in (caught.value.hint or "")
        assert "never left out" in (caught.value.hint or "")
    short_cut = [
        each | {"needs": [2, 4]} if each["id"] == 6 else each
        for each in long_one
    ]
    short_cut = [
        each | {"needs": [5, 6]} if each["id"] == 4 else each
        for each in short_cut
    ]
    with pytest.raises(BadInput) as caught:
        read_chakra(written(tmp_path, [short_cut]))
    assert circle_in(caught.value.message) == [
        "job.0.json: node 4",
        "node 6",
        "node 4",
    ]
    # Through other ranks, with the node of the rank that waits.
    ranks = [
        [exchange(1, "RECV", 1, GB), exchange(2, "SEND", 1, GB, [1])],
        [exchange(7, "RECV", 0, GB), exchange(8, "SEND", 0, GB, [7])],
    ]
    with pytest.raises(BadInput) as caught:
        read_chakra(written(tmp_path, ranks))
    assert circle_in(caught.value.message) == [
        "job.0.json: node 1",
        "job.1.json: node 8",
        "node 7",
        "job.0.json: node 2",
        "node 1",
    ]
    # With a control dependency in it --skip-bad helps.
    control = [
        node(1, "COMP_NODE", s=1.0) | {"control": [2]},
        node(2, "COMP_NODE", [1], 1.0),
    ]
    with pytest.raises(BadInput) as caught:
        read_chakra(written(tmp_path, [control]))
    assert circle_in(caught.value.message) == [
        "job.0.json: node 1",
        "node 2",
        "node 1",
    ]
    assert "--skip-bad" in (caught.value.hint or "")
    many = [
        node(number, "COMP_NODE", [number % 900 + 1], 1.0)
        for number in range(1, 901)
    ]
    with pytest.raises(BadInput) as caught:
        read_chakra(written(tmp_path, [many]))
    assert circle_in(caught.value.message)[98:] == [
        "node 99",
        "node 100",
        "800 more",
    ]


def test_what_costs_time_is_counted_or_refused(tmp_path: Path) -> None:
    for kind in (
        "MEM_LOAD_NODE",
        "MEM_STORE_NODE",
        "STORAGE_NODE",
        "CHECKPOINT_NODE",
    ):
        hidden = [
            node(1, "COMP_NODE", s=1.0),
            node(2, kind, [1], tensor_size=GB),
        ]
        files = written(tmp_path, [hidden])
        with pytest.raises(
            BadInput, match=f"node 2 is a {kind} without a duration"
        ) as caught:
            read_chakra(files)
        assert "--skip-bad" in (caught.value.hint or "")
        job = read_chakra(files, skip_bad=True)
        assert job.notes == {
            f"{kind}s without a duration, assumed to take no time": 1
        }
        timed = [hidden[0], hidden[1] | {"micros": 500_000}]
        assert lasts_s(tmp_path, [timed]) == pytest.approx(1.5, rel=1e-9)
    nothing = [
        node(1, "COMP_NODE", s=1.0),
        meets(2, "ALL_REDUCE", 0),
        node(3, "COMP_NODE"),
        call(4, s=0.0),
    ]
    assert read_chakra(written(tmp_path, [nothing] * 2)).notes == {
        "COMM_COLL_NODEs of 0 bytes, which take no time": 1,
        "GPU computations that take no time": 2,
    }
    # A receive lasts as long as its send, whatever was measured.
    gets = exchange(1, "RECV", 0, GB) | {"micros": 9_000_000}
    ranks = [
        [exchange(1, "SEND", 1, GB)],
        [gets, node(2, "COMP_NODE", [1], 0.5)],
    ]
    assert lasts_s(tmp_path, ranks) == pytest.approx(1.5, rel=1e-9)


@pytest.mark.parametrize("suffix", [".json", ".et"])
def test_numbers_of_operations_need_the_speed_of_the_gpu(
    tmp_path: Path, suffix: str
) -> None:
    counted = node(1, "COMP_NODE", num_ops=3 * 10**12, tensor_size=8)
    files = written(
        tmp_path,
        [[counted, node(2, "COMP_NODE", [1], 0.5, num_ops=7)]],
        suffix,
    )
    for no_speed in (None, 0.0, -1.0):
        with pytest.raises(
            BadInput, match="node 1 has a number of operations"
        ) as caught:
            read_chakra(files, peak_flops=no_speed)
        assert "--peak-flops" in (caught.value.hint or "")
    job = read_chakra(files, peak_flops=2e12)
    # What was measured counts where it is there.
    assert run_chakra(
        IDEAL, [PlacedTrace(job, np.arange(4))]
    ) == pytest.approx([1.5 + 0.5])
    on_cpu = node(1, "COMP_NODE", num_ops=7, is_cpu_op=True)
    with pytest.raises(
        BadInput, match="node 1 has a number of operations"
    ) as caught:
        read_chakra(written(tmp_path, [[on_cpu]], suffix), peak_flops=2e12)
    assert "--peak-flops" not in (caught.value.hint or "")
    with pytest.raises(BadInput, match="num_ops is -7"):
        read_chakra(
            written(tmp_path, [[node(1, "COMP_NODE", num_ops=-7)]]),
            peak_flops=2e12,
        )
