"""Sends requests to one connected packet switch.

Every request waits for its replies in its own green thread; the engine's event loop only delivers
replies and never blocks.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import eventlet
from eventlet.event import Event
from ryu.ofproto import ofproto_v1_3 as ofp
from ryu.ofproto import ofproto_v1_3_parser as parser

from patchlight.controller.packet_switches.openflow.flowtable import (
    COOKIE_MARK,
    COOKIE_MASK,
    GROUP_IDS,
    FlowEntry,
)
from patchlight.controller.packet_switches.openflow.speaker.messages import (
    HEADER,
    EntryRefused,
    Groups,
    add_message,
    entry_of,
    error_text,
    group_message,
    group_ports,
    groups_of,
    remove_message,
)
from patchlight.testbed.errors import PatchlightError

# Fewer, larger sends: each goes through the engine's queue and a system call.
_BATCH_BYTES = 32 * 1024


class SwitchGone(PatchlightError):
    """A switch disconnected, or is not connected."""


@dataclass(slots=True)
class _Waiter:
    """A waiting request. ``errors`` and ``parts`` collect replies before the last one."""

    done: Event = field(default_factory=Event)
    index_of: dict[int, int] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)
    parts: list[Any] = field(default_factory=list)


class Switch:
    """A connected packet switch."""

    def __init__(self, datapath: Any) -> None:
        self.datapath = datapath
        self.id: int = datapath.id
        self._waiters: dict[int, _Waiter] = {}
        self._selects: bool | None = None
        self._uses_groups = False

    @property
    def address(self) -> str:
        """The switch's address."""
        return "{}:{}".format(*self.datapath.address[:2])

    def ports(self) -> list[dict[str, Any]]:
        """The switch's ports: number, name, MAC and whether a signal arrives."""
        return [
            port_of(p)
            for n, p in sorted(self.datapath.ports.items())
            if n <= ofp.OFPP_MAX
        ]

    def ports_now(self) -> list[dict[str, Any]]:
        """The same, read again: some switches do not report changes."""
        request = parser.OFPPortDescStatsRequest(self.datapath, 0)
        ports = {port.port_no: port_of(port) for port in self._gather(request)}
        return [
            port
            for number, port in sorted(ports.items())
            if number <= ofp.OFPP_MAX
        ]

    def description(self) -> dict[str, str]:
        """The switch's manufacturer and description."""
        (description, *_) = self._gather(
            parser.OFPDescStatsRequest(self.datapath, 0)
        )
        names = {
            "vendor": "mfr_desc",
            "hardware": "hw_desc",
            "software": "sw_desc",
        }
        names |= {"serial": "serial_num", "name": "dp_desc"}
        return {
            name: _words(getattr(description, field))
            for name, field in names.items()
        }

    def answers(self, within_s: float) -> bool:
        """Whether the switch answers an echo."""
        waiter = _Waiter()
        try:
            with eventlet.Timeout(within_s):
                self._ask(parser.OFPEchoRequest(self.datapath), waiter)
                waiter.done.wait()
        except (eventlet.Timeout, SwitchGone):
            return False
        finally:
            self._forget(waiter)
        return True

    # -- requests -----------------------------------------------------------------------

    def apply(
        self, removes: Iterable[FlowEntry], adds: Iterable[FlowEntry]
    ) -> list[tuple[FlowEntry, str]]:
        """Remove and add entries; returns refused ones with reasons, or raises ``SwitchGone``.

        Groups are made for them first, and then those that no entry uses are removed. They never
        change: entries with other ports get another group.
        """
        adds = tuple(adds)
        wanted = {entry.outputs for entry in adds if entry.spread}
        self._uses_groups |= bool(wanted)
        groups = self._groups() if self._uses_groups else {}
        ids = {ports: number for number, ports in groups.items()}
        free = (number for number in GROUP_IDS if number not in groups)
        new = {ports: next(free) for ports in sorted(wanted - ids.keys())}
        ids |= new
        group = partial(group_message, self.datapath)
        work: list[tuple[FlowEntry | int, Callable[[int], bytes]]] = [
            (
                number,
                partial(
                    group,
                    ofp.OFPGC_ADD,
                    number,
                    ports,
                ),
            )
            for ports, number in new.items()
        ]
        work += [(entry, partial(remove_message, entry)) for entry in removes]
        work += [
            (
                entry,
                partial(
                    add_message,
                    entry,
                    group=ids[entry.outputs] if entry.spread else None,
                ),
            )
            for entry in adds
        ]
        failed = self._send_all(work)
        if old := groups.keys() - {ids[ports] for ports in wanted}:
            used = {
                number
                for stats in self.flow_stats(0, 0)
                for number in groups_of(stats)
            }
            for number in old - used:
                self._send(
                    group(
                        ofp.OFPGC_DELETE,
                        number,
                        (),
                        self._next_xid(),
                    )
                )
        return [
            (
                entry,
                failed.get(ids.get(entry.outputs, 0), text)
                if entry.spread
                else text,
            )
            for entry, text in failed.items()
            if isinstance(entry, FlowEntry)
        ]

    def _send_all(
        self, work: Iterable[tuple[FlowEntry | int, Callable[[int], bytes]]]
    ) -> dict[FlowEntry | int, str]:
        """Send the messages of these subjects; returns why some were refused."""
        waiter = _Waiter()
        refused = dict[FlowEntry | int, str]()
        batch = bytearray()
        subjects = list[FlowEntry | int]()
        try:
            for index, (subject, message) in enumerate(work):
                xid = self._next_xid()
                subjects.append(subject)
                try:
                    batch += message(xid)
                except EntryRefused as error:
                    refused[subject] = error.message
                    continue
                # Registered before sending, so that no error is missed.
                waiter.index_of[xid] = index
                self._waiters[xid] = waiter
                if len(batch) >= _BATCH_BYTES:
                    self._send(bytes(batch))
                    batch.clear()
            barrier = parser.OFPBarrierRequest(self.datapath)
            self._ask(barrier, waiter, before=bytes(batch))
            waiter.done.wait()
        finally:
            self._forget(waiter)
        return refused | {
            subjects[index]: text for index, text in waiter.errors.items()
        }

    def send(self, port: int, frame: bytes) -> None:
        """Send a frame out of a port. There is no confirmation."""
        message = parser.OFPPacketOut(
            self.datapath,
            ofp.OFP_NO_BUFFER,
            ofp.OFPP_CONTROLLER,
            [parser.OFPActionOutput(port)],
            frame,
        )
        message.set_xid(self._next_xid())
        message.serialize()
        self._send(bytes(message.buf))

    def read_flows(self) -> list[FlowEntry]:
        """Every entry of every table, including others'."""
        stats = self.flow_stats(0, 0)
        self._uses_groups |= any(
            g in GROUP_IDS for each in stats for g in groups_of(each)
        )
        groups = self._groups() if self._uses_groups else {}
        return [entry_of(each, groups) for each in stats]

    def selects(self) -> bool:
        """Whether the switch has select groups."""
        if self._selects is None:
            try:
                (found,) = self._gather(
                    parser.OFPGroupFeaturesStatsRequest(self.datapath, 0)
                )
                self._selects = bool(found.types & 1 << ofp.OFPGT_SELECT)
            except SwitchGone:
                raise
            except PatchlightError:
                self._selects = False
        return self._selects

    def _groups(self) -> Groups:
        described = self._gather(
            parser.OFPGroupDescStatsRequest(self.datapath, 0)
        )
        return {
            g.group_id: group_ports(g)
            for g in described
            if g.group_id in GROUP_IDS
        }

    def flow_stats(
        self, cookie: int = COOKIE_MARK, mask: int = COOKIE_MASK
    ) -> list[Any]:
        """The engine's flow statistics of entries with this cookie: by default Patchlight's."""
        request = parser.OFPFlowStatsRequest(
            self.datapath,
            0,
            ofp.OFPTT_ALL,
            ofp.OFPP_ANY,
            ofp.OFPG_ANY,
            cookie,
            mask,
        )
        return self._gather(request)

    def port_stats(self) -> list[Any]:
        """The engine's port statistics of the switch's own ports."""
        request = parser.OFPPortStatsRequest(self.datapath, 0, ofp.OFPP_ANY)
        return [
            stats
            for stats in self._gather(request)
            if stats.port_no <= ofp.OFPP_MAX
        ]

    def _gather(self, request: Any) -> list[Any]:
        waiter = _Waiter()
        try:
            self._ask(request, waiter)
            waiter.done.wait()
        finally:
            self._forget(waiter)
        if waiter.errors:
            raise PatchlightError(
                f"switch {self.id:#x} refused a status request: {waiter.errors.popitem()[1]}",
                hint="the switch must support OpenFlow 1.3 with flow and port statistics and "
                "descriptions",
            )
        return waiter.parts

    def _ask(
        self,
        request: Any,
        waiter: _Waiter,
        before: bytes = b"",
    ) -> None:
        xid = self._next_xid()
        request.set_xid(xid)
        request.serialize()
        waiter.index_of[xid] = -1
        self._waiters[xid] = waiter
        self._send(before + bytes(request.buf))

    def _send(self, data: bytes) -> None:
        # Ryu drops messages silently when disconnected; its state shows that.
        if not self.datapath.is_active or self.datapath.send_q is None:
            raise SwitchGone(
                f"switch {self.id:#x} disconnected during a request"
            )
        self.datapath.send(data)

    def _next_xid(self) -> int:
        # The engine's counter, shared with every application on this switch.
        self.datapath.xid = (
            self.datapath.xid + 1
        ) & self.datapath.ofproto.MAX_XID
        return int(self.datapath.xid)

    def _forget(self, waiter: _Waiter) -> None:
        for xid in waiter.index_of:
            self._waiters.pop(xid, None)

    # -- replies ------------------------------------------------------------------------

    def on_reply(self, message: Any) -> None:
        """Handle a reply, or a part of one, to Patchlight's requests."""
        waiter = self._waiters.get(message.xid)
        if waiter is None:
            return
        last = True
        if message.msg_type == ofp.OFPT_ERROR:
            index = waiter.index_of[message.xid]
            waiter.errors[index] = error_text(message)
            # The request itself, not an entry before its barrier.
            last = index < 0
        elif message.msg_type == ofp.OFPT_MULTIPART_REPLY:
            waiter.parts += (
                message.body
                if isinstance(message.body, list)
                else [message.body]
            )
            last = not message.flags & ofp.OFPMPF_REPLY_MORE
        if last and not waiter.done.ready():
            waiter.done.send()

    def on_gone(self) -> None:
        """The connection ended: all waiting requests fail."""
        gone = SwitchGone(
            f"switch {self.id:#x} disconnected before it answered",
            hint="its flow entries are read and repaired when it reconnects",
        )
        for waiter in {id(w): w for w in self._waiters.values()}.values():
            if not waiter.done.ready():
                waiter.done.send_exception(gone)


def port_of(port: Any) -> dict[str, Any]:
    """The engine's port description as plain JSON values.

    ``up``: enabled, and a signal arrives. ``enabled``: not switched off. ``blocked``: the switch
    keeps it out of use.
    """
    down = (
        port.config & ofp.OFPPC_PORT_DOWN or port.state & ofp.OFPPS_LINK_DOWN
    )
    return {
        "port": port.port_no,
        "name": _words(port.name),
        "mac": port.hw_addr,
        "up": not down,
        "enabled": not port.config & ofp.OFPPC_PORT_DOWN,
        "blocked": bool(port.state & ofp.OFPPS_BLOCKED),
    }


def _words(text: Any) -> str:
    return (
        text.decode(errors="replace") if isinstance(text, bytes) else str(text)
    )


@dataclass(slots=True)
class _Counts:
    connections: int = 0
    sent: int = 0
    received: int = 0
    errors: int = 0
    echo_s: float | None = None
    echo_xid: int | None = None
    echo_at: float = 0.0


class Traffic:
    """Message counts of each switch of the lab; ``refused``: refused connections by reason."""

    def __init__(self, datapath_ids: frozenset[int]) -> None:
        self.refused: Counter[str] = Counter()
        self._counts = {number: _Counts() for number in datapath_ids}

    def connected(self, datapath_id: int) -> None:
        """A switch of the lab is ready."""
        self._counts[datapath_id].connections += 1

    def gone(self, datapath_id: int) -> None:
        """Its connection ended: its response time is obsolete."""
        counts = self._counts[datapath_id]
        counts.echo_s = counts.echo_xid = None

    def said(
        self,
        datapath_id: int,
        data: bytes,
        now: float,
    ) -> None:
        """Messages go to a switch."""
        counts = self._counts[datapath_id]
        at = 0
        while at + HEADER.size <= len(data):
            _, kind, length, xid = HEADER.unpack_from(data, at)
            counts.sent += 1
            if kind == ofp.OFPT_ECHO_REQUEST:
                counts.echo_xid = xid
                counts.echo_at = now
            at += max(length, HEADER.size)

    def heard(
        self,
        datapath_id: int,
        kind: int,
        xid: int,
        now: float,
    ) -> None:
        """A message came from a switch."""
        counts = self._counts[datapath_id]
        counts.received += 1
        if kind == ofp.OFPT_ERROR:
            counts.errors += 1
        elif kind == ofp.OFPT_ECHO_REPLY and xid == counts.echo_xid:
            counts.echo_s = now - counts.echo_at
            counts.echo_xid = None

    def message(self, waiting: Mapping[int, int]) -> dict[str, Any]:
        """The event with the counts; ``waiting`` messages are not sent yet, by switch."""
        shown = ("connections", "sent", "received", "errors", "echo_s")
        switches = [
            {
                "datapath_id": number,
                **{name: getattr(each, name) for name in shown},
                "waiting": waiting.get(number, 0),
            }
            for number, each in self._counts.items()
        ]
        return {
            "event": "traffic",
            "switches": switches,
            "refused": dict(self.refused),
        }
