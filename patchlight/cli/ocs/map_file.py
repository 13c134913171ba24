"""Map files: the cross-connects that a user wants, as YAML, JSON or CSV."""

import csv
import io
from collections.abc import Iterator

import yaml

from patchlight.cli.ocs.names import cross_connect_text, driven_switches
from patchlight.testbed.errors import BadInput
from patchlight.testbed.io.fields import Text, describe, locate
from patchlight.testbed.io.issues import FileIssues, Located, stands_twice
from patchlight.testbed.io.reader import compose, read_standard_input, read_text
from patchlight.testbed.lab.labmaps import parse_map
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.optical_links import Entry
from patchlight.testbed.lab.portmap import AnyMap
from patchlight.testbed.lab.spectrum import ChannelConnect

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
    text = read_standard_input() if piped else read_text(path, expected="a file of cross-connects")
    rows = _csv_rows(text, issues) if path.endswith(".csv") else _yaml_rows(text, issues)
    maps: dict[str, list[str]] = {}
    taken: dict[tuple[str, str, int], list[Entry]] = {}
    for ocs, pair, one_way in rows:
        try:
            name = lab.optical_switch(ocs or _lone_name(lab)).name
            texts = maps.setdefault(name, [])
            if pair.value is not None:
                text = cross_connect_text(lab, name, pair.value, one_way=one_way)
                _take(name, parse_map(lab.optical_switch(name), [text]), taken)
                texts.append(text)
        except BadInput as error:
            issues.at(pair, error.message)
    issues.raise_if_any()
    return maps


def _take(ocs: str, ways: AnyMap, taken: dict[tuple[str, str, int], list[Entry]]) -> None:
    """Note the inputs and outputs that entries use; ``BadInput`` if one is in use."""
    for way in ways:
        for side, port in (("in", way.inp), ("out", way.out)):
            for before in taken.get((ocs, side, port), ()):
                if before != way and _share_light(before, way):
                    raise BadInput(f"{side}:{port} is used twice: {before} and {way}")
    for way in ways:
        for side, port in (("in", way.inp), ("out", way.out)):
            taken.setdefault((ocs, side, port), []).append(way)


def _share_light(one: Entry, other: Entry) -> bool:
    """Whether two entries of one port are of the same light: of a WSS, of one channel."""
    if isinstance(one, ChannelConnect) and isinstance(other, ChannelConnect):
        return one.channel.overlaps(other.channel)
    return True


def _yaml_rows(text: str, issues: FileIssues) -> Iterator[_Row]:
    root = compose(text, issues, Text(_EXPECTED, str))
    if isinstance(root, yaml.SequenceNode):
        yield from _pairs("", locate(root), root, issues)
    elif isinstance(root, yaml.MappingNode):
        for key, node in _entries(root, issues):
            yield from _pairs(key.value, key, node, issues)
    elif root is not None:
        issues.at(locate(root), f"expected {_EXPECTED}, found {describe(root)}")


def _entries(
    group: yaml.MappingNode, issues: FileIssues
) -> Iterator[tuple[Located[str], yaml.Node]]:
    first: dict[str, int] = {}
    for key_node, node in group.value:
        key = locate(key_node, str(key_node.value))
        if not isinstance(key_node, yaml.ScalarNode):
            issues.at(key, f"expected the name of an OCS, found {describe(key_node)}")
        elif key.value in first:
            issues.at(key, stands_twice(key.value, first[key.value]))
        else:
            first[key.value] = key.line
            yield key, node


def _pairs(
    ocs: str, where: Located[str | None], node: yaml.Node | None, issues: FileIssues
) -> Iterator[_Row]:
    if isinstance(node, yaml.MappingNode):
        # As the controller says it, beside much else.
        node = {key.value: value for key, value in _entries(node, issues)}.get("map", node)
    if not isinstance(node, yaml.SequenceNode) or describe(node) != "a list":
        found = "" if node is None else f", found {describe(node)}"
        issues.at(where, f"expected a list of cross-connects, like [1-7, 2>8]{found}")
        return
    for item in node.value:
        if isinstance(item, yaml.ScalarNode) and "YAML tag" not in describe(item):
            yield ocs, locate(item, str(item.value)), False
        else:
            issues.at(locate(item), f"expected a cross-connect, like 1-7, found {describe(item)}")
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
            issues.add(lines.line_num, 1, f"not CSV: {error}: expected OCS,A,B on a line")
            continue
        row = [cell.strip() for cell in cells]
        if not any(row) or row[0].startswith("#") or {"from", "to"} <= {c.lower() for c in row}:
            continue
        where = Located("", lines.line_num, 1)
        way = row.pop().lower() if row[-1].lower() in _ONE_WAY | _BOTH_WAYS else ""
        if len(row) not in (2, 3):
            issues.at(where, "expected OCS,A,B or A,B, and maybe 'one-way' after it")
            continue
        ocs, a, b = row if len(row) == 3 else ("", *row)
        yield ocs, Located(f"{a}:{b}", where.line, 1), way in _ONE_WAY


def _lone_name(lab: Lab) -> str:
    switches = driven_switches(lab)
    if len(switches) != 1:
        raise BadInput("say which OCS: the lab does not have just one")
    return switches[0].name
