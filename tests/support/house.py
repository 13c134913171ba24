"""Measures the source: its walls, its size, and the modules that a command passes."""

import ast
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from io import StringIO
from pathlib import Path

import networkx as nx

ROOT = Path(__file__).resolve().parents[2]

_LOWER = {"patchlight.testbed"}
_SIDES = {
    *_LOWER,
    "patchlight.agents",
    "patchlight.client",
    "patchlight.controller",
}
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
FOLDERS = (
    "testbed",
    "controller",
    "agents",
    "emulation",
    "deploy",
    "patchlight",
)

# Libraries that only these files and folders may import.
KEPT_APART = {
    ("ryu", "os_ken", "eventlet"): (
        "controller/packet_switches/openflow/speaker/",
    ),
    ("docker",): ("agents/workers/docker.py",),
    ("pysnmp",): ("controller/packet_switches/snmp.py",),
    ("pyroute2",): ("agents/nics/",),
    # The emulated device has it from there.
    ("grpc",): ("controller/circuits/protocols/gnmi.py",),
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
    return ".".join(
        names if names[0] == "patchlight" else ["patchlight", *names]
    )


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
                    yield from (
                        (node.lineno, alias.name) for alias in node.names
                    )
                case ast.ImportFrom():
                    above = (
                        package[: len(package) - node.level + 1]
                        if node.level
                        else ()
                    )
                    base = ".".join(
                        [*above, *([node.module] if node.module else [])]
                    )
                    # `from patchlight import cli` imports patchlight.cli.
                    yield from (
                        (node.lineno, f"{base}.{alias.name}")
                        for alias in node.names
                    )
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
        if not (
            ROOT / wing.removeprefix("patchlight.").replace(".", "/")
        ).is_dir()
    }


@cache
def wings_used_by(test: Path) -> set[str]:
    """The wings that a file of the tests imports, itself or by ``tests.support``."""
    found = set[str]()
    source = Source(test, module_of(test, ROOT), test.read_text())
    for _, name in source.imported:
        parent = ROOT / name.rpartition(".")[0].replace(".", "/")
        if (
            name.startswith("tests.support.")
            and parent.with_suffix(".py").is_file()
        ):
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
            Source(
                path, module_of(path, root), path.read_text(encoding="utf-8")
            )
            for path in sorted(paths)
        ]
        self.modules = {source.module: source for source in self.sources}

    def edges(self) -> Iterator[tuple[Source, int, str]]:
        """File, line and imported module of each import of ours from ours."""
        for source in self.sources:
            for line, name in source.imported:
                target = (
                    name if name in self.modules else name.rpartition(".")[0]
                )
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
                below = (
                    set(ROOMS)
                    if source.module == "patchlight"
                    else ROOMS[room]
                )
                if other not in (None, room) and other not in below:
                    found.append(
                        f"{where}:{line}: {room} must not import {name}"
                    )
                if first in FOLDERS and first != "patchlight":
                    found.append(
                        f"{where}:{line}: {name} is imported as patchlight.{name}"
                    )
                if first in ("tests", "benchmarks"):
                    found.append(
                        f"{where}:{line}: {name} is not part of the distribution"
                    )
                for libraries, allowed in KEPT_APART.items():
                    if first in libraries and not where.startswith(allowed):
                        found.append(
                            f"{where}:{line}: only {', '.join(allowed)} may import {name}"
                        )
        return found

    def circles(self) -> list[str]:
        """Neighbours in one folder, files and folders alike, that import each other in a loop.

        Without circles the content of each folder can be laid out on floors so that every import
        goes down: an arrow upwards is a circle of folders.
        """
        inside: defaultdict[str, nx.DiGraph[str]] = defaultdict(nx.DiGraph)
        for source, line, target in self.edges():
            ours = source.module.split(".")
            others = target.split(".")
            shared = next(
                (
                    i
                    for i, (a, b) in enumerate(zip(ours, others, strict=False))
                    if a != b
                ),
                None,
            )
            if shared is None:  # a package's own face, and a module in it
                continue
            where = f"{source.path.relative_to(self.root).as_posix()}:{line}"
            graph = inside[".".join(ours[:shared])]
            if not graph.has_edge(ours[shared], others[shared]):
                graph.add_edge(ours[shared], others[shared], where=where)
        return [
            f"{folder}: "
            + ", ".join(
                f"{a} → {b} ({graph[a][b]['where']})"
                for a, b, *_ in nx.find_cycle(graph)
            )
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
        inside = [
            s
            for s in self.sources
            if s.path.is_relative_to(self.root / folder)
        ]
        return sum(s.tokens for s in inside) / sum(
            s.text.count("\n") for s in inside
        )

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
                code += (
                    bool(bare)
                    and not bare.startswith("#")
                    and number not in quoted
                )
        return 100 * imports / code

    def imported_once(self) -> list[str]:
        """Modules that exactly one other module imports."""
        importers: defaultdict[str, set[str]] = defaultdict(set)
        for source, _, target in self.edges():
            importers[target].add(source.module)
        return sorted(
            module
            for module, by in importers.items()
            if len(by) == 1
            and not self.modules[module].path.name.startswith("__")
        )

    def names_of_several_classes(self) -> dict[str, list[str]]:
        """Public class names that several modules define."""
        defined: defaultdict[str, list[str]] = defaultdict(list)
        for source in self.sources:
            for node in source.tree.body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith(
                    "_"
                ):
                    defined[node.name].append(source.module)
        return {
            name: modules
            for name, modules in sorted(defined.items())
            if len(modules) > 1
        }


def _last(node: ast.stmt) -> int:
    assert node.end_lineno is not None
    return node.end_lineno


def budgets(page: str) -> dict[str, int]:
    """The tokens that each room may have, as the table in docs/architecture.md says."""
    return {
        what.partition("/")[0]: int(tokens.replace(",", ""))
        for what, tokens in re.findall(
            r"^\| `?([a-z/]+)`?[^|]* \| ([\d,]+) \|", page, re.MULTILINE
        )
    }
