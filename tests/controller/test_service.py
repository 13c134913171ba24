"""A controller as a process, asked over its REST API and by the command line; who asked."""

import contextlib
import json
import math
import os
import pwd
import re
import signal
import socket
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_text_to_families,
)
from prometheus_client.parser import text_string_to_metric_families

from patchlight.cli.main import cli
from patchlight.client.client import ControllerClient, ControllerError
from patchlight.controller.api.caller import user_id_of
from patchlight.controller.storage.store import Store
from patchlight.testbed.errors import BadInput
from patchlight.testbed.jobs import JobSpec
from patchlight.testbed.labfile.reader import read_lab
from tests.support.controller_process import (
    ControllerProcess,
    controller_process,
)
from tests.support.emulated_devices import lab_file, running
from tests.support.waiting import PATIENCE_S, wait_until


@pytest.fixture(scope="module")
def lasting(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ControllerProcess]:
    """A controller for all tests that leave its circuits and jobs as they are."""
    with controller_process(tmp_path_factory.mktemp("lasting")) as process:
        yield process


def command(controller: ControllerProcess, *words: str) -> Result:
    return CliRunner().invoke(cli, [*words, "--lab", str(controller.lab)])


def test_connect_and_disconnect_by_names_and_numbers(
    controller: ControllerProcess,
) -> None:
    done = command(controller, "ocs", "connect", "o1", "b.n1:t1.2")
    assert done.exit_code == 0, done.output
    assert "o1 - 2>5" in done.output
    assert "o1 + 2>4" in done.output
    assert controller.client.circuits()["o1"].map == [
        "1>3",
        "2>4",
        "3>1",
        "4>2",
    ]
    assert command(controller, "ocs", "disconnect", "o1", "2").exit_code == 0
    assert controller.client.circuits()["o1"].map == ["1>3", "3>1"]
    links = controller.client.links()
    assert (links[0].a, links[0].b) == ("a.n0", "t1.1")


def test_each_change_is_in_the_history_with_its_stages(
    controller: ControllerProcess,
) -> None:
    record = controller.client.reconfigure({"o1": ["7-8"]}, why="because")
    assert record.state == "committed"
    assert {
        "read",
        "plan",
        "drain",
        "make",
        "verify",
        "flows",
    } <= record.stages_s.keys()
    assert controller.client.reconfigurations()[-1].why == "because"
    assert "o1: unverified, no power monitor" in record.notes


@pytest.mark.xdist_group("a lasting controller")
def test_wrong_requests_change_nothing_and_say_what_was_expected(
    lasting: ControllerProcess,
) -> None:
    before = lasting.client.circuits()
    for maps in (
        {"o1": ["1-99"]},
        {"nope": ["1-2"]},
        {"o1": ["1-2", "1-3"]},
        {"o1": ["x"]},
    ):
        with pytest.raises(BadInput):
            lasting.client.reconfigure(maps)
    assert lasting.client.circuits() == before
    spec = JobSpec("j", 1, 400, {"M": 0.1}, workers=1)
    for wrong, why in (
        (
            JobSpec("j", 1, 400, {"M": 0.1}, hosts=("nobody",)),
            "no host called 'nobody'",
        ),
        (
            JobSpec("j", 1, 400, {"other": 0.1}, hosts=("a",)),
            "names 'other'.*GPUs.* are of M",
        ),
        (
            JobSpec("j", 1, 400, {"M": 0.1}, hosts=("a", "g0")),
            "requested twice",
        ),
        (
            JobSpec("j", 1, 400, {"M": 0.1}, workers=3),
            "the lab has 2 suitable GPUs",
        ),
        (
            JobSpec("j", 1, 10**13, {"M": 0.1}, workers=1),
            "scale of 1: the limit is 2000000000",
        ),
        (
            JobSpec("j", 1, 400, {"M": 0.1}),
            "(?s)expected 'workers'.*--partition POLICY",
        ),
        (
            JobSpec("j/../k", 1, 400, {"M": 0.1}, workers=1),
            r"job j/\.\./k: name: 'j/\.\./k': expected letters",
        ),
    ):
        with pytest.raises(BadInput, match=why):
            lasting.client.submit(
                [spec, wrong]
                if wrong.hosts and "nobody" in wrong.hosts
                else [wrong]
            )
    assert lasting.client.jobs() == []


def test_a_job_without_agents_fails_and_says_why(
    controller: ControllerProcess,
) -> None:
    job = controller.client.submit(
        [JobSpec("j", 1, 400, {"M": 0.1}, workers=2)], "regroup"
    )[0]
    wait_until(lambda: controller.client.job(job.id).state == "failed")
    assert "has no agent" in controller.client.job(job.id).message


@pytest.mark.xdist_group("a lasting controller")
def test_a_job_that_no_float_can_count_is_refused_and_the_controller_goes_on(
    lasting: ControllerProcess,
) -> None:
    usual: dict[str, Any] = {
        "name": "j",
        "iterations": 1,
        "gradient_bytes": 4,
        "workers": 1,
    }
    for wrong, field in (
        ({"iterations": 10**400}, "job j: iterations: "),
        (
            {"compute_s": {"M": math.nan}},
            "job j: compute_s.M: expected a finite number, found nan$",
        ),
        ({"compute_s": {"M": math.inf}}, "job j: compute_s.M: "),
        ({"seed": -1, "workers": -1}, "job j: workers: .*; job j: seed: "),
        ({"whatever": 1}, "job j: whatever: "),
    ):
        answer = lasting.send(
            "POST",
            "/v1/jobs",
            content=json.dumps(
                {"jobs": [{**usual, "compute_s": {"M": 0.1}, **wrong}]}
            ),
            headers={"Content-Type": "application/json"},
        )
        assert answer.status_code == 422
        assert re.search(field, answer.json()["detail"])
    for jobs in ("5", "[5]", "null"):
        answer = lasting.send(
            "POST",
            "/v1/jobs",
            content=f'{{"jobs": {jobs}}}',
            headers={"Content-Type": "application/json"},
        )
        assert (answer.status_code, "detail" in answer.json()) == (422, True)
    assert lasting.client.jobs() == []


def connect_as_switch(port: int, datapath_id: int) -> None:
    """Say hello in OpenFlow 1.3, tell a datapath id, and hang up when that was read."""
    with socket.create_connection(
        ("127.0.0.1", port), timeout=PATIENCE_S
    ) as switch:
        switch.sendall(struct.pack("!BBHI", 4, 0, 8, 1))
        features = struct.pack(
            "!BBHIQIBBxxII", 4, 6, 32, 2, datapath_id, 0, 254, 0, 0, 0
        )
        switch.sendall(features)
        switch.shutdown(socket.SHUT_WR)
        while switch.recv(4096):
            pass


@pytest.mark.xdist_group("a lasting controller")
def test_a_stranger_that_connects_again_and_again_fills_no_journal(
    lasting: ControllerProcess,
) -> None:
    openflow = int(
        read_lab(lasting.lab).controller_openflow.rpartition(":")[2]
    )
    for number in range(40):
        connect_as_switch(openflow, 0x90 + number % 3)
    wait_until(
        lambda: lasting.client.status().unknown_switch_connections == 40
    )
    events = [
        e
        for e in lasting.client.events()
        if e["kind"] == "openflow-unknown-switch"
    ]
    assert len(events) == 1


# As a job of a version that took anything stands in the ledger.
_POISON = {
    "id": "j-1",
    "spec": {
        "name": "j",
        "iterations": 10**400,
        "gradient_bytes": 4,
        "compute_s": {"M": 0.1},
        "workers": 1,
        "hosts": [],
        "seed": 0,
    },
    "state": "queued",
    "hosts": [],
    "last_lines": [],
}


def test_records_that_nobody_can_read_are_set_aside_and_the_controller_starts(
    tmp_path: Path,
) -> None:
    controller = ControllerProcess(tmp_path)
    controller.state.mkdir()
    Store(controller.state / "controller.db").close()
    unfinished = {"why": "w", "started_at": 1.0, "changes": {"o1": 5}}
    with sqlite3.connect(controller.state / "controller.db") as db:
        for sql, record in (
            (
                "INSERT INTO jobs (id, state, record) VALUES ('j-1', 'queued', ?)",
                _POISON,
            ),
            (
                "INSERT INTO reconfigurations (id, state, record) VALUES (1, 'intent', ?)",
                unfinished,
            ),
            ("INSERT INTO committed VALUES ('o1', ?)", {"map": 7}),
            (
                "INSERT INTO locks VALUES ('o1', 2, '', ?)",
                {"ocs": "o1", "port": "x"},
            ),
        ):
            db.execute(sql, (json.dumps(record),))
    db.close()
    controller.start()
    try:
        events = [
            e
            for e in controller.client.events()
            if e["kind"] == "record-set-aside"
        ]
        origins = {event["origin"].split()[0] for event in events}
        assert origins == {"jobs", "reconfigurations", "committed", "locks"}
        job = controller.client.submit(
            [JobSpec("j", 1, 400, {"M": 0.1}, workers=2)]
        )[0]
        wait_until(lambda: controller.client.job(job.id).state == "failed")
        controller.stop()
        controller.start()
        assert (
            len(
                [
                    e
                    for e in controller.client.events()
                    if e["kind"] == "record-set-aside"
                ]
            )
            == 4
        )
        lost, found = controller.client.jobs()
        assert (lost.state, found.id) == ("failed", job.id)
        assert "its record could not be read" in lost.message
    finally:
        controller.stop()


def test_one_bad_record_hides_no_others_and_is_told_once(
    controller: ControllerProcess,
) -> None:
    change = controller.client.reconfigure({"o1": ["7-8"]}, why="kept")
    job = controller.client.submit(
        [JobSpec("j", 1, 400, {"M": 0.1}, workers=2)]
    )[0].id
    bad = {
        "INSERT INTO reconfigurations (state, record, started_at) VALUES ('committed', ?, 2.0)",
        "INSERT INTO events (at, kind, record) VALUES (1.0, 'x', ?)",
        f"INSERT INTO events (at, kind, record, job) VALUES (1.0, 'job-x', ?, '{job}')",
        "INSERT OR REPLACE INTO saved VALUES ('x', ?)",
        "INSERT INTO marks VALUES ('stop', ?)",
        "INSERT INTO marks VALUES ('drained', ?)",
        "INSERT INTO tokens VALUES ('x', 'y', ?)",
        "INSERT INTO audit (at, who, outcome, record) VALUES (1.0, 'x', 'done', ?)",
        f"INSERT INTO iterations (job, record) VALUES ('{job}', ?)",
        f"INSERT INTO decisions (job, at, record) VALUES ('{job}', 1.0, ?)",
        "INSERT INTO jobs (id, state, record) VALUES (hex(randomblob(4)), 'done', ?)",
    }
    paths = (
        "reconfigurations",
        "reconfigurations?since=0",
        "events",
        "events?last=9",
        "maps",
        "stop",
        "status",
        "audit",
        "tokens",
        "jobs",
        *(
            f"jobs/{job}{part}"
            for part in ("", "/iterations", "/history", "/decisions")
        ),
        "jobs?since=0",
        "circuits",
        "drift",
        "circuits/o1/light",
        "../metrics",
    )
    for number, text in enumerate(('{"why": "cut', '"text"', "")):
        with contextlib.closing(
            sqlite3.connect(controller.state / "controller.db")
        ) as db:
            db.execute("PRAGMA busy_timeout = 60000")
            with db:
                for sql in bad:
                    db.execute(sql, (text,))
        told = []
        for _ in range(2):
            for path in paths:
                answer = controller.send("GET", f"/v1/{path}")
                assert answer.status_code == 200, (path, answer.text)
            told.append(
                answer.text.partition('kind="set_aside"} ')[2].partition("\n")[
                    0
                ]
            )
        assert told[0] == told[1] == f"{(number + 1) * 11.0}"
        first, *lost = controller.client.reconfigurations()
        assert first.id == change.id
        assert [each.message for each in lost] == [
            "its record could not be read"
        ] * (number + 1)
        # What cannot be read of a stop button counts as pressed, and of a drain as one.
        pressed = controller.client.stop_button()
        assert pressed is not None
        assert "could not be read" in pressed.why
        assert controller.client.status().drained
        controller.client.clear_stop()
        controller.client.resume()
        logged = controller.log.read_text().count("record was set aside")
        # Of one kind the log takes ten a minute.
        assert 0 < logged <= (number + 1) * 11
    assert controller.client.reconfigure({"o1": ["9-10"]}).state == "committed"


def test_jobs_and_history_outlive_a_killed_controller(
    controller: ControllerProcess,
) -> None:
    controller.client.reconfigure({"o1": ["7-8"]})
    controller.stop(signal.SIGKILL)
    controller.start()
    assert controller.client.reconfigurations()[-1].state == "committed"


def test_sigterm_ends_it_in_good_order(controller: ControllerProcess) -> None:
    assert controller.stop() == 0
    with pytest.raises(ControllerError, match="no answer from a controller"):
        controller.client.status()


@pytest.mark.xdist_group("a lasting controller")
def test_a_taken_port_names_who_has_it(lasting: ControllerProcess) -> None:
    second = subprocess.run(
        lasting.command(lasting.state.with_name("other")),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert second.returncode == 1
    assert f"(pid {lasting.process.pid})" in second.stderr


@pytest.mark.xdist_group("a lasting controller")
def test_status_and_lists_print_and_are_json(
    lasting: ControllerProcess,
) -> None:
    assert "t1" in command(lasting, "status", "--wide").output
    answer = json.loads(command(lasting, "status", "--json").output)
    assert answer["lab"] == "dry"
    assert "calient" not in command(lasting, "ocs", "show").output
    assert json.loads(command(lasting, "ocs", "show", "--json").output)["o1"][
        "map"
    ]
    assert json.loads(command(lasting, "job", "list", "--json").output) == []


def test_metrics_are_what_prometheus_reads(
    controller: ControllerProcess,
) -> None:
    controller.client.reconfigure({"o1": ["7-8"]})
    for accept, read in (
        ("text/plain", text_string_to_metric_families),
        (
            "application/openmetrics-text; version=1.0.0",
            openmetrics_text_to_families,
        ),
    ):
        answer = controller.send("GET", "/metrics", headers={"accept": accept})
        assert answer.headers["content-type"].startswith(
            accept.partition(";")[0]
        )
        samples = [s for family in read(answer.text) for s in family.samples]
        values = {
            (s.name, tuple(sorted(s.labels.items()))): s.value for s in samples
        }
        assert (
            values["patchlight_reconfigurations", (("state", "committed"),)]
            == 1
        )
        assert values["patchlight_ocs_up", (("ocs", "o1"),)] == 1
        assert (
            values[
                "patchlight_reconfiguration_stage_seconds_count",
                (("stage", "make"),),
            ]
            == 1
        )
        assert values["patchlight_speaker_up", ()] == 1
        assert (
            values["patchlight_speaker_process_resident_memory_bytes", ()] > 0
        )
    exemplars = [
        sample.exemplar.labels for sample in samples if sample.exemplar
    ]
    assert {"reconfiguration": "1"} in exemplars


@pytest.mark.xdist_group("a lasting controller")
def test_a_port_of_their_own_has_metrics_and_nothing_else(
    lasting: ControllerProcess,
) -> None:
    url = f"http://{lasting.metrics}"
    with httpx.Client(base_url=url, timeout=PATIENCE_S) as client:
        assert "patchlight_speaker_up" in client.get("/metrics").text
        for path in ("/v1/status", "/openapi.json", "/docs", "/"):
            assert client.get(path).status_code == 404
        assert client.post("/v1/shutdown").status_code == 404
        assert (
            client.get(
                "/metrics", headers={"host": "evil.example"}
            ).status_code
            == 421
        )


def test_a_job_waits_for_a_circuit_switch_that_is_gone(tmp_path: Path) -> None:
    (tmp_path / "device").mkdir()
    device_lab = lab_file(tmp_path / "device", ports=16)
    controller = ControllerProcess(tmp_path)
    with running(tmp_path / "device", device_lab, "--no-fabric") as device:
        text = controller.lab.read_text().replace(
            "driver: dry-run", "driver: calient-tl1"
        )
        controller.lab.write_text(
            text.replace('"127.0.0.1:1"', f'"{device.switch.address}"')
        )
        controller.start()
        try:
            device.kill()
            job = controller.client.submit(
                [JobSpec("j", 1, 400, {"M": 0.1}, workers=2)]
            )[0]
            wait_until(
                lambda: (
                    "cannot be reached"
                    in controller.client.job(job.id).message
                )
            )
            assert controller.client.job(job.id).state == "queued"
            assert controller.client.status().lab == "dry"
        finally:
            controller.stop()


# Asks for a change under a name of its own choosing.
_ASK = """
import sys
from patchlight.client.client import ControllerClient
with ControllerClient(sys.argv[1], user="eva") as client:
    client.reconfigure({"o1": ["7-8"]})
"""


def ask(
    controller: ControllerProcess, user: int | None = None
) -> tuple[str, str]:
    subprocess.run(
        [sys.executable, "-c", _ASK, controller.api],
        check=user is None,  # others may look only
        timeout=PATIENCE_S,
        user=user,
        cwd="/",
        env={"PYTHONPATH": os.getcwd(), "HOME": "/"},
    )
    last = controller.client.audit()[-1]
    return last.by, last.origin


def test_this_users_connection_shows_its_user_id() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()) as client:
            assert (
                user_id_of(client.getsockname(), server.getsockname())
                == os.getuid()
            )
        assert user_id_of(("127.0.0.1", 1), server.getsockname()) is None
        assert user_id_of(("192.0.2.1", 4000), server.getsockname()) is None


@pytest.mark.root
@pytest.mark.others
def test_a_user_goes_by_the_login_and_the_superuser_may_speak_for_others(
    controller: ControllerProcess,
) -> None:
    by, origin = ask(controller)
    assert by == "eva"
    assert origin.endswith("(uid 0)")
    nobody = pwd.getpwnam("nobody")
    by, origin = ask(controller, user=nobody.pw_uid)
    assert by == "nobody"
    assert origin.endswith(f"(uid {nobody.pw_uid})")
    assert str(controller.client.reconfigurations()).count("eva") == 1


def test_without_a_name_it_is_the_login(controller: ControllerProcess) -> None:
    with ControllerClient(controller.api) as client:
        client.reconfigure({"o1": ["7-8"]})
    assert (
        controller.client.reconfigurations()[-1].by
        == pwd.getpwuid(os.getuid()).pw_name
    )
