"""Warns about what valid lab files and their policies probably lack."""

from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

from patchlight.testbed.errors import BadInput, FileIssue
from patchlight.testbed.io.keys import Keys
from patchlight.testbed.io.reader import FileIssues, Located, read_text
from patchlight.testbed.lab.loops import harmful_loops, in_words
from patchlight.testbed.lab.model import Endpoint, Lab
from patchlight.testbed.lab.ocs_drivers import OCS_DRIVERS
from patchlight.testbed.lab.optical_links import Light
from patchlight.testbed.lab.rules import KINDS, PolicyKind, full_path
from patchlight.testbed.lab.wiring import trace_links
from patchlight.testbed.labfile.check import SWITCHES
from patchlight.testbed.labfile.reader import (
    LabFileError,
    checked_fields,
    fibre_at,
)
from patchlight.testbed.labfile.schema import LabKeys


def oversights(path: str | Path) -> tuple[FileIssue, ...]:
    """What the lab in this file probably lacks; ``LabFileError`` if the file has mistakes."""
    issues = FileIssues(str(path), LabFileError)
    fields = checked_fields(read_text(path, LabFileError), str(path))
    _note_oversights(fields, issues)
    _note_weak_signals(fields.made(), fields, issues)
    _note_loops(fields.made(), fields, issues)
    return issues.found


def policy_mistakes(
    path: str | Path, check: Callable[[str, PolicyKind], object]
) -> tuple[FileIssue, ...]:
    """What ``check`` finds wrong (``BadInput``) with the policies of a valid lab file, by place."""
    issues = FileIssues(str(path), LabFileError)
    fields = checked_fields(read_text(path, LabFileError), str(path))
    named: Keys = fields.value_of("policies", Keys())
    for kind in KINDS:
        if kind in named:
            try:
                check(full_path(named[kind].value, Path(path).parent), kind)
            except BadInput as error:
                issues.at(named[kind], error.message)
    return issues.found


def _note_oversights(lab: LabKeys, issues: FileIssues) -> None:
    servers, *kinds = (lab.list_of(key) for key in ("servers", *SWITCHES))
    switches = [switch for kind in kinds for switch in kind]
    if not (servers or switches):
        issues.at(
            lab["name"],
            "the lab has a name only: expected servers or switches",
        )
    workers: Keys = lab.value_of("workers", Keys())
    if workers.value_of("user") == "root":
        message = (
            "workers run as root: "
            "every user who submits jobs can read all files of the servers"
        )
        issues.at(
            workers["user"], f"{message}; expected dynamic, or a user by name"
        )
    plugged: set[Endpoint] = {
        end for fibre in lab.fibres or () for end in fibre.ends
    }
    for server in servers:
        _note_server(server, plugged, issues)
    joined = {end.device for end in plugged}
    # A lab with only a switch is useful to try a driver.
    if servers or len(switches) > 1:
        for name in (switch["name"] for switch in switches):
            if name.value not in joined:
                message = f"no fibre at {name.value}: expected one in 'fibres'"
                issues.at(name, message)
    emulated = {
        driver.name for driver in OCS_DRIVERS.values() if driver.device
    }
    emulated |= {
        point.name for point in entry_points(group="patchlight.emulated_ocs")
    }
    for switch in lab.list_of("circuit_switches"):
        driver = switch["driver"]
        if driver.value not in emulated:
            message = f"driver {driver.value} has no emulated device: the lab cannot be emulated"
            issues.at(
                driver,
                f"{message}; expected one of {', '.join(sorted(emulated))}",
            )


def _note_server(
    server: Keys,
    plugged: set[Endpoint],
    issues: FileIssues,
) -> None:
    name: Located[str] = server["name"]
    if "management" not in server:
        message = (
            f"server {name.value} has no management address for its agent"
        )
        issues.at(name, f"{message}: expected 'management: {name.value}:8471'")
    for nic in (nic["name"] for nic in server.list_of("nics")):
        if Endpoint(name.value, nic.value) not in plugged:
            message = f"NIC {name.value}.{nic.value} has no fibre: expected one in 'fibres'"
            issues.at(nic, message)


def _note_loops(
    lab: Lab,
    fields: LabKeys,
    issues: FileIssues,
) -> None:
    for loop in harmful_loops(lab, trace_links(lab, lab.initial_maps).pairs()):
        message = f"a loop through switches that flood, without a spanning tree: {in_words(loop)}"
        issues.at(
            fibre_at(lab, fields, loop[0][0]),
            f"{message}; expected one link fewer",
        )


def _note_weak_signals(
    lab: Lab,
    fields: LabKeys,
    issues: FileIssues,
) -> None:
    weak = Light(lab, lab.initial_maps).weak if lab.coloured else ()
    for path, power_dbm in weak:
        message = f"{power_dbm:.1f} dBm of {path.source} arrive at {path.sink}"
        issues.at(
            fibre_at(lab, fields, path.sink),
            f"{message}: expected at least its sensitivity",
        )
