"""What the experiment trains, and on which GPUs: computed from the lab, before anything runs.

The parameters were fitted to the four completion times that the paper reports; what was fitted
is how long a GPU computes and how fast the links are, never a result.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate, zip_longest
from types import MappingProxyType
from typing import Any

from patchlight.testbed.errors import BadInput
from patchlight.testbed.jobs import JobSpec, Trainer
from patchlight.testbed.lab.model import Host, Lab
from patchlight.testbed.lab.wiring import trace_links

# VGG16: 138.36 million parameters in float32.
GRADIENT_BYTES = 138_360_000 * 4
# Forward and backward of one iteration.
COMPUTE_S: Mapping[str, float] = MappingProxyType({"Tesla M40": 0.50, "Titan V": 0.50 / 3})
# A real model for links that are scaled by 1,000: within 1 % of that gradient, so scaled.
REAL_MODEL = "tiny-transformer"
# How many GPUs each job of a case has. The figures are those of the first job.
CASES: Mapping[str, tuple[int, ...]] = MappingProxyType({"a": (4, 2), "b": (3, 3)})
# Strong scaling: ``iterations`` are those of a job of this size; a smaller one does more of them.
REFERENCE_WORKERS = 4


def jobs_of(
    case: str,
    lab: Lab,
    iterations: int,
    mismatch_percent: float = 0.0,
    trainer: Trainer = "synthetic",
) -> tuple[JobSpec, ...]:
    """The jobs of case ``a`` or ``b``, first job first, each with its ring in order.

    All jobs train over the same data with the same batch for each GPU, so a job of n workers
    does ``iterations * 4 / n`` iterations (rounded). The second job computes
    ``mismatch_percent`` longer than its GPUs say. With the trainer ``torch`` they train a real
    model instead, on GPUs that compute for as long. ``BadInput`` if the lab does not have the
    GPUs, or a ring would not cross ToRs in the lab's initial wiring.
    """
    if not (math.isfinite(mismatch_percent) and mismatch_percent >= 0):
        raise BadInput(f"a mismatch of {mismatch_percent} %: expected 0 or more")
    if case not in CASES:
        raise BadInput(f"there is no case {case!r}: known are {', '.join(CASES)}")
    if iterations < 1:
        raise BadInput(f"{iterations} iterations: expected 1 or more")
    sizes = CASES[case]
    tor_of = _tors(lab)
    jobs = []
    for number, hosts in enumerate(_shares(lab, tor_of, sizes), start=1):
        size = len(hosts)
        longer = 1 + (mismatch_percent / 100 if number > 1 else 0)
        if len({tor_of[host.name] for host in hosts}) < 2:
            raise BadInput(
                f"lab {lab.name}: the {size} GPUs of job {number} of case {case} are all on one "
                "packet switch already, so that regrouping them would change nothing"
            )
        what: dict[str, Any] = {"gradient_bytes": GRADIENT_BYTES}
        if trainer == "torch":
            what = {"trainer": trainer, "model": REAL_MODEL}
        jobs.append(
            JobSpec(
                name=f"{case}{number}-{size}gpu",
                iterations=max(1, round(iterations * REFERENCE_WORKERS / size)),
                **what,
                compute_s={h.gpu.model: COMPUTE_S[h.gpu.model] * longer for h in hosts if h.gpu},
                workers=size,
                hosts=tuple(host.name for host in _alternating(hosts, tor_of)),
                seed=number,
            )
        )
    return tuple(jobs)


def given_compute_s(spec: JobSpec, lab: Lab) -> tuple[float, ...]:
    """How long each rank of a job is to compute in an iteration."""
    gpus = [lab.host(name).gpu for name in spec.hosts]
    return tuple(spec.compute_s[gpu.model] for gpu in gpus if gpu is not None)


def _tors(lab: Lab) -> dict[str, str]:
    """The ToR that each GPU's NIC is lit onto at the start, by host name."""
    links = trace_links(lab, lab.initial_maps)
    found: dict[str, str] = {}
    for host in lab.hosts:
        if host.gpu is None:
            continue
        if host.gpu.model not in COMPUTE_S:
            raise BadInput(
                f"{host.name} is a {host.gpu.model}, whose compute time is not known: "
                f"known are {', '.join(COMPUTE_S)}"
            )
        tor = links.switch_of(lab, host.endpoint)
        if tor is None:
            raise BadInput(
                f"{host.name} is not lit onto a packet switch by the initial cross-connects "
                f"of lab {lab.name}"
            )
        found[host.name] = tor
    return found


def _shares(lab: Lab, tor_of: Mapping[str, str], sizes: Sequence[int]) -> list[list[Host]]:
    """Which GPUs each job gets, handed out without looking at the network.

    The racks are served in turn, slow GPUs first. Jobs of different sizes get one kind of GPU
    as far as there are enough of it; jobs of one size get as many of each kind, so that they
    compute for as long and run in step.
    """
    slowest_first = sorted(COMPUTE_S, key=lambda model: -COMPUTE_S[model])
    of_model = {
        model: _alternating([h for h in lab.hosts if h.gpu and h.gpu.model == model], tor_of)
        for model in slowest_first
    }
    shares: list[list[Host]] = []
    if len(set(sizes)) == 1:
        for number in range(len(sizes)):
            share: list[Host] = []
            for hosts in of_model.values():
                each = len(hosts) // len(sizes)
                share += hosts[number * each : (number + 1) * each]
            shares.append(share[: sizes[number]])
    else:
        row = [host for hosts in of_model.values() for host in hosts]
        ends = list(accumulate(sizes))
        shares = [row[end - size : end] for end, size in zip(ends, sizes, strict=True)]
    if [len(share) for share in shares] != list(sizes):
        counts = ", ".join(f"{len(hosts)} × {model}" for model, hosts in of_model.items())
        raise BadInput(
            f"lab {lab.name} cannot give jobs of {' and '.join(map(str, sizes))} GPUs: "
            f"it has {counts} with a NIC"
        )
    return shares


def _alternating(hosts: Sequence[Host], tor_of: Mapping[str, str]) -> list[Host]:
    """These hosts, one of each ToR in turn, beginning under the ToR that has most of them."""
    by_tor: dict[str, list[Host]] = {}
    for host in hosts:
        by_tor.setdefault(tor_of[host.name], []).append(host)
    racks = sorted(by_tor.values(), key=len, reverse=True)
    return [host for turn in zip_longest(*racks) for host in turn if host is not None]
