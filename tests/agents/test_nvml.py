"""NVIDIA GPUs through the real binding, over a library with NVML's interface."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from patchlight.agents.errors import GpuError
from patchlight.agents.gpus import GpuReading
from patchlight.agents.nvml import NvmlGpus
from patchlight.testbed.lab.model import Gpu, Server
from patchlight.testbed.wire.agent_status import GpuTelemetry
from tests.support import nvml
from tests.support.nvml import Driver
from tests.support.waiting import PATIENCE_S

SERVER = Server(
    "server1", None, (Gpu("gpu0", "V100"), Gpu("gpu1", "V100", "GPU-1")), ()
)


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that the binding finds in this process."""
    if nvml.LIBRARY in os.environ:
        path = Path(os.environ[nvml.LIBRARY])
    else:
        try:
            path = nvml.build(tmp_path_factory.mktemp("nvml"))
        except FileNotFoundError as exc:
            pytest.skip(str(exc))
    nvml.load(path)
    return path


@pytest.fixture
def driver(library: Path, tmp_path: Path) -> Iterator[Driver]:
    """Two cards that tell all that there is."""
    if nvml.LIBRARY in os.environ:
        pytest.skip(f"{library} does not take what tests say of its cards")
    with nvml.driver(tmp_path, 2) as made:
        yield made


@asynccontextmanager
async def gpus(
    server: Server = SERVER, rate_hz: float = 50
) -> AsyncIterator[NvmlGpus]:
    backend = NvmlGpus(server, rate_hz)
    await backend.open()
    try:
        yield backend
    finally:
        await backend.close()


async def until(backend: NvmlGpus, name: str, field: str) -> GpuReading:
    """The first reading that has it."""
    end = time.monotonic() + PATIENCE_S
    while (
        getattr((reading := await backend.read(name)).telemetry, field) is None
    ):
        assert time.monotonic() < end, f"{field} stayed unknown"
        await asyncio.sleep(0.01)  # the pause between two looks
    return reading


async def until_it_fails(backend: NvmlGpus, name: str) -> GpuError:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        try:
            await backend.read(name)
        except GpuError as exc:
            return exc
        await asyncio.sleep(0.01)  # the pause between two looks
    raise AssertionError(f"{name} goes on")


def telemetry(reading: GpuReading) -> GpuTelemetry:
    assert reading.telemetry is not None
    return reading.telemetry


async def test_whatever_library_is_there_its_gpu_is_read(
    library: Path, tmp_path: Path
) -> None:
    """The one test for a library of somebody else."""
    one = Server("server1", None, (Gpu("gpu0", "any"),), ())
    with nvml.driver(tmp_path, 1):
        async with gpus(one) as backend:
            reading = await backend.read("gpu0")
            assert reading.uuid.startswith("GPU-")
            found = backend.physical("gpu0")
            assert found is not None
            assert found.uuid == reading.uuid


async def test_all_that_a_card_tells_is_read(driver: Driver) -> None:
    card = driver.cards[1]
    card.process_count = 1
    card.processes[0] = 4711
    card.mig = 1
    card.ecc[:] = (3, 1)
    async with gpus() as backend:
        reading = await backend.read("gpu1")
        told = telemetry(reading)
        assert (reading.model, reading.uuid) == (
            "Tesla V100-SXM2-16GB",
            "GPU-1",
        )
        assert reading.utilization == 0.5
        assert (told.power_w, told.energy_j, told.energy_since) == (
            250.0,
            4000.0,
            None,
        )
        assert (told.memory_bytes, told.memory_used_bytes) == (
            16 * 2**30,
            3 * 2**30,
        )
        assert (told.temperature_c, told.processes, told.mig) == (
            61,
            (4711,),
            True,
        )
        assert (told.sm_clock_hz, told.memory_clock_hz) == (1.38e9, 8.77e8)
        assert (told.ecc_corrected, told.ecc_uncorrected) == (3, 1)
        found = backend.physical("gpu1")
        assert found is not None
        assert (found.minor, found.pci_address) == (1, "0000:18:00.0")


async def test_rates_are_what_counters_gain(driver: Driver) -> None:
    card = driver.cards[0]
    async with gpus() as backend:
        assert telemetry(await backend.read("gpu0")).nvlink_sent_bps is None
        card.nvlink_kib[:] = (1024, 2048)
        card.pcie_bytes[:] = (1000, 4000)
        told = telemetry(await until(backend, "gpu0", "nvlink_sent_bps"))
        assert told.nvlink_sent_bps
        assert told.nvlink_received_bps == pytest.approx(
            2 * told.nvlink_sent_bps
        )
        assert told.pcie_sent_bps
        assert told.pcie_received_bps == pytest.approx(4 * told.pcie_sent_bps)


async def test_what_a_card_lacks_is_a_missing_value_and_tried_once(
    driver: Driver,
) -> None:
    words = "utilization power energy temperature temperature_v clock mig ecc processes memory"
    lacking = [*words.split(), "pcie_fields", "nvlink_fields"]
    card = driver.cards[0]
    card.lack(*lacking)
    async with gpus() as backend:
        # Without counters of PCIe it is measured, one direction at a time.
        told = telemetry(await until(backend, "gpu0", "pcie_received_bps"))
        reading = await backend.read("gpu0")
        assert (told.pcie_sent_bps, told.pcie_received_bps) == (24e6, 40e6)
        assert reading.utilization is None
        missing = GpuTelemetry(pcie_sent_bps=24e6, pcie_received_bps=40e6)
        assert told == missing
        assert telemetry(await backend.read("gpu1")).power_w == 250
        # Both clocks and both kinds of memory errors are of one function.
        once = dict.fromkeys(lacking, 1) | {"clock": 2, "ecc": 2}
        del once["pcie_fields"], once["nvlink_fields"]
        assert {each: card.calls(each) for each in once} == once


async def test_an_older_driver_has_the_older_function_of_the_temperature(
    driver: Driver,
) -> None:
    driver.cards[0].lack("temperature_v")
    async with gpus() as backend:
        assert telemetry(await backend.read("gpu0")).temperature_c == 61


async def test_energy_is_the_integral_of_power_where_none_is_counted(
    driver: Driver,
) -> None:
    driver.cards[0].lack("energy")
    began = time.time()
    began_s = time.monotonic()
    async with gpus() as backend:
        reading = await backend.read("gpu0")
        while (used_j := telemetry(reading).energy_j or 0.0) < 50:
            await asyncio.sleep(0.01)  # the pause between two looks
            reading = await backend.read("gpu0")
        since = telemetry(reading).energy_since
        assert since is not None
        assert since >= began
        assert used_j <= 250 * (time.monotonic() - began_s)
        assert reading.busy_s == pytest.approx(used_j / 250 * 0.5)


async def test_a_gpu_that_falls_off_leaves_the_others_and_may_come_back(
    driver: Driver,
) -> None:
    async with gpus() as backend:
        for code, words in (
            (nvml.LOST, "GPU is lost"),
            (nvml.UNKNOWN, "Unknown Error"),
        ):
            driver.cards[0].error = code
            assert words in (await until_it_fails(backend, "gpu0")).message
            assert telemetry(await backend.read("gpu1")).power_w == 250
            driver.cards[0].error = 0
            end = time.monotonic() + PATIENCE_S
            while time.monotonic() < end:
                try:
                    await backend.read("gpu0")
                    break
                except GpuError:
                    await asyncio.sleep(0.01)  # the pause between two looks
            else:
                raise AssertionError("it does not come back")


async def test_xid_errors_are_told_and_one_of_them_means_that_it_fell_off(
    driver: Driver,
) -> None:
    async with gpus(rate_hz=10) as backend:
        driver.cards[0].xid = 31  # a fault of the program's
        assert telemetry(await until(backend, "gpu0", "xid")).xid == 31
        assert telemetry(await backend.read("gpu1")).xid is None
        driver.cards[1].xid = 79
        assert (
            "fallen off the bus"
            in (await until_it_fails(backend, "gpu1")).message
        )
        await backend.read("gpu0")


async def test_a_card_that_reports_no_xid_errors_is_read_all_the_same(
    driver: Driver,
) -> None:
    for card in driver.cards:
        card.lack("events")
    async with gpus():
        before = driver.cards[0].calls("utilization")
        while driver.cards[0].calls("utilization") < before + 3:  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # the pause between two looks


async def test_a_gpu_that_is_not_there_leaves_the_others(
    driver: Driver,
) -> None:
    driver.cards[0].uuid = b"GPU-1"
    driver.count = 1
    async with gpus() as backend:
        assert (await backend.read("gpu1")).uuid == "GPU-1"
        # Of those without a UUID it cannot be said which one is missing.
        with pytest.raises(
            GpuError, match="has 1 GPUs but the lab file lists 2"
        ) as raised:
            await backend.read("gpu0")
        assert "uuid:" in str(raised.value.hint)
    driver.cards[0].uuid = b"GPU-0"
    driver.cards[1].uuid = b"GPU-2"
    driver.count = 2
    async with gpus() as backend:
        assert (await backend.read("gpu0")).utilization == 0.5
        with pytest.raises(GpuError, match="no GPU with UUID GPU-1"):
            await backend.read("gpu1")
        assert backend.physical("gpu1") is None


@pytest.mark.usefixtures("library")
async def test_no_nvidia_driver_is_said() -> None:
    if nvml.LIBRARY in os.environ:
        pytest.skip("there is another library, and what it says is its own")
    with pytest.raises(GpuError, match="opening the NVIDIA driver") as raised:
        await NvmlGpus(SERVER, 10).open()
    assert "nvidia-smi" in str(raised.value.hint)
