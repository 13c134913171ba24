"""Disks: what a power cut may take, what it may not, and disks that are full or fail."""

import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from patchlight.controller.storage.database import Database, JournalError
from tests.simulation.disk import Died, Disk
from tests.simulation.world import Process, World


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder whose real syncing takes no time."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def run_in(
    disk: Disk,
    work: Callable[[Process], None],
    dies_at_write: int | None = None,
) -> None:
    """Run this in a process of the disk's machine, which then dies, if not before."""
    process = Process(disk.world, "one")
    process.disk = disk
    process.dies_at_write = dies_at_write
    process.at_end.append(lambda: disk.close(process))
    try:
        process.context.run(work, process)
    except Died:
        assert not process.alive
    process.kill()


def numbers(path: Path) -> list[int]:
    database = Database(path)
    found = [
        number
        for (number,) in database.rows(
            "SELECT number FROM events ORDER BY number"
        )
    ]
    database.close()
    return found


def test_committed_rows_survive_power_cuts_and_others_need_not(
    memory: Path,
) -> None:
    after = set()
    for seed in range(16):
        world = World(seed, memory / str(seed))
        disk = Disk(world, world.folder)
        written = list[int]()
        world.folder.mkdir()

        def work(
            _: Process, folder: Path = world.folder, done: list[int] = written
        ) -> None:
            database = Database(folder / "controller.db")
            for number in range(1, 400):
                database.write(
                    "INSERT INTO events (at, kind, record) VALUES (0, 'x', ?)",
                    "x" * 9000,
                )
                done.append(number)

        with world.entered():
            run_in(disk, work, dies_at_write=5 + 24 * seed)
            disk.cut_power()
            found = numbers(world.folder / "controller.db")
        assert found in (written, [*written, len(written) + 1])
        after.add(len(found) - len(written))
    assert after == {0, 1}


def test_files_that_were_not_synced_may_be_lost(memory: Path) -> None:
    left = set()
    for seed in range(20):
        world = World(seed, memory / str(seed))
        disk = Disk(world, world.folder)
        world.folder.mkdir()

        def work(_: Process, folder: Path = world.folder) -> None:
            with (folder / "synced").open("w") as file:
                file.write("old")
                file.flush()
                os.fsync(file.fileno())
            (folder / "fresh").write_text("new")
            (folder / "fresh").replace(folder / "synced")

        with world.entered():
            run_in(disk, work)
            disk.cut_power()
            left.add((world.folder / "synced").read_text())
    assert left == {"old", "new", "", "\0\0\0"}


@pytest.mark.parametrize("trouble", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_writes_fail_on_a_disk_in_trouble_and_succeed_afterwards(
    memory: Path, trouble: int
) -> None:
    world = World(1, memory)
    disk = Disk(world, memory)

    def work(_: Process) -> None:
        database = Database(memory / "controller.db")
        add = "INSERT INTO events (at, kind, record) VALUES (0, 'x', ?)"
        database.write(add, "first")
        disk.trouble = trouble
        with pytest.raises(JournalError) as failed:
            database.write(add, "second" * 5000)
        assert failed.value.may_pass
        with pytest.raises(OSError, match=rf"Errno {trouble}\b"):
            (memory / "file").write_text("x" * 100_000)
        disk.trouble = 0
        database.write(add, "third")
        (memory / "file").write_text("x")

    with world.entered():
        run_in(disk, work)
        assert len(numbers(memory / "controller.db")) == 2
