"""The emulated light of a lab without a kernel: frames are counted, fibres are cut by hand."""

import asyncio
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from patchlight.emulation.light.__main__ import LightRequests
from patchlight.emulation.light.emulated_light import (
    EmulatedLight,
    PluggedFibres,
)
from patchlight.testbed.lab.model import Endpoint, Lab
from patchlight.testbed.lab.optical_links import is_end


class CountedFibres:
    """Carries frames by counting them; fibres are cut and interfaces set down by hand."""

    def __init__(self, lab: Lab) -> None:
        self.ends = frozenset(
            e for e in lab.fibre_ends if not is_end(lab, e.device)
        )
        self.far = {
            end: far
            for end, (far, _) in lab.fibre_ends.items()
            if end not in self.ends
        }
        self.cut: set[Endpoint] = set()
        self.silent: set[Endpoint] = set()
        self.held: set[Endpoint] = set()
        self.frames: Counter[Endpoint] = Counter()
        self.got: Counter[Endpoint] = Counter()
        self.leads: dict[Endpoint, Sequence[Endpoint]] = {}
        self.led = 0

    def plugs(self) -> PluggedFibres:
        up = self.ends - self.cut
        return PluggedFibres(up, up - self.silent, dict(self.frames))

    def lead(self, changes: Mapping[Endpoint, Sequence[Endpoint]]) -> None:
        self.leads |= changes
        self.led += len(changes)

    def hold_dark(
        self, dark: Iterable[Endpoint], lit: Iterable[Endpoint]
    ) -> None:
        self.held = (self.held | set(dark)) - set(lit)

    def send(self, source: Endpoint) -> None:
        self.frames[self.far[source]] += 1
        self.got.update(self.leads.get(self.far[source], ()))

    def reach(self, source: Endpoint) -> set[Endpoint]:
        """Who gets a frame."""
        self.got.clear()
        self.send(source)
        return {end for end, far in self.far.items() if self.got[far]}


class LightServed:
    """The light at a socket, inside the block."""

    def __init__(self, light: EmulatedLight, path: Path) -> None:
        self._light = light
        self._path = path

    async def __aenter__(self) -> Path:
        self._server = await LightRequests(self._light).listen(self._path)
        return self._path

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        with suppress(asyncio.CancelledError):
            await self._server.wait_closed()


@contextmanager
def light_in_a_thread(lab: Lab, path: Path) -> Iterator[EmulatedLight]:
    """The light of a lab at a socket, for callers that wait for its answers."""
    loop = asyncio.new_event_loop()
    light = EmulatedLight(lab, CountedFibres(lab))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    server = asyncio.run_coroutine_threadsafe(
        LightRequests(light).listen(path), loop
    ).result()
    try:
        yield light
    finally:
        loop.call_soon_threadsafe(server.close)
        asyncio.run_coroutine_threadsafe(_others_ended(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _others_ended() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
