"""How a learned policy fits a lab: what it would miss there, and what it was not tested with."""

from typing import TYPE_CHECKING, Any

from patchlight.console.rendering import say
from patchlight.testbed.errors import BadInput

if TYPE_CHECKING:
    from patchlight.controller.policies.recipe import PolicyRecipe


def fit_of(found: "PolicyRecipe", lab_name: str) -> dict[str, Any]:
    """How a learned policy fits a lab; ``BadInput`` if it does not, or is none that could."""
    from patchlight.controller.jobs.cluster_view import WiredLab
    from patchlight.controller.policies.options.card import FROM_JOBS, missing_inputs, outside_range
    from patchlight.testbed.labfile.reader import load_lab

    policy: Any = found.factory
    if getattr(policy, "card", None) is None:
        raise BadInput(
            f"{found.name} is no learned policy: --lab says what of a lab such a one would miss",
            hint="leave --lab out",
        )
    lab = load_lab(lab_name)
    policy.check_fits(WiredLab(lab, lab.initial_maps).shape, lab)
    return {
        "lab": lab.name,
        "missing": missing_inputs(lab),
        "outside": outside_range(getattr(policy.card, "tested_range", {}), lab),
        "from_jobs": list(FROM_JOBS),
    }


def say_fit(fit: dict[str, Any]) -> None:
    """The same for people."""
    say(f"\nin lab {fit['lab']}:")
    for what, lines in (("missing", fit["missing"]), ("not tested", fit["outside"])):
        for line in lines or ["nothing"]:
            say(f"  {what}: {line}")
    say("\nwhat it sees of jobs there:")
    for line in fit["from_jobs"]:
        say(f"  {line}")
