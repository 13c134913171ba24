"""The controller's REST API from Python: what the command line and the experiments use."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Self, Unpack

import httpx

from patchlight.client.asking import Asking, ControllerError, NoAnswer, OtherLab, Who
from patchlight.client.calls import Answer, Asked, Awaited, Blocking, Call, T, at_once, carried_out
from patchlight.client.event_calls import PAUSE_S, Listening

__all__ = ["AsyncControllerClient", "ControllerClient", "ControllerError", "NoAnswer", "OtherLab"]


class ControllerClient(Asking, Blocking):
    """A running controller, by the address of its API: ``host:port`` or ``unix:/path``.

    A context manager. One on another machine needs a ``login``; ``BadInput`` without. With a
    ``lab`` it talks only to a controller of that lab: the first request, and each that changes
    something, finds out before (``OtherLab``). ``transport`` replaces the network.

    Methods return what stands in the brackets of ``Call[…]``: the API's JSON as it is.
    ``BadInput`` where the controller calls the request wrong, ``ControllerError`` where it could
    not do it or does not answer, and ``OutcomeUnknown`` where it was asked for a change and did
    not say what came of it.
    """

    def __init__(
        self,
        address: str,
        deadline_s: float = 120.0,
        *,
        transport: httpx.BaseTransport | None = None,
        **who: Unpack[Who],
    ) -> None:
        """``who``: a ``lab``, a ``user``, a ``uid`` and a ``login``, as in ``Asking``."""
        super().__init__(address, deadline_s, is_in_process=transport is not None, **who)
        self._http = httpx.Client(
            transport=transport or httpx.HTTPTransport(**self.wire), **self.settings
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close its connections."""
        self._http.close()

    def carry_out(self, asking: Call[T]) -> T:
        """Make the requests of a call; what they come to."""
        return at_once(carried_out(asking, self._request))

    async def _request(self, asked: Asked) -> httpx.Response:
        return self._http.request(asked.method, asked.path, **self.options(asked))

    def follow_events(self, after: int | None = None) -> Iterator[Answer]:
        """What happens, without an end: after event number ``after``, or from now on.

        A connection that breaks is made again, and goes on where the other ended; one of kind
        ``skipped`` says which are not kept any more (``first`` to ``last``). ``ControllerError``
        if no controller answers for half a minute.
        """
        listening = Listening(self.last_event() if after is None else after)
        while True:
            try:
                asked = listening.asked
                with self._http.stream(asked.method, asked.path, **self.options(asked)) as answer:
                    if not answer.is_success:
                        answer.read()
                        raise self.problem(answer)
                    for line in answer.iter_lines():
                        if (event := listening.told(line)) is not None:
                            yield event
            except httpx.HTTPError:
                if listening.is_in_vain:
                    self.last_event()  # says what is wrong
            time.sleep(PAUSE_S)


class AsyncControllerClient(Asking, Awaited):
    """The same for programs with an event loop: methods are awaited, ``async with`` closes it.

    Requests may be made at the same time. Arguments, answers and errors are those of
    ``ControllerClient``.
    """

    def __init__(
        self,
        address: str,
        deadline_s: float = 120.0,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        **who: Unpack[Who],
    ) -> None:
        """``who``: a ``lab``, a ``user``, a ``uid`` and a ``login``, as in ``Asking``."""
        super().__init__(address, deadline_s, is_in_process=transport is not None, **who)
        self._http = httpx.AsyncClient(
            transport=transport or httpx.AsyncHTTPTransport(**self.wire), **self.settings
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close its connections."""
        await self._http.aclose()

    async def carry_out(self, asking: Call[T]) -> T:
        """Make the requests of a call; what they come to."""
        return await carried_out(asking, self._request)

    async def _request(self, asked: Asked) -> httpx.Response:
        return await self._http.request(asked.method, asked.path, **self.options(asked))

    async def follow_events(self, after: int | None = None) -> AsyncIterator[Answer]:
        """What happens, without an end, as of ``ControllerClient``: for ``async for``."""
        listening = Listening(await self.last_event() if after is None else after)
        while True:
            try:
                asked = listening.asked
                async with self._http.stream(
                    asked.method, asked.path, **self.options(asked)
                ) as answer:
                    if not answer.is_success:
                        await answer.aread()
                        raise self.problem(answer)
                    async for line in answer.aiter_lines():
                        if (event := listening.told(line)) is not None:
                            yield event
            except httpx.HTTPError:
                if listening.is_in_vain:
                    await self.last_event()  # says what is wrong
            await asyncio.sleep(PAUSE_S)
