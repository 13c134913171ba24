"""Searches for a lab's wiring, and compares it with the lab file."""

import asyncio
import contextlib
import logging
import secrets
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from patchlight.controller.changes.record import (
    ChangeOptions,
    Notifier,
    Refused,
)
from patchlight.controller.discovery import search
from patchlight.controller.discovery.window import (
    Listened,
    MaintenanceWindow,
    SwitchListening,
)
from patchlight.testbed.errors import PatchlightError, in_words
from patchlight.testbed.lab.model import Endpoint, Fibre, Lab
from patchlight.testbed.wire.rest.lab import (
    FoundPortAnswer,
    Search,
    SearchPlan,
    Wiring,
)
from patchlight.testbed.wire.rest.requests import DiscoveryRequest

_log = logging.getLogger(__name__)


State = Literal["idle", "looking", "restoring", "done", "stopped", "failed"]


Verdict = Literal["as said", "differs", "not told", "free"]


@dataclass
class DiscoveryProgress:
    """The progress of the search, or how the last one ended, with the result once ``done``."""

    state: State = "idle"
    by: str = ""
    rounds_done: int = 0
    rounds_left: int = 0
    began_at: float = 0.0
    took_s: float = 0.0
    left_s: float = 0.0
    message: str = ""
    hint: str | None = None
    wiring: Wiring | None = None


class Discovery:
    """The search for the wiring of one lab, one at a time; ``news`` gets a new step each round."""

    def __init__(
        self,
        lab: Lab,
        window: MaintenanceWindow,
        listening: SwitchListening,
    ) -> None:
        self._lab = lab
        self._window = window
        self._listening = listening
        self._task: asyncio.Task[tuple[Wiring | None, State]] | None = None
        self._beginning_or_ending = asyncio.Lock()
        self.progress = DiscoveryProgress()
        self.news = Notifier()

    @property
    def under_way(self) -> bool:
        """Whether a search is running, or restoring the circuits."""
        return self._task is not None and not self._task.done()

    @property
    def status(self) -> Search:
        """The progress, its ``step``, and whether circuits are out of place (``open``)."""
        is_open = self._window.opened is not None
        return Search(
            **vars(self.progress),
            step=self.news.step,
            open=is_open,
        )

    async def preview(self, wanted: DiscoveryRequest) -> SearchPlan:
        """What a search would probe, the circuits it interrupts, its duration, and objections."""
        ports = await self._window.ports(wanted.ports)
        rounds, takes_s = self._estimate(wanted, ports)
        return SearchPlan(
            ports=ports,
            circuits=await self._window.circuits(ports),
            rounds=rounds,
            takes_s=takes_s,
            objections=await self._window.objections(
                ports, whole=not wanted.ports
            ),
        )

    def _estimate(
        self, wanted: DiscoveryRequest, ports: Mapping[str, Collection[int]]
    ) -> tuple[int, float]:
        """The number of rounds if all is as in the lab file, and their approximate seconds."""
        each = [
            search.OcsPort(ocs, number)
            for ocs, numbers in ports.items()
            for number in numbers
        ]
        rounds = 1 + search.likely_rounds(each, expected_ends(self._lab))
        slowest_s = max(
            (c.switching_time_s for c in self._lab.circuit_switches),
            default=0.0,
        )
        return rounds, rounds * (wanted.listen_s + 2 * slowest_s)

    async def start(
        self, wanted: DiscoveryRequest, caller: ChangeOptions
    ) -> None:
        """Start a search; ``Refused`` or ``BadInput`` if it is not possible."""
        async with self._beginning_or_ending:
            if self.under_way:
                raise Refused(
                    f"{self.progress.by} is already discovering the wiring"
                )
            ports = await self._window.ports(wanted.ports)
            try:
                await self._window.open(ports, caller, whole=not wanted.ports)
            except Refused:
                raise
            except BaseException:
                await self._window.close()
                raise
            rounds, left_s = self._estimate(wanted, ports)
            self.progress = DiscoveryProgress(
                "looking",
                caller.by,
                0,
                rounds,
                time.time(),
                left_s=left_s,
            )
            self._task = asyncio.create_task(
                self._run(wanted, ports), name="wiring discovery"
            )
            self._task.add_done_callback(self._ended)
            self.news.tell()

    async def stop(self) -> None:
        """Cancel the search and restore the circuits, also an earlier controller's, or raise."""
        async with self._beginning_or_ending:
            if self._task is not None and not self._task.done():
                if self.progress.state == "looking":
                    self._task.cancel()
                await asyncio.wait([self._task])
            await self._window.close()

    async def recover(self) -> None:
        """Restore the circuits of an earlier controller's search; errors are logged."""
        try:
            await self._window.close()
        except PatchlightError as error:
            _log.error(
                "restoring circuits after an interrupted wiring discovery: %s",
                error,
            )

    async def close(self) -> None:
        """Stop at the controller's end."""
        with contextlib.suppress(PatchlightError):
            await self.stop()

    def _ended(self, task: asyncio.Task[tuple[Wiring | None, State]]) -> None:
        # Both at once, so that no client sees one without the other.
        if (
            task.cancelled()
        ):  # before its first step; ``stop`` restores the circuits
            self.progress.state = "stopped"
        else:
            self.progress.wiring, self.progress.state = task.result()
        self.news.tell()

    async def _run(
        self, wanted: DiscoveryRequest, ports: Mapping[str, list[int]]
    ) -> tuple[Wiring | None, State]:
        progress = self.progress
        found = None
        end: State = "failed"
        try:
            found = await self._search(wanted, ports)
            end = "done"
        except asyncio.CancelledError:
            end = "stopped"
            progress.message = "it was interrupted"
        except Exception as error:
            if not isinstance(error, PatchlightError):
                _log.exception("wiring discovery")
            progress.message = in_words(error)
            progress.hint = getattr(error, "hint", None)
        progress.state = "restoring"
        progress.rounds_left = 0
        progress.left_s = 0.0
        self.news.tell()
        try:
            await self._window.close()
        except Exception as error:
            end = "failed"
            progress.message = in_words(error)
            progress.hint = getattr(error, "hint", None)
            _log.error(
                "restoring after the wiring discovery: %s", progress.message
            )
        progress.took_s = time.time() - progress.began_at
        return found, end

    async def _search(
        self, wanted: DiscoveryRequest, ports: Mapping[str, list[int]]
    ) -> Wiring:
        dark = await self._round(wanted, {}, self.progress.rounds_left - 1)
        if not dark.ends:
            why = "; ".join(dict.fromkeys(dark.silent.values()))
            raise PatchlightError(
                f"no probes were sent or received: {why or 'the lab has no NICs and switches'}",
                hint="start the agents, and connect the packet switches: see patchlight status",
            )
        elsewhere = dark.beside(dark)
        expected = expected_ends(self._lab)
        every_port = wanted.every_port
        rounds = search.search(
            ports,
            expected,
            dark.ends,
            elsewhere,
            every_port=every_port,
            mute=dark.mute,
        )
        try:
            asked = next(rounds)
            while True:
                heard = await self._round(
                    wanted,
                    asked.light,
                    asked.left,
                    asked.patience,
                )
                asked = rounds.send(heard.beside(dark))
        except StopIteration as end:
            found: search.Findings = end.value
        silent = {
            end: why
            for end, why in dark.silent.items()
            if end not in dark.ends
        }
        whole = not wanted.ports
        wiring = found_wiring(
            self._lab,
            found,
            elsewhere,
            dark.ends,
            silent,
            whole=whole,
            mute=dark.mute,
        )
        return Wiring(
            ports=[
                FoundPortAnswer(
                    ocs=row.port.ocs,
                    port=row.port.number,
                    sends=row.sends,
                    hears=row.hears,
                    said=row.said,
                    verdict=row.verdict,
                    words=row.words,
                )
                for row in wiring.ports
            ],
            differences=list(wiring.differences),
            doubts=list(wiring.doubts),
            silent=dict(silent),
            fibres=[(str(fibre.a), str(fibre.b)) for fibre in wiring.fibres],
        )

    async def _round(
        self,
        wanted: DiscoveryRequest,
        light: search.Light,
        left: int,
        patience: int = 1,
    ) -> Listened:
        progress = self.progress
        number = progress.rounds_done + 1
        await self._window.light(light, f"wiring discovery: round {number}")
        token = f"{secrets.token_hex(8)}-{number}"
        listened = await self._listening.listen(
            token, wanted.listen_s * patience
        )
        progress.rounds_done = number
        progress.rounds_left = left
        progress.left_s = (
            (left + 1) * (time.time() - progress.began_at) / number
        )
        self.news.tell()
        return listened


@dataclass(
    frozen=True,
    slots=True,
)
class PortFinding:
    """The ends that send into a port of a circuit switch and hear it, and that in the lab file
    (``said``). ``not told``: that end could not be probed."""

    port: search.OcsPort
    sends: str | None
    hears: str | None
    said: str | None
    verdict: Verdict
    words: str


@dataclass(
    frozen=True,
    slots=True,
)
class FoundWiring:
    """The result of a search. ``fibres`` are those of the lab file, corrected where certain."""

    ports: tuple[PortFinding, ...]
    differences: tuple[str, ...]
    doubts: tuple[str, ...]
    fibres: tuple[Fibre, ...]


def expected_ends(lab: Lab) -> dict[search.OcsPort, str]:
    """What is plugged into each port of each circuit switch in the lab file."""
    return {
        search.OcsPort(ocs, number): str(end)
        for ocs, fibres in lab.circuit_fibres.items()
        for number, (end, _) in fibres.items()
    }


def found_wiring(
    lab: Lab,
    found: search.Findings,
    elsewhere: search.Heard,
    ends: Collection[str],
    silent: Mapping[str, str],
    *,
    whole: bool = True,
    mute: Collection[str] = (),
) -> FoundWiring:
    """Compare the findings with the lab file; ``elsewhere`` was heard without circuits. Without
    ``whole`` other circuits were up, and such findings are not fibres. The ``mute`` ends only
    hear."""
    expected = expected_ends(lab)
    lit = found.inputs.keys() | found.outputs.keys()
    ports = tuple(
        _judged(
            port,
            found,
            expected.get(port),
            ends,
            silent,
        )
        for port in sorted(lit | (expected.keys() if whole else set()))
    )
    # LLDP senders cannot hear; if the lab file agrees or is silent, one direction is enough.
    certain = {
        row.port: row.sends
        for row in ports
        if row.sends is not None
        and (
            row.sends == row.hears
            or not (
                row.sends == search.LIGHT or row.hears or row.sends in ends
            )
        )
    }
    both = {
        (min(a, b), max(a, b))
        for a, b in elsewhere
        if (b, a) in elsewhere or b in mute
    }
    direct = both if whole else set()
    beside = list(
        _other_fibres(
            lab,
            both,
            direct,
            ends,
        )
    )
    pairs = [(str(port), end) for port, end in certain.items()] + sorted(
        direct
    )
    partners = defaultdict[str, set[str]](set)
    for a, b in pairs:
        partners[a].add(b)
        partners[b].add(a)
    several = {
        end: sorted(others)
        for end, others in partners.items()
        if len(others) > 1
    }
    doubts = [
        f"{end} was found at {' and at '.join(others)}: ambiguous, so no fibre is assumed"
        for end, others in sorted(several.items())
    ]
    barred = several.keys() | found.twice
    return FoundWiring(
        ports,
        tuple(row.words for row in ports if row.verdict == "differs")
        + tuple(beside),
        (*found.doubts, *doubts),
        _corrected(lab, [pair for pair in pairs if not {*pair} & barred]),
    )


def _judged(
    port: search.OcsPort,
    found: search.Findings,
    said: str | None,
    ends: Collection[str],
    silent: Mapping[str, str],
) -> PortFinding:
    sends = found.inputs.get(port)
    hears = found.outputs.get(port)
    lab_file = (
        f"the lab file has {said}"
        if said
        else "the lab file has no fibre there"
    )

    def row(verdict: Verdict, words: str) -> PortFinding:
        return PortFinding(
            port,
            sends,
            hears,
            said,
            verdict,
            words,
        )

    if sends is None and hears is None:
        if said is None:
            return row("free", "no frame was received")
        if said in silent:
            return row(
                "not told", f"{port}: {said} was not probed: {silent[said]}"
            )
        sides = (found.inputs, found.outputs)
        looked_at = any(
            port in side or said in side.values() for side in sides
        )
        if not looked_at:
            words = f"{port}: no known sender behind {port.ocs}; {lab_file}"
            return row("not told", words)
        return row("differs", f"no frame was received at {port}, {lab_file}")
    if sends == search.LIGHT:
        words = (
            f"a signal arrives at {port}, but no frame identifies its source"
        )
        return row(
            "not told" if said in silent else "differs", f"{words}; {lab_file}"
        )
    only_lldp = hears is None and sends not in ends
    if sends == hears or only_lldp:
        if sends == said:
            return row(
                "as said", "" if hears else "only its LLDP was received"
            )
        return row("differs", f"fibre {port} goes to {sends}, {lab_file}")
    if sends is not None and hears is not None:
        words = (
            f"the two fibres of {port} are crossed: {sends} sends into it, "
            f"{hears} receives from it"
        )
        return row("differs", f"{words}; {lab_file}")
    if hears is None:
        words = f"{sends} sends into {port}, but receives nothing from it"
    else:
        words = f"{hears} receives from {port}, but no sender into it is known"
    return row("differs", f"{words}; {lab_file}")


def _other_fibres(
    lab: Lab,
    both: Collection[tuple[str, str]],
    direct: Collection[tuple[str, str]],
    ends: Collection[str],
) -> Iterator[str]:
    switches = {switch.name for switch in lab.circuit_switches}
    said = {
        (min(pair), max(pair))
        for fibre in lab.fibres
        if not {fibre.a.device, fibre.b.device} & switches
        for pair in [(str(fibre.a), str(fibre.b))]
    }
    for a, b in sorted(said):
        if {a, b} <= set(ends) and (a, b) not in both:
            yield (
                f"{a} and {b} do not receive each other's frames, "
                "but the lab file has a fibre between them"
            )
    for a, b in sorted(set(direct) - said):
        yield (
            f"{a} and {b} receive each other's frames without circuits, but the lab file has no "
            f"fibre between them"
        )


def _corrected(
    lab: Lab, pairs: Iterable[tuple[str, str]]
) -> tuple[Fibre, ...]:
    """The lab's fibres with these pairs of ends as they are, each with its device's end, rate and
    losses; new ones last."""
    named = {str(host.endpoint): host.endpoint for host in lab.hosts}
    counts = [(switch.name, switch.ports) for switch in lab.packet_switches]
    counts += [(switch.name, switch.ports) for switch in lab.circuit_switches]
    for name, count in counts:
        ports = (Endpoint(name, str(number)) for number in range(1, count + 1))
        named |= {str(end): end for end in ports}
    other: dict[Endpoint, Endpoint] = {}
    for a, b in pairs:
        if a in named and b in named:
            other |= {named[a]: named[b], named[b]: named[a]}
    switches = {switch.name for switch in lab.circuit_switches}
    fibres: dict[frozenset[Endpoint], Fibre] = {}
    for fibre in lab.fibres:
        moved = [
            end
            for end in (fibre.a, fibre.b)
            if end in other and end.device not in switches
        ]
        if (
            other.get(fibre.a) == fibre.b
            or not {fibre.a, fibre.b} & other.keys()
        ):
            kept = fibre
        elif moved and moved[0] == fibre.a:
            kept = replace(fibre, b=other[fibre.a])
        elif moved:
            kept = replace(fibre, a=other[fibre.b])
        else:
            continue
        fibres.setdefault(frozenset((kept.a, kept.b)), kept)
    for near, far in other.items():
        fibres.setdefault(frozenset((near, far)), Fibre(far, near))
    return tuple(fibres.values())
