"""The card of a model that weighs options, and in which range of labs the model was tested."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from patchlight.controller.policies.contract import KINDS
from patchlight.controller.policies.files import (
    FORMAT,
    OPTIONS_VERSION,
    card_fields,
    no_card,
    raw_card,
)
from patchlight.testbed.lab.model import Lab

FROM_JOBS = (
    "how long a job lasts: from 'iterations', 'gradient' and 'compute'; others count as an hour",
    "a job's computation graph: from 'graph'; others are seen without one",
    "when running jobs end: from the iterations that are left, as links are shared now "
    "(the simulator knows it exactly)",
)
"""What a model sees of jobs in a lab, and where that differs from the simulator."""


@dataclass(frozen=True)
class OptionsCard:
    """What a model that weighs options says of itself.

    ``tested_range`` has the lowest and the highest value of each measure of labs (``lab_range``)
    on which it was tested; larger job graphs than ``most_operations`` are pooled to that. What
    came of the test is in ``training``, with the settings.
    """

    name: str
    kinds: tuple[str, ...]
    observation_schema: str
    observation_version: int
    most_operations: int
    trained_on: str
    tested_range: Mapping[str, Any]
    code_version: str
    sha256: str
    notes: str = ""
    training: Mapping[str, Any] = field(default_factory=dict)

    def written(self) -> str:
        """As JSON text that ``read_options_card`` takes."""
        found = {"format": FORMAT, "format_version": OPTIONS_VERSION, **asdict(self)}
        return json.dumps(found, indent=2, ensure_ascii=False) + "\n"


def read_options_card(path: Path) -> OptionsCard:
    """The card in a file; ``CardError`` saying what is wrong with it."""
    raw = raw_card(path)
    if raw["format_version"] != OPTIONS_VERSION:
        raise no_card(path, "it is one of a partition policy of one RAMP")
    fields = card_fields(raw, OptionsCard, path, {"notes", "training"})
    kinds = fields["kinds"]
    if not kinds or len(set(kinds)) != len(kinds) or not set(kinds) <= set(KINDS):
        raise no_card(path, f"'kinds' is {kinds}: expected some of {', '.join(KINDS)}")
    for name, bounds in fields["tested_range"].items():
        numbers = isinstance(bounds, list) and all(type(n) in (int, float) for n in bounds)
        if not numbers or len(bounds) != 2 or not bounds[0] <= bounds[1]:
            raise no_card(path, f"'tested_range' of {name!r} is {bounds!r}: expected two numbers")
    return OptionsCard(**{**fields, "kinds": tuple(kinds)})


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
