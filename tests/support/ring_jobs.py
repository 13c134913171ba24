"""Jobs on the lab without ToRs, whose rings are closed through its OCS."""

import time
from statistics import median
from typing import NamedTuple

from patchlight.controller.client import ControllerClient
from patchlight.controller.policies.engineered import Ring
from patchlight.controller.policies.order import Fifo
from patchlight.controller.policies.placement import FirstFit
from patchlight.emulation.simulator.cluster import LabCluster, Policies, simulate
from patchlight.emulation.simulator.cluster.lab_jobs import jobs_of_specs
from patchlight.testbed.jobs import JobSpec
from patchlight.testbed.lab import Lab

MODEL = "Generic"


def ring_spec(
    name: str, iterations: int, gradient_bytes: float, compute_s: float, workers: int = 16
) -> JobSpec:
    """A job that closes its ring through the OCS."""
    return JobSpec(
        name, iterations, int(gradient_bytes), {MODEL: compute_s}, workers=workers, topology="ring"
    )


class Trained(NamedTuple):
    """How long a job trained in packets and by the flow simulator, and how long of an iteration it
    communicated."""

    packets_s: float
    flows_s: float
    communication_s: float


def trained(client: ControllerClient, lab: Lab, spec: JobSpec) -> Trained:
    """A job in packets and in flows."""
    result = simulate(
        LabCluster(lab), jobs_of_specs(lab, [spec]), Policies(Fifo(), FirstFit(), Ring())
    )
    (record,) = result.records
    dark_s = lab.circuit_switches[0].switching_time_s
    job_id = client.submit([spec])[0]["id"]
    deadline = time.monotonic() + 600.0
    while (row := client.job(job_id))["finished_at"] is None:
        assert time.monotonic() < deadline, row["state"]
        time.sleep(5.0)  # whoever asks often takes the processor from what is measured
    assert row["state"] == "done", row["message"]
    reports, _ = client.iterations(job_id)
    began = min(
        each["finished_at"] - each["compute_s"] - each["communication_s"]
        for each in reports
        if each["index"] == 0
    )
    trained_s = max(each["finished_at"] for each in reports) - began
    communication_s = median(each["communication_s"] for each in reports)
    return Trained(trained_s, record.ended_s - record.started_s - dark_s, communication_s)
