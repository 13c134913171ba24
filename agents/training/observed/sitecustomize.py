"""Reports the iterations of a user's program at the steps of its PyTorch optimizer.

Python imports this module at its start. It needs the standard library alone, and its faults never
reach the program. A program that writes ``PATCHLIGHT_REPORTS`` itself is left to do so.
"""

import fcntl
import json
import os
import sys
import threading
import time
import weakref
from contextlib import suppress
from importlib import machinery, util
from typing import Any

_LEAST_SAMPLE_S = 0.005
_SAMPLES = 100  # of the network in an iteration
_QUIET_BYTES = 1500  # a sample with less is keep-alives
_OPTIMIZERS = "torch.optim"


def _counted_bytes(interface: str) -> tuple[int, int]:
    """The bytes that an interface has received and sent."""
    with open("/proc/self/net/dev", encoding="ascii") as file:
        for line in file:
            name, _, counters = line.partition(":")
            if name.strip() == interface:
                numbers = counters.split()
                return int(numbers[0]), int(numbers[8])
    return 0, 0


class _Network:
    """Samples for how long the worker's interface was in use."""

    def __init__(self, interface: str) -> None:
        self._interface = interface
        self.sample_s = _LEAST_SAMPLE_S
        self._used_s = 0.0
        sampling = threading.Thread(target=self._sample, daemon=True)
        sampling.start()

    def _sample(self) -> None:
        with suppress(OSError, ValueError, IndexError):
            before = sum(_counted_bytes(self._interface))
            at = time.monotonic()
            while True:
                time.sleep(self.sample_s)
                now = time.monotonic()
                count = sum(_counted_bytes(self._interface))
                if count - before > _QUIET_BYTES:
                    self._used_s += now - at
                before = count
                at = now

    def take(self) -> tuple[float, int]:
        """The seconds in use since the last call, and the bytes sent since the start."""
        used_s = self._used_s
        self._used_s = 0.0
        return used_s, _counted_bytes(self._interface)[1]


class _Reporter:
    """Writes a report at each step of the first optimizer that steps."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._pid = os.getpid()
        self._is_off = False
        self._optimizer: Any = None
        self._file = -1
        self._written = 0
        self._pending = b""
        self._index = 0
        self._ended = 0.0
        self._sent = 0

    def __call__(self, optimizer: Any, *_: Any) -> None:
        if self._is_off or os.getpid() != self._pid:
            return
        try:
            self._step(optimizer)
        except Exception:
            self._is_off = True

    def _step(self, optimizer: Any) -> None:
        known = self._optimizer and self._optimizer()
        if known is None:
            self._optimizer = weakref.ref(optimizer)
        elif known is not optimizer:
            return
        now = time.monotonic()
        if self._file < 0:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._file = os.open(self._path, flags, 0o644)
            # One process of a worker reports.
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._written = os.fstat(self._file).st_size
            if self._written and not self._is_ours():
                raise ValueError("the program reports by itself")
            interface = os.environ["GLOO_SOCKET_IFNAME"]
            self._network = _Network(interface)
            took_s = 0.0
        else:
            took_s = now - self._ended
        used_s, sent = self._network.take()
        self._network.sample_s = max(_LEAST_SAMPLE_S, took_s / _SAMPLES)
        self._ended = now
        self._write(took_s, min(used_s, took_s), sent)

    def _is_ours(self) -> bool:
        with open(self._path, encoding="utf-8") as file:
            return "origin" in json.loads(file.readline())

    def _write(
        self,
        took_s: float,
        used_s: float,
        sent: int,
    ) -> None:
        if os.fstat(self._file).st_size != self._written:
            raise ValueError("the program reports by itself")
        report = {
            "index": self._index,
            "finished_at": time.time(),
            "compute_s": took_s - used_s,
            "communication_s": used_s,
            "sent_bytes": sent - self._sent if self._index else 0,
            "origin": "optimizer",
        }
        self._sent = sent
        self._pending += json.dumps(report).encode() + b"\n"
        # The program's own first report comes before the second step.
        if self._index:
            self._written += os.write(self._file, self._pending)
            self._pending = b""
        self._index += 1


class _Finder:
    """Finds PyTorch's optimizers as Python does, and registers the reporter with them."""

    def __init__(self, path: str) -> None:
        self._path = path

    def find_spec(
        self,
        name: str,
        path: Any = None,
        target: Any = None,
    ) -> Any:
        """The module's spec, if it is the one of the optimizers."""
        if name != _OPTIMIZERS:
            return None
        sys.meta_path.remove(self)
        spec = util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            run(module)
            with suppress(ImportError):
                from torch.optim.optimizer import (
                    register_optimizer_step_post_hook,
                )

                register_optimizer_step_post_hook(_Reporter(self._path))

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _import_next() -> None:
    """Import the ``sitecustomize`` that this one hides."""
    here = os.path.dirname(os.path.abspath(__file__))
    rest = [each for each in sys.path if os.path.abspath(each) != here]
    spec = machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(util.module_from_spec(spec))


_REPORTS = os.environ.get("PATCHLIGHT_REPORTS")
if _REPORTS and os.environ.get("LOCAL_RANK", "0") == "0":
    sys.meta_path.insert(0, _Finder(_REPORTS))
_import_next()
