"""Emulates GPUs: each is a Unix socket that takes time to compute.

``python -m patchlight.emulation.lab.gpus --lab FILE --dir DIR`` serves every GPU of the lab at
``DIR/<server>.<gpu>.sock``, with ``--by-server`` at ``DIR/<server>/<server>.<gpu>.sock``. Requests
and replies are JSON lines:

- ``{"op": "attach", "tenant": NAME}``: hold the GPU with this connection; a second tenant is
  refused, as in NVIDIA's exclusive-process mode. Closing the connection releases it.
- ``{"op": "occupy", "seconds": S}``: compute; answered when S seconds are over.
- ``{"op": "query"}``: model, UUID, tenant, busy seconds and utilisation, from anyone.
"""

import argparse
import asyncio
import json
import math
import signal
import uuid
from collections import deque
from pathlib import Path
from typing import Any

from patchlight.emulation.json_lines import answer_lines
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.linux.sockets import bind_unix

_NAMESPACE = uuid.UUID("6f0c2f50-4a8a-5d0b-8f3e-70617463686c")


class BusyMeter:
    """When a GPU was busy, in seconds of any clock. Utilisation is defined as in NVML: the part of
    the last second in which at least one kernel was executing."""

    def __init__(self, window_s: float = 1.0) -> None:
        self._window_s = window_s
        self._past: deque[tuple[float, float]] = deque()
        self._since: float | None = None
        self._total_s = 0.0

    def begin(self, now: float) -> None:
        """The GPU starts to compute."""
        self._since = now

    def end(self, now: float) -> None:
        """The GPU stops; harmless when it is idle."""
        if self._since is not None:
            self._past.append((self._since, now))
            self._total_s += now - self._since
            self._since = None

    def busy_s(self, now: float) -> float:
        """Seconds computed so far."""
        return self._total_s + (
            now - self._since if self._since is not None else 0.0
        )

    def utilization(self, now: float) -> float:
        """The busy fraction, 0…1, of the second before ``now``."""
        start = now - self._window_s
        while self._past and self._past[0][1] <= start:
            self._past.popleft()
        busy = sum(end - max(begin, start) for begin, end in self._past)
        if self._since is not None:
            busy += now - max(self._since, start)
        return min(1.0, max(0.0, busy / self._window_s))


class EmulatedGpu:
    """One GPU and its socket."""

    def __init__(self, model: str, gpu_uuid: str) -> None:
        self._model = model
        self._uuid = gpu_uuid
        self._meter = BusyMeter()
        self._tenant: tuple[asyncio.StreamWriter, str] | None = None

    async def serve(self, path: Path) -> asyncio.Server:
        """Listen at ``path``, replacing a socket of an earlier run."""
        return await asyncio.start_unix_server(
            self._handle, sock=bind_unix(path, "emulated GPU")
        )

    async def _handle(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            await answer_lines(
                reader, writer, lambda line: self._answer(line, reader, writer)
            )
        finally:
            if self._tenant is not None and self._tenant[0] is writer:
                self._tenant = None

    async def _answer(
        self,
        line: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> dict[str, Any]:
        try:
            request = json.loads(line)
            match request["op"]:
                case "query":
                    now = asyncio.get_running_loop().time()
                    return {
                        "ok": True,
                        "model": self._model,
                        "uuid": self._uuid,
                        "tenant": self._tenant[1] if self._tenant else None,
                        "busy_s": self._meter.busy_s(now),
                        "utilization": self._meter.utilization(now),
                    }
                case "attach":
                    if (
                        self._tenant is not None
                        and self._tenant[0] is not writer
                    ):
                        return {
                            "ok": False,
                            "error": f"the GPU is in use by {self._tenant[1]}",
                        }
                    self._tenant = (writer, str(request["tenant"]))
                    return {"ok": True, "uuid": self._uuid}
                case "occupy":
                    return await self._occupy(
                        float(request["seconds"]), reader, writer
                    )
                case other:
                    return {
                        "ok": False,
                        "error": f"unknown operation {other!r}",
                    }
        except (ValueError, KeyError, TypeError, RecursionError) as exc:
            return {"ok": False, "error": f"not a request: {exc!r}"}

    async def _occupy(
        self,
        seconds: float,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> dict[str, Any]:
        if self._tenant is None or self._tenant[0] is not writer:
            return {
                "ok": False,
                "error": "attach first: the GPU computes for its tenant only",
            }
        if not 0 <= seconds < math.inf:  # The job's check limits the time.
            return {"ok": False, "error": f"cannot compute for {seconds} s"}
        loop = asyncio.get_running_loop()
        # The connection of a dead tenant ends, and so does its computation.
        line = asyncio.ensure_future(reader.readline())
        self._meter.begin(loop.time())
        try:
            await asyncio.wait({line}, timeout=seconds)
        finally:
            self._meter.end(loop.time())
            line.cancel()
            await asyncio.wait({line})
        if not line.cancelled() and line.result():
            raise ValueError(
                "a tenant must wait for the reply before its next request"
            )
        return {"ok": True, "busy_s": self._meter.busy_s(loop.time())}


def gpu_uuid(
    lab: Lab,
    server: str,
    gpu: str,
) -> str:
    """The UUID of an emulated GPU: constant for the same lab."""
    return f"GPU-{uuid.uuid5(_NAMESPACE, f'{lab.name}/{server}.{gpu}')}"


async def serve(
    lab: Lab,
    directory: Path,
    stop: asyncio.Event,
    *,
    by_server: bool = False,
) -> None:
    """Serve the lab's GPUs until ``stop`` is set (``by_server``: in one folder per server)."""
    servers: dict[Path, asyncio.Server] = {}
    try:
        for server in lab.servers:
            folder = directory / server.name if by_server else directory
            for gpu in server.gpus:
                path = folder / f"{server.name}.{gpu.name}.sock"
                emulated = EmulatedGpu(
                    gpu.model, gpu.uuid or gpu_uuid(lab, server.name, gpu.name)
                )
                servers[path] = await emulated.serve(path)
        await stop.wait()
    finally:
        for path, listening in servers.items():
            listening.close()
            path.unlink(missing_ok=True)


def main() -> None:
    """Parse the command line."""
    name = "patchlight.emulation.lab.gpus"
    parser = argparse.ArgumentParser(
        prog=name,
        description="Serve emulated GPUs.",
    )
    parser.add_argument(
        "--lab",
        type=Path,
        required=True,
        help="the lab file",
    )
    parser.add_argument(
        "--dir",
        type=Path,
        required=True,
        help="folder for the sockets",
    )
    parser.add_argument("--server", help="only this server's GPUs")
    parser.add_argument(
        "--by-server",
        action="store_true",
        help="use one folder per server",
    )
    arguments = parser.parse_args()
    from patchlight.testbed.labfile.reader import read_lab

    lab = read_lab(arguments.lab)
    if arguments.server is not None:
        lab = lab.with_changes(
            servers=tuple(s for s in lab.servers if s.name == arguments.server)
        )

    async def run() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await serve(
            lab,
            arguments.dir,
            stop,
            by_server=arguments.by_server,
        )

    asyncio.run(run())


if __name__ == "__main__":
    main()
