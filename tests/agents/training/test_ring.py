"""Joining the ring: late peers, strangers, and peers that never come."""

from __future__ import annotations

import json
import socket
import threading
import time
from dataclasses import replace

import pytest

from patchlight.agents.training.ring import Neighbours, RingError, join_ring
from patchlight.agents.training.task import Member, TrainingError, TrainingTask
from tests.support.waiting import free_ports


def tasks(ranks: int, deadline_s: float = 10) -> list[TrainingTask]:
    ring = tuple(Member(r, "127.0.0.1", port) for r, port in enumerate(free_ports(ranks)))
    return [
        TrainingTask(f"w{rank}", "j", rank, ring, 1, 40, compute_s=0, deadline_s=deadline_s)
        for rank in range(ranks)
    ]


def join(task: TrainingTask, results: dict[int, Neighbours | RingError]) -> threading.Thread:
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
    for hello in (b"GET / HTTP/1.1\r\n\r\n", json.dumps({"job": "other"}).encode() + b"\n"):
        end = time.monotonic() + 5
        while True:
            try:
                stranger = socket.create_connection(("127.0.0.1", parts[0].ring[0].port), 1)
                break
            except OSError:
                assert time.monotonic() < end
        with stranger:
            stranger.sendall(hello)
            stranger.shutdown(socket.SHUT_WR)
            stranger.settimeout(10)
            stranger.recv(100)
    threads += [join(part, results) for part in parts[1:]]
    for thread in threads:
        thread.join(15)
    assert all(isinstance(results[rank], Neighbours) for rank in range(3)), results
    for rank in range(3):
        got, following = results[rank], results[(rank + 1) % 3]
        assert isinstance(got, Neighbours)
        assert isinstance(following, Neighbours)
        got.to_next.sendall(bytes([rank]))
        assert following.from_previous.recv(1) == bytes([rank])
        got.drain(5)
    for neighbours in results.values():
        assert isinstance(neighbours, Neighbours)
        neighbours.close()


def test_a_peer_that_never_comes_is_named() -> None:
    parts = tasks(2, deadline_s=0.5)
    message = r"rank 0 could not join rank 1 at 127\.0\.0\.1:\d+ within 0\.5 s: .*; rank 0 waited"
    with pytest.raises(RingError, match=message):
        join_ring(parts[0])


def test_a_peer_of_another_job_is_refused_with_what_it_said() -> None:
    parts = tasks(2, deadline_s=1)
    results: dict[int, Neighbours | RingError] = {}
    threads = [join(parts[0], results), join(replace(parts[1], job="other"), results)]
    for thread in threads:
        thread.join(15)
    assert isinstance(results[0], RingError)
    assert "other" in str(results[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rank": 2}, "rank 2 is not in a ring of 2"),
        ({"iterations": 0}, "must be positive"),
        ({"surprise": 1}, "unknown keys: surprise"),
        ({"ring": [{"rank": 1, "address": "a", "port": 1}]}, "ranks 0"),
        ({"ring": [{"rank": 0}]}, "not complete"),
    ],
)
def test_a_wrong_task_is_refused(change: dict[str, object], message: str) -> None:
    right = {
        "id": "w",
        "job": "j",
        "rank": 0,
        "iterations": 1,
        "gradient_bytes": 10,
        "compute_s": 0.0,
        "ring": [{"rank": r, "address": "127.0.0.1", "port": 1 + r} for r in range(2)],
    }
    assert TrainingTask.parse(right).elements == 3
    with pytest.raises(TrainingError, match=message):
        TrainingTask.parse({**right, **change})
