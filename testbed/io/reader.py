"""Reads a file's YAML nodes with positions, and collects its mistakes by line and column.

Endless, deeply nested and alias-heavy files are refused at limits.
"""

import os
import re
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Generic, TypeVar

import yaml

from patchlight.testbed.errors import FileError, FileIssue, reason, short

T = TypeVar("T", covariant=True)

MOST_ISSUES = 1_000
"""Reading stops after this many mistakes."""


@dataclass(
    frozen=True,
    slots=True,
)
class Located(Generic[T]):
    """A value read from a file, with its position (line and column from 1).

    ``whole`` is false for a list with unreadable items.
    """

    value: T
    line: int
    column: int
    whole: bool = True


class FileIssues:
    """Collects the mistakes of one file.

    ``error_class`` is what ``raise_if_any`` raises.
    """

    def __init__(
        self, file: str, error_class: type[FileError] = FileError
    ) -> None:
        self.file = file
        self._error_class = error_class
        self._issues: dict[FileIssue, None] = {}
        self._settled: set[tuple[int, int]] = set()

    def __bool__(self) -> bool:
        return bool(self._issues)

    @property
    def is_full(self) -> bool:
        """Whether the next issue raises all."""
        return len(self._issues) >= MOST_ISSUES

    def add(
        self,
        line: int,
        column: int,
        message: str,
    ) -> None:
        """Note an issue at this line and column; raise all of them if there are too many."""
        if (line, column) in self._settled:
            return
        if not self.is_full:
            self._issues[
                FileIssue(
                    self.file,
                    line,
                    column,
                    message,
                )
            ] = None
            return
        last = max(issue.line for issue in self._issues)
        message = f"more than {MOST_ISSUES:,} mistakes: the rest of the file was not read"
        raise self._error_class(
            [
                *self._issues,
                FileIssue(
                    self.file,
                    last + 1,
                    1,
                    message,
                ),
            ]
        )

    def at(self, position: Located[object], message: str) -> None:
        """Note an issue at this value's position."""
        self.add(position.line, position.column, message)

    def only(self, position: Located[object], message: str) -> None:
        """Note an issue and suppress later ones at the same position."""
        self.at(position, message)
        self._settled.add((position.line, position.column))

    @property
    def found(self) -> tuple[FileIssue, ...]:
        """The noted issues in file order."""
        return tuple(
            sorted(self._issues, key=lambda issue: (issue.line, issue.column))
        )

    def raise_if_any(self) -> None:
        """Raise all issues as one error; do nothing if there are none."""
        if self._issues:
            raise self._error_class(self._issues)


def stands_twice(key: str, line: int) -> str:
    """The message for a key that is already on ``line``."""
    return (
        f"duplicate key {short(key)!r}, first on line {line}: expected it once"
    )


_DEEPEST = 32  # A lab file has 7 levels.
_TOO_DEEP = f"nested more than {_DEEPEST} levels deep"
_TOO_DEEP_FOR_LIBYAML = (
    "maximum nesting depth"  # 1,000 levels, with PyYAML 6.0.4's
)
_LARGEST = 64 * 2**20  # bytes
_MOST_VALUES = 1_000_000  # A lab of 1,024 hosts has 33,000 keys and values.
_MOST_BY_ALIASES = 100_000  # values repeated by aliases
_SPECIAL = {
    stat.S_IFIFO: "it is a named pipe",
    stat.S_IFCHR: "it is a device",
    stat.S_IFBLK: "it is a device",
    stat.S_IFSOCK: "it is a socket",
}
_BINARY = {
    b"\x1f\x8b": "compressed with gzip",
    b"PK\x03\x04": "a ZIP archive or a spreadsheet",
    b"\xd0\xcf\x11\xe0": "a spreadsheet",
    b"\x89PNG": "an image",
    b"%PDF": "a PDF",
    b"\x7fELF": "a program",
    b"SQLite": "a database",
    b"\xff\xfe": "text in UTF-16",
    b"\xfe\xff": "text in UTF-16",
}
"""The first bytes of files that are not UTF-8 text."""
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Base):  # type: ignore[misc]
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012


def read_text(
    path: str | Path,
    error_class: type[FileError] = FileError,
    expected: str = "a text file",
) -> str:
    """The text of a UTF-8 file; an error of ``error_class`` if it cannot be read."""
    try:
        # Checked before opening, which might block. A shell's <(command) is a pipe without a name.
        kind = stat.S_IFMT(os.stat(path).st_mode)
        if kind in _SPECIAL and not os.path.realpath(path).startswith(
            "/proc/"
        ):
            raise ValueError(_SPECIAL[kind])
        with open(path, "rb") as file:
            content = _bytes_of(file)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or reason(error)
        message = f"cannot be read ({why}): expected {expected}"
        raise error_class([FileIssue(str(path), 1, 1, message)]) from None
    start = content[:4096]
    binary = next(
        (what for mark, what in _BINARY.items() if start.startswith(mark)),
        None,
    )
    if binary or b"\0" in start:
        message = f"it is {binary or 'binary'}, not a text file in UTF-8: expected {expected}"
        raise error_class([FileIssue(str(path), 1, 1, message)])
    return _decoded(content, str(path), error_class)


def read_standard_input(expected: str = "a text file") -> str:
    """The text on standard input; errors are ``FileError``."""
    name = "standard input"
    try:
        content = _bytes_of(sys.stdin.buffer)
    except ValueError as error:
        message = f"cannot be read ({error}): expected {expected}"
        raise FileError([FileIssue(name, 1, 1, message)]) from None
    return _decoded(content, name, FileError)


def _bytes_of(file: IO[bytes]) -> bytes:
    content = file.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        raise ValueError(f"it is longer than {_LARGEST >> 20} MiB")
    return content


def _decoded(
    content: bytes,
    name: str,
    error_class: type[FileError],
) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start]
        line = before.count(b"\n") + 1
        column = error.start - (before.rfind(b"\n") + 1) + 1
        message = f"byte 0x{content[error.start]:02x} is not UTF-8: expected a text file in UTF-8"
        raise error_class(
            [
                FileIssue(
                    name,
                    line,
                    column,
                    message,
                )
            ]
        ) from None


def compose(
    text: str,
    issues: FileIssues,
    what: str,
    expected: str | None = None,
) -> yaml.Node | None:
    """The root node of a YAML text that should hold ``what``; an empty text lacks ``expected``."""
    strange = yaml.reader.Reader.NON_PRINTABLE.search(text)
    if strange:
        before = text[: strange.start()]
        shown = f"U+{ord(strange.group()):04X}"
        message = (
            f"not YAML: unexpected character {shown}: expected printable text"
        )
        issues.add(
            before.count("\n") + 1, len(before) - before.rfind("\n"), message
        )
        return None
    try:
        problem = too_much(text)
        if problem:
            issues.add(1, 1, f"{problem}: expected {what}")
            return None
        root: yaml.Node | None = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        if _TOO_DEEP_FOR_LIBYAML in (error.problem or ""):
            issues.add(1, 1, f"{_TOO_DEEP}: expected {what}")
            return None
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        problem = ", ".join(
            part for part in (error.context, error.problem) if part
        )
        issues.add(
            line,
            column,
            f"not YAML: {problem}: expected 'key: value' lines and lists",
        )
        return None
    except (yaml.YAMLError, ValueError) as error:
        issues.add(1, 1, f"not YAML: {error}")
        return None
    if root is None:
        issues.add(1, 1, f"the file is empty: expected {expected or what}")
    return root


def too_much(text: str) -> str | None:
    """Why a YAML text is not loaded: it would overflow the parser's stack or take too long."""
    # Nodes below each anchor, including those of its aliases.
    sizes: dict[str | None, int] = {}
    open_nodes: list[tuple[str | None, int]] = []
    by_aliases = 0
    for nodes, event in enumerate(yaml.parse(text, Loader=_Loader)):
        if isinstance(event, yaml.CollectionStartEvent):
            open_nodes.append((event.anchor, nodes + by_aliases))
            if len(open_nodes) > _DEEPEST:
                return _TOO_DEEP
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_nodes.pop()
            sizes[anchor] = nodes + by_aliases - before
        elif isinstance(event, yaml.AliasEvent):
            by_aliases += sizes.get(event.anchor, 1)
            if by_aliases > _MOST_BY_ALIASES:
                return (
                    f"its aliases repeat more than {_MOST_BY_ALIASES:,} values"
                )
        if nodes > _MOST_VALUES:
            return f"it has more than {_MOST_VALUES:,} keys and values"
    return None


# Plain scalars are read here, because YAML versions read ``on``, ``010`` or ``12:30`` differently.
_NOTHING = re.compile(r"|~|null|Null|NULL")
_YES_NO = re.compile(r"true|True|TRUE|false|False|FALSE")
_WHOLE = re.compile(r"[+-]?[0-9]+|0x[0-9a-fA-F]+|0o[0-7]+")
_REAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_NO_BARE_TEXT = re.compile(
    "|".join(p.pattern for p in (_NOTHING, _YES_NO, _WHOLE, _REAL))
)
_PLAIN_TAGS = frozenset(
    {"", "!", *(f"tag:yaml.org,2002:{kind}" for kind in ("str", "seq", "map"))}
)
OPAQUE: Any = object()
"""What no type takes: the value of a foreign tag, or of a recursive alias."""
BROKEN: Any = object()
"""The value of a key with a mistake, once that is noted."""


class Number:
    """A number that knows its spelling."""

    text: str


class WholeNumber(int, Number):
    """A whole number."""


class RealNumber(float, Number):
    """Any other number; also one with leading zeros, which YAML versions read differently."""


class Given(dict[str, Any]):
    """A mapping, with the nodes of each key and its value; ``broken`` keys have mistakes."""

    __slots__ = ("broken", "node", "nodes")

    def __init__(self, node: yaml.Node) -> None:
        self.node = node
        self.nodes: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        self.broken: frozenset[str] = frozenset()


class Items(list[Any]):
    """A list; ``nodes`` has the node of each item."""

    __slots__ = ("node", "nodes")

    def __init__(self, node: yaml.SequenceNode) -> None:
        self.node = node
        self.nodes: list[yaml.Node] = node.value


def locate(node: yaml.Node, value: Any = None) -> Located[Any]:
    """``value`` at the position of ``node``, counted from 1."""
    mark = node.start_mark
    return Located(value, mark.line + 1, mark.column + 1)


def is_bare_text(text: str) -> bool:
    """Whether unquoted ``text`` is read as text, not as a number, boolean or null."""
    return not _NO_BARE_TEXT.fullmatch(text)


def describe(node: yaml.Node) -> str:
    """The node for messages: ``the number 5``, ``a list``, ``nothing``."""
    if node.tag not in _PLAIN_TAGS:
        return f"the YAML tag {short(node.tag.replace('tag:yaml.org,2002:', '!!'))}"
    if isinstance(node, yaml.MappingNode):
        return "a group of keys"
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    assert isinstance(node, yaml.ScalarNode)
    text = str(node.value)
    if not node.style and not is_bare_text(text):
        if _NOTHING.fullmatch(text):
            return "nothing"
        return (
            text.lower()
            if _YES_NO.fullmatch(text)
            else f"the number {short(text)}"
        )
    return f"the text {short(text)!r}"


def data_of(
    node: yaml.Node,
    issues: FileIssues,
    inside: tuple[yaml.Node, ...] = (),
) -> Any:
    """The data of a node; notes duplicate keys."""
    if node.tag not in _PLAIN_TAGS or node in inside:
        return OPAQUE
    if isinstance(node, yaml.ScalarNode):
        return node.value if node.style else _bare(node.value)
    inside = (*inside, node)
    if isinstance(node, yaml.SequenceNode):
        items = Items(node)
        items += [data_of(each, issues, inside) for each in node.value]
        return items
    given = Given(node)
    for pair in node.value:
        key, value = pair
        name = (
            key.value
            if isinstance(key, yaml.ScalarNode)
            else f"\0{describe(key)}"
        )
        if name in given:
            line = given.nodes[name][0].start_mark.line + 1
            issues.at(locate(key), stands_twice(name, line))
        else:
            given[name] = data_of(value, issues, inside)
            given.nodes[name] = pair
    return given


def _bare(text: str) -> Any:
    if is_bare_text(text):
        return text
    if _NOTHING.fullmatch(text):
        return None
    if _YES_NO.fullmatch(text):
        return text.lower() == "true"
    return number_of(text)


def number_of(text: str) -> Any:
    """The number that a text is."""
    found: Any
    # Python refuses to convert thousands of digits; no such number is in range anyway.
    if len(text) > 40:
        found = RealNumber("inf")
    elif re.fullmatch(r"0[xo].*|[+-]?(0|[1-9][0-9]*)", text):
        found = WholeNumber(int(text, 0))
    else:
        found = RealNumber(text)
    found.text = text
    return found
