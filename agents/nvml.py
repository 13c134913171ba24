"""Reads NVIDIA GPUs in one thread through NVML (``nvidia-ml-py``).

Tested with a compiled stand-in for the NVML library, never on an NVIDIA GPU.
"""

import asyncio
import ctypes
import itertools
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from patchlight.agents.errors import GpuError, log
from patchlight.agents.gpus import GpuBackend, GpuReading, PhysicalGpu
from patchlight.testbed.errors import PackageMissing, in_words
from patchlight.testbed.lab.model import Gpu, Server
from patchlight.testbed.wire.agent_status import GpuTelemetry

FALLEN_OFF_XID = 79
"""XID 79 in NVIDIA's catalogue: "GPU has fallen off the bus"."""

_NEVER = (
    "NVML_ERROR_NOT_SUPPORTED",
    "NVML_ERROR_NO_PERMISSION",
    "NVML_ERROR_FUNCTION_NOT_FOUND",
    "NVML_ERROR_NOT_FOUND",
    "NVML_ERROR_INVALID_ARGUMENT",
    "NVML_ERROR_ARGUMENT_VERSION_MISMATCH",
    "NVML_ERROR_DEPRECATED",
    "NVML_ERROR_VGPU_ECC_NOT_SUPPORTED",
)
_NOT_NOW = (
    "NVML_ERROR_NO_DATA",
    "NVML_ERROR_NOT_READY",
    "NVML_ERROR_TIMEOUT",
    "NVML_ERROR_INSUFFICIENT_SIZE",
)
# Selects all links where a field is per link.
_ALL_LINKS = 0xFFFFFFFF
_KIB_BITS = 8 * 1024
# Byte counters as NVML field values, with the bits per unit.
_COUNTERS = {
    "pcie_sent_bps": ("NVML_FI_DEV_PCIE_COUNT_TX_BYTES", 0, 8),
    "pcie_received_bps": ("NVML_FI_DEV_PCIE_COUNT_RX_BYTES", 0, 8),
    "nvlink_sent_bps": (
        "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX",
        _ALL_LINKS,
        _KIB_BITS,
    ),
    "nvlink_received_bps": (
        "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX",
        _ALL_LINKS,
        _KIB_BITS,
    ),
}


class NvmlCard:
    """One GPU, used by one thread. A value that the GPU lacks is tried once. Cheap values are read
    at each sample; slow ones, which take milliseconds, once a second."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        """``NVMLError`` if the GPU does not report its identity."""
        self._nvml = nvml
        self._handle = handle
        self._lacks: set[tuple[Any, ...]] = set()
        self._never = {
            getattr(nvml, name) for name in _NEVER if hasattr(nvml, name)
        }
        self._not_now = {
            getattr(nvml, name) for name in _NOT_NOW if hasattr(nvml, name)
        }
        self.model = _text(nvml.nvmlDeviceGetName(handle))
        uuid = _text(nvml.nvmlDeviceGetUUID(handle))
        minor = self._ask("nvmlDeviceGetMinorNumber")
        pci = self._ask("nvmlDeviceGetPciInfo")
        address = None
        if pci is not None:
            # sysfs writes 0000:17:00.0 where NVML writes 00000000:17:00.0.
            domain, _, rest = _text(pci.busId).lower().partition(":")
            address = f"{int(domain, 16):04x}:{rest}"
        self.physical = PhysicalGpu(uuid, minor, address)
        self._fields = [
            (name, getattr(nvml, field), scope, bits)
            for name, (field, scope, bits) in _COUNTERS.items()
            if hasattr(nvml, field)
        ]
        # The last value of each counter in bits, and when it was read (monotonic).
        self._counters: dict[str, tuple[float, int]] = {}
        self._directions = deque(
            [
                ("pcie_sent_bps", nvml.NVML_PCIE_UTIL_TX_BYTES),
                ("pcie_received_bps", nvml.NVML_PCIE_UTIL_RX_BYTES),
            ]
        )
        self._telemetry = GpuTelemetry()
        self._utilization: float | None = None
        self._busy_s = 0.0
        self._sampled_at_s: float | None = None
        self._power_w: float | None = None
        self._fallen = ""

    def note_xid(self, number: int, at: float) -> None:
        """Note that the driver reported an XID error of this GPU at that Unix time."""
        if number == FALLEN_OFF_XID:
            self._fallen = f"XID {number}: it has fallen off the bus"
        self._telemetry = replace(
            self._telemetry,
            xid=number,
            xid_at=at,
        )

    def read(self, name: str) -> GpuReading:
        """The latest sample, under the lab's name of the GPU."""
        return GpuReading(
            name=name,
            model=self.model,
            uuid=self.physical.uuid,
            utilization=self._utilization,
            busy_s=self._busy_s,
            telemetry=self._telemetry,
        )

    def sample(self, *, all_of_it: bool) -> None:
        """Read the GPU now; ``GpuError`` if it has fallen off the bus or does not answer."""
        if self._fallen:
            raise GpuError(
                self._fallen,
                hint="see the kernel log: dmesg | grep NVRM; the GPU needs a reset",
            )
        now_s = time.monotonic()
        rates = self._ask("nvmlDeviceGetUtilizationRates")
        power_mw = self._ask("nvmlDeviceGetPowerUsage")
        energy_mj = self._ask("nvmlDeviceGetTotalEnergyConsumption")
        self._utilization = None if rates is None else rates.gpu / 100
        passed_s = (
            0.0 if self._sampled_at_s is None else now_s - self._sampled_at_s
        )
        self._busy_s += (self._utilization or 0.0) * passed_s
        power_w = None if power_mw is None else power_mw / 1000
        energy_j, since = self._energy(energy_mj, power_w, passed_s)
        self._sampled_at_s = now_s
        self._power_w = power_w
        changes = self._slow_values(now_s) if all_of_it else {}
        self._telemetry = replace(
            self._telemetry,
            power_w=power_w,
            energy_j=energy_j,
            energy_since=since,
            **changes,
        )

    def _energy(
        self,
        counted_mj: int | None,
        power_w: float | None,
        passed_s: float,
    ) -> tuple[float | None, float | None]:
        if counted_mj is not None:
            return counted_mj / 1000, None
        if power_w is None:
            return self._telemetry.energy_j, self._telemetry.energy_since
        if self._telemetry.energy_j is None:
            return 0.0, time.time()
        mean_w = (
            power_w if self._power_w is None else (power_w + self._power_w) / 2
        )
        return (
            self._telemetry.energy_j + mean_w * passed_s,
            self._telemetry.energy_since,
        )

    def _slow_values(self, now_s: float) -> dict[str, Any]:
        nvml = self._nvml
        memory = self._ask("nvmlDeviceGetMemoryInfo")
        processes = self._ask("nvmlDeviceGetComputeRunningProcesses")
        mig = self._ask("nvmlDeviceGetMigMode")
        # Newer drivers replace the older function.
        degrees = self._ask(
            "nvmlDeviceGetTemperatureV", nvml.NVML_TEMPERATURE_GPU
        )
        if degrees is None:
            degrees = self._ask(
                "nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU
            )
        kinds = (
            nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED,
            nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
        )
        corrected, uncorrected = (
            self._ask(
                "nvmlDeviceGetTotalEccErrors", kind, nvml.NVML_VOLATILE_ECC
            )
            for kind in kinds
        )
        return {
            "memory_bytes": memory and memory.total,
            "memory_used_bytes": memory and memory.used,
            "temperature_c": None if degrees is None else int(degrees),
            "sm_clock_hz": _mega(
                self._ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM)
            ),
            "memory_clock_hz": _mega(
                self._ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM)
            ),
            "processes": None
            if processes is None
            else tuple(p.pid for p in processes),
            "mig": None
            if mig is None
            else mig[0] == nvml.NVML_DEVICE_MIG_ENABLE,
            "ecc_corrected": corrected,
            "ecc_uncorrected": uncorrected,
            **self._rates(now_s),
        }

    def _rates(self, now_s: float) -> Mapping[str, float | None]:
        """Bits per second over PCIe and NVLink. Without PCIe counters this takes 20 ms per
        direction."""
        wanted = [
            field for field in self._fields if (field[0],) not in self._lacks
        ]
        rates: dict[str, float | None] = {}
        if wanted:
            asked_for = tuple((field, scope) for _, field, scope, _ in wanted)
            values = self._ask("nvmlDeviceGetFieldValues", asked_for)
            for (name, _, _, bits), value in zip(
                wanted, values or (), strict=False
            ):
                if value.nvmlReturn in self._never:
                    self._lacks.add((name,))
                elif value.nvmlReturn == self._nvml.NVML_SUCCESS:
                    rates[name] = self._rate(
                        name, now_s, bits * value.value.ullVal
                    )
        if {("pcie_sent_bps",), ("pcie_received_bps",)} <= self._lacks:
            name, direction = self._directions[0]
            self._directions.rotate()
            kilobytes = self._ask("nvmlDeviceGetPcieThroughput", direction)
            rates[name] = None if kilobytes is None else 8000.0 * kilobytes
        return rates

    def _rate(
        self,
        name: str,
        now_s: float,
        bits: int,
    ) -> float | None:
        before_s, before = self._counters.get(name, (now_s, bits))
        self._counters[name] = now_s, bits
        if now_s <= before_s or bits < before:
            return None
        return (bits - before) / (now_s - before_s)

    def _ask(self, function: str, *arguments: Any) -> Any:
        key = (function, *arguments)
        if key in self._lacks:
            return None
        call = getattr(self._nvml, function, None)
        if call is None:  # The binding or the driver is older.
            self._lacks.add(key)
            return None
        try:
            return call(self._handle, *arguments)
        except self._nvml.NVMLError as exc:
            if exc.value in self._never:
                self._lacks.add(key)
                return None
            if exc.value in self._not_now:
                return None
            raise GpuError(
                f"the driver reports: {exc}",
                hint="see the kernel log: dmesg | grep NVRM; nvidia-smi -q shows details",
            ) from exc


def _mega(megahertz: int | None) -> float | None:
    return None if megahertz is None else 1e6 * megahertz


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


_SLOW_S = 1.0
# A driver call that takes longer has lost its GPU.
_SILENT_S = 5.0


class NvmlGpus(GpuBackend):
    """NVIDIA GPUs, read ``rate_hz`` times a second. A GPU without ``uuid`` is the one at the same
    index in the driver's list, if the counts match. Busy time is integrated from utilisation, and
    energy from power if the GPU has no counter."""

    def __init__(self, server: Server, rate_hz: float) -> None:
        self._gpus = {
            gpu.name: (index, gpu) for index, gpu in enumerate(server.gpus)
        }
        self._period_s = 1 / rate_hz
        # Written by the sampling thread; each value is replaced as a whole.
        self._problems: dict[str, GpuError] = {}
        self._cards: dict[str, NvmlCard] = {}
        self._sampled_at_s = time.monotonic()
        self._by_handle: dict[int | None, NvmlCard] = {}
        self._events: Any = None
        self._nvml: Any = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    async def open(self) -> None:
        """Load the driver's library and find the GPUs; ``GpuError`` without a driver."""
        if not self._gpus:
            return
        await asyncio.to_thread(self._open)
        self._thread = threading.Thread(
            target=self._run,
            name="nvml",
            daemon=True,
        )
        self._thread.start()

    def _open(self) -> None:
        try:
            import pynvml
        except ImportError as exc:
            missing = PackageMissing("reading NVIDIA GPUs", exc)
            raise GpuError(missing.message, hint=missing.hint) from exc
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as exc:
            raise GpuError(
                f"opening the NVIDIA driver: {exc}",
                hint="install the NVIDIA driver (nvidia-smi must work), or use --gpu-source "
                "socket:DIR for emulated GPUs",
            ) from exc
        self._nvml = pynvml
        try:
            self._events = pynvml.nvmlEventSetCreate()
        except pynvml.NVMLError as exc:
            log.warning("XID errors of GPUs cannot be monitored: %s", exc)
        for name in self._gpus:
            self._sample(name, all_of_it=True)

    def _find(
        self,
        name: str,
        index: int,
        gpu: Gpu,
    ) -> NvmlCard:
        nvml = self._nvml
        try:
            if gpu.uuid:
                handle = nvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
            elif (count := nvml.nvmlDeviceGetCount()) < len(self._gpus):
                raise GpuError(
                    f"GPU {name}: this server has {count} GPUs but the lab file lists "
                    f"{len(self._gpus)}: the missing one cannot be identified",
                    hint="set each GPU's 'uuid:' in the lab file; nvidia-smi -L shows them",
                )
            else:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
            card = NvmlCard(nvml, handle)
        except nvml.NVMLError as exc:
            which = f"with UUID {gpu.uuid}" if gpu.uuid else f"number {index}"
            raise GpuError(
                f"GPU {name} of the lab file: this server has no GPU {which}: {exc}",
                hint="compare the lab file with: nvidia-smi -L",
            ) from exc
        with suppress(nvml.NVMLError):  # some GPUs do not report XID errors
            known = nvml.nvmlDeviceGetSupportedEventTypes(handle)
            xid = nvml.nvmlEventTypeXidCriticalError
            if self._events is not None and known & xid:
                nvml.nvmlDeviceRegisterEvents(handle, xid, self._events)
                self._by_handle[_address(handle)] = card
        return card

    def _run(self) -> None:
        """Sample until stopped. Slow values are read once a second, spread over samples."""
        slow_every = max(1, round(_SLOW_S / self._period_s))
        begins_s = time.monotonic()
        for number in itertools.count():
            if self._rest(begins_s + self._period_s):
                return
            begins_s = time.monotonic()
            for place, name in enumerate(self._gpus):
                try:
                    self._sample(
                        name, all_of_it=(number + place) % slow_every == 0
                    )
                except (
                    Exception
                ) as exc:  # a failing GPU must not stop the others
                    self._problems[name] = GpuError(
                        f"reading GPU {name}: {in_words(exc)}"
                    )
            self._sampled_at_s = time.monotonic()

    def _sample(self, name: str, *, all_of_it: bool) -> None:
        try:
            if name not in self._cards:
                if not all_of_it:
                    return
                self._cards[name] = self._find(name, *self._gpus[name])
            self._cards[name].sample(all_of_it=all_of_it)
        except GpuError as exc:
            self._problems[name] = exc
        else:
            self._problems.pop(name, None)

    def _rest(self, until_s: float) -> bool:
        """Listen for XID errors until that time; returns whether to stop."""
        while (
            left_s := until_s - time.monotonic()
        ) > 0 and not self._stop.is_set():
            if not self._by_handle:
                self._stop.wait(left_s)
                continue
            try:
                event = self._nvml.nvmlEventSetWait(
                    self._events, int(1000 * left_s) + 1
                )
            except self._nvml.NVMLError as exc:
                if (
                    exc.value != self._nvml.NVML_ERROR_TIMEOUT
                ):  # a lost GPU makes the call return immediately
                    self._stop.wait(left_s)
                continue
            card = self._by_handle.get(_address(event.device))
            if (
                card is not None
                and event.eventType == self._nvml.nvmlEventTypeXidCriticalError
            ):
                card.note_xid(event.eventData, time.time())
                log.warning(
                    "GPU %s: XID error %s", card.physical.uuid, event.eventData
                )
        return self._stop.is_set()

    async def read(self, name: str) -> GpuReading:
        """Return the latest sample."""
        silent_s = time.monotonic() - self._sampled_at_s
        if silent_s > _SILENT_S + self._period_s:
            raise GpuError(
                f"reading GPU {name}: the NVIDIA driver has not answered for {silent_s:.0f} s",
                hint="see the kernel log: dmesg | grep NVRM",
            )
        if (problem := self._problems.get(name)) is not None:
            raise problem
        return self._cards[name].read(name)

    def physical(self, name: str) -> PhysicalGpu | None:
        """The GPU as the driver reports it; ``None`` if it was never found."""
        card = self._cards.get(name)
        return card.physical if card else None

    async def close(self) -> None:
        """Stop reading and close the driver."""
        self._stop.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, _SILENT_S)
            if self._thread.is_alive():  # the thread is stuck in a driver call
                return
        if self._nvml is not None:
            if self._events is not None:
                await asyncio.to_thread(
                    self._nvml.nvmlEventSetFree, self._events
                )
            await asyncio.to_thread(self._nvml.nvmlShutdown)


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value
