"""The driver ``openflow`` with a real Open vSwitch as the circuit switch, and real packets."""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from patchlight.controller.circuits.contract import DirectedPort
from patchlight.controller.packet_switches.openflow.circuit_switch import (
    OpenFlowSwitch,
)
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.model import CircuitSwitch
from patchlight.testbed.lab.portmap import CrossConnect, PortMap
from patchlight.testbed.linux.namespaces import entered
from tests.support.ocs_drivers import circuits
from tests.support.private_ovs import PrivateOvs, in_namespace
from tests.support.waiting import PATIENCE_S

pytestmark = [pytest.mark.root, pytest.mark.ovs]

ADDRESS = "127.0.0.1:6654"
SWITCH = CircuitSwitch("ocs1", "openflow", ADDRESS, 4, datapath_id=0x51)


@pytest.fixture
def ovs(tmp_path: Path) -> Iterator[PrivateOvs]:
    with PrivateOvs(f"pl.test-{os.getpid()}-ocs", tmp_path) as private:
        private.add_bridge("ocs", 0x51, ADDRESS)
        yield private


def pings(host: str, address: str) -> bool:
    try:
        in_namespace(host, "ping", "-c", "1", "-W", "1", address)
    except PatchlightError:
        return False
    return True


def soon_pings(host: str, address: str) -> bool:
    """The first packets may wait for the switch's datapath and for ARP."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := pings(host, address)) and time.monotonic() < deadline:
        pass
    return found


@contextlib.asynccontextmanager
async def driving(ovs: PrivateOvs) -> AsyncIterator[OpenFlowSwitch]:
    """An open driver in the switch's network namespace."""
    with entered(Path(ovs.netns)):
        driver = OpenFlowSwitch(SWITCH)
        await driver.open()
        try:
            yield driver
        finally:
            await driver.close()


async def test_flows_are_cross_connects_and_carry_packets(
    ovs: PrivateOvs,
) -> None:
    hosts = {
        n: ovs.add_host("ocs", n, f"10.9.0.{n}/24", f"02:00:00:00:00:0{n}")
        for n in (1, 2, 3)
    }
    # Of somebody else: it takes what comes in by port 3.
    foreign = "cookie=0x7,table=0,priority=5,in_port=3,actions=output:2"
    ovs.ofctl("add-flow", "ocs", foreign)

    async with driving(ovs) as driver:
        assert "Open vSwitch" in (await driver.identify()).model
        assert await driver.read_map() == PortMap()
        states = await driver.port_states()
        assert states[DirectedPort("in", 1)].condition == "ready"
        assert states[DirectedPort("out", 4)].condition == "absent"

        assert not await asyncio.to_thread(pings, hosts[1], "10.9.0.2")
        outcome = await driver.connect(circuits("1>3", "3>1"))
        assert [str(r.cross_connect) for r in outcome.refused] == ["3>1"]
        assert "priority 5 in_port=3" in outcome.refused[0].words
        assert (await driver.disconnect(circuits("1>3"))).complete

        # Its output is the foreign entry's too: light of two inputs would meet there.
        (refusal,) = (await driver.connect(circuits("1>2"))).refused
        assert "another application" in refusal.words
        standing = [a.words for a in await driver.alarms() if a.standing]
        assert len(standing) == 1
        assert "a flow entry of another application" in standing[0]
        ovs.ofctl("del-flows", "ocs", "cookie=0x7/-1")

        assert (await driver.connect(circuits("1>2", "2>1", "3>3"))).complete
        assert await asyncio.to_thread(soon_pings, hosts[1], "10.9.0.2")
        assert not await asyncio.to_thread(pings, hosts[3], "10.9.0.1")
        said = [line.partition("priority=")[2] for line in ovs.flows("ocs")]
        assert sorted(said) == [
            "100,in_port=1 actions=output:2",
            "100,in_port=2 actions=output:1",
            "100,in_port=3 actions=IN_PORT",
        ]
    assert len(ovs.flows("ocs")) == 3


async def test_entries_of_others_stay(ovs: PrivateOvs) -> None:
    ovs.ofctl(
        "add-flow", "ocs", "cookie=0x7,priority=100,in_port=1,actions=output:2"
    )

    async with driving(ovs) as driver:
        theirs = [CrossConnect(1, 2)]
        assert await driver.read_map() == PortMap()
        assert not (await driver.connect(theirs)).complete
        assert (await driver.disconnect(theirs)).complete
        assert len(ovs.flows("ocs")) == 1
