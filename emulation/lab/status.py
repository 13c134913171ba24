"""What of a lab is there, as plain values."""

from typing import Any

from patchlight.emulation.fabric import lab_state as states
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.linux import namespaces


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
