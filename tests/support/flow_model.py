"""What the simulator of flows says of jobs in a lab, beside which they are measured in packets."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from patchlight.controller.prediction.framing import EMULATED_BYTES, tcp
from patchlight.emulation.simulator.network.contract import collective
from patchlight.emulation.simulator.network.jobs import PlacedJob, run_jobs
from patchlight.emulation.simulator.network.topologies.direct import (
    lab_network,
)
from patchlight.testbed.jobs import JobSpec
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.portmap import PortMap

_MTU = 1500


def flow_ends_s(
    lab: Lab, maps: Mapping[str, PortMap], specs: Sequence[JobSpec]
) -> list[float]:
    """When each of these jobs is done, all of which begin at 0 s under these maps.

    Headers and acknowledgements are those that the rate limits of an emulated lab count.
    """
    network = replace(
        lab_network(lab, maps), framing=tcp(_MTU, EMULATED_BYTES)
    )
    numbers = {
        host.name: number for number, host in enumerate(network.lit.hosts)
    }
    jobs = []
    for spec in specs:
        gpus = [
            gpu
            for name in spec.hosts
            if (gpu := lab.host(name).gpu) is not None
        ]
        jobs.append(
            PlacedJob(
                np.array(
                    [numbers[lab.host(name).name] for name in spec.hosts]
                ),
                max(spec.compute_s[gpu.model] for gpu in gpus),
                collective(
                    "ring", len(spec.hosts), float(spec.gradient_bytes)
                ),
                spec.iterations,
            )
        )
    return [float(end_s) for end_s in run_jobs(network, jobs).ends_s]
