"""``patchlight ocs connect``: ends joined by name, over several circuit switches."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from patchlight.cli.main import cli
from patchlight.testbed.errors import BadInput
from patchlight.testbed.labfile.reader import builtin_lab


@pytest.fixture
def lab_file(tmp_path: Path) -> Path:
    path = tmp_path / "lab.yaml"
    path.write_text(
        builtin_lab("four-ocs").read_text().replace("calient-tl1", "dry-run")
    )
    return path


def light(lab_file: Path, *arguments: str) -> Result:
    options = [
        "--lab",
        str(lab_file),
        "--direct",
        "--state",
        str(lab_file.parent / "state"),
    ]
    return CliRunner().invoke(cli, ["ocs", "connect", *arguments, *options])


def test_a_path_over_two_circuit_switches_is_lit(lab_file: Path) -> None:
    result = light(lab_file, "server1.nic0:tor2", "--yes", "--json")
    assert result.exit_code == 0, result.output
    record = json.loads(result.output)
    assert record["state"] == "committed"
    assert len(record["changes"]) == 2
    # Nothing is changed by a rehearsal.
    shown = light(lab_file, "server2:server9", "--dry-run")
    assert shown.exit_code == 0, shown.output
    assert "link up: server2.nic0" in shown.output


@pytest.mark.parametrize("text", ["a:b:c", ":tor1"])
def test_what_is_no_pair_is_refused(lab_file: Path, text: str) -> None:
    error = light(lab_file, text).exception
    assert isinstance(error, BadInput)
    assert "is not a pair: expected A:B, like server1.nic0:tor1" in str(error)
