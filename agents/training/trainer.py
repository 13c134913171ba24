"""Trains on one worker with synthetic gradients: compute, all-reduce, check and report.

Every worker knows the true sum. The values are small integers, which float32 adds exactly in any
order, so any wrong, lost or duplicated bit is detected. They come from the raw stream of PCG64,
which all versions of NumPy generate identically.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import time
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from .control import Gate, Journal, StoppedAt
from .ring import Neighbours, RingError, join_ring
from .task import ComputeDevice, TrainingError, TrainingTask, reason

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

    from .verbs import VerbsRing

    Array = NDArray[np.float32]


class WrongSum(TrainingError):
    """An all-reduce returned something other than the sum of all gradients."""


def gradient(
    seed: int,
    rank: int,
    iteration: int,
    elements: int,
) -> Array:
    """The gradient of ``rank`` in ``iteration``: float32 integers from −8 to 7."""
    bits = np.random.PCG64(np.random.SeedSequence([seed, rank, iteration]))
    words = np.asarray(bits.random_raw(-(-elements // 8)), dtype="<u8")
    nibbles = words.view(np.uint8)[:elements] & np.uint8(15)
    values = nibbles.astype(np.float32)
    values -= np.float32(8)
    return values


def true_sum(
    seed: int,
    ranks: int,
    iteration: int,
    elements: int,
) -> Array:
    """The correct result of the all-reduce of ``iteration``."""
    total = gradient(
        seed,
        0,
        iteration,
        elements,
    )
    for rank in range(1, ranks):
        total += gradient(
            seed,
            rank,
            iteration,
            elements,
        )
    return total


def check_sum(
    got: Array,
    expected: Array,
    iteration: int,
) -> None:
    """Raise ``WrongSum`` unless both are equal."""
    if np.array_equal(got, expected):
        return
    wrong = np.flatnonzero(got != expected)
    first = int(wrong[0])
    raise WrongSum(
        f"all-reduce of iteration {iteration}: {wrong.size} of {got.size} values are wrong, "
        f"first at index {first}: got {got[first]}, expected {expected[first]}"
    )


def train(
    task: TrainingTask,
    device: ComputeDevice,
    gate: Gate,
    journal: Journal,
    path: Callable[
        [], AbstractContextManager[object]
    ] = contextlib.nullcontext,
) -> None:
    """Join the ring, wait for the start, and train to the end; each all-reduce runs inside a
    ``path``. ``TrainingError`` if that fails; ``StoppedAt`` if it is stopped earlier."""
    size = len(task.ring)
    neighbours: Neighbours | VerbsRing | None = None
    if size > 1 and task.transport == "rdma":
        from .verbs import VerbsRing  # needs pyverbs

        neighbours = VerbsRing(task, partial(journal.state, "starting"))
    elif size > 1:
        neighbours = join_ring(task, partial(journal.state, "starting"))

    def on_hold(held: bool) -> None:
        if neighbours is not None:
            neighbours.ask_for_life(not held)

    # Code is slow when it first runs: more than a second on an emulated processor.
    true_sum(
        task.seed,
        size,
        task.first_iteration,
        1,
    )
    journal.state("ready")
    gate.wait_for_start()
    told: StoppedAt | None = None
    for iteration in range(task.first_iteration, task.iterations):
        began = time.monotonic()
        # Make the gradient and its true sum while the GPU "computes".
        device.begin(task.compute_s)
        array = gradient(
            task.seed,
            task.rank,
            iteration,
            task.elements,
        )
        if neighbours is not None:
            array = neighbours.placed(array)
        expected = true_sum(
            task.seed,
            size,
            iteration,
            task.elements,
        )
        device.finish()
        report = {
            "index": iteration,
            "compute_s": time.monotonic() - began,
            "sent_bytes": 0,
        }
        try:
            gate.pass_through(iteration, on_hold)
        except StoppedAt as end:
            told = end
            break
        began = time.monotonic()
        if neighbours is not None:
            with path():
                report["sent_bytes"] = ring_all_reduce(
                    array,
                    task.rank,
                    size,
                    neighbours,
                    iteration,
                )
                if task.paths:
                    # Data in flight at the start of an outage is retransmitted much later.
                    neighbours.drain(task.deadline_s)
            report |= neighbours.report()
        report |= {
            "communication_s": time.monotonic() - began,
            "finished_at": time.time(),
        }
        check_sum(array, expected, iteration)
        journal.iteration({**report, "check": "ok", "device": device.name})
    if neighbours is not None:
        neighbours.drain(task.deadline_s)
        neighbours.close()
    if told is not None:
        raise told


_HEADER = struct.Struct("!4sQQ")  # what, iteration, array bytes
_MAGIC = b"PLAR"
# Large enough that waking up costs little, small against a chunk's time on a link.
_SMALLEST_PIECE = 16 * 1024
_LARGEST_PIECE = 512 * 1024
_PIECES_IN_CHUNK = 16
_PIECES_IN_WINDOW = 4
_BROKEN = select.POLLERR | select.POLLHUP | select.POLLNVAL


def ring_all_reduce(
    array: Array,
    rank: int,
    size: int,
    neighbours: Neighbours | VerbsRing,
    iteration: int,
) -> int:
    """Sum ``array`` (float32, contiguous, changed in place) over the ring.

    Reduce-scatter, then all-gather (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms
    for clusters of workstations", JPDC 2009): the array is cut into n chunks, and in each of 2(n−1)
    steps every worker sends one chunk to the next and receives one from the previous; each link
    carries 2(n−1)/n of the array. The chunk sent in a step is the one received in the step before.
    A piece is forwarded as soon as it has arrived and been added, so links are not idle between
    steps.

    A worker sends only once the next one has reached the same all-reduce. NCCL does the same over
    RDMA, because a sender needs the receiver's buffers.

    Returns the payload bytes that this worker sent. ``RingError`` if a neighbour is lost or is
    not at the same iteration with an array of the same size.
    """
    if size == 1:
        return 0
    if not isinstance(neighbours, Neighbours):
        return neighbours.all_reduce(iteration)
    return _Exchange(
        array,
        rank,
        size,
        neighbours,
        iteration,
    ).run()


class _Exchange:
    """One all-reduce, with a cursor (step, byte in the step's chunk) for each direction."""

    def __init__(
        self,
        array: Array,
        rank: int,
        size: int,
        neighbours: Neighbours,
        iteration: int,
    ) -> None:
        self.rank = rank
        self.size = size
        self.iteration = iteration
        self.out = neighbours.to_next
        self.inp = neighbours.from_previous
        self.array = array
        self.bytes = array.data.cast("B")
        # A worker of a ring of n sends 2(n−1) chunks, starting with its own.
        self.steps = 2 * (size - 1)
        self.bounds = [
            4 * (index * array.size // size) for index in range(size + 1)
        ]
        self.scratch = np.empty(
            max(1, -(-array.size // size)), dtype=np.float32
        )
        self.scratch_bytes = self.scratch.data.cast("B")
        piece = array.nbytes // size // _PIECES_IN_CHUNK
        self.piece = min(max(piece, _SMALLEST_PIECE), _LARGEST_PIECE)
        if neighbours.window_bytes is not None:
            # Unread data takes from the receive window. If one piece could fill it, the previous
            # worker would stall for a round trip.
            self.piece = min(
                self.piece,
                max(1, neighbours.window_bytes // _PIECES_IN_WINDOW),
            )
        self.clear_to_send = _HEADER.pack(_MAGIC, iteration, array.nbytes)
        self.clear_got = b""
        self.send_step = self.send_at = 0
        self.receive_step = self.receive_at = self.added_to = 0
        self.sent_bytes = 0
        self.low_water = 1

    def chunk(self, step: int) -> tuple[int, int]:
        """First byte and length of the chunk sent in ``step``; received in ``step − 1``."""
        index = (self.rank - step) % self.size
        return self.bounds[index], self.bounds[index + 1] - self.bounds[index]

    @property
    def clear(self) -> bool:
        return len(self.clear_got) == len(self.clear_to_send)

    def run(self) -> int:
        try:
            # A few bytes per iteration always fit into the send buffer.
            self.inp.setblocking(True)
            self.inp.sendall(self.clear_to_send)
        except OSError as exc:
            raise self._lost_previous(reason(exc)) from exc
        self.out.setblocking(False)
        self.inp.setblocking(False)
        poller = select.poll()
        poller.register(self.inp, select.POLLIN)
        poller.register(self.out, select.POLLIN)
        listening = True
        events = select.POLLIN
        self._skip_empty()
        while self.send_step < self.steps or self.receive_step < self.steps:
            if self.receive_step < self.steps:
                self._set_low_water()
            elif listening:
                # Later bytes belong to the next iteration, or the ring has ended.
                poller.unregister(self.inp)
                listening = False
            # Wait for the next worker's readiness, for send space, or for nothing.
            room = select.POLLOUT if self._sendable() > 0 else 0
            if events != (events := room if self.clear else select.POLLIN):
                poller.modify(self.out, events)
            for descriptor, event in poller.poll():
                if descriptor == self.inp.fileno():
                    self._receive()
                elif event & select.POLLIN and not self.clear:
                    self._receive_clear()
                elif event & select.POLLOUT:
                    self._send()
                elif event & _BROKEN and self.send_step == self.steps:
                    # The next worker has all data and may have ended after the last iteration. If
                    # it died instead, its successor notices.
                    poller.unregister(self.out)
                elif event & _BROKEN:
                    error = self.out.getsockopt(
                        socket.SOL_SOCKET, socket.SO_ERROR
                    )
                    raise self._lost_next(
                        os.strerror(error)
                        if error
                        else "it closed the connection early"
                    )
            self._skip_empty()
        return self.sent_bytes

    def _skip_empty(self) -> None:
        """Skip chunks without bytes: a ring can have more workers than values."""
        while (
            self.send_step < self.steps and self.chunk(self.send_step)[1] == 0
        ):
            self.send_step += 1
        while (
            self.receive_step < self.steps
            and self.chunk(self.receive_step + 1)[1] == 0
        ):
            self.receive_step += 1

    def _sendable(self) -> int:
        """How many bytes may be sent now; 0 if the piece would be too small."""
        if self.send_step == self.steps or not self.clear:
            return 0
        length = self.chunk(self.send_step)[1]
        arrived_step = self.send_step - 1
        if arrived_step < self.receive_step:
            return length - self.send_at
        if arrived_step > self.receive_step:
            return 0
        ready = self.added_to - self.send_at
        return ready if ready >= self.piece or self.added_to == length else 0

    def _send(self) -> None:
        try:
            ready = self._sendable()
            if ready <= 0:
                return
            first, length = self.chunk(self.send_step)
            begin = first + self.send_at
            count = self.out.send(self.bytes[begin : begin + ready])
        except BlockingIOError:
            return
        except OSError as exc:
            raise self._lost_next(reason(exc)) from exc
        self.sent_bytes += count
        self.send_at += count
        if self.send_at == length:
            self.send_step = self.send_step + 1
            self.send_at = 0

    def _set_low_water(self) -> None:
        """Make the kernel wake the worker for whole pieces, but never wait past a chunk's end."""
        remaining = self.chunk(self.receive_step + 1)[1] - self.receive_at
        low_water = min(self.piece, remaining)
        if low_water != self.low_water:
            self.inp.setsockopt(
                socket.SOL_SOCKET, socket.SO_RCVLOWAT, low_water
            )
            self.low_water = low_water

    def _receive(self) -> None:
        try:
            first, length = self.chunk(self.receive_step + 1)
            adding = self.receive_step < self.size - 1
            into = self.scratch_bytes if adding else self.bytes[first:]
            count = self.inp.recv_into(into[self.receive_at : length])
        except BlockingIOError:
            return
        except OSError as exc:
            raise self._lost_previous(reason(exc)) from exc
        if count == 0:
            raise self._lost_previous("it closed the connection")
        self.receive_at += count
        whole = self.receive_at & ~3
        if adding:
            begin = self.added_to // 4
            end = whole // 4
            self.array[first // 4 + begin : first // 4 + end] += self.scratch[
                begin:end
            ]
        self.added_to = whole
        if self.receive_at == length:
            self.receive_step += 1
            self.receive_at = self.added_to = 0

    def _receive_clear(self) -> None:
        try:
            piece = self.out.recv(
                len(self.clear_to_send) - len(self.clear_got)
            )
        except BlockingIOError:
            return
        except OSError as exc:
            raise self._lost_next(reason(exc)) from exc
        if not piece:
            raise self._lost_next("it closed the connection")
        self.clear_got += piece
        if self.clear and self.clear_got != self.clear_to_send:
            magic, iteration, size = _HEADER.unpack(self.clear_got)
            raise RingError(
                f"rank {(self.rank + 1) % self.size} is at iteration {iteration} with {size} "
                f"bytes ({magic!r}), rank {self.rank} at {self.iteration} with {self.array.nbytes}"
            )

    def _lost_next(self, why: str) -> RingError:
        return self._lost(
            (self.rank + 1) % self.size,
            "sending to",
            self.send_step,
            why,
        )

    def _lost_previous(self, why: str) -> RingError:
        return self._lost(
            (self.rank - 1) % self.size,
            "receiving from",
            self.receive_step,
            why,
        )

    def _lost(
        self,
        peer: int,
        doing: str,
        step: int,
        why: str,
    ) -> RingError:
        return RingError(
            f"lost rank {peer} while {doing} it in step {step + 1} of {self.steps} of the "
            f"all-reduce of iteration {self.iteration}: {why}",
            peer,
        )
