"""What is wrong with wavelengths in a lab file once its parts are seen together."""

from collections.abc import Iterable
from typing import Any

from patchlight.testbed.errors import BadInput
from patchlight.testbed.io.groups import Fields
from patchlight.testbed.io.issues import FileIssues, Located
from patchlight.testbed.lab.ocs_drivers import check_shape
from patchlight.testbed.lab.spectrum import ChannelConnect, Grid, SpectrumMap, clashes
from patchlight.testbed.lab.wavelengths import Transceiver, WavelengthSwitch
from patchlight.testbed.labfile.colours_schema import part_channels, transceiver_of


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
        transceiver: Transceiver = transceiver_of(fields)
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
    inputs = switch["inputs"].value if "inputs" in switch else 0
    outputs = switch["outputs"].value if "outputs" in switch else inputs
    grid = switch["grid"].value if "grid" in switch else Grid()
    before: list[tuple[ChannelConnect, int]] = []
    for item in switch["cross_connects"].value if "cross_connects" in switch else []:
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
