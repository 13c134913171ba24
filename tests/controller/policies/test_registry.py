"""Finding policies: by name, installed, in a file; and saying what is wrong with what was asked."""

import importlib.metadata
import inspect
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from patchlight.controller.policies import registry
from patchlight.controller.policies.contract import KINDS, kind_of
from patchlight.controller.policies.degrees import Constant, RandomDegree
from patchlight.controller.policies.registry import (
    BUILT_IN,
    DEFAULTS,
    find,
    load_policy,
    policies,
)
from patchlight.testbed.errors import BadInput

GOOD = '''
from dataclasses import dataclass


@dataclass
class Half:
    """Half of what can be had.

    More about it.
    """

    part: float = 0.5
    name: str = "half"

    def degree(self, cluster, job, legal):
        return 0


def helper():
    pass
'''


TWO = "class A:\n def degree(self, c, j, l): ...\n"
BOTH = "class Mine:\n def degree(s): ...\n def place(s): ..."
ONLY_JOB = "class Mine:\n def degree(self, job): ..."
NONE = (
    r"it has none of a policy's methods: expected .*degree \(partition\), place \(placement\), "
    r"priority \(order\)"
)


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good.py"
    path.write_text(GOOD)
    return path


def test_every_built_in_can_be_made_and_is_of_its_kind() -> None:
    names = [
        (each.kind, each.name)
        for each in policies()
        if each.origin == "built in"
    ]
    assert names == [(kind, name) for kind in KINDS for name in BUILT_IN[kind]]
    for each in policies():
        if each.origin == "built in":
            given = {"degree": 2} if each.lacks else {}
            assert kind_of(each.make(**given)) == each.kind
            assert each.about.endswith((".", "``."))
    for kind, name in DEFAULTS.items():
        assert find(name, kind).make()


def test_names_parameters_and_kinds() -> None:
    assert repr(load_policy("constant:8", "partition")) == "Constant(8)"
    assert repr(load_policy("constant:degree=8", "partition")) == "Constant(8)"
    assert (
        repr(load_policy("partition:constant:8", "partition")) == "Constant(8)"
    )
    assert find("las:3:factor=2.5").given == {"queues": 3, "factor": 2.5}
    assert find("las:3:factor=2.5").text == "las:queues=3:factor=2.5"
    assert find("fifo").kind == "order"
    assert find("placement:random:7").kind == "placement"


def test_what_is_offered_comes_where_nobody_gave_it() -> None:
    assert find("random", "partition").make(
        seed=5, scenario=None
    ) == RandomDegree(5)
    assert find("random:3", "partition").make(seed=5) == RandomDegree(3)
    assert isinstance(find("constant", "partition").make(degree=2), Constant)


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("fiffo", None, "unknown policy 'fiffo': did you mean 'fifo'"),
        ("best", "order", "order policies are fifo, srpt, las, deadline"),
        ("random", None, "write partition:random or placement:random"),
        ("fifo", "placement", "unknown policy 'fifo'"),
        ("order:fifo", "placement", "is of kind order, expected placement"),
        ("fifo:3", None, "'fifo' has no parameters"),
        ("constant:8:9", None, "unknown parameter '9'"),
        (
            "constant:dgree=8",
            None,
            "unknown parameter 'dgree': did you mean 'degree'",
        ),
        ("constant:8:degree=8", None, "degree appears twice"),
        ("constant:eight", None, "degree is 'eight': expected a whole number"),
        ("las:factor=x", None, "factor is 'x': expected a number"),
        ("learned-lab", "placement", "'learned-lab' was removed"),
        ("learned-block", "partition", "'learned-block' was removed"),
        ("model.pt", None, "pickled models are not supported"),
        ("model.pkl", "partition", "expected FILE.py:CLASS or FILE.onnx"),
        ("nowhere.onnx", None, "not found"),
        ("nowhere.py:Mine", None, "No such file"),
        ("", None, "unknown policy ''"),
    ],
)
def test_what_is_not_there_or_wrong(text: str, kind: Any, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        find(text, kind)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("constant", "needs the parameter 'degree'\n.*constant:degree=VALUE"),
        ("constant:0", "cannot split a job into 0 parts"),
        ("las:queues=0", "cannot have 0 queues"),
    ],
)
def test_what_cannot_be_made(text: str, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        find(text).make()


def test_a_policy_in_a_file(good: Path) -> None:
    recipe = find(f"{good}:Half:part=0.25:name=quarter", "partition")
    made: Any = recipe.make()
    assert (made.part, made.name) == (0.25, "quarter")
    assert recipe.about == "Half of what can be had."
    assert recipe.parameters_in_words == [
        "part: float = 0.5",
        "name: str = half",
    ]
    assert find(str(good)).name == f"{good}:Half"  # The only policy there.
    assert recipe.path == good


def test_a_file_is_run_once_until_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "counts.py"
    path.write_text(
        "import sys\nsys.times_run = getattr(sys, 'times_run', 0) + 1\n" + GOOD
    )
    for _ in range(3):
        find(f"{path}:Half").make()
    assert sys.times_run == 1  # type: ignore[attr-defined]
    path.write_text("changed = 1\n" + GOOD.replace("0.5", "0.75"))
    assert find(f"{path}:Half").make().part == 0.75  # type: ignore[union-attr]
    del sys.times_run  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("source", "name", "words"),
    [
        ("x = (", "Mine", r"bad\.py:1: .*never closed"),
        (
            "import sys\n\n1 / 0\n",
            "Mine",
            r"bad\.py:3: ZeroDivisionError while it ran",
        ),
        ("import not_there_at_all", "Mine", r"bad\.py:1: ModuleNotFoundError"),
        (
            "raise SystemExit(0)",
            "Mine",
            r"bad\.py:1: SystemExit while it ran",
        ),
        (GOOD, "Halff", r"has no 'Halff': did you mean 'Half'"),
        (
            "x = 1",
            "Mine",
            r"has no 'Mine': expected a class or object with one of the methods",
        ),
        (GOOD, "helper", f"helper is not a policy: {NONE}"),
        (
            BOTH,
            "Mine",
            "has degree and place, more than one of a policy's methods",
        ),
        (
            ONLY_JOB,
            "Mine",
            r"degree cannot be called with \(cluster, job, legal\)",
        ),
        (
            "class Mine:\n def choose(self, c, j, l): ...",
            "Mine",
            "it has none of a policy's",
        ),
        (
            f"{TWO}class B(A): ...",
            None,
            r"has 2 policies: expected .*NAME with NAME one of A, B",
        ),
        ("", None, "has no policies"),
    ],
)
def test_files_that_are_no_good(
    tmp_path: Path, source: str, name: str | None, words: str
) -> None:
    path = tmp_path / "bad.py"
    path.write_text(source)
    with pytest.raises(BadInput, match=words):
        find(f"{path}:{name}" if name else str(path))


def test_a_constructor_that_raises(tmp_path: Path) -> None:
    path = tmp_path / "raises.py"
    path.write_text(
        "class Mine:\n def __init__(self): raise ValueError('no')\n"
        " def place(self, cluster, job, workers): ...\n"
    )
    with pytest.raises(BadInput, match="could not be created: ValueError: no"):
        find(f"{path}:Mine").make()


def test_an_object_is_a_policy_too(tmp_path: Path) -> None:
    path = tmp_path / "objects.py"
    path.write_text(GOOD + "\nready = Half(0.1)\n")
    assert find(f"{path}:ready").make().part == 0.1  # type: ignore[union-attr]
    with pytest.raises(BadInput, match="has no parameters"):
        find(f"{path}:ready:part=1")


def test_installed_policies(
    good: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(good.parent)
    points = [
        EntryPoint("partition.half", "good:Half", registry.GROUP),
        EntryPoint("partition.gone", "not_there_at_all:X", registry.GROUP),
        EntryPoint("order.half", "good:Half", registry.GROUP),
        EntryPoint("partition.constant", "good:Half", registry.GROUP),
    ]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    assert find("half", "partition").origin == "installed, good:Half"
    assert load_policy("half", "partition").part == 0.5  # type: ignore[union-attr]
    with pytest.raises(
        BadInput, match="cannot be imported: ModuleNotFoundError"
    ):
        load_policy("gone", "partition")
    with pytest.raises(BadInput, match="is of kind partition, expected order"):
        load_policy("half", "order")
    assert find("constant").origin == "built in"


def test_the_roll_out_is_installed_and_asks_for_a_scenario() -> None:
    if not importlib.metadata.entry_points(
        group=registry.GROUP, name="partition.roll-out"
    ):
        pytest.skip(
            "this installation is older than the entry point: pip install -e . again"
        )
    with pytest.raises(BadInput, match="plans with the simulator"):
        load_policy("roll-out", "partition")


def test_every_policy_of_ours_says_what_it_does() -> None:
    for each in policies():
        assert len(each.about) > 10, each.name
        if inspect.isclass(each.factory):
            assert each.factory.__doc__


def test_modules_that_a_file_imports_are_no_policies(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "import numpy as np\n\n\nclass Mine:\n    def place(self, cluster, job, workers): ...\n"
    )
    assert find(str(path)).name == f"{path}:Mine"


def test_constructors_with_any_number_of_arguments(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from patchlight.controller.policies.contract import OrderPolicy\n\n\n"
        "class Sub(OrderPolicy):\n    def priority(self, cluster, job, progress): return 1.0\n\n\n"
        "class Any:\n    def __init__(self, *a, **k): ...\n"
        "    def priority(self, cluster, job, progress): return 1.0\n"
    )
    for name in ("Sub", "Any"):
        recipe = find(f"{path}:{name}", "order")
        assert recipe.lacks == ()
        assert recipe.make(seed=1) is not None


def test_an_object_begins_anew_each_time(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "class Counts:\n    asked = 0\n    def priority(self, cluster, job, progress):\n"
        "        self.asked += 1\n        return float(self.asked)\n\n\ncounts = Counts()\n"
    )
    for _ in range(2):
        policy: Any = find(f"{path}:counts", "order").make()
        assert policy.priority(None, None, None) == 1.0
