"""A driver's library for tests: NVML's interface over a file, compiled by the machine's ``cc``.

The real binding calls it. ``$PATCHLIGHT_TEST_NVML_LIBRARY`` names another library to use instead,
NVIDIA's nvml-mock say: tests that set what a card tells are skipped then.
"""

import ctypes
import mmap
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

STATE = "PATCHLIGHT_TEST_NVML"
LIBRARY = "PATCHLIGHT_TEST_NVML_LIBRARY"
_SOURCE = Path(__file__).parent / "library.c"
_U64 = ctypes.c_ulonglong
_FUNCTIONS = (
    "utilization",
    "memory",
    "power",
    "energy",
    "temperature",
    "temperature_v",
    "clock",
    "pcie",
    "fields",
    "processes",
    "mig",
    "ecc",
    "events",
    "pcie_fields",
    "nvlink_fields",
)
LOST = 15
UNKNOWN = 999
"""What NVML answers for a GPU that has fallen off the bus, or so."""


class Card(ctypes.Structure):
    """One GPU, as ``struct card`` in the C source."""

    _fields_ = (
        ("uuid", ctypes.c_char * 96),
        ("name", ctypes.c_char * 96),
        ("bus", ctypes.c_char * 32),
        ("minor", _U64),
        ("error", _U64),
        ("lacking", _U64),
        ("called", _U64 * len(_FUNCTIONS)),
        ("utilization", _U64),
        ("memory_total", _U64),
        ("memory_used", _U64),
        ("power_mw", _U64),
        ("energy_mj", _U64),
        ("temperature", _U64),
        ("sm_mhz", _U64),
        ("memory_mhz", _U64),
        ("pcie_kbps", _U64 * 2),
        ("pcie_bytes", _U64 * 2),
        ("nvlink_kib", _U64 * 2),
        ("process_count", _U64),
        ("processes", _U64 * 4),
        ("mig", _U64),
        ("ecc", _U64 * 2),
        ("xid", _U64),
    )

    def lack(self, *functions: str) -> None:
        """These functions are not supported by this card."""
        self.lacking = sum(1 << _FUNCTIONS.index(each) for each in functions)

    def calls(self, function: str) -> int:
        """How often it was called."""
        return int(self.called[_FUNCTIONS.index(function)])


class Driver(ctypes.Structure):
    """The whole driver; its cards are the first ``count``."""

    _fields_ = (("count", _U64), ("cards", Card * 8))


def build(folder: Path) -> Path:
    """Compile the library into a folder. ``FileNotFoundError`` without a compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise FileNotFoundError("no C compiler: apt install gcc libc6-dev")
    library = folder / "libnvidia-ml.so.1"
    flags = [
        "-shared",
        "-fPIC",
        "-O1",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-Wl,-soname,",
    ]
    flags[-1] += library.name
    subprocess.run([compiler, *flags, "-o", library, _SOURCE], check=True)
    return library


def load(library: Path) -> None:
    """Have the binding of this process find this library, whatever else the machine has."""
    ctypes.CDLL(str(library))


@contextmanager
def driver(folder: Path, count: int) -> Iterator[Driver]:
    """A driver with so many cards, for as long as the block lasts."""
    path = folder / "nvml"
    path.write_bytes(bytes(ctypes.sizeof(Driver)))
    with path.open(
        "r+b"
    ) as file:  # unmapped with the last one who knows of it
        made = Driver.from_buffer(mmap.mmap(file.fileno(), 0))
    made.count = count
    for number in range(count):
        _usual(made.cards[number], number)
    os.environ[STATE] = str(path)
    try:
        yield made
    finally:
        del os.environ[STATE]


def _usual(card: Card, number: int) -> None:
    card.uuid = f"GPU-{number}".encode()
    card.name = b"Tesla V100-SXM2-16GB"
    card.bus = f"00000000:{0x17 + number:02X}:00.0".encode()
    card.minor = number
    card.utilization = 50
    card.power_mw = 250_000
    card.energy_mj = 4_000_000
    card.memory_total = 16 * 2**30
    card.memory_used = 3 * 2**30
    card.temperature = 61
    card.sm_mhz = 1380
    card.memory_mhz = 877
    card.pcie_kbps[:] = (3_000, 5_000)
