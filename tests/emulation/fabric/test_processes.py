"""How long a lab waits for its processes: as long as they work."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from patchlight.emulation.fabric import lab_state
from patchlight.emulation.fabric.lab_state import LabState
from patchlight.emulation.fabric.processes import (
    LabService,
    ServiceNotStarted,
    Supervisor,
    nursery,
)
from patchlight.testbed.linux.processes import (
    command_line,
    environment,
    process_start,
)
from tests.support.waiting import wait_until

QUIET_S = 2.0


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[LabState]:
    monkeypatch.setattr(lab_state, "RUN_ROOT", tmp_path)
    state = lab_state.new_state("slow", "slow.yaml", 1.0)
    yield state
    for process in state.processes:
        if process_start(process.pid) == process.started:
            os.kill(process.pid, signal.SIGKILL)


@pytest.fixture
def supervisor(said: list[str], state: LabState) -> Supervisor:
    return Supervisor(state, said.append)


def service(program: str, done: Path) -> LabService:
    return LabService(
        "slow", [sys.executable, "-c", program], done.exists, quiet_s=QUIET_S
    )


def test_a_process_that_works_is_waited_for(
    supervisor: Supervisor, said: list[str], tmp_path: Path
) -> None:
    done = tmp_path / "done"
    program = f"""
import time
from pathlib import Path
print("counting", flush=True)
until = time.monotonic() + 3 * {QUIET_S}
while time.monotonic() < until:
    sum(range(300_000))
    time.sleep(0.05)  # other tests run beside it
Path({str(done)!r}).touch()
time.sleep(600)  # until it is ended
"""
    supervisor.start([service(program, done)])
    assert done.exists()
    assert any(
        s.startswith("still starting slow after") and s.endswith("counting")
        for s in said
    )


def test_a_process_that_does_nothing_is_given_up(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    program = "import time; print('thinking', flush=True); time.sleep(600)"  # until it is ended
    with pytest.raises(
        ServiceNotStarted,
        match=r"slow: .* made no progress for 2 s; [^\n]*\n +thinking",
    ):
        supervisor.start([service(program, tmp_path / "never")])


def test_a_machine_that_works_and_never_answers_is_given_up(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    program = "print('hangs busy', flush=True)\nwhile True: pass"
    busy = replace(service(program, tmp_path / "never"), limit_s=3.0)
    with pytest.raises(
        ServiceNotStarted, match=r"not answer after 3 s; [^\n]*\n +hangs busy"
    ):
        supervisor.start([busy])


def test_a_process_that_ends_is_not_waited_for(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    with pytest.raises(ServiceNotStarted, match="ended with status 3"):
        supervisor.start([service("raise SystemExit(3)", tmp_path / "never")])


def test_what_still_grows_is_waited_for(supervisor: Supervisor) -> None:
    counts = iter([0, 1, 1, 2, 3])
    supervisor.wait_for_all(
        "controller", lambda: next(counts), 3, "switches connected"
    )
    with pytest.raises(
        ServiceNotStarted,
        match=r"1 of 3 switches connected, no progress in 0\.5 s",
    ):
        supervisor.wait_for_all(
            "controller", lambda: 1, 3, "switches connected", quiet_s=0.5
        )


NAPPER = """
import os, sys, time
from pathlib import Path

def main():
    print("imported once by", os.getppid(), "in the session of", os.getsid(0), flush=True)
    if "fails" in sys.argv:
        raise ValueError("no bed")
    Path(sys.argv[1]).touch()
    time.sleep(600)  # until it is ended
"""


@pytest.fixture
def napper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., LabService]]:
    imports = ("napper", "json")
    (tmp_path / "napper.py").write_text(NAPPER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def service(name: str, *arguments: str) -> LabService:
        done = tmp_path / f"{name}.done"
        argv = [sys.executable, "-m", "napper", str(done), *arguments]
        return LabService(name, argv, done.exists, imports=imports)

    yield service
    nursery(imports).close()


def test_services_of_one_lab_and_of_the_next_are_forked_from_one_process(
    state: LabState,
    napper: Callable[..., LabService],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    following = lab_state.new_state("next", "next.yaml", 1.0)
    Supervisor(state, print).start([napper("first"), napper("second")])
    monkeypatch.setenv("SAID", "later")
    Supervisor(following, print).start([napper("third")])
    parents = set()
    for process in (*state.processes, *following.processes):
        shown = environment(process.pid)
        assert (
            shown[0]
            == f"{lab_state.MARK}={tmp_path / Path(process.log).parts[-3]}"
        )
        assert ("SAID=later" in shown) is (process.name == "third")
        words = Path(process.log).read_text().split()
        parents.add(words[3])
        assert words[-1] == str(process.pid)
        assert command_line(process.pid).endswith(
            f"-m napper {tmp_path / process.name}.done"
        )
    assert len(parents) == 1
    assert parents != {str(os.getpid())}
    (parent,) = map(int, parents)
    assert lab_state.MARK not in "".join(environment(parent))
    assert command_line(parent).endswith("fabric.processes napper json")
    for process in following.processes:
        os.kill(process.pid, signal.SIGKILL)


def test_once_what_they_are_forked_from_is_killed_there_is_another(
    supervisor: Supervisor, state: LabState, napper: Callable[..., LabService]
) -> None:
    supervisor.start([napper("first")])
    (first,) = state.processes
    parent = int(Path(first.log).read_text().split()[3])
    os.kill(parent, signal.SIGKILL)
    wait_until(lambda: process_start(parent) is None)
    supervisor.start([napper("second")])
    assert process_start(first.pid) == first.started


def test_a_forked_service_that_ends_is_not_waited_for(
    supervisor: Supervisor, napper: Callable[..., LabService]
) -> None:
    with pytest.raises(
        ServiceNotStarted, match=r"starting third: it ended(.|\n)*no bed"
    ):
        supervisor.start([napper("third", "fails")])


def test_what_services_are_forked_from_may_not_start(
    supervisor: Supervisor,
) -> None:
    service = LabService(
        "fourth", [sys.executable], lambda: False, imports=("no.such.module",)
    )
    with pytest.raises(
        ServiceNotStarted, match=r"starting fourth: .*No module named 'no'"
    ):
        supervisor.start([service])
