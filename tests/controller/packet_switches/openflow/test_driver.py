"""The conformance suite on the driver of OpenFlow switches, with Open vSwitch."""

import pytest

from patchlight.controller.packet_switches.conformance import (
    CHECKS,
    leaves_what_others_set,
    notices_a_missing_port,
    run_check,
)
from patchlight.controller.packet_switches.contract import (
    PacketSwitchDriver,
    Station,
)
from patchlight.controller.packet_switches.openflow.driver import (
    OpenFlowSwitch,
)
from patchlight.testbed.lab.model import PacketSwitch
from tests.support.openflow_bench import OpenFlowBench
from tests.support.waiting import eventually

pytestmark = [pytest.mark.root, pytest.mark.ovs]
PORTS = (1, 2, 3)
SWITCH = PacketSwitch("tor1", 1, 3)


def add_port(bench: OpenFlowBench, bridge: str, port: int) -> None:
    name = f"{bridge}p{port}"
    kind = (
        "--",
        "set",
        "Interface",
        name,
        "type=internal",
        f"ofport_request={port}",
    )
    bench.ovs.vsctl("add-port", bridge, name, *kind)


async def test_the_driver_passes_every_check(bench: OpenFlowBench) -> None:
    async with bench.connected() as (speaker, events, name):
        for port in PORTS:
            add_port(bench, name, port)

        def counted() -> bool:
            seen = [
                {port["port"] for port in e["ports"]}
                for e in events.of("counters")
            ]
            return any(ports.issuperset(PORTS) for ports in seen)

        await eventually(counted, "counters of the new ports")
        for check in CHECKS:
            await run_check(
                check, lambda: OpenFlowSwitch(SWITCH, speaker), PORTS
            )


async def test_a_port_that_goes_is_noticed(bench: OpenFlowBench) -> None:
    async with bench.connected() as (speaker, _, name):

        async def restore(port: int) -> None:
            add_port(bench, name, port)

        async def remove(port: int) -> None:
            bench.ovs.vsctl("del-port", f"{name}p{port}")

        async def check(
            driver: PacketSwitchDriver, ports: tuple[int, int, int]
        ) -> None:
            await notices_a_missing_port(driver, ports, remove, restore)

        for port in PORTS:
            await restore(port)
        await run_check(check, lambda: OpenFlowSwitch(SWITCH, speaker), PORTS)


async def test_an_entry_of_others_above_is_told_and_stays(
    bench: OpenFlowBench,
) -> None:
    async with bench.connected() as (speaker, _, name):
        for port in PORTS:
            add_port(bench, name, port)

        async def meddle(station: Station, port: int) -> None:
            bench.ovs.ofctl("add-flow", name, "priority=40000,actions=drop")

        async def undo(station: Station, port: int) -> None:
            assert "priority=40000" in bench.ovs.ofctl("dump-flows", name)
            bench.ovs.ofctl("del-flows", name, "--strict", "priority=40000")

        async def check(
            driver: PacketSwitchDriver, ports: tuple[int, int, int]
        ) -> None:
            await leaves_what_others_set(driver, ports, meddle, undo)

        await run_check(check, lambda: OpenFlowSwitch(SWITCH, speaker), PORTS)
