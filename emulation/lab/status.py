"""What of a lab is there, and what ``up`` does about a lab of that name that is there already."""

from collections.abc import Callable
from typing import Any

from patchlight.emulation.fabric import lab_state as states
from patchlight.emulation.lab.teardown import is_there, remove_forgotten_disks, remove_lab
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.linux import namespaces
from patchlight.testbed.linux.processes import own_program


def lab_status(name: str) -> dict[str, Any]:
    """A lab's state for people and programs, as plain values.

    ``state`` is ``up``, ``making``, ``half-there`` (``missing`` says what is not), ``down``,
    or ``unreadable`` where another version of Patchlight wrote it.
    """
    try:
        state = states.read_state(name)
    except PatchlightError as error:
        return {"name": name, "state": "unreadable", "missing": [error.message]}
    if state is None or not state.is_of_this_boot:
        return {"name": name, "state": "down", "missing": []}
    missing = missing_parts(state)
    condition = "up" if state.phase == "up" and not missing else "half-there"
    if state.phase == "making" and states.is_running(state.builder):
        condition = "making"
    return {
        "name": name,
        "state": condition,
        "missing": missing,
        "source": state.source,
        "scale": state.scale,
        "fabric": state.fabric,
        "datapath": state.datapath,
        "ssh_config": None if state.ssh_config is None else str(state.ssh_config),
        "controller_api": state.controller_api or None,
        "made_at": state.made_at,
        "run_dir": str(state.run_dir),
        "namespaces": len(state.namespaces),
        "processes": [
            {"name": p.name, "pid": p.pid, "running": states.is_running(p), "log": p.log}
            for p in state.processes
        ],
    }


def missing_parts(state: states.LabState) -> list[str]:
    """What of a lab is recorded but gone."""
    gone = [
        f"namespace {name}"
        for name, inode in state.namespaces.items()
        if namespaces.inode(namespaces.namespace_path(name)) != inode
    ]
    return gone + [f"process {p.name}" for p in state.processes if not states.is_running(p)]


def only_processes(missing: list[str]) -> bool:
    """Whether nothing is gone but processes, which can be started again."""
    return bool(missing) and all(part.startswith("process ") for part in missing)


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
