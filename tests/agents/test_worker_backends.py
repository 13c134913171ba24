"""What every back end of workers does: processes, containers, and those that packages bring.

``$PATCHLIGHT_TEST_WORKER_BACKEND`` names an installed one to put through all of it, too.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from patchlight.agents import run
from patchlight.agents.errors import BadRequest
from patchlight.agents.run import make_runner
from patchlight.agents.workers import keeper
from patchlight.agents.workers.contract import (
    BackendOptions,
    ExitInfo,
    Runner,
    RunningWorker,
    WorkerHandle,
    WorkerLaunch,
)
from patchlight.testbed.errors import BadInput
from patchlight.testbed.linux import namespaces
from patchlight.testbed.linux.namespaces import processes_in
from patchlight.testbed.linux.processes import Cgroups, Limits, may_run
from tests.support.waiting import PATIENCE_S, eventually
from tests.support.worker_desk import LIMITS, Desk, open_desk

OURS = "PATCHLIGHT_TEST_WORKER_BACKEND"
GREEDY = """
import os, time
print(*[line.strip() for line in open("/proc/self/status") if line[:6] in ("CapEff", "NoNewP")])
print("cpus", *os.sched_getaffinity(0))
made = 0
try:
    while made < 200:
        if os.fork() == 0:
            time.sleep(60)  # until it is ended
        made += 1
except OSError:
    pass
print("forked", made, flush=True)
print(len(b"x" * 2**29))
"""


# Where it may fork no more it waits: each fork in vain copies the process first, and with sixty
# that try all the time nobody else gets a processor.
BOMB = """
import os, time
while True:
    try:
        os.fork() or os.setsid()
    except OSError:
        time.sleep(1)  # until it may fork again
"""


def _choices() -> list[Any]:
    chosen = [
        pytest.param(
            ("process", "root"), marks=pytest.mark.root, id="process"
        ),
        pytest.param(
            ("process", "dynamic"),
            marks=pytest.mark.root,
            id="process-of-nobody",
        ),
        pytest.param(
            ("docker", "dynamic"),
            marks=[pytest.mark.root, pytest.mark.docker],
            id="docker",
        ),
    ]
    if name := os.environ.get(OURS):
        chosen.append(
            pytest.param((name, "root"), marks=pytest.mark.root, id=name)
        )
    return chosen


@pytest.fixture(params=_choices())
def make(request: pytest.FixtureRequest) -> Callable[[], Runner]:
    """Makes a runner of the back end, as every start of an agent does."""
    choice, user = request.param
    options = BackendOptions("test", f"server-{os.getpid()}", worker_user=user)
    return lambda: make_runner(choice, options)


@pytest_asyncio.fixture
async def runner(make: Callable[[], Runner]) -> AsyncIterator[Runner]:
    made = make()
    await made.open()
    yield made
    await made.close()


@pytest.fixture
def desk() -> Iterator[Desk]:
    with open_desk() as made:
        yield made


async def begin(runner: Runner, launch: WorkerLaunch) -> RunningWorker:
    """Launch, and let the program go."""
    worker = await runner.launch(launch)
    await eventually(lambda: keeper.open_gate(launch.directory))
    return worker


async def end_of(worker: RunningWorker) -> ExitInfo:
    async with asyncio.timeout(PATIENCE_S):
        return await worker.ended()


async def test_a_worker_runs_in_a_namespace_of_its_own_once_it_is_let_go(
    runner: Runner, desk: Desk
) -> None:
    program = "echo $RANK of $WORLD_SIZE; cat /proc/net/dev | wc -l; echo of it >mine; exit 7"
    launch = desk.launch("sh", "-c", program)
    worker = await runner.launch(launch)
    assert (
        namespaces.inode(namespaces.namespace_path(launch.namespace))
        is not None
    )
    await asyncio.sleep(0)
    assert not (launch.directory / keeper.STARTED).exists()
    await eventually(lambda: keeper.open_gate(launch.directory))
    ended = await end_of(worker)
    # Two lines of heading, and the loopback interface alone.
    assert (ended.exit_code, ended.last_lines) == (7, ("0 of 1", "3"))
    assert not ended.out_of_memory
    assert (launch.directory / "mine").read_text() == "of it\n"
    await worker.dispose()
    await worker.dispose()
    assert (
        namespaces.inode(namespaces.namespace_path(launch.namespace))
        is not None
    )


async def test_another_agent_finds_it_alive_and_after_its_end(
    make: Callable[[], Runner], runner: Runner, desk: Desk
) -> None:
    launch = desk.launch(
        "sh", "-c", "until [ -e go ]; do sleep 0.05; done; exit 3"
    )
    handle = (await begin(runner, launch)).handle
    heirs = [make(), make()]
    for heir in heirs:
        await heir.open()
    alive = await heirs[0].adopt(handle, launch.namespace, launch.directory)
    (launch.directory / "go").touch()
    assert (await end_of(alive)).exit_code == 3
    dead = await heirs[1].adopt(handle, launch.namespace, launch.directory)
    assert (await end_of(dead)).exit_code == 3
    await dead.dispose()
    for heir in heirs:
        await heir.close()


async def test_it_is_told_to_end_and_all_that_it_forked_ends_with_it(
    runner: Runner, desk: Desk
) -> None:
    deaf = (
        "trap 'echo told' TERM; (trap '' TERM; setsid sleep 600) & echo deaf"
    )
    deaf += "; while :; do sleep 0.001; done"
    launch = desk.launch("sh", "-c", deaf)
    worker = await begin(runner, launch)
    await eventually((launch.directory / keeper.OUTPUT).read_text)
    await worker.stop(grace_s=1)
    ended = await end_of(worker)
    assert ended.exit_code == 137
    await worker.dispose()
    assert processes_in(launch.namespace) == []
    await worker.stop(grace_s=1)


@pytest.mark.any_kernel
async def test_one_that_forks_without_end_is_ended(
    runner: Runner, desk: Desk
) -> None:
    if runner.name == "process" and "pids" not in Cgroups().controllers:
        pytest.skip("this machine lets nobody make cgroups")
    # More would keep the machine from everything else, and this test from looking.
    launch = replace(
        desk.launch("python3", "-c", BOMB), limits=Limits(2**30, 60)
    )
    worker = await begin(runner, launch)
    try:
        await eventually(lambda: len(processes_in(launch.namespace)) > 40)
    finally:
        await worker.stop(grace_s=0)
        await end_of(worker)
        await worker.dispose()
    assert processes_in(launch.namespace) == []


async def test_what_is_frozen_stands_still_until_it_is_thawed(
    runner: Runner, desk: Desk
) -> None:
    launch = desk.launch("sh", "-c", "while :; do echo x; sleep 0.01; done")
    said = launch.directory / keeper.OUTPUT

    def size() -> int:
        return said.stat().st_size

    worker = await begin(runner, launch)
    await eventually(size)
    for _ in range(2):
        await worker.freeze()
    before = size()
    await asyncio.sleep(0.2)  # it would write in this time
    assert size() == before
    for _ in range(2):
        await worker.thaw()
    await eventually(lambda: size() > before)
    for _ in range(20):  # in quick succession, while it forks
        await worker.freeze()
        assert not [
            pid for pid in processes_in(launch.namespace) if may_run(pid)
        ]
        before = size()
        await worker.thaw()
    await eventually(lambda: size() > before)
    await worker.freeze()
    await worker.stop(grace_s=0)  # also one that is frozen
    await end_of(worker)
    await worker.dispose()


@pytest.mark.any_kernel
async def test_a_worker_has_no_rights_and_keeps_to_its_limits(
    runner: Runner, desk: Desk
) -> None:
    if runner.name == "process" and {"memory", "pids"} - set(
        Cgroups().controllers
    ):
        pytest.skip("this machine lets nobody make cgroups")
    near = str(min(os.sched_getaffinity(0)))
    launch = replace(desk.launch("python3", "-u", "-c", GREEDY), cpus=near)
    worker = await begin(runner, launch)
    ended = await end_of(worker)
    await worker.dispose()
    lines = ended.last_lines
    assert lines[0].split() == [
        "CapEff:",
        "0000000000000000",
        "NoNewPrivs:",
        "1",
    ]
    assert lines[1] == f"cpus {near}"
    assert 0 < int(lines[2].removeprefix("forked ")) < LIMITS.processes
    assert str(2**29) not in lines, "it had the memory that it wanted"
    assert (ended.exit_code, ended.out_of_memory) == (137, True)
    assert "it exceeded its memory limit" in ended.in_words


async def test_a_program_that_is_not_there_is_said(
    runner: Runner, desk: Desk
) -> None:
    worker = await begin(runner, desk.launch("/no/such/program"))
    ended = await end_of(worker)
    assert ended.exit_code == 127
    assert any("/no/such/program" in line for line in ended.last_lines)
    await worker.dispose()


@pytest.mark.root
@pytest.mark.any_kernel
async def test_workers_of_one_user_have_as_many_processes_each(
    desk: Desk,
) -> None:
    if "pids" not in Cgroups().controllers:
        pytest.skip("this machine lets nobody make cgroups")
    runner = make_runner(
        "process", BackendOptions("test", "server1", worker_user="nobody")
    )
    await runner.open()
    many = f"for _ in $(seq {LIMITS.processes - 8}); do sleep 600 & done; wait"
    launches = [desk.launch("sh", "-c", many) for _ in range(2)]
    workers = [await begin(runner, launch) for launch in launches]
    inside = [launch.namespace for launch in launches]
    await eventually(
        lambda: (
            min(len(processes_in(each)) for each in inside)
            > LIMITS.processes - 8
        )
    )
    for worker in workers:
        await worker.stop(grace_s=0)
        await end_of(worker)
        await worker.dispose()


@pytest.mark.root
async def test_a_worker_is_of_the_user_that_was_named(desk: Desk) -> None:
    runner = make_runner(
        "process", BackendOptions("test", "server1", worker_user="nobody")
    )
    await runner.open()
    worker = await begin(
        runner, desk.launch("sh", "-c", "id -un; id -G; echo $HOME")
    )
    lines = (await end_of(worker)).last_lines
    assert (lines[0], len(lines[1].split())) == ("nobody", 1)
    assert lines[2] == str(desk.folder / "workers" / "1")
    await worker.dispose()


class Plugged(Runner):
    """A back end as a package may bring it."""

    name = "plugged"

    def __init__(self, options: BackendOptions) -> None:
        self.options = options

    async def open(self) -> None:
        return None

    async def launch(self, launch: WorkerLaunch) -> RunningWorker:
        raise BadRequest("it runs nothing")

    async def adopt(
        self, handle: WorkerHandle, namespace: str, directory: Path
    ) -> RunningWorker:
        raise BadRequest("it ran nothing")


def test_a_package_may_bring_a_back_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    points = [
        EntryPoint("plugged", f"{__name__}:Plugged", run.WORKER_BACKENDS),
        EntryPoint("broken", "no.such.module:Runner", run.WORKER_BACKENDS),
        # Ours go before it.
        EntryPoint("docker", f"{__name__}:Plugged", run.WORKER_BACKENDS),
    ]
    monkeypatch.setattr(run, "entry_points", lambda group: points)
    options = BackendOptions("lab", "server1", image="mine")
    found = make_runner("plugged", options)
    assert isinstance(found, Plugged)
    assert found.options.image == "mine"
    assert make_runner("docker", options).name == "docker"
    with pytest.raises(
        BadInput, match=r"broken: it is installed as no\.such\.module:Runner"
    ):
        make_runner("broken", options)
    with pytest.raises(BadInput, match="'auto', 'broken', 'plugged'"):
        make_runner("podman", options)
