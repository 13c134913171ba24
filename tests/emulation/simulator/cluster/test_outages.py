"""How long circuits are dark: the policies and the simulator agree."""

from dataclasses import replace

import pytest

from patchlight.controller.policies.cheapest import Prices
from patchlight.controller.policies.contract import JobView, RingOfJob
from patchlight.controller.prediction.network import Load
from patchlight.emulation.simulator.cluster import (
    LabCluster,
    QueueJob,
    Settings,
)
from patchlight.emulation.simulator.cluster.simulation import Simulation
from patchlight.testbed.generate.generate import RandomLabShape, lab_of
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.ocs_drivers import outage_s


def slow(driver: str, switching_s: float) -> Lab:
    lab = lab_of(RandomLabShape(2, 3, gpus=1, ocs=3), "three-ocs")
    return lab.with_changes(
        circuit_switches=tuple(
            replace(ocs, driver=driver, switching_time_s=switching_s)
            for ocs in lab.circuit_switches
        )
    )


@pytest.mark.parametrize("driver", ["calient-tl1", "telescent-ssh"])
@pytest.mark.parametrize("switching_s", [0.025, 1.0, 5.0])
def test_policies_and_simulator_know_the_same_outage(
    driver: str, switching_s: float
) -> None:
    lab = slow(driver, switching_s)
    jobs = [QueueJob(JobView("job", 4), 100.0)]
    simulation = Simulation(LabCluster(lab), jobs, Settings(wiring_s=0.5))
    assert simulation.advance()
    ring = [0, 1, 3, 5]
    assert simulation.start(simulation.jobs[0], ring)
    view = simulation.view()._replace(barred={})
    of_job = RingOfJob("job", tuple(ring), Load(10.0, 1.0, 1e9))
    prices = Prices(view, lab, [of_job])
    maps = prices.regrouped([of_job])
    assert maps
    assert len(maps) > 1
    makes = {
        name: len(view.circuits[name].diff(each).makes)
        for name, each in maps.items()
    }
    expected_s = outage_s(lab, makes)
    most = max(makes.values()) if driver == "telescent-ssh" else 1
    assert expected_s == most * switching_s
    assert prices.of(maps).dark_s == expected_s
    now_s = simulation.now_s
    simulation.rewire(maps)
    assert simulation.accounts.dark_s == expected_s
    assert simulation.jobs[0].resume_s == pytest.approx(
        now_s + expected_s + 0.5
    )
