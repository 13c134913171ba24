"""Ring all-reduce over loopback: right sums for every size, no deadlock, clear failures."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patchlight.agents.training.allreduce import ring_all_reduce
from patchlight.agents.training.ring import Neighbours, RingError
from patchlight.agents.training.trainer import WrongSum, check_sum, gradient, true_sum


@contextlib.contextmanager
def ring_of(ranks: int, buffer_bytes: int | None = None) -> Iterator[list[Neighbours]]:
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(ranks)]
    if buffer_bytes is not None:
        for listener in listeners:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
    outs = []
    for rank in range(ranks):
        out = socket.socket()
        if buffer_bytes is not None:
            out.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
        out.connect(listeners[(rank + 1) % ranks].getsockname())
        out.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        outs.append(out)
    ring = [Neighbours(outs[rank], listeners[rank].accept()[0]) for rank in range(ranks)]
    try:
        yield ring
    finally:
        for member in ring:
            member.close()
        for listener in listeners:
            listener.close()


def together(
    ranks: int, work: Callable[[int], object], deadline_s: float = 30
) -> dict[int, object]:
    """Run ``work(rank)`` for every rank at once; its results, or the exceptions."""
    results: dict[int, object] = {}

    def run(rank: int) -> None:
        try:
            results[rank] = work(rank)
        except Exception as exc:
            results[rank] = exc

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(deadline_s)
        assert not thread.is_alive(), f"a rank hangs; the others: {results}"
    return results


@settings(max_examples=40, deadline=None)
@given(
    ranks=st.integers(1, 6),
    elements=st.one_of(st.integers(1, 40), st.integers(1, 200_000)),
    seed=st.integers(0, 2**32),
)
def test_every_rank_gets_the_true_sum(ranks: int, elements: int, seed: int) -> None:
    with contextlib.nullcontext([None]) if ranks == 1 else ring_of(ranks) as ring:

        def work(rank: int) -> int:
            sent = 0
            for iteration in range(2):
                array = gradient(seed, rank, iteration, elements)
                sent += ring_all_reduce(array, rank, ranks, ring[rank], iteration)  # type: ignore[arg-type]
                check_sum(array, true_sum(seed, ranks, iteration, elements), iteration)
            return sent

        results = together(ranks, work)
    # Each of n workers sends 2(n−1)/n of the array, but for rounding.
    assert sum(results.values()) == 2 * 2 * (ranks - 1) * elements * 4  # type: ignore[arg-type]


def test_arrays_far_larger_than_the_buffers_do_not_deadlock() -> None:
    ranks, elements = 3, 2_000_003
    with ring_of(ranks, buffer_bytes=4096) as ring:

        def work(rank: int) -> None:
            array = gradient(1, rank, 0, elements)
            ring_all_reduce(array, rank, ranks, ring[rank], 0)
            check_sum(array, true_sum(1, ranks, 0, elements), 0)

        assert set(together(ranks, work, 60).values()) == {None}


def test_a_rank_that_dies_is_named_by_its_neighbours() -> None:
    ranks, elements = 3, 1_000_000
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
def test_ranks_that_are_not_in_step_are_found_out(iteration: int, elements: int) -> None:
    with ring_of(2) as ring:

        def work(rank: int) -> None:
            array = gradient(1, rank, 0, elements if rank else 1000)
            try:
                ring_all_reduce(array, rank, 2, ring[rank], iteration if rank else 0)
            finally:
                ring[rank].close()  # as a worker's end does

        results = together(2, work)
    assert all(isinstance(result, RingError) for result in results.values())
    assert any("is at iteration" in str(result) for result in results.values()), results


def test_one_wrong_bit_is_noticed() -> None:
    expected = true_sum(3, 2, 0, 1000)
    got = expected.copy()
    check_sum(got, expected, 0)
    got[17] += 1
    with pytest.raises(WrongSum, match="1 of 1000 values are wrong, the first at 17"):
        check_sum(got, expected, 0)


def test_gradients_differ_by_seed_rank_and_iteration_and_are_small_integers() -> None:
    usual = gradient(1, 0, 0, 5000)
    assert usual.dtype == np.float32
    assert np.array_equal(usual, np.round(usual))
    assert (usual.min(), usual.max()) == (-8, 7)
    assert np.array_equal(usual, gradient(1, 0, 0, 5000))
    for other in (gradient(2, 0, 0, 5000), gradient(1, 1, 0, 5000), gradient(1, 0, 1, 5000)):
        assert not np.array_equal(usual, other)
