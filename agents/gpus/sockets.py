"""GPUs that answer on Unix sockets, as emulated ones do: JSON lines."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

from patchlight.agents.errors import GpuError
from patchlight.agents.gpus.contract import GpuBackend, GpuReading
from patchlight.testbed.lab.model import Server


class SocketGpus(GpuBackend):
    """GPUs behind Unix sockets; each reading closes its own connection."""

    def __init__(self, server: Server, directory: Path, deadline_s: float = 2.0) -> None:
        self._paths = {g.name: directory / f"{server.name}.{g.name}.sock" for g in server.gpus}
        self._deadline_s = deadline_s

    async def open(self) -> None:
        """Wait a while for every GPU's socket: they may be starting just now."""
        end = time.monotonic() + self._deadline_s
        for path in self._paths.values():
            while not path.exists():
                if time.monotonic() > end:
                    break
                await asyncio.sleep(0.02)

    async def read(self, name: str) -> GpuReading:
        """Ask the GPU's socket."""
        path = self._paths[name]
        if not path.exists():
            raise GpuError(
                f"GPU {name} has no socket {path}",
                hint="are the emulated GPUs there? python -m patchlight.emulation.lab.gpus",
            )
        try:
            async with asyncio.timeout(2):
                reader, writer = await asyncio.open_unix_connection(path)
                try:
                    writer.write(b'{"op": "query"}\n')
                    reply: dict[str, Any] = json.loads(await reader.readline())
                finally:
                    writer.close()
            return GpuReading(
                name=name,
                model=str(reply["model"]),
                uuid=str(reply["uuid"]),
                utilization=float(reply["utilization"]),
                busy_s=float(reply["busy_s"]),
            )
        except (OSError, TimeoutError, ValueError, KeyError) as exc:
            raise GpuError(f"reading GPU {name} at {path}: {exc or type(exc).__name__}") from exc

    def socket_of(self, name: str) -> Path | None:
        """The GPU's socket."""
        return self._paths[name]
