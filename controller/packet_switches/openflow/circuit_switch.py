"""The driver ``openflow``: switches whose cross-connects are flows of OpenFlow 1.3.

A cross-connect is one flow entry, from an input port to an output port, with Patchlight's mark in
its cookie; entries of other applications are reported as alarms and never touched. The switch
connects to ``address`` in the lab file, where a separate speaker listens, so that applications of
the packet switches never see it. Tested with the emulated device and Open vSwitch only.
"""

import asyncio
import contextlib
import fcntl
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patchlight.controller.circuits import contract
from patchlight.controller.circuits.dialect import (
    DEFAULT_LINKS,
    Dialect,
    corrected,
)
from patchlight.controller.circuits.drivers.base import CircuitTableDriver
from patchlight.controller.circuits.drivers.table import Row
from patchlight.controller.circuits.protocols.session import AlarmLog
from patchlight.controller.packet_switches.openflow.client import (
    Speaker,
    SpeakerFailed,
    SpeakerRefused,
)
from patchlight.controller.packet_switches.openflow.flowtable import (
    FlowEntry,
    Match,
    Message,
    SpeakerOptions,
)
from patchlight.testbed.errors import (
    BadInput,
    NoReply,
    OutcomeUnknown,
    PatchlightError,
)
from patchlight.testbed.lab.model import CircuitSwitch
from patchlight.testbed.lab.portmap import CrossConnect

_POLL_S = 0.05
_PREFIX = "patchlight-of-"
_YOUNG_S = 60.0  # a folder of this age may be about to be locked
_NO_ANSWER = ("SwitchGone", "DeadlinePassed")


@dataclass(frozen=True)
class OpenFlowDialect(Dialect):
    """How a switch numbers its ports, and its timeouts.

    Input n is port ``in_base`` + n, output n is port ``out_base`` + n. ``priority`` is that of new
    entries. ``engine``: ``ryu`` or ``os-ken``, empty for the first one installed.
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
    """Created closed; while it is open there is a ``speaker``.

    ``on_event`` is called with each event about the switch; it must not block.
    """

    def __init__(
        self,
        switch: CircuitSwitch,
        dialect: OpenFlowDialect,
        on_event: Callable[[Message], None],
    ) -> None:
        assert switch.datapath_id is not None
        self._name = switch.name
        self._address = switch.address
        self._datapath_id = switch.datapath_id
        self._dialect = dialect
        self._listener = on_event
        self.links = DEFAULT_LINKS
        self.speaker: Speaker | None = None
        self._folder: Path | None = None
        self._held: int | None = None
        self._strangers: set[int] = set()
        self._opening = asyncio.Lock()
        self._closing = False

    async def open(self) -> None:
        """Listen, and wait for the switch. ``DeviceUnreachable`` if it does not connect in time.

        Until ``close`` it may still connect: after a refusal it may retry late.
        """
        async with self._opening:
            if self.speaker is None:
                await self._listen()
            await self._until_connected()

    async def _listen(self) -> None:
        self._strangers.clear()
        parent = self.links.sockets or Path(tempfile.gettempdir())
        await asyncio.to_thread(sweep_folders, parent)
        folder = parent / f"{_PREFIX}{secrets.token_hex(8)}"
        folder.mkdir(mode=0o700)
        self._folder = folder
        self._held = hold(self._folder)
        speaker = Speaker(
            SpeakerOptions(
                socket=self._folder / "speaker.sock",
                datapath_ids=(self._datapath_id,),
                listen=self._address,
                engine=self._dialect.engine or None,
                counters=False,
            ),
            self.links.launch_speaker,
        )
        speaker.subscribe(self._on_event)
        try:
            await speaker.start()
        except SpeakerFailed as error:
            await self._end()
            raise contract.DeviceUnreachable(
                f"listening for {self._name} at {self._address}: {error.message}",
                hint=error.hint,
            ) from error
        except BaseException:
            await self._end()
            raise
        self.speaker = speaker

    async def close(self) -> None:
        """Stop listening and waiting for the switch. Idempotent."""
        self._closing = True
        async with self._opening:
            await self._end()
        self._closing = False

    async def ask(self, operation: str) -> Any:
        """The switch's answer. Raises ``DeviceUnreachable`` or ``DeviceRefused``.

        It waits for a switch that is reconnecting.
        """
        for last in (False, True):
            try:
                return await self._request(operation)
            except SpeakerRefused as refused:
                if refused.kind not in _NO_ANSWER:
                    raise contract.DeviceRefused(
                        f"{self._name}: {refused.message}",
                        words=refused.message,
                        hint=refused.hint,
                    ) from refused
                if last or refused.kind == "DeadlinePassed":
                    raise self._unreachable(refused) from refused
            except (SpeakerFailed, OutcomeUnknown) as error:
                if last:
                    raise self._unreachable(error) from error
            await self._until_connected()
        raise AssertionError("the last attempt returns or raises")

    async def tell(self, operation: str, **fields: Any) -> None:
        """Change something on the switch.

        ``SpeakerRefused`` with what it refused; ``OutcomeUnknown`` if it did not answer;
        ``DeviceUnreachable`` if nothing was sent.
        """
        try:
            await self._request(operation, **fields)
        except SpeakerFailed as error:
            unreachable = f"{self._name}: {error.message}"
            raise contract.DeviceUnreachable(
                unreachable, hint=error.hint
            ) from error
        except OutcomeUnknown as error:
            raise contract.outcome_unknown(
                f"{self._name} got a command, then: {error.message}",
                is_late=isinstance(error, NoReply),
            ) from error

    def _unreachable(
        self, error: PatchlightError
    ) -> contract.DeviceUnreachable:
        return contract.DeviceUnreachable(f"{self._name}: {error.message}")

    async def _request(self, operation: str, **fields: Any) -> Any:
        if self.speaker is None:
            raise contract.DeviceUnreachable(
                f"{self._name}: the driver is not open, or was closed"
            )
        return await self.speaker.request(
            operation,
            datapath_id=self._datapath_id,
            deadline_s=self._dialect.timeout_s,
            **fields,
        )

    async def _until_connected(self) -> None:
        assert self.speaker is not None
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._dialect.connect_timeout_s
        while True:
            # The speaker itself may be restarting.
            with contextlib.suppress(
                SpeakerFailed, OutcomeUnknown, SpeakerRefused
            ):
                switches = await self.speaker.request("switches")
                if any(
                    int(s["datapath_id"]) == self._datapath_id
                    for s in switches
                ):
                    return
            if self._closing:
                raise contract.DeviceUnreachable(
                    f"{self._name}: the driver is being closed"
                )
            if loop.time() > deadline:
                raise contract.DeviceUnreachable(
                    f"{self._name} did not connect to {self._address} within "
                    f"{self._dialect.connect_timeout_s:g} s{self._who_did()}: is that its OpenFlow "
                    f"controller, and {self._datapath_id:#x} its datapath id?",
                    hint=f"set its controller to tcp:{self._address}, OpenFlow 1.3; or correct "
                    "'address' and 'datapath_id' in the lab file",
                )
            await asyncio.sleep(_POLL_S)

    def _who_did(self) -> str:
        if not self._strangers:
            return ""
        ids = ", ".join(
            f"{datapath_id:#x}" for datapath_id in sorted(self._strangers)
        )
        return (
            f"; datapath id {ids} connected instead of {self._datapath_id:#x}"
        )

    def _on_event(self, event: Message) -> None:
        if event["event"] == "unknown-switch":
            self._strangers.add(int(event["datapath_id"]))
        self._listener(event)

    async def _end(self) -> None:
        speaker = self.speaker
        self.speaker = None
        folder = self._folder
        self._folder = None
        held = self._held
        self._held = None
        if speaker is not None:
            with contextlib.suppress(PatchlightError):
                await speaker.close()
        if folder is not None:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        if held is not None:
            os.close(held)


def hold(folder: Path) -> int:
    """Lock the folder against cleanup by others, until the returned file is closed."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def sweep_folders(parent: Path) -> None:
    """Remove the files of killed processes, whose locks the kernel has released."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            descriptor = os.open(
                folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
            )
            try:
                status = os.fstat(descriptor)
                if (
                    status.st_uid == os.geteuid()
                    and time.time() - status.st_mtime > _YOUNG_S
                ):
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)


OFPP_IN_PORT = 0xFFFFFFF8
"""The input port: an output needs this constant, its number would be ignored."""

_LOOK_EVERY_S = (
    2.0  # minimum interval between reads of flows and ports for alarms
)


@dataclass(
    frozen=True,
    slots=True,
    kw_only=True,
)
class FlowRow(Row):
    """A cross-connect and its flow entry."""

    entry: FlowEntry


class OpenFlowSwitch(CircuitTableDriver[FlowRow]):
    """An OCS that speaks OpenFlow 1.3. See ``CircuitDriver`` for the methods.

    Opening it means to listen, and to wait until the switch has connected.
    """

    client: OpenFlowConnection
    capabilities = contract.Capabilities()

    def __init__(
        self,
        switch: CircuitSwitch,
        password: str = "",
        dialect: OpenFlowDialect | None = None,
    ) -> None:
        if switch.datapath_id is None:
            raise BadInput(
                f"{switch.name}: the driver openflow needs the switch's datapath id",
                hint="give the circuit switch one in the lab file, like 'datapath_id: 0x51'",
            )
        self._dialect = dialect or corrected(switch.driver, OpenFlowDialect())
        super().__init__(switch)
        self._list_limit = self._dialect.list_limit
        self.client = OpenFlowConnection(switch, self._dialect, self._heard)
        self._foreign: tuple[FlowEntry, ...] = ()
        self._alarms = AlarmLog()
        self._look_again_at = 0.0

    async def open(self) -> None:
        """Listen for the switch, and wait for it."""
        await self.client.open()

    async def close(self) -> None:
        """Stop listening; circuits stay."""
        await self.client.close()

    async def identify(self) -> contract.Identity:
        """From the switch's description."""
        description = await self.client.ask("describe")
        return contract.Identity(
            description["vendor"] or self._dialect.vendor,
            description["hardware"]
            or f"datapath {self._switch.datapath_id:#x}",
            description["serial"],
            description["software"],
            description["name"],
        )

    async def port_states(self) -> contract.PortStates:
        """From the port descriptions: switched off, blocked, or missing."""
        described = {
            int(port["port"]): port for port in await self.client.ask("ports")
        }
        base = {"in": self._dialect.in_base, "out": self._dialect.out_base}
        ports = self._all_ports()
        return {
            port: _state(described.get(base[port.side] + port.number))
            for port in ports
        }

    async def alarms(self) -> tuple[contract.Alarm, ...]:
        """Events of ports and the connection; flow entries of others and failed ports."""
        if time.monotonic() >= self._look_again_at:
            self._look_again_at = time.monotonic() + _LOOK_EVERY_S
            # Do not update the state used by a change: this answer may be older.
            _, foreign = await self._flows()
            now = [
                contract.Standing(
                    "minor",
                    "flow",
                    f"a flow entry of another application: {entry}",
                )
                for entry in foreign
            ]
            now += [
                contract.Standing(
                    "minor", str(port), f"{state.condition}: {state.words}"
                )
                for port, state in (await self.port_states()).items()
                if state.condition in ("locked", "failed")
            ]
            self._alarms.stands(now)
        return self._alarms.all

    async def _table(self) -> Mapping[CrossConnect, FlowRow]:
        table, self._foreign = await self._flows()
        return table

    async def _flows(
        self,
    ) -> tuple[dict[CrossConnect, FlowRow], tuple[FlowEntry, ...]]:
        """Patchlight's entries, and those of others."""
        flows = (await self.client.ask("read_flows"))["flows"]
        table: dict[CrossConnect, FlowRow] = {}
        foreign = []
        for entry in (FlowEntry.from_json(flow) for flow in flows):
            c = self._cross_connect(entry) if entry.is_ours else None
            if c is not None and min(c) >= 1 and max(c) <= self.ports:
                table[c] = FlowRow(entry=entry)
            else:
                foreign.append(entry)
        return table, tuple(foreign)

    async def _make(self, pairs: Sequence[CrossConnect]) -> None:
        free = []
        words = []
        for c in pairs:
            held = self._held_by_others(c)
            if held is None:
                free.append(c)
            else:
                words.append(
                    f"{c} conflicts with a flow entry of another application: {held}"
                )
        if free:
            words += await self._apply(adds=[self._entry(c) for c in free])
        if words:
            raise self._will_not(words[0])

    async def _break(
        self,
        pairs: Sequence[CrossConnect],
        table: Mapping[CrossConnect, FlowRow],
    ) -> None:
        words = await self._apply(removes=[table[c].entry for c in pairs])
        if words:
            raise self._will_not(words[0])

    async def _apply(
        self,
        *,
        removes: Sequence[FlowEntry] = (),
        adds: Sequence[FlowEntry] = (),
    ) -> list[str]:
        """Send a change, and wait for it; returns reasons for refused entries."""
        try:
            await self.client.tell(
                "apply",
                removes=[entry.to_json() for entry in removes],
                adds=[entry.to_json() for entry in adds],
            )
        except SpeakerRefused as refused:
            if not refused.failed:
                raise self._will_not(refused.message) from refused
            return [str(failure["error"]) for failure in refused.failed]
        return []

    def _entry(self, c: CrossConnect) -> FlowEntry:
        inp = self._dialect.in_base + c.inp
        out = self._dialect.out_base + c.out
        back = OFPP_IN_PORT if inp == out else out
        return FlowEntry.ours(
            Match(in_port=inp), (back,), priority=self._dialect.priority
        )

    def _cross_connect(self, entry: FlowEntry) -> CrossConnect | None:
        """The ports that an entry connects; ``None`` if they are not exactly two."""
        inp = entry.match.get("in_port")
        if (
            len(entry.match) != 1
            or not isinstance(inp, int)
            or len(entry.outputs) != 1
        ):
            return None
        out = inp if entry.outputs[0] == OFPP_IN_PORT else entry.outputs[0]
        return CrossConnect(
            inp - self._dialect.in_base, out - self._dialect.out_base
        )

    def _held_by_others(self, c: CrossConnect) -> FlowEntry | None:
        """The entry of another application with this input or output."""
        inp = self._dialect.in_base + c.inp
        out = self._dialect.out_base + c.out
        for entry in self._foreign:
            from_input = entry.match.get("in_port") == inp
            to_output = out in entry.outputs or (
                OFPP_IN_PORT in entry.outputs and inp == out
            )
            if from_input or to_output:
                return entry
        return None

    def _heard(self, event: Mapping[str, Any]) -> None:
        kind = event["event"]
        if kind == "port":
            state = (
                _state(event).words
                if event["change"] != "removed"
                else "removed"
            )
            self._alarms.note(
                "minor", f"port {event['port']}", f"{event['change']}: {state}"
            )
        elif kind == "unknown-switch":
            self._alarms.note(
                "minor",
                "switch",
                f"datapath id {event['datapath_id']:#x} connected",
            )
        elif kind == "second-switch":
            words = (
                f"another switch with its datapath id connected from {event['address']} and is "
                "ignored"
            )
            self._alarms.note("major", "switch", words)
        elif kind == "switch-up":
            self._alarms.note(
                "notice", "switch", f"connected from {event['address']}"
            )
        elif kind in ("switch-down", "speaker-down"):
            self._alarms.note(
                "major",
                "switch",
                str(event.get("error", "the connection ended")),
            )


def _state(port: Mapping[str, Any] | None) -> contract.PortState:
    if port is None:
        return contract.PortState("absent", "the switch has no such port")
    condition: contract.Condition = "ready"
    words = "live" if port["up"] else "link down"
    if not port["enabled"]:
        condition = "locked"
        words = "port down (administratively)"
    elif port["blocked"]:
        condition = "failed"
        words = "blocked"
    return contract.PortState(
        condition, f"{port['name']}: {words}" if port["name"] else words
    )
