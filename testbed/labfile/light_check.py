"""What is wrong with the light of a lab file's start: signals that meet, and light too weak."""

from patchlight.testbed.io.groups import Fields
from patchlight.testbed.io.issues import FileIssues, Located
from patchlight.testbed.lab.model import Endpoint, Lab
from patchlight.testbed.lab.optical_links import Light, Meeting


def check_light(lab: Lab, fields: Fields, issues: FileIssues) -> None:
    """Note where two signals of one channel meet at the start, at the fibre where they do."""
    if not lab.coloured:
        return
    by_fibre: dict[Endpoint, list[Meeting]] = {}
    for meeting in Light(lab, lab.initial_maps).meetings:
        by_fibre.setdefault(meeting.at, []).append(meeting)
    for at, meetings in by_fibre.items():
        others = f" (pairs that meet there: {len(meetings)})" if len(meetings) > 1 else ""
        message = f"{meetings[0]}{others}: expected other channels, or other ways for them"
        issues.at(_fibre(lab, fields, at), message)


def note_weak_light(lab: Lab, fields: Fields, issues: FileIssues) -> None:
    """Note receivers that the light that arrives at the start is too weak for."""
    weak = Light(lab, lab.initial_maps).weak if lab.coloured else ()
    for path, power_dbm in weak:
        message = f"{power_dbm:.1f} dBm of {path.source} arrive at {path.sink}"
        issues.at(_fibre(lab, fields, path.sink), f"{message}: expected its sensitivity or more")


def _fibre(lab: Lab, fields: Fields, end: Endpoint) -> Located[object]:
    """Where the fibre at that end stands in the file."""
    fibre = lab.fibre_ends[end][1]
    located: Located[object] = fields["fibres"].value[lab.fibres.index(fibre)]
    return located
