"""``patchlight experiment oddl --readings``: which readings give the published speedups."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from patchlight.cli.main import cli
from patchlight.emulation.experiments.oddl.readings import NEAR, run_readings
from patchlight.emulation.experiments.paper import SPEEDUPS
from patchlight.testbed.errors import BadInput
from patchlight.testbed.graphs.layers import GPUS
from tests.support.figures import for_a_paper

# Loops are compiled once, where nothing is on the disk yet.
pytestmark = pytest.mark.xdist_group("networks")

PUBLISHED = SPEEDUPS["vgg19", 1024]
# 2:1 in order, and waves split over both ways of five fibres.
TREE = "fat-tree:k=16,taper=2"
SIP = "sip-ring:nodes=1024,directions=2,fibres=5"


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return run_readings(16, "vgg19", 0)


def speedup(result: dict[str, Any], gpu: str, **wanted: Any) -> float:
    (row,) = [
        row
        for row in result["readings"]
        if wanted.items() <= row.items() and not row["load"]
    ]
    return float(row["speedups"][gpu])


def test_one_reading_gives_both_published_speedups(
    result: dict[str, Any],
) -> None:
    ring = {"collective": "ring", "placement": "in order"}
    over_tree = speedup(result, "a100-tf32", spec=TREE, **ring)
    over_sip = speedup(result, "a100-tf32", spec=SIP, **ring)
    assert over_tree == pytest.approx(PUBLISHED["fat_tree"], abs=NEAR)
    assert over_sip == pytest.approx(PUBLISHED["sip_ring"], abs=NEAR)
    # Slower GPUs hide what the network does.
    assert speedup(result, "a100", spec=TREE, **ring) < over_tree - 0.3
    assert speedup(result, "h100-tf32", spec=TREE, **ring) > over_tree + 0.1


def test_readings_are_told_apart_and_counted(result: dict[str, Any]) -> None:
    rows = result["readings"]
    assert len(rows) >= 12
    assert len({str(row["spec"]) + str(row) for row in rows}) == len(rows)
    for gpu, compute_s in result["compute_s"].items():
        for row in rows:
            m = row["oddl_s"]
            expected = (compute_s + row["f"] * m) / (compute_s + m)
            assert row["speedups"][gpu] == pytest.approx(expected)
        for compared, numbers in result["given_by"][gpu].items():
            near = [
                number
                for number, row in enumerate(rows)
                if row["compared"] == compared
                and abs(row["speedups"][gpu] - PUBLISHED[compared]) <= NEAR
            ]
            assert numbers == near
    assert set(result["gpus"]) == set(GPUS) == set(result["compute_s"])


def test_the_command_prints_and_writes_them(tmp_path: Path) -> None:
    words = ["experiment", "oddl", "--readings", "--quick"]
    done = CliRunner().invoke(
        cli, [*words, "--output", str(tmp_path)], env={"COLUMNS": "80"}
    )
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert max(len(line) for line in lines if " × " in line) <= 80
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["nodes"] == 128
    assert "vgg19" in for_a_paper(tmp_path / "readings.svg")
    for wrong, said in (
        (["--flows"], "--flows is not for --readings"),
        (["--nodes", "16"], "--nodes is not for --readings"),
        (["--model", "vgg19", "--model", "gpt2"], "one --model"),
    ):
        refused = CliRunner().invoke(cli, [*words, *wrong])
        assert isinstance(refused.exception, BadInput)
        assert said in str(refused.exception)
