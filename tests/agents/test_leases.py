"""Leases: on record before anything moves, one holder at a time."""

from dataclasses import replace
from pathlib import Path

import pytest

from patchlight.agents.errors import Conflict
from patchlight.agents.leases import Holders, Lease, LeaseBook
from patchlight.agents.nics import NicState
from patchlight.agents.worker_folder import LastReport, final_report
from patchlight.agents.workers.contract import ExitInfo, WorkerHandle
from patchlight.testbed.linux.rate_limits import SavedLimit
from patchlight.testbed.worker_api import WorkerSpec, WorkerState


def lease(worker: str) -> Lease:
    spec = WorkerSpec.model_validate(
        {
            "id": worker,
            "job": "j",
            "rank": 0,
            "gpu": "gpu0",
            "nic": "nic0",
            "ring": [{"rank": 0, "address": "10.0.0.1", "port": 29500}],
            "neighbours": [{"address": "10.0.0.2", "mac": "02:00:00:00:00:02"}],
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
    return Lease(spec, f"pl.lab.server1.w-{worker}", state, "process")


def test_a_lease_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    book = LeaseBook(tmp_path / "leases")
    first = lease("a")
    second = replace(lease("b"), handle=WorkerHandle(pid=17, started=12345))
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
    assert "put that back by hand" in caplog.text
    assert (tmp_path / "a.unreadable").exists()
    caplog.clear()
    assert book.read() == [lease("b")]
    assert caplog.text == ""


def test_a_gpu_and_its_nic_have_one_holder() -> None:
    holders = Holders()
    holders.claim("a", "gpu0", "nic0")
    with pytest.raises(Conflict, match="NIC nic0 is leased to worker a"):
        holders.claim("b", "gpu1", "nic0")
    with pytest.raises(Conflict, match="GPU gpu0 is leased to worker a"):
        holders.claim("b", "gpu0", "nic1")
    assert (holders.gpu("gpu0"), holders.nic("nic0")) == ("a", "a")
    assert (holders.gpu("gpu1"), holders.nic("nic1")) == (None, None)
    holders.claim("c", None, "nic1")
    holders.release("a")
    holders.claim("b", "gpu0", "nic0")
    assert holders.nic("nic1") == "c"


HALFWAY = LastReport(WorkerState.RUNNING, 2)


@pytest.mark.parametrize(
    ("last", "code", "stopping", "state", "message"),
    [
        (LastReport(WorkerState.DONE, 5), 0, False, WorkerState.DONE, ""),
        (LastReport(WorkerState.DONE, 5), 0, True, WorkerState.DONE, ""),
        (LastReport(WorkerState.STOPPED, 2, "told"), 0, False, WorkerState.STOPPED, "told"),
        (HALFWAY, -9, True, WorkerState.STOPPED, "on request"),
        (HALFWAY, -9, False, WorkerState.FAILED, "killed by signal 9"),
        (HALFWAY, 0, False, WorkerState.FAILED, "exit code 0 while running"),
        (LastReport(WorkerState.FAILED, 2, "lost"), 1, False, WorkerState.FAILED, "lost"),
        (LastReport(WorkerState.DONE, 5), 1, False, WorkerState.FAILED, "exit code 1"),
    ],
)
def test_what_became_of_a_worker(
    last: LastReport, code: int, stopping: bool, state: WorkerState, message: str
) -> None:
    result = final_report(last, ExitInfo(code), stopping)
    assert result.state is state
    assert message in result.message
    assert result.iterations_done == last.iterations_done
