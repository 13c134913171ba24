"""Who may import whom. Reads the source only, so lazy imports inside functions count too."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import networkx as nx

ROOT = Path(__file__).resolve().parent.parent

# Each room of the house, and the rooms that it may import from. The folders are imported as
# parts of ``patchlight``, which itself holds the public face and the command.
ROOMS = {
    "testbed": {"testbed"},
    "controller": {"controller", "testbed"},
    "agents": {"agents", "testbed"},
    "emulation": {"emulation", "agents", "controller", "testbed"},
    "deploy": {"deploy", "agents", "testbed"},
    "patchlight": {"patchlight", "testbed", "controller", "agents", "emulation", "deploy"},
}

# Libraries that only these files and folders may import.
KEPT_APART = {
    ("ryu", "os_ken", "eventlet"): ("controller/openflow/speaker/",),
    ("docker",): ("agents/workers/docker.py",),
    ("pyroute2",): ("agents/nics/",),
}

Import = tuple[str, int, str]
"""File, line, and the full dotted name of what it imports."""


def sources(root: Path) -> list[Path]:
    """Every module once: ``patchlight`` has links to the folders beside it."""
    folders = [*(room for room in ROOMS if room != "patchlight"), "patchlight/cli"]
    return sorted(
        [path for folder in folders for path in (root / folder).rglob("*.py")]
        + list((root / "patchlight").glob("*.py"))
    )


def module_of(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    names = [part for part in parts if part != "__init__"]
    return ".".join(names if names[0] == "patchlight" else ["patchlight", *names])


def room_of(module: str) -> str | None:
    first, _, rest = module.partition(".")
    if first != "patchlight":
        return None
    name = rest.partition(".")[0]
    return name if name in ROOMS else "patchlight"


def imported(path: Path, root: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of each import: plain, relative, lazy, or by a constant string."""
    package = module_of(path, root).split(".")
    if path.name != "__init__.py":
        package.pop()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), filename=str(path))):
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


def violations(root: Path) -> list[str]:
    found = []
    for path in sources(root):
        where = path.relative_to(root).as_posix()
        room = room_of(module_of(path, root))
        assert room is not None, where
        for line, name in imported(path, root):
            first = name.partition(".")[0]
            other = room_of(name)
            if other is not None and other not in ROOMS[room]:
                found.append(f"{where}:{line}: {room} must not import {name}")
            if first in ROOMS and first != "patchlight":
                found.append(f"{where}:{line}: {name} is imported as patchlight.{name}")
            if first in ("tests", "benchmarks"):
                found.append(f"{where}:{line}: {name} is not part of the distribution")
            for libraries, allowed in KEPT_APART.items():
                if first in libraries and not where.startswith(allowed):
                    found.append(f"{where}:{line}: only {', '.join(allowed)} may import {name}")
    return found


def circles(root: Path) -> list[str]:
    """Rooms of one folder, files and folders alike, that import each other in a loop.

    In a house without circles each folder's rooms can be laid out on floors so that every
    import goes down: an arrow upwards is a circle of folders.
    """
    modules = {module_of(path, root): path for path in sources(root)}
    inside: defaultdict[str, nx.DiGraph[str]] = defaultdict(nx.DiGraph)
    for module, path in modules.items():
        for line, name in imported(path, root):
            target = name if name in modules else name.rpartition(".")[0]
            if target not in modules or target == module:
                continue
            ours, others = module.split("."), target.split(".")
            shared = next(
                (i for i, (a, b) in enumerate(zip(ours, others, strict=False)) if a != b), None
            )
            if shared is None:  # a package's own face, and a module in it
                continue
            where = f"{path.relative_to(root).as_posix()}:{line}"
            graph = inside[".".join(ours[:shared])]
            if not graph.has_edge(ours[shared], others[shared]):
                graph.add_edge(ours[shared], others[shared], where=where)
    return [
        f"{folder}: "
        + ", ".join(f"{a} → {b} ({graph[a][b]['where']})" for a, b, *_ in nx.find_cycle(graph))
        for folder, graph in sorted(inside.items())
        if not nx.is_directed_acyclic_graph(graph)
    ]


def test_no_module_reaches_through_a_wall() -> None:
    assert len(sources(ROOT)) > 10
    assert violations(ROOT) == []


def test_no_rooms_import_each_other() -> None:
    assert circles(ROOT) == []


def _write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_a_broken_wall_is_found(tmp_path: Path) -> None:
    root = "from patchlight"
    broken = {
        "controller/planning.py": f"def plan():\n    {root}.emulation import simulator\n",
        "agents/service.py": "import patchlight.controller.store\n",
        "agents/old.py": "from controller import store\n",
        "testbed/lab.py": f"{root} import cli\n",
        "testbed/wiring.py": f"{root}.cli.main import main\n",
        "controller/service.py": "import importlib\nimportlib.import_module('ryu.base')\n",
        "controller/jobs/queue.py": "from ..openflow import client\nimport eventlet\n",
        "controller/openflow/client.py": "import eventlet\n",
        "agents/workers/process.py": "from docker.errors import APIError\n",
        "emulation/gpus.py": "import pyroute2.netns\nfrom tests import conftest\n",
    }
    fine = {
        "controller/openflow/speaker/engine.py": "import os_ken\nfrom ryu.lib import hub\n",
        "agents/workers/docker.py": "import docker\n",
        "agents/workers/choice.py": f"{root}.agents.workers import docker\nfrom . import process\n",
        "agents/nics/moving.py": "from pyroute2 import NDB\n",
        "emulation/fabric/ports.py": f"{root}.controller.jobs import queue\n",
        "patchlight/cli/main.py": f"{root} import EmulatedLab\n{root}.controller import store\n",
    }
    _write(tmp_path, {**broken, **fine})
    found = violations(tmp_path)
    assert [line.split(": ")[0] for line in found] == [
        "agents/old.py:1",
        "agents/service.py:1",
        "agents/workers/process.py:1",
        "controller/jobs/queue.py:2",
        "controller/openflow/client.py:1",
        "controller/planning.py:2",
        "controller/service.py:2",
        "emulation/gpus.py:1",
        "emulation/gpus.py:2",
        "testbed/lab.py:1",
        "testbed/wiring.py:1",
    ]


def test_a_circle_is_found_between_files_and_between_folders(tmp_path: Path) -> None:
    files = {
        "testbed/lab.py": "def f():\n    from patchlight.testbed.wiring import links\n",
        "testbed/wiring.py": "from patchlight.testbed.lab import Lab\n",
        "controller/changes/plan.py": "from patchlight.controller.circuits.contract import C\n",
        "controller/circuits/contract.py": "",
        "controller/circuits/lock.py": "import patchlight.controller.changes.locks\n",
        "controller/changes/locks.py": "",
        "agents/gpus.py": "from patchlight.agents.nics import Nic\n",
        "agents/nics.py": "",
    }
    _write(tmp_path, files)
    found = circles(tmp_path)
    assert [line.split(":")[0] for line in found] == ["patchlight.controller", "patchlight.testbed"]
    assert "lab → wiring (testbed/lab.py:2)" in found[1]
