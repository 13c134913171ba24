"""A job in a lab of tunable transceivers: its light is on only while its nodes have paths."""

import pytest

from patchlight.emulation.lab.emulated_lab import EmulatedLab
from tests.support.emulated_labs import left_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.root

NAME = "test-paths"
# A gradient that takes about as long to be sent as the job computes.
JOB = {
    "name": "ring",
    "workers": 4,
    "iterations": 100_000,
    "gradient": "1GB",
    "compute": {"Generic": "100ms"},
}


def test_a_job_trains_over_paths_that_its_nodes_agree_on() -> None:
    with EmulatedLab.from_file(
        "oddl4", 1000, name=NAME, replace=True, workers="process"
    ) as lab:
        (job,) = lab.submit(JOB)
        sent: dict[str, tuple[str | None, str | None]] = {}

        def all_have_sent() -> bool:
            for node in lab.controller.paths().nodes:
                if node.state == "sends":
                    sent[node.host] = (node.destination, node.channel)
            return len(sent) == 4

        wait_until(all_have_sent, "light of all four")
        assert sent == {
            "server1.gpu0": ("server2.gpu0", "193.150"),
            "server2.gpu0": ("server3.gpu0", "193.200"),
            "server3.gpu0": ("server4.gpu0", "193.250"),
            "server4.gpu0": ("server1.gpu0", "193.100"),
        }
        wait_until(
            lambda: lab.controller.job(job.id).iterations_done > 1,
            "iterations",
        )
        lab.controller.stop(job.id)
        lab.wait_for(job.id)
        wait_until(
            lambda: not lab.controller.paths().nodes,
            "the end of all bounds",
        )
        with lab.light as light:
            home = [
                ("193.100", "on"),
                ("193.150", "on"),
                ("193.200", "on"),
                ("193.250", "on"),
            ]
            wait_until(
                lambda: (
                    [
                        (x["channel"], x["state"])
                        for x in light.transceivers().values()
                    ]
                    == home
                ),
                "each transmitter on its own channel again",
            )
            assert light.losses()["destroyed"] == {}
    assert left_of(NAME) == []
