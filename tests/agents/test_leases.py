"""Leases: on record before anything moves, and what is said of a worker at its end."""

from dataclasses import replace
from pathlib import Path

import pytest

from patchlight.agents.leases import Ended, Lease, LeaseBook
from patchlight.agents.nics.state import NicState
from patchlight.agents.workers.contract import ExitInfo, WorkerHandle
from patchlight.agents.workers.keeper import (
    ON_REQUEST,
    Ending,
    LastReport,
    final_report,
)
from patchlight.testbed.linux.rate_limits import SavedLimit
from patchlight.testbed.wire.worker_api import WorkerSpec, WorkerState


def lease(worker: str) -> Lease:
    spec = WorkerSpec.model_validate(
        {
            "id": worker,
            "job": "j",
            "rank": 0,
            "gpu": "gpu0",
            "nic": "nic0",
            "ring": [{"rank": 0, "address": "10.0.0.1", "port": 29500}],
            "neighbours": [
                {"address": "10.0.0.2", "mac": "02:00:00:00:00:02"}
            ],
            "task": {"iterations": 1, "gradient_bytes": 4, "compute_s": 0.5},
        }
    )
    state = NicState(
        interface="nic0",
        mac="02:00:00:00:00:01",
        mtu=9000,
        up=True,
        addresses=(("10.0.0.1", 24),),
        neighbours=(("10.0.0.2", "02:00:00:00:00:02"),),
        routes=({"dst": "0.0.0.0/0", "table": 254},),
        shaping=SavedLimit("0400017f"),
        tx_checksum=False,
        sysctls={"arp_ignore": "1"},
    )
    return Lease(spec, f"pl.lab.server1.w-{worker}", state, "process", 1.5)


def test_a_lease_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    book = LeaseBook(tmp_path / "leases")
    first = lease("a")
    ended = Ended(
        WorkerState.FAILED, 3, "lost rank 1", 1, ("the", "end"), 2, lost_rank=1
    )
    second = replace(
        lease("b"),
        handle=WorkerHandle(pid=17, started=12345),
        ended=ended,
        returned=True,
    )
    for one in (second, first):
        book.write(one)
    assert LeaseBook(tmp_path / "leases").read() == [first, second]
    book.write(replace(first, handle=WorkerHandle(container="abc")))
    assert book.read()[0].handle == WorkerHandle(container="abc")
    book.end("a")
    book.end("a")
    assert book.read() == [second]


@pytest.mark.parametrize("text", ['{"spec": 1}', "", "[" * 100_000, "\udcff"])
def test_a_lease_that_cannot_be_read_is_set_aside_and_the_others_count(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    book = LeaseBook(tmp_path)
    book.write(lease("b"))
    (tmp_path / "a.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert book.read() == [lease("b")]
    assert "restore its NIC by hand" in caplog.text
    assert (tmp_path / "a.unreadable").exists()
    caplog.clear()
    assert book.read() == [lease("b")]
    assert caplog.text == ""


HALFWAY = LastReport(WorkerState.RUNNING, 2)
GONE = Ending(WorkerState.FAILED, "its NIC is gone")


@pytest.mark.parametrize(
    ("last", "code", "ending", "state", "message"),
    [
        (LastReport(WorkerState.DONE, 5), 0, None, WorkerState.DONE, ""),
        (LastReport(WorkerState.DONE, 5), 0, ON_REQUEST, WorkerState.DONE, ""),
        (
            LastReport(WorkerState.STOPPED, 2, "told"),
            0,
            None,
            WorkerState.STOPPED,
            "told",
        ),
        (HALFWAY, 137, ON_REQUEST, WorkerState.STOPPED, "on request"),
        (HALFWAY, 137, GONE, WorkerState.FAILED, "its NIC is gone"),
        (HALFWAY, 137, None, WorkerState.FAILED, "killed by signal 9"),
        (HALFWAY, 0, None, WorkerState.FAILED, "exit code 0 while running"),
        (
            LastReport(WorkerState.FAILED, 2, "lost"),
            1,
            None,
            WorkerState.FAILED,
            "lost",
        ),
        (
            LastReport(WorkerState.DONE, 5),
            1,
            None,
            WorkerState.FAILED,
            "exit code 1",
        ),
    ],
)
def test_what_became_of_a_worker(
    last: LastReport,
    code: int,
    ending: Ending | None,
    state: WorkerState,
    message: str,
) -> None:
    result = final_report(last, ExitInfo(code), ending)
    assert result.state is state
    assert message in result.message
    assert result.iterations_done == last.iterations_done


@pytest.mark.parametrize(
    ("last", "code", "state", "message"),
    [
        (LastReport(), 0, WorkerState.DONE, ""),
        (HALFWAY, 0, WorkerState.DONE, ""),
        (
            LastReport(WorkerState.STOPPED, 2, "told"),
            0,
            WorkerState.STOPPED,
            "told",
        ),
        (
            LastReport(),
            7,
            WorkerState.FAILED,
            "the worker ended with exit code 7",
        ),
        (
            LastReport(),
            139,
            WorkerState.FAILED,
            "the worker ended with exit code 139 (killed by signal 11)",
        ),
        (
            LastReport(),
            127,
            WorkerState.FAILED,
            "the worker ended with exit code 127: its program is not on this server, or workers "
            "may not read it; 'job submit --workdir DIR' ships your files, and what all jobs need "
            "belongs in /srv or /opt",
        ),
        (
            LastReport(WorkerState.FAILED, 2, "no data"),
            1,
            WorkerState.FAILED,
            "no data",
        ),
    ],
)
def test_what_became_of_a_program_that_is_not_ours(
    last: LastReport, code: int, state: WorkerState, message: str
) -> None:
    result = final_report(last, ExitInfo(code), foreign=True)
    assert (result.state, result.message) == (state, message)
