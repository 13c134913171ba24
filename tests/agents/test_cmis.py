"""Lasers of CMIS modules: a module's memory in a folder like optoe's, with a module behind it."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from patchlight.agents.nics.cmis import CmisLaser, MemoryFile, memory_of
from patchlight.agents.nics.tuners import cmis_tuner
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.lab.spectrum import Channel
from patchlight.testbed.labfile.reader import load_lab
from tests.support.waiting import eventually

PAGES = 0x13
ALL_GRIDS = 0xFF
RANGES = {130: 1536, 134: 768, 138: 384, 142: 192, 146: 96, 150: 48, 158: 192}


class Module:
    """The memory of a 400ZR module, and what its firmware does with it in a thread."""

    def __init__(self, folder: Path, port: str = "nic0") -> None:
        folder.mkdir(parents=True)
        (folder / "port_name").write_text(f"{port}\n")
        self.path = folder / "eeprom"
        self.path.write_bytes(bytes((PAGES + 1) * 128))
        self.memory = MemoryFile(self.path)
        self.memory.write(0, 0, bytes([0x18, 0x52]))
        self.memory.write(0x01, 155, bytes([0x40]))
        self.memory.write(0x04, 128, bytes([ALL_GRIDS]))
        for byte, most in RANGES.items():
            self.memory.write(
                0x04,
                byte,
                b"".join(
                    n.to_bytes(2, "big", signed=True) for n in (-most, most)
                ),
            )
        self.memory.write(0x12, 128, bytes([0x37]))
        self.refuses = 0
        self.off_by_mhz = 0
        self.takes_s = 0.02
        self.sent_mhz: list[int] = []
        # Grid 3 and a channel that no test asks for.
        self.memory.write(0x12, 136, (7).to_bytes(2, "big"))
        self._first = self._setting()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join()

    def _work(self) -> None:
        last = self._first
        while not self._ended.wait(0.001):
            if self._setting() != last:
                last = self._setting()
                self._retune()
            if not self.memory.read(0x10, 130, 1)[0] & 1:
                frequency = self.memory.read(0x12, 168, 4)
                self.sent_mhz.append(int.from_bytes(frequency, "big"))

    def _setting(self) -> tuple[int, int]:
        number = self.memory.read(0x12, 136, 2)
        return (
            self.memory.read(0x12, 128, 1)[0] >> 4,
            int.from_bytes(number, "big", signed=True),
        )

    def _retune(self) -> None:
        # A module that is tuned while it sends would sweep over other channels.
        assert self.memory.read(0x10, 130, 1)[0] & 1
        self.memory.write(0x12, 222, bytes([0b11]))
        time.sleep(self.takes_s)  # a laser needs its time
        if self.refuses:
            self.memory.write(0x12, 231, bytes([1 << self.refuses]))
            self.memory.write(0x12, 222, bytes([0b01]))
            return
        grid, number = self._setting()
        step = {0: 3125, 1: 6250, 2: 12500, 3: 25000, 4: 50000, 5: 100000}
        mhz = 193_100_000 + number * step.get(grid, 25_000) + self.off_by_mhz
        self.memory.write(0x12, 168, mhz.to_bytes(4, "big"))
        self.memory.write(0x12, 222, bytes([0]))


@contextmanager
def module(folder: Path, port: str = "nic0") -> Iterator[Module]:
    made = Module(folder, port)
    try:
        yield made
    finally:
        made.end()


def laser_of(made: Module) -> CmisLaser:
    return CmisLaser(made.memory, "nic0", 0.0)


@pytest.mark.parametrize(
    ("channel", "grid", "number"),
    [
        ("193.100", 5, 0),
        ("194.200", 5, 11),
        ("191.350", 4, -35),
        ("193.175/75", 7, 3),
        ("193.025/75", 7, -3),
        ("193.125", 3, 1),
        ("193.1125", 2, 1),
        ("193.10625", 1, 1),
    ],
)
async def test_a_laser_is_tuned_on_the_widest_grid_that_fits(
    channel: str,
    grid: int,
    number: int,
    tmp_path: Path,
) -> None:
    with module(tmp_path / "4-0050") as made:
        laser = laser_of(made)
        laser.tune(Channel.parse(channel))
        assert not laser.state().on
        await eventually(lambda: laser.state().on)
        # The bits beside the grid are the module's.
        assert made.memory.read(0x12, 128, 1)[0] == grid << 4 | 7
        assert (
            int.from_bytes(made.memory.read(0x12, 136, 2), "big", signed=True)
            == number
        )
        wanted = round(float(channel.partition("/")[0]) * 1e6)
        assert laser.state().frequency_mhz == wanted
        assert laser.fault == ""


async def test_the_laser_is_off_while_it_is_tuned_and_the_last_wish_counts(
    tmp_path: Path,
) -> None:
    with module(tmp_path / "4-0050") as made:
        made.takes_s = 0.2
        laser = laser_of(made)
        laser.tune(Channel.parse("193.200"))
        laser.tune(Channel.parse("193.400"))
        await eventually(lambda: laser.state().on)
        await eventually(lambda: 193_400_000 in made.sent_mhz)
        assert 193_200_000 not in made.sent_mhz

        laser.tune(Channel.parse("193.300"))
        laser.darken()
        await eventually(lambda: laser.state().frequency_mhz == 193_300_000)
        await eventually(lambda: laser.state().settled)
        assert not laser.state().on


@pytest.mark.parametrize("bit", [2, 3, 4, 5])
async def test_a_refused_tuning_leaves_the_laser_off(
    bit: int, tmp_path: Path
) -> None:
    with module(tmp_path / "4-0050") as made:
        made.refuses = bit
        laser = laser_of(made)
        laser.tune(Channel.parse("193.200"))
        await eventually(lambda: bool(laser.fault))
        assert "not tuned to 193.200" in laser.fault
        assert not laser.state().on


async def test_a_wrong_frequency_leaves_the_laser_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("patchlight.agents.nics.cmis._PATIENCE_S", 0.3)
    with module(tmp_path / "4-0050") as made:
        made.off_by_mhz = 12_500
        laser = laser_of(made)
        laser.tune(Channel.parse("193.200"))
        await eventually(lambda: bool(laser.fault))
        assert "it reports 193.21250 THz" in laser.fault
        assert not laser.state().on


@pytest.mark.parametrize(
    ("byte", "value", "message"),
    [
        ((0, 0), 0x11, "is not a CMIS 5 module"),
        ((0, 1), 0x40, "is not a CMIS 5 module"),
        ((0x01, 155), 0x00, "cannot be tuned"),
        ((0x04, 128), 0x00, "cannot send channel 193.200"),
    ],
)
def test_what_a_module_cannot_do(
    byte: tuple[int, int],
    value: int,
    message: str,
    tmp_path: Path,
) -> None:
    with module(tmp_path / "4-0050") as made:
        made.memory.write(*byte, bytes([value]))
        before = made.path.read_bytes()
        with pytest.raises(BadInput, match=message):
            laser_of(made).tune(Channel.parse("193.200"))
        assert made.path.read_bytes() == before


def test_a_channel_out_of_range(tmp_path: Path) -> None:
    with module(tmp_path / "4-0050") as made:
        made.memory.write(0x04, 150, (10).to_bytes(2, "big") * 2)
        made.memory.write(0x04, 128, bytes([0b10_0000]))
        with pytest.raises(BadInput, match="outside its grids"):
            laser_of(made).tune(Channel.parse("193.200"))


def test_a_module_that_is_pulled_out(tmp_path: Path) -> None:
    with module(tmp_path / "4-0050") as made:
        laser = laser_of(made)
    made.path.unlink()
    with pytest.raises(PatchlightError, match="does not answer"):
        laser.tune(Channel.parse("193.2"))
    with pytest.raises(PatchlightError, match="does not answer"):
        laser.darken()


def test_modules_are_found_by_the_names_of_their_ports(
    tmp_path: Path,
) -> None:
    with module(tmp_path / "4-0050", "nic1"):
        assert memory_of("nic0", tmp_path) is None
        assert memory_of("nic1", tmp_path) == tmp_path / "4-0050/eeprom"
        (server, *_) = load_lab("oddl4").servers
        assert cmis_tuner(server, tmp_path) is None


async def test_a_server_s_tuner_tunes_its_nics(tmp_path: Path) -> None:
    (server, *_) = load_lab("oddl4").servers
    (nic, *others) = server.nics
    with module(tmp_path / "4-0050", nic.interface or nic.name) as made:
        tuner = cmis_tuner(server, tmp_path)
        assert tuner is not None
        tuner.tune(nic, Channel.parse("193.150"))
        await eventually(lambda: 193_150_000 in made.sent_mhz)
        tuner.darken(nic)
        assert laser_of(made).state().on is False
        for other in others:
            with pytest.raises(
                PatchlightError, match="its module's memory is missing"
            ):
                tuner.darken(other)
        tuner.close()
