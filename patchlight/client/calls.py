"""A request to the controller as a value, so that one description serves both of its clients.

A method of a client is a generator, marked with ``call``: it yields what to ask, is sent the
response, and returns what the caller wants to know. Who carries it out decides whether the caller
waits for that or awaits it.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Generator
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

import httpx

Answer = dict[str, Any]

PAGE = 200
"""How many rows of a list are asked for at a time."""

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Asked:
    """What is asked of the controller: ``path`` is below ``/v1``, or a whole address."""

    method: str
    path: str
    body: Any = None
    query: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)


Call = Generator[Asked, httpx.Response, T]
"""Requests one after the other, and what they come to. An ``httpx.HTTPError`` is thrown in."""


async def carried_out(asking: Call[T], request: Callable[[Asked], Awaitable[httpx.Response]]) -> T:
    """Make the requests of a call; what they come to."""
    try:
        asked = next(asking)
        while True:
            try:
                response = await request(asked)
            except (httpx.HTTPError, UnicodeError) as error:
                asked = asking.throw(error)
            else:
                asked = asking.send(response)
    except StopIteration as end:
        result: T = end.value
        return result


def at_once(steps: Coroutine[Any, Any, T]) -> T:
    """What a coroutine comes to that waits for no event loop: it blocks instead."""
    try:
        steps.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise RuntimeError("this was to come to its end without an event loop")


class Blocking(ABC):
    """Who carries calls out while the caller waits."""

    @abstractmethod
    def carry_out(self, asking: Call[T]) -> T:
        """Make the requests; what they come to."""


class Awaited(ABC):
    """Who carries calls out while other tasks of the event loop go on."""

    @abstractmethod
    async def carry_out(self, asking: Call[T]) -> T:
        """Make the requests; what they come to."""


class call(Generic[P, T]):
    """Makes a method of a generator: of a ``Blocking`` client, or one to be awaited."""

    def __init__(self, asks: Callable[Concatenate[Any, P], Call[T]]) -> None:
        self._asks = asks
        self.__doc__ = asks.__doc__

    @overload
    def __get__(self, client: Blocking, kind: type) -> Callable[P, T]: ...

    @overload
    def __get__(self, client: Awaited, kind: type) -> Callable[P, Coroutine[Any, Any, T]]: ...

    @overload
    def __get__(self, client: None, kind: type) -> Self: ...

    def __get__(self, client: Any, kind: type) -> Any:
        if client is None:
            return self

        @wraps(self._asks)
        def carried_out(*args: P.args, **options: P.kwargs) -> Any:
            return client.carry_out(self._asks(client, *args, **options))

        return carried_out


class Calls(ABC):
    """Some of the calls of a client, which says how each of them is asked."""

    @abstractmethod
    def _call(
        self, method: str, path: str, body: Any = None, prefer: str = "", **query: Any
    ) -> Call[Answer]: ...

    def _pages(self, page_after: Callable[[T | None], Call[list[T]]]) -> Call[list[T]]:
        """Every row of a list that comes in pages, each asked for by the row before it."""
        rows = page = yield from page_after(None)
        while page:
            page = yield from page_after(page[-1])
            rows = rows + page
        return rows
