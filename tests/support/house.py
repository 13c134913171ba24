"""Measures the source: its walls, its size, and the modules that a command passes."""

import ast
import os
import re
import subprocess
import sys
import time
import tokenize
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from io import StringIO
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

import click
import networkx as nx

from patchlight.console.shared import SharedOption

ROOT = Path(__file__).resolve().parents[2]

_LOWER = {"patchlight.testbed"}
_SIDES = {*_LOWER, "patchlight.agents", "patchlight.client", "patchlight.controller"}
_BELOW = {*_SIDES, "patchlight.console", "patchlight.emulation"}

# What the rest of the source does without: these only bring commands, drivers and policies.
WINGS = {
    "patchlight.emulation.simulator": _BELOW,
    "patchlight.emulation.experiments": {
        *_BELOW,
        "patchlight.emulation.simulator",
        "patchlight.deploy",
    },
    "patchlight.emulation.learning": {
        *_BELOW,
        "patchlight.emulation.simulator",
        "patchlight.emulation.experiments",
    },
    "patchlight.deploy": {*_SIDES, "patchlight.console"},
}

# Each room, and the other rooms that it may import from. The folders are imported as parts of
# ``patchlight``, which itself holds the public face and the command.
ROOMS = {
    "patchlight.testbed": set[str](),
    "patchlight.client": _LOWER,
    "patchlight.controller": _LOWER,
    "patchlight.agents": _LOWER,
    "patchlight.console": _SIDES,
    "patchlight.emulation": _SIDES,
    **WINGS,
    "patchlight": _BELOW,
}
FOLDERS = ("testbed", "controller", "agents", "emulation", "deploy", "patchlight")

# Libraries that only these files and folders may import.
KEPT_APART = {
    ("ryu", "os_ken", "eventlet"): ("controller/packet_switches/openflow/speaker/",),
    ("docker",): ("agents/workers/docker.py",),
    ("pysnmp",): ("controller/packet_switches/snmp.py",),
    ("pyroute2",): ("agents/nics/",),
}


# These give code the lines and the words that a reader needs: they cost nothing.
_FREE = {"COMMENT", "NL", "NEWLINE", "INDENT", "DEDENT"}


def tokens_in(text: str) -> int:
    """Tokens of Python code; an f-string is one, as any string is, whatever this Python makes of
    it."""
    found = nested = 0
    for token in tokenize.generate_tokens(StringIO(text).readline):
        name = tokenize.tok_name[token.type]
        found += not nested and name not in _FREE
        nested += name.endswith("STRING_START") - name.endswith("STRING_END")
    return found


def module_of(path: Path, root: Path) -> str:
    """The dotted name by which a file of the source is imported."""
    parts = path.relative_to(root).with_suffix("").parts
    names = [part for part in parts if part != "__init__"]
    return ".".join(names if names[0] == "patchlight" else ["patchlight", *names])


def room_of(module: str) -> str | None:
    """The room of a module of ours; ``None`` for other people's modules."""
    names = module.split(".")
    above = (".".join(names[:length]) for length in range(len(names), 0, -1))
    return next((name for name in above if name in ROOMS), None)


@dataclass(frozen=True)
class Source:
    """One file of the source."""

    path: Path
    module: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """Its syntax tree."""
        return ast.parse(self.text, filename=str(self.path))

    @cached_property
    def tokens(self) -> int:
        """Its size."""
        return tokens_in(self.text)

    @cached_property
    def imported(self) -> list[tuple[int, str]]:
        """Line and full name of each import: plain, relative, lazy, or by a constant string."""
        return list(self._imported())

    def _imported(self) -> Iterator[tuple[int, str]]:
        package = self.module.split(".")
        if self.path.name != "__init__.py":
            package.pop()
        for node in ast.walk(self.tree):
            match node:
                case ast.Import():
                    yield from ((node.lineno, alias.name) for alias in node.names)
                case ast.ImportFrom():
                    above = package[: len(package) - node.level + 1] if node.level else ()
                    base = ".".join([*above, *([node.module] if node.module else [])])
                    # `from patchlight import cli` imports patchlight.cli.
                    yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
                case ast.Call(
                    func=ast.Name(id="__import__" | "import_module")
                    | ast.Attribute(attr="import_module"),
                    args=[ast.Constant(value=str(name)), *_],
                ):
                    yield node.lineno, name


@cache
def absent_wings() -> set[str]:
    """The wings whose folders are not there."""
    return {
        wing
        for wing in WINGS
        if not (ROOT / wing.removeprefix("patchlight.").replace(".", "/")).is_dir()
    }


@cache
def wings_used_by(test: Path) -> set[str]:
    """The wings that a file of the tests imports, itself or by ``tests.support``."""
    found = set[str]()
    source = Source(test, module_of(test, ROOT), test.read_text())
    for _, name in source.imported:
        parent = ROOT / name.rpartition(".")[0].replace(".", "/")
        if name.startswith("tests.support.") and parent.with_suffix(".py").is_file():
            found |= wings_used_by(parent.with_suffix(".py"))
        elif (room := room_of(name)) in WINGS:
            found.add(str(room))
    return found


class House:
    """All source below ``root``, each file once: ``patchlight`` has links to the other folders."""

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root
        paths = {
            path
            for folder in FOLDERS
            for path in (root / folder).rglob("*.py")
            if not any(parent.is_symlink() for parent in path.parents)
        }
        self.sources = [
            Source(path, module_of(path, root), path.read_text(encoding="utf-8"))
            for path in sorted(paths)
        ]
        self.modules = {source.module: source for source in self.sources}

    def edges(self) -> Iterator[tuple[Source, int, str]]:
        """File, line and imported module of each import of ours from ours."""
        for source in self.sources:
            for line, name in source.imported:
                target = name if name in self.modules else name.rpartition(".")[0]
                if target in self.modules and target != source.module:
                    yield source, line, target

    def violations(self) -> list[str]:
        """Imports upwards, through a wall, or of what is not in the distribution."""
        found = []
        for source in self.sources:
            where = source.path.relative_to(self.root).as_posix()
            room = room_of(source.module)
            assert room is not None, where
            for line, name in source.imported:
                first = name.partition(".")[0]
                other = room_of(name)
                # The public face names for type checkers what wings bring.
                below = set(ROOMS) if source.module == "patchlight" else ROOMS[room]
                if other not in (None, room) and other not in below:
                    found.append(f"{where}:{line}: {room} must not import {name}")
                if first in FOLDERS and first != "patchlight":
                    found.append(f"{where}:{line}: {name} is imported as patchlight.{name}")
                if first in ("tests", "benchmarks"):
                    found.append(f"{where}:{line}: {name} is not part of the distribution")
                for libraries, allowed in KEPT_APART.items():
                    if first in libraries and not where.startswith(allowed):
                        found.append(f"{where}:{line}: only {', '.join(allowed)} may import {name}")
        return found

    def circles(self) -> list[str]:
        """Neighbours in one folder, files and folders alike, that import each other in a loop.

        Without circles the content of each folder can be laid out on floors so that every import
        goes down: an arrow upwards is a circle of folders.
        """
        inside: defaultdict[str, nx.DiGraph[str]] = defaultdict(nx.DiGraph)
        for source, line, target in self.edges():
            ours, others = source.module.split("."), target.split(".")
            shared = next(
                (i for i, (a, b) in enumerate(zip(ours, others, strict=False)) if a != b), None
            )
            if shared is None:  # a package's own face, and a module in it
                continue
            where = f"{source.path.relative_to(self.root).as_posix()}:{line}"
            graph = inside[".".join(ours[:shared])]
            if not graph.has_edge(ours[shared], others[shared]):
                graph.add_edge(ours[shared], others[shared], where=where)
        return [
            f"{folder}: "
            + ", ".join(f"{a} → {b} ({graph[a][b]['where']})" for a, b, *_ in nx.find_cycle(graph))
            for folder, graph in sorted(inside.items())
            if not nx.is_directed_acyclic_graph(graph)
        ]

    def tokens(self, room: str | None = None) -> int:
        """Tokens of all source, of ``core``, of the ``wings``, or of one folder of the core."""
        sizes: defaultdict[str | None, int] = defaultdict(int)
        for source in self.sources:
            wing = room_of(source.module) in WINGS
            folder = source.path.relative_to(self.root).parts[0]
            for name in (None, "wings") if wing else (None, "core", folder):
                sizes[name] += source.tokens
        return sizes[room]

    def density(self, folder: str) -> float:
        """Tokens per line of a folder, wings included."""
        inside = [s for s in self.sources if s.path.is_relative_to(self.root / folder)]
        return sum(s.tokens for s in inside) / sum(s.text.count("\n") for s in inside)

    def import_share(self) -> float:
        """Lines of imports per line of code (no blank, comment or docstring), in percent."""
        imports = code = 0
        for source in self.sources:
            quoted: set[int] = set()
            for node in ast.walk(source.tree):
                match node:
                    case ast.Import() | ast.ImportFrom():
                        imports += _last(node) - node.lineno + 1
                    case (
                        ast.Module(body=[first, *_])
                        | ast.ClassDef(body=[first, *_])
                        | ast.FunctionDef(body=[first, *_])
                        | ast.AsyncFunctionDef(body=[first, *_])
                    ) if isinstance(first, ast.Expr) and isinstance(
                        getattr(first.value, "value", None), str
                    ):
                        quoted |= set(range(first.lineno, _last(first) + 1))
            for number, line in enumerate(source.text.splitlines(), 1):
                bare = line.strip()
                code += bool(bare) and not bare.startswith("#") and number not in quoted
        return 100 * imports / code

    def imported_once(self) -> list[str]:
        """Modules that exactly one other module imports."""
        importers: defaultdict[str, set[str]] = defaultdict(set)
        for source, _, target in self.edges():
            importers[target].add(source.module)
        return sorted(
            module
            for module, by in importers.items()
            if len(by) == 1 and not self.modules[module].path.name.startswith("__")
        )

    def names_of_several_classes(self) -> dict[str, list[str]]:
        """Public class names that several modules define."""
        defined: defaultdict[str, list[str]] = defaultdict(list)
        for source in self.sources:
            for node in source.tree.body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    defined[node.name].append(source.module)
        return {name: modules for name, modules in sorted(defined.items()) if len(modules) > 1}


def _last(node: ast.stmt) -> int:
    assert node.end_lineno is not None
    return node.end_lineno


class Row(NamedTuple):
    """Something measured of the source, and its limit."""

    what: str
    now: float
    limit: float

    @property
    def over(self) -> bool:
        """Whether it is over the limit."""
        return self.now > self.limit


# So much more than was measured is recorded: not each small change has to write the record again.
_ROOM = 1.003
# A record that is so much more than what is measured would let the source grow back.
_SLACK = 0.02


def recorded(rows: Iterable[Row]) -> dict[str, float]:
    """The record of what is over its limit."""
    most = {row.what: round(row.now * _ROOM, 6) for row in rows if row.over}
    return {what: int(value) if value > 10 else round(value, 2) for what, value in most.items()}


def worse_than(record: Mapping[str, float], rows: Iterable[Row]) -> list[str]:
    """Rows over their limit that are above their record too, and records that could be lower."""
    rewrite = "write the record again: python -m benchmarks.house --write-record"
    unused, found = dict(record), list[str]()
    for row in rows:
        last = unused.pop(row.what, None)
        now = f"{row.what}: {row.now:,.5g}" if row.now < 1000 else f"{row.what}: {row.now:,}"
        if not row.over and last is not None:
            found.append(f"{now}, within its limit of {row.limit:,}: {rewrite}")
        elif row.over and last is None:
            found.append(f"{now}, over its limit of {row.limit:,}: make it smaller")
        elif row.over and last is not None and row.now > last:
            found.append(f"{now}, more than the {last:,} recorded: make it smaller")
        elif row.over and last is not None and row.now < last * (1 - _SLACK):
            found.append(
                f"{now}, {1 - row.now / last:.1%} less than the {last:,} recorded: {rewrite}"
            )
    return [*found, *(f"{what}: recorded, but no longer measured: {rewrite}" for what in unused)]


def budgets(page: str) -> dict[str, int]:
    """The tokens that each room may have, as the table in docs/architecture.md says."""
    return {
        what.partition("/")[0]: int(tokens.replace(",", ""))
        for what, tokens in re.findall(r"^\| `?([a-z/]+)`?[^|]* \| ([\d,]+) \|", page, re.MULTILINE)
    }


@dataclass
class Way:
    """What calls passed in one run: modules, functions, and changes from a module to another."""

    modules: dict[str, int]
    functions: set[tuple[str, str]]
    changes: int = 0


def way_of(run: Callable[[], object], root: Path = ROOT) -> Way:
    """What ``run`` passes in this thread. It runs twice, the first time for its imports.

    A change is a call from one module of ours to another, directly or through other people's code.
    """
    way = Way({}, set())
    names: dict[CodeType, str | None] = {}
    stack: list[str | None] = [None]

    def name_of(code: CodeType) -> str | None:
        path = Path(os.path.realpath(code.co_filename))
        if code.co_filename.startswith("<") or not path.is_relative_to(root):
            return None
        if path.parts[len(root.parts)].startswith((".", "tests", "benchmarks")):
            return None
        return path.relative_to(root).as_posix()

    def follow(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            code = frame.f_code
            if code not in names:
                names[code] = name_of(code)
            name, above = names[code], stack[-1]
            stack.append(name or above)
            if name is None:
                return
            way.modules[name] = way.modules.get(name, 0) + 1
            way.functions.add((name, code.co_qualname))
            way.changes += above is not None and name != above
        elif event == "return" and len(stack) > 1:
            stack.pop()

    run()
    sys.setprofile(follow)
    try:
        run()
    finally:
        sys.setprofile(None)
    return way


def words(path: Path) -> int:
    """Words of a page: what has a letter or a digit."""
    return sum(any(map(str.isalnum, word)) for word in path.read_text(encoding="utf-8").split())


def commands_and_options(group: click.Group) -> tuple[int, int]:
    """How many commands a group has below it, and how many options they have in all.

    An option that a group describes for all of its commands counts once.
    """
    commands, own, shared = 0, 0, set[tuple[str, str]]()
    groups = [group]
    while groups:
        context = click.Context(above := groups.pop())
        for name in above.list_commands(context):
            command = above.get_command(context, name)
            assert command is not None, name
            if isinstance(command, click.Group):
                groups.append(command)
                continue
            commands += 1
            for option in command.params:
                if isinstance(option, SharedOption) and option.of is not None:
                    shared.add((option.of, option.opts[-1]))
                else:
                    own += isinstance(option, click.Option)
    return commands, own + len(shared)


def start_s(*arguments: str) -> float:
    """Seconds that a command takes to start, print and end: the least of five runs."""

    def once() -> float:
        begin = time.perf_counter()
        command = [sys.executable, "-m", "patchlight", *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr}")
        return time.perf_counter() - begin

    return min(once() for _ in range(5))
