"""What is predicted of jobs, beside what the emulated lab measures."""

from collections.abc import Iterator

import pytest

from patchlight import EmulatedLab
from tests.support.lab_jobs import connected
from tests.support.predicted_jobs import RINGS, predicted_and_measured_s

pytestmark = [pytest.mark.root, pytest.mark.ovs]


@pytest.fixture(scope="module")
def lab() -> Iterator[EmulatedLab]:
    with EmulatedLab.from_file(
        "ofc2022",
        scale=1000,
        name="predicted",
        workers="process",
        real_time=True,
    ) as emulated:
        yield emulated


# As many iterations as jobs that begin a little apart train side by side for a while.
@pytest.mark.parametrize(
    ("wiring", "iterations"), [("static", 5), ("regrouped", 12)]
)
def test_iterations_take_about_as_long_as_predicted(
    lab: EmulatedLab, wiring: str, iterations: int
) -> None:
    with connected(lab) as client:
        rings = RINGS["case (a)"]
        pairs = predicted_and_measured_s(
            client, lab.lab, rings, iterations, wiring
        )
    for predicted_s, measured_s in pairs:
        assert predicted_s == pytest.approx(measured_s, rel=0.3)
