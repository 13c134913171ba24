"""What is wrong with wavelengths in a lab file once its parts are seen together."""

from collections.abc import Iterable
from typing import Any

from patchlight.testbed.errors import BadInput
from patchlight.testbed.io.fields import Fields, plain
from patchlight.testbed.io.issues import FileIssues, Located
from patchlight.testbed.lab.model import Endpoint, Lab
from patchlight.testbed.lab.ocs_drivers import check_shape
from patchlight.testbed.lab.optical_links import Light, Meeting
from patchlight.testbed.lab.spectrum import ChannelConnect, Grid, SpectrumMap, clashes
from patchlight.testbed.lab.wavelengths import Transceiver, WavelengthSwitch
from patchlight.testbed.labfile.optical_schema import part_channels


def check_transceiver(located: Located[Any], issues: FileIssues) -> None:
    """Note a transceiver without a channel, and one that cannot send its channel."""
    fields: Fields = located.value
    if fields.broken:
        return
    if "channel" not in fields and "tunable" not in fields:
        message = "a transceiver lacks its channel: expected 'channel', or 'tunable' with a band"
        issues.at(located, message)
        return
    place = fields["channel"] if "channel" in fields else fields["tunable"]
    try:
        transceiver: Transceiver = plain(fields)
        transceiver.check(transceiver.channel)
        transceiver.grid.check(transceiver.channel)
    except BadInput as error:
        issues.at(place, error.message)
    if "tuning_time" in fields and "tunable" not in fields:
        message = "a transceiver of one channel takes no time to tune: expected 'tunable' beside it"
        issues.at(fields["tuning_time"], message)


def check_wavelength_switch(switch: Fields, issues: FileIssues) -> None:
    """Note ports and channels that it has not, and signals that would meet."""
    whole = "inputs" in switch and not switch.broken & {"outputs", "grid"}
    inputs = switch.value_of("inputs", 0)
    outputs = switch.value_of("outputs", inputs)
    grid = switch.value_of("grid", Grid())
    before: list[tuple[ChannelConnect, int]] = []
    for item in switch.value_of("cross_connects", []):
        ways: tuple[ChannelConnect, ...] = item.value
        try:
            if whole:
                SpectrumMap(ways).check(inputs, outputs, grid)
            _check_apart(ways, before)
        except BadInput as error:
            issues.at(item, error.message)
        else:
            before += [(way, item.line) for way in ways]
    if "driver" in switch and whole:
        initial = SpectrumMap(tuple(way for way, _ in before))
        driver = switch["driver"]
        try:
            check_shape(WavelengthSwitch("", inputs, outputs, grid, 0, 0, initial, driver.value))
        except BadInput as error:
            issues.at(driver, error.message)
    for key, other in (("driver", "address"), ("address", "driver")):
        if key in switch and other not in switch and other not in switch.broken:
            message = f"a wavelength switch with {key!r} lacks {other!r}: expected both or neither"
            issues.at(switch[key], message)


def _check_apart(ways: Iterable[ChannelConnect], before: list[tuple[ChannelConnect, int]]) -> None:
    for way in ways:
        for other, line in before:
            for words in clashes([other, way]):
                raise BadInput(f"{words} of line {line}: expected other ports or channels")


def check_passive_part(part: Fields, issues: FileIssues) -> None:
    """Note what a part of its kind cannot have, and what it lacks."""
    if "kind" not in part or part.broken & {"ports", "channels", "grid"}:
        return
    kind = part["kind"]
    if kind.value == "coupler":
        for key in ("channels", "grid"):
            if key in part:
                issues.at(part[key], f"a coupler sorts no channels: expected no {key!r}")
    elif "channels" not in part:
        issues.at(kind, f"a part of kind {kind.value} lacks 'channels': expected the band it sorts")
        return
    if kind.value != "multiplexer" and "ports" not in part:
        issues.at(kind, f"a part of kind {kind.value} lacks 'ports': expected how many it has")
    try:
        count = len(part_channels(part))
    except BadInput as error:
        issues.at(part["channels"], error.message)
        return
    if kind.value == "multiplexer" and "ports" in part and part["ports"].value != count + 1:
        message = f"a multiplexer of {count} channels has {count + 1} ports"
        issues.at(part["ports"], f"{message}: expected that, or no 'ports'")


def check_meetings(lab: Lab, fields: Fields, issues: FileIssues) -> None:
    """Note where two signals of one channel meet at the start, at the fibre where they do."""
    by_fibre: dict[Endpoint, list[Meeting]] = {}
    for meeting in Light(lab, lab.initial_maps).meetings:
        by_fibre.setdefault(meeting.at, []).append(meeting)
    for at, meetings in by_fibre.items():
        others = f" (pairs that meet there: {len(meetings)})" if len(meetings) > 1 else ""
        message = f"{meetings[0]}{others}: expected other channels, or other ways for them"
        issues.at(_fibre(lab, fields, at), message)


def note_weak_signals(lab: Lab, fields: Fields, issues: FileIssues) -> None:
    """Note receivers at which too little optical power arrives at the start."""
    weak = Light(lab, lab.initial_maps).weak if lab.coloured else ()
    for path, power_dbm in weak:
        message = f"{power_dbm:.1f} dBm of {path.source} arrive at {path.sink}"
        issues.at(_fibre(lab, fields, path.sink), f"{message}: expected its sensitivity or more")


def _fibre(lab: Lab, fields: Fields, end: Endpoint) -> Located[object]:
    """Where the fibre at that end stands in the file."""
    fibre = lab.fibre_ends[end][1]
    located: Located[object] = fields["fibres"].value[lab.fibres.index(fibre)]
    return located
