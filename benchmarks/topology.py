"""How long topology engineering takes, and how near a ring through an OCS is to its prediction."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks import figure
from patchlight import EmulatedLab
from patchlight.controller.jobs.cluster_view import WiredLab
from patchlight.controller.policies.engineered import Ring
from patchlight.controller.policies.engineering.traffic import pairs
from patchlight.controller.policies.topology import regroup
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.rules import PolicyChoice
from patchlight.testbed.labfile.reader import load_lab
from tests.support.lab_jobs import connected
from tests.support.ring_jobs import ring_spec, trained

_PARTNERS = 16


def _cpu_s(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def run(*, full: bool = False) -> list[dict[str, Any]]:
    """Processor seconds of the library; a job of 16 workers in packets beside the flow model."""
    random = np.random.default_rng(0)
    figures = []
    for ports, limit in ((1024, "1 s"), (4096, "30 s")):
        sparse = np.zeros((ports, ports))
        for _ in range(_PARTNERS):
            sparse[np.arange(ports), random.permutation(ports)] += (
                random.random(ports)
            )
        np.fill_diagonal(sparse, 0.0)
        spent_s = _cpu_s(lambda w=sparse: pairs(w))  # type: ignore[misc]
        name = f"topology: Edmonds' matching, {ports} ports, {_PARTNERS} partners of each"
        figures.append(figure(name, spent_s, "s of processor", limit))
    ring16 = load_lab("ring16")
    four = load_lab("four-ocs")
    wired = WiredLab(ring16, ring16.initial_maps)
    view = wired.view(0.0, {"job": wired.names})
    spent_s = _cpu_s(lambda: Ring().circuits(view, [range(16)]))
    figures.append(
        figure("topology: ring of 16 NICs planned", spent_s, "s of processor")
    )
    group = ["server1", "server2", "server13", "server14"]
    spent_s = _cpu_s(lambda: regroup(four, four.initial_maps, [group]))
    figures.append(
        figure(
            "topology: four hosts over four OCSs", spent_s, "s of processor"
        )
    )
    return [*figures, *(_in_packets() if full else [])]


# 150 million parameters at 500 Mb/s, scaled to 2.5 Mb/s: few frames in a second, so that a machine
# of two cores has the time for all of them, and steps of the ring that are long against the queues.
_NIC_BPS = 500_000_000
_SCALE = 200
_GRADIENT_BYTES = 6e8
_COMPUTE_S = 5.0
_ITERATIONS = 3


def _at_rate(lab: Lab, rate_bps: int) -> Lab:
    """The lab with NICs and fibres of this rate."""
    servers = tuple(
        replace(
            each,
            nics=tuple(replace(nic, rate_bps=rate_bps) for nic in each.nics),
        )
        for each in lab.servers
    )
    fibres = tuple(replace(fibre, rate_bps=rate_bps) for fibre in lab.fibres)
    return lab.with_changes(servers=servers, fibres=fibres)


def _in_packets() -> list[dict[str, Any]]:
    with (
        EmulatedLab.from_lab(
            _at_rate(load_lab("ring16"), _NIC_BPS),
            scale=_SCALE,
            name="bench-ring",
            workers="process",
            real_time=True,
            policies=PolicyChoice(deadline_s=30.0),
        ) as emulated,
        connected(emulated) as client,
    ):
        spec = ring_spec("ring", _ITERATIONS, _GRADIENT_BYTES, _COMPUTE_S)
        found = trained(client, emulated.lab, spec)
    name = (
        "topology: 16 workers on a ring through the OCS: packets / flows − 1"
    )
    apart = (
        found.communication_s / (found.flows_s / _ITERATIONS - _COMPUTE_S) - 1
    )
    return [
        figure(name, found.packets_s / found.flows_s - 1, "", "within ± 0.03"),
        figure(f"{name}, communication alone", apart, ""),
    ]
