"""Times calls on a device of PyTorch, and goes through nested results. Needs PyTorch."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

Clock = Callable[[Callable[[], Any]], tuple[Any, float]]
"""Calls a function; gives its result and the milliseconds it took on the device."""


def clock_of(device: torch.device) -> Clock:
    """The clock of a device: CUDA's events on a GPU, else the processor's."""
    return _on_gpu if device.type == "cuda" else _on_cpu


def _on_cpu(call: Callable[[], Any]) -> tuple[Any, float]:
    begun = time.perf_counter()
    result = call()
    return result, 1e3 * (time.perf_counter() - begun)


def _on_gpu(call: Callable[[], Any]) -> tuple[Any, float]:
    begun = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    ended = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    # What was put in the queue before must not be counted.
    torch.cuda.synchronize()
    begun.record()
    result = call()
    ended.record()
    ended.synchronize()
    return result, float(begun.elapsed_time(ended))


def device_name(device: torch.device) -> str:
    """The device in words."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    threads = torch.get_num_threads()
    return f"{_processor()}, {threads} thread{'' if threads == 1 else 's'}"


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            models = [line.partition(":")[2] for line in file if line.startswith("model name")]
    except OSError:
        models = []
    return models[0].strip() if models else "CPU"


def tensors_in(value: Any) -> list[torch.Tensor]:
    """All tensors in a value: itself, or those in its tuples, lists and dictionaries."""
    tensors: list[torch.Tensor] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        tensors.append(tensor)
        return tensor

    mapped(value, note)
    return tensors


def mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The value with each tensor in it changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: mapped(item, change) for key, item in value.items()}
    if isinstance(value, tuple | list):
        parts = [mapped(item, change) for item in value]
        # A tuple with named fields is made from its fields.
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value
