"""The ring and the gate before it: late peers, right sums, no deadlock, holds, clear failures."""

import contextlib
import fcntl
import json
import socket
import struct
import termios
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patchlight.agents.training import ring as ring_module
from patchlight.agents.training.control import Gate, Passed
from patchlight.agents.training.ring import Neighbours, RingError, join_ring
from patchlight.agents.training.task import Member, TrainingError, TrainingTask
from patchlight.agents.training.trainer import (
    WrongSum,
    check_sum,
    gradient,
    ring_all_reduce,
    true_sum,
)
from tests.support.waiting import PATIENCE_S, free_ports, wait_until


class Walker:
    """Walks through a gate as a trainer does, and notes what the gate says."""

    def __init__(self, iterations: int) -> None:
        self.states: list[str] = []
        self.done = 0
        self.gate = Gate(
            iterations, lambda state, _k: self.states.append(state)
        )
        self.thread = threading.Thread(
            target=self._walk, args=(iterations,), daemon=True
        )
        self.thread.start()

    def _walk(self, iterations: int) -> None:
        self.gate.wait_for_start()
        for iteration in range(iterations):
            self.gate.pass_through(iteration)
            self.done = iteration + 1

    def until(self, *states: str) -> None:
        end = time.monotonic() + PATIENCE_S
        while self.states != list(states):
            assert time.monotonic() < end, self.states
            time.sleep(0.005)  # the pause between two looks


@pytest.fixture
def walker() -> Iterator[Walker]:
    made = Walker(10)
    yield made
    made.gate.start()
    made.gate.release()
    made.thread.join(PATIENCE_S)
    assert not made.thread.is_alive()
    assert made.done == 10


def test_a_hold_stops_before_its_iteration_and_a_release_goes_on(
    walker: Walker,
) -> None:
    assert walker.gate.hold(4) == 0
    walker.gate.start()
    walker.until("running", "held")
    assert (walker.done, walker.gate.iteration) == (4, 4)
    # What is past, or never comes, cannot be held.
    with pytest.raises(
        Passed,
        match="iteration 3 is over: the next all-reduce belongs to iteration 4",
    ):
        walker.gate.hold(3)
    with pytest.raises(Passed, match="will not come"):
        walker.gate.hold(10)
    # The one it is held at can, again.
    assert walker.gate.hold(4) == 4
    walker.gate.release()
    walker.until("running", "held", "running")


def test_a_held_worker_can_be_sent_on_to_a_later_hold(walker: Walker) -> None:
    walker.gate.hold(2)
    walker.gate.start()
    walker.until("running", "held")
    walker.gate.hold(7)
    walker.until("running", "held", "running", "held")
    assert walker.done == 7


def test_nothing_moves_before_the_start(walker: Walker) -> None:
    assert walker.states == []
    assert walker.done == 0


def tasks(ranks: int, join_s: float = PATIENCE_S) -> list[TrainingTask]:
    ring = tuple(
        Member(r, "127.0.0.1", port)
        for r, port in enumerate(free_ports(ranks))
    )
    return [
        TrainingTask(
            f"w{rank}", "j", rank, ring, 1, 40, compute_s=0, join_s=join_s
        )
        for rank in range(ranks)
    ]


def join(
    task: TrainingTask, results: dict[int, Neighbours | RingError]
) -> threading.Thread:
    def run() -> None:
        try:
            results[task.rank] = join_ring(task)
        except RingError as exc:
            results[task.rank] = exc

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def test_peers_may_come_late_and_strangers_do_not_matter() -> None:
    parts = tasks(3)
    results: dict[int, Neighbours | RingError] = {}
    threads = [join(parts[0], results)]
    # A stranger, and a worker of another job, knock before the right ones come.
    for hello in (
        b"GET / HTTP/1.1\r\n\r\n",
        json.dumps({"job": "other"}).encode() + b"\n",
    ):
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                stranger = socket.create_connection(
                    ("127.0.0.1", parts[0].ring[0].port), 1
                )
                break
            except OSError:
                assert time.monotonic() < end
        with stranger:
            stranger.sendall(hello)
            stranger.shutdown(socket.SHUT_WR)
            stranger.settimeout(PATIENCE_S)
            stranger.recv(100)
    threads += [join(part, results) for part in parts[1:]]
    for thread in threads:
        thread.join(PATIENCE_S)
    assert all(isinstance(results[rank], Neighbours) for rank in range(3)), (
        results
    )
    for rank in range(3):
        got = results[rank]
        following = results[(rank + 1) % 3]
        assert isinstance(got, Neighbours)
        assert isinstance(following, Neighbours)
        got.to_next.sendall(bytes([rank]))
        assert following.from_previous.recv(1) == bytes([rank])
        got.drain(PATIENCE_S)
    for neighbours in results.values():
        assert isinstance(neighbours, Neighbours)
        neighbours.close()


def test_a_peer_that_never_comes_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ring_module, "_TELL_AFTER_S", 0.2)
    parts = tasks(2, join_s=0.5)
    told = list[str]()
    message = r"rank 0 could not join rank 1 at 127\.0\.0\.1:\d+ within 0\.5 s: .*; rank 0 waited"
    with pytest.raises(RingError, match=message):
        join_ring(parts[0], told.append)
    at = parts[1].ring[1]
    # Once, and before it gives up: a job that is slow to start says what it waits for.
    assert told == [
        f"rank 1 at 127.0.0.1:{at.port} cannot be reached: Connection refused"
    ]


def test_a_peer_of_another_job_is_refused_with_what_it_said() -> None:
    parts = tasks(2, join_s=2)
    results: dict[int, Neighbours | RingError] = {}
    threads = [
        join(parts[0], results),
        join(replace(parts[1], job="other"), results),
    ]
    for thread in threads:
        thread.join(PATIENCE_S)
    assert isinstance(results[0], RingError)
    assert "other" in str(results[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rank": 2}, "rank 2 is not in a ring of 2"),
        ({"iterations": 0}, "must be positive"),
        ({"surprise": 1}, "unknown keys: surprise"),
        ({"ring": [{"rank": 1, "address": "a", "port": 1}]}, "ranks 0"),
        ({"ring": [{"rank": 0}]}, "incomplete"),
    ],
)
def test_a_wrong_task_is_refused(
    change: dict[str, object], message: str
) -> None:
    right = {
        "id": "w",
        "job": "j",
        "rank": 0,
        "iterations": 1,
        "gradient_bytes": 10,
        "compute_s": 0.0,
        "ring": [
            {"rank": r, "address": "127.0.0.1", "port": 1 + r}
            for r in range(2)
        ],
    }
    assert TrainingTask.parse(right).elements == 3
    with pytest.raises(TrainingError, match=message):
        TrainingTask.parse({**right, **change})


@contextlib.contextmanager
def ring_of(
    ranks: int, buffer_bytes: int | None = None
) -> Iterator[list[Neighbours]]:
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(ranks)]
    if buffer_bytes is not None:
        for listener in listeners:
            listener.setsockopt(
                socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes
            )
    outs = []
    for rank in range(ranks):
        out = socket.socket()
        if buffer_bytes is not None:
            out.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
        out.connect(listeners[(rank + 1) % ranks].getsockname())
        out.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        outs.append(out)
    ring = [
        Neighbours(outs[rank], listeners[rank].accept()[0])
        for rank in range(ranks)
    ]
    try:
        yield ring
    finally:
        for member in ring:
            member.close()
        for listener in listeners:
            listener.close()


def together(ranks: int, work: Callable[[int], object]) -> dict[int, object]:
    """Run ``work(rank)`` for every rank at once; its results, or the exceptions."""
    results: dict[int, object] = {}

    def run(rank: int) -> None:
        try:
            results[rank] = work(rank)
        except Exception as exc:
            results[rank] = exc

    threads = [
        threading.Thread(target=run, args=(rank,), daemon=True)
        for rank in range(ranks)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), f"a rank hangs; the others: {results}"
    return results


@settings(max_examples=40, deadline=None)
@given(
    ranks=st.integers(1, 6),
    elements=st.one_of(st.integers(1, 40), st.integers(1, 200_000)),
    seed=st.integers(0, 2**32),
)
def test_every_rank_gets_the_true_sum(
    ranks: int, elements: int, seed: int
) -> None:
    with (
        contextlib.nullcontext([None])
        if ranks == 1
        else ring_of(ranks) as ring
    ):

        def work(rank: int) -> int:
            sent = 0
            for iteration in range(2):
                array = gradient(seed, rank, iteration, elements)
                sent += ring_all_reduce(
                    array,
                    rank,
                    ranks,
                    ring[rank],  # type: ignore[arg-type]
                    iteration,
                )
                check_sum(
                    array,
                    true_sum(seed, ranks, iteration, elements),
                    iteration,
                )
            return sent

        results = together(ranks, work)
    # Each of n workers sends 2(n−1)/n of the array, but for rounding.
    assert sum(results.values()) == 2 * 2 * (ranks - 1) * elements * 4  # type: ignore[arg-type]


def waiting_bytes(connection: socket.socket, what: int) -> int:
    """``FIONREAD``: come and not read yet; ``TIOCOUTQ``: sent and not acknowledged yet."""
    (count,) = struct.unpack("i", fcntl.ioctl(connection, what, bytes(4)))
    return int(count)


def test_a_worker_reads_before_its_window_is_full() -> None:
    window_bytes = 65_536
    elements = 1 << 21
    with ring_of(2) as ring:
        first = replace(ring[0], window_bytes=window_bytes)
        array = np.zeros(elements, np.float32)
        worker = threading.Thread(
            target=lambda: together(
                1, lambda _: ring_all_reduce(array, 0, 2, first, 0)
            ),
            daemon=True,
        )
        worker.start()
        sender = ring[1].to_next
        sender.sendall(bytes(window_bytes // 4))
        wait_until(
            lambda: not waiting_bytes(sender, termios.TIOCOUTQ),
            "all that was sent to come",
        )
        wait_until(
            lambda: not waiting_bytes(first.from_previous, termios.FIONREAD),
            "it to be read",
        )
        sender.shutdown(socket.SHUT_WR)
        worker.join(PATIENCE_S)
        assert not worker.is_alive()


def test_arrays_far_larger_than_the_buffers_do_not_deadlock() -> None:
    ranks = 3
    elements = 2_000_003
    with ring_of(ranks, buffer_bytes=4096) as ring:

        def work(rank: int) -> None:
            array = gradient(1, rank, 0, elements)
            ring_all_reduce(array, rank, ranks, ring[rank], 0)
            check_sum(array, true_sum(1, ranks, 0, elements), 0)

        assert set(together(ranks, work).values()) == {None}


def test_a_rank_that_dies_is_named_by_its_neighbours() -> None:
    ranks = 3
    elements = 1_000_000
    with ring_of(ranks, buffer_bytes=4096) as ring:

        def work(rank: int) -> None:
            if rank == 1:
                ring[1].close()
                return
            array = gradient(1, rank, 0, elements)
            ring_all_reduce(array, rank, ranks, ring[rank], 0)
            ring[rank].close()

        results = together(2, work)
    assert isinstance(results[0], RingError)
    assert "lost rank 1" in str(results[0])
    assert "all-reduce of iteration 0" in str(results[0])


@pytest.mark.parametrize(("iteration", "elements"), [(1, 1000), (0, 1001)])
def test_ranks_that_are_not_in_step_are_found_out(
    iteration: int, elements: int
) -> None:
    with ring_of(2) as ring:

        def work(rank: int) -> None:
            array = gradient(1, rank, 0, elements if rank else 1000)
            try:
                ring_all_reduce(
                    array, rank, 2, ring[rank], iteration if rank else 0
                )
            finally:
                ring[rank].close()  # as a worker's end does

        results = together(2, work)
    assert all(isinstance(result, RingError) for result in results.values())
    assert any(
        "is at iteration" in str(result) for result in results.values()
    ), results


def test_one_wrong_bit_is_noticed() -> None:
    expected = true_sum(3, 2, 0, 1000)
    got = expected.copy()
    check_sum(got, expected, 0)
    got[17] += 1
    with pytest.raises(
        WrongSum, match="1 of 1000 values are wrong, first at index 17"
    ):
        check_sum(got, expected, 0)


def test_gradients_differ_by_seed_rank_and_iteration_and_are_small_integers() -> (
    None
):
    usual = gradient(1, 0, 0, 5000)
    assert usual.dtype == np.float32
    assert np.array_equal(usual, np.round(usual))
    assert (int(usual.min()), int(usual.max())) == (-8, 7)
    assert np.array_equal(usual, gradient(1, 0, 0, 5000))
    for other in (
        gradient(2, 0, 0, 5000),
        gradient(1, 1, 0, 5000),
        gradient(1, 0, 1, 5000),
    ):
        assert not np.array_equal(usual, other)
