"""What one user holds open and a full disk takes from nobody: above all the stop button."""

import contextlib
import json
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from patchlight.cli.main import cli
from patchlight.client.client import ControllerClient
from patchlight.testbed.jobs import JobSpec
from patchlight.testbed.wire.lab_api import keepers_socket
from tests.support.api_attack import (
    ATTACK_S,
    THREADS,
    as_text,
    attacked,
    check_waited,
    first_answer_of,
    waited_s,
)
from tests.support.controller_process import ControllerProcess
from tests.support.waiting import PATIENCE_S, wait_until

# As nobody: so many event streams of the controller at an address; then it waits.
_HOLDS = """
import os, socket, sys
os.setgroups([]), os.setgid(65534), os.setuid(65534)
address, held = sys.argv[1], []
head = b"GET /v1/events HTTP/1.1\\r\\nHost: localhost\\r\\nAccept: text/event-stream\\r\\n\\r\\n"
for number in range(300):
    if address.startswith("/"):
        s = socket.socket(socket.AF_UNIX)
        s.connect(address)
    else:
        s = socket.create_connection(address.split(":"))
    s.sendall(head)
    s.settimeout(60)
    try:
        s.recv(1)
    except ConnectionError:
        pass
    held.append(s)
print("held", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def held_by_nobody(address: str) -> Iterator[None]:
    words = [sys.executable, "-c", _HOLDS, address]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as hog:
        try:
            assert hog.stdout is not None
            assert hog.stdout.readline() == "held\n"
            yield
        finally:
            hog.kill()


@pytest.mark.root
@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_streams_of_one_viewer_keep_nobody_else_out(
    tmp_path: Path, kind: str
) -> None:
    with tempfile.TemporaryDirectory() as open_to_all:
        Path(open_to_all).chmod(0o755)
        process = ControllerProcess(tmp_path)
        if kind == "unix":
            process.api = f"unix:{open_to_all}/api.sock"
            process.client = ControllerClient(process.api)
        process.start()
        try:
            with held_by_nobody(process.api.removeprefix("unix:")):
                process.client.close()
                for _ in range(5):
                    with ControllerClient(process.api) as root:
                        assert root.press_stop("too many").pressed
                        root.drain("too many")
                        root.lock("o1", [7])
                    # Another user who may only look; and once more the one who holds them all.
                    for uid in (65533, 65534):
                        assert _looks(process.api, uid) == "200"
        finally:
            process.stop()


@pytest.mark.root
@pytest.mark.others
def test_the_stop_button_answers_whatever_viewers_do(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as open_to_all:
        Path(open_to_all).chmod(0o755)
        process = ControllerProcess(tmp_path)
        process.api = f"unix:{open_to_all}/api.sock"
        process.client = ControllerClient(process.api)
        process.start()
        try:
            process.client.drain("no job begins")
            spec = JobSpec("ended", 1, 4, {"M": 1.0}, workers=2)
            for _ in range(64):
                process.client.stop(process.client.submit([spec])[0].id)
            address = f"{open_to_all}/api.sock"
            # Root's commands use it; others can keep the queue of that for all full.
            own = str(keepers_socket(Path(address)))
            for kinds in (
                ("lists", "streams", "bursts"),
                ("abandoned", "kept"),
            ):
                attacks = [
                    (uid, kind, THREADS[kind])
                    for uid in (65534, 65533)
                    for kind in kinds
                ]
                with attacked(address, *attacks) as got:
                    waited = waited_s(own, ATTACK_S)
                print(f"\n{as_text(waited)}\nattackers {got}")
                check_waited(waited)
                wait_until(lambda: first_answer_of(address, 65534) == "200")
                check_waited(waited_s(own, 0.5))
            assert "Traceback" not in process.log.read_text()
        finally:
            process.stop()


_LOOKS = """
import http.client, os, socket, sys
os.setgroups([]), os.setgid(65534), os.setuid(int(sys.argv[2]))
address = sys.argv[1]
h = http.client.HTTPConnection(address if ":" in address else "localhost")
if ":" not in address:
    h.sock = socket.socket(socket.AF_UNIX)
    h.sock.connect(address)
h.request("GET", "/v1/lab")
print(h.getresponse().status)
"""


def _looks(api: str, uid: int) -> str:
    words = [sys.executable, "-c", _LOOKS, api.removeprefix("unix:"), str(uid)]
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    return done.stdout.strip() or done.stderr


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 4 MiB."""
    at = tmp_path / "disk"
    at.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", at], check=True
    )
    yield at
    subprocess.run(["umount", "--lazy", at], check=True)


def fill(disk: Path) -> Path:
    with (
        contextlib.suppress(OSError),
        (disk / "filler").open("wb", buffering=0) as filler,
    ):
        while True:
            filler.write(b"x" * 4096)
    return disk / "filler"


@pytest.mark.root
def test_with_a_full_disk_the_stop_button_works_and_all_else_is_refused(
    tmp_path: Path, small_disk: Path
) -> None:
    process = ControllerProcess(tmp_path)
    process.state = small_disk / "state"
    process.start()
    try:
        process.client.reconfigure({"o1": ["7-8"]})
        before = process.client.circuits()
        filler = fill(small_disk)
        # What SQLite had of room in its files goes first.
        body = {"why": "y" * 900}
        wait_until(
            lambda: (
                process.send("PUT", "/v1/maps/filler", json=body).status_code
                == 507
            )
        )
        change = {"maps": {"o1": ["9-10"]}}
        job = {
            "name": "j",
            "iterations": 1,
            "gradient_bytes": 4,
            "compute_s": {"M": 1.0},
        }
        for method, path, asked in (
            ("POST", "drain", {}),
            ("POST", "locks", {"ocs": "o1", "ports": [7]}),
            ("POST", "reconfigurations", change),
            ("PUT", "policies", {"order": "srpt"}),
            ("POST", "tokens", {"user": "eva", "role": "user"}),
            ("POST", "jobs", {"jobs": [{**job, "workers": 1}]}),
        ):
            for headers in ({}, {"Idempotency-Key": path}):
                answer = process.send(
                    method, f"/v1/{path}", json=asked, headers=headers
                )
                assert answer.status_code == 507, (path, answer.text)
                assert (
                    answer.headers["content-type"]
                    == "application/problem+json"
                )
                assert "disk is full" in answer.json()["detail"]
                assert answer.json()["outcome"] == "nothing-done"
        key = {"Idempotency-Key": "k"}
        pressed = process.send(
            "POST", "/v1/stop", json={"why": "smoke"}, headers=key
        )
        assert pressed.json()["pressed"]["why"] == "smoke"
        assert "disk is full" in pressed.json()["unwritten"]
        shown = CliRunner().invoke(
            cli, ["ocs", "stop", "--lab", str(process.lab)]
        )
        assert shown.exit_code == 0
        assert "once the disk has room" in shown.output
        said = CliRunner().invoke(
            cli,
            ["ocs", "lock", "o1.7", "--why", "w", "--lab", str(process.lab)],
        )
        assert "disk is full" in str(said.exception)
        stop = process.client.stop_button()
        assert stop is not None
        # Nothing was half done.
        assert process.client.circuits() == before
        assert process.client.locks() == []
        assert process.client.jobs() == []
        assert process.client.status().drained is False
        assert process.client.status().policies["order"] == "fifo"
        assert "Traceback" not in process.log.read_text()
        filler.unlink()
        wait_until(
            lambda: process.send("GET", "/v1/stop").json()["unwritten"] == ""
        )
        process.stop()
        process.start()
        assert process.client.stop_button() == stop
        # What was tried then is on record now, one entry for each.
        tried = [
            row.what for row in process.client.audit(100) if row.status == 507
        ]
        assert tried.count("POST /v1/reconfigurations") == 2
        assert [e["kind"] for e in process.client.events()].count(
            "stopped"
        ) == 2
        process.client.clear_stop()
        filler = fill(small_disk)
        process.client.press_stop()
        process.client.clear_stop()
        assert process.client.stop_button() is None
        filler.unlink()
    finally:
        process.stop()


def test_what_is_no_http_is_refused_as_all_else(
    controller: ControllerProcess,
) -> None:
    host, port = controller.api.split(":")
    for line in (
        b"GET /v1/l\xc3\xa4b HTTP/1.1",
        b"GET /v1/a b HTTP/1.1",
        b"hello",
    ):
        with socket.create_connection(
            (host, int(port)), timeout=PATIENCE_S
        ) as connection:
            connection.sendall(line + b"\r\nHost: localhost\r\n\r\n")
            head, _, body = (
                connection.makefile("rb").read().partition(b"\r\n\r\n")
            )
        assert head.startswith(b"HTTP/1.1 400 ")
        assert b"application/problem+json" in head
        assert json.loads(body)["status"] == 400
