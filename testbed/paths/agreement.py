"""The state machine by which nodes agree on paths with request, grant and release messages.

Each node decides who sends to it, and who sends on the channels that it owns. A sender requests its
receiver first, then the channel from its owner; if both are the same node, in one request. So no
node waits for a receiver while it holds a channel, and there is no deadlock.

Every grant is a lease. The sender counts it from its request, the giver from its grant plus
``margin_us``: while clocks drift by less than that within a lease, the sender is off before another
gets the grant, whatever messages are lost, late or duplicated and whichever node is down. A node
that starts or gets new bounds grants nothing for that time. A sender's attempt numbers only grow,
also across restarts, and it uses only the answer to its latest one.

A transmitter switches off by itself at the end of its lease and when its node starts. A receiver
separates channels, so it need not know which one to listen to.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from patchlight.testbed.errors import BadInput
from patchlight.testbed.paths.scheduling import NO_CHANNEL

ANY_CHANNEL = -2
"""In a request: any channel."""


@dataclass(
    frozen=True,
    slots=True,
)
class Bounds:
    """What the nodes decide among themselves: which nodes, which channels, how long.

    ``owners`` has for each channel the node that grants it. Without owners, the destination
    determines the channel, and only receivers are granted. Messages of another ``epoch`` are
    ignored. All times are in microseconds.
    """

    epoch: int
    nodes: int
    owners: tuple[int, ...]
    lease_us: int
    margin_us: int

    def __post_init__(self) -> None:
        if not all(0 <= owner < self.nodes for owner in self.owners):
            raise BadInput(
                f"channels belong to nodes {self.owners}: expected 0 to {self.nodes - 1}"
            )
        if self.lease_us < 1 or self.margin_us < 0:
            raise BadInput(
                f"a lease of {self.lease_us} µs and {self.margin_us} µs more for its giver: "
                "expected 1 or more, and 0 or more"
            )

    def owner_for(self, destination: int) -> int:
        """The owner of channels for paths to a node: the node itself, if it owns any."""
        if not self.owners or destination in self.owners:
            return destination
        return sorted(set(self.owners))[destination % len(set(self.owners))]


Kind = Literal["ask", "give", "release", "drained"]


class Message(NamedTuple):
    """One message from ``sender`` to ``to`` about an attempt of the requesting node.

    Requests and grants name a ``receiver`` (that of the granting node) and a ``channel``:
    ``NO_CHANNEL``, one, or ``ANY_CHANNEL`` in a request. ``drained`` is between users of paths: the
    sender on this path needs no more acknowledgements from its receiver.
    """

    kind: Kind
    epoch: int
    sender: int
    to: int
    attempt: int
    receiver: bool = False
    channel: int = NO_CHANNEL


class Hold(NamedTuple):
    """What a node has granted to ``source``, or will grant."""

    source: int
    attempt: int
    receiver: bool
    channel: int
    left_us: int = 0


@dataclass(
    frozen=True,
    slots=True,
)
class Asking:
    """A sender that requests a path; what it was granted is valid for ``left_us``."""

    destination: int
    left_us: int
    has_receiver: bool = False


@dataclass(
    frozen=True,
    slots=True,
)
class Lit:
    """A sender with a path for ``left_us``; ``NO_CHANNEL``: the destination determines it."""

    destination: int
    channel: int
    left_us: int


@dataclass(
    frozen=True,
    slots=True,
)
class Node:
    """What one node knows, as a value: each event returns a new one, and messages to send.

    ``attempt`` is the number of its last attempt, ``seen`` the highest from each node, ``quiet_us``
    how long it still grants nothing.
    """

    number: int
    bounds: Bounds
    attempt: int
    quiet_us: int
    path: Asking | Lit | None = None
    given: tuple[Hold, ...] = ()
    waiting: tuple[Hold, ...] = ()
    seen: tuple[int, ...] = ()

    @classmethod
    def started(
        cls,
        number: int,
        bounds: Bounds,
        boot: int,
    ) -> Node:
        """A node that starts, or gets new bounds, with its transmitter off.

        ``boot`` is more than the number of any earlier attempt.
        """
        quiet_us = bounds.lease_us + bounds.margin_us
        return cls(
            number,
            bounds,
            boot,
            quiet_us,
            seen=(-1,) * bounds.nodes,
        )

    # What its owner does.

    def want(self, destination: int) -> Step:
        """Request a path. ``BadInput`` if it has or requests one, or for an unknown node."""
        if self.path is not None:
            raise BadInput(
                f"node {self.number} has one transmitter, and {self.path} uses it"
            )
        if (
            destination == self.number
            or not 0 <= destination < self.bounds.nodes
        ):
            raise BadInput(
                f"node {self.number} cannot send to node {destination}: expected another of "
                f"0 to {self.bounds.nodes - 1}"
            )
        return self._ask(destination)

    def again(self) -> Step:
        """Repeat a pending request that got no answer."""
        return (
            self._ask(self.path.destination)
            if isinstance(self.path, Asking)
            else (self, ())
        )

    def done(self) -> Step:
        """Release the path, or cancel the request."""
        if self.path is None:
            return self, ()
        destination = self.path.destination
        givers = sorted({destination, self.bounds.owner_for(destination)})
        return replace(self, path=None)._deliver(
            Message(
                "release",
                self.bounds.epoch,
                self.number,
                giver,
                self.attempt,
            )
            for giver in givers
        )

    def elapse(self, us: int) -> Step:
        """Advance the time: leases end, and transmitters switch off with theirs."""
        path = self.path
        if path is not None:
            path = replace(path, left_us=max(0, path.left_us - us))
            if isinstance(path, Lit) and not path.left_us:
                path = None
        given = tuple(
            hold._replace(left_us=hold.left_us - us)
            for hold in self.given
            if hold.left_us > us
        )
        quiet_us = max(0, self.quiet_us - us)
        return replace(
            self,
            path=path,
            given=given,
            quiet_us=quiet_us,
        )._give()

    def hear(self, message: Message) -> Step:
        """Handle a message, at any time, perhaps a duplicate."""
        if message.epoch != self.bounds.epoch or message.kind == "drained":
            return self, ()
        if message.kind == "give":
            return self._get(message)
        if not self.is_new(message):
            return self, ()
        if message.kind == "ask":
            return self._answer(message)
        waiting = tuple(
            hold for hold in self.waiting if hold.source != message.sender
        )
        return replace(self._without(message), waiting=waiting)._give()

    # What tells late from new.

    def is_current(self, give: Message) -> bool:
        """Whether a grant answers this node's present request and is usable."""
        return (
            isinstance(self.path, Asking)
            and give.attempt == self.attempt
            and self.path.left_us > 0
        )

    def is_new(self, message: Message) -> bool:
        """Whether the sender of a request or release has made no newer attempt."""
        return message.attempt >= self.seen[message.sender]

    # The sender.

    def _ask(self, destination: int) -> Step:
        node = replace(
            self,
            attempt=self.attempt + 1,
            path=Asking(destination, self.bounds.lease_us),
        )
        owner = self.bounds.owner_for(destination)
        has_channel = bool(self.bounds.owners) and owner == destination
        return node._deliver(
            [
                node._asks(
                    destination,
                    receiver=True,
                    channel=has_channel,
                )
            ]
        )

    def _asks(
        self,
        giver: int,
        *,
        receiver: bool,
        channel: bool,
    ) -> Message:
        wanted = ANY_CHANNEL if channel else NO_CHANNEL
        return Message(
            "ask",
            self.bounds.epoch,
            self.number,
            giver,
            self.attempt,
            receiver,
            wanted,
        )

    def _get(self, give: Message) -> Step:
        path = self.path
        if isinstance(path, Lit) and give.attempt == self.attempt:
            return self, ()  # a duplicate of the grant in use
        if not self.is_current(give):
            back = Message(
                "release",
                self.bounds.epoch,
                self.number,
                give.sender,
                give.attempt,
            )
            return self._deliver([back])
        assert isinstance(path, Asking)
        owner = self.bounds.owner_for(path.destination)
        if give.receiver and owner != path.destination:
            if path.has_receiver:
                return self, ()
            node = replace(self, path=replace(path, has_receiver=True))
            return node._deliver(
                [
                    self._asks(
                        owner,
                        receiver=False,
                        channel=True,
                    )
                ]
            )
        return replace(
            self, path=Lit(path.destination, give.channel, path.left_us)
        ), ()

    # The giver.

    def _answer(self, ask: Message) -> Step:
        held = next(
            (hold for hold in self.given if hold.source == ask.sender), None
        )
        if ask.attempt == self.seen[ask.sender]:  # a duplicate
            if held is None or held.attempt != ask.attempt:
                return self, ()
            return self._deliver([self._gives(held)])
        # A new request means that the sender's transmitter is off, so its grants are free.
        wanted = Hold(
            ask.sender,
            ask.attempt,
            ask.receiver,
            ask.channel,
        )
        others = [hold for hold in self.waiting if hold.source != ask.sender]
        sources = [hold.source for hold in self.waiting]
        if held is not None:
            place = 0
        else:
            place = (
                sources.index(ask.sender)
                if ask.sender in sources
                else len(others)
            )
        others.insert(place, wanted)
        return replace(self._without(ask), waiting=tuple(others))._give()

    def _without(self, message: Message) -> Node:
        """The node without its grants to the sender of a message, whose attempt it has seen."""
        seen = list(self.seen)
        seen[message.sender] = message.attempt
        given = tuple(
            hold for hold in self.given if hold.source != message.sender
        )
        return replace(
            self,
            given=given,
            seen=tuple(seen),
        )

    def _give(self) -> Step:
        if self.quiet_us or not self.waiting:
            return self, ()
        given = list(self.given)
        waiting = []
        messages = []
        own = [
            channel
            for channel, owner in enumerate(self.bounds.owners)
            if owner == self.number
        ]
        for wanted in self.waiting:
            busy = {hold.channel for hold in given}
            channel = wanted.channel
            if channel == ANY_CHANNEL:
                channel = next(
                    (each for each in own if each not in busy), ANY_CHANNEL
                )
            if channel == ANY_CHANNEL or (
                wanted.receiver and any(h.receiver for h in given)
            ):
                waiting.append(wanted)
                continue
            left_us = self.bounds.lease_us + self.bounds.margin_us
            given.append(
                wanted._replace(
                    channel=channel,
                    left_us=left_us,
                )
            )
            messages.append(self._gives(given[-1]))
        return replace(
            self,
            given=tuple(given),
            waiting=tuple(waiting),
        )._deliver(messages)

    def _gives(self, hold: Hold) -> Message:
        return Message(
            "give",
            self.bounds.epoch,
            self.number,
            hold.source,
            hold.attempt,
            hold.receiver,
            hold.channel,
        )

    def _deliver(self, messages: Iterator[Message] | list[Message]) -> Step:
        """The messages to send; those to itself are handled directly."""
        node = self
        out = list[Message]()
        for message in messages:
            if message.to != node.number:
                out.append(message)
                continue
            node, more = node.hear(message)
            out += more
        return node, tuple(out)


Step = tuple[Node, tuple[Message, ...]]
