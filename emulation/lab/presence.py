"""Whether a lab of a name is here already, and what ``up`` does about it."""

from collections.abc import Callable

from patchlight.emulation.fabric import lab_state as states
from patchlight.emulation.lab.status import missing_parts, only_processes
from patchlight.emulation.lab.teardown import is_there, remove_forgotten_disks, remove_lab
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.linux.processes import own_program


class AlreadyThere(PatchlightError):
    """A lab of that name is up, or half there."""


def clear_the_way(lab: str, *, replace: bool, say: Callable[[str], None]) -> states.LabState | None:
    """Remove what is left of a lab of that name; ``AlreadyThere`` unless that may be done.

    With ``replace`` the lab is removed; one from before the machine booted in any case. A lab that
    only lacks processes is left as it is, and its state returned: they can be started again. The
    caller holds the lab's lock.
    """
    remove_forgotten_disks()
    if not is_there(lab):
        return None
    state = states.read_state(lab)
    if replace or (state is not None and not state.is_of_this_boot):
        say(f"removing the lab {lab} that was here")
        remove_lab(lab)
        return None
    if state is not None and state.phase == "up" and not missing_parts(state):
        raise AlreadyThere(
            f"lab {lab} is up already",
            hint="Use it, or make it again with --replace, or another one with --name.",
        )
    if state is not None and state.phase == "up" and only_processes(missing_parts(state)):
        return state
    raise left_half(state, lab)


def left_half(state: states.LabState | None, name: str) -> AlreadyThere:
    """The error about a lab that was not finished, or has lost parts."""
    what = ": things of its name are here, but no record of what was made"
    run = f"sudo {own_program()} emulate"
    hint = f"Make it again: {run} up LAB --replace; or remove it: {run} down {name}"
    if state is not None:
        missing = missing_parts(state)
        parts = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if missing[5:] else "")
        what = f" (gone: {parts})" if missing else " (it was never finished)"
    return AlreadyThere(f"lab {name} is half there{what}", hint=hint)
