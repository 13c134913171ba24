"""What it costs an agent to read eight NVIDIA GPUs ten times a second.

The binding is the real one; the library under it is the tests' (``tests/support/nvml``), whose
answers cost next to nothing: what a driver takes for them comes on top.
"""

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import figure
from patchlight.agents.nvml import NvmlGpus
from patchlight.agents.run import SAMPLES_PER_S
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.model import Gpu, Server
from tests.support import nvml

GPUS = 8
_WATCHED_S = 10.0


def run() -> list[dict[str, Any]]:
    """The figure; ``PatchlightError`` where there is no C compiler."""
    server = Server(
        "bench", None, tuple(Gpu(f"gpu{n}", "V100") for n in range(GPUS)), ()
    )
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        try:
            nvml.load(nvml.build(folder))
        except FileNotFoundError as exc:
            raise PatchlightError(str(exc)) from exc
        with nvml.driver(folder, GPUS) as driver:
            share = asyncio.run(_share(server))
            samples = driver.cards[GPUS - 1].calls("power") / _WATCHED_S
    if samples < 0.9 * SAMPLES_PER_S:
        raise PatchlightError(
            f"GPUs were read {samples:.1f} times a second only"
        )
    name = f"agent, {GPUS} GPUs read {SAMPLES_PER_S:g} times a second: processor time"
    return [figure(name, 100 * share, "% of a core", "at most 1")]


async def _share(server: Server) -> float:
    backend = NvmlGpus(server, SAMPLES_PER_S)
    await backend.open()
    began_s = time.monotonic()
    used_s = time.process_time()
    await asyncio.sleep(_WATCHED_S)
    share = (time.process_time() - used_s) / (time.monotonic() - began_s)
    await backend.close()
    return share
