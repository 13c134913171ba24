"""Jobs on the lab without ToRs, whose rings are closed through its OCS."""

import time
from dataclasses import replace
from statistics import median
from typing import NamedTuple

from patchlight.client.client import ControllerClient
from patchlight.testbed.jobs import JobSpec
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.portmap import PortMap
from tests.support.flow_model import flow_ends_s

MODEL = "Generic"


def ring_spec(
    name: str,
    iterations: int,
    gradient_bytes: float,
    compute_s: float,
    workers: int = 16,
) -> JobSpec:
    """A job that closes its ring through the OCS."""
    return JobSpec(
        name,
        iterations,
        int(gradient_bytes),
        {MODEL: compute_s},
        workers=workers,
        topology="ring",
    )


class Trained(NamedTuple):
    """How long a job trained in packets and by the flow simulator, and how long of an iteration it
    communicated."""

    packets_s: float
    flows_s: float
    communication_s: float


def trained(client: ControllerClient, lab: Lab, spec: JobSpec) -> Trained:
    """A job in packets and in flows."""
    job_id = client.submit([spec])[0].id
    deadline = time.monotonic() + 600.0
    while (row := client.job(job_id)).finished_at is None:
        assert time.monotonic() < deadline, row.state
        # Whoever asks often takes the processor from what is measured.
        time.sleep(5.0)
    assert row.state == "done", row.message
    reports, _ = client.iterations(job_id)
    began = min(
        each.finished_at - each.compute_s - each.communication_s
        for each in reports
        if each.index == 0
    )
    trained_s = max(each.finished_at for each in reports) - began
    communication_s = median(each.communication_s for each in reports)
    maps = {
        ocs: PortMap.parse(each.map or ())
        for ocs, each in client.circuits().items()
    }
    (flows_s,) = flow_ends_s(
        lab, maps, [replace(spec, hosts=tuple(row.hosts))]
    )
    return Trained(trained_s, flows_s, communication_s)
