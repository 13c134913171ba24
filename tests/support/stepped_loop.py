"""An event loop that counts its steps and never waits: timers are due at once, in their order."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class SteppedLoop(asyncio.SelectorEventLoop):
    """Its time passes only while all tasks wait; its threads' work is done at once."""

    def __init__(self) -> None:
        self.steps = 0
        self._now_s = 0.0
        self._awaited: dict[int, asyncio.Future[None]] = {}
        super().__init__(_Selector(self))
        self.set_default_executor(_AtOnce())

    def time(self) -> float:
        return self._now_s

    async def pass_steps(self, count: int) -> None:
        """Return ``count`` steps of the loop later, after all that is ready then."""
        told = self._awaited[self.steps + count + 1] = self.create_future()
        await told

    def step(self, timeout_s: float | None) -> None:
        self.steps += 1
        if (told := self._awaited.pop(self.steps, None)) is not None:
            told.set_result(None)
        elif timeout_s is not None:
            self._now_s += max(0.0, timeout_s)


class _Selector(selectors.SelectSelector):
    """The loop selects once in each of its steps."""

    def __init__(self, loop: SteppedLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._loop.step(timeout)
        return super().select(0)


class _AtOnce(ThreadPoolExecutor):
    def submit(self, fn: Callable[..., T], /, *args: Any, **more: Any) -> Future[T]:
        done = Future[T]()
        try:
            done.set_result(fn(*args, **more))
        except BaseException as error:
            done.set_exception(error)
        return done


def run_stepped(main: Coroutine[Any, Any, T]) -> T:
    """The result of ``main`` in such a loop."""
    with asyncio.Runner(loop_factory=SteppedLoop) as runner:
        return runner.run(main)


async def pass_steps(count: int) -> None:
    """Return ``count`` steps of the running loop later."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SteppedLoop)
    await loop.pass_steps(count)


class Stepwise:
    """``behind``, whose coroutines wait so many steps before and after they do anything."""

    def __init__(self, behind: object, steps: int) -> None:
        self._behind, self._steps = behind, steps

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._behind, name)
        if not asyncio.iscoroutinefunction(found):
            return found

        async def call(*args: Any, **more: Any) -> Any:
            await self._wait()
            answer = await found(*args, **more)
            await self._wait()
            return answer

        return call

    async def _wait(self) -> None:
        for _ in range(self._steps):
            await asyncio.sleep(0)  # a step of the loop
