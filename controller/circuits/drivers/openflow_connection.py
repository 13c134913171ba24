"""The connection to one OpenFlow switch: a speaker process that listens for it."""

import asyncio
import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patchlight.controller.circuits.contract import DeviceRefused, DeviceUnreachable
from patchlight.controller.circuits.dialects import Dialect
from patchlight.controller.openflow.client import (
    Speaker,
    SpeakerFailed,
    SpeakerOptions,
    SpeakerRefused,
)
from patchlight.controller.openflow.flowtable import Message
from patchlight.testbed.errors import OutcomeUnknown, PatchlightError
from patchlight.testbed.lab.model import CircuitSwitch

_LOOK_EVERY_S = 0.05
_PREFIX = "patchlight-of-"
_YOUNG_S = 60.0  # a folder of this age may be about to be held
_NO_ANSWER = ("SwitchGone", "DeadlinePassed")


@dataclass(frozen=True)
class OpenFlowDialect(Dialect):
    """How a switch numbers its ports, and how long it is waited for.

    Input n is port ``in_base`` + n, output n is port ``out_base`` + n. ``priority`` is that of
    new entries. ``engine``: ``ryu`` or ``os-ken``, empty for the first that is installed.
    """

    vendor: str = "OpenFlow"
    engine: str = ""
    in_base: int = 0
    out_base: int = 0
    priority: int = 100
    list_limit: int = 4096
    timeout_s: float = 10.0
    connect_timeout_s: float = 15.0


class OpenFlowConnection:
    """Made closed; while it is open there is a ``speaker``.

    ``on_event`` is called with each event about the switch; it must not wait.
    """

    def __init__(
        self, switch: CircuitSwitch, dialect: OpenFlowDialect, on_event: Callable[[Message], None]
    ) -> None:
        assert switch.datapath_id is not None
        self._name, self._address = switch.name, switch.address
        self._datapath_id = switch.datapath_id
        self._dialect, self._listener = dialect, on_event
        self.speaker: Speaker | None = None
        self._folder: Path | None = None
        self._held: int | None = None
        self._strangers: set[int] = set()
        self._opening = asyncio.Lock()
        self._closing = False

    async def open(self) -> None:
        """Listen, and wait for the switch. ``DeviceUnreachable`` if it does not come in time.

        Until ``close`` it may still come: who is refused once may take long to try again.
        """
        async with self._opening:
            if self.speaker is None:
                await self._listen()
            await self._until_connected()

    async def _listen(self) -> None:
        self._strangers.clear()
        await asyncio.to_thread(sweep_folders)
        self._folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._held = hold(self._folder)
        speaker = Speaker(
            SpeakerOptions(
                socket=self._folder / "speaker.sock",
                datapath_ids=(self._datapath_id,),
                listen=self._address,
                engine=self._dialect.engine or None,
                counters=False,
            )
        )
        speaker.subscribe(self._on_event)
        try:
            await speaker.start()
        except SpeakerFailed as error:
            await self._end()
            raise DeviceUnreachable(
                f"listening for {self._name} at {self._address}: {error.message}", hint=error.hint
            ) from error
        except BaseException:
            await self._end()
            raise
        self.speaker = speaker

    async def close(self) -> None:
        """Stop listening, and waiting for the switch. Idempotent."""
        self._closing = True
        async with self._opening:
            await self._end()
        self._closing = False

    async def ask(self, operation: str) -> Any:
        """What the switch says. Raises ``DeviceUnreachable`` or ``DeviceRefused``.

        A switch that is just connecting again is waited for.
        """
        for last in (False, True):
            try:
                return await self._request(operation)
            except SpeakerRefused as refused:
                if refused.kind not in _NO_ANSWER:
                    raise DeviceRefused(
                        f"{self._name}: {refused.message}", words=refused.message, hint=refused.hint
                    ) from refused
                if last or refused.kind == "DeadlinePassed":
                    raise DeviceUnreachable(f"{self._name}: {refused.message}") from refused
            except (SpeakerFailed, OutcomeUnknown) as error:
                if last:
                    raise DeviceUnreachable(f"{self._name}: {error.message}") from error
            await self._until_connected()
        raise AssertionError("the last turn returns or raises")

    async def tell(self, operation: str, **fields: Any) -> None:
        """Have the switch do something.

        ``SpeakerRefused`` with what it refused; ``OutcomeUnknown`` if it did not say what came
        of it; ``DeviceUnreachable`` if it was not told at all.
        """
        try:
            await self._request(operation, **fields)
        except SpeakerFailed as error:
            raise DeviceUnreachable(f"{self._name}: {error.message}", hint=error.hint) from error
        except OutcomeUnknown as error:
            raise OutcomeUnknown(
                f"{self._name} was told to change, then: {error.message}",
                hint="read the device's map before anything else",
            ) from error

    async def _request(self, operation: str, **fields: Any) -> Any:
        if self.speaker is None:
            raise DeviceUnreachable(f"{self._name}: the driver is not open, or was closed")
        return await self.speaker.request(
            operation, datapath_id=self._datapath_id, deadline_s=self._dialect.timeout_s, **fields
        )

    async def _until_connected(self) -> None:
        assert self.speaker is not None
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._dialect.connect_timeout_s
        while True:
            # The speaker itself may just be starting again.
            with contextlib.suppress(SpeakerFailed, OutcomeUnknown, SpeakerRefused):
                switches = await self.speaker.request("switches")
                if any(int(s["datapath_id"]) == self._datapath_id for s in switches):
                    return
            if self._closing:
                raise DeviceUnreachable(f"{self._name}: the driver is being closed")
            if loop.time() > deadline:
                raise DeviceUnreachable(
                    f"{self._name} did not connect to {self._address} within "
                    f"{self._dialect.connect_timeout_s:g} s{self._who_did()}: is that its OpenFlow "
                    f"controller, and {self._datapath_id:#x} its datapath id?",
                    hint=f"set its controller to tcp:{self._address}, OpenFlow 1.3; or correct "
                    "'address' and 'datapath_id' in the lab file",
                )
            await asyncio.sleep(_LOOK_EVERY_S)

    def _who_did(self) -> str:
        if not self._strangers:
            return ""
        ids = ", ".join(f"{datapath_id:#x}" for datapath_id in sorted(self._strangers))
        return f"; what did is datapath id {ids}, not {self._datapath_id:#x}"

    def _on_event(self, event: Message) -> None:
        if event["event"] == "unknown-switch":
            self._strangers.add(int(event["datapath_id"]))
        self._listener(event)

    async def _end(self) -> None:
        speaker, self.speaker = self.speaker, None
        folder, self._folder = self._folder, None
        held, self._held = self._held, None
        if speaker is not None:
            with contextlib.suppress(PatchlightError):
                await speaker.close()
        if folder is not None:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        if held is not None:
            os.close(held)


def hold(folder: Path) -> int:
    """Keep others from sweeping the folder away, until what this gives is closed."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def sweep_folders() -> None:
    """Remove what processes of ours that were killed left behind; the kernel let go of it."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                status = os.fstat(descriptor)
                if status.st_uid == os.geteuid() and time.time() - status.st_mtime > _YOUNG_S:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)
