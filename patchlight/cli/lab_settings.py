"""What ``patchlight simulate --lab`` takes from the lab's file: all that no option says."""

from typing import Any

import click

from patchlight.controller.policies.defragment import LOOKED_AT_EVERY_S
from patchlight.testbed.labfile.reader import load_lab

# Fields of a queue's settings, and the options that say them.
_QUEUE = {
    "backfill": "backfill",
    "backfill_depth": "backfill_depth",
    "preempt": "preempt",
    "quantum_s": "quantum",
    "half_life_s": "half_life",
    "quota_window_s": "quota_window",
}
_ALLOWANCES = ("quota", "most_jobs", "gpu_hours", "share")
_POLICIES = ("order", "placement", "topology")


def left_to_the_lab(lab_name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a lab's file says and no option of the present command does.

    First the policies, as options give them; then settings of a simulation, by field.
    """
    context, lab = click.get_current_context(), load_lab(lab_name)

    def is_said(option: str) -> bool:
        return context.get_parameter_source(option) is not click.core.ParameterSource.DEFAULT

    policies = {
        kind: (name,)
        for kind in _POLICIES
        if not is_said(kind) and (name := getattr(lab.policies, kind)) is not None
    }
    settings: dict[str, Any] = {
        field: getattr(lab.queue, field) for field, option in _QUEUE.items() if not is_said(option)
    }
    if not any(map(is_said, _ALLOWANCES)):
        settings |= {"each_user": lab.queue.each_user, "users": lab.queue.users}
    if lab.policies.minimum_gain_s is not None:
        settings["minimum_gain_s"] = lab.policies.minimum_gain_s
    if lab.policies.defragment and not is_said("defragment_s"):
        every_s = lab.policies.defragment_every_s
        settings["defragment_s"] = LOOKED_AT_EVERY_S if every_s is None else every_s
    return policies, settings
