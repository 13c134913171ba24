"""Defines one worker's task file and its compute device: an emulated GPU behind its socket, or a
CUDA GPU or CPU that multiplies matrices. Reports carry the device's ``name`` so that results of
different devices are not mixed."""

from __future__ import annotations

import json
import socket
import time
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:  # slow to import
    from pathlib import Path


class TrainingError(Exception):
    """The worker cannot continue. The message names the step, the peer and the reply."""


@dataclass(frozen=True)
class Member:
    """One worker of the ring, and the address where its predecessor connects."""

    rank: int
    address: str
    port: int


@dataclass(frozen=True)
class TrainingTask:
    """One worker's part of a job. Times in seconds; ``ring`` is in the order of ranks.

    ``gpu_socket`` is an emulated GPU's Unix socket, if the worker has such a GPU; ``device`` is
    ``"auto"`` or ``"sleep"`` (compute nothing, only let the time pass); ``join_s`` is how long the
    peers may take to come up (the controller may end all of them earlier), ``deadline_s`` how long
    a neighbour may take later; ``window_bytes`` is how much a neighbour may send ahead
    (``None``: as the kernel sees fit). Iterations before ``first_iteration`` were done by workers
    before this one. With ``paths``, the worker requests an optical path for each all-reduce.
    ``transport``: what carries gradients, ``"tcp"`` or ``"rdma"``.

    With a ``model`` (a built-in graph's name) PyTorch trains that, over mini-batches of ``batch``
    samples (``None``: as many as usual) from the folder ``data`` (``None``: made up). Where it
    goes on is what the ``checkpoint`` folder says, which is written each ``checkpoint_every``
    iterations. Its gradient is the model's; ``compute_s`` is the least that an emulated GPU takes.
    """

    id: str
    job: str
    rank: int
    ring: tuple[Member, ...]
    iterations: int
    gradient_bytes: int = 0
    compute_s: float = 0.0
    seed: int = 0
    gpu_socket: str | None = None
    device: str = "auto"
    join_s: float = 600.0
    deadline_s: float = 60.0
    window_bytes: int | None = None
    first_iteration: int = 0
    model: str | None = None
    batch: int | None = None
    data: str | None = None
    checkpoint: str | None = None
    checkpoint_every: int = 100
    paths: bool = False
    transport: str = "tcp"

    @property
    def elements(self) -> int:
        """Number of float32 values in the gradient: its bytes, rounded up."""
        return max(1, -(-self.gradient_bytes // 4))

    @classmethod
    def parse(cls, data: dict[str, Any]) -> TrainingTask:
        """A task from its JSON object; ``TrainingError`` names the wrong keys."""
        known = {field.name for field in fields(cls)}
        if set(data) - known:
            raise TrainingError(
                f"the task has unknown keys: {', '.join(sorted(set(data) - known))}"
            )
        try:
            members = tuple(
                sorted(
                    (Member(**member) for member in data["ring"]),
                    key=lambda m: m.rank,
                )
            )
            task = cls(**{**data, "ring": members})
        except (KeyError, TypeError) as exc:
            raise TrainingError(f"the task is incomplete: {exc}") from exc
        if [member.rank for member in members] != list(range(len(members))):
            raise TrainingError(
                f"the ring must contain ranks 0…n−1 once each: got {members}"
            )
        if not 0 <= task.rank < len(members):
            raise TrainingError(
                f"rank {task.rank} is not in a ring of {len(members)}"
            )
        has_gradient = task.gradient_bytes >= 1 or task.model is not None
        if task.iterations < 1 or not has_gradient or task.compute_s < 0:
            raise TrainingError(
                "iterations and gradient_bytes must be positive, compute_s must not be negative"
            )
        if not 0 <= task.first_iteration < task.iterations:
            raise TrainingError(
                f"first_iteration must be less than iterations ({task.iterations})"
            )
        return task


def read_task(path: Path | str) -> TrainingTask:
    """The task in this file; ``TrainingError`` if it cannot be read or does not fit."""
    try:
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
    except (OSError, ValueError) as exc:
        raise TrainingError(f"reading the task {path}: {reason(exc)}") from exc
    if not isinstance(data, dict):
        raise TrainingError(f"reading the task {path}: expected a JSON object")
    return TrainingTask.parse(data)


def reason(error: BaseException) -> str:
    """Why something failed, never empty: the text of a time-out or a closed connection often is."""
    said = getattr(error, "strerror", None) or str(error).strip()
    return said if said not in ("", "()") else type(error).__name__


class ComputeDevice(Protocol):
    """A device that computes for a given time; ``begin`` may return before it has finished."""

    name: str

    def begin(self, seconds: float) -> None:
        """Start computing for that many seconds."""

    def finish(self) -> None:
        """Return when the compute phase is over."""

    def close(self) -> None:
        """Release the device."""


class SocketGpu:
    """An emulated GPU behind a Unix socket, attached while this connection is open."""

    name = "emulated-gpu"

    def __init__(
        self,
        path: str,
        tenant: str,
        deadline_s: float = 5.0,
    ) -> None:
        self._path = path
        end = time.monotonic() + deadline_s
        while True:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                self._socket.connect(path)
            except OSError as exc:
                raise TrainingError(
                    f"connecting to the emulated GPU {path}: {reason(exc)}"
                ) from exc
            self._stream = self._socket.makefile("rb")
            self._send({"op": "attach", "tenant": tenant})
            try:
                self._answer("attaching to")
                return
            except TrainingError:
                self.close()
                # The previous tenant may still be ending.
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)

    def begin(self, seconds: float) -> None:
        """Start computing for that many seconds."""
        self._send({"op": "occupy", "seconds": seconds})

    def finish(self) -> None:
        """Return when that time is over."""
        self._answer("computing on")

    def close(self) -> None:
        """Release the device."""
        self._stream.close()  # the socket stays open as long as this file does
        self._socket.close()

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError as exc:
            raise TrainingError(
                f"the emulated GPU {self._path} has disappeared: {reason(exc)}"
            ) from exc

    def _answer(self, doing: str) -> None:
        try:
            line = self._stream.readline()
            reply = (
                json.loads(line)
                if line
                else {"error": "it closed the connection"}
            )
        except (OSError, ValueError) as exc:
            reply = {"error": reason(exc)}
        if reply.get("ok") is not True:
            raise TrainingError(
                f"{doing} the emulated GPU {self._path}: {reply.get('error')}"
            )


class _Multiplier:
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
        """Release the device, if there is one."""


class _CudaGpu(_Multiplier):
    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.name = f"cuda: {torch.cuda.get_device_name(0)}"
        self._a = torch.randn(
            2048,
            2048,
            device="cuda",
            dtype=torch.float16,
        )
        self._b = torch.randn(
            2048,
            2048,
            device="cuda",
            dtype=torch.float16,
        )
        self._out = torch.empty_like(self._a)
        self._multiply(3)  # warm up: the first products load kernels
        began = time.monotonic()
        self._multiply(50)
        self._one_s = (time.monotonic() - began) / 50

    def _multiply(self, times: int) -> None:
        for _ in range(times):
            self._torch.mm(self._a, self._b, out=self._out)
        self._torch.cuda.synchronize()

    def _compute(self, left_s: float) -> None:
        # Batches of at most 20 ms follow changes of the clock frequency.
        self._multiply(max(1, int(min(left_s, 0.02) / self._one_s)))

    def close(self) -> None:
        self._torch.cuda.empty_cache()


class _Processor(_Multiplier):
    name = "cpu: numpy"

    def __init__(self) -> None:
        import numpy as np

        self._a = np.ones((128, 128), dtype=np.float32)
        self._multiply = np.matmul

    def _compute(self, left_s: float) -> None:
        self._multiply(self._a, self._a)


class _Sleeper:
    name = "sleep"

    def __init__(self) -> None:
        self._end = 0.0

    def begin(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def finish(self) -> None:
        time.sleep(max(0.0, self._end - time.monotonic()))

    def close(self) -> None:
        """Do nothing: no device is held."""


class _ItsOwn(_Sleeper):
    name = ""

    def begin(self, seconds: float) -> None:
        """Do nothing: the model computes."""


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
