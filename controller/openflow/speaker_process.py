"""Keeps the speaker process running: starts it, reads its log, starts it again if it dies."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from patchlight.testbed.errors import PatchlightError

LOG = logging.getLogger("patchlight.speaker")

_READY_WITHIN_S = 30.0
_STOPS_WITHIN_S = 5.0
_LINES_KEPT = 20


class SpeakerFailed(PatchlightError):
    """The speaker process could not be started, or ended."""


@dataclass(frozen=True, slots=True)
class SpeakerOptions:
    """How to start the speaker.

    ``listen`` is where switches connect to, in the network namespace ``netns`` (a path) if
    given; ``datapath_ids`` are the lab's packet switches; ``engine`` is ``ryu``, ``os-ken``
    or ``None`` for the first that is installed; ``apps`` are users' applications; ``counters``
    has the switches' counters read, and told, once a second.
    """

    socket: Path
    datapath_ids: tuple[int, ...]
    listen: str = "127.0.0.1:6653"
    netns: str | None = None
    engine: str | None = None
    apps: tuple[str, ...] = ()
    counters: bool = True

    def command(self) -> list[str]:
        """The command line that starts the speaker."""
        words = [sys.executable, "-m", "patchlight.controller.openflow.speaker", "--until-eof"]
        words += ["--socket", str(self.socket), "--listen", self.listen]
        words += ["--lab-datapaths", ",".join(map(str, self.datapath_ids))]
        if self.netns:
            words += ["--netns", self.netns]
        if self.engine:
            words += ["--engine", self.engine]
        if not self.counters:
            words.append("--no-counters")
        for app in self.apps:
            words += ["--ryu-app", app]
        return words


class SpeakerProcess:
    """One life of the speaker process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._lines: deque[str] = deque(maxlen=_LINES_KEPT)
        self._log = asyncio.create_task(self._read_log())

    @classmethod
    async def start(cls, command: Sequence[str]) -> SpeakerProcess:
        """Start it and wait until it serves; ``SpeakerFailed`` with its own words otherwise."""
        # Its standard input ends when this process does, however that ends; so does it.
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        child = cls(process)
        assert process.stdout is not None
        try:
            async with asyncio.timeout(_READY_WITHIN_S):
                ready = await process.stdout.readline()
        except TimeoutError:
            await child.stop()
            raise SpeakerFailed(
                f"the OpenFlow speaker was not ready within {_READY_WITHIN_S:g} s",
                hint="\n".join(child._lines) or "it said nothing",
            ) from None
        except BaseException:
            await child.stop()
            raise
        if not ready:
            raise await child.ended()
        return child

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.returncode is None

    async def ended(self) -> SpeakerFailed:
        """Wait for its end; the error that tells of it."""
        status = await self._process.wait()
        await self._log
        words = [line.removeprefix("error: ") for line in self._lines]
        what = "\n".join(words) or f"it said nothing, and ended with status {status}"
        error = SpeakerFailed(f"the OpenFlow speaker ended: {what}")
        # Bad input stays bad input, for the command line's exit status.
        error.exit_code = status if status in (1, 2) else 1
        return error

    async def stop(self) -> None:
        """End it, politely and then not."""
        with suppress(ProcessLookupError):
            self._process.terminate()
        try:
            async with asyncio.timeout(_STOPS_WITHIN_S):
                await self._process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        await self._log

    async def _read_log(self) -> None:
        assert self._process.stderr is not None
        while line := await self._process.stderr.readline():
            text = line.decode(errors="replace").rstrip()
            self._lines.append(text)
            LOG.warning("%s", text)
