"""What a change of circuits costs beside the device's own switching time, and planning one.

An emulated 320-port OCS (25 ms) as a process of its own on this machine, every port in use
and plugged; a pair that is moved is one circuit broken and one made. The whole transaction is
timed, journalling, read-back and power included; medians of the rounds, with their minimum and
the machine's load beside them. That is the machine's, too, so a bare client that says the same to
the same device (``benchmarks.bare_client``) has its turn after each change, and the multiple
is the median of those of the pairs. On a busy machine both wait for a processor, so it is given
for processor time, too; what the device takes of that is in both, and given apart. Then the
campaign of ``benchmarks.ocs_faults``.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

from benchmarks import figure
from benchmarks.bare_client import BareClient, RecordingLoop
from benchmarks.ocs_faults import campaign
from patchlight.controller.changes.device_maps import Decide
from patchlight.controller.changes.parts import CircuitParts
from patchlight.controller.changes.plan import plan_change
from patchlight.controller.changes.transaction import Transactions
from patchlight.controller.circuits.registry import open_driver
from patchlight.controller.storage.store import Store
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.model import (
    CircuitSwitch,
    Endpoint,
    Fibre,
    Gpu,
    Lab,
    Nic,
    PacketSwitch,
    Server,
    default_mac,
)
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.labfile.writer import write_lab
from tests.support.emulated_devices import Running, running

PORTS = 320
SWITCHING_S = 0.025
ROUNDS = 21
CAMPAIGN = 1000
LIMITS_MS = {1: 10, 16: 15, 320: 60}
RATIO = 1.5  # of a change's overhead to that of a bare client
_QUIET_S = 0.02
DRIVERS = ("calient-tl1", "polatis-scpi")


def run() -> list[dict[str, Any]]:
    """The figures; ``PatchlightError`` if a change does not come about."""
    found: list[dict[str, Any]] = []
    for driver in DRIVERS:
        lab = lab_of(PORTS, driver)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "lab.yaml"
            file.write_text(write_lab(lab))
            with (
                running(Path(folder), file, "--no-fabric") as device,
                asyncio.Runner(loop_factory=RecordingLoop) as runner,
            ):
                found += runner.run(_overheads(lab, device, Path(folder)))
    found += [_planning(PORTS, "≤ 5 ms"), _planning(65536, "≤ 500 ms")]
    with tempfile.TemporaryDirectory() as folder:
        ended = campaign(Path(folder), CAMPAIGN, seed=int(time.time()))
        kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(ended.items()))
        name = f"changes with a fault or kill -9 that ended in the old map or the new: {kinds}"
        found.append(figure(name, sum(ended.values()), "", str(CAMPAIGN)))
    return found


def lab_of(ports: int, driver: str) -> Lab:
    """A lab with NICs on one half of an OCS's ports and ToR ports on the other."""
    half = ports // 2
    on_tor = 32
    addresses = [IPv4Address("10.0.0.1") + n for n in range(half)]
    return Lab(
        name="bench",
        network=IPv4Network("10.0.0.0/8"),
        servers=tuple(
            Server(
                f"s{n}",
                None,
                (Gpu("gpu0", "M"),),
                (Nic("nic0", a, default_mac(a), gpu="gpu0"),),
            )
            for n, a in enumerate(addresses)
        ),
        packet_switches=tuple(
            PacketSwitch(f"tor{n}", n + 1, on_tor)
            for n in range(-(-half // on_tor))
        ),
        circuit_switches=(
            CircuitSwitch("ocs1", driver, "127.0.0.1:1", ports, SWITCHING_S),
        ),
        fibres=tuple(
            Fibre(end, Endpoint("ocs1", str(port)))
            for n in range(half)
            for end, port in (
                (Endpoint(f"s{n}", "nic0"), n + 1),
                (
                    Endpoint(f"tor{n // on_tor}", str(n % on_tor + 1)),
                    half + n + 1,
                ),
            )
        ),
    )


async def _overheads(
    lab: Lab, device: Running, folder: Path
) -> list[dict[str, Any]]:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, RecordingLoop)
    name = device.switch.driver
    driver = open_driver(device.switch)
    await driver.open()
    login = loop.take_sent()[:1]
    bare = BareClient(name, device.switch.address, login, folder / "floor")
    rng = random.Random(1)
    store = Store(folder / "journal.db")
    transactions = Transactions(CircuitParts(lab, {"ocs1": driver}, store))
    # The emulated device works out the loss of a path when it is lit first. Another client has it
    # do so beforehand, for it would be in a change and not in what is said again after that.
    other = open_driver(device.switch)
    await other.open()
    lighting = Transactions(
        CircuitParts(lab, {"ocs1": other}, Store(":memory:"))
    )
    figures = []
    for pairs, limit_ms in LIMITS_MS.items():
        # One pair needs a free output to move to; more of them change places.
        used = PORTS - 1 if pairs == 1 else PORTS
        outputs = rng.sample(range(1, PORTS + 1), used)
        before = {"ocs1": _map(outputs)}
        await transactions.change(_always(before), "benchmark")
        changes = list[_Spent]()
        bares = list[_Spent]()
        stages = []
        for _ in range(ROUNDS):
            # There as a change, and back; then there and back by the bare client.
            maps = {
                "ocs1": _map(_moved(outputs, rng.sample(range(used), pairs)))
            }
            for wanted in (maps, before):
                await lighting.change(_always(wanted), "benchmark")
            sent = []
            journalled = b""
            for wanted in (maps, before):
                # For what the device tells of others' changes.
                await asyncio.sleep(_QUIET_S)
                gc.collect()
                loop.take_sent()
                begun = _Spent.now(device)
                record = await transactions.change(
                    _always(wanted), "benchmark"
                )
                spent = _Spent.now(device) - begun
                made = len(record.changes["ocs1"]["makes"])
                if record.state != "committed" or made != pairs:
                    raise PatchlightError(
                        f"moving {pairs} pairs made {made}: {record.message}"
                    )
                sent.append(loop.take_sent())
                if wanted is maps:
                    changes.append(spent)
                    stages.append(record.stages_s)
                    journalled = json.dumps(record.as_row).encode()
            for commands in sent:
                await asyncio.sleep(_QUIET_S)
                bare.drop_unread()
                gc.collect()
                begun = _Spent.now(device)
                bare.replay(commands, journalled, SWITCHING_S)
                if commands is sent[0]:
                    bares.append(_Spent.now(device) - begun)
        change_ms = statistics.median(change.overhead_ms for change in changes)
        what = f"{pairs} pairs of {PORTS} moved, {name}"
        least_ms = min(change.overhead_ms for change in changes)
        load = f"least {least_ms:.1f}, load {os.getloadavg()[0]:.1f}"
        about = f"control overhead, {what}: {_stages(stages)}; {load}"
        figures.append(
            figure(
                about, change_ms, "ms", f"≤ {limit_ms} ms",
                peer=f"a bare client ({len(sent[0])} exchanges, one fsync)",
                peer_value=statistics.median(bare.overhead_ms for bare in bares),
            )
        )  # fmt: skip
        figures += _multiples(changes, bares, what)
    bare.close()
    await driver.close()
    await other.close()
    store.close()
    return figures


@dataclass(frozen=True)
class _Spent:
    """Seconds: of the clock, of processor time in this process, and of it in the device."""

    wall_s: float
    client_s: float
    device_s: float

    @classmethod
    def now(cls, device: Running) -> _Spent:
        threads = Path(f"/proc/{device.process.pid}/task").glob("*/schedstat")
        device_ns = sum(
            int(thread.read_text().split()[0]) for thread in threads
        )
        return cls(time.perf_counter(), time.process_time(), device_ns / 1e9)

    def __sub__(self, begun: _Spent) -> _Spent:
        return _Spent(
            self.wall_s - begun.wall_s,
            self.client_s - begun.client_s,
            self.device_s - begun.device_s,
        )

    @property
    def overhead_ms(self) -> float:
        """What it took beside the switching time."""
        return 1e3 * (self.wall_s - SWITCHING_S)

    @property
    def processor_ms(self) -> float:
        """Of the client and the device."""
        return 1e3 * (self.client_s + self.device_s)


def _multiples(
    changes: Sequence[_Spent], bares: Sequence[_Spent], what: str
) -> Iterable[dict[str, Any]]:
    pairs = list(zip(changes, bares, strict=True))
    multiple = statistics.median(
        c.overhead_ms / b.overhead_ms for c, b in pairs
    )
    name = f"control overhead as a multiple of the bare client's, {what}"
    yield figure(name, multiple, "", f"≤ {RATIO}")
    multiple = statistics.median(
        c.processor_ms / b.processor_ms for c, b in pairs
    )
    client_ms, bare_ms = (
        statistics.median(1e3 * s.client_s for s in each)
        for each in (changes, bares)
    )
    device_ms = statistics.median(1e3 * bare.device_s for bare in bares)
    name = f"the same of processor time: {client_ms:.1f} ms beside {bare_ms:.1f} ms"
    yield figure(
        f"{name}, and {device_ms:.1f} ms of the device in both, {what}",
        multiple,
        "",
    )


def _always(wanted: dict[str, PortMap]) -> Decide:
    return lambda _: wanted


def _map(outputs: list[int]) -> PortMap:
    return PortMap.of(enumerate(outputs, 1))


def _moved(outputs: list[int], moved: list[int]) -> list[int]:
    wanted = list(outputs)
    if len(moved) == 1:
        (wanted[moved[0]],) = set(range(1, PORTS + 1)) - set(outputs)
        return wanted
    for here, there in zip(moved, [*moved[1:], moved[0]], strict=True):
        wanted[here] = outputs[there]
    return wanted


def _stages(stages: Sequence[Mapping[str, float]]) -> str:
    medians = {
        name: statistics.median(1e3 * s[name] for s in stages)
        for name in stages[0]
    }
    return ", ".join(
        f"{name} {spent:.1f}"
        for name, spent in medians.items()
        if spent >= 0.05
    )


def _planning(ports: int, limit: str) -> dict[str, Any]:
    rng = random.Random(2)
    lab = lab_of(ports, "dry-run")
    numbers = range(1, ports + 1)
    maps = [_map(rng.sample(numbers, ports)) for _ in range(2)]
    # What is made once for a lab is made.
    plan_change(lab, {"ocs1": maps[0]}, {})
    spent = []
    for before, wanted in (maps, maps[::-1], maps):
        gc.collect()
        begun = time.perf_counter()
        steps = plan_change(lab, {"ocs1": before}, {"ocs1": wanted})
        spent.append(1e3 * (time.perf_counter() - begun))
        if len(steps.changes["ocs1"].makes) < ports - 20:
            raise PatchlightError("two random maps cannot be so much alike")
    name = (
        f"planning the change between two random maps of {ports} ports, all plugged, "
        "light followed through both"
    )
    return figure(name, statistics.median(spent), "ms", limit)


if __name__ == "__main__":
    print(json.dumps(run(), indent=2, ensure_ascii=False))
