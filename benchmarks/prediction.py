"""How near the predicted time of an iteration comes to the measured one, in the OFC 2022 lab."""

from typing import Any

from benchmarks import figure
from patchlight import EmulatedLab
from tests.support.lab_jobs import connected
from tests.support.predicted_jobs import RINGS, predicted_and_measured_s

ITERATIONS = 10


def run() -> list[dict[str, Any]]:
    """For each case the job that is furthest off: predicted over measured, less 1."""
    figures = []
    with (
        EmulatedLab.from_file(
            "ofc2022",
            scale=1000,
            name="bench-predict",
            workers="process",
            real_time=True,
        ) as emulated,
        connected(emulated) as client,
    ):
        for case, rings in RINGS.items():
            for wiring in ("static", "regrouped"):
                pairs = predicted_and_measured_s(
                    client, emulated.lab, rings, ITERATIONS, wiring
                )
                off = max((told / took - 1 for told, took in pairs), key=abs)
                name = f"prediction: an iteration, {case}, {wiring}: predicted / measured − 1"
                figures.append(figure(name, off, "", "within ± 0.15"))
    return figures
