"""Looking for the wiring: one search at a time, in the background, and what it has come to."""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from patchlight.controller.changes.record import ChangeOptions, Notifier, Refused
from patchlight.controller.discovery.listening import Listened, SwitchListening
from patchlight.controller.discovery.search import (
    Findings,
    Light,
    OcsPort,
    SearchRound,
    likely_rounds,
    search,
)
from patchlight.controller.discovery.window import MaintenanceWindow
from patchlight.controller.discovery.wiring import FoundWiring, expected_ends, found_wiring
from patchlight.testbed.errors import PatchlightError, in_words
from patchlight.testbed.lab.model import Lab

_log = logging.getLogger(__name__)

State = Literal["idle", "looking", "restoring", "done", "stopped", "failed"]


@dataclass(frozen=True, slots=True)
class WantedSearch:
    """What is to be looked at: these ports by OCS (all, if none are named), listening for so long
    each round; ``every_port`` also once all ends of the lab are found."""

    ports: Mapping[str, Collection[int]]
    listen_s: float
    every_port: bool = False


@dataclass
class DiscoveryProgress:
    """How far the search is, or what the last one came to. ``rounds_left`` is the most that can
    be left; ``wiring`` is there once it is ``done``, as JSON."""

    state: State = "idle"
    by: str = ""
    rounds_done: int = 0
    rounds_left: int = 0
    began_at: float = 0.0
    took_s: float = 0.0
    left_s: float = 0.0
    message: str = ""
    hint: str | None = None
    wiring: dict[str, Any] | None = None


class Discovery:
    """The search for the wiring of one lab; ``news`` of it are told with each round."""

    def __init__(self, lab: Lab, window: MaintenanceWindow, listening: SwitchListening) -> None:
        self._lab, self._window, self._listening = lab, window, listening
        self._task: asyncio.Task[tuple[dict[str, Any] | None, State]] | None = None
        self._beginning_or_ending = asyncio.Lock()
        self.progress = DiscoveryProgress()
        self.news = Notifier()

    @property
    def under_way(self) -> bool:
        """Whether a search is at work, or puts back the circuits after it."""
        return self._task is not None and not self._task.done()

    @property
    def status(self) -> dict[str, Any]:
        """The progress as JSON, and the ``step`` of the news of it.

        ``open``: circuits are away from their places now.
        """
        is_open = self._window.opened is not None
        return asdict(self.progress) | {"step": self.news.step, "open": is_open}

    async def preview(self, wanted: WantedSearch) -> dict[str, Any]:
        """What a search would look at, what goes dark, how long it takes where all is as the lab
        file says, and what speaks against it now."""
        ports = await self._window.ports(wanted.ports)
        rounds = 1 + likely_rounds(_ports(ports), expected_ends(self._lab))
        return {
            "ports": ports,
            "circuits": await self._window.circuits(ports),
            "rounds": rounds,
            "takes_s": rounds * self._round_s(wanted),
            "objections": await self._window.objections(ports, whole=not wanted.ports),
        }

    async def start(self, wanted: WantedSearch, caller: ChangeOptions) -> None:
        """Begin a search; ``Refused`` or ``BadInput`` if it cannot be."""
        async with self._beginning_or_ending:
            await self._start(wanted, caller)

    async def _start(self, wanted: WantedSearch, caller: ChangeOptions) -> None:
        if self.under_way:
            raise Refused(f"{self.progress.by} looks at the wiring already")
        ports = await self._window.ports(wanted.ports)
        try:
            await self._window.open(ports, caller, whole=not wanted.ports)
        except Refused:
            raise
        except BaseException:
            await self._window.close()
            raise
        rounds = 1 + likely_rounds(_ports(ports), expected_ends(self._lab))
        left_s = rounds * self._round_s(wanted)
        self.progress = DiscoveryProgress(
            "looking", caller.by, 0, rounds, time.time(), left_s=left_s
        )
        self._task = asyncio.create_task(self._run(wanted, ports), name="wiring discovery")
        self._task.add_done_callback(self._ended)
        self.news.tell()

    async def stop(self) -> None:
        """Break the search off and put the circuits back, also those that an earlier controller
        left; ``PatchlightError`` if they cannot be."""
        async with self._beginning_or_ending:
            if self._task is not None and not self._task.done():
                if self.progress.state == "looking":
                    self._task.cancel()
                await asyncio.wait([self._task])
            await self._window.close()

    async def recover(self) -> None:
        """Put back what an earlier controller left; the log says if it cannot be."""
        try:
            await self._window.close()
        except PatchlightError as error:
            _log.error("the wiring discovery that was cut short: %s", error)

    async def close(self) -> None:
        """The same at the controller's end."""
        with contextlib.suppress(PatchlightError):
            await self.stop()

    def _ended(self, task: asyncio.Task[tuple[dict[str, Any] | None, State]]) -> None:
        # Together, so that nobody sees the end without its step, or the step before the end.
        if not task.cancelled():
            self.progress.wiring, self.progress.state = task.result()
        self.news.tell()

    async def _run(
        self, wanted: WantedSearch, ports: Mapping[str, list[int]]
    ) -> tuple[dict[str, Any] | None, State]:
        """Search, and put the circuits back: what was found, and how it ended."""
        progress, found = self.progress, None
        end: State = "failed"
        try:
            found = await self._search(wanted, ports)
            end = "done"
        except asyncio.CancelledError:
            end, progress.message = "stopped", "it was broken off"
        except Exception as error:
            if not isinstance(error, PatchlightError):
                _log.exception("looking at the wiring")
            progress.message = in_words(error)
            progress.hint = getattr(error, "hint", None)
        progress.state, progress.rounds_left, progress.left_s = "restoring", 0, 0.0
        self.news.tell()
        try:
            await self._window.close()
        except Exception as error:
            end, progress.message = "failed", in_words(error)
            progress.hint = getattr(error, "hint", None)
            _log.error("after looking at the wiring: %s", progress.message)
        progress.took_s = time.time() - progress.began_at
        return found, end

    async def _search(self, wanted: WantedSearch, ports: Mapping[str, list[int]]) -> dict[str, Any]:
        dark = await self._round(wanted, {}, self.progress.rounds_left - 1)
        if not dark.ends:
            why = "; ".join(dict.fromkeys(dark.silent.values()))
            raise PatchlightError(
                f"nobody sent or heard anything: {why or 'the lab has no NICs and switches'}",
                hint="start the agents, and have the packet switches connect: patchlight "
                "controller status",
            )
        elsewhere = dark.beside(dark)
        expected = expected_ends(self._lab)
        rounds = search(ports, expected, dark.ends, elsewhere, every_port=wanted.every_port)
        try:
            asked: SearchRound = next(rounds)
            while True:
                heard = await self._round(wanted, asked.light, asked.left, asked.patience)
                asked = rounds.send(heard.beside(dark))
        except StopIteration as end:
            found: Findings = end.value
        silent = {end: why for end, why in dark.silent.items() if end not in dark.ends}
        whole = not wanted.ports
        wiring = found_wiring(self._lab, found, elsewhere, dark.ends, silent, whole=whole)
        return _as_json(wiring, silent)

    async def _round(
        self, wanted: WantedSearch, light: Light, left: int, patience: int = 1
    ) -> Listened:
        progress = self.progress
        number = progress.rounds_done + 1
        await self._window.light(light, f"looks at the wiring: round {number}")
        token = f"{secrets.token_hex(8)}-{number}"
        listened = await self._listening.listen(token, wanted.listen_s * patience)
        progress.rounds_done, progress.rounds_left = number, left
        each_s = (time.time() - progress.began_at) / number
        progress.left_s = (left + 1) * each_s
        self.news.tell()
        return listened

    def _round_s(self, wanted: WantedSearch) -> float:
        """About what a round takes, before one was timed."""
        slowest_s = max((c.switching_time_s for c in self._lab.circuit_switches), default=0.0)
        return wanted.listen_s + 2 * slowest_s


def _ports(by_ocs: Mapping[str, Collection[int]]) -> list[OcsPort]:
    return [OcsPort(ocs, number) for ocs, numbers in by_ocs.items() for number in numbers]


def _as_json(wiring: FoundWiring, silent: Mapping[str, str]) -> dict[str, Any]:
    return {
        "ports": [
            {
                "ocs": row.port.ocs,
                "port": row.port.number,
                "sends": row.sends,
                "hears": row.hears,
                "said": row.said,
                "verdict": row.verdict,
                "words": row.words,
            }
            for row in wiring.ports
        ],
        "differences": list(wiring.differences),
        "doubts": list(wiring.doubts),
        "silent": dict(silent),
        "fibres": [[str(fibre.a), str(fibre.b)] for fibre in wiring.fibres],
    }
