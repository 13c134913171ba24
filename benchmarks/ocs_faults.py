"""Random changes of circuits, each with a fault or a ``kill -9``: the old map or the new one?

An emulated Calient as a process of its own; every change in a forked process that may be killed
at any moment of it; then a restart: what does the device have, what does the journal say?
"""

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from patchlight.controller.circuits.registry import open_driver
from patchlight.controller.storage.store import Store
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.labfile.reader import read_lab
from patchlight.testbed.wire.rest.circuits import ChangeAnswer
from tests.support.change_bench import CircuitsOf
from tests.support.emulated_devices import lab_file, running

_PORTS = 16
_LONGEST_S = (
    0.03  # a change takes about so long: a kill later than that comes too late
)


def campaign(folder: Path, count: int, seed: int) -> Counter[str]:
    """Run ``count`` of them; how each kind ended. ``PatchlightError`` if one ended wrong."""
    rng = random.Random(seed)
    ended = Counter[str]()
    file = lab_file(folder, ports=_PORTS, switching_time="2ms")
    with running(folder, file, "--no-fabric") as device:
        lab = read_lab(file)
        lab = lab.with_changes(
            circuit_switches=(
                replace(
                    lab.circuit_switches[0], address=device.switch.address
                ),
            )
        )
        journal = folder / "journal.db"
        old, records = asyncio.run(_restart(lab, journal))
        for number in range(count):
            new = _random_map(rng)
            kind, faults, kill_after_s = _random_fault(rng, old, new)
            before = len(records)

            def work(
                begun: Callable[[], None],
                new: PortMap = new,
                faults: Any = faults,
            ) -> None:
                def inject() -> None:
                    device.fault(**_NO_FAULTS | faults)
                    begun()

                asyncio.run(_change(lab, journal, new, inject))

            died = _in_a_child(work, kill_after_s)
            device.fault(**_NO_FAULTS)
            now, records = asyncio.run(_restart(lab, journal))
            state: str = (
                records[-1].state if len(records) > before else "never begun"
            )
            wanted = new if state == "committed" else old
            stranger = faults.get("meddle", "")
            if stranger and set(PortMap.parse([stranger])) <= set(now):
                # Ours is undone, theirs stands, and nobody says otherwise.
                wanted = old.joined(PortMap.parse([stranger]))
                if (
                    state != "rolled-back"
                    or f"{stranger} is new" not in records[-1].message
                ):
                    state = f"unknown: {state}, {records[-1].message}"
            if now != wanted or state.startswith(("intent", "unknown")):
                raise PatchlightError(
                    f"change {number} (seed {seed}, {kind}): {state}, and the device has "
                    f"{now.texts}: before {old.texts}, wanted {new.texts}"
                )
            ended[f"{'killed' if died else kind}: {state}"] += 1
            if stranger:
                device.fault(lose=stranger)
                now, records = asyncio.run(_restart(lab, journal))
            old = now
    return ended


_NO_FAULTS: dict[str, Any] = {
    "refuse_ports": [],
    "fail_ports": [],
    "refuse_next": "",
    "cut": "",
    "stall_s": 0.0,
    "acknowledge": False,
    "repeat_pages": False,
    "names": "",
    "strays": 0,
    "meddle": "",
}
_NAMES = (
    "",
    "x;DLT-CRS-ALL:::7",
    '";1.1.1>1.1.2;"',
    "a [b], (c)",
    "two\r\nlines;",
    "1.1.1>1.1.2",
)


def _random_fault(
    rng: random.Random, old: PortMap, new: PortMap
) -> tuple[str, dict[str, Any], float | None]:
    """What goes wrong: its name, the device's faults, when to kill the controller if at all."""
    # A mirror of the map before that sticks would make going back impossible, in truth.
    unused = sorted(set(new.out_of) - set(old.out_of) - set(old.in_of))
    kinds = [
        "kill",
        "kill",
        "kill and cut",
        "cut",
        "refuse",
        "stall",
        "lock",
        "stick",
        "meddle",
    ]
    kind = rng.choice(kinds)
    kill_after_s = (
        rng.uniform(0, _LONGEST_S) if kind.startswith("kill") else None
    )
    faults: dict[str, Any] = {}
    if "cut" in kind:
        faults["cut"] = rng.choice(["before", "after"])
    elif kind == "refuse":
        faults["refuse_next"] = "Failed: not today"
    elif kind == "stall":
        faults |= {
            "stall_s": rng.uniform(0, 0.3),
            "acknowledge": rng.random() < 0.5,
        }
    elif kind == "lock":
        faults["refuse_ports"] = unused[:1]
    elif kind == "stick":
        faults["fail_ports"] = unused[:1]
    elif kind == "meddle":
        ports = range(1, _PORTS + 1)
        ins = [p for p in ports if p not in old.out_of and p not in new.out_of]
        outs = [p for p in ports if p not in old.in_of and p not in new.in_of]
        if ins and outs:
            faults["meddle"] = f"{rng.choice(ins)}>{rng.choice(outs)}"
    manners = {"names": rng.choice(_NAMES), "strays": rng.choice([0, 0, 1, 5])}
    return (
        kind,
        faults | manners | {"repeat_pages": rng.random() < 0.3},
        kill_after_s,
    )


def _random_map(rng: random.Random) -> PortMap:
    outputs = rng.sample(range(1, _PORTS + 1), rng.randint(2, _PORTS))
    return PortMap.of(
        zip(
            rng.sample(range(1, _PORTS + 1), len(outputs)),
            outputs,
            strict=True,
        )
    )


def _in_a_child(
    work: Callable[[Callable[[], None]], None], kill_after_s: float | None
) -> bool:
    """Run ``work`` in a forked process; whether the kill found it alive.

    The time to the kill counts from when ``work`` calls what it is given.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            work(lambda: os.close(writing))
            os._exit(0)
        except BaseException as error:
            os.write(2, f"{error!r}\n".encode())
        finally:
            os._exit(1)
    os.close(writing)
    os.read(reading, 1)
    os.close(reading)
    if kill_after_s is not None:
        time.sleep(kill_after_s)  # the moment of the kill, drawn
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise PatchlightError(
            "the change ended with an error (it is printed above)"
        )
    return os.WIFSIGNALED(status)


@asynccontextmanager
async def _circuits(lab: Lab, journal: Path) -> AsyncIterator[CircuitsOf]:
    store = Store(journal)
    driver = open_driver(lab.circuit_switches[0])
    await driver.open()
    yield CircuitsOf(lab, {driver.name: driver}, store)
    await driver.close()
    store.close()


async def _change(
    lab: Lab, journal: Path, new: PortMap, inject: Callable[[], None]
) -> None:
    async with _circuits(lab, journal) as circuits:
        # Port states are read before the fault begins: else a port that will not do is seen in
        # the checks, and nothing ever has to be undone for it.
        await circuits.parts.port_states.of("ocs1")
        inject()
        await circuits.change(lambda _: {"ocs1": new}, "campaign")


async def _restart(
    lab: Lab, journal: Path
) -> tuple[PortMap, list[ChangeAnswer]]:
    async with _circuits(lab, journal) as circuits:
        await circuits.watch.begin()
        return await circuits.drivers[
            "ocs1"
        ].read_map(), circuits.store.reconfigurations()
