"""Keeps the worker's GPU busy in the compute phase, for as long as the job's profile says.

An emulated GPU is occupied through its socket. On a CUDA GPU matrices are multiplied until
the time is over (PyTorch); without a GPU the processor does that. ``name`` of the device goes
into every report, so that results of different devices are not mixed up.
"""

from __future__ import annotations

import json
import socket
import time
from typing import Any, Protocol

from .task import TrainingError, TrainingTask


class ComputeDevice(Protocol):
    """Something that computes for a given time; ``begin`` may return before it is over."""

    name: str

    def begin(self, seconds: float) -> None:
        """Start computing for so many seconds."""

    def finish(self) -> None:
        """Return when the compute phase that was begun is over."""

    def close(self) -> None:
        """Give the device back."""


class SocketGpu:
    """An emulated GPU behind a Unix socket; held by this connection alone while it is open."""

    name = "emulated-gpu"

    def __init__(self, path: str, tenant: str, deadline_s: float = 5.0) -> None:
        self._path = path
        end = time.monotonic() + deadline_s
        while True:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                self._socket.connect(path)
            except OSError as exc:
                raise TrainingError(f"connecting to the emulated GPU {path}: {exc}") from exc
            self._stream = self._socket.makefile("rb")
            self._send({"op": "attach", "tenant": tenant})
            try:
                self._answer("attaching to")
                return
            except TrainingError:
                self.close()
                # The tenant before may be on its way out.
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)

    def begin(self, seconds: float) -> None:
        """Start computing for so many seconds."""
        self._send({"op": "occupy", "seconds": seconds})

    def finish(self) -> None:
        """Return when that time is over."""
        self._answer("computing on")

    def close(self) -> None:
        """Give the device back."""
        self._stream.close()  # the socket stays open as long as this does
        self._socket.close()

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError as exc:
            raise TrainingError(f"the emulated GPU {self._path} is gone: {exc}") from exc

    def _answer(self, doing: str) -> None:
        try:
            line = self._stream.readline()
            reply = json.loads(line) if line else {"error": "it closed the connection"}
        except (OSError, ValueError) as exc:
            reply = {"error": str(exc)}
        if reply.get("ok") is not True:
            raise TrainingError(f"{doing} the emulated GPU {self._path}: {reply.get('error')}")


class _Multiplier:
    """Multiplies matrices for as long as the compute phase is to take."""

    name = ""
    _seconds = 0.0

    def begin(self, seconds: float) -> None:
        self._seconds = seconds

    def finish(self) -> None:
        end = time.monotonic() + self._seconds
        while (left_s := end - time.monotonic()) > 0:
            self._compute(left_s)

    def _compute(self, left_s: float) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Give the device back, if there is one."""


class _CudaGpu(_Multiplier):
    """A CUDA GPU that multiplies matrices, through PyTorch."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.name = f"cuda: {torch.cuda.get_device_name(0)}"
        self._a = torch.randn(2048, 2048, device="cuda", dtype=torch.float16)
        self._b = torch.randn(2048, 2048, device="cuda", dtype=torch.float16)
        self._out = torch.empty_like(self._a)
        self._multiply(3)  # the first ones also load kernels
        began = time.monotonic()
        self._multiply(50)
        self._one_s = (time.monotonic() - began) / 50

    def _multiply(self, times: int) -> None:
        for _ in range(times):
            self._torch.mm(self._a, self._b, out=self._out)
        self._torch.cuda.synchronize()

    def _compute(self, left_s: float) -> None:
        # Batches of at most 20 ms, so that the calibration may drift with the clocks.
        self._multiply(max(1, int(min(left_s, 0.02) / self._one_s)))

    def close(self) -> None:
        self._torch.cuda.empty_cache()


class _Processor(_Multiplier):
    """No GPU: the processor multiplies matrices."""

    name = "cpu: numpy"

    def __init__(self) -> None:
        import numpy as np

        self._a = np.ones((128, 128), dtype=np.float32)
        self._multiply = np.matmul

    def _compute(self, left_s: float) -> None:
        self._multiply(self._a, self._a)


class _Sleeper:
    """Computes nothing: only the time of the compute phase passes."""

    name = "sleep"

    def __init__(self) -> None:
        self._end = 0.0

    def begin(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def finish(self) -> None:
        time.sleep(max(0.0, self._end - time.monotonic()))

    def close(self) -> None:
        """There is no device to give back."""


class _ItsOwn(_Sleeper):
    """The device of a model: the model's own passes keep it busy for as long as they take."""

    name = ""

    def begin(self, seconds: float) -> None:
        """There is nothing to compute beside the model."""


def open_device(task: TrainingTask) -> ComputeDevice:
    """The device that the task names; ``TrainingError`` if it refuses."""
    if task.gpu_socket is not None:
        return SocketGpu(task.gpu_socket, task.id)
    if task.model is not None:
        return _ItsOwn()
    if task.device == "sleep":
        return _Sleeper()
    try:
        import torch  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return _Processor()
    return _CudaGpu(torch) if torch.cuda.is_available() else _Processor()
