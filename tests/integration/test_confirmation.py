"""A circuit on which a running job's traffic rides, asked for with the command line."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from patchlight import EmulatedLab
from patchlight.cli.main import cli
from patchlight.testbed.errors import PatchlightError
from tests.support.lab_jobs import (
    PAIR,
    SPREAD,
    checked_iterations,
    connected,
    ended,
    every_iteration,
    wait,
)
from tests.support.lab_jobs import spread_spec as spec

pytestmark = [pytest.mark.root, pytest.mark.ovs]


@pytest.fixture(scope="module")
def lab() -> Iterator[EmulatedLab]:
    with EmulatedLab.from_file("ofc2022", scale=1000, name="asked", workers="process") as emulated:
        yield emulated


def test_a_circuit_in_use_is_broken_only_when_somebody_agrees_and_its_job_goes_on(
    lab: EmulatedLab,
) -> None:
    def ocs(*arguments: str, code: int = 0, text: str = "") -> str:
        result = CliRunner().invoke(cli, ["ocs", *arguments, "--lab", "asked"], input=text)
        error = result.exception
        exit_code = error.exit_code if isinstance(error, PatchlightError) else result.exit_code
        assert exit_code == code, (result.output, error)
        return f"{result.output}{error or ''}"

    with connected(lab) as client:
        iterations = 40
        four, two = client.submit([spec("asked4", SPREAD, iterations), spec("other", PAIR, 80)])
        wait(lambda: client.job(four["id"])["iterations_done"] >= 2)
        before = client.circuits()
        free = next(
            port
            for port in range(7, 19)
            if f"{port}>" not in " ".join(before["ocs1"]["map"])
            and lab.lab.circuit_fibres["ocs1"][port][0].device == "tor1"
        )
        move = ("connect", "ocs1", f"server1.nic0:{free}")

        refused = ocs(*move, text="n\n", code=1)
        assert f"in use by job {four['id']}, which pauses meanwhile" in refused
        assert two["id"] not in refused, "the other job rides on other ports"
        assert f"ocs1 + 1>{free}" in refused
        assert "nothing was changed" in refused
        # Nobody there to ask counts as no.
        assert "nothing was changed" in ocs(*move, code=1)
        assert client.circuits() == before
        assert client.reconfigurations() == [], "nothing was even tried"

        # What no job uses is changed unasked.
        ocs("connect", "ocs1", "100:101")
        assert [r["state"] for r in client.reconfigurations()] == ["committed"]

        done = client.job(four["id"])["iterations_done"]
        assert "committed" in ocs(*move, text="y\n")
        record = client.reconfigurations()[-1]
        assert record["state"] == "committed"
        assert not [note for note in record["notes"] if "did not pause" in note]
        assert f"1>{free}" in client.circuits()["ocs1"]["map"]
        wait(lambda: client.job(four["id"])["iterations_done"] > done + 1)
        # And back with --yes, as scripts say.
        assert "committed" in ocs("rollback", str(record["id"]), "--yes")

        for job_id, ranks, count in ((four["id"], 4, iterations), (two["id"], 2, 80)):
            assert ended(client, job_id)["state"] == "done"
            assert checked_iterations(client, job_id) == every_iteration(ranks, count)
