"""How large and how rich a lab is, in numbers: where a model was tested, and what a lab lacks.

A model decides in any lab; what it was never tested on, and what a lab does not tell of itself, is
said to whoever looks at the two together.
"""

from collections.abc import Mapping

from patchlight.testbed.lab.model import Lab


def lab_range(lab: Lab) -> dict[str, float]:
    """A lab's measures: those of which a card has the range that was tested."""
    hosts = [host for host in lab.hosts if host.gpu is not None]
    nics_bps = sum(host.nic.rate_bps or 0 for host in hosts)
    switches = {switch.name for switch in lab.packet_switches}
    trunks_bps = sum(
        fibre.rate_bps or 0
        for fibre in lab.fibres
        if {fibre.a.device, fibre.b.device} <= switches and fibre.a.device != fibre.b.device
    )
    found = {
        "gpus": float(len(hosts)),
        "servers": float(len(lab.servers)),
        "packet switches": float(len(lab.packet_switches)),
        "circuit switches": float(len(lab.circuit_switches)),
        "GPU models": float(len({host.gpu.model for host in hosts if host.gpu is not None})),
    }
    if nics_bps and trunks_bps:
        found["NICs' rate over that between switches"] = round(nics_bps / trunks_bps, 3)
    return found


def outside_range(tested: Mapping[str, tuple[float, float]], lab: Lab) -> list[str]:
    """In words what of a lab is outside the range that a model was tested in."""
    if not tested:
        return ["all of it: the model was never tested"]
    found = []
    for name, value in lab_range(lab).items():
        if name not in tested:
            continue
        lowest, highest = tested[name]
        if not lowest <= value <= highest:
            found.append(f"{name}: {value:g} here, tested with {lowest:g} to {highest:g}")
    return found


def missing_inputs(lab: Lab) -> list[str]:
    """In words what a lab does not tell of itself, so that a model sees it as 0 or unknown."""
    hosts = [host for host in lab.hosts if host.gpu is not None]
    found = []
    without_rate = sum(not host.nic.rate_bps for host in hosts)
    if without_rate:
        found.append(f"the rate of {without_rate} of {len(hosts)} NICs: they seem to be unlimited")
    if not lab.circuit_switches:
        found.append("circuits: the lab has no circuit switch")
    elif not any(fibre.loss_db for fibre in lab.fibres):
        found.append("the loss of fibres: that of circuit switches alone is seen")
    return found


FROM_JOBS = (
    "how long a job lasts: from 'iterations', 'gradient' and 'compute'; others count as an hour",
    "a job's computation graph: from 'graph'; others are seen without one",
    "when running jobs end: from the iterations that are left, as links are shared now "
    "(the simulator knows it exactly)",
)
"""What a model sees of jobs in a lab, and where that differs from the simulator."""
