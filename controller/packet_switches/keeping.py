"""Keeps the forwarding of packet switches as wanted, by reading them from time to time."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping

from patchlight.controller.circuits.contract import LoginRefused
from patchlight.controller.packet_switches.contract import (
    Applied,
    Lack,
    PacketSwitchDriver,
    PortState,
    Wish,
)
from patchlight.testbed.errors import PatchlightError

LOG = logging.getLogger(__name__)

TRY_AGAIN_S = (5.0, 10.0, 20.0, 60.0)
"""Pauses before a switch that refused entries gets them again; the last one repeats."""
_PERIOD_S = 1.0
# The same before a silent switch is tried again.
_SILENT_S = (
    1.0,
    1.0,
    2.0,
    5.0,
)
_WRONG_LOGIN_S = (
    60.0  # some devices lock an account after a few wrong passwords
)


class RetryPauses:
    """When a switch that refused entries is to be tried again; time is monotonic."""

    def __init__(self) -> None:
        self._tries = 0
        self._at = 0.0

    def is_due(self, lacking: bool, now: float) -> bool:
        """Whether a try is due, which then counts. Without anything ``lacking``, start over."""
        if not lacking:
            self._tries = 0
            return False
        if self._tries and now < self._at:
            return False
        self._tries += 1
        self._at = now + TRY_AGAIN_S[min(self._tries, len(TRY_AGAIN_S)) - 1]
        return self._tries > 1


class KeptSwitch:
    """One switch, read each second, and set where it differs from the last wish.

    ``on_ports`` gets its name, the Unix time, its ports and the missing ones after each reading.
    """

    def __init__(
        self,
        driver: PacketSwitchDriver,
        on_ports: Callable[
            [
                str,
                float,
                Mapping[int, PortState],
                Mapping[int, str],
            ],
            None,
        ],
    ) -> None:
        self.driver = driver
        self._learns = getattr(driver, "learns", False)
        self.reachable = False
        self.trouble = "it has not answered yet"
        """Why it is unreachable."""
        self.lacks: tuple[Lack, ...] = ()
        self.foreign: tuple[str, ...] = ()
        self._on_ports = on_ports
        self._wish: Wish | None = None
        self._lock = asyncio.Lock()
        self._pauses = RetryPauses()
        self._silent = 0
        self._pause_s = 0.0
        self._settled = False
        self._missing: Mapping[int, str] = {}
        self._keeping: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Stop keeping it; it goes on forwarding."""
        await self._rest()
        await self.driver.close()

    async def release(self) -> None:
        """Remove what Patchlight has set; raises the driver's errors. ``follow`` sets it again."""
        await self._rest()
        self._wish = None
        self._settled = False
        self.lacks = ()
        self.foreign = ()
        await self.driver.release()

    async def _rest(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
            self._keeping = None

    async def follow(self, wish: Wish) -> list[str]:
        """Set it and keep it so; returns failures as text. If it does not answer, it is set once it
        does."""
        if self._settled and wish == self._wish:
            # It is read often enough, and a job may wait for this.
            return self._notes()
        async with self._lock:
            self._wish = wish
            self._settled = False
            try:
                await self._set(wish)
            except PatchlightError as error:
                self._went_silent(error)
                what = error.message.splitlines()[0]
                return [
                    f"{self.driver.name}: its forwarding will be set later: {what}"
                ]
            finally:
                if self._keeping is None:
                    self._keeping = asyncio.create_task(
                        self._keep(), name=self.driver.name
                    )
        return self._notes()

    def _notes(self) -> list[str]:
        notes = []
        if self.lacks:
            lacks = f"lacks {len(self.lacks)} entries: {self.lacks[0].reason}"
            notes.append(
                f"{self.driver.name} {lacks}; the first: {self.lacks[0].station.address}"
            )
        return notes + [
            f"{self.driver.name}: {entry}" for entry in self.foreign
        ]

    async def _set(self, wish: Wish) -> Applied:
        applied = await self.driver.set_forwarding(wish)
        self._answered()
        self._settled = True
        self.lacks = applied.lacks
        self.foreign = applied.foreign
        return applied

    async def _keep(self) -> None:
        while True:
            pause_s = getattr(self.driver, "period_s", _PERIOD_S)
            await asyncio.sleep(max(pause_s, self._pause_s))
            async with self._lock:
                try:
                    await self._look()
                except PatchlightError as error:
                    self._went_silent(error)
                except Exception as error:
                    # Of a driver of another package, say: the switch counts as silent.
                    self._went_silent(
                        PatchlightError(f"{type(error).__name__}: {error}")
                    )
                    LOG.exception(
                        "reading the packet switch %s", self.driver.name
                    )

    async def _look(self) -> None:
        assert self._wish is not None
        state = await self.driver.read()
        gone = (
            set[int]()
            if self._learns
            else self._wish.ports - state.ports.keys()
        )
        missing = {
            port: state.missing.get(port, f"no port {port}") for port in gone
        }
        is_other = missing != self._missing
        self._missing = missing
        self._on_ports(
            self.driver.name,
            time.time(),
            state.ports,
            missing,
        )
        self._answered()
        self.foreign = state.foreign
        lacking = {lack.station for lack in self.lacks}
        wanted = {
            s: p for s, p in self._wish.places.items() if s not in lacking
        }
        have = {s: p for s, p in state.places.items() if s not in lacking}
        due = self._pauses.is_due(bool(lacking), time.monotonic())
        if have == wanted and self._settled and not due and not is_other:
            return
        before = self.lacks
        applied = await self._set(self._wish)
        if applied.changed or applied.lacks != before:
            message = "%s was repaired: %d entries changed, %d lacking"
            LOG.warning(
                message,
                self.driver.name,
                applied.changed,
                len(applied.lacks),
            )

    def _answered(self) -> None:
        self.reachable = True
        self.trouble = ""
        self._silent = 0
        self._pause_s = 0.0

    def _went_silent(self, error: PatchlightError) -> None:
        # Whatever it was sent last may be half done.
        self._settled = False
        self._silent += 1
        self._pause_s = _SILENT_S[min(self._silent, len(_SILENT_S)) - 1]
        if isinstance(error, LoginRefused):
            self._pause_s = _WRONG_LOGIN_S
        if self.reachable or self._silent == 1:
            LOG.warning(
                "packet switch %s: %s", self.driver.name, error.message
            )
        self.reachable = False
        self.trouble = error.message.splitlines()[0]
