"""What ``patchlight simulate --lab`` takes from the lab's policies: all that no option says."""

from typing import Any

import click

from patchlight.controller.policies.defragment import LOOKED_AT_EVERY_S
from patchlight.testbed.policies import PolicyChoice

_POLICIES = ("order", "placement", "topology", "elasticity", "partition")


def left_to_the_lab(policies: PolicyChoice) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a lab's file says of policies and no option of the present command does.

    First the policies, as options give them; then settings of a simulation, by field.
    """
    context = click.get_current_context()

    def is_said(option: str) -> bool:
        return context.get_parameter_source(option) is not click.core.ParameterSource.DEFAULT

    named = {
        kind: (name,)
        for kind in _POLICIES
        if not is_said(kind) and (name := getattr(policies, kind)) is not None
    }
    settings: dict[str, Any] = {}
    if policies.minimum_gain_s is not None:
        settings["minimum_gain_s"] = policies.minimum_gain_s
    if policies.defragment and not is_said("defragment_s"):
        every_s = policies.defragment_every_s
        settings["defragment_s"] = LOOKED_AT_EVERY_S if every_s is None else every_s
    return named, settings
