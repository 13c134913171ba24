"""Who may import whom. Reads the source only, so lazy imports inside functions count too."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Each room of the house, most special first, and the rooms that it may import from.
ROOMS = {
    "testbed.cli": {"testbed.cli", "testbed", "controller", "agents", "emulation"},
    "testbed": {"testbed"},
    "controller": {"controller", "testbed"},
    "agents": {"agents", "testbed"},
    "emulation": {"emulation", "agents", "controller", "testbed"},
}

# Libraries that only these files and folders may import.
KEPT_APART = {
    ("ryu", "os_ken", "eventlet"): ("controller/openflow/",),
    ("docker",): ("agents/workers/docker.py",),
    ("pyroute2",): (
        "agents/nics.py",
        "agents/netns.py",
        "emulation/fabric/",
        "emulation/optical/crossbar.py",
    ),
}


def sources(root: Path) -> list[Path]:
    packages = {room.partition(".")[0] for room in ROOMS}
    return sorted(path for package in packages for path in (root / package).rglob("*.py"))


def room_of(module: str) -> str | None:
    return next((r for r in ROOMS if module == r or module.startswith(r + ".")), None)


def imported(path: Path, root: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of each import: plain, relative, lazy, or by a constant string."""
    package = path.relative_to(root).with_suffix("").parts[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), filename=str(path))):
        match node:
            case ast.Import():
                yield from ((node.lineno, alias.name) for alias in node.names)
            case ast.ImportFrom():
                above = package[: len(package) - node.level + 1] if node.level else ()
                base = ".".join([*above, *([node.module] if node.module else [])])
                # `from testbed import cli` imports testbed.cli.
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
        room = room_of(".".join(path.relative_to(root).with_suffix("").parts))
        assert room is not None, where
        for line, name in imported(path, root):
            other = room_of(name)
            if other is not None and other not in ROOMS[room]:
                found.append(f"{where}:{line}: {room} must not import {name}")
            if name.partition(".")[0] in ("tests", "benchmarks"):
                found.append(f"{where}:{line}: {name} is not part of the distribution")
            for libraries, allowed in KEPT_APART.items():
                if name.partition(".")[0] in libraries and not where.startswith(allowed):
                    found.append(f"{where}:{line}: only {', '.join(allowed)} may import {name}")
    return found


def test_no_module_reaches_through_a_wall() -> None:
    assert len(sources(ROOT)) > 10
    assert violations(ROOT) == []


def test_a_broken_wall_is_found(tmp_path: Path) -> None:
    broken = {
        "controller/planning.py": "def plan():\n    from emulation import flow\n",
        "agents/service.py": "import controller.store\n",
        "testbed/lab.py": "from . import cli\n",
        "testbed/wiring.py": "from testbed.cli.main import main\n",
        "controller/service.py": "import importlib\nimportlib.import_module('ryu.base')\n",
        "controller/jobs/queue.py": "from ..openflow import client\nimport eventlet\n",
        "agents/workers/process.py": "from docker.errors import APIError\n",
        "emulation/gpus.py": "import pyroute2.netns\nfrom tests import conftest\n",
    }
    fine = {
        "controller/openflow/engine.py": "import os_ken\nfrom ryu.lib import hub\n",
        "agents/workers/docker.py": "import docker\n",
        "agents/workers/choice.py": "from agents.workers import docker\nfrom . import process\n",
        "agents/nics.py": "from pyroute2 import NDB\n",
        "emulation/fabric/ports.py": "import pyroute2\nfrom controller.circuits import contract\n",
        "testbed/cli/main.py": "from emulation import EmulatedLab\nfrom controller import store\n",
    }
    for name, text in {**broken, **fine}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    found = violations(tmp_path)

    assert [line.split(": ")[0] for line in found] == [
        "agents/service.py:1",
        "agents/workers/process.py:1",
        "controller/jobs/queue.py:2",
        "controller/planning.py:2",
        "controller/service.py:2",
        "emulation/gpus.py:1",
        "emulation/gpus.py:2",
        "testbed/lab.py:1",
        "testbed/wiring.py:1",
    ]
