"""What users without a role take from the operators, agents and jobs of a lab by load: nothing.

That is on loopback; at a Unix socket in ``tests/controller/test_load_and_full_disk.py``.
"""

from collections.abc import Iterator

import pytest

from patchlight import EmulatedLab
from patchlight.client.client import ControllerClient
from patchlight.testbed.jobs import JobSpec
from tests.support.api_attack import (
    ATTACK_S,
    THREADS,
    as_text,
    attacked,
    check_waited,
    first_answer_of,
    waited_s,
)
from tests.support.jobs_under_faults import OtherJob, other_job
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.root, pytest.mark.ovs, pytest.mark.others]

VIEWERS = (65534, 65533)
HISTORY = 64


@pytest.fixture(scope="module")
def lab() -> Iterator[EmulatedLab]:
    with EmulatedLab.from_file(
        "ofc2022", scale=4000, name="attacked", workers="process"
    ) as emulated:
        yield emulated


@pytest.fixture(scope="module")
def job(lab: EmulatedLab) -> Iterator[OtherJob]:
    """Trains through all attacks, in a lab with a history of ended jobs."""
    with ControllerClient(lab.lab.controller_api) as client:
        client.drain("no job begins")
        spec = JobSpec(
            "ended", 1, 4, {"Tesla M40": 1.0, "Titan V": 1.0}, workers=2
        )
        for _ in range(HISTORY):
            client.stop(client.submit([spec])[0].id)
        client.resume()
    with other_job(lab) as job:
        yield job
        job.check_every_iteration()


@pytest.mark.parametrize(
    "kinds",
    [
        ("lists", "streams", "bursts"),
        ("kept", "heads", "bodies"),
        ("abandoned",),
    ],
    ids=" ".join,
)
def test_operators_are_answered_and_no_agent_or_job_is_lost(
    lab: EmulatedLab, job: OtherJob, kinds: tuple[str, ...]
) -> None:
    address = lab.lab.controller_api
    before = job.client.job(job.id).iterations_done
    attacks = [(uid, kind, THREADS[kind]) for uid in VIEWERS for kind in kinds]
    with attacked(address, *attacks) as got:
        waited = waited_s(address, ATTACK_S)
        # Not the stop button alone.
        with ControllerClient(lab.lab.controller_api) as operator:
            operator.reconfigure({"ocs1": ["100-101"]})
            operator.reconfigure({}, disconnect={"ocs1": [100]})
            spec = JobSpec(
                "short", 1, 4, {"Tesla M40": 9.0, "Titan V": 9.0}, workers=1
            )
            operator.stop(operator.submit([spec])[0].id)
            agents = {
                each.server: each.presence for each in operator.status().agents
            }
    print(f"\n{as_text(waited)}\nagents {agents}\nattackers {dict(got)}")
    assert {*agents.values()} == {"answers"}
    check_waited(waited)
    wait_until(
        lambda: first_answer_of(address, VIEWERS[0]) == "200",
        "a viewer to be answered",
    )
    check_waited(waited_s(address, 0.5))
    assert job.goes_on()
    print("iterations", job.client.job(job.id).iterations_done - before)
    log = (lab.run_dir / "log" / "controller.log").read_text()
    assert "is suspected" not in log
    assert "is lost" not in log
    assert "Traceback" not in log
