"""What a change of 16 pairs costs over gNMI, beside a bare client with the same ``Set`` and reads.

As ``benchmarks.ocs`` does it for the line protocols: an emulated device of 64 ports (25 ms) as a
process of its own, the whole transaction timed, and after each change the bare client's turn.
"""

import asyncio
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import figure
from benchmarks.ocs import lab_of
from patchlight.controller.circuits.protocols.http import PINS_VARIABLE
from patchlight.controller.storage.store import Store
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.labfile.writer import write_lab
from tests.support.bare_gnmi import BareGnmi, RecordingDriver
from tests.support.change_bench import CircuitsOf
from tests.support.emulated_devices import Running, running

PORTS = 64
PAIRS = 16
SWITCHING_S = 0.025
ROUNDS = 21
RATIO = 1.6
_QUIET_S = 0.02


def run() -> list[dict[str, Any]]:
    """The figures; ``PatchlightError`` if a change does not come about."""
    lab = lab_of(PORTS, "ocp-gnmi")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "lab.yaml"
        file.write_text(write_lab(lab))
        os.environ[PINS_VARIABLE] = str(Path(folder) / "tls-pins")
        with running(Path(folder), file, "--no-fabric") as device:
            return asyncio.run(_figures(lab, device, Path(folder)))


async def _figures(
    lab: Lab, device: Running, folder: Path
) -> list[dict[str, Any]]:
    driver = RecordingDriver(device.switch, "")
    await driver.open()
    bare = BareGnmi(device.switch.address, folder / "floor")
    store = Store(folder / "journal.db")
    circuits = CircuitsOf(lab, {"ocs1": driver}, store)
    half = PORTS // 2
    maps = [
        PortMap.of(
            (n, half + (n % PAIRS + 1 if n <= PAIRS and turned else n))
            for n in range(1, half + 1)
        )
        for turned in (False, True)
    ]
    await circuits.change(lambda _: {"ocs1": maps[0]}, "benchmark")
    ours = list[float]()
    bares = list[float]()
    for _ in range(ROUNDS):
        sent = []
        for wanted in (maps[1], maps[0]):
            await asyncio.sleep(_QUIET_S)
            driver.client.take_sent()
            begun = time.perf_counter()
            record = await circuits.change(
                lambda _, wanted=wanted: {"ocs1": wanted},  # type: ignore[misc]
                "benchmark",
            )
            ours.append(time.perf_counter() - begun - SWITCHING_S)
            if record.state != "committed":
                raise PatchlightError(f"no change: {record.message}")
            sent.append(driver.client.take_sent())
        for calls in sent:
            await asyncio.sleep(_QUIET_S)
            requests = bare.prepared(calls, driver.client.ports)
            begun = time.perf_counter()
            bare.replay(requests, b"journal", SWITCHING_S)
            bares.append(time.perf_counter() - begun - SWITCHING_S)
    bare.close()
    await driver.close()
    store.close()
    multiple = statistics.median(
        a / b for a, b in zip(ours, bares, strict=True)
    )
    what = f"{PAIRS} pairs of {PORTS} moved, ocp-gnmi"
    load = f"least {1e3 * min(ours):.1f}, load {os.getloadavg()[0]:.1f}"
    return [
        figure(
            f"control overhead, {what}: {load}",
            1e3 * statistics.median(ours),
            "ms",
            peer=f"a bare client ({len(sent[0])} calls, one fsync), "
            f"least {1e3 * min(bares):.1f}",
            peer_value=1e3 * statistics.median(bares),
        ),
        figure(
            f"control overhead as a multiple of the bare client's, {what}",
            multiple,
            "",
            f"≤ {RATIO}",
        ),
    ]
