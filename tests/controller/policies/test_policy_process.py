"""Policies of users in processes of their own: whatever they do there, it ends nobody else."""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from patchlight.controller.jobs.policy_set import PolicySet
from patchlight.controller.policies.contract import (
    ClusterShape,
    ClusterView,
    Frozen,
    GpuSite,
    JobView,
    PolicyKind,
)
from patchlight.controller.policies.guard import Fault
from patchlight.controller.policies.policy_process import PolicyProcess
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.lab.rules import PolicyChoice
from tests.support.waiting import PATIENCE_S

SHAPE = ClusterShape(
    tuple(GpuSite(f"s0.g{n}", 0, 0, "M40") for n in range(4)), ("s0",), ("r0",)
)
VIEW = ClusterView(0.0, SHAPE, occupied=0b0001)
DEFAULT = [1, 2]

SOURCE = """
import ctypes
import os
import sys


class Malice:
    def __reduce__(self):
        return os.system, (f"touch {__file__}.ran",)


class Last:
    def __init__(self, first: int = 0) -> None:
        self.asked = first

    def place(self, cluster, job, workers):
        self.asked += 1
        if job.name == "count":
            return [1, 1 + self.asked]
        if job.name == "holds":
            # One call in C that never gives the interpreter up.
            ctypes.PyDLL(None).sleep(60)
        if job.name == "computes":
            sum(range(3 * 10**9))
        if job.name == "exits":
            os._exit(3)
        if job.name == "dies":
            ctypes.string_at(0)
        if job.name == "garbage":
            os.write(int(sys.argv[1]), b"\\x00\\x00\\x00\\x04oops")
        if job.name in ("forges", "pickles", "half"):
            from multiprocessing.connection import Connection
            there = Connection(os.dup(int(sys.argv[1])))
            if job.name == "forges":
                there.send_bytes(b'[true, [0, 99], null]')
            if job.name == "pickles":
                there.send(Malice())
            if job.name == "half":
                os.write(there.fileno(), b"\\x00\\x00\\x10\\x00")
                ctypes.CDLL(None).sleep(60)  # until it is ended
        if job.name == "forks":
            if os.fork() == 0:
                import time
                time.sleep(1000)  # until it is ended
            os._exit(5)
        if job.name == "raises":
            raise SystemExit(4)
        if job.name == "prints":
            print("from a policy", flush=True)
        if job.name == "odd":
            return (n for n in (3, 2))
        return [3, 2]
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    return path


class Asked:
    """The placement policy of a file, and what went wrong with it."""

    def __init__(self, path: Path, deadline_s: float = 5.0) -> None:
        self.faults: list[Fault] = []
        choice = PolicyChoice(placement=f"{path}:Last", deadline_s=deadline_s)
        self.policies = PolicySet(choice, self.faults.append)

    def place(self, name: str) -> Any:
        return self.policies.placement.place(VIEW, JobView(name, 2), 2)


@pytest.fixture
def asked(mine: Path) -> Iterator[Asked]:
    made = Asked(mine)
    yield made
    made.policies.close()


@pytest.mark.parametrize("job", ["plain", "odd", "prints"])
def test_answers_come_from_the_other_process(
    asked: Asked, mine: Path, job: str
) -> None:
    assert asked.place(job) == [3, 2]
    assert asked.faults == []
    loaded = {
        getattr(module, "__file__", None)
        for module in list(sys.modules.values())
    }
    assert str(mine.resolve()) not in loaded


def test_it_keeps_what_it_remembers_between_questions(asked: Asked) -> None:
    assert [asked.place("count"), asked.place("count")] == [[1, 2], [1, 3]]


@pytest.mark.parametrize("job", ["holds", "computes"])
def test_one_that_holds_the_interpreter_is_ended_at_the_deadline(
    mine: Path, job: str
) -> None:
    asked = Asked(mine, deadline_s=2.0)
    try:
        began = time.monotonic()
        assert asked.place(job) == DEFAULT
        assert time.monotonic() - began < 30
        (fault,) = asked.faults
        assert "no answer within 2 s: its process was ended" in fault.reason
        wait_for_answer(asked)
    finally:
        asked.policies.close()


def wait_for_answer(asked: Asked) -> None:
    """A process that was ended is there again, once Python has started on a busy machine."""
    deadline = time.monotonic() + PATIENCE_S
    while asked.place("plain") != [3, 2]:
        assert time.monotonic() < deadline, asked.faults


@pytest.mark.parametrize(
    ("job", "words"),
    [
        ("exits", "its process ended: exit code 3"),
        ("dies", "its process ended: signal 11"),
        ("raises", "it raised SystemExit: 4 ("),
        ("garbage", "its process ended"),
        ("forges", "it answered GPU 0 (s0.g0): it is not free for this job"),
        ("pickles", "its process ended"),
        ("half", "its process ended"),
        ("forks", "its process was ended"),
    ],
)
def test_one_that_ends_is_reported_and_started_again(
    asked: Asked, mine: Path, job: str, words: str
) -> None:
    assert asked.place(job) == DEFAULT
    assert words in asked.faults[0].reason
    wait_for_answer(asked)
    # What it wrote was not run here.
    assert list(mine.parent.glob("*.ran")) == []


def test_what_cannot_be_had_is_said_at_once(
    tmp_path: Path, mine: Path
) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import sys\nsys.exit(7)\n")
    for text, words in (
        (f"{wrong}", "wrong.py:2: SystemExit while it ran: 7"),
        (f"{mine}:Nobody", "has no 'Nobody'"),
        ("nobody", "unknown policy 'nobody'"),
        ("partition:constant", "is of kind partition"),
    ):
        with pytest.raises(BadInput, match=words):
            PolicySet(PolicyChoice(placement=text), lambda fault: None)


def test_a_learned_policy_that_does_not_fit_the_lab_is_refused() -> None:
    choice = PolicyChoice(partition="learned-first-fit-inexact")
    with pytest.raises(
        BadInput,
        match=r"trained for a RAMP of .* not for a lab that is not a RAMP",
    ):
        PolicySet(choice, lambda fault: None, SHAPE)
    PolicySet(choice, lambda fault: None, SHAPE_OF_RAMP).close()


SHAPE_OF_RAMP = ClusterShape(SHAPE.gpus, SHAPE.servers, SHAPE.racks, (4, 4, 2))


def test_none_is_left_when_the_policies_are_closed(mine: Path) -> None:
    before = children()
    asked = Asked(mine)
    asked.place("plain")
    assert children() - before
    asked.policies.close()
    assert not children() - before


def children() -> set[str]:
    """Process numbers of what this process has started and has not waited for."""
    listed = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    return set(listed.read_text().split())


def test_maps_and_placed_degrees_come_as_they_were_answered(
    tmp_path: Path,
) -> None:
    path = tmp_path / "kinds.py"
    path.write_text(
        "from patchlight.controller.policies.contract import PlacedDegree\n"
        "from patchlight.testbed.lab.portmap import PortMap\n\n\n"
        "class Light:\n"
        "    def circuits(self, cluster, groups):\n"
        "        return {'o1': PortMap.duplex([(1, 2)])}\n\n\n"
        "class Split:\n"
        "    def degree(self, cluster, job, legal):\n"
        "        return PlacedDegree(2, cluster.places(job, 2)[0])\n"
    )
    dark = VIEW._replace(circuits=Frozen({"o1": PortMap()}))
    asked: tuple[tuple[str, PolicyKind, tuple[Any, ...]], ...] = (
        ("Light", "topology", (dark, [[1, 2]])),
        (
            "Split",
            "partition",
            (VIEW._replace(places=two_places), JobView("j"), (0, 1, 2)),
        ),
    )
    found = []
    for name, kind, question in asked:
        process = PolicyProcess(f"{path}:{name}", kind, PATIENCE_S)
        found.append(process.ask_why(question)[0])
        process.close()
    assert found == [{"o1": PortMap.duplex([(1, 2)])}, 2]
    assert found[1].gpus == 0b110


def two_places(job: JobView, degree: int) -> tuple[int, ...]:
    return 0b110, 0b1010
