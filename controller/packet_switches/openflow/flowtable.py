"""Defines what the controller and the OpenFlow speaker exchange: options, messages, flow entries.

The cookies of Patchlight's flow entries have a mark in their high bits. Only such entries are
removed or replaced: entries of other applications stay.

Messages are JSON, one a line. A request is ``{"v": 1, "id": 7, "op": "apply", "deadline_s": 5,
...}``; its reply carries the same id and either ``"ok": true`` with ``"result"`` or ``"ok": false``
with ``"error"`` (and ``"failed"``, the entries that a switch refused). A message with ``"event"``
is not a reply. No OpenFlow engine is imported here, so both sides can use this module.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from patchlight.testbed.errors import BadInput, PatchlightError

Scalar = int | str
MatchValue = Scalar | tuple[Scalar, Scalar]

VERSION = 1
# A table of 100,000 entries takes about 20 MiB of JSON.
LONGEST_LINE = 64 * 2**20
DEFAULT_DEADLINE_S = 10.0

OPERATIONS = (
    "hello",
    "switches",
    "describe",
    "ports",
    "apply",
    "read_flows",
    "counters",
    "send",
)

Message = dict[str, Any]

# "PLT" in the top 24 bits; the lower 40 bits identify the entry's content.
COOKIE_MARK = 0x504C54 << 40
COOKIE_MASK = 0xFFFFFF << 40
GROUP_IDS = range(0x504C << 16, 0x504D << 16)
"""The ids of Patchlight's groups: "PL" in the upper 16 bits."""


class Match(Mapping[str, MatchValue]):
    """Which packets match: OpenFlow 1.3 field names and values, frozen.

    A value is an ``int`` (``eth_type``, ``in_port``), a ``str`` (addresses), or a pair of value and
    mask. An empty match takes every packet.
    """

    __slots__ = ("_hash", "_items")

    def __init__(
        self,
        fields: Mapping[str, MatchValue] | None = None,
        **more: MatchValue,
    ) -> None:
        self._items = tuple(sorted({**(fields or {}), **more}.items()))
        self._hash = hash(self._items)

    def __getitem__(self, name: str) -> MatchValue:
        for key, value in self._items:
            if key == name:
                return value
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return (key for key, _ in self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return (
            self._items == other._items
            if isinstance(other, Match)
            else NotImplemented
        )

    def __repr__(self) -> str:
        return (
            ",".join(f"{key}={value}" for key, value in self._items) or "any"
        )


class FlowKey(NamedTuple):
    """A switch's key of an entry: adding another with this key replaces it."""

    table: int
    priority: int
    match: Match


@dataclass(
    frozen=True,
    slots=True,
)
class FlowEntry:
    """One entry: matching packets leave by ``outputs`` (none: they are dropped).

    With ``spread``, each flow leaves by one of them, by its hash: they are the buckets of a select
    group, in order. A switch without such groups sends all by ``fixed``. Timeouts are seconds; 0
    keeps the entry until it is removed.
    """

    table: int
    priority: int
    match: Match
    outputs: tuple[int, ...]
    cookie: int
    idle_timeout_s: int = 0
    hard_timeout_s: int = 0
    spread: bool = False
    # A switch does not report it.
    fixed: int = field(
        default=0,
        compare=False,
    )

    @classmethod
    def ours(
        cls,
        match: Match,
        outputs: Iterable[int],
        *,
        priority: int,
        table: int = 0,
        fixed: int = 0,
    ) -> FlowEntry:
        """An entry of Patchlight's, ``spread`` if it has a ``fixed`` port too. Its cookie is
        derived from its content."""
        ports = tuple(outputs)
        spread = bool(fixed)
        text = f"{table}|{priority}|{match!r}|{ports}{'|spread' if spread else ''}"
        digest = blake2b(text.encode(), digest_size=5).digest()
        cookie = COOKIE_MARK | int.from_bytes(digest, "big")
        return cls(
            table,
            priority,
            match,
            ports,
            cookie,
            spread=spread,
            fixed=fixed,
        )

    @property
    def on_fixed_path(self) -> FlowEntry:
        """The same for a switch without groups."""
        if not self.spread:
            return self
        return self.ours(
            self.match,
            (self.fixed,),
            priority=self.priority,
            table=self.table,
        )

    @property
    def key(self) -> FlowKey:
        """Table, priority and match."""
        return FlowKey(self.table, self.priority, self.match)

    @property
    def is_ours(self) -> bool:
        """Whether the cookie has Patchlight's mark."""
        return self.cookie & COOKIE_MASK == COOKIE_MARK

    def __str__(self) -> str:
        ports = ",".join(map(str, self.outputs))
        action = (
            f"output {'one of ' * self.spread}{ports}" if ports else "drop"
        )
        return f"table {self.table} priority {self.priority} {self.match!r} -> {action}"

    def to_json(self) -> dict[str, Any]:
        """The entry as plain JSON values."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return {
            **fields,
            "match": dict(self.match),
            "outputs": list(self.outputs),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> FlowEntry:
        """The entry from ``to_json``; ``BadInput`` if the value is not one."""
        try:
            match = {
                k: tuple(v) if isinstance(v, list) else v
                for k, v in value["match"].items()
            }
            return cls(
                **{
                    **value,
                    "match": Match(match),
                    "outputs": tuple(value["outputs"]),
                }
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise BadInput(
                f"{value!r} is not a flow entry: {error!r}"
            ) from error


class FlowChange(NamedTuple):
    """What turns one table into another. An add replaces Patchlight's entry with the same key.

    ``held`` are wanted entries whose key belongs to another application's entry, which stays.
    """

    removes: tuple[FlowEntry, ...]
    adds: tuple[FlowEntry, ...]
    held: tuple[FlowEntry, ...]


@dataclass(
    frozen=True,
    slots=True,
)
class FlowTable:
    """Every flow entry of one switch, in no particular order."""

    entries: frozenset[FlowEntry] = frozenset()

    @classmethod
    def of(cls, entries: Iterable[FlowEntry]) -> FlowTable:
        """A table of these entries; ``BadInput`` if two differ but have the same key."""
        by_key: dict[FlowKey, FlowEntry] = {}
        for entry in entries:
            other = by_key.setdefault(entry.key, entry)
            if other != entry:
                raise BadInput(
                    f"two flow entries match the same packets: {other}; and {entry}"
                )
        return cls(frozenset(by_key.values()))

    def __iter__(self) -> Iterator[FlowEntry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def on_fixed_paths(self) -> FlowTable:
        """The same for a switch without groups."""
        return FlowTable(
            frozenset(entry.on_fixed_path for entry in self.entries)
        )

    def by_key(self) -> dict[FlowKey, FlowEntry]:
        """The entries by key."""
        return {entry.key: entry for entry in self.entries}


def diff(have: FlowTable, want: FlowTable) -> FlowChange:
    """The smallest change from Patchlight's entries in ``have`` to ``want``, in the order of
    priorities and cookies; others stay."""
    have_by_key = have.by_key()
    want_by_key = want.by_key()
    removes = []
    adds = []
    held = []
    for key, entry in have_by_key.items():
        if entry.is_ours and key not in want_by_key:
            removes.append(entry)
    for key, entry in want_by_key.items():
        old = have_by_key.get(key)
        if old is None or (old.is_ours and old != entry):
            adds.append(entry)
        elif not old.is_ours:
            held.append(entry)
    each = (
        tuple(sorted(entries, key=_rank)) for entries in (removes, adds, held)
    )
    return FlowChange(*each)


def _rank(entry: FlowEntry) -> tuple[int, int, int]:
    return entry.table, -entry.priority, entry.cookie


def removals_first(
    have: Mapping[int, FlowTable], changes: Mapping[int, FlowChange]
) -> dict[int, tuple[FlowEntry, ...]]:
    """What to remove from each switch before anything is added to any.

    These are obsolete entries, and replaced entries whose match changes on other switches too: on a
    single switch, the switch replaces an entry without a gap.
    """
    touched: Counter[Match] = Counter()
    for change in changes.values():
        touched.update(
            {entry.match for entry in (*change.removes, *change.adds)}
        )
    first: dict[int, tuple[FlowEntry, ...]] = {}
    for i, change in changes.items():
        old = have[i].by_key()
        replaced = (
            old[e.key]
            for e in change.adds
            if e.key in old and touched[e.match] > 1 and e.match
        )
        if entries := (*change.removes, *replaced):
            first[i] = entries
    return first


@dataclass(
    frozen=True,
    slots=True,
)
class SwitchTls:
    """The folder of the controller's certificate; the lab's switches by id."""

    folder: Path
    lab: str
    switches: tuple[str, ...]


@dataclass(
    frozen=True,
    slots=True,
)
class SpeakerOptions:
    """How to start the speaker.

    ``datapath_ids`` are the lab's packet switches; they connect to ``listen``, in the network
    namespace ``netns`` (a path) if given. ``engine`` is ``ryu``, ``os-ken`` or ``None`` for the
    first one installed; ``apps`` are users' applications; with ``counters`` the switches' counters
    are read once a second.
    """

    socket: Path
    datapath_ids: tuple[int, ...]
    listen: str = "127.0.0.1:6653"
    netns: str | None = None
    engine: str | None = None
    apps: tuple[str, ...] = ()
    counters: bool = True
    tls: SwitchTls | None = None

    def command(self) -> list[str]:
        """The command line that starts the speaker; ``from_command`` reads its last argument."""
        program = "patchlight.controller.packet_switches.openflow.speaker"
        return [
            sys.executable,
            "-m",
            program,
            json.dumps(asdict(self), default=str),
        ]

    @classmethod
    def from_command(cls, text: str) -> SpeakerOptions:
        """The options in the last argument of a ``command``."""
        fields = json.loads(text)
        if tls := fields["tls"]:
            fields["tls"] = SwitchTls(
                Path(tls["folder"]), tls["lab"], tuple(tls["switches"])
            )
        return cls(**{**fields, "socket": Path(fields["socket"])})


class ProtocolError(PatchlightError):
    """The peer at the speaker's socket violated the protocol."""


def encode(message: Message) -> bytes:
    """One message as one line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Message:
    """The message in one line; ``ProtocolError`` if it is invalid."""
    try:
        message = json.loads(line)
    except ValueError as error:
        raise ProtocolError(
            f"not a JSON message: {line[:80]!r} ({error})"
        ) from error
    if not isinstance(message, dict):
        raise ProtocolError(
            f"a message must be a JSON object, not {line[:80]!r}"
        )
    return message
