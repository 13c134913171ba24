"""Who may import whom. Reads the source only, so lazy imports inside functions count too."""

from pathlib import Path

import pytest

from benchmarks.house import Row, recorded, start_s, way_of, worse_than
from tests.support.house import ROOT, House, budgets, tokens_in

pytestmark = pytest.mark.xdist_group("the source")


@pytest.fixture(scope="module")
def house() -> House:
    """All of our source, of which each file is parsed once."""
    return House()


def test_no_module_reaches_through_a_wall(house: House) -> None:
    assert len(house.sources) > 10
    assert house.violations() == []


def test_no_rooms_import_each_other(house: House) -> None:
    assert house.circles() == []


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
        "emulation/fabric/wing.py": f"{root}.emulation.simulator import cluster\n",
        "controller/service.py": "import importlib\nimportlib.import_module('ryu.base')\n",
        "controller/jobs/queue.py": "from ..openflow import client\nimport eventlet\n",
        "controller/packet_switches/openflow/client.py": "import eventlet\n",
        "agents/workers/process.py": "from docker.errors import APIError\n",
        "emulation/gpus.py": "import pyroute2.netns\nfrom tests import conftest\n",
    }
    fine = {
        "controller/packet_switches/openflow/speaker/engine.py": (
            "import os_ken\nfrom ryu.lib import hub\n"
        ),
        "agents/workers/docker.py": "import docker\n",
        "agents/workers/choice.py": f"{root}.agents.workers import docker\nfrom . import process\n",
        "agents/nics/moving.py": "from pyroute2 import NDB\n",
        "emulation/fabric/ports.py": f"{root}.controller.jobs import queue\n",
        "patchlight/cli/main.py": f"{root} import EmulatedLab\n{root}.controller import store\n",
    }
    _write(tmp_path, {**broken, **fine})
    found = House(tmp_path).violations()
    assert [line.split(": ")[0] for line in found] == [
        "agents/old.py:1",
        "agents/service.py:1",
        "agents/workers/process.py:1",
        "controller/jobs/queue.py:2",
        "controller/packet_switches/openflow/client.py:1",
        "controller/planning.py:2",
        "controller/service.py:2",
        "emulation/fabric/wing.py:1",
        "emulation/gpus.py:1",
        "emulation/gpus.py:2",
        "testbed/lab.py:1",
        "testbed/wiring.py:1",
    ]


def test_a_circle_is_found_between_files_and_between_folders(
    tmp_path: Path,
) -> None:
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
    found = House(tmp_path).circles()
    assert [line.split(":")[0] for line in found] == [
        "patchlight.controller",
        "patchlight.testbed",
    ]
    assert "lab → wiring (testbed/lab.py:2)" in found[1]


def test_measures_of_a_small_house(tmp_path: Path) -> None:
    files = {
        "testbed/lab.py": '"""The lab."""\n\nimport os\n\n\nclass Lab: ...\n',
        "testbed/wiring.py": "from patchlight.testbed.lab import Lab\n\nlinks = [Lab]\n",
        "controller/service.py": "# Runs.\nimport patchlight.deploy.push\n\n\nclass Lab: ...\n",
        "deploy/push.py": "x = 1\n",
    }
    _write(tmp_path, files)
    house = House(tmp_path)
    # Comments, ends of lines and indents are free; the end of a file is a token.
    sizes = {None: 37, "core": 33, "wings": 4, "testbed": 22, "controller": 11}
    assert {room: house.tokens(room) for room in sizes} == sizes
    assert house.density("controller") == 11 / 5
    assert house.import_share() == 100 * 3 / 7
    assert house.imported_once() == [
        "patchlight.deploy.push",
        "patchlight.testbed.lab",
    ]
    twice = {
        "Lab": ["patchlight.controller.service", "patchlight.testbed.lab"]
    }
    assert house.names_of_several_classes() == twice
    assert [line.split(": ")[0] for line in house.violations()] == [
        "controller/service.py:2"
    ]


def test_an_f_string_is_one_token() -> None:
    assert tokens_in("x = 1") == tokens_in("x = f'{a + b:{width}}' # why") == 4
    assert tokens_in("x = f'a{f\"b{c}\"}d'\n") == 4


def test_what_is_over_its_limit_only_falls() -> None:
    def judged(**now: float) -> list[str]:
        return [
            ": ".join(line.split(": ")[:2])
            for line in worse_than(record, rows(**now))
        ]

    limits = {"size": 1_000, "density": 5.6, "modules": 30}

    def rows(**now: float) -> list[Row]:
        return [Row(what, value, limits[what]) for what, value in now.items()]

    red = {"size": 2_000, "density": 7.0, "modules": 40}
    record = recorded(rows(**red))
    assert record == {"size": 2_006, "density": 7.02, "modules": 40}
    assert recorded(rows(size=1_000, density=5.6, modules=30)) == {}
    assert judged(**red) == judged(size=1_970, density=6.9, modules=40) == []
    assert judged(size=2_007, density=7.0, modules=41) == [
        "size: 2,007, more than the 2,006 recorded",
        "modules: 41, more than the 40 recorded",
    ]
    assert judged(size=1_965, density=5.6, modules=40) == [
        "size: 1,965, 2.0% less than the 2,006 recorded",
        "density: 5.6, within its limit of 5.6",
    ]
    record = {"another": 7}
    assert judged(size=1_001, density=1.0, modules=1) == [
        "size: 1,001, over its limit of 1,000",
        "another: recorded, but no longer measured",
    ]


@pytest.mark.wings
def test_each_room_has_a_budget_on_the_page(house: House) -> None:
    page = budgets((ROOT / "docs" / "architecture.md").read_text())
    assert sum(page.values()) == 700_000
    assert {house.tokens(room) > 0 for room in page} == {True}
    assert sum(house.tokens(room) for room in page) == house.tokens()


def test_a_command_that_does_not_start_shows_what_it_said() -> None:
    with pytest.raises(
        RuntimeError, match=r"(?s)--nonsense ended with 2: .*no such option"
    ):
        start_s("--nonsense")


def test_the_modules_that_a_call_passes(tmp_path: Path) -> None:
    for name, text in {
        "first.py": "def run(f):\n    return list(map(f, (1, 2, 3)))\n",
        "second.py": "def twice(x):\n    return 2 * x\n",
    }.items():
        (tmp_path / name).write_text(text)
    spaces: list[dict[str, object]] = []
    for name in ("first.py", "second.py"):
        code = compile(
            (tmp_path / name).read_text(), str(tmp_path / name), "exec"
        )
        spaces.append({})
        exec(code, spaces[-1])
    run = spaces[0]["run"]
    twice = spaces[1]["twice"]
    way = way_of(lambda: run(twice), tmp_path)  # type: ignore[operator]
    assert way.modules == {"first.py": 1, "second.py": 3}
    assert way.changes == 3
