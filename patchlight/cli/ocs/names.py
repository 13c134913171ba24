"""Ports and channels as users name them, one by one or in a file of cross-connects."""

import csv
import io
import re
from collections.abc import Iterable, Iterator

import click
import yaml

from patchlight.console.connection import completer
from patchlight.testbed.errors import BadInput
from patchlight.testbed.io.reader import (
    FileIssues,
    Located,
    compose,
    describe,
    locate,
    read_standard_input,
    read_text,
    stands_twice,
)
from patchlight.testbed.lab.model import Endpoint, Lab, OpticalSwitch
from patchlight.testbed.lab.optical_links import Entry
from patchlight.testbed.lab.portmap import AnyMap
from patchlight.testbed.lab.spectrum import Channel, ChannelConnect
from patchlight.testbed.lab.wiring import Place, check_place, parse_map


def place_number(
    lab: Lab,
    ocs: str,
    text: str,
) -> int | str:
    """A port of this switch, or a channel there, as the controller takes it."""
    port, at, _ = text.partition("@")
    port_number(lab, ocs, port)  # says so if it is one of another
    _, place = place_anywhere(lab, text, lab.optical_switch(ocs))
    return str(place) if at else place.port


def port_number(
    lab: Lab,
    ocs: str,
    text: str,
) -> int:
    """A port of this switch: ``17``, ``ocs1.17``, or the device port that is plugged into it."""
    name, number = port_anywhere(lab, text, lab.optical_switch(ocs))
    if name != ocs:
        raise BadInput(
            f"{text} has no fibre to {ocs}: expected a port number, or a port with a fibre to it"
        )
    return number


def place_anywhere(
    lab: Lab,
    text: str,
    default: OpticalSwitch | None = None,
) -> tuple[str, Place]:
    """Which port of which switch a text means, with ``@193.100`` which channel there."""
    port, at, channel = text.partition("@")
    name, number = port_anywhere(lab, port, default)
    place = Place(number, Channel.parse(channel) if at else None)
    check_place(lab.optical_switch(name), place)
    return name, place


def port_anywhere(
    lab: Lab,
    text: str,
    default: OpticalSwitch | None = None,
) -> tuple[str, int]:
    """Which port of which switch a text means; a bare number is one of ``default``."""
    if text.isascii() and text.isdigit():
        if default is None:
            driven = driven_switches(lab)
            if len(driven) != 1:
                names = ", ".join(switch.name for switch in driven) or "none"
                raise BadInput(
                    f"port {text} of which OCS? lab {lab.name} has {names}: write OCS.{text}"
                )
            default = driven[0]
        return default.name, _within(default, int(text))
    endpoint = (
        lab.host_names[text].endpoint
        if text in lab.host_names
        else Endpoint.parse(text)
    )
    switches = {switch.name: switch for switch in lab.optical_switches}
    if endpoint.device in switches:
        if not endpoint.port.isdigit():
            raise BadInput(
                f"{text} is not a port: expected {endpoint.device}.N"
            )
        return endpoint.device, _within(
            switches[endpoint.device], int(endpoint.port)
        )
    end = lab.fibre_ends.get(endpoint)
    if end is None or end[0].device not in switches:
        lab.device(endpoint.device)  # says so if there is no such device
        raise BadInput(f"{text} has no fibre to an OCS")
    return end[0].device, int(end[0].port)


def ports_by_switch(lab: Lab, texts: Iterable[str]) -> dict[str, list[int]]:
    """The ports that these texts mean, by switch."""
    ports: dict[str, list[int]] = {}
    for text in texts:
        name, number = port_anywhere(lab, text)
        ports.setdefault(name, []).append(number)
    return ports


_MOST_NODES = 1000
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_BRACKETS = re.compile(r"([^][,]*)\[([\d,-]+)\]")


def node_names(text: str) -> list[str]:
    """The names in a list as Slurm writes it: ``server[1-3,07],login2``. ``BadInput`` for others,
    and for more than a thousand."""
    found: list[str] = []
    for entry in re.split(r",(?![^[]*\])", text):
        names = [""]
        for prefix, ranges in _BRACKETS.findall(entry):
            numbers = [n for each in ranges.split(",") for n in _numbers(each)]
            names = [f"{n}{prefix}{i}" for n in names for i in numbers]
            if len(names) > _MOST_NODES:
                raise BadInput(f"{text!r} names more than {_MOST_NODES} nodes")
        rest = _BRACKETS.sub("", entry).strip()
        if not (entry.strip() and rest.isprintable()) or {*rest} & {*"[],"}:
            raise BadInput(
                f"{text!r} is not a list of nodes: expected server[1-3],server7"
            )
        found += [f"{name.strip()}{rest}" for name in names]
    return found


def _numbers(text: str) -> list[str]:
    """``08-10`` → ``08``, ``09``, ``10``."""
    at = _RANGE.fullmatch(text)
    if at is None:
        raise BadInput(f"[{text}] is not a range: expected [1-3] or [1,5]")
    first = int(at[1])
    last = int(at[2] or at[1])
    if not 0 <= last - first < _MOST_NODES:
        raise BadInput(
            f"[{text}] is not a range of 1 to {_MOST_NODES} numbers"
        )
    return [f"{n:0{len(at[1])}}" for n in range(first, last + 1)]


def places_by_switch(
    lab: Lab, texts: Iterable[str]
) -> dict[str, list[int | str]]:
    """The ports and channels that these texts mean, by switch, as the controller takes them."""
    places: dict[str, list[int | str]] = {}
    for text in texts:
        name, place = place_anywhere(lab, text)
        places.setdefault(name, []).append(
            str(place) if place.channel else place.port
        )
    return places


def cross_connect_text(
    lab: Lab,
    ocs: str,
    text: str,
    *,
    one_way: bool = False,
) -> str:
    """``3:17``, ``3-17``, ``3>17`` or the same with names, as the controller takes it.

    ``:`` and ``-`` mean both ways unless ``one_way``, ``>`` means one way. Names may hold a
    ``-`` themselves, so between names only ``:`` and ``>`` are taken. Of a wavelength switch a
    channel follows: ``3:17@193.100``, ``3:17@193.100-2dB``.
    """
    pair, at, light = text.partition("@")
    for sign in ":>":
        left, joint, right = pair.partition(sign)
        if joint:
            break
    else:
        left, joint, right = pair.partition("-")
        if not (joint and left.strip().isdigit() and right.strip().isdigit()):
            raise BadInput(
                f"{text!r} is not a pair: expected A:B, like 3:17 or server1.nic0:tor1.1"
            )
    a = port_number(lab, ocs, left.strip())
    b = port_number(lab, ocs, right.strip())
    way = ">" if one_way or joint == ">" else "-"
    if a == b and not (at and way == ">"):
        raise BadInput(
            f"{text!r} connects a port to itself: expected two different ports"
        )
    written = f"{a}{way}{b}{at}{light}"
    # Says so if a channel lacks, or is too much.
    parse_map(lab.optical_switch(ocs), [written])
    return written


def named_pair(text: str) -> tuple[str, str]:
    """``A:B`` as two names; ``BadInput`` for all else."""
    left, colon, right = (part.strip() for part in text.partition(":"))
    if not (left and colon and right) or ":" in right:
        raise BadInput(
            f"{text!r} is not a pair: expected A:B, like server1.nic0:tor1"
        )
    return left, right


def plugged_in(
    lab: Lab,
    ocs: str,
    port: int,
) -> str:
    """The port that is plugged into a port of the OCS; empty if none is."""
    end = lab.fibre_ends.get(Endpoint(ocs, str(port)))
    return str(end[0]) if end else ""


def driven_switches(lab: Lab) -> list[OpticalSwitch]:
    """The lab's switches that have a driver, circuit switches first."""
    return [switch for switch in lab.optical_switches if switch.driver]


def _within(switch: OpticalSwitch, number: int) -> int:
    if not 1 <= number <= switch.ports:
        raise BadInput(
            f"{switch.name} has ports 1–{switch.ports}, not {number}"
        )
    return number


# -- completion in the shell -------------------------------------------------------------------


def _port_names(lab: Lab, ocs: str | None) -> Iterator[str]:
    """The ports that are plugged into this switch, or any."""
    switches = (
        {ocs} if ocs else {switch.name for switch in driven_switches(lab)}
    )
    for end, (other, _) in lab.fibre_ends.items():
        if other.device in switches:
            yield str(end)
    for name, host in lab.host_names.items():
        plug = lab.fibre_ends.get(host.endpoint)
        if plug is not None and plug[0].device in switches:
            yield name


def _pairs(
    lab: Lab,
    context: click.Context,
    incomplete: str,
) -> Iterator[str]:
    given = context.params.get("pairs") or ()
    if not given:
        yield from (switch.name for switch in driven_switches(lab))
    names = list(
        _port_names(lab, given[0] if given and ":" not in given[0] else None)
    )
    left, colon, _ = incomplete.partition(":")
    if colon:
        yield from (f"{left}:{name}" for name in names if name != left)
    else:
        yield from (f"{name}:" for name in names)


complete_switch = completer(
    lambda lab, *_: (switch.name for switch in driven_switches(lab))
)
complete_pair = completer(_pairs)
complete_port = completer(
    lambda lab, context, _: _port_names(lab, context.params.get("name"))
)
complete_any_port = completer(
    lambda lab, *_: (
        name
        for end, (other, _fibre) in lab.fibre_ends.items()
        if other.device in {switch.name for switch in driven_switches(lab)}
        for name in (str(end), str(other))
    )
)

# -- files of cross-connects ----------------------------------------------------------------------

_ONE_WAY = {"one-way", "oneway", "1way", ">"}
_BOTH_WAYS = {"both", "duplex", "2way", "-", ""}
_EXPECTED = "cross-connects by OCS, like 'ocs1: [1-7, 2>8]'"

# The OCS (empty: the only one), and a pair with its place (``None``: this OCS is to have none).
_Row = tuple[str, Located[str | None], bool]


def read_map_file(path: str, lab: Lab) -> dict[str, list[str]]:
    """The cross-connects that a file lists, by OCS (``-``: standard input).

    YAML or JSON: ``{ocs1: [1-7, 2>8, server1.nic0:tor1.1], wss1: [1-2@193.100]}``, also as
    ``patchlight ocs show --json`` prints it; without the OCS's name where the lab has one. CSV, one
    a line: ``OCS,A,B`` or ``A,B``, and as a last column ``one-way`` where it is. ``FileError`` has
    every mistake.
    """
    piped = path == "-"
    issues = FileIssues("standard input" if piped else path)
    text = (
        read_standard_input()
        if piped
        else read_text(path, expected="a file of cross-connects")
    )
    rows = (
        _csv_rows(text, issues)
        if path.endswith(".csv")
        else _yaml_rows(text, issues)
    )
    maps: dict[str, list[str]] = {}
    taken: dict[tuple[str, str, int], list[Entry]] = {}
    for ocs, pair, one_way in rows:
        try:
            if not ocs:
                driven = driven_switches(lab)
                if len(driven) != 1:
                    raise BadInput("name the OCS: the lab has several or none")
                ocs = driven[0].name
            name = lab.optical_switch(ocs).name
            texts = maps.setdefault(name, [])
            if pair.value is not None:
                text = cross_connect_text(
                    lab,
                    name,
                    pair.value,
                    one_way=one_way,
                )
                _take(name, parse_map(lab.optical_switch(name), [text]), taken)
                texts.append(text)
        except BadInput as error:
            issues.at(pair, error.message)
    issues.raise_if_any()
    return maps


def _take(
    ocs: str,
    ways: AnyMap,
    taken: dict[tuple[str, str, int], list[Entry]],
) -> None:
    """Note the inputs and outputs that entries use; ``BadInput`` if one is in use."""
    used = [
        (way, side, port)
        for way in ways
        for side, port in (("in", way.inp), ("out", way.out))
    ]
    for way, side, port in used:
        for before in taken.get((ocs, side, port), ()):
            apart = (  # of a wavelength switch, on channels that do not overlap
                isinstance(before, ChannelConnect)
                and isinstance(way, ChannelConnect)
                and not before.channel.overlaps(way.channel)
            )
            if before != way and not apart:
                raise BadInput(
                    f"{side}put port {port} is used twice: {before} and {way}"
                )
    for way, side, port in used:
        taken.setdefault((ocs, side, port), []).append(way)


def _yaml_rows(text: str, issues: FileIssues) -> Iterator[_Row]:
    root = compose(text, issues, _EXPECTED)
    if isinstance(root, yaml.SequenceNode):
        yield from _rows_of(
            "",
            locate(root),
            root,
            issues,
        )
    elif isinstance(root, yaml.MappingNode):
        for key, node in _entries(root, issues):
            yield from _rows_of(
                key.value,
                key,
                node,
                issues,
            )
    elif root is not None:
        issues.at(
            locate(root), f"expected {_EXPECTED}, found {describe(root)}"
        )


def _entries(
    group: yaml.MappingNode, issues: FileIssues
) -> Iterator[tuple[Located[str], yaml.Node]]:
    first: dict[str, int] = {}
    for key_node, node in group.value:
        key = locate(key_node, str(key_node.value))
        if not isinstance(key_node, yaml.ScalarNode):
            issues.at(
                key, f"expected the name of an OCS, found {describe(key_node)}"
            )
        elif key.value in first:
            issues.at(key, stands_twice(key.value, first[key.value]))
        else:
            first[key.value] = key.line
            yield key, node


def _rows_of(
    ocs: str,
    where: Located[str | None],
    node: yaml.Node | None,
    issues: FileIssues,
) -> Iterator[_Row]:
    if isinstance(node, yaml.MappingNode):
        # As the controller has it, among much else.
        node = {key.value: value for key, value in _entries(node, issues)}.get(
            "map", node
        )
    if not isinstance(node, yaml.SequenceNode) or describe(node) != "a list":
        found = "" if node is None else f", found {describe(node)}"
        issues.at(
            where, f"expected a list of cross-connects, like [1-7, 2>8]{found}"
        )
        return
    for item in node.value:
        if isinstance(item, yaml.ScalarNode) and "YAML tag" not in describe(
            item
        ):
            yield ocs, locate(item, str(item.value)), False
        else:
            issues.at(
                locate(item),
                f"expected a cross-connect, like 1-7, found {describe(item)}",
            )
    if not node.value:
        yield ocs, locate(node), False


def _csv_rows(text: str, issues: FileIssues) -> Iterator[_Row]:
    lines = csv.reader(io.StringIO(text))
    while True:
        try:
            cells = next(lines)
        except StopIteration:
            return
        except csv.Error as error:
            issues.add(
                lines.line_num,
                1,
                f"not CSV: {error}: expected OCS,A,B on a line",
            )
            continue
        row = [cell.strip() for cell in cells]
        if (
            not any(row)
            or row[0].startswith("#")
            or {"from", "to"} <= {c.lower() for c in row}
        ):
            continue
        where = Located("", lines.line_num, 1)
        way = (
            row.pop().lower()
            if row[-1].lower() in _ONE_WAY | _BOTH_WAYS
            else ""
        )
        if len(row) not in (2, 3):
            issues.at(
                where, "expected OCS,A,B or A,B, and maybe 'one-way' after it"
            )
            continue
        ocs, a, b = row if len(row) == 3 else ("", *row)
        yield ocs, Located(f"{a}:{b}", where.line, 1), way in _ONE_WAY
