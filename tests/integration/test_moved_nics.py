"""Changes of circuits under jobs whose packet switches learn where NICs are."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest

from patchlight import EmulatedLab
from patchlight.controller.policies.topology import regroup
from patchlight.testbed.labfile.reader import builtin_lab, read_lab
from tests.support.lab_jobs import PAIR, SPREAD, connected, spread_spec
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.root, pytest.mark.ovs]


@pytest.fixture(scope="module", params=["openflow", "learning"])
def lab(request: pytest.FixtureRequest) -> Iterator[EmulatedLab]:
    plain = read_lab(builtin_lab("ofc2022"))
    switches = [replace(switch, driver=request.param) for switch in plain.packet_switches]
    if request.param == "learning":
        switches = [replace(switch, datapath_id=None) for switch in switches]
    made = plain.with_changes(packet_switches=tuple(switches))
    name = f"moved-{request.param}"
    with EmulatedLab.from_lab(made, 4000, name=name, workers="process") as emulated:
        yield emulated


def test_packets_pass_after_each_change_before_the_jobs_go_on(lab: EmulatedLab) -> None:
    start = lab.lab.initial_maps
    ways = (regroup(lab.lab, start, [SPREAD, PAIR]), start)
    with connected(lab) as client:
        specs = [spread_spec("four", SPREAD, 100_000), spread_spec("two", PAIR, 100_000)]
        ids = [job["id"] for job in client.submit(specs)]

        def done() -> list[int]:
            return [client.job(job_id)["iterations_done"] for job_id in ids]

        def beyond(then: list[int]) -> bool:
            return all(now > before for before, now in zip(then, done(), strict=True))

        wait_until(lambda: min(done()) >= 1)
        # Less than 10 s apart: Open vSwitch still has the paths of earlier announcements cached.
        for number in range(6):
            maps = {ocs: wanted.texts for ocs, wanted in ways[number % 2].items()}
            before = done()
            record = client.reconfigure(maps, only=True)
            assert record["state"] == "committed", record
            assert not [note for note in record["notes"] if "checked with packets" in note]
            assert "announce" in record["stages_s"]
            wait_until(partial(beyond, before))
