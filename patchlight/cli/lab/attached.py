"""Which emulated lab a command means: by name, by its file, or the only one that is up."""

from pathlib import Path

from patchlight.console.connection import only_lab
from patchlight.emulation.fabric.lab_state import RUN_ROOT, recorded_labs
from patchlight.emulation.lab.emulated_lab import EmulatedLab
from patchlight.testbed.errors import BadInput
from patchlight.testbed.labfile.reader import read_lab


def attached(lab: str | None) -> EmulatedLab:
    """The lab of that name, or the only one that is up."""
    return EmulatedLab.attach(meant(lab))


def meant(lab: str | None) -> str:
    """The name of the lab meant: one that is here, that of a file, or the only one."""
    if lab is None:
        return only_lab(recorded_labs())
    if lab in recorded_labs():
        return lab
    if Path(lab).is_file():
        return read_lab(lab).name
    if "/" in lab:
        raise BadInput(f"no lab is called {lab!r}, and there is no such file (see {RUN_ROOT})")
    return lab
