"""Folders that users ship with their jobs: whose they are, and how long they stay."""

import hashlib
import json
from base64 import b64encode
from dataclasses import replace
from pathlib import Path

import pytest

from patchlight.controller.jobs.workdirs import Workdirs
from patchlight.testbed.errors import BadInput
from patchlight.testbed.jobs import JobSpec, JobState, JobStatus
from patchlight.testbed.wire.worker_api import WorkdirPart
from tests.support.job_api import JobCommand
from tests.support.job_cluster import Cluster, simulated

ARCHIVE = bytes(range(256)) * 4096
DIGEST = hashlib.sha256(ARCHIVE).hexdigest()
PROGRAM = JobSpec("own", trainer="command", command=("true",), workers=1)


def shipped(store: Workdirs, user: str) -> None:
    offset = 0
    while offset < len(ARCHIVE):
        part = WorkdirPart.of(ARCHIVE, offset)
        offset = store.add(user, DIGEST, part, [])


def test_a_user_reaches_what_they_shipped_and_nobody_else_does(
    tmp_path: Path,
) -> None:
    store = Workdirs(tmp_path)
    first = WorkdirPart.of(ARCHIVE, 0)
    assert len(ARCHIVE) > store.add("eva", DIGEST, first, []) > 0
    assert not store.has("eva", DIGEST)
    # A part that is repeated, as after a lost answer, counts once.
    assert store.add("eva", DIGEST, first, []) == len(ARCHIVE) // 2
    shipped(store, "eva")
    assert store.read("eva", DIGEST) == ARCHIVE
    assert not store.has("tom", DIGEST)


def test_other_bytes_than_announced_are_refused(tmp_path: Path) -> None:
    store = Workdirs(tmp_path)
    data = b64encode(b"other").decode()
    part = WorkdirPart(
        offset=0,
        size=5,
        data=data,
    )
    with pytest.raises(BadInput, match="as it was sent"):
        store.add("eva", DIGEST, part, [])
    assert not list(tmp_path.iterdir())
    for data in ("b", "b3RoZX=", "b3Rs=ZXI", "\n"):
        with pytest.raises(ValueError, match="pattern"):
            WorkdirPart(
                offset=0,
                size=5,
                data=data,
            )


def test_it_stays_until_the_last_of_its_jobs_has_ended(
    tmp_path: Path,
) -> None:
    store = Workdirs(tmp_path)
    shipped(store, "eva")
    spec = replace(PROGRAM, workdir=DIGEST)
    one, other = (
        JobStatus(
            name,
            spec,
            JobState.DONE,
            by="eva",
        )
        for name in ("own-1", "own-2")
    )
    store.forget([one], [other])
    assert store.has("eva", DIGEST)
    store.forget([replace(one, by="tom")], [])
    assert store.has("eva", DIGEST)
    store.forget([one, other], [])
    assert not store.has("eva", DIGEST)


@simulated()
async def test_a_folder_is_shipped_and_a_job_without_it_is_refused(
    cluster: Cluster, tmp_path: Path
) -> None:
    job = JobCommand(cluster)
    (tmp_path / "train.py").write_text("print(1)")
    words = ("own", "--workers", "1", "--workdir", str(tmp_path))
    row = json.loads(
        await job("submit", *words, "--json", "--", "python3", "train.py")
    )
    digest = row["spec"]["workdir"]
    store = cluster.table.workdirs
    assert store is not None
    assert store.has(row["by"], digest)
    await job("stop", row["id"])
    assert not store.has(row["by"], digest)
    said = await job("restart", row["id"], code=2)
    assert "submit it with --workdir again" in said
