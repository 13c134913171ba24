"""Reads lab files: YAML in; a ``Lab`` out, or every mistake with line and column.

Ranges, one-line fibres and defaults are expanded in the YAML nodes first: every copy keeps its
source's position, and the schema needs no ranges.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import product
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from patchlight.testbed.errors import (
    BadInput,
    FileError,
    FileIssue,
    nearest,
    short,
)
from patchlight.testbed.io.reader import (
    FileIssues,
    Located,
    compose,
    locate,
    read_text,
)
from patchlight.testbed.lab.model import Endpoint, Lab
from patchlight.testbed.lab.optical_links import Light, Meeting
from patchlight.testbed.lab.packet_sizes import too_small
from patchlight.testbed.lab.rules import NOTHING_SAID

if TYPE_CHECKING:
    from patchlight.testbed.labfile.schema import LabKeys

# Keys that accept ranges; free text (a GPU's model) does not.
RANGED = {
    "name",
    "management",
    "address",
    "gpu",
    "interface",
    "uuid",
    "datapath_id",
}
RANGED |= {"password_env", "ends", "community_env", "auth_env", "priv_env"}
# Mappings whose values may be ranges.
_NESTED = {"telemetry", "snmp"}
# Lists whose items may be ranges, and the name of their defaults.
ITEMS: Mapping[str, str] = {
    "servers": "server",
    "gpus": "gpu",
    "nics": "nic",
    "packet_switches": "packet_switch",
    "circuit_switches": "circuit_switch",
    "wavelength_switches": "wavelength_switch",
    "passive_parts": "passive_part",
    "fibres": "fibre",
}
RANGE_PATTERN = r"\[[0-9][0-9,-]*\]"
_RANGE = re.compile(f"({RANGE_PATTERN})")
_PART = re.compile("([0-9]{1,9})(?:-([0-9]{1,9}))?")
_FIBRE = re.compile(r"(\S.*?)\s+-\s+(\S.*?)\s*")
_SIDE = rf"([0-9]+|{RANGE_PATTERN})"
_CIRCUITS = re.compile(rf"\s*{_SIDE}\s*([->])\s*{_SIDE}\s*")
_EXPECTED = "a lab with a name; 'patchlight lab init' writes a first lab file"
_MOST = 100_000
_MOST_VALUES = 400_000

_Pair = tuple[yaml.Node, yaml.Node]


def _write_out(root: yaml.Node, issues: FileIssues) -> yaml.Node:
    """The file with all ranges and defaults expanded; notes mistakes in ranges."""
    from patchlight.testbed.labfile.schema import COMMON

    if not isinstance(root, yaml.MappingNode):
        return root
    defaults = {text_of(key): value for key, value in root.value}.get(
        "defaults"
    )
    groups = defaults.value if isinstance(defaults, yaml.MappingNode) else []
    known = {
        text_of(key): [
            pair
            for pair in value.value
            if text_of(pair[0]) in COMMON.get(text_of(key), ())
        ]
        for key, value in groups
        if isinstance(value, yaml.MappingNode)
    }
    spread = _Spread(issues, known)
    pairs = [
        (key, spread.items(text_of(key), value)) for key, value in root.value
    ]
    return _mapping(root, pairs)


class _Spread:
    def __init__(
        self, issues: FileIssues, defaults: Mapping[str, list[_Pair]]
    ) -> None:
        self._issues = issues
        self._defaults = defaults
        self._left = _MOST
        self._values_left = _MOST_VALUES
        # Values of nested items are spread over all owners, not repeated for each.
        self._known: dict[int, tuple[yaml.Node, list[yaml.Node]]] = {}

    def items(
        self,
        key: str,
        node: yaml.Node,
        copy: int = 0,
        copies: int = 1,
    ) -> yaml.Node:
        """A list with its ranges expanded, of owner ``copy`` of ``copies``; else the node."""
        if key not in ITEMS or not isinstance(node, yaml.SequenceNode):
            return node
        made: list[yaml.Node] = []
        written = self._fibres(node) if key == "fibres" else node.value
        for mapping in written:
            if isinstance(mapping, yaml.MappingNode):
                made += self._copies(
                    ITEMS[key],
                    mapping,
                    copy,
                    copies,
                )
            else:
                made.append(mapping)
        return _list(node, made)

    def _copies(
        self,
        kind: str,
        item: yaml.MappingNode,
        copy: int,
        copies: int,
    ) -> Iterator[yaml.Node]:
        if self._left < 0:
            return
        there = {text_of(key) for key, _ in item.value}
        defaults = self._defaults.get(kind, [])
        pairs = [
            *item.value,
            *(pair for pair in defaults if text_of(pair[0]) not in there),
        ]
        if kind == "server":
            pairs = self._with_ssh_defaults(pairs)
        spread = {
            text_of(key): self._spread(text_of(key), value)
            for key, value in pairs
        }
        leading = spread.get("ends" if kind == "fibre" else "name", [])
        count = max(1, len(leading))
        for key, value in pairs:
            values = spread[text_of(key)]
            if len(values) not in (1, count, count * copies):
                self._wrong_count(
                    value,
                    len(values),
                    count,
                    copies,
                )
                spread[text_of(key)] = [value]
        self._left -= count
        if self._left < 0:
            self._issues.only(
                locate(item),
                f"ranges expand to more than {_MOST:,} items: expected fewer",
            )
            return
        for number in range(count):
            own = [
                (key, _nth(spread[text_of(key)], number, copy * count))
                for key, _ in pairs
            ]
            whole = [
                (
                    key,
                    self.items(
                        text_of(key),
                        value,
                        number,
                        count,
                    ),
                )
                for key, value in own
            ]
            yield _mapping(item, whole)
            if self._left < 0:
                return

    def _with_ssh_defaults(self, pairs: list[_Pair]) -> list[_Pair]:
        """A server's keys, with its ``ssh`` completed from the default ``ssh``."""
        defaults = self._defaults.get("ssh", [])
        if not defaults:
            return pairs
        own = next(
            (value for key, value in pairs if text_of(key) == "ssh"), None
        )
        if own is None:
            first = defaults[0][0]
            key = yaml.ScalarNode(
                first.tag,
                "ssh",
                first.start_mark,
                first.end_mark,
            )
            tag = "tag:yaml.org,2002:map"
            whole = yaml.MappingNode(
                tag,
                defaults,
                first.start_mark,
                first.end_mark,
            )
            return [*pairs, (key, whole)]
        if not isinstance(own, yaml.MappingNode):
            return pairs
        there = {text_of(key) for key, _ in own.value}
        if "jump" in there:
            # The default key belongs to another host.
            there.add("jump_host_key")
        missing = [pair for pair in defaults if text_of(pair[0]) not in there]
        full = _mapping(own, [*own.value, *missing])
        return [(key, full if value is own else value) for key, value in pairs]

    def _spread(self, key: str, node: yaml.Node) -> list[yaml.Node]:
        if id(node) not in self._known:
            # Keeping the node keeps its id unique.
            self._known[id(node)] = (node, self._spread_once(key, node))
        return self._known[id(node)][1]

    def _spread_once(self, key: str, node: yaml.Node) -> list[yaml.Node]:
        if key == "ends" and isinstance(node, yaml.SequenceNode):
            return self._ends(node)
        if key == "cross_connects" and isinstance(node, yaml.SequenceNode):
            return [
                _list(
                    node,
                    [
                        one
                        for item in node.value
                        for one in self._circuits(item)
                    ],
                )
            ]
        if key in _NESTED and isinstance(node, yaml.MappingNode):
            return self._mappings(node)
        if key == "interfaces" and isinstance(node, yaml.SequenceNode):
            return [
                _list(
                    node,
                    [one for item in node.value for one in self._texts(item)],
                )
            ]
        return self._texts(node) if key in RANGED else [node]

    def _mappings(self, node: yaml.MappingNode) -> list[yaml.Node]:
        spread = [
            (key, self._spread(text_of(key), value))
            for key, value in node.value
        ]
        count = max((len(values) for _, values in spread), default=1)
        for _, values in spread:
            if len(values) not in (1, count):
                self._wrong_count(
                    values[0],
                    len(values),
                    count,
                    1,
                )
        rows = (
            [(key, values[n % len(values)]) for key, values in spread]
            for n in range(count)
        )
        return [_mapping(node, row) for row in rows]

    def _texts(self, node: yaml.Node) -> list[yaml.Node]:
        text = text_of(node)
        if "[" not in text or not _RANGE.search(text):
            return [node]
        try:
            return [_scalar(node, each) for each in self._values(text)]
        except BadInput as error:
            self._issues.only(locate(node), error.message)
            return [node]

    def _values(self, text: str) -> list[str]:
        values = spread_text(text) if self._values_left >= 0 else []
        self._values_left -= len(values)
        if self._values_left < 0:
            raise BadInput(
                f"ranges expand to more than {_MOST_VALUES:,} values: expected fewer"
            )
        return values

    def _ends(self, node: yaml.SequenceNode) -> list[yaml.Node]:
        sides = [self._texts(end) for end in node.value]
        if len({len(side) for side in sides}) > 1:
            texts = " and ".join(
                f"{len(side)} in {short(text_of(end))!r}"
                for end, side in zip(node.value, sides, strict=True)
            )
            message = f"{texts}: expected the same number of ports on both sides of a fibre"
            self._issues.only(locate(node.value[0]), message)
            return [node]
        return [
            _list(node, list(ends)) for ends in zip(*sides, strict=True)
        ] or [node]

    def _circuits(self, node: yaml.Node) -> list[yaml.Node]:
        match = _CIRCUITS.fullmatch(text_of(node))
        if match is None or "[" not in match[0]:
            return [node]
        try:
            inputs = self._values(match[1])
            outputs = self._values(match[3])
            if len(inputs) != len(outputs):
                counts = f"{len(inputs)} and {len(outputs)} ports in {short(match[0])!r}"
                raise BadInput(
                    f"{counts}: expected the same number on both sides"
                )
        except BadInput as error:
            self._issues.only(locate(node), error.message)
            return [node]
        sides = zip(inputs, outputs, strict=True)
        return [_scalar(node, f"{inp}{match[2]}{out}") for inp, out in sides]

    def _fibres(self, node: yaml.SequenceNode) -> list[yaml.Node]:
        """The fibres of a list as groups of keys; all that are lists are one mistake."""
        lists = [
            item
            for item in node.value
            if isinstance(item, yaml.SequenceNode) and len(item.value) == 2
        ]
        if lists:
            a, b = map(text_of, lists[0].value)
            self._issues.only(
                locate(lists[0]),
                f"a fibre is not a list ({len(lists)} here are): write {short(f'{a} - {b}')!r}",
            )
        return [self._fibre(item) for item in node.value if item not in lists]

    def _fibre(self, node: yaml.Node) -> yaml.Node:
        if isinstance(node, yaml.ScalarNode) and text_of(node):
            ends = self._two_ends(node)
            if ends is node:
                return node
            start = node.start_mark
            end = node.end_mark
            key = yaml.ScalarNode(
                node.tag,
                "ends",
                start,
                end,
            )
            return yaml.MappingNode(
                "tag:yaml.org,2002:map",
                [(key, ends)],
                start,
                end,
            )
        if isinstance(node, yaml.MappingNode):
            pairs = [
                (
                    key,
                    self._two_ends(value) if text_of(key) == "ends" else value,
                )
                for key, value in node.value
            ]
            return _mapping(node, pairs)
        return node

    def _two_ends(self, node: yaml.Node) -> yaml.Node:
        if not isinstance(node, yaml.ScalarNode) or not text_of(node):
            return node
        match = _FIBRE.fullmatch(text_of(node))
        if match is None:
            message = (
                f"{short(text_of(node))!r} is not a fibre: "
                "expected two ports with ' - ' between"
            )
            self._issues.only(
                locate(node),
                f"{message}, like 'server[1-4].nic0 - tor1.[1-4]'",
            )
            return node
        quoted = 1 if node.style else 0
        ends = [
            _scalar(node, match[side], quoted + match.start(side))
            for side in (1, 2)
        ]
        tag = "tag:yaml.org,2002:seq"
        return yaml.SequenceNode(
            tag,
            ends,
            node.start_mark,
            node.end_mark,
        )

    def _wrong_count(
        self,
        node: yaml.Node,
        found: int,
        count: int,
        copies: int,
    ) -> None:
        wanted = [1, *sorted({count, count * copies} - {1})]
        expected = " or ".join(map(str, wanted))
        self._issues.only(
            locate(node),
            f"{short(text_of(node))!r} expands to {found} values: expected {expected}, the "
            "number of names",
        )


def spread_text(text: str) -> list[str]:
    """All texts of a text with ranges; ``BadInput`` for an invalid range.

    ``a[1-3,7]`` are ``a1``, ``a2``, ``a3``, ``a7``; ``a[01-10]`` keeps the zeros. With several
    ranges the last one varies fastest.
    """
    pieces = _RANGE.split(text)
    bounds = [_bounds(piece, text) for piece in pieces[1::2]]
    if (
        prod(
            sum(last - first + 1 for first, last, _ in parts)
            for parts in bounds
        )
        > _MOST
    ):
        raise BadInput(
            f"{short(text)!r} expands to more than {_MOST:,} values: expected fewer"
        )
    choices = [
        [
            f"{number:0{width}}"
            for first, last, width in parts
            for number in range(first, last + 1)
        ]
        for parts in bounds
    ]
    # Literal text has even indices.
    literal = pieces[0:-1:2]
    closing = pieces[-1]
    return [
        "".join(
            f"{before}{number}"
            for before, number in zip(literal, numbers, strict=True)
        )
        + closing
        for numbers in product(*choices)
    ]


def _bounds(piece: str, text: str) -> list[tuple[int, int, int]]:
    """First, last and width of each part of ``[1-3,7]``."""
    parts = []
    for part in piece[1:-1].split(","):
        match = _PART.fullmatch(part)
        first, last = (match[1], match[2] or match[1]) if match else ("1", "0")
        if int(last) < int(first):
            raise BadInput(
                f"{short(piece)!r} in {short(text)!r} is not a range: expected increasing "
                f"numbers, "
                "like '[1-4]' or '[1-3,7]'"
            )
        parts.append(
            (int(first), int(last), len(first) if first.startswith("0") else 0)
        )
    return parts


def text_of(node: yaml.Node | None) -> str:
    """The text of a scalar, or ``""``."""
    return str(node.value) if isinstance(node, yaml.ScalarNode) else ""


def _nth(
    values: list[yaml.Node],
    number: int,
    before: int,
) -> yaml.Node:
    """The value for this item: one for all, one for each, or one for each of each owner."""
    if len(values) > before + number and before:
        number += before
    return values[number] if len(values) > 1 else values[0]


def _mapping(node: yaml.MappingNode, pairs: list[_Pair]) -> yaml.MappingNode:
    return yaml.MappingNode(
        node.tag,
        pairs,
        node.start_mark,
        node.end_mark,
    )


def _list(
    node: yaml.SequenceNode, items: list[yaml.Node]
) -> yaml.SequenceNode:
    return yaml.SequenceNode(
        node.tag,
        items,
        node.start_mark,
        node.end_mark,
    )


def _scalar(
    node: yaml.Node,
    text: str,
    ahead: int = 0,
) -> yaml.ScalarNode:
    mark = node.start_mark
    if ahead:
        mark = yaml.Mark(
            mark.name,
            mark.index,
            mark.line,
            mark.column + ahead,
            None,
            0,
        )
    return yaml.ScalarNode(
        node.tag,
        text,
        mark,
        node.end_mark,
    )


class LabFileError(FileError):
    """A lab file has mistakes."""


def read_lab(path: str | Path) -> Lab:
    """The lab in this file; ``LabFileError`` with every mistake.

    Policy files in it are relative to its folder.
    """
    expected = (
        f"a lab file, or one of the built-in labs: {', '.join(builtin_labs())}"
    )
    lab = parse_lab(read_text(path, LabFileError, expected), str(path))
    if lab.policies == NOTHING_SAID:
        return lab
    return lab.with_changes(policies=lab.policies.beside(Path(path).parent))


def parse_lab(text: str, name: str = "lab") -> Lab:
    """The lab in this YAML text; ``name`` is the file's name in messages."""
    fields = checked_fields(text, name)
    issues = FileIssues(name, LabFileError)
    lab: Lab = fields.made()
    if lab.coloured:
        _check_meetings(lab, fields, issues)
    for end, words in (
        too_small(lab) if any(host.nic.mtu for host in lab.hosts) else ()
    ):
        message = f"{words}: expected one size along the whole path"
        issues.at(fibre_at(lab, fields, end), message)
    issues.raise_if_any()
    return lab


def checked_fields(text: str, name: str) -> LabKeys:
    """The keys of a valid lab file, with their positions."""
    try:
        return _checked(text, name)
    except LabFileError:
        from patchlight.testbed.labfile.foreign import recognised

        if kind := recognised(text):
            raise LabFileError(
                [
                    FileIssue(
                        name,
                        1,
                        1,
                        kind,
                    )
                ]
            ) from None
        raise


def _checked(text: str, name: str) -> LabKeys:
    # Not above: pydantic and the models take longer to import than a short command runs.
    from patchlight.testbed.io.keys import read_node
    from patchlight.testbed.labfile.check import check_lab
    from patchlight.testbed.labfile.schema import LabKeys

    issues = FileIssues(name, LabFileError)
    root = compose(
        text,
        issues,
        "a lab",
        _EXPECTED,
    )
    lab: LabKeys | None = None
    if root is not None:
        lab = read_node(LabKeys, _write_out(root, issues), issues)
    if lab is not None:
        check_lab(lab, issues)
    issues.raise_if_any()
    assert lab is not None
    return lab


def _check_meetings(
    lab: Lab,
    fields: LabKeys,
    issues: FileIssues,
) -> None:
    """Note where two signals of one channel collide with the initial maps, at that fibre."""
    by_fibre: dict[Endpoint, list[Meeting]] = {}
    for meeting in Light(lab, lab.initial_maps).meetings:
        by_fibre.setdefault(meeting.at, []).append(meeting)
    for at, meetings in by_fibre.items():
        others = (
            f" (pairs that collide there: {len(meetings)})"
            if len(meetings) > 1
            else ""
        )
        message = (
            f"{meetings[0]}{others}: expected other channels, or other paths"
        )
        issues.at(fibre_at(lab, fields, at), message)


def fibre_at(
    lab: Lab,
    fields: LabKeys,
    end: Endpoint,
) -> Located[object]:
    """The position of the fibre at that end in the file."""
    fibre = lab.fibre_ends[end][1]
    return fields.fibres[lab.fibres.index(fibre)].place


def labs_dir() -> Path:
    """The folder of the built-in lab files."""
    return Path(__file__).parents[1] / "labs"


def builtin_labs() -> tuple[str, ...]:
    """The names of the built-in labs."""
    return tuple(sorted(path.stem for path in labs_dir().glob("*.yaml")))


def builtin_lab(name: str) -> Path:
    """The file of a built-in lab; ``BadInput`` with the known names if not found."""
    if name in builtin_labs():
        return labs_dir() / f"{name}.yaml"
    raise BadInput(
        f"unknown built-in lab {name!r}: {nearest(name, builtin_labs())}"
    )


def find_lab(text: str) -> Path:
    """The lab file of a command-line argument: a path, or a built-in lab's name.

    ``BadInput`` if it is neither.
    """
    path = Path(text)
    try:
        if path.exists() and not path.is_dir():
            return path
    except (OSError, ValueError):
        pass
    if text in builtin_labs():
        return builtin_lab(text)
    known = nearest(text, builtin_labs(), "the built-in labs are")
    raise BadInput(
        f"no lab file and no built-in lab {text!r}: {known}",
        hint="name a lab file, or make one: patchlight lab init --output lab.yaml",
    )


def load_lab(text: str) -> Lab:
    """The lab of a command-line argument: ``read_lab(find_lab(text))``."""
    return read_lab(find_lab(text))
