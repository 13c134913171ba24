"""Jobs in an emulated lab beside what is predicted of them."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median

from patchlight.client.client import ControllerClient
from patchlight.controller.policies.topology import regroup
from patchlight.controller.prediction import completion
from patchlight.controller.prediction.completion import (
    PredictedJob,
    Prediction,
)
from patchlight.controller.prediction.network import LabNetwork, Training
from patchlight.emulation.experiments.ofc2022.results import (
    COMPUTE_S,
    GRADIENT_BYTES,
)
from patchlight.testbed.jobs import JobSpec
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.lab.wiring import trace_links
from tests.support.lab_jobs import ended

# Rings in the order of the OFC 2022 experiment's: each edge crosses between the ToRs at first.
RINGS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "2 workers": (("gpu0", "gpu2"),),
    "3 workers": (("gpu0", "gpu2", "gpu4"),),
    "4 workers": (("gpu0", "gpu2", "gpu4", "gpu5"),),
    "6 workers": (("gpu0", "gpu2", "gpu1", "gpu3", "gpu4", "gpu5"),),
    "case (a)": (("gpu0", "gpu2", "gpu4", "gpu5"), ("gpu1", "gpu3")),
    "case (b)": (("gpu0", "gpu2", "gpu1"), ("gpu5", "gpu4", "gpu3")),
    "two pairs": (("gpu0", "gpu2"), ("gpu4", "gpu5")),
}


def spec_of(name: str, ring: Sequence[str], iterations: int) -> JobSpec:
    """VGG16 as in the experiment, on these hosts."""
    return JobSpec(
        name,
        iterations,
        GRADIENT_BYTES,
        dict(COMPUTE_S),
        hosts=tuple(ring),
        seed=1,
    )


def predict(
    lab: Lab, maps: Mapping[str, PortMap], jobs: Sequence[PredictedJob]
) -> list[Prediction]:
    """The predictions for these jobs under these maps."""
    return completion.predict(LabNetwork(lab, trace_links(lab, maps)), jobs)


def predicted_and_measured_s(
    client: ControllerClient,
    lab: Lab,
    rings: Sequence[Sequence[str]],
    iterations: int,
    wiring: str,
) -> list[tuple[float, float]]:
    """How long an iteration of each job takes, as predicted before and as measured.

    Wiring: ``static`` is the lab file's, ``regrouped`` brings each job under one ToR. What is
    measured is the median while all of the jobs train.
    """
    maps: Mapping[str, PortMap] = lab.initial_maps
    if wiring == "regrouped":
        maps = regroup(lab, maps, rings)
    client.reconfigure(
        {ocs: list(each.texts) for ocs, each in maps.items()}, only=True
    )
    specs = [
        spec_of(f"job{n}", ring, iterations) for n, ring in enumerate(rings)
    ]
    placed = [
        PredictedJob(
            spec.name,
            spec.hosts,
            Training(spec.iterations, spec.gradient_bytes, spec.compute_s),
        )
        for spec in specs
    ]
    predictions = predict(lab, maps, placed)
    ids = [row.id for row in client.submit(specs, "keep")]
    ends = [_iteration_ends(client, job_id) for job_id in ids]
    first_end = min(each[-1] for each in ends)
    found = []
    for prediction, each in zip(predictions, ends, strict=True):
        gaps = [b - a for a, b in pairwise(each) if b <= first_end]
        assert prediction.iteration_s is not None
        found.append((prediction.iteration_s, median(gaps)))
    return found


def _iteration_ends(client: ControllerClient, job_id: str) -> list[float]:
    job = ended(client, job_id)
    assert job.state == "done", job.message
    ends: dict[int, float] = {}
    for report in client.iterations(job_id)[0]:
        ends[report.index] = max(
            ends.get(report.index, 0.0), report.finished_at
        )
    return [ends[index] for index in sorted(ends)]
