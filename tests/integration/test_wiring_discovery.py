"""Looking for the wiring of an emulated lab in which two fibres were swapped."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from patchlight.cli.main import cli
from patchlight.emulation.lab.emulated_lab import EmulatedLab
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.labfile.reader import read_lab
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.root, pytest.mark.ovs]

NAME = "discovered"


@pytest.fixture(scope="module")
def lab() -> Iterator[EmulatedLab]:
    """The lab of the OFC 2022 paper, in which somebody took two NICs' fibres for each other."""
    made = EmulatedLab.from_file(
        "ofc2022", 1000, name=NAME, workers="process", swapped=(("ocs1.3", "ocs1.5"),)
    )
    with made as up:
        yield up


def _discover(*options: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["lab", "discover", NAME, "--yes", *options])
    if isinstance(result.exception, PatchlightError):
        return result.exception.exit_code, str(result.exception)
    return result.exit_code, result.stdout


def test_two_swapped_fibres_are_found_and_the_lab_file_is_put_right(
    lab: EmulatedLab, tmp_path: Path
) -> None:
    before = lab.maps()
    corrected = tmp_path / "corrected.yaml"
    code, printed = _discover("--listen", "1s", "--json", "--output", str(corrected))
    assert code == 1, printed
    wiring = json.loads(printed)["wiring"]
    assert wiring["differences"] == [
        "fibre ocs1.3 goes to server3.nic4, the lab file says server2.nic2",
        "fibre ocs1.5 goes to server2.nic2, the lab file says server3.nic4",
    ]
    assert (wiring["doubts"], wiring["silent"]) == ([], {})
    told = {row["port"]: row["verdict"] for row in wiring["ports"] if row["verdict"] != "free"}
    assert told == {n: "differs" if n in (3, 5) else "as said" for n in range(1, 19)}
    assert lab.maps() == before
    assert not lab.controller.locks()
    assert not lab.controller.status()["drained"]
    right = {(str(fibre.a), str(fibre.b)) for fibre in read_lab(corrected).fibres}
    assert {("server2.nic2", "ocs1.5"), ("server3.nic4", "ocs1.3")} <= right
