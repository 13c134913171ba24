"""What the workers of jobs printed, kept after they are gone: the end of it, in files."""

import asyncio
import contextlib
import logging
import shutil
from pathlib import Path

from patchlight.controller.hosts.agent_client import AgentClient, NotOnServer
from patchlight.controller.jobs.running_job import RunningJob
from patchlight.testbed.wire.worker_api import LogPart

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
        asked = [w for w in job.workers if not w.is_silent]
        fetches = (self.fetch(w.agent, w.spec.id, job.id, w.spec.rank) for w in asked)
        answers = await asyncio.gather(*fetches, return_exceptions=True)
        # Some may never have been made.
        if lost := [each for each in answers if each and not isinstance(each, NotOnServer)]:
            why = str(lost[0]) or f"no answer within {_PATIENCE_S:g} s"
            _log.warning(
                "of job %s the output of %d workers is not kept: %s", job.id, len(lost), why
            )

    async def fetch(self, agent: AgentClient, worker: str, job_id: str, rank: int) -> None:
        """Keep what one worker printed; ``PatchlightError`` or ``OSError`` if that fails."""
        async with asyncio.timeout(_PATIENCE_S):
            end = (await agent.log(worker, _BEYOND, 4)).next
            first = max(0, end - MOST_KEPT_BYTES)
            part = await agent.log(worker, first, MOST_KEPT_BYTES)
        if part.text:
            await asyncio.to_thread(self._write, job_id, rank, part)

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
