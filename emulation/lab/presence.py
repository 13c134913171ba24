"""Whether a lab of a name is here already, and what ``up`` does about it."""

from collections.abc import Callable

from patchlight.emulation.fabric import lab_state as states
from patchlight.emulation.lab.status import missing_parts
from patchlight.emulation.lab.teardown import is_there, remove_forgotten_disks, remove_lab
from patchlight.testbed.errors import PatchlightError


class AlreadyThere(PatchlightError):
    """A lab of that name is up, or half there."""


def clear_the_way(lab: str, *, replace: bool, say: Callable[[str], None]) -> None:
    """Remove what is left of a lab of that name; ``AlreadyThere`` unless that may be done.

    With ``replace`` whatever is there goes; what was there before the machine was started anew goes
    in any case. The caller holds the lab's lock.
    """
    remove_forgotten_disks()
    if not is_there(lab):
        return
    state = states.read_state(lab)
    if replace or (state is not None and not state.is_of_this_boot):
        say(f"removing the lab {lab} that was here")
        remove_lab(lab)
        return
    if state is not None and state.phase == "up" and not missing_parts(state):
        raise AlreadyThere(
            f"lab {lab} is up already",
            hint="Use it, or make it anew with --replace, or another one with --name.",
        )
    raise left_half(state, lab)


def left_half(state: states.LabState | None, name: str) -> AlreadyThere:
    """The error about a lab that was not finished, or has lost parts."""
    what = ": things of its name are, but nothing says what was made"
    if state is not None:
        missing = missing_parts(state)
        parts = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if missing[5:] else "")
        what = f" (gone: {parts})" if missing else " (it was never finished)"
    return AlreadyThere(
        f"lab {name} is half there{what}",
        hint=f"Make it anew with --replace, or remove it with: patchlight emulate down {name}",
    )
