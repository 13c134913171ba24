"""The jobs of the experiment are computed from the lab."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from patchlight.emulation.experiments.ofc2022.scenario import GRADIENT_BYTES, jobs_of
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab import Lab
from patchlight.testbed.portmap import PortMap
from patchlight.testbed.wiring import trace_links


def tors(lab: Lab, hosts: tuple[str, ...]) -> list[str | None]:
    links = trace_links(lab, lab.initial_maps)
    return [links.switch_of(lab, lab.host(name).endpoint) for name in hosts]


def models(lab: Lab, hosts: tuple[str, ...]) -> list[str]:
    return [gpu.model for name in hosts if (gpu := lab.host(name).gpu) is not None]


def test_case_a_is_four_m40_beside_two_titan_v(lab: Lab) -> None:
    first, second = jobs_of("a", lab, 12)
    assert [h.partition(".")[2] for h in first.hosts] == ["gpu0", "gpu2", "gpu4", "gpu5"]
    assert [h.partition(".")[2] for h in second.hosts] == ["gpu1", "gpu3"]
    assert models(lab, first.hosts) == ["Tesla M40"] * 4
    assert models(lab, second.hosts) == ["Titan V"] * 2


def test_case_b_is_two_jobs_of_three_that_mirror_each_other(lab: Lab) -> None:
    first, second = jobs_of("b", lab, 12)
    assert [h.partition(".")[2] for h in first.hosts] == ["gpu0", "gpu2", "gpu1"]
    assert [h.partition(".")[2] for h in second.hosts] == ["gpu5", "gpu4", "gpu3"]
    # The same GPU at the same place of the ring, under the other ToR.
    assert models(lab, first.hosts) == models(lab, second.hosts)
    other = {"tor1": "tor2", "tor2": "tor1"}
    assert [other[str(tor)] for tor in tors(lab, first.hosts)] == tors(lab, second.hosts)


@pytest.mark.parametrize("case", ["a", "b"])
def test_rings_alternate_over_the_tors_and_share_no_gpu(lab: Lab, case: str) -> None:
    jobs = jobs_of(case, lab, 12)
    for job in jobs:
        assert all(a != b for a, b in pairwise(tors(lab, job.hosts)))
    hosts = [host for job in jobs for host in job.hosts]
    assert sorted(hosts) == sorted(host.name for host in lab.hosts)


def test_every_job_trains_over_the_same_data(lab: Lab) -> None:
    for case in ("a", "b"):
        for job in jobs_of(case, lab, 12):
            assert job.iterations * len(job.hosts) == 12 * 4
            assert job.gradient_bytes == GRADIENT_BYTES == 553_440_000


def test_a_lab_that_cannot_show_anything_is_refused(lab: Lab) -> None:
    with pytest.raises(BadInput, match="no case 'c'"):
        jobs_of("c", lab, 12)
    with pytest.raises(BadInput, match="expected 1 or more"):
        jobs_of("a", lab, 0)
    with pytest.raises(
        BadInput, match="cannot give jobs of 4 and 2 GPUs: it has 2 × Tesla M40, 2 × Titan V"
    ):
        jobs_of("a", lab.with_changes(servers=(lab.servers[0], lab.servers[1])), 12)

    ocs = lab.circuit_switches[0]
    dark = lab.with_changes(circuit_switches=(replace(ocs, initial=PortMap()),))
    with pytest.raises(BadInput, match="not lit onto a packet switch"):
        jobs_of("a", dark, 12)
    one_tor = PortMap.duplex((nic, nic + 6) for nic in range(1, 7))
    regrouped = lab.with_changes(circuit_switches=(replace(ocs, initial=one_tor),))
    with pytest.raises(BadInput, match="all on one packet switch already"):
        jobs_of("a", regrouped, 12)

    server = lab.servers[0]
    strange = replace(server, gpus=tuple(replace(g, model="Voodoo 2") for g in server.gpus))
    with pytest.raises(BadInput, match="Voodoo 2, whose compute time is not known"):
        jobs_of("a", lab.with_changes(servers=(strange, *lab.servers[1:])), 12)
