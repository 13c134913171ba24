"""Jobs on the lab without ToRs, whose rings are closed through its OCS."""

from patchlight.controller.client import ControllerClient
from patchlight.controller.policies.engineered import Ring
from patchlight.controller.policies.order import Fifo
from patchlight.controller.policies.placement import FirstFit
from patchlight.emulation.simulator.cluster import LabCluster, Policies, simulate
from patchlight.emulation.simulator.cluster.lab_jobs import jobs_of_specs
from patchlight.testbed.jobs import JobSpec
from patchlight.testbed.lab import Lab
from tests.support.lab_jobs import ended

MODEL = "Generic"


def ring_spec(
    name: str, iterations: int, gradient_bytes: float, compute_s: float, workers: int = 16
) -> JobSpec:
    """A job that closes its ring through the OCS."""
    return JobSpec(
        name, iterations, int(gradient_bytes), {MODEL: compute_s}, workers=workers, topology="ring"
    )


def completion_s(client: ControllerClient, lab: Lab, spec: JobSpec) -> tuple[float, float]:
    """How long a job trains, in packets, and what the flow simulator says of it."""
    result = simulate(
        LabCluster(lab), jobs_of_specs(lab, [spec]), Policies(Fifo(), FirstFit(), Ring())
    )
    (record,) = result.records
    dark_s = lab.circuit_switches[0].switching_time_s
    row = ended(client, client.submit([spec])[0]["id"])
    assert row["state"] == "done", row["message"]
    reports, _ = client.iterations(row["id"])
    trained_s = max(each["finished_at"] for each in reports) - row["started_at"]
    return trained_s, record.ended_s - record.started_s - dark_s
