"""Which jobs a lab takes at all. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from patchlight.testbed.errors import BadInput
from patchlight.testbed.jobs import JobSpec
from patchlight.testbed.lab import Lab


def check_specs(lab: Lab, specs: Sequence[JobSpec], *, counted: bool) -> None:
    """``BadInput`` for jobs that could never run together in this lab.

    ``counted``: a job without hosts has to say how many workers it wants.
    """
    if not specs:
        raise BadInput("no job given")
    named: dict[str, str] = {}
    for spec in specs:
        if spec.iterations < 1 or spec.gradient_bytes < 4:
            raise BadInput(f"job {spec.name}: expected iterations ≥ 1 and gradient_bytes ≥ 4")
        if not spec.hosts and spec.workers < 1 and counted:
            raise BadInput(
                f"job {spec.name}: expected 'workers' ≥ 1 or a list of 'hosts'",
                hint="the number is left to a policy where the controller runs with "
                "--partition POLICY",
            )
        for name in spec.hosts:
            host = lab.host(name)
            if host.name in named:
                raise BadInput(
                    f"{host.name} is asked for twice: by {named[host.name]} and {spec.name}"
                )
            named[host.name] = spec.name
            if host.gpu is None or host.gpu.model not in spec.compute_s:
                model = host.gpu.model if host.gpu else "a host without a GPU"
                raise BadInput(
                    f"job {spec.name}: no compute time for {model} ({host.name})",
                    hint=f"add it to compute_s, which has {', '.join(spec.compute_s)}",
                )
        able = sum(h.gpu is not None and h.gpu.model in spec.compute_s for h in lab.hosts)
        if not spec.hosts and spec.workers > able:
            raise BadInput(
                f"job {spec.name}: {spec.workers} workers asked for: the lab has {able} GPUs "
                f"of the models in its compute_s, which has {', '.join(spec.compute_s)}"
            )
    usable = [h.name for h in lab.hosts if h.gpu is not None]
    asked = sum(len(spec.hosts) or spec.workers for spec in specs)
    if asked > len(usable):
        raise BadInput(f"{asked} workers asked for: the lab has {len(usable)} GPUs with a NIC")
