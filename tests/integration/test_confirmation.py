"""A circuit on which a running job's traffic rides, asked for with the command line."""

import pytest
from click.testing import CliRunner

from patchlight import EmulatedLab
from patchlight.cli.main import cli
from patchlight.controller.client import ControllerClient
from patchlight.testbed.errors import PatchlightError
from tests.integration.test_jobs_in_a_lab import PAIR, SPREAD, ended, spec, wait

pytestmark = [pytest.mark.root, pytest.mark.ovs]


@pytest.fixture(scope="module")
def lab():
    with EmulatedLab.from_file("ofc2022", scale=1000, name="asked", workers="process") as emulated:
        yield emulated


def test_a_circuit_in_use_is_broken_only_when_somebody_agrees_and_its_job_goes_on(lab):
    def ocs(*words, code=0, text=""):
        result = CliRunner().invoke(cli, ["ocs", *words, "--lab", "asked"], input=text)
        error = result.exception
        found = error.exit_code if isinstance(error, PatchlightError) else result.exit_code
        assert found == code, (result.output, error)
        return f"{result.output}{error or ''}"

    with ControllerClient(lab.lab.controller_api) as client:
        wait(lambda: all(s["connected"] for s in client.status()["switches"]))
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
            reports, _ = client.iterations(job_id)
            assert sorted((r["rank"], r["index"]) for r in reports) == [
                (rank, index) for rank in range(ranks) for index in range(count)
            ]
            assert {r["check"] for r in reports} == {"ok"}
