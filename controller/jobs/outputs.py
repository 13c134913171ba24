"""What the workers of jobs printed, kept after they are gone: the end of it, in files."""

import asyncio
import contextlib
import logging
import shutil
from pathlib import Path

from patchlight.controller.jobs.rank import Worker
from patchlight.controller.jobs.running_job import RunningJob
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.worker_api import LogPart

_log = logging.getLogger(__name__)

MOST_KEPT_BYTES = 1 << 20
"""Of each worker; of a longer output the end is kept."""

_PATIENCE_S = 5.0
_BEYOND = 2**62  # After so many bytes there is nothing, and the answer says where the end is.


class JobOutputs:
    """A folder for each job, and in it a file for each worker of its latest attempt.

    A file is called RANK.OFFSET, after the number of the first byte that is kept.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def keep(self, job: RunningJob) -> None:
        """Fetch what the workers of a job printed, as long as they are there.

        An agent that does not answer keeps nobody waiting for long, and is no error.
        """
        await asyncio.gather(*(self._fetch(job.id, worker) for worker in job.workers))

    async def _fetch(self, job_id: str, worker: Worker) -> None:
        if worker.is_silent:
            return
        try:
            async with asyncio.timeout(_PATIENCE_S):
                end = (await worker.agent.log(worker.spec.id, _BEYOND, 4)).next
                first = max(0, end - MOST_KEPT_BYTES)
                part = await worker.agent.log(worker.spec.id, first, MOST_KEPT_BYTES)
            if part.text:
                await asyncio.to_thread(self._write, job_id, worker.spec.rank, part)
        except (PatchlightError, TimeoutError, OSError) as error:
            _log.warning("the output of worker %s is not kept: %s", worker.spec.id, error)

    def _write(self, job_id: str, rank: int, part: LogPart) -> None:
        folder = self._of(job_id)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        before = self._file(job_id, rank)
        file = folder / f"{rank}.{part.offset}"
        file.write_bytes(part.text.encode("utf-8", "replace"))
        if before is not None and before != file:
            before.unlink()

    def _file(self, job_id: str, rank: int) -> Path | None:
        return next(self._of(job_id).glob(f"{rank}.*"), None)

    def _of(self, job_id: str) -> Path:
        return self._folder / job_id

    def read(self, job_id: str, rank: int, after: int, limit: int) -> LogPart | None:
        """What a worker printed after byte ``after``, as its agent gave it; ``None``: not kept."""
        file = self._file(job_id, rank)
        if file is None:
            return None
        first = int(file.suffix[1:])
        offset = max(after, first)
        with file.open("rb") as opened:
            opened.seek(offset - first)
            data = opened.read(limit)
        # A character that is cut in two comes whole with the next part.
        text = data.decode("utf-8", "ignore")
        whole = len(text.encode()) or len(data)
        if offset > after:
            text = f"[{offset - after} bytes of output are not kept any more]\n{text}"
        return LogPart(offset=offset, text=text, next=offset + whole)

    def forget(self, job_id: str) -> None:
        """Remove what is kept of a job."""
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._of(job_id))
