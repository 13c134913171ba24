"""Real frames through the kernel's crossbar: an emulated OCS with three hosts plugged in."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from patchlight.controller.circuits.contract import DirectedPort
from patchlight.controller.circuits.drivers.calient_tl1 import CalientTl1
from patchlight.testbed.lab.portmap import CrossConnect, PortMap
from patchlight.testbed.linux.namespaces import entered, namespace_path
from tests.support.emulated_devices import Running, lab_file, running
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.root

SWITCHING_S = 0.3
EXPERIMENTAL = b"\x88\xb5"  # IEEE 802 local experimental ethertype


def ip(*arguments: str) -> None:
    subprocess.run(
        ("ip", *arguments), check=True, capture_output=True, text=True
    )


@dataclass
class Host:
    """A host on port ``n`` of the OCS: namespace, interface ``e0``, address 10.77.0.n."""

    n: int
    namespace: str

    @property
    def address(self) -> str:
        return f"10.77.0.{self.n}"

    def tap(self) -> socket.socket:
        with entered(namespace_path(self.namespace)):
            tap = socket.socket(
                socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3)
            )
        tap.bind(("e0", 0))
        tap.setblocking(False)
        return tap

    def pings(self, other: Host, within_s: int = 5) -> bool:
        # After a ping in the dark the kernel would hold the address for unreachable for a while.
        for host in (self, other):
            ip("-n", host.namespace, "neigh", "flush", "dev", "e0")
        ping = ("ping", "-c1", f"-W{within_s}", other.address)
        command = ("ip", "netns", "exec", self.namespace, *ping)
        return subprocess.run(command, capture_output=True).returncode == 0


@dataclass
class Bench:
    device: Running
    hosts: tuple[Host, ...]


@contextmanager
def plugged(name: str) -> Iterator[tuple[Host, ...]]:
    """The namespace of an OCS with a host on each of its ports 1, 2 and 3."""
    ocs = f"pl.{name}.ocs1"
    hosts = tuple(Host(n, f"pl.{name}.h{n}") for n in (1, 2, 3))
    made: list[str] = []
    try:
        for space in (ocs, *(host.namespace for host in hosts)):
            ip("netns", "add", space)
            made.append(space)
        for host in hosts:
            veth = (
                "type",
                "veth",
                "peer",
                "name",
                "e0",
                "netns",
                host.namespace,
            )
            ip("link", "add", f"p{host.n}", "netns", ocs, *veth)
            ip("-n", ocs, "link", "set", f"p{host.n}", "up")
            ip(
                "-n",
                host.namespace,
                "address",
                "add",
                f"{host.address}/24",
                "dev",
                "e0",
            )
            ip("-n", host.namespace, "link", "set", "e0", "up")
        yield hosts
    finally:
        for space in made:
            ip("netns", "delete", space)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    name = f"test-{os.getpid()}"
    folder = tmp_path_factory.mktemp("ocs")
    lab = lab_file(
        folder,
        name=name,
        switching_time=f"{SWITCHING_S * 1000:g}ms",
        initial=("1-2",),
    )
    with plugged(name) as hosts, running(folder, lab) as device:
        yield Bench(device, hosts)


@asynccontextmanager
async def driving(bench: Bench, initial: PortMap) -> AsyncIterator[CalientTl1]:
    """An open driver of the device, brought to ``initial``."""
    driver = CalientTl1(bench.device.switch, "")
    await driver.open()
    try:
        change = (await driver.read_map()).diff(initial)
        assert (await driver.disconnect(change.breaks)).complete
        assert (await driver.connect(change.makes)).complete
        yield driver
    finally:
        await driver.close()


def frame(
    body: bytes, *, to: bytes = b"\xff" * 6, kind: bytes = EXPERIMENTAL
) -> bytes:
    return to + b"\x02\x4c\x00\x00\x00\x09" + kind + body.ljust(46, b".")


def received(tap: socket.socket, *, within_s: float = 0.3) -> list[bytes]:
    """The experimental frames that arrive in this time (what we sent ourselves left out)."""
    found = list[bytes]()
    deadline = time.monotonic() + within_s
    while True:
        # What came until then is still taken.
        over = time.monotonic() >= deadline
        try:
            data, (_, _, direction, *_) = tap.recvfrom(65536)
        except BlockingIOError:
            if over:
                return found
            time.sleep(0.002)  # the pause between two looks
            continue
        if direction != socket.PACKET_OUTGOING:
            found.append(data)


async def test_only_what_is_cross_connected_talks(bench: Bench) -> None:
    one, two, three = bench.hosts
    async with driving(bench, PortMap.duplex([(1, 2)])) as driver:
        assert await asyncio.to_thread(one.pings, two)
        assert not await asyncio.to_thread(one.pings, three, 1)
        # One-way: three hears one, but cannot answer.
        assert (await driver.disconnect(PortMap.duplex([(1, 2)]))).complete
        assert (await driver.connect(PortMap.duplex([(1, 3)]))).complete
        assert await asyncio.to_thread(one.pings, three)
        assert not await asyncio.to_thread(one.pings, two, 1)


@pytest.mark.parametrize(
    "sent",
    [
        frame(b"broadcast"),
        frame(b"to nobody known", to=b"\x02\x00\x5e\x10\x00\x01"),
        frame(
            b"LLDP goes no further than a link", to=b"\x01\x80\xc2\x00\x00\x0e"
        ),
        frame(
            b"flow control", to=b"\x01\x80\xc2\x00\x00\x01", kind=b"\x88\x08"
        ),
        frame(b"VLAN 5, RoCE", kind=b"\x81\x00\x60\x05\x89\x15"),
        frame(b"as long as it gets" * 83),
        frame(b"", kind=b"\x00\x2e"),
    ],
    ids=lambda sent: sent[12:14].hex() + "-" + str(len(sent)),
)
async def test_any_frame_passes_and_only_that_way(
    bench: Bench, sent: bytes
) -> None:
    one, two, three = bench.hosts
    async with driving(bench, PortMap.of([(1, 2)])):
        with one.tap() as here, two.tap() as there, three.tap() as elsewhere:
            here.send(sent)
            arrived = await asyncio.to_thread(received, there)
            # The kernel hands a tap the frame without its VLAN tag.
            bare = (
                sent[:12] + sent[16:] if sent[12:14] == b"\x81\x00" else sent
            )
            assert bare in arrived
            assert received(elsewhere, within_s=0.05) == []
            # One way only: nothing of two's reaches one.
            there.send(frame(b"back"))
            assert frame(b"back") not in await asyncio.to_thread(
                received, here
            )


async def test_the_old_path_is_dark_at_once_and_the_new_one_after_the_switching_time(
    bench: Bench,
) -> None:
    one, two, three = bench.hosts
    async with driving(bench, PortMap.of([(1, 2)])) as driver:
        with one.tap() as source, two.tap() as old, three.tap() as new:
            source.send(frame(b"before"))
            assert frame(b"before") in await asyncio.to_thread(received, old)
            assert (await driver.disconnect([CrossConnect(1, 2)])).complete
            source.send(frame(b"after the break"))
            told_at = time.monotonic()
            connecting = asyncio.create_task(
                driver.connect([CrossConnect(1, 3)])
            )
            first: float | None = None
            while first is None and time.monotonic() < told_at + PATIENCE_S:
                at = time.monotonic()
                source.send(frame(f"{at!r}".encode()))
                if any(
                    data[12:14] == EXPERIMENTAL
                    for data in received(new, within_s=0.004)
                ):
                    first = at
                await asyncio.sleep(0)  # the driver has its turn
            outcome = await connecting
            assert outcome.complete
            assert first is not None
            dark_s = first - told_at
            assert dark_s >= SWITCHING_S - 0.01
            assert outcome.elapsed_s >= SWITCHING_S
            assert received(old, within_s=0.05) == []


async def test_dark_ports_say_nothing(bench: Bench) -> None:
    one = bench.hosts[0]
    async with driving(bench, PortMap()):
        with one.tap() as tap:
            received(tap, within_s=0.05)
            assert not await asyncio.to_thread(one.pings, bench.hosts[1], 1)
            assert await asyncio.to_thread(received, tap, within_s=1.0) == []


async def test_power_follows_the_transmitter(bench: Bench) -> None:
    host = bench.hosts[0]
    arriving = DirectedPort("in", 1)
    leaving = DirectedPort("out", 2)

    async def until(driver: CalientTl1, dark: bool) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while (powers := await driver.power([arriving, leaving]))[
            arriving
        ] is None or dark:
            if dark and powers == {arriving: None, leaving: None}:
                return
            assert time.monotonic() < deadline
        assert powers[arriving] == pytest.approx(-0.3)
        assert powers[leaving] == pytest.approx(-1.8, abs=0.31)

    async with driving(bench, PortMap.of([(1, 2)])) as driver:
        await until(driver, dark=False)
        ip("-n", host.namespace, "link", "set", "e0", "down")
        try:
            await until(driver, dark=True)
        finally:
            ip("-n", host.namespace, "link", "set", "e0", "up")
        await until(driver, dark=False)


async def test_the_map_and_the_light_outlive_the_clients(bench: Bench) -> None:
    one, two, _ = bench.hosts
    async with driving(bench, PortMap.duplex([(1, 2)])):
        host, _, port = bench.device.switch.address.partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"ACT-USER::admin:1::pw;")
        assert b"COMPLD" in await reader.readuntil(b"\n;")
        writer.transport.abort()
    assert one.pings(two)


async def test_a_killed_device_leaves_the_light_and_comes_back_with_its_map(
    tmp_path: Path,
) -> None:
    name = f"test-{os.getpid()}-again"
    lab = lab_file(tmp_path, name=name, initial=("1-2",))
    state = ("--state", str(tmp_path / "state"))

    with plugged(name) as (one, two, three):
        with running(tmp_path, lab, *state) as device:
            async with driving(
                Bench(device, (one, two, three)), PortMap.duplex([(1, 3)])
            ):
                device.kill()
            assert one.pings(three)
        # The new process takes over the redirects that the killed one left.
        with running(tmp_path, lab, *state):
            assert one.pings(three)
            assert not one.pings(two, within_s=1)
        # Without the file it begins from the lab file, whatever the kernel still holds.
        with running(tmp_path, lab):
            assert one.pings(two)
            assert not one.pings(three, within_s=1)


def test_a_namespace_that_is_not_there_is_said(tmp_path: Path) -> None:
    lab = lab_file(tmp_path, name=f"test-{os.getpid()}-nowhere")
    failed = pytest.raises(
        AssertionError, match=r"cannot enter the network namespace .*pl\.test-"
    )
    with failed, running(tmp_path, lab):
        pass
