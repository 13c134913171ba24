"""One life of the speaker process: started, waited for as long as it works, its log read, ended."""

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
from patchlight.testbed.linux.processes import ProgressWatch, processor_ticks

LOG = logging.getLogger("patchlight.speaker")

_QUIET_S = 30.0  # an engine takes its time on a busy machine; one that does nothing is stuck
_LOOK_EVERY_S = 0.5
_STOPS_WITHIN_S = 5.0
_LINES_KEPT = 20


class SpeakerFailed(PatchlightError):
    """The speaker process could not be started, or ended."""


@dataclass(frozen=True, slots=True)
class SwitchTls:
    """That switches come over TLS: the folder with the controller's certificate, the lab's name,
    and what its packet switches are called, in the order of their datapath ids."""

    folder: Path
    lab: str
    switches: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SpeakerOptions:
    """How to start the speaker.

    ``listen`` is where switches connect to, in the network namespace ``netns`` (a path) if
    given; ``datapath_ids`` are the lab's packet switches; ``engine`` is ``ryu``, ``os-ken``
    or ``None`` for the first that is installed; ``apps`` are users' applications; ``counters``
    has the switches' counters read, and told, once a second; with ``tls`` only switches that
    show a certificate get in.
    """

    socket: Path
    datapath_ids: tuple[int, ...]
    listen: str = "127.0.0.1:6653"
    netns: str | None = None
    engine: str | None = None
    apps: tuple[str, ...] = ()
    counters: bool = True
    tls: SwitchTls | None = None

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
        if self.tls is not None:
            words += ["--tls", str(self.tls.folder), "--lab", self.tls.lab]
            words += ["--switches", ",".join(self.tls.switches)]
        for app in self.apps:
            words += ["--ryu-app", app]
        return words


class SpeakerProcess:
    """One life of the speaker process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._lines: deque[str] = deque(maxlen=_LINES_KEPT)
        self._lines_read = 0
        self._log = asyncio.create_task(self._read_log())

    @classmethod
    async def start(cls, command: Sequence[str], quiet_s: float = _QUIET_S) -> SpeakerProcess:
        """Start it and wait until it serves; ``SpeakerFailed`` with its own words otherwise.

        It may take as long as it works: given up is one that for ``quiet_s`` seconds neither used
        the processor nor wrote anything.
        """
        # Its standard input ends when this process does, however that ends; so does it.
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        child = cls(process)
        try:
            serves = await child._serves(quiet_s)
        except BaseException:
            await child.stop()
            raise
        if not serves:
            raise await child.ended()
        return child

    async def _serves(self, quiet_s: float) -> bool:
        """Wait until it serves; false if it ended instead. ``SpeakerFailed`` if it is stuck."""
        assert self._process.stdout is not None
        progress = ProgressWatch(lambda: (processor_ticks(self.pid), self._lines_read))
        ready = asyncio.ensure_future(self._process.stdout.readline())
        try:
            while not (await asyncio.wait({ready}, timeout=_LOOK_EVERY_S))[0]:
                if progress.quiet_s() > quiet_s:
                    raise SpeakerFailed(
                        f"the OpenFlow speaker does not serve, and did nothing for {quiet_s:g} s",
                        hint="\n".join(self._lines) or "it said nothing",
                    )
                if (took_s := progress.to_tell()) is not None:
                    LOG.info("still starting the OpenFlow speaker after %.0f s", took_s)
            return bool(ready.result())
        finally:
            ready.cancel()

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
            self._lines_read += 1
            LOG.warning("%s", text)
