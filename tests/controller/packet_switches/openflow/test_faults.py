"""After a fault a switch with OpenFlow has what it needs, or the lab's status says what it lacks.

A fault each by default; ``PATCHLIGHT_SWITCH_FAULTS=100`` for a campaign with so many.
"""

import asyncio
import os
import random
import re

import pytest

from patchlight.controller.packet_switches import keeping
from patchlight.controller.packet_switches.openflow.flowtable import (
    COOKIE_MARK,
    COOKIE_MASK,
)
from patchlight.controller.packet_switches.switches import PacketSwitches
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.lab.wiring import trace_links
from patchlight.testbed.labfile.reader import load_lab
from tests.support.openflow_bench import OpenFlowBench
from tests.support.openflow_line import OpenFlowLine
from tests.support.switch_lab import drawn
from tests.support.waiting import eventually

pytestmark = [pytest.mark.root, pytest.mark.ovs, pytest.mark.timeout(6000)]

FAULTS = (
    "full table",
    "bridge made again",
    "lost session",
    "foreign entry",
    "wrong answer",
    "refused entry",
    "entry taken and forgotten",
)
EACH = int(os.environ.get("PATCHLIGHT_SWITCH_FAULTS", len(FAULTS)))
LAB = load_lab("ofc2022")
ABOVE = "priority=40000,actions=drop"


class Watched:
    """One switch of a lab, what it really has, and what is said of it."""

    def __init__(
        self,
        bench: OpenFlowBench,
        line: OpenFlowLine,
        switches: PacketSwitches,
    ) -> None:
        self.bench = bench
        self.line = line
        self.switches = switches
        self.name = ""
        self.wanted = set[int]()

    def make(self) -> None:
        self.name = self.bench.bridge(1, listen=self.line.address)

    def made_again(self) -> None:
        self.bench.ovs.vsctl("del-br", self.name)
        self.make()

    def have(self) -> set[int]:
        flows = self.bench.ovs.flows(self.name)
        cookies = {
            int(found, 16)
            for found in re.findall(r"cookie=(0x[0-9a-f]+)", " ".join(flows))
        }
        return {
            cookie for cookie in cookies if cookie & COOKIE_MASK == COOKIE_MARK
        }

    def is_right(self) -> bool:
        return self.have() == self.wanted

    def says_so(self) -> bool:
        """Whether it is away, or each missing entry is told; in its place may be an old one."""
        if not self.switches.connected()["tor1"]:
            return True
        have = self.have()
        lacks = self.switches.lacking_entries().get("tor1", 0)
        return len(have - self.wanted) <= lacks == len(self.wanted - have)

    async def follow(self, circuits: PortMap) -> None:
        links = trace_links(LAB, {"ocs1": circuits})
        tables = self.switches._forwarding.tables(links)
        self.wanted = {entry.cookie for entry in tables["tor1"]}
        await self.switches.follow(links)


def circuits_at(drawing: random.Random) -> PortMap:
    """Each NIC at a port of either ToR, or dark."""
    ports = drawing.sample(range(7, 19), drawing.randint(2, 6))
    return PortMap.duplex(
        zip(drawing.sample(range(1, 7), len(ports)), ports, strict=True)
    )


async def one_fault(
    watched: Watched, fault: str, drawing: random.Random
) -> None:
    """Something goes wrong while the switch changes; then it is put right."""
    ovs = watched.bench.ovs
    line = watched.line
    name = watched.name
    circuits = circuits_at(drawing)
    host = drawing.choice(LAB.hosts)
    mac = bytes.fromhex(host.nic.mac.replace(":", ""))
    if fault == "full table":
        room = drawing.randint(1, 5)
        table = [
            "--id=@t",
            "create",
            "Flow_Table",
            f"flow_limit={room}",
            "overflow_policy=refuse",
        ]
        ovs.vsctl(*table, "--", "set", "Bridge", name, "flow_tables:0=@t")
    elif fault == "foreign entry":
        ovs.ofctl("add-flow", name, ABOVE)
    elif fault in ("refused entry", "entry taken and forgotten"):
        line.refuses = [mac]
        line.silently = fault == "entry taken and forgotten"
    line.garbage = fault == "wrong answer"
    following = asyncio.create_task(watched.follow(circuits))
    await asyncio.sleep(drawing.random() / 5)  # the fault comes at any moment
    if fault == "bridge made again":
        await asyncio.to_thread(watched.made_again)
    elif fault == "lost session":
        line.cut()
    await following
    await eventually(
        lambda: watched.is_right() or watched.says_so(), f"{fault}: told"
    )
    if fault in ("full table", "refused entry", "entry taken and forgotten"):
        # It is still there: so it must be told for good, not by chance.
        await eventually(
            lambda: (
                watched.is_right()
                or (watched.switches.lacking() and watched.says_so())
            ),
            f"{fault}: told for good",
        )
    if fault == "foreign entry":
        await eventually(lambda: watched.switches.foreign(), f"{fault}: told")
        ovs.ofctl("del-flows", name, "--strict", "priority=40000")
    elif fault == "full table":
        ovs.vsctl("clear", "Bridge", name, "flow_tables")
    line.heal()
    await eventually(
        lambda: (
            watched.is_right()
            and watched.switches.connected()["tor1"]
            and not (watched.switches.lacking() or watched.switches.foreign())
        ),
        f"{fault}: put right",
    )


async def test_no_fault_is_silent(
    bench: OpenFlowBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "TRY_AGAIN_S", (0.5,))
    drawing = drawn(int(os.environ.get("PATCHLIGHT_SEED", "1")))
    line = OpenFlowLine(bench.ovs.netns, bench.listen)
    await line.open()
    try:
        async with bench.speaker(1) as (speaker, events):
            switches = PacketSwitches(LAB, speaker)
            speaker.subscribe(lambda event: switches.on_event(event, 0.0))
            watched = Watched(bench, line, switches)
            watched.make()
            await events.wait("switch-up", datapath_id=1)
            await watched.follow(circuits_at(drawing))
            for number in range(EACH):
                await one_fault(watched, FAULTS[number % len(FAULTS)], drawing)
                print(
                    f"{bench.engine}: {number + 1} faults of {EACH}, none silent",
                    flush=True,
                )
            await switches.close()
    finally:
        await line.close()
