"""The world itself: time that jumps, processes that die without a word, streams that can be cut."""

import asyncio
import time
from pathlib import Path

import pytest

from tests.simulation.world import Deadlock, Process, World


def test_an_hour_takes_no_time_and_code_sees_it_pass(tmp_path: Path) -> None:
    world = World(1, tmp_path)
    real = time.perf_counter()
    with world.entered():
        began = time.monotonic()
        wall = time.time()
        world.run(asyncio.sleep(3600))
        assert time.monotonic() - began == pytest.approx(3600)
        assert time.time() - wall == pytest.approx(3600)
    assert time.perf_counter() - real < 60


def test_a_killed_process_runs_no_further_code_not_even_finally(
    tmp_path: Path,
) -> None:
    said = []

    async def work() -> None:
        try:
            said.append("begun")
            await asyncio.sleep(10)
        finally:
            said.append("finally")

    world = World(1, tmp_path)
    with world.entered():
        process = Process(world, "one")
        process.start(work())
        world.run(asyncio.sleep(1))
        process.kill()
        world.run(asyncio.sleep(100))
        assert said == ["begun"]


def test_a_process_dies_before_the_step_that_was_drawn(tmp_path: Path) -> None:
    steps = []

    async def work() -> None:
        for step in range(100):
            steps.append(step)
            await asyncio.sleep(1)

    world = World(1, tmp_path)
    with world.entered():
        process = Process(world, "one")
        process.dies_at = 5
        process.start(work())
        world.run(asyncio.sleep(50))
    assert not process.alive
    assert len(steps) < 5


def _echo(world: World) -> tuple[Process, Process]:
    async def serve() -> None:
        async def converse(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            while line := await reader.readline():
                writer.write(line)

        await asyncio.start_server(converse, "10.0.0.1", 80)

    server = Process(world, "server")
    client = Process(world, "client")
    server.start(serve())
    return server, client


def test_a_cut_link_holds_data_back_and_a_dead_peer_resets(
    tmp_path: Path,
) -> None:
    async def talk() -> str:
        reader, writer = await asyncio.open_connection("10.0.0.1", 80)
        writer.write(b"one\n")
        assert await reader.readline() == b"one\n"
        world.network.cut("server", "client")
        writer.write(b"two\n")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60):
                await reader.readline()
        world.network.heal()
        assert await reader.readline() == b"two\n"
        server.kill()
        with pytest.raises(ConnectionResetError):
            await reader.readline()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("10.0.0.1", 80)
        return "done"

    world = World(1, tmp_path)
    with world.entered():
        server, client = _echo(world)
        world.run(asyncio.sleep(1))
        assert world.run(client.start(talk())) == "done"


def test_bytes_of_a_stream_never_overtake_each_other(tmp_path: Path) -> None:
    async def talk() -> None:
        reader, writer = await asyncio.open_connection("10.0.0.1", 80)
        sent = [b"%d\n" % number for number in range(100)]
        for line in sent[:50]:
            writer.write(line)
        world.network.cut("client", "server")
        for line in sent[50:]:
            writer.write(line)
        world.network.heal()
        assert [await reader.readline() for _ in sent] == sent

    world = World(1, tmp_path)
    with world.entered():
        _, client = _echo(world)
        world.run(asyncio.sleep(1))
        world.run(client.start(talk()))


def test_a_seed_decides_all_delays(tmp_path: Path) -> None:
    def run(seed: int) -> float:
        async def talk() -> float:
            reader, writer = await asyncio.open_connection("10.0.0.1", 80)
            for _ in range(50):
                writer.write(b"x\n")
                await reader.readline()
                await asyncio.to_thread(int)
            return time.monotonic()

        world = World(seed, tmp_path)
        with world.entered():
            _, client = _echo(world)
            world.run(asyncio.sleep(1))
            return world.run(client.start(talk()))

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_waiting_for_what_nobody_will_do_is_found(tmp_path: Path) -> None:
    async def wait() -> None:
        await asyncio.get_running_loop().create_future()

    world = World(1, tmp_path)
    with world.entered(), pytest.raises(Deadlock):
        world.run(wait())
