"""A private Open vSwitch, and speakers on each engine, for the tests here."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import pytest

from patchlight.controller.openflow.client import Speaker
from patchlight.controller.openflow.protocol import Message
from patchlight.controller.openflow.speaker import engine as engines
from patchlight.controller.openflow.speaker_process import SpeakerOptions
from patchlight.testbed.lab import Endpoint, Fibre, Lab, Nic, PacketSwitch, Server, default_mac
from tests.support.private_ovs import PrivateOvs

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="module", params=list(engines.PACKAGES))
def engine(request: pytest.FixtureRequest) -> str:
    """Each engine in turn. In CI neither may be missing."""
    if request.param not in engines.available():
        reason = f"the OpenFlow engine {request.param} is not installed: see deploy/bootstrap.sh"
        if os.environ.get("CI", "").lower() in ("true", "1"):
            pytest.fail(reason)
        pytest.skip(reason)
    return str(request.param)


@pytest.fixture(scope="module")
def ovs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateOvs]:
    """An Open vSwitch of our own, in a namespace of its own."""
    name = f"pl.test-{os.getpid()}-of{next(_NUMBERS)}"
    with PrivateOvs(name, tmp_path_factory.mktemp("ovs")) as private:
        yield private


class Recorder:
    """The events of a speaker, as they came."""

    def __init__(self, speaker: Speaker) -> None:
        self.events: list[Message] = []
        speaker.subscribe(self.events.append)

    def of(self, kind: str, **fields: object) -> list[Message]:
        """The events so far of that kind, and with these values."""
        return [
            event
            for event in self.events
            if event["event"] == kind and fields.items() <= event.items()
        ]

    async def wait(self, kind: str, *, after: int = 0, **fields: object) -> Message:
        """The first such event, past the first ``after`` events."""
        await eventually(
            lambda: [e for e in self.of(kind, **fields) if e in self.events[after:]],
            f"event {kind} {fields}, but only {[e['event'] for e in self.events[-9:]]}",
        )
        return next(e for e in self.of(kind, **fields) if e in self.events[after:])


async def eventually(true: Callable[[], object], what: str, within_s: float = 15.0) -> None:
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline, f"in vain waited for {what}"
        await asyncio.sleep(0.02)


class Bench:
    """What a test needs: the switches, the engine's name, and speakers on demand."""

    def __init__(self, ovs: PrivateOvs, engine: str, directory: Path) -> None:
        self.ovs = ovs
        self.engine = engine
        self.directory = directory
        self.bridges: list[str] = []
        # Free in the switches' namespace, where nothing else listens; each test its own, so
        # that no old bridge finds the new speaker.
        self.listen = f"127.0.0.1:{20000 + next(_NUMBERS)}"

    def options(self, *datapath_ids: int, apps: tuple[str, ...] = ()) -> SpeakerOptions:
        return SpeakerOptions(
            socket=self.directory / "speaker.sock",
            datapath_ids=datapath_ids,
            listen=self.listen,
            netns=self.ovs.netns,
            engine=self.engine,
            apps=apps,
        )

    @asynccontextmanager
    async def speaker(
        self, *datapath_ids: int, apps: tuple[str, ...] = ()
    ) -> AsyncIterator[tuple[Speaker, Recorder]]:
        speaker = Speaker(self.options(*datapath_ids, apps=apps))
        recorder = Recorder(speaker)
        async with speaker:
            yield speaker, recorder

    def bridge(self, datapath_id: int) -> str:
        """A new bridge that connects at once."""
        name = f"br{next(_NUMBERS)}"
        self.ovs.add_bridge(name, datapath_id, self.listen)
        self.bridges.append(name)
        return name


@pytest.fixture
def bench(ovs: PrivateOvs, engine: str, tmp_path: Path) -> Iterator[Bench]:
    made = Bench(ovs, engine, tmp_path)
    yield made
    for name in made.bridges:
        ovs.vsctl("--if-exists", "del-br", name)


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A TCP port of this machine that this very process listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def two_switch_lab() -> Lab:
    """One host behind each of two switches: port 1 is the trunk, port 2 the host."""
    hosts = [IPv4Address("10.9.0.1"), IPv4Address("10.9.0.2")]
    fibres = [Fibre(Endpoint("sw0", "1"), Endpoint("sw1", "1"))]
    fibres += [Fibre(Endpoint(f"h{i}", "nic0"), Endpoint(f"sw{i}", "2")) for i in (0, 1)]
    return Lab(
        "test",
        IPv4Network("10.9.0.0/16"),
        tuple(
            Server(f"h{i}", None, (), (Nic("nic0", address, default_mac(address)),))
            for i, address in enumerate(hosts)
        ),
        tuple(PacketSwitch(f"sw{i}", i + 1, 2) for i in (0, 1)),
        (),
        tuple(fibres),
    )
