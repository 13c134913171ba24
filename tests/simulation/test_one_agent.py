"""One agent in a world: calls that are repeated, because the answer to the first one is late."""

import asyncio
import errno
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from patchlight.agents.errors import AgentError, Conflict
from patchlight.agents.service import AgentService
from patchlight.testbed.wire.worker_api import (
    SyntheticTask,
    WorkerSpec,
    WorkerState,
    WorkerStatus,
)
from tests.simulation.draw_lab import draw_lab
from tests.simulation.lab import SimulatedLab
from tests.simulation.servers import Machine
from tests.simulation.world import World


def play(
    folder: Path,
    *parts: Callable[[Machine, AgentService], Coroutine[Any, Any, None]],
) -> None:
    """Run each part in the process of an agent, which is then killed."""
    world = World(1, folder)

    async def begin() -> None:
        machine = next(
            iter(SimulatedLab(world, draw_lab(1)).machines.values())
        )
        for part in parts:
            machine.start()
            await asyncio.sleep(60)
            assert machine.service is not None
            await machine.agent.start(part(machine, machine.service))
            machine.agent.kill()

    with world.entered():
        world.run(begin())


def spec_of(machine: Machine, name: str) -> WorkerSpec:
    nic = machine.server.nics[0]
    gpu = machine.server.gpus[0]
    member = {"rank": 0, "address": str(nic.address), "port": 7000}
    return WorkerSpec.model_validate(
        {
            "id": name,
            "job": name,
            "rank": 0,
            "gpu": gpu.name,
            "nic": nic.name,
            "ring": [member],
            "task": SyntheticTask(
                gradient_bytes=4, iterations=1, compute_s=0.1
            ).model_dump(),
        }
    )


def test_a_worker_is_made_again_at_once_after_its_launch_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def part(machine: Machine, service: AgentService) -> None:
        spec = spec_of(machine, "w-0")
        interface = (
            machine.server.nics[0].interface or machine.server.nics[0].name
        )
        machine.in_namespace[interface] = "another"
        again: list[asyncio.Task[tuple[WorkerStatus, bool]]] = []
        end = service.site.book.end

        def end_and_ask(worker: str) -> None:
            # Another client's request, which comes in the moment of the failure.
            end(worker)
            machine.in_namespace.pop(interface, None)
            again.append(asyncio.create_task(service.create(spec)))

        with monkeypatch.context() as patch:
            patch.setattr(service.site.book, "end", end_and_ask)
            with pytest.raises(AgentError, match="is not here"):
                await service.create(spec)
        assert (await again[0])[1], "it is made, not refused with the first"
        assert (await service.delete("w-0")).state is WorkerState.STOPPED
        assert service.workers() == []

    play(tmp_path, part)


def test_repeated_calls_wait_for_a_gpu_no_longer_than_the_first(
    tmp_path: Path,
) -> None:
    async def part(machine: Machine, service: AgentService) -> None:
        await service.create(spec_of(machine, "old"))
        spec = spec_of(machine, "new")
        began = time.monotonic()
        async with service.known("old").lock:
            ending = asyncio.create_task(service.end("old"))
            calls = []
            for _ in range(4):
                await asyncio.sleep(25)
                calls.append(asyncio.create_task(service.create(spec)))
            for call in calls:
                with pytest.raises(Conflict, match="leased to worker old"):
                    await call
            assert time.monotonic() - began == pytest.approx(145, abs=1)
        await ending
        assert (await service.create(spec))[1]

    play(tmp_path, part)


def test_a_launch_whose_path_socket_fails_leaves_no_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def part(machine: Machine, service: AgentService) -> None:
        async def fails(spec: WorkerSpec, folder: Path) -> None:
            assert machine.workers, "it was launched"
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(service.paths, "serve", fails)
            with pytest.raises(
                AgentError,
                match="launching worker w-0: No space left on device",
            ):
                await service.create(spec_of(machine, "w-0"))
        assert all(
            worker.exit_code.done() for worker in machine.workers.values()
        )
        assert service.workers() == []
        assert (await service.create(spec_of(machine, "w-1")))[1]

    play(tmp_path, part)


@pytest.mark.parametrize("trouble", [errno.EIO, errno.EROFS, errno.ENOSPC])
def test_a_disk_in_trouble_loses_no_lease(
    tmp_path: Path, trouble: int
) -> None:
    async def part(machine: Machine, service: AgentService) -> None:
        await service.create(spec_of(machine, "old"))
        machine.disk.trouble = trouble
        if trouble == errno.EIO:
            with pytest.raises(AgentError, match="reading the lease"):
                service.site.book.read()
        if trouble == errno.ENOSPC:
            assert (await service.delete("old")).state is WorkerState.STOPPED
        else:
            with pytest.raises(
                AgentError, match="removing the lease of worker old"
            ):
                await service.delete("old")
        with pytest.raises(
            AgentError, match="writing the lease of worker new"
        ):
            await service.create(spec_of(machine, "new"))
        assert service.leases() == {"gpu": 0, "nic": 0}
        machine.disk.trouble = 0
        await service.delete("old")
        assert service.workers() == []
        assert service.site.book.read() == []

    play(tmp_path, part)


def test_the_next_agent_removes_what_a_crash_or_a_power_cut_left(
    tmp_path: Path,
) -> None:
    async def leave(machine: Machine, service: AgentService) -> None:
        await service.create(spec_of(machine, "known"))
        (machine.folder / "leases/unread.unreadable").write_text("{")
        (machine.folder / "leases/crashed.new").write_text("{")
        for name in ("crashed", "forgotten", "unread"):
            folder = machine.folder / "workers" / name
            folder.mkdir()
            (folder / "state.json").write_text("{}")

    async def look(machine: Machine, service: AgentService) -> None:
        assert [worker.id for worker in service.workers()] == ["known"]
        leases = {path.name for path in (machine.folder / "leases").iterdir()}
        assert leases == {"known.json", "unread.unreadable"}
        assert {
            path.name for path in (machine.folder / "workers").iterdir()
        } == {"known", "unread"}

    play(tmp_path, leave, look)
