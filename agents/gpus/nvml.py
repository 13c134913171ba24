"""NVIDIA GPUs, read by one thread through NVML (``nvidia-ml-py``).

It has run against a library with NVML's interface that the tests compile, on no NVIDIA GPU.
"""

import asyncio
import ctypes
import itertools
import logging
import threading
import time
from typing import Any

from patchlight.agents.errors import GpuError
from patchlight.agents.gpus.contract import GpuBackend, GpuReading, PhysicalGpu
from patchlight.agents.gpus.nvml_card import NvmlCard
from patchlight.testbed.errors import in_words
from patchlight.testbed.lab.model import Gpu, Server

_SLOW_S = 1.0
# A driver that does not come back from a call for so long has lost its GPU.
_SILENT_S = 5.0
_log = logging.getLogger("patchlight.agent")


class NvmlGpus(GpuBackend):
    """NVIDIA GPUs, ``rate_hz`` times a second; CUDA finds them by their UUIDs.

    A GPU of the lab file with a ``uuid`` is that one; one without is the server's GPU at the
    same place in the list, as long as the server has as many as that. NVML counts no busy time, so
    it is summed up from its utilisation, and energy from power where a card counts none.
    """

    def __init__(self, server: Server, rate_hz: float) -> None:
        self._gpus = {gpu.name: (index, gpu) for index, gpu in enumerate(server.gpus)}
        self._period_s = 1 / rate_hz
        # Written by the thread that samples alone, each value whole.
        self._problems: dict[str, GpuError] = {}
        self._cards: dict[str, NvmlCard] = {}
        self._sampled_at_s = time.monotonic()
        self._by_handle: dict[int | None, NvmlCard] = {}
        self._events: Any = None
        self._nvml: Any = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    async def open(self) -> None:
        """Load the driver's library and find the GPUs; ``GpuError`` if there is no driver."""
        if not self._gpus:
            return
        await asyncio.to_thread(self._open)
        self._thread = threading.Thread(target=self._run, name="nvml", daemon=True)
        self._thread.start()

    def _open(self) -> None:
        try:
            import pynvml
        except ImportError as exc:
            raise GpuError(
                "reading NVIDIA GPUs needs the package nvidia-ml-py, which is not installed",
                hint="pip install nvidia-ml-py",
            ) from exc
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as exc:
            raise GpuError(
                f"opening the NVIDIA driver: {exc}",
                hint="install the NVIDIA driver (nvidia-smi must work), or give --gpus socket:DIR "
                "for emulated GPUs",
            ) from exc
        self._nvml = pynvml
        try:
            self._events = pynvml.nvmlEventSetCreate()
        except pynvml.NVMLError as exc:
            _log.warning("XID errors of GPUs are not heard of: %s", exc)
        for name in self._gpus:
            self._sample(name, all_of_it=True)

    def _find(self, name: str, index: int, gpu: Gpu) -> NvmlCard:
        nvml = self._nvml
        try:
            if gpu.uuid:
                handle = nvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
            elif (count := nvml.nvmlDeviceGetCount()) < len(self._gpus):
                raise GpuError(
                    f"GPU {name} of the lab file: this server has {count} GPUs of "
                    f"{len(self._gpus)}, and which is missing nobody knows",
                    hint="give each its 'uuid:' in the lab file; nvidia-smi -L shows them",
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
        self._listen(handle, card)
        return card

    def _listen(self, handle: Any, card: NvmlCard) -> None:
        """Have XID errors of this GPU reported, where the card reports them."""
        nvml = self._nvml
        try:
            known = nvml.nvmlDeviceGetSupportedEventTypes(handle)
            if self._events is None or not known & nvml.nvmlEventTypeXidCriticalError:
                return
            nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, self._events)
        except nvml.NVMLError:
            return
        self._by_handle[_address(handle)] = card

    def _run(self) -> None:
        """Sample until the end; all of a GPU once a second, each at another sample."""
        slow_every = max(1, round(_SLOW_S / self._period_s))
        begins_s = time.monotonic()
        for number in itertools.count():
            if self._rest(begins_s + self._period_s):
                return
            begins_s = time.monotonic()
            for place, name in enumerate(self._gpus):
                try:
                    self._sample(name, all_of_it=(number + place) % slow_every == 0)
                except Exception as exc:  # whatever one GPU says, the others are read
                    self._problems[name] = GpuError(f"reading GPU {name}: {in_words(exc)}")
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
        """Until then, listening for XID errors meanwhile; whether it is time to end."""
        while (left_s := until_s - time.monotonic()) > 0 and not self._stop.is_set():
            if not self._by_handle:
                self._stop.wait(left_s)
                continue
            try:
                event = self._nvml.nvmlEventSetWait(self._events, int(1000 * left_s) + 1)
            except self._nvml.NVMLError as exc:
                if exc.value != self._nvml.NVML_ERROR_TIMEOUT:  # a lost GPU makes it return at once
                    self._stop.wait(left_s)
                continue
            card = self._by_handle.get(_address(event.device))
            if card is not None and event.eventType == self._nvml.nvmlEventTypeXidCriticalError:
                card.note_xid(event.eventData, time.time())
                _log.warning("GPU %s: XID error %s", card.physical.uuid, event.eventData)
        return self._stop.is_set()

    async def read(self, name: str) -> GpuReading:
        """What the latest sample said."""
        silent_s = time.monotonic() - self._sampled_at_s
        if silent_s > _SILENT_S + self._period_s:
            raise GpuError(
                f"reading GPU {name}: the NVIDIA driver has not answered for {silent_s:.0f} s",
                hint="see what the kernel says: dmesg | grep NVRM",
            )
        if (problem := self._problems.get(name)) is not None:
            raise problem
        return self._cards[name].read(name)

    def physical(self, name: str) -> PhysicalGpu | None:
        """The GPU as the driver knows it; ``None`` for one that was never found."""
        card = self._cards.get(name)
        return card.physical if card else None

    async def close(self) -> None:
        """Stop reading and let go of the driver."""
        self._stop.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, _SILENT_S)
            if self._thread.is_alive():  # in a call that does not come back
                return
        if self._nvml is not None:
            await asyncio.to_thread(self._shut_down)

    def _shut_down(self) -> None:
        if self._events is not None:
            self._nvml.nvmlEventSetFree(self._events)
        self._nvml.nvmlShutdown()


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value
