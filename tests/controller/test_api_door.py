"""Who and what the controller's API lets in, over a socket as any user of the machine has it."""

import contextlib
import json
import os
import pwd
import socket
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from patchlight.client.client import ControllerClient, ControllerError
from patchlight.testbed.errors import BadInput
from tests.support.controller_process import (
    ControllerProcess,
    controller_process,
)
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.xdist_group("a controller behind a door")

JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def door(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ControllerProcess]:
    with controller_process(tmp_path_factory.mktemp("door")) as process:
        yield process


def connected(door: ControllerProcess, text: bytes = b"") -> socket.socket:
    host, _, port = door.api.rpartition(":")
    made = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
    made.sendall(text)
    return made


def comes_to_an_end(connection: socket.socket) -> bool:
    """Whether the other end hangs up before the socket's time-out, whatever it says before."""
    try:
        while connection.recv(4096):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


def test_other_names_than_this_machines_are_turned_away(
    door: ControllerProcess,
) -> None:
    port = door.api.rpartition(":")[2]
    for name in (
        "evil.example",
        f"evil.example:{port}",
        "127.0.0.1.evil.example",
        "[::1",
        "",
    ):
        answer = door.send(
            "POST", "/v1/reconfigurations", headers={"Host": name}, json={}
        )
        assert answer.status_code == 421, name
        assert "localhost" in answer.json()["hint"]
    for name in (door.api, f"localhost:{port}", f"[::1]:{port}", "LOCALHOST"):
        assert (
            door.send("GET", "/v1/lab", headers={"Host": name}).status_code
            == 200
        )


def test_a_page_of_another_site_changes_nothing(
    door: ControllerProcess,
) -> None:
    for origin in (
        "http://evil.example",
        "null",
        f"https://{door.api}",
        "http://[",
    ):
        answer = door.send(
            "POST", "/v1/stop", headers={"Origin": origin}, json={}
        )
        assert answer.status_code == 403, origin
    assert door.client.stop_button() is None
    own = {"Origin": f"http://{door.api}"}
    assert (
        door.send("POST", "/v1/stop/clear", headers=own, json={}).status_code
        == 200
    )


def test_no_page_of_ours_runs_programs_from_elsewhere(
    door: ControllerProcess,
) -> None:
    for path in ("/redoc", "/docs/oauth2-redirect"):
        answer = door.send("GET", path)
        assert (
            answer.status_code,
            "/openapi.json" in answer.json()["hint"],
        ) == (404, True)
    assert "/v1/jobs" in door.send("GET", "/openapi.json").json()["paths"]


def test_a_header_makes_nobody_someone_else(door: ControllerProcess) -> None:
    forged = {
        "X-Forwarded-For": "direct",
        "Forwarded": "for=direct",
        "X-Real-IP": "direct",
        "X-Forwarded-Proto": "https",
    }
    assert door.send(
        "POST", "/v1/reconfigurations", headers=forged, json={}
    ).is_success
    origin = door.client.reconfigurations()[-1].origin
    assert origin.startswith("127.0.0.1:")
    assert origin.endswith(f"(uid {os.getuid()})")


_SPEAKS_FOR_OTHERS = """
import http.client, os, socket, sys
os.setgroups([]), os.setuid(65534)
h = http.client.HTTPConnection("localhost")
h.sock = socket.socket(socket.AF_UNIX)
h.sock.connect(sys.argv[1])
h.putrequest("POST", "/v1/reconfigurations")
h.putheader("Content-Type", "application/json")
for name in ("root", "alice"):
    h.putheader("X-Patchlight-User", name)
h.putheader("X-Patchlight-Uid", "0")
h.putheader("Content-Length", "2")
h.endheaders(b"{}")
print(h.getresponse().status)
"""


@pytest.mark.root
@pytest.mark.parametrize(
    ("others", "status"), [("viewer", 403), ("operator", 200)]
)
def test_a_user_at_the_unix_socket_goes_by_the_login_whatever_is_declared(
    tmp_path: Path, others: str, status: int
) -> None:
    with tempfile.TemporaryDirectory() as open_to_all:
        Path(open_to_all).chmod(0o755)
        process = ControllerProcess(tmp_path)
        process.api = f"unix:{open_to_all}/api.sock"
        process.client = ControllerClient(process.api)
        lab = process.lab.read_text()
        with_access = f"controller: {{access: {{others: {others}}}, "
        process.lab.write_text(lab.replace("controller: {", with_access))
        process.start()
        try:
            words = [
                sys.executable,
                "-c",
                _SPEAKS_FOR_OTHERS,
                f"{open_to_all}/api.sock",
            ]
            done = subprocess.run(
                words, capture_output=True, text=True, check=True
            )
            assert done.stdout == f"{status}\n"
            tried = process.client.audit()[-1]
            assert (tried.by, tried.origin) == (
                "nobody",
                "unix (uid 65534)",
            )
            assert (tried.role, tried.status) == (others, status)
            changes = [
                (c.by, c.origin) for c in process.client.reconfigurations()
            ]
            assert changes == [("nobody", "unix (uid 65534)")] * (
                status == 200
            )
        finally:
            process.stop()


@pytest.mark.root
def test_root_may_ask_for_a_user_and_gets_that_users_role(
    door: ControllerProcess,
) -> None:
    nobody = {
        "X-Patchlight-Uid": str(pwd.getpwnam("nobody").pw_uid),
        "X-Patchlight-User": "eva",
    }
    me = door.send("GET", "/v1/whoami", headers=nobody).json()
    assert (me["user"], me["role"]) == ("nobody", "viewer")
    assert me["origin"].endswith("(uid 0 for uid 65534)")
    refused = door.send("POST", "/v1/stop", headers=nobody, json={})
    assert refused.status_code == 403
    assert door.client.audit()[-1].by == "nobody"
    for said in ("root", "-1", "1" * 11, "²"):
        answer = door.send(
            "GET", "/v1/whoami", headers={"X-Patchlight-Uid": said.encode()}
        )
        assert answer.status_code == 401
        assert "is not a user id" in answer.json()["detail"]
    assert door.send("GET", "/v1/whoami").json()["role"] == "admin"


# Sends a change under root's name, and is gone before anybody looks.
_HIT_AND_RUN = """
import socket, sys
s = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
body = b'{"why": "hit"}'
s.sendall(b"POST /v1/reconfigurations HTTP/1.1\\r\\nHost: localhost\\r\\n"
          b"Content-Type: application/json\\r\\nX-Patchlight-User: root\\r\\n"
          b"X-Forwarded-For: direct\\r\\nContent-Length: %d\\r\\n\\r\\n%b" % (len(body), body))
s.shutdown(socket.SHUT_WR) if sys.argv[2] == "half" else s.close()
s.recv(1) if sys.argv[2] == "half" else None
"""


@pytest.mark.root
@pytest.mark.parametrize("how", ["half", "closed"])
@pytest.mark.others
def test_who_hangs_up_does_not_become_root(
    door: ControllerProcess, how: str
) -> None:
    before = len(door.client.audit(1000))
    changes = door.client.reconfigurations()
    nobody = pwd.getpwnam("nobody").pw_uid
    words = [
        sys.executable,
        "-c",
        _HIT_AND_RUN,
        door.api.rpartition(":")[2],
        how,
    ]
    subprocess.run(
        words, check=False, timeout=PATIENCE_S, user=nobody, cwd="/", env={}
    )
    wait_until(lambda: len(door.client.audit(1000)) > before)
    tried = door.client.audit()[-1]
    assert tried.by in ("nobody", "(unknown)")
    # Who is gone before the request was read has not asked for anything.
    assert tried.outcome in ("refused", "failed")
    assert door.client.reconfigurations() == changes


def test_text_that_is_none_is_refused_and_said_so(
    door: ControllerProcess,
) -> None:
    changes = len(door.client.reconfigurations())
    events = door.client.last_event()
    for text in (
        '"\\ud800"',
        '"a\\u001b[2J"',
        '"two\\nlines"',
        '"\\u0000"',
        f'"{"x" * 1001}"',
    ):
        for path, key in (
            ("reconfigurations", "why"),
            ("stop", "why"),
            ("baselines", "ocs"),
        ):
            value = f"[{text}]" if key == "ocs" else text
            content = f'{{"{key}": {value}}}'
            answer = door.send(
                "POST", f"/v1/{path}", content=content, headers=JSON
            )
            assert answer.status_code == 422, (path, text)
            assert "invalid request" in answer.json()["detail"]
    content = '{"maps": {"\\ud800": ["1-2"]}, "\\udfff": 1}'
    answer = door.send(
        "POST", "/v1/reconfigurations", content=content, headers=JSON
    )
    assert answer.status_code == 422
    assert (len(door.client.reconfigurations()), door.client.last_event()) == (
        changes,
        events,
    )


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 10**400, -1])
def test_numbers_that_no_row_can_have_are_refused(
    door: ControllerProcess, number: int
) -> None:
    ports = {"ocs": "o1", "ports": [number]}
    for method, path, body in (
        ("GET", f"/reconfigurations/{number}", None),
        ("POST", f"/reconfigurations/{number}/rollback", {}),
        ("GET", f"/reconfigurations?last={number}", None),
        ("GET", f"/reconfigurations?after={number}", None),
        ("GET", f"/events?after={number}", None),
        ("GET", f"/jobs?last={number}", None),
        ("GET", f"/jobs/j/iterations?after={number}", None),
        ("POST", "/locks", ports),
        ("POST", "/locks/release", ports),
        ("POST", "/reconfigurations", {"disconnect": {"o1": [number]}}),
    ):
        answer = door.send(method, f"/v1{path}", json=body)
        assert answer.status_code in (404, 422), (method, path)
        assert answer.json()["detail"]


def test_a_body_that_is_no_request_is_said_in_words(
    door: ControllerProcess,
) -> None:
    for content in (
        "[" * 100_000,
        "{",
        "[]",
        '"x"',
        '{"why": 1e999}',
        "",
        '{"a":' * 5000,
    ):
        answer = door.send(
            "POST", "/v1/reconfigurations", content=content, headers=JSON
        )
        assert answer.status_code in (400, 422), content[:10]
        assert answer.json()["detail"]
    answer = door.send("GET", "/v1/nowhere")
    assert (
        answer.status_code,
        "unknown request: GET" in answer.json()["detail"],
    ) == (404, True)


def test_a_long_body_is_refused_before_it_is_held(
    door: ControllerProcess,
) -> None:
    head = b"POST /v1/reconfigurations HTTP/1.1\r\nHost: localhost\r\n"
    with connected(
        door, head + b"Content-Length: 300000000\r\n\r\n{"
    ) as connection:
        assert b" 413 " in connection.recv(4096)

    def chunks() -> Iterator[bytes]:
        for _ in range(16):
            yield b"x" * (1 << 20)

    # The refusal comes while the rest is on its way, and may be overtaken by the hang-up.
    with contextlib.suppress(httpx.WriteError, httpx.ReadError):
        answer = door.send("POST", "/v1/reconfigurations", content=chunks())
        assert (answer.status_code, "4 MiB" in answer.json()["detail"]) == (
            413,
            True,
        )
    assert door.client.status().lab == "dry"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("regroup", lambda: {"jobs": [1] * 1_000_000}),
        ("regroup", lambda: {"jobs": ["x"] * 700_000}),
        ("jobs", lambda: {"jobs": [{}] * 900_000}),
        ("jobs", lambda: {"jobs": [{"name": "j", "hosts": [1] * 1_000_000}]}),
        ("reconfigurations", lambda: {f"a{n}": 1 for n in range(200_000)}),
        (
            "reconfigurations",
            lambda: {"maps": {f"o{n}": [] for n in range(200_000)}},
        ),
        ("reconfigurations", lambda: {"maps": {"o1": ["1-2"] * 500_000}}),
        ("locks", lambda: {"ocs": "o1", "ports": [0] * 1_000_000, "why": "x"}),
    ],
)
def test_a_million_mistakes_are_not_all_looked_at(
    door: ControllerProcess, path: str, body: Callable[[], Any]
) -> None:
    answer = door.send("POST", f"/v1/{path}", json=body())
    assert answer.status_code == 422
    assert len(answer.content) < 5000


def test_others_are_answered_while_hundreds_say_nothing(
    door: ControllerProcess,
) -> None:
    log_before = door.log.stat().st_size
    texts = (b"", b"GET /v1/status HTTP/1.1\r\nHost: localh")
    with contextlib.ExitStack() as stack:
        held = [
            stack.enter_context(connected(door, texts[n % 2]))
            for n in range(300)
        ]
        with ControllerClient(door.api) as client:
            for _ in range(3):
                assert client.status().lab == "dry"
        more = [stack.enter_context(connected(door)) for _ in range(100)]
        assert door.client.reconfigure({"o1": ["7-8"]}).state == "committed"
        assert all(map(comes_to_an_end, (held + more)[:-256]))
    assert door.log.stat().st_size - log_before < 20_000


def test_what_was_stored_before_is_read_for_ever(tmp_path: Path) -> None:
    with controller_process(tmp_path) as process:
        number = process.client.reconfigure({"o1": ["7-8"]}, why="good").id
        with (
            contextlib.closing(
                sqlite3.connect(process.state / "controller.db")
            ) as db,
            db,
        ):
            ((record,),) = db.execute(
                "SELECT record FROM reconfigurations WHERE id = ?", [number]
            )
            poisoned = json.dumps(
                {**json.loads(record), "why": "\ud800", "ratio": float("nan")}
            )
            db.execute(
                "UPDATE reconfigurations SET record = ? WHERE id = ?",
                [poisoned, number],
            )
            event = json.dumps({"why": "\udc00 there"})
            db.execute(
                "INSERT INTO events (at, kind, record) VALUES (1, 'circuits', ?)",
                [event],
            )
        assert process.client.reconfigurations()[-1].why == "?"
        assert process.client.events()[-1]["why"] == "? there"


def test_lists_come_in_pages_and_the_client_turns_them(
    door: ControllerProcess,
) -> None:
    for _ in range(205 - len(door.client.reconfigurations())):
        door.client.reconfigure({})
    everything = door.client.reconfigurations()
    numbers = [row.id for row in everything]
    assert numbers == sorted(set(numbers))
    assert [row.id for row in door.client.reconfigurations(203)] == numbers[
        -203:
    ]
    assert [row.id for row in door.client.reconfigurations(3)] == numbers[-3:]

    def page(query: str) -> list[int]:
        rows = door.send("GET", f"/v1/reconfigurations{query}").json()[
            "reconfigurations"
        ]
        return [row["id"] for row in rows]

    assert page("") == numbers[-100:]
    assert page("?last=2") == numbers[-2:]
    assert page(f"?after={numbers[4]}&last=3") == numbers[5:8]
    assert door.send("GET", "/v1/jobs?after=none").status_code == 422


@pytest.mark.parametrize(
    "name", ["a/b", "..", ".", "", "caf\udce9", "a\nb", "x" * 101]
)
def test_maps_are_saved_under_names_that_a_url_can_have(
    door: ControllerProcess, name: str
) -> None:
    for call in (
        door.client.save_map,
        door.client.forget_map,
        door.client.restore,
    ):
        with pytest.raises(BadInput, match="invalid name for saved maps"):
            call(name)
    assert door.client.save_map("monday, 8 o'clock? 50%").maps
    assert door.client.forget_map("monday, 8 o'clock? 50%")


def test_text_in_another_character_set_is_refused_by_the_client(
    door: ControllerProcess,
) -> None:
    with pytest.raises(BadInput, match="not valid UTF-8"):
        door.client.reconfigure({"o1": ["7-8"]}, why="caf\udce9")


@contextlib.contextmanager
def stranger(answer: bytes) -> Iterator[str]:
    """Another service, that gives this answer to everything."""
    program = (
        "import socket,sys\n"
        "s=socket.create_server(('127.0.0.1',0));print(s.getsockname()[1],flush=True)\n"
        "while True:\n c,_=s.accept();c.recv(65536);c.sendall(eval(sys.argv[1]));c.close()"
    )
    command = [sys.executable, "-c", program, repr(answer)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield f"127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


@pytest.mark.parametrize(
    "answer", [b"200 OK", b"307 Moved", b"404 Not Found", b"500 No"]
)
@pytest.mark.parametrize(
    "body", [b"{}", b"[1]", b"<html>", b'{"detail": "Not Found"}']
)
def test_another_service_at_the_address_is_called_one(
    answer: bytes, body: bytes
) -> None:
    head = (
        b"HTTP/1.1 %b\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
        % (answer, len(body))
    )
    with stranger(head + body) as address, ControllerClient(address) as client:
        with pytest.raises(
            ControllerError, match="is not a controller of this version"
        ) as caught:
            client.status()
        assert "--controller" in (caught.value.hint or "")


def test_a_proxy_of_the_environment_is_for_elsewhere(
    door: ControllerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with ControllerClient(door.api) as client:
        assert client.status().lab == "dry"
