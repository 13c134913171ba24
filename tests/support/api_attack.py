"""Users without a role who load a controller's API at full speed, and an operator beside them."""

import contextlib
import http.client
import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

LIST = "/v1/jobs?last=1000"
ATTACK_S = float(os.environ.get("PATCHLIGHT_ATTACK_S", "2"))
"""How long a test attacks; ``PATCHLIGHT_ATTACK_S=50 pytest -s`` prints what came of longer ones."""
_PATIENCE_S = 1.5


def _open(address: str, timeout_s: float) -> socket.socket:
    if address.startswith("/"):
        opened = socket.socket(socket.AF_UNIX)
        opened.settimeout(timeout_s)
        opened.connect(address)
        return opened
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=timeout_s)


def _head(path: str = LIST, *more: str, method: str = "GET") -> bytes:
    lines = (f"{method} {path} HTTP/1.1", "Host: localhost", *more, "", "")
    return "\r\n".join(lines).encode()


def _impatient(address: str) -> str:
    """A list, of which at most 1.5 s are waited for."""
    with _open(address, _PATIENCE_S) as asking:
        asking.sendall(_head())
        return asking.recv(1 << 16)[9:12].decode()


def _abandoned(address: str) -> str:
    """A list for which nobody waits at all."""
    with _open(address, _PATIENCE_S) as asking:
        asking.sendall(_head())
    return "sent"


def _on_one_connection(address: str) -> str:
    """One request after another, good ones and others."""
    with _open(address, _PATIENCE_S) as asking:
        for _ in range(100):
            method = random.choice(("GET", "HEAD", "OPTIONS", "POST"))
            path = random.choice(
                (
                    LIST,
                    "/v1/nowhere",
                    "/metrics",
                    "/openapi.json",
                    "/v1/samples",
                )
            )
            asking.sendall(_head(path, "Content-Length: 0", method=method))
            if not asking.recv(1 << 20):
                break
    return "sent"


def _slow_head(address: str) -> str:
    """Headers, byte by byte."""
    with _open(address, _PATIENCE_S) as asking:
        for byte in _head():
            asking.sendall(bytes([byte]))
            time.sleep(0.1)  # a byte now and then
    return "sent"


def _slow_body(address: str) -> str:
    """A long body, slowly."""
    with _open(address, _PATIENCE_S) as asking:
        asking.sendall(
            _head("/v1/jobs", "Content-Length: 4000000", method="POST")
        )
        for _ in range(100):
            asking.sendall(b" " * 4000)
            time.sleep(0.1)  # a part now and then
    return "sent"


def _burst(address: str) -> str:
    """Six hundred connections at once."""
    with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
        for _ in range(600):
            stack.enter_context(_open(address, _PATIENCE_S)).sendall(_head())
        time.sleep(1.0)  # they stay open so long
    return "sent"


def _stream(address: str) -> str:
    """An event stream that is not read, for as long as it is left open."""
    with _open(address, 3600.0) as asking:
        asking.sendall(_head("/v1/events", "Accept: text/event-stream"))
        while asking.recv(1 << 16):
            time.sleep(1.0)  # it reads slowly
    time.sleep(0.5)  # before it opens another one
    return "closed"


ATTACKS: Mapping[str, Callable[[str], str]] = {
    "lists": _impatient,
    "abandoned": _abandoned,
    "kept": _on_one_connection,
    "heads": _slow_head,
    "bodies": _slow_body,
    "bursts": _burst,
    "streams": _stream,
}


THREADS = {**dict.fromkeys(ATTACKS, 64), "streams": 150, "bursts": 1}
"""How many threads of each kind a user has."""


def _attack(address: str, kind: str, threads: int) -> None:
    """Attack until standard input ends; print what the answers were."""
    counts: Counter[str] = Counter()

    def again_and_again() -> None:
        while True:
            try:
                outcome = ATTACKS[kind](address)
            except OSError as error:
                outcome = type(error).__name__
            counts[outcome] += 1

    for _ in range(threads):
        threading.Thread(target=again_and_again, daemon=True).start()
    print("begun", flush=True)
    sys.stdin.read()
    print(json.dumps(dict(counts)), flush=True)
    os._exit(0)


def _as_user(
    uid: int, address: str, kind: str, threads: int
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, __file__, address, kind, str(threads)],
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        user=uid,
        group=uid,
        extra_groups=[],
        cwd="/",
    )


def first_answer_of(address: str, uid: int) -> str:
    """The status of the answer that this user gets to one request."""
    with _as_user(uid, address, "once", 0) as asking:
        return asking.communicate()[0].strip()


@contextlib.contextmanager
def attacked(
    address: str, *attacks: tuple[int, str, int]
) -> Iterator[dict[str, dict[str, int]]]:
    """Attacks of users (uid, kind, threads) on an API; what they got, once it is over."""
    found: dict[str, dict[str, int]] = {}
    with contextlib.ExitStack() as stack:
        running = {}
        for uid, kind, threads in attacks:
            process = stack.enter_context(
                _as_user(uid, address, kind, threads)
            )
            stack.callback(process.kill)
            running[f"{uid} {kind}"] = process
        for process in running.values():
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
        yield found
        for name, process in running.items():
            found[name] = json.loads(process.communicate()[0])


class _UnixConnection(http.client.HTTPConnection):
    def connect(self) -> None:
        self.sock = _open(self.host, self.timeout or 10.0)


def answered_in_s(address: str, method: str, path: str) -> float:
    """How long a request of this user takes, on a connection of its own; at most 10 s."""
    began = time.monotonic()
    kind = (
        _UnixConnection
        if address.startswith("/")
        else http.client.HTTPConnection
    )
    connection = kind(address, timeout=10.0)
    headers = {"Host": "localhost", "Content-Type": "application/json"}
    connection.request(
        method, path, body="{}" if method == "POST" else None, headers=headers
    )
    answer = connection.getresponse()
    answer.read()
    connection.close()
    assert answer.status == 200, (answer.status, path)
    return time.monotonic() - began


STOPS = (
    ("POST", "/v1/stop"),
    ("POST", "/v1/stop/clear"),
    ("GET", "/v1/status"),
)


def waited_s(
    address: str, seconds: float, every_s: float = 0.3
) -> dict[str, list[float]]:
    """How long an operator waited for the stop button and more, each on its own connection."""
    waited: dict[str, list[float]] = {
        f"{method} {path}": [] for method, path in STOPS
    }
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for method, path in STOPS:
            try:
                took_s = answered_in_s(address, method, path)
            except OSError as error:
                print(f"{method} {path}: {error!r}")
                took_s = 10.0
            waited[f"{method} {path}"].append(took_s)
        time.sleep(every_s)  # the pause between two requests
    return waited


def check_waited(waited: Mapping[str, list[float]]) -> None:
    """Each request was answered, and the usual one within a second.

    On a calm machine that is true of each stop; on one that is busy with other tests, a few may
    wait for a processor.
    """
    for name, each in waited.items():
        assert sorted(each)[len(each) // 2] < 1.0, as_text(waited)
        is_strict = "PATCHLIGHT_ATTACK_S" in os.environ and "/stop" in name
        assert max(each) < (1.0 if is_strict else 5.0), as_text(waited)


def as_text(waited: Mapping[str, list[float]]) -> str:
    """Count, median and longest, by request."""
    return "; ".join(
        f"{name}: {len(each)}, median {sorted(each)[len(each) // 2]:.3f}, longest {max(each):.3f} s"
        for name, each in waited.items()
    )


if __name__ == "__main__":
    if sys.argv[2] == "once":
        with contextlib.suppress(OSError):
            print(_impatient(sys.argv[1]))
    else:
        _attack(sys.argv[1], sys.argv[2], int(sys.argv[3]))
