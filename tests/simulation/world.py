"""A world in one process: simulated time, processes that crash at any await, streams in memory.

One seed decides every delay, loss and order. The clock jumps to the next timer. What runs in the
world is ordinary asyncio code: its loop, its sockets and the clock belong to the world. Each task
belongs to a simulated process, found by a context variable. A killed process never runs again:
not even its ``finally`` blocks, as after SIGKILL.

Left out: the kernel, TLS, and threads of other libraries; a disk that lies about fsync.
"""

from __future__ import annotations

import asyncio
import contextvars
import fcntl
import gc
import hashlib
import heapq
import itertools
import os
import random
import secrets
import shutil
import socket
import subprocess
import sys
import threading
import time
import uuid
import warnings
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

from tests.simulation.disk import Died, hooks

T = TypeVar("T")

EPOCH_S = 1_900_000_000.0
"""The Unix time at which every history begins."""

_FIRST_PID = 5_000_000  # above those of the kernel
_PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar(
    "process", default=None
)


class Deadlock(Exception):
    """Nothing will ever happen again in the world."""


class Process:
    """One simulated process, or a machine that only the world knows as a whole."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.alive = True
        self.pid = next(world.pids)
        self.steps = 0
        self.dies_at: int | None = None
        """The step before which it dies."""
        self.disk: Any = None
        """The ``disk.Disk`` of its machine, if that is simulated."""
        self.writes = 0
        self.dies_at_write: int | None = None
        self.stalled: list[_Step] | None = None
        """The steps that wait while it is stalled."""
        self.at_end: list[Callable[[], object]] = []
        self.at_call: list[Callable[[], object]] = []
        self.context = contextvars.Context()
        self.context.run(_PROCESS.set, self)

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine in this process."""
        return self.world.loop.create_task(work, context=self.context.copy())

    def kill(self) -> None:
        """End it at once; peers notice later."""
        if self.alive:
            self.alive = False
            self.world.log(self.name, "is killed")
            self._over()

    def end(self) -> None:
        """It has ended by itself."""
        if self.alive:
            self.alive = False
            self.world.log(self.name, "has ended")
            self._over()

    async def stall(self, seconds: float) -> None:
        """Run nothing of it for some time, as a stopped virtual machine does."""
        if self.stalled is not None:
            return
        self.world.log(self.name, f"stalls for {seconds:g} s")
        self.stalled = []
        await asyncio.sleep(seconds)
        waiting = self.stalled
        self.stalled = None
        for step in waiting:
            self.world.loop.again(step)

    def _over(self) -> None:
        for hear in self.at_end:
            hear()
        self.at_end.clear()


class _Numbered:
    """Hashed by number, so that sets of tasks have the same order in each replay."""

    number: int | None = None

    def __hash__(self) -> int:
        if self.number is None:
            self.number = next(self.get_loop().numbers)  # type: ignore[attr-defined]
        return self.number


class _Task(_Numbered, asyncio.Task[T]):
    pass


class _Future(_Numbered, asyncio.Future[T]):
    pass


class _Step(asyncio.TimerHandle):
    """What the loop will call."""

    __slots__ = ("args", "at_s", "callback", "context")

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context,
    ) -> None:
        # Without that of ``asyncio``, which writes down where it was made.
        self.at_s = when
        self.callback: Callable[..., object] | None = callback
        self.args = args
        self.context = context

    def cancel(self) -> None:
        """Never call it."""
        self.callback = None
        self.args = ()

    def cancelled(self) -> bool:
        """Whether it will never be called."""
        return self.callback is None

    def when(self) -> float:
        """When it is due, by the loop's clock."""
        return self.at_s


class Loop(asyncio.BaseEventLoop):
    """The event loop of a world, whose clock jumps to the next timer. Its network is simulated."""

    MOST_TURNS = 10_000
    """Turns of the loop in which time may stand still: then a millisecond passes, as turns do take
    time. Code that waits for the rest of a period, less than a clock can show, goes on."""

    SAME_S = 1e-9
    """Timers so close together are due at once."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self.numbers = itertools.count()
        self._most_pending = 1000
        self._soon: deque[_Step] = deque()
        self._timers: list[tuple[float, int, _Step]] = []
        self._timer_numbers = itertools.count()
        self._ends = False

    def run_forever(self) -> None:
        """Until ``stop``; ``Deadlock`` if nothing will ever happen again."""
        hooks_before = sys.get_asyncgen_hooks()
        asyncio._set_running_loop(self)
        sys.set_asyncgen_hooks(finalizer=self._end_generator)
        self._ends = False
        turns = 0
        try:
            while not self._ends:
                before = self._world.now
                self._pass_time(turns)
                turns = 0 if self._world.now > before else turns + 1
                for _ in range(len(self._soon)):
                    self._take(self._soon.popleft())
        finally:
            sys.set_asyncgen_hooks(*hooks_before)
            asyncio._set_running_loop(None)

    def stop(self) -> None:
        """End ``run_forever`` after this turn."""
        self._ends = True

    def _end_generator(self, generator: Any) -> None:
        self.call_soon(self.create_task, generator.aclose())

    def _pass_time(self, turns: int) -> None:
        """Jump to the next timer unless something is to do now, and take what is due."""
        timers = self._timers
        while timers and timers[0][2].callback is None:
            heapq.heappop(timers)
        if turns > self.MOST_TURNS:
            self._world.now += 0.001
        elif not self._soon:
            if not timers:
                raise Deadlock
            self._world.now = max(self._world.now, timers[0][0])
        due = self._world.now + self.SAME_S
        while timers and timers[0][0] < due:
            self._soon.append(heapq.heappop(timers)[2])

    def _take(self, step: _Step) -> None:
        """One step, unless its process has died by now."""
        callback = step.callback
        if callback is None:
            return
        context = step.context
        process = context.get(_PROCESS)
        if process is not None:
            if not process.alive:
                return
            if process.stalled is not None:
                process.stalled.append(step)
                return
            process.steps += 1
            if process.dies_at is not None and (
                process.steps >= process.dies_at
            ):
                callback = process.kill
                step.args = ()
        try:
            context.run(callback, *step.args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            message = f"exception in {callback}"
            self.call_exception_handler(
                {"message": message, "exception": error}
            )

    def create_task(  # type: ignore[override]
        self, work: Any, **more: Any
    ) -> asyncio.Task[Any]:
        """As in ``asyncio``; its place in sets is the same in each replay."""
        task: asyncio.Task[Any] = _Task(work, loop=self, **more)
        pending = self._world.pending
        pending.append(task)
        if len(pending) > self._most_pending:
            pending[:] = [each for each in pending if not each.done()]
            self._most_pending = 2 * len(pending) + 1000
        return task

    def time(self) -> float:
        """Seconds since the world began."""
        return self._world.now

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """As in ``asyncio``; the dead have no handler."""
        if not isinstance(context.get("exception"), Died):
            super().call_exception_handler(context)

    def create_future(self) -> asyncio.Future[Any]:
        """A future whose place in sets is the same in each replay."""
        return _Future(loop=self)

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.Handle:
        """As in ``asyncio``, unless the process has died by then."""
        step = _Step(
            0.0, callback, args, context or contextvars.copy_context()
        )
        self.again(step)
        return step

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def again(self, step: _Step) -> None:
        """Take this step in the next turn."""
        if self.is_closed():
            raise RuntimeError("Event loop is closed")
        self._soon.append(step)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> Any:
        """As in ``asyncio``, unless the process has died by then."""
        if self.is_closed():
            raise RuntimeError("Event loop is closed")
        step = _Step(
            when, callback, args, context or contextvars.copy_context()
        )
        heapq.heappush(self._timers, (when, next(self._timer_numbers), step))
        return step

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: Any = None
    ) -> Any:
        """As in ``asyncio``, unless the process has died by then."""
        return self.call_at(
            self._world.now + delay, callback, *args, context=context
        )

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Any, *args: Any
    ) -> asyncio.Future[Any]:
        """Run a function of a thread: whole, some time later, on the simulated clock."""
        future = self.create_future()

        def work() -> None:
            # A thread that has begun goes on though nobody waits for it.
            if future.cancelled() and self._world.draw.random() < 0.5:
                return
            try:
                result = func(*args)
            except BaseException as error:
                if not future.cancelled():
                    future.set_exception(error)
                return
            if not future.cancelled():
                future.set_result(result)

        self.call_later(self._world.thread_s(), work)
        return future

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Any, host: str = "", port: int = 0, **more: Any
    ) -> tuple[Any, Any]:
        """Connect to a simulated server."""
        return await self._world.network.connect(
            f"{host}:{port}", protocol_factory
        )

    async def create_unix_connection(
        self, protocol_factory: Any, path: Any = None, **more: Any
    ) -> tuple[Any, Any]:
        """Connect to a simulated Unix socket."""
        where = os.path.realpath(path)  # noqa: ASYNC240 - nothing blocks a simulated clock
        return await self._world.network.connect(where, protocol_factory)

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Any, host: str = "", port: int = 0, **more: Any
    ) -> Any:
        """Listen at a simulated address."""
        return self._world.network.listen(f"{host}:{port}", protocol_factory)

    async def create_unix_server(
        self, protocol_factory: Any, path: Any = None, **more: Any
    ) -> Any:
        """Listen at a simulated Unix socket."""
        where = os.path.realpath(path)  # noqa: ASYNC240
        return self._world.network.listen(where, protocol_factory)


class Listener(asyncio.AbstractServer):
    """A simulated server's socket."""

    def __init__(
        self, network: Network, address: str, protocol_factory: Any
    ) -> None:
        self.network = network
        self.address = address
        self.protocol_factory = protocol_factory
        self.process = _PROCESS.get()

    @property
    def alive(self) -> bool:
        """Whether somebody accepts connections."""
        return self.process is None or self.process.alive

    def close(self) -> None:
        """Accept no more."""
        if self.network.listeners.get(self.address) is self:
            del self.network.listeners[self.address]

    async def wait_closed(self) -> None:
        """Nothing to wait for."""

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """The world's loop."""
        return self.network.world.loop

    def is_serving(self) -> bool:
        """Whether it accepts connections."""
        return self.network.listeners.get(self.address) is self

    async def start_serving(self) -> None:
        """It does already."""

    async def serve_forever(self) -> None:
        """Until it is cancelled."""
        await self.network.world.loop.create_future()


class _Socket:
    """What HTTP clients look at of a connection's socket."""

    family = socket.AF_INET

    def __init__(self, peer: tuple[str, int], own: tuple[str, int]) -> None:
        self.getpeername = lambda: peer
        self.getsockname = lambda: own
        self.fileno = lambda: -1


class Stream(asyncio.Transport):
    """One end of a connection in memory."""

    def __init__(
        self, network: Network, process: Process | None, protocol: Any, to: str
    ) -> None:
        own = ("world", 0)
        super().__init__(
            {
                "peername": (to, 0),
                "sockname": own,
                "socket": _Socket((to, 0), own),
            }
        )
        self.network = network
        self.process = process
        self.protocol = protocol
        self.peer: Stream | None = None
        self.closing = False
        self.over = False
        self.paused = False
        self.waiting: deque[bytes] = deque()
        self.free_at = 0.0
        if process is not None:
            process.at_end.append(self._reset_peer)

    def write(self, data: Any) -> None:
        """Send bytes, in order."""
        if not self.closing and data:
            self.network.carry(self, "data", bytes(data))

    def close(self) -> None:
        """Send what is left, then end."""
        if not self.closing:
            self.closing = True
            self.network.carry(self, "end", None)
            self._soon_over(None)

    def abort(self) -> None:
        """End at once."""
        if not self.over:
            self.closing = True
            self.network.carry(self, "reset", None)
            self._soon_over(None)

    def is_closing(self) -> bool:
        """Whether nothing more can be sent."""
        return self.closing

    def write_eof(self) -> None:
        """End this direction."""
        self.network.carry(self, "eof", None)

    def can_write_eof(self) -> bool:
        """It can."""
        return True

    def set_protocol(self, protocol: Any) -> None:
        """Change who is told of data."""
        self.protocol = protocol

    def get_protocol(self) -> Any:
        """Who is told of data."""
        return self.protocol

    def pause_reading(self) -> None:
        """Keep data back."""
        self.paused = True

    def resume_reading(self) -> None:
        """Hand over what was kept."""
        self.paused = False
        while self.waiting and not self.paused:
            self.protocol.data_received(self.waiting.popleft())

    def is_reading(self) -> bool:
        """Whether data is handed over as it comes."""
        return not (self.paused or self.closing)

    def get_write_buffer_size(self) -> int:
        """The network takes everything at once."""
        return 0

    def set_write_buffer_limits(
        self, high: int | None = None, low: int | None = None
    ) -> None:
        """Without effect."""

    def receive(self, kind: str, data: Any) -> None:
        """Something has come from the other end."""
        if self.over:
            return
        if kind == "data" and self.closing:
            return
        if kind == "data" and self.paused:
            self.waiting.append(data)
        elif kind == "data":
            self.protocol.data_received(data)
        elif kind == "reset":
            self.closing = True
            self._over(ConnectionResetError("the connection was reset"))
        elif not self.protocol.eof_received() or kind == "end":
            self.close()

    def _soon_over(self, error: Exception | None) -> None:
        self.network.world.loop.call_soon(self._over, error)

    def _over(self, error: Exception | None) -> None:
        if not self.over:
            self.over = True
            self.protocol.connection_lost(error)

    def _reset_peer(self) -> None:
        if not self.over:
            self.over = self.closing = True
            self.network.carry(self, "reset", None)


class Network:
    """Streams between processes, by address. Links between two processes can be cut, in one
    direction or both: data waits, as TCP repeats it, and new connections hang."""

    CONNECT_S = 60.0
    """A connection that nobody answers is given up after this time."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.listeners: dict[str, Listener] = {}
        self.cuts: set[tuple[str, str]] = set()
        self.held: list[tuple[str, str, Callable[[], object]]] = []

    def listen(self, address: str, protocol_factory: Any) -> Listener:
        """Accept connections at an address."""
        known = self.listeners.get(address)
        if known is not None and known.alive:
            raise OSError(98, f"{address} is in use")
        self.listeners[address] = listener = Listener(
            self, address, protocol_factory
        )
        return listener

    async def connect(
        self, address: str, protocol_factory: Any
    ) -> tuple[Stream, Any]:
        """A new connection to an address; ``OSError`` if nobody accepts it."""
        client = _PROCESS.get()
        await asyncio.sleep(self.world.latency_s())
        listener = self.listeners.get(address)
        if listener is None or not listener.alive:
            raise ConnectionRefusedError(111, f"nobody listens at {address}")
        both = (_name(client), _name(listener.process))
        if both in self.cuts or both[::-1] in self.cuts:
            await asyncio.sleep(self.CONNECT_S)
            raise TimeoutError(110, f"no answer from {address}")
        if listener.process is None:
            return self._join(client, listener, address, protocol_factory)
        return listener.process.context.copy().run(
            self._join, client, listener, address, protocol_factory
        )

    def _join(
        self,
        client: Process | None,
        listener: Listener,
        address: str,
        protocol_factory: Any,
    ) -> tuple[Stream, Any]:
        server_protocol = listener.protocol_factory()
        here = (
            contextvars.Context() if client is None else client.context.copy()
        )
        protocol = here.run(protocol_factory)
        near = here.run(Stream, self, client, protocol, address)
        far = Stream(self, listener.process, server_protocol, _name(client))
        near.peer = far
        far.peer = near
        here.run(protocol.connection_made, near)
        server_protocol.connection_made(far)
        return near, protocol

    def carry(self, sender: Stream, kind: str, data: bytes | None) -> None:
        """Bring something to the other end, in order and later."""
        receiver = sender.peer
        if receiver is None:
            return

        def deliver() -> None:
            # Timers of the same time have no order, but the bytes of a stream have.
            sender.free_at = max(
                sender.free_at + 1e-9, self.world.now + self.world.latency_s()
            )
            context = (
                receiver.process.context.copy() if receiver.process else None
            )
            self.world.loop.call_at(
                sender.free_at,
                receiver.receive,
                kind,
                data,
                context=context or contextvars.Context(),
            )

        self.when_open(_name(sender.process), _name(receiver.process), deliver)

    def when_open(
        self, sender: str, receiver: str, deliver: Callable[[], object]
    ) -> None:
        """Deliver now, or when the link is whole again."""
        if (sender, receiver) in self.cuts:
            self.held.append((sender, receiver, deliver))
        else:
            deliver()

    def cut(self, sender: str, receiver: str) -> None:
        """Let nothing pass from one process to another."""
        self.cuts.add((sender, receiver))

    def heal(self) -> None:
        """All links are whole again."""
        self.cuts.clear()
        held = self.held
        self.held = []
        for _, _, deliver in held:
            deliver()


def _run_command(command: Sequence[Any], **how: Any) -> None:
    """The only command that anything in the world runs."""
    assert command[:-1] == ["/bin/rm", "-rf", "--"], command
    shutil.rmtree(command[-1], ignore_errors=True)


def _name(process: Process | None) -> str:
    return process.name if process is not None else "outside"


_really_start = threading.Thread.start


def _start_thread(thread: threading.Thread) -> None:
    """A thread of a simulated process runs whole, at once; others are none of the world's."""
    if _PROCESS.get() is None:
        _really_start(thread)
    else:
        thread.run()


class World:
    """One world, by its seed. Use it as a context manager, then ``run``."""

    def __init__(self, seed: int | str, folder: Path) -> None:
        self.seed = seed
        self.folder = folder
        self.draw = random.Random(f"world {seed}")
        self._ids = random.Random(f"ids {seed}")
        self.now = 0.0
        self.skew_s = 0.0
        """How far the wall clock is ahead: it may jump."""
        self.slow = 1.0
        """By how much threads and messages take longer than usual."""
        self.pids = iter(range(_FIRST_PID, 1 << 30))
        self.lines: list[str] = []
        self.pending: list[asyncio.Task[Any]] = []
        """Tasks that may not have ended: one that is forgotten would run its ``finally``."""
        self.loop = Loop(self)
        self.network = Network(self)
        self._locks: dict[tuple[int, int], Process | None] = {}

    def log(self, who: str, what: str) -> None:
        """Write one line of the history."""
        self.lines.append(
            f"{self.now:13.6f} {who}: {what}".replace(str(self.folder), "~")
        )

    @property
    def digest(self) -> str:
        """A hash of all lines so far."""
        return hashlib.sha256("\n".join(self.lines).encode()).hexdigest()

    # Delays are whole milliseconds, so that much happens in the same turn of the loop: races that
    # need two things at once are found.

    def latency_s(self) -> float:
        """How long a message takes."""
        return (
            self.draw.choice((0.0, 0.0, 0.001, 0.001, 0.002, 0.005))
            * self.slow
        )

    def thread_s(self) -> float:
        """How long it takes until the function of a thread has run."""
        return self.draw.choice((0.0, 0.001, 0.001, 0.003)) * self.slow

    def wall(self) -> float:
        """The Unix time."""
        return EPOCH_S + self.now + self.skew_s

    def run(self, work: Awaitable[T]) -> T:
        """Run until this is done."""
        return self.loop.run_until_complete(work)

    @contextmanager
    def entered(self) -> Iterator[World]:
        """Let clocks, random numbers and locks of the process be those of the world."""
        was_on = gc.isenabled()
        gc.disable()  # a collection would run code of the dead, at a moment that is not drawn
        gc.freeze()  # what is older than the world takes no time when the dead are collected
        asyncio.set_event_loop(self.loop)
        patches = {
            (time, "time"): self.wall,
            (time, "monotonic"): lambda: self.now + 1000.0,
            (time, "perf_counter"): lambda: self.now + 1000.0,
            (time, "sleep"): self._sleep,
            (uuid, "uuid4"): lambda: uuid.UUID(
                int=self._ids.getrandbits(128), version=4
            ),
            (secrets, "token_hex"): lambda n=32: self._ids.randbytes(n).hex(),
            (secrets, "token_bytes"): lambda n=32: self._ids.randbytes(n),
            (secrets, "token_urlsafe"): lambda n=32: self._ids.randbytes(
                n
            ).hex(),
            (os, "getpid"): self._pid,
            (fcntl, "flock"): self._flock,
            (threading.Thread, "start"): _start_thread,
            (subprocess, "run"): _run_command,
        }
        patches |= {
            (where, name): new for where, name, new in hooks(_PROCESS.get)
        }
        applied = [
            mock.patch.object(where, name, new)
            for (where, name), new in patches.items()
        ]
        for patch in applied:
            patch.start()
        try:
            yield self
        finally:
            for patch in applied:
                patch.stop()
            asyncio.set_event_loop(None)
            self.loop.set_exception_handler(lambda loop, context: None)
            self.loop.close()
            if was_on:
                gc.enable()

    def _sleep(self, seconds: float) -> None:
        # A thread that sleeps holds up nobody else; here everything waits.
        self.now += seconds

    _own_pid = os.getpid()

    def _pid(self) -> int:
        process = _PROCESS.get()
        return self._own_pid if process is None else process.pid

    def _flock(self, descriptor: Any, operation: int) -> None:
        found = os.fstat(
            descriptor if isinstance(descriptor, int) else descriptor.fileno()
        )
        key = (found.st_dev, found.st_ino)
        own = _PROCESS.get()
        holder = self._locks.get(key)
        if not operation & fcntl.LOCK_NB:
            return  # held within one step only
        if holder is not None and holder.alive and holder is not own:
            raise BlockingIOError(11, "locked")
        self._locks[key] = own


def bury(world: World) -> None:
    """Collect a world that nobody else refers to: the ``finally`` blocks of what was under way run
    now, and fail, as no loop is left."""
    hook = sys.unraisablehook
    sys.unraisablehook = lambda unraisable: None
    try:
        with warnings.catch_warnings(action="ignore"):
            vars(world).clear()
            while gc.collect():
                pass  # errors keep others alive for a while
    finally:
        gc.unfreeze()
        sys.unraisablehook = hook
