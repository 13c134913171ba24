"""Stores the working directories that users ship with jobs, until the jobs have ended."""

import hashlib
import time
from base64 import b64decode
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.jobs import JobStatus
from patchlight.testbed.wire.worker_api import WorkdirPart

_MOST_BYTES = 4 * 2**30
_UNUSED_S = 3600.0  # between an upload and the job's submission


class Workdirs:
    """ZIP archives by user and SHA-256 digest: users reach only what they shipped themselves."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _path(self, user: str, digest: str) -> Path:
        name = hashlib.sha256(f"{user}\0{digest}".encode()).hexdigest()
        return self._folder / name

    def has(self, user: str, digest: str) -> bool:
        """Whether the user has shipped it, and it is still here."""
        return self._path(user, digest).exists()

    def read(self, user: str, digest: str) -> bytes:
        """The archive; ``PatchlightError`` if it is gone."""
        try:
            return self._path(user, digest).read_bytes()
        except OSError as error:
            raise PatchlightError(
                f"reading the job's working directory: {error.strerror}",
                hint="submit the job with --workdir again",
            ) from error

    def add(
        self,
        user: str,
        digest: str,
        part: WorkdirPart,
        live: Iterable[JobStatus],
    ) -> int:
        """Append a part of an archive; returns the offset to continue at."""
        whole = self._path(user, digest)
        if whole.exists():
            whole.touch()
            return part.size
        self._folder.mkdir(
            mode=0o700,
            parents=True,
            exist_ok=True,
        )
        begun = whole.with_suffix(".part")
        had = begun.stat().st_size if begun.exists() else 0
        if part.offset != had:
            return had
        if not had:
            self._forget_unused(live)
        data = b64decode(part.data)
        with begun.open("ab") as file:
            file.write(data)
        had += len(data)
        if had >= part.size:
            found = hashlib.sha256(begun.read_bytes()).hexdigest()
            if had > part.size or found != digest:
                begun.unlink()
                raise BadInput(
                    "the working directory did not arrive as it was sent",
                    hint="submit the job again",
                )
            begun.rename(whole)
        return had

    def _forget_unused(self, live: Iterable[JobStatus]) -> None:
        used = {self._of(status) for status in live}
        left = 0
        for path in self._folder.iterdir():
            found = path.stat()
            if path not in used and time.time() - found.st_mtime > _UNUSED_S:
                path.unlink()
            else:
                left += found.st_size
        if left > _MOST_BYTES:
            raise PatchlightError(
                f"the controller has {left >> 20} MiB of jobs' working directories, the most it "
                "keeps",
                hint="wait until some of those jobs have ended",
            )

    def _of(self, status: JobStatus) -> Path | None:
        digest = status.spec.workdir
        return self._path(status.by, digest) if digest else None

    def forget(
        self, ended: Iterable[JobStatus], live: Iterable[JobStatus]
    ) -> None:
        """Delete those of jobs that have ended, unless a live job has the same."""
        used = {self._of(status) for status in live}
        for path in {self._of(status) for status in ended} - used:
            if path is not None:
                with suppress(OSError):  # an unused one goes later
                    path.unlink()
