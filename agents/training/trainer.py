"""Trains on one worker: compute, all-reduce, check and report each iteration.

The gradients are synthetic, and every worker knows their true sum. The values are small integers,
so float32 adds them exactly in any order: one wrong, lost or doubled bit anywhere on the way
shows. Made from the raw stream of PCG64, which NumPy keeps the same in all versions, so workers
with different NumPys agree.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import time
from typing import TYPE_CHECKING

import numpy as np

from .control import Gate, Journal, StoppedAt
from .ring import Neighbours, RingError, join_ring
from .task import ComputeDevice, TrainingError, TrainingTask

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

    Array = NDArray[np.float32]


class WrongSum(TrainingError):
    """An all-reduce gave something else than the sum of all gradients."""


def gradient(seed: int, rank: int, iteration: int, elements: int) -> Array:
    """What ``rank`` computes in ``iteration``: float32 integers from −8 to 7."""
    bits = np.random.PCG64(np.random.SeedSequence([seed, rank, iteration]))
    words = np.asarray(bits.random_raw(-(-elements // 8)), dtype="<u8")
    nibbles = words.view(np.uint8)[:elements] & np.uint8(15)
    values = nibbles.astype(np.float32)
    values -= np.float32(8)
    return values


def true_sum(seed: int, ranks: int, iteration: int, elements: int) -> Array:
    """What the all-reduce of ``iteration`` must give on every worker."""
    total = gradient(seed, 0, iteration, elements)
    for rank in range(1, ranks):
        total += gradient(seed, rank, iteration, elements)
    return total


def check_sum(got: Array, expected: Array, iteration: int) -> None:
    """Raise ``WrongSum`` unless the two are equal in every bit that counts."""
    if np.array_equal(got, expected):
        return
    wrong = np.flatnonzero(got != expected)
    first = int(wrong[0])
    raise WrongSum(
        f"all-reduce of iteration {iteration}: {wrong.size} of {got.size} values are wrong, the "
        f"first at {first}: got {got[first]}, the true sum is {expected[first]}"
    )


def train(
    task: TrainingTask,
    device: ComputeDevice,
    gate: Gate,
    journal: Journal,
    path: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext,
) -> None:
    """Join the ring, wait for the start, and train to the end; each all-reduce is inside a
    ``path``. ``TrainingError`` if that fails; ``StoppedAt`` if it is told to end sooner."""
    size = len(task.ring)
    neighbours: Neighbours | None = join_ring(task) if size > 1 else None

    def on_hold(held: bool) -> None:
        if neighbours is not None:
            neighbours.ask_for_life(not held)

    journal.state("ready")
    gate.wait_for_start()
    told: StoppedAt | None = None
    for iteration in range(task.first_iteration, task.iterations):
        began = time.monotonic()
        # The synthetic gradient and its true sum are made while the GPU "computes" them.
        device.begin(task.compute_s)
        array = gradient(task.seed, task.rank, iteration, task.elements)
        expected = true_sum(task.seed, size, iteration, task.elements)
        device.finish()
        report = {"index": iteration, "compute_s": time.monotonic() - began, "sent_bytes": 0}
        try:
            gate.pass_through(iteration, on_hold)
        except StoppedAt as end:
            told = end
            break
        began = time.monotonic()
        if neighbours is not None:
            with path():
                report["sent_bytes"] = ring_all_reduce(
                    array, task.rank, size, neighbours, iteration
                )
                if task.paths:  # What is on its way when it gets dark is sent again, much later.
                    neighbours.drain(task.deadline_s)
        report |= {"communication_s": time.monotonic() - began, "finished_at": time.time()}
        check_sum(array, expected, iteration)
        journal.iteration({**report, "check": "ok", "device": device.name})
    if neighbours is not None:
        neighbours.drain(task.deadline_s)
        neighbours.close()
    if told is not None:
        raise told


_HEADER = struct.Struct("!4sQQ")  # what, iteration, array bytes
_MAGIC = b"PLAR"
# Pieces: large enough that waking up costs little, small against a chunk's time on a link.
_SMALLEST_PIECE, _LARGEST_PIECE, _PIECES_IN_CHUNK = 16 * 1024, 512 * 1024, 16
_PIECES_IN_WINDOW = 4
_BROKEN = select.POLLERR | select.POLLHUP | select.POLLNVAL


def ring_all_reduce(
    array: Array, rank: int, size: int, neighbours: Neighbours, iteration: int
) -> int:
    """Sum ``array`` (float32, contiguous, changed in place) over the ring.

    Reduce-scatter, then all-gather (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms
    for clusters of workstations", JPDC 2009): the array is cut into n chunks, and in each of
    2(n−1) steps every worker sends one chunk to the next and receives one from the previous;
    each link carries 2(n−1)/n of the array. The chunk sent in a step is the one received in the
    step before. A piece goes on as soon as it has arrived and been added, so the link is never
    idle between steps.

    A worker sends only once the next one says that it is at the same all-reduce: over RDMA a
    sender needs the receiver's buffers (NCCL waits for a "clear to send" for them), where TCP
    alone would let a fast GPU's data pile up in the socket of one that still computes.

    Returns the payload bytes that this worker sent. ``RingError`` if a neighbour is lost or is
    not at the same iteration with an array of the same size.
    """
    if size == 1:
        return 0
    return _Exchange(array, rank, size, neighbours, iteration).run()


class _Exchange:
    """One all-reduce: a cursor (step, byte in the step's chunk) for each direction."""

    def __init__(
        self, array: Array, rank: int, size: int, neighbours: Neighbours, iteration: int
    ) -> None:
        self.rank, self.size, self.iteration = rank, size, iteration
        self.out, self.inp = neighbours.to_next, neighbours.from_previous
        self.array = array
        self.bytes = array.data.cast("B")
        # A worker of a ring of n sends 2(n−1) chunks, the first of them its own.
        self.steps = 2 * (size - 1)
        self.bounds = [4 * (index * array.size // size) for index in range(size + 1)]
        self.scratch = np.empty(max(1, -(-array.size // size)), dtype=np.float32)
        self.scratch_bytes = self.scratch.data.cast("B")
        piece = array.nbytes // size // _PIECES_IN_CHUNK
        self.piece = min(max(piece, _SMALLEST_PIECE), _LARGEST_PIECE)
        if neighbours.window_bytes is not None:
            # What has come and is not read yet takes from the window: whoever let it fill up with
            # one piece would have the previous worker stand still for the way there and back.
            self.piece = min(self.piece, max(1, neighbours.window_bytes // _PIECES_IN_WINDOW))
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
        """Whether the next worker has said that it is ready to receive."""
        return len(self.clear_got) == len(self.clear_to_send)

    def run(self) -> int:
        try:
            # A few bytes each iteration, against the stream: there is always room for them.
            self.inp.setblocking(True)
            self.inp.sendall(self.clear_to_send)
        except OSError as exc:
            raise self._lost_previous(exc.strerror or str(exc)) from exc
        self.out.setblocking(False)
        self.inp.setblocking(False)
        poller = select.poll()
        poller.register(self.inp, select.POLLIN)
        poller.register(self.out, select.POLLIN)
        listening, events = True, select.POLLIN
        self._skip_empty()
        while self.send_step < self.steps or self.receive_step < self.steps:
            if self.receive_step < self.steps:
                self._set_low_water()
            elif listening:
                # What comes now belongs to the next iteration, or is the end of the ring.
                poller.unregister(self.inp)
                listening = False
            # On the way to the next worker: its word, room to send, or nothing.
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
                    # It has all of ours. In the last iteration it may be done and gone, NIC and
                    # all; if it died instead, whoever waits for its bytes notices.
                    poller.unregister(self.out)
                elif event & _BROKEN:
                    error = self.out.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                    raise self._lost_next(os.strerror(error) if error else "it hung up")
            self._skip_empty()
        return self.sent_bytes

    def _skip_empty(self) -> None:
        """Move past chunks without bytes: a ring can have more workers than values."""
        while self.send_step < self.steps and self.chunk(self.send_step)[1] == 0:
            self.send_step += 1
        while self.receive_step < self.steps and self.chunk(self.receive_step + 1)[1] == 0:
            self.receive_step += 1

    def _sendable(self) -> int:
        """How many bytes may go out now; 0 rather than a piece too small to be worth it."""
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
            raise self._lost_next(exc.strerror or str(exc)) from exc
        self.sent_bytes += count
        self.send_at += count
        if self.send_at == length:
            self.send_step, self.send_at = self.send_step + 1, 0

    def _set_low_water(self) -> None:
        """Have the kernel wake us for whole pieces only, yet never wait past a chunk's end."""
        remaining = self.chunk(self.receive_step + 1)[1] - self.receive_at
        low_water = min(self.piece, remaining)
        if low_water != self.low_water:
            self.inp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, low_water)
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
            raise self._lost_previous(exc.strerror or str(exc)) from exc
        if count == 0:
            raise self._lost_previous("it closed the connection")
        self.receive_at += count
        whole = self.receive_at & ~3
        if adding:
            begin, end = self.added_to // 4, whole // 4
            self.array[first // 4 + begin : first // 4 + end] += self.scratch[begin:end]
        self.added_to = whole
        if self.receive_at == length:
            self.receive_step += 1
            self.receive_at = self.added_to = 0

    def _receive_clear(self) -> None:
        """Hear that the next worker is ready, for the same iteration and size."""
        try:
            piece = self.out.recv(len(self.clear_to_send) - len(self.clear_got))
        except BlockingIOError:
            return
        except OSError as exc:
            raise self._lost_next(exc.strerror or str(exc)) from exc
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
        return self._lost((self.rank + 1) % self.size, "sending to", self.send_step, why)

    def _lost_previous(self, why: str) -> RingError:
        return self._lost((self.rank - 1) % self.size, "receiving from", self.receive_step, why)

    def _lost(self, peer: int, doing: str, step: int, why: str) -> RingError:
        return RingError(
            f"lost rank {peer} while {doing} it in step {step + 1} of {self.steps} of the "
            f"all-reduce of iteration {self.iteration}: {why}",
            peer,
        )
