"""Tunes lasers by the memory of CMIS modules (OIF-CMIS-05.2): pages 01h, 04h, 10h and 12h.

The kernel's ethtool interface only reads this memory. ``optoe`` also writes it: its file
``/sys/bus/i2c/devices/*/eeprom`` has byte ``n`` of page ``p`` at ``128 p + n``. Not run against
hardware.
"""

import logging
import os
import threading
import time
from pathlib import Path
from typing import NamedTuple, Protocol

from patchlight.testbed.errors import BadInput, PatchlightError, reason
from patchlight.testbed.lab.spectrum import Channel

OPTOE = Path("/sys/bus/i2c/devices")
"""Where ``optoe`` shows the memory of modules, with the interface's name in ``port_name``."""

log = logging.getLogger(__name__)

# Identifiers of SFF-8024: QSFP-DD, OSFP, DSFP, and QSFP and SFP-DD with CMIS.
_CMIS_MODULES = {0x18, 0x19, 0x1B, 0x1E, 0x1F}
_OLDEST_REVISION = 0x50
_ANCHOR_MHZ = 193_100_000
_ACCURACY_MHZ = 2_500
_POLL_S = 0.01
_PATIENCE_S = 60.0
_REASONS = {
    5: "the target power is out of range",
    4: "the fine tuning is out of range",
    3: "the tuning was refused",
    2: "the channel number is not valid",
}


class _Grid(NamedTuple):
    """A grid: its code, the step that a channel number counts, which numbers are on it.

    ``bit`` says in 04h:128 that it is supported; its lowest and highest number are at ``range``.
    """

    code: int
    step_mhz: int
    every: int
    bit: int
    range: int


# From the widest on: the channel number is then the one that an operator would write.
_GRIDS = (
    _Grid(5, 100_000, 1, 5, 150),
    _Grid(7, 25_000, 3, 7, 158),
    _Grid(4, 50_000, 1, 4, 146),
    _Grid(3, 25_000, 1, 3, 142),
    _Grid(2, 12_500, 1, 2, 138),
    _Grid(1, 6_250, 1, 1, 134),
    _Grid(0, 3_125, 1, 0, 130),
)


class Memory(Protocol):
    """The memory of a module, by page and byte; bytes below 128 are the same on all pages."""

    def read(self, page: int, byte: int, count: int) -> bytes:
        """``count`` bytes; ``OSError`` if the module does not answer."""
        ...

    def write(self, page: int, byte: int, data: bytes) -> None:
        """Write bytes; ``OSError`` if the module does not take them."""
        ...


class MemoryFile:
    """A file with all pages one after the other, as ``optoe`` shows it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, page: int, byte: int, count: int) -> bytes:
        """See ``Memory``."""
        with self._path.open("rb", buffering=0) as file:
            data = os.pread(file.fileno(), count, page * 128 + byte)
        if len(data) != count:
            raise OSError(f"page {page:02x}h is not there")
        return data

    def write(self, page: int, byte: int, data: bytes) -> None:
        """See ``Memory``."""
        with self._path.open("r+b", buffering=0) as file:
            os.pwrite(file.fileno(), data, page * 128 + byte)


def memory_of(interface: str, devices: Path = OPTOE) -> Path | None:
    """The memory of the module in this interface, by ``port_name``; ``None`` if there is none."""
    for name in sorted(devices.glob("*/port_name")):
        try:
            is_it = name.read_text().strip() == interface
        except OSError:
            continue
        if is_it and (name.parent / "eeprom").exists():
            return name.parent / "eeprom"
    return None


class LaserState(NamedTuple):
    """What a module reports: on or off, tuned or not, and its frequency."""

    on: bool
    settled: bool
    frequency_mhz: int


class CmisLaser:
    """The laser of a module's first lane.

    ``tune`` switches it off, asks for a channel and returns; a thread waits until the module
    reports the frequency, then switches it on. If it does not within its time, the laser stays
    off and ``fault`` says why.
    """

    def __init__(
        self,
        memory: Memory,
        name: str,
        tuning_time_s: float,
    ) -> None:
        self._memory = memory
        self._name = name
        self._patience_s = max(_PATIENCE_S, 2 * tuning_time_s)
        self._lock = threading.Lock()
        self._wish = 0
        self.fault = ""

    def tune(self, channel: Channel) -> None:
        """Ask for this channel; ``BadInput`` if the module cannot send it, which then stays
        unchanged."""
        target_mhz = _ANCHOR_MHZ + channel.steps * 6_250
        with self._lock:
            try:
                grid, number = self._setting(channel, target_mhz)
                self._wish += 1
                self._output(on=False)
                # Reading clears the flags of the last tuning.
                self._memory.read(0x12, 231, 1)
                below = self._memory.read(0x12, 128, 1)[0] & 0x0F
                self._memory.write(0x12, 128, bytes([grid.code << 4 | below]))
                self._memory.write(
                    0x12, 136, number.to_bytes(2, "big", signed=True)
                )
            except OSError as error:
                raise self._silent(error) from error
            self.fault = ""
            wish = self._wish
        threading.Thread(
            target=self._see_through,
            args=(wish, channel, target_mhz),
            name=f"tuning {self._name}",
            daemon=True,
        ).start()

    def darken(self) -> None:
        """Switch the laser off; a tuning that goes on does not switch it on."""
        with self._lock:
            self._wish += 1
            try:
                self._output(on=False)
            except OSError as error:
                raise self._silent(error) from error

    def state(self) -> LaserState:
        """What the module reports now."""
        try:
            status = self._memory.read(0x12, 222, 1)[0]
            off = self._memory.read(0x10, 130, 1)[0] & 1
            frequency = self._memory.read(0x12, 168, 4)
        except OSError as error:
            raise self._silent(error) from error
        return LaserState(
            not off,
            not status & 0b11,
            int.from_bytes(frequency, "big"),
        )

    def close(self) -> None:
        """Give up a tuning that goes on: the laser stays off."""
        with self._lock:
            self._wish += 1

    def _setting(self, channel: Channel, target_mhz: int) -> tuple[_Grid, int]:
        """The grid and the channel number for a frequency, by what the module advertises."""
        kind, revision = self._memory.read(0, 0, 2)
        if kind not in _CMIS_MODULES or revision < _OLDEST_REVISION:
            raise BadInput(
                f"{self._name}: its module (type {kind:02x}h, revision {revision:02x}h) is not "
                "a CMIS 5 module"
            )
        if not self._memory.read(0x01, 155, 1)[0] & 0x40:
            raise BadInput(f"{self._name}: its module cannot be tuned")
        supported = self._memory.read(0x04, 128, 1)[0]
        for grid in _GRIDS:
            number, rest = divmod(target_mhz - _ANCHOR_MHZ, grid.step_mhz)
            if rest or number % grid.every or not supported >> grid.bit & 1:
                continue
            limits = self._memory.read(0x04, grid.range, 4)
            low = int.from_bytes(limits[:2], "big", signed=True)
            high = int.from_bytes(limits[2:], "big", signed=True)
            if low <= number <= high:
                return grid, number
        raise BadInput(
            f"{self._name}: its module cannot send channel {channel}: the frequency is outside "
            f"its grids"
        )

    def _output(self, *, on: bool) -> None:
        """Switch the first lane on or off, and verify."""
        before = self._memory.read(0x10, 130, 1)[0]
        wanted = before & ~1 if on else before | 1
        if wanted != before:
            self._memory.write(0x10, 130, bytes([wanted]))
        if self._memory.read(0x10, 130, 1)[0] != wanted:
            raise PatchlightError(
                f"{self._name}: its module does not switch its output {'on' if on else 'off'}"
            )

    def _see_through(
        self,
        wish: int,
        channel: Channel,
        target_mhz: int,
    ) -> None:
        """Switch the laser on once the module reports the frequency."""
        ends = time.monotonic() + self._patience_s
        try:
            while True:
                time.sleep(_POLL_S)
                with self._lock:
                    if wish != self._wish:
                        return
                    state = self.state()
                    # Reading clears the flags: only the last tuning may.
                    flags = self._memory.read(0x12, 231, 1)[0]
                    near = (
                        abs(state.frequency_mhz - target_mhz) <= _ACCURACY_MHZ
                    )
                    if state.settled and near:
                        self._output(on=True)
                        return
                refused = next(
                    (why for bit, why in _REASONS.items() if flags >> bit & 1),
                    None,
                )
                if refused or time.monotonic() > ends:
                    why = refused or (
                        f"after {self._patience_s:.0f} s it reports "
                        f"{state.frequency_mhz / 1e6:.5f} THz"
                    )
                    raise PatchlightError(
                        f"{self._name}: not tuned to {channel}: {why}; its laser is off"
                    )
        except (OSError, PatchlightError) as error:
            fault = (
                self._silent(error) if isinstance(error, OSError) else error
            )
            self.fault = fault.message
            log.warning("%s", fault.message)

    def _silent(self, error: OSError) -> PatchlightError:
        return PatchlightError(
            f"{self._name}: its module does not answer: {reason(error)}"
        )
