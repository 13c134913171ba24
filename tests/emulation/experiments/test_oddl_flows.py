"""``patchlight experiment oddl --flows``: what is compared, what a speedup is made of."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from patchlight.cli.main import cli
from patchlight.emulation.experiments import paper
from patchlight.emulation.experiments.oddl.conditions import (
    MIXTURE,
    JobArrivals,
    workload,
)
from patchlight.emulation.experiments.oddl.run import FlowOptions, run_flows
from patchlight.emulation.simulator.executors import Engine
from patchlight.emulation.simulator.network.specs import network_of
from patchlight.testbed.errors import BadInput
from tests.support.figures import for_a_paper

# Loops are compiled once, where nothing is on the disk yet.
pytestmark = pytest.mark.xdist_group("networks")


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    options = FlowOptions(
        models=("vgg19", MIXTURE),
        nodes=(4, 16),
        radix=4,
        draws=2,
        engine=Engine("processes", 1),
    )
    return run_flows(options, lambda done, count: None)


def test_the_steps_of_a_speedup_multiply_to_it(result: dict[str, Any]) -> None:
    for model, by_nodes in result["decomposition"].items():
        for nodes, compared in by_nodes.items():
            for name, steps in compared.items():
                factors = np.cumprod([each["factor"] for each in steps])
                assert factors == pytest.approx(
                    [each["speedup"] for each in steps]
                )
                assert [each["step"] for each in steps][-2:] == [
                    "compute",
                    "overlap",
                ]
                shown = result["speedups"][model][nodes][name]
                assert shown == pytest.approx(steps[-2]["speedup"])
                least, most = result["speedup_ranges"][model][nodes][name]
                assert least <= shown * (1 + 1e-9)
                assert shown <= most * (1 + 1e-9)


def test_alone_in_a_whole_cluster_a_ring_gains_nothing(
    result: dict[str, Any],
) -> None:
    """Well-placed rings do not share links, on a tree or a ring of fibre: f = 1."""
    for name in ("fat_tree", "sip_ring", "ideal"):
        assert result["speedups"]["vgg19"]["16"][name] == pytest.approx(
            1.0, abs=0.01
        )
    assert result["speedups"]["vgg19"]["16"]["fat_tree_2_1"] > 1.1
    # An all-to-all crosses segments of the fibre that other parts of it need.
    assert result["speedups"][MIXTURE]["16"]["sip_ring"] > 1.1


def test_only_the_column_paper_knows_the_published_speedups() -> None:
    for file in (Path(paper.__file__).parent / "oddl").rglob("*.py"):
        assert not re.search(r"\b1\.[67]\b", file.read_text()), file.name


@pytest.mark.parametrize("size", [8, 64, 128])
def test_a_job_finds_free_nodes_beside_others(size: int) -> None:
    arrivals = JobArrivals("fat-tree:k=8", seed=3)
    found = arrivals.around(size)
    held = np.concatenate([found.nodes, *found.neighbours])
    assert len(found.nodes) == size
    assert len(set(held.tolist())) == len(held)
    assert (len(found.neighbours) > 0) == (size < 128)
    again = arrivals.around(size)
    assert (again.nodes == found.nodes).all()


def test_jobs_come_as_in_a_trace(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    rows = [
        f"2017-10-09 07:{m:02d}:00,600,{1 << m % 4},600,a" for m in range(60)
    ]
    trace.write_text(
        "timestamp,duration,num_gpus,gpu_time,cluster\n"
        + "\n".join(rows)
        + "\n"
    )
    found = JobArrivals("fat-tree:k=4", trace).around(4)
    assert len(found.nodes) == 4
    large = tmp_path / "large.csv"
    large.write_text(
        "timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 07:01:55,9,99,9,a\n"
    )
    with pytest.raises(BadInput, match="fits on 16 nodes"):
        JobArrivals("fat-tree:k=4", large).around(4)


def test_models_compute_and_send() -> None:
    assert workload("vgg19").gradient_bytes == pytest.approx(574.7e6, rel=1e-3)
    # To experts and back in 6 layers, twice: an all-to-all in groups, and the gradient's ring.
    nodes = np.arange(128)
    assert (
        len(workload(MIXTURE).rounds(network_of("oddl:nodes=128"), nodes))
        == 63 + 1
    )
    # Packet switches need no turns.
    assert (
        len(workload(MIXTURE).rounds(network_of("fat-tree:k=8"), nodes))
        == 1 + 1
    )
    with pytest.raises(BadInput, match="did you mean 'vgg19'"):
        workload("vgg16")


def test_the_command_prints_writes_and_says_what_there_is_not(
    tmp_path: Path,
) -> None:
    given = [
        "--quick",
        "--model",
        "vgg19",
        "--nodes",
        "16",
        "--processes",
        "1",
    ]
    given += ["--control-delay", "3ms"]
    words = [
        "experiment",
        "oddl",
        "--flows",
        *given,
        "--output",
        str(tmp_path),
    ]
    done = CliRunner().invoke(cli, words, env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.output
    tables = [line for line in done.output.splitlines() if " × " in f"{line} "]
    assert len(tables) == 1
    assert max(map(len, tables)) <= 80
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["light"]["control_s"] == 0.003
    assert "A100" in result["gpu"]
    assert set(result["speedups"]["vgg19"]["16"]) == {
        "fat_tree",
        "fat_tree_2_1",
        "sip_ring",
        "ideal",
    }
    for plot in ("speedups", "decomposition"):
        text = for_a_paper(tmp_path / f"{plot}.svg")
        assert "vgg19" in text
        assert "paper" not in text  # which has no figure for 16 nodes
        assert "× 1.00 " not in text  # of a step that changes nothing
    wrong = CliRunner().invoke(
        cli, ["experiment", "oddl", "--flows", "--nodes", "16,4096"]
    )
    assert isinstance(wrong.exception, BadInput)
    assert "expected 2 to 1024" in str(wrong.exception)
