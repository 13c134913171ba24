"""Guarded policies: whatever a policy does, there is a decision, and somebody hears of it."""

import itertools
import pickle
import re
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from patchlight.controller.policies.contract import (
    METHODS,
    ClusterShape,
    ClusterView,
    ElasticJob,
    GpuSite,
    JobView,
    PlacedDegree,
    PolicyKind,
    Progress,
)
from patchlight.controller.policies.degrees import Maximum, Rigid
from patchlight.controller.policies.guard import (
    Fault,
    GuardedElasticity,
    GuardedOrder,
    GuardedPartition,
    GuardedPlacement,
    GuardedTopology,
)
from patchlight.controller.policies.order import Fifo
from patchlight.controller.policies.placement import FirstFit
from patchlight.controller.policies.topology import Keep
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.labfile.reader import builtin_lab, read_lab
from tests.support.waiting import PATIENCE_S

SHAPE = ClusterShape(
    tuple(GpuSite(f"s0.g{n}", 0, 0, "M40") for n in range(4)), ("s0",), ("r0",)
)
VIEW = ClusterView(0.0, SHAPE, occupied=0b0001)
JOB = JobView("job", 2, arrived_s=3.0)
LAB = read_lab(builtin_lab("ofc2022"))


class Mine:
    """A policy of all kinds that does what it is told."""

    def __init__(self, act: Callable[[], Any]) -> None:
        self.act = act

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.act()


LIT = VIEW._replace(
    lab=LAB, circuits=LAB.initial_maps, barred={"ocs1": frozenset({1})}
)
ELASTIC = [
    ElasticJob("one", 1, {1: 4.0, 2: 2.0, 4: 1.0}),
    ElasticJob("two", 2, {1: 4.0, 2: 2.0, 4: 1.0}),
]
GUARDS: dict[str, tuple[Any, Any, tuple[Any, ...]]] = {
    "partition": (GuardedPartition, Maximum(), (VIEW, JOB, (0, 1, 2, 4))),
    "placement": (GuardedPlacement, FirstFit(), (VIEW, JOB, 2)),
    "order": (GuardedOrder, Fifo(), (VIEW, JOB, Progress())),
    "topology": (GuardedTopology, Keep(), (LIT, [[0, 1]])),
    "elasticity": (GuardedElasticity, Rigid(), (VIEW, ELASTIC, [])),
}


def asked(
    kind: PolicyKind, act: Callable[[], Any], **options: Any
) -> tuple[Any, list[Fault]]:
    faults: list[Fault] = []
    guard, default, arguments = GUARDS[kind]
    guarded = guard(Mine(act), default, "mine", faults.append, **options)
    return getattr(guarded, METHODS[kind])(*arguments), faults


DEFAULT: dict[str, Any] = {
    "partition": 4,
    "placement": [1, 2],
    "order": 3.0,
    "topology": {},
    "elasticity": {},
}
BOTH = pytest.mark.parametrize("alone", [False, True])


@BOTH
@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        ("partition", 2),
        ("partition", 0),
        ("partition", None),
        ("order", -5.0),
        ("order", 7),
        ("topology", {}),
        ("placement", [3, 1]),
        ("placement", None),
        ("placement", (1, 2)),
        ("elasticity", {"one": 2, "two": 4}),
        ("elasticity", {"two": 1}),
    ],
)
def test_good_answers_pass(kind: PolicyKind, answer: Any, alone: bool) -> None:
    found, faults = asked(kind, lambda: answer, alone=alone)
    assert found == (list(answer) if isinstance(answer, tuple) else answer)
    assert faults == []


@BOTH
@pytest.mark.parametrize(
    ("kind", "answer", "words"),
    [
        (
            "partition",
            3,
            "answered 3: expected one of the legal degrees 0, 1, 2, 4",
        ),
        ("partition", True, "answered True"),
        ("partition", 2.0, "answered 2.0"),
        ("partition", PlacedDegree(2, 0b11), "a block that is not free"),
        ("placement", [1], "answered 1 GPUs: expected 2 different free GPUs"),
        ("placement", [1, 1], r"GPU 1 \(s0.g1\): it appears twice"),
        ("placement", [0, 1], r"GPU 0 \(s0.g0\): it is not free for this job"),
        ("placement", [1, 9], "GPU 9: there are 0 to 3"),
        ("placement", [1, -1], "GPU -1: there are"),
        ("placement", "12", "answered '12'"),
        ("placement", 7, "answered 7"),
        ("order", float("nan"), "expected a finite number"),
        ("order", "1", "expected a finite number"),
        ("order", None, "expected a finite number"),
        ("topology", {"ocs9": PortMap()}, "the circuit switches are ocs1"),
        ("topology", {"ocs1": []}, r"expected a PortMap"),
        ("topology", {"ocs1": PortMap.of([(2, 9999)])}, "outside 1"),
        ("topology", {"ocs1": PortMap()}, "ports: 1"),
        ("topology", 5, "expected a PortMap by OCS"),
        (
            "elasticity",
            {"three": 2},
            "a degree for 'three': the jobs are one, two",
        ),
        (
            "elasticity",
            {"one": 3},
            "answered 3 for one: expected one of the legal degrees 1, 2, 4",
        ),
        (
            "elasticity",
            {"one": "2"},
            "answered '2': expected one of the legal degrees",
        ),
        (
            "elasticity",
            {"one": 4, "two": 4},
            "grows jobs by 5 GPUs in total, but only 3 are free",
        ),
        ("elasticity", [2], "expected a degree by job"),
    ],
)
def test_nonsense_is_reported_and_the_default_decides(
    kind: PolicyKind, answer: Any, words: str, alone: bool
) -> None:
    found, faults = asked(kind, lambda: answer, alone=alone)
    assert found == DEFAULT[kind]
    (fault,) = faults
    assert re.search(words, fault.reason), fault.reason
    assert fault.kind == kind
    assert str(fault).endswith("the default policy decided")


@BOTH
@pytest.mark.parametrize("kind", list(DEFAULT))
@pytest.mark.parametrize(
    "error", [ValueError("no idea"), SystemExit(3), RecursionError()]
)
def test_what_is_raised_is_reported(
    kind: PolicyKind, error: BaseException, alone: bool
) -> None:
    def fail() -> Any:
        raise error

    found, (fault,) = asked(kind, fail, alone=alone)
    assert found == DEFAULT[kind]
    assert f"it raised {type(error).__name__}" in fault.reason
    assert "test_guard.py:" in fault.reason


def test_a_policy_that_hangs_is_left_alone_until_it_comes_back() -> None:
    come_back = threading.Event()
    faults = list[Fault]()
    mine: Any = Mine(lambda: come_back.wait(30) and 2)
    guard = GuardedPartition(
        mine, Maximum(), "mine", faults.append, 0.1, alone=True
    )
    began = time.monotonic()
    assert guard.degree(VIEW, JOB, (0, 1, 2)) == 2
    assert guard.degree(VIEW, JOB, (0, 1)) == 1
    assert time.monotonic() - began < 20  # it would be back after 30
    assert [fault.reason for fault in faults] == [
        "no answer within 0.1 s",
        "it has not answered the previous call yet",
    ]
    come_back.set()
    deadline = time.monotonic() + PATIENCE_S
    while guard.degree(VIEW, JOB, (0, 2, 4)) != 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)  # the pause between two looks
    assert faults[-1].overruled


def test_in_the_simulator_a_late_answer_counts() -> None:
    def slow() -> int:
        time.sleep(0.02)  # longer than its deadline
        return 1

    found, (fault,) = asked("partition", slow, deadline_s=0.01)
    assert found == 1
    assert not fault.overruled
    assert "more than 0.01 s" in str(fault)
    assert "default" not in str(fault)


def test_whole_numbers_of_numpy_are_numbers() -> None:
    found, faults = asked("placement", lambda: np.array([1, 3]))
    assert (found, faults) == ([1, 3], [])
    assert asked("partition", lambda: np.int64(2)) == (2, [])
    assert asked("order", lambda: np.float32(2)) == (2.0, [])


class _Deep(BaseException):
    """What no program raises that means well."""

    def __str__(self) -> str:
        raise ValueError("not even words")


@BOTH
def test_nothing_that_is_raised_gets_out(alone: bool) -> None:
    def act() -> Any:
        raise _Deep

    answer, (fault,) = asked("partition", act, alone=alone)
    assert answer == 4
    assert "it raised _Deep" in fault.reason


@BOTH
def test_an_answer_without_end_is_not_waited_for(alone: bool) -> None:
    answer, (fault,) = asked(
        "placement", lambda: itertools.count(1), alone=alone
    )
    assert answer == [1, 2]
    assert "more than 2 GPUs" in fault.reason


def test_an_answer_that_hangs_while_it_is_read_is_left_alone() -> None:
    go_on = threading.Event()

    def slowly() -> Iterator[int]:
        yield 1
        go_on.wait(10)
        yield 2

    answer, (fault,) = asked("placement", slowly, alone=True, deadline_s=0.05)
    go_on.set()
    assert answer == [1, 2]
    assert "no answer within 0.05 s" in fault.reason


def test_huge_numbers_are_shown_in_short() -> None:
    for answer in (10**400, 10**5000):
        _, (fault,) = asked("partition", partial(int, answer))
        assert len(fault.reason) < 300
        assert "expected one of the legal degrees" in fault.reason


def test_what_a_policy_sees_cannot_be_changed() -> None:
    job = JobView("job")
    for seen in (job.expected_s, VIEW.circuits, VIEW.barred, SHAPE.model_gpus):
        with pytest.raises(TypeError):
            seen["x"] = 1  # type: ignore[index]
    assert pickle.loads(pickle.dumps((job, VIEW))) is not None
    assert dict(JobView("another").expected_s) == {}
    assert JobView("job").expected_s == {}
