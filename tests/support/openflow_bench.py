"""Real packet switches, and OpenFlow speakers whose events are recorded, for tests."""

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from patchlight.controller.packet_switches.openflow.client import Speaker
from patchlight.controller.packet_switches.openflow.flowtable import (
    Message,
    SpeakerOptions,
    SwitchTls,
)
from tests.support.private_ovs import PrivateOvs
from tests.support.waiting import eventually

_NUMBERS = itertools.count(1)


class Recorder:
    def __init__(self, speaker: Speaker) -> None:
        self.events: list[Message] = []
        speaker.subscribe(self.events.append)

    def of(self, kind: str, **fields: object) -> list[Message]:
        fields["event"] = kind
        return [
            event for event in self.events if fields.items() <= event.items()
        ]

    async def wait(
        self, kind: str, *, after: int = 0, **fields: object
    ) -> Message:
        """The first such event, past the first ``after`` events."""

        def found() -> list[Message]:
            return [
                e for e in self.of(kind, **fields) if e in self.events[after:]
            ]

        kinds = [e["event"] for e in self.events[-9:]]
        await eventually(found, f"event {kind} {fields}, but only {kinds}")
        return found()[0]


class OpenFlowBench:
    """What a test needs: the switches, the engine's name, and speakers on demand."""

    def __init__(self, ovs: PrivateOvs, engine: str, directory: Path) -> None:
        self.ovs = ovs
        self.engine = engine
        self.directory = directory
        self.bridges: list[str] = []
        # Free in the switches' namespace, where nothing else listens; each test its own, so
        # that no old bridge finds the new speaker.
        self.listen = f"127.0.0.1:{20000 + next(_NUMBERS)}"

    def options(
        self,
        *datapath_ids: int,
        apps: tuple[str, ...] = (),
        tls: SwitchTls | None = None,
    ) -> SpeakerOptions:
        return SpeakerOptions(
            socket=self.directory / "speaker.sock",
            datapath_ids=datapath_ids,
            listen=self.listen,
            netns=self.ovs.netns,
            engine=self.engine,
            apps=apps,
            tls=tls,
        )

    @asynccontextmanager
    async def speaker(
        self,
        *datapath_ids: int,
        apps: tuple[str, ...] = (),
        tls: SwitchTls | None = None,
    ) -> AsyncIterator[tuple[Speaker, Recorder]]:
        speaker = Speaker(self.options(*datapath_ids, apps=apps, tls=tls))
        recorder = Recorder(speaker)
        async with speaker:
            yield speaker, recorder

    @asynccontextmanager
    async def connected(
        self, apps: tuple[str, ...] = ()
    ) -> AsyncIterator[tuple[Speaker, Recorder, str]]:
        """A speaker, its events, and a bridge that is connected to it as datapath 1."""
        async with self.speaker(1, apps=apps) as (speaker, events):
            name = self.bridge(1)
            await events.wait("switch-up", datapath_id=1)
            yield speaker, events, name

    def bridge(
        self, datapath_id: int, tls: Path | None = None, listen: str = ""
    ) -> str:
        name = f"br{next(_NUMBERS)}"
        self.ovs.add_bridge(name, datapath_id, listen or self.listen, tls)
        self.bridges.append(name)
        return name
