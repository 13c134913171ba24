"""Every state that nodes which agree on paths can come to, and from which of them they can go on.

A step is one of all events that can happen next: a node asks, asks again, ends; a message arrives,
in any order; time goes by while nothing is on its way. As often as ``Faults`` says, time goes by
with messages on their way, one is lost or doubled, a node asks again too early, goes down, or its
clock loses a tick.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, TypeVar

from patchlight.testbed.paths.agreement import (
    Asking,
    Bounds,
    Lit,
    Message,
    Node,
    Step,
)

T = TypeVar("T")
Make = Callable[[int, Bounds, int], Node]
"""Makes a node by its number, its bounds, and what its attempts are above."""
_BOOT = 100  # More than the attempts of one life.


class Faults(NamedTuple):
    """How often each can still happen, in all."""

    delays: int = 0
    losses: int = 0
    doubles: int = 0
    hasty: int = 0
    crashes: int = 0
    late_ticks: int = 0


class World(NamedTuple):
    """All nodes, what is on its way, and what is still wanted; nodes and messages by number."""

    nodes: tuple[int, ...]
    up: tuple[bool, ...]
    boots: tuple[int, ...]
    flying: tuple[int, ...]
    wanted: tuple[tuple[int, ...], ...]
    faults: Faults


class Meeting(Exception):
    """Two nodes send to one receiver or on one channel: the steps that led there."""


@dataclass
class Found:
    """How many states there are, how many of them are ends, and those that lead to no end."""

    states: int
    ends: int
    stuck: list[World]


class Search:
    """The search over all states from one beginning.

    ``wanted`` has for each node the destinations of its flows. ``make`` makes a node; a test
    gives a wrong one to see it found out.
    """

    def __init__(
        self,
        bounds: Bounds,
        wanted: Sequence[Sequence[int]],
        faults: Faults,
        make: Make = Node.started,
    ) -> None:
        self._bounds = bounds
        self._make = make
        self._numbers: dict[Node | Message, int] = {}
        self._values: list[Node | Message] = []
        self._known: dict[tuple[int, object], tuple[int, tuple[int, ...]]] = {}
        # The beginning: everybody is up for long enough to give.
        awake = [
            replace(make(number, bounds, 0), quiet_us=0)
            for number in range(bounds.nodes)
        ]
        self._begin = World(
            tuple(self._number(node) for node in awake),
            (True,) * bounds.nodes,
            (0,) * bounds.nodes,
            (),
            tuple(tuple(each) for each in wanted),
            faults,
        )

    def run(self) -> Found:
        """Visit all states. ``Meeting`` if light meets in one of them."""
        places = {self._begin: 0}
        before: list[list[int]] = [[]]
        queue = deque([self._begin])
        ends = []
        while queue:
            world = queue.popleft()
            place = places[world]
            if self._meets(world):
                raise Meeting(self._story(list(places), before, place))
            if self._is_end(world):
                ends.append(place)
            for following in self._steps(world):
                at = places.setdefault(following, len(places))
                if at == len(before):
                    before.append([])
                    queue.append(following)
                before[at].append(place)
        good = set(ends)
        reach = deque(ends)
        while reach:
            for earlier in before[reach.popleft()]:
                if earlier not in good:
                    good.add(earlier)
                    reach.append(earlier)
        return Found(
            len(places),
            len(ends),
            [w for w, at in places.items() if at not in good],
        )

    def _steps(self, world: World) -> Iterator[World]:
        faults = world.faults
        for number in range(len(world.nodes)):
            if world.up[number]:
                yield from self._moves(world, number)
            else:  # It starts again: dark, and with nothing in memory.
                node = self._number(
                    self._make(number, self._bounds, world.boots[number])
                )
                yield world._replace(
                    nodes=_with(world.nodes, number, node),
                    up=_with(world.up, number, True),
                )
        for at, flying in enumerate(world.flying):
            if at and flying == world.flying[at - 1]:
                continue
            message = self._message(flying)
            rest = world._replace(
                flying=world.flying[:at] + world.flying[at + 1 :]
            )
            if not world.up[message.to]:
                yield rest
                continue
            yield self._after(
                rest, message.to, flying, partial(_hear, message)
            )
            if faults.losses:
                yield rest._replace(
                    faults=faults._replace(losses=faults.losses - 1)
                )
            if faults.doubles:
                doubled = tuple(sorted((*world.flying, flying)))
                yield world._replace(
                    flying=doubled,
                    faults=faults._replace(doubles=faults.doubles - 1),
                )
        if not world.flying:
            yield self._tick(world, None)
        elif faults.delays:
            slow = world._replace(
                faults=faults._replace(delays=faults.delays - 1)
            )
            yield self._tick(slow, None)
        if faults.late_ticks:
            fewer = faults._replace(late_ticks=faults.late_ticks - 1)
            for number in range(len(world.nodes)):
                yield self._tick(world, number)._replace(faults=fewer)

    def _moves(self, world: World, number: int) -> Iterator[World]:
        """What a node that is up does of itself, and that it goes down."""
        faults = world.faults
        path = self._node(world.nodes[number]).path
        if path is None and world.wanted[number]:
            to, *later = world.wanted[number]
            asked = world._replace(
                wanted=_with(world.wanted, number, tuple(later))
            )
            yield self._after(
                asked, number, ("want", to), lambda n: n.want(to)
            )
        if isinstance(path, Lit):
            yield self._after(world, number, "done", lambda n: n.done())
        if isinstance(path, Asking):
            if self._waits_in_vain(world, number):
                yield self._after(world, number, "again", lambda n: n.again())
            elif faults.hasty:
                hasty = world._replace(
                    faults=faults._replace(hasty=faults.hasty - 1)
                )
                yield self._after(hasty, number, "again", lambda n: n.again())
        if faults.crashes:
            yield world._replace(
                up=_with(world.up, number, False),
                boots=_with(world.boots, number, world.boots[number] + _BOOT),
                faults=faults._replace(crashes=faults.crashes - 1),
            )

    def _waits_in_vain(self, world: World, number: int) -> bool:
        """Whether nothing that could answer a node's attempt is on its way or lined up.

        Asking a node that is down again and again comes to the same as waiting until it is up.
        """
        node = self._node(world.nodes[number])
        assert isinstance(node.path, Asking)
        to = node.path.destination
        if not (world.up[to] and world.up[self._bounds.owner_for(to)]):
            return False
        for flying in world.flying:
            message = self._message(flying)
            asker = message.to if message.kind == "give" else message.sender
            if (
                asker == number
                and message.attempt == node.attempt
                and message.kind != "release"
            ):
                return False
        lined_up = any(
            hold.source == number and hold.attempt == node.attempt
            for other, up in zip(world.nodes, world.up, strict=True)
            if up
            for hold in self._node(other).waiting
        )
        return not lined_up or not node.path.left_us

    def _tick(self, world: World, late: int | None) -> World:
        """A tick of all clocks but that of one; light of a node that is down goes by its own."""
        for number in range(len(world.nodes)):
            if number != late:
                world = self._after(
                    world, number, "tick", lambda n: n.elapse(1)
                )
        return world

    def _after(
        self,
        world: World,
        number: int,
        event: object,
        act: Callable[[Node], Step],
    ) -> World:
        key = world.nodes[number], event
        if key not in self._known:
            node, messages = act(self._node(world.nodes[number]))
            self._known[key] = (
                self._number(node),
                tuple(map(self._number, messages)),
            )
        node_number, fresh = self._known[key]
        if not world.up[number]:
            fresh = ()
        return world._replace(
            nodes=_with(world.nodes, number, node_number),
            flying=tuple(sorted((*world.flying, *fresh)))
            if fresh
            else world.flying,
        )

    def _meets(self, world: World) -> bool:
        lit = [
            path
            for n in world.nodes
            if isinstance(path := self._node(n).path, Lit)
        ]
        channels = [path.channel for path in lit if path.channel >= 0]
        to = [path.destination for path in lit]
        return len(set(to)) < len(to) or len(set(channels)) < len(channels)

    def _is_end(self, world: World) -> bool:
        """All have sent, all is quiet, and everything is free again."""
        nodes = [self._node(number) for number in world.nodes]
        return (
            all(world.up)
            and not any(world.wanted)
            and not world.flying
            and not any(
                node.path or node.given or node.waiting for node in nodes
            )
        )

    def _story(
        self, worlds: list[World], before: list[list[int]], place: int
    ) -> str:
        lines = []
        while place:
            lines.append(place)
            place = before[place][0]
        return "\n".join(
            f"{[self._node(n).path for n in worlds[at].nodes]}; on the way: "
            f"{[tuple(self._message(m)) for m in worlds[at].flying]}; {worlds[at].up}"
            for at in reversed(lines)
        )

    def _number(self, value: Node | Message) -> int:
        number = self._numbers.setdefault(value, len(self._values))
        if number == len(self._values):
            self._values.append(value)
        return number

    def _node(self, number: int) -> Node:
        value = self._values[number]
        assert isinstance(value, Node)
        return value

    def _message(self, number: int) -> Message:
        value = self._values[number]
        assert isinstance(value, Message)
        return value


def _hear(message: Message, node: Node) -> Step:
    return node.hear(message)


def _with(values: tuple[T, ...], at: int, value: T) -> tuple[T, ...]:
    return (*values[:at], value, *values[at + 1 :])
