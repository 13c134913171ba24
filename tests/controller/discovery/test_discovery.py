"""The maintenance window of a search: who is kept out of it, and that all is as before after it."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from patchlight.cli.main import cli
from patchlight.client.client import ControllerError
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.jobs import JobSpec
from tests.support.controller_process import (
    ControllerProcess,
    controller_process,
)
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.xdist_group("a controller that searches")

MAP = ["1>3", "2>5", "3>1", "5>2"]


@pytest.fixture(scope="module")
def controller(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ControllerProcess]:
    """A controller whose lab has neither agents nor switches that answer: rounds are silent.

    Each test leaves it as it was.
    """
    with controller_process(tmp_path_factory.mktemp("lab")) as running:
        yield running


def _discover(controller: ControllerProcess, *options: str) -> tuple[int, str]:
    command = ["lab", "discover", str(controller.lab), *options]
    result = CliRunner().invoke(cli, command)
    error = result.exception
    code = (
        error.exit_code
        if isinstance(error, PatchlightError)
        else result.exit_code
    )
    return code, f"{result.output}{error or ''}"


def _is_as_before(controller: ControllerProcess) -> bool:
    client = controller.client
    assert client.circuits()["o1"].map == MAP
    assert client.locks() == []
    assert not client.status().drained
    return not client.discovery().open


def test_what_cannot_be_looked_at_is_refused_and_nothing_is_changed(
    controller: ControllerProcess,
) -> None:
    code, said = _discover(controller, "--yes", "--for", "100ms")
    assert code == 1
    assert (
        "no probes were sent or received: the lab file has no agent for a"
        in said
    )
    assert "t1 is not connected" in said
    code, said = _discover(
        controller, "--dry-run", "--ports", "a.n0,o1.3-4", "--for", "1s"
    )
    assert code == 0
    assert "3 of o1; 2 cross-connects are removed for about 6 s" in said
    for ports, expected, wanted in (
        ("o1.17", 2, "o1 has ports 1–16, not 17"),
        ("o1.4-3", 2, "is not a range of ports"),
        ("o1.9", 2, "o1.9 alone cannot be tested"),
        (
            "o1.1,o1.4",
            1,
            "circuit 1>3 of o1 leads to a port that was not selected",
        ),
    ):
        code, said = _discover(controller, "--yes", "--ports", ports)
        assert (code, wanted in said) == (expected, True), said
    controller.client.lock("o1", [4, 5], why="a fibre is cleaned")
    code, said = _discover(controller, "--yes", "--ports", "o1.4,o1.9")
    assert (code, "o1.4 is locked or out of order" in said) == (1, True)
    # Of all ports, those stay out that are locked, and those that a circuit joins to one.
    assert controller.client.preview_discovery().ports == {
        "o1": [n for n in range(1, 17) if n not in (2, 4, 5)]
    }
    controller.client.unlock("o1", [4, 5])
    controller.client.press_stop()
    code, said = _discover(controller, "--yes")
    assert (code, "the stop button was pressed" in said) == (1, True)
    controller.client.clear_stop()
    assert _discover(controller, "--restore") == (
        0,
        "all circuits are restored\n",
    )
    assert _is_as_before(controller)


def test_nobody_else_gets_at_the_ports_meanwhile_and_a_search_can_be_broken_off(
    controller: ControllerProcess,
) -> None:
    client = controller.client
    client.discover(listen_s=100)
    wait_until(lambda: not client.circuits()["o1"].map, "the ports to go dark")
    record = client.reconfigure({"o1": ["7-8"]})
    assert record.state == "refused"
    assert "wiring discovery of root" in record.message
    with pytest.raises(
        ControllerError, match="already discovering the wiring"
    ):
        client.discover()
    assert client.preview_discovery().objections
    (job,) = client.submit([JobSpec("waits", 1, 400, {"M": 0.1}, workers=1)])
    status = client.stop_discovery()
    assert (status.state, status.open, status.wiring) == (
        "stopped",
        False,
        None,
    )
    assert _is_as_before(controller)
    # The queue goes on: no agent is there, so the job ends as soon as it is begun.
    wait_until(lambda: client.job(job.id).finished_at, "the job to be begun")


def test_a_search_is_followed_by_its_news(
    controller: ControllerProcess,
) -> None:
    asked = f"http://{controller.api}/v1/discovery"
    begun = httpx.post(
        asked, json={"listen_s": 0.1}, trust_env=False, timeout=PATIENCE_S
    )
    assert (begun.status_code, begun.headers["location"]) == (
        202,
        "/v1/discovery",
    )
    told = [begun.json()]
    while told[-1]["state"] in ("looking", "restoring"):
        after = controller.client.discovery(told[-1]["step"], wait_s=30)
        told.append(after.as_json)
    steps = [status["step"] for status in told]
    assert steps == sorted(set(steps)), "each answer has something new"
    assert [told[0]["state"], told[-1]["state"], told[-1]["open"]] == [
        "looking",
        "failed",
        False,
    ]
    # Nothing is waited for where nobody looks any more.
    began = time.monotonic()
    assert (
        controller.client.discovery(told[-1]["step"] + 9, wait_s=30).state
        == "failed"
    )
    assert time.monotonic() - began < 25


def test_ctrl_c_breaks_it_off_and_returns_once_the_circuits_are_back(
    controller: ControllerProcess,
) -> None:
    command = [
        sys.executable,
        "-m",
        "patchlight",
        "lab",
        "discover",
        str(controller.lab),
        "--yes",
    ]
    with subprocess.Popen(
        [*command, "--for", "100s"], stderr=subprocess.PIPE
    ) as looking:
        wait_until(
            lambda: not controller.client.circuits()["o1"].map,
            "the ports to go dark",
        )
        looking.send_signal(signal.SIGINT)
        assert looking.stderr is not None
        said = looking.stderr.read().decode()
    assert (looking.returncode, "all circuits are restored" in said) == (
        130,
        True,
    ), said
    assert _is_as_before(controller)


def test_what_the_stop_button_keeps_from_being_put_back_is_put_back_later(
    controller: ControllerProcess,
) -> None:
    controller.client.discover(listen_s=100)
    wait_until(
        lambda: not controller.client.circuits()["o1"].map,
        "the ports to go dark",
    )
    controller.client.press_stop("smoke")
    with pytest.raises(
        ControllerError, match=r"circuits were not restored.*stop button"
    ):
        controller.client.stop_discovery()
    # Nobody gets at them meanwhile.
    assert {lock.port for lock in controller.client.locks()} == set(
        range(1, 17)
    )
    assert controller.client.status().drained
    controller.client.clear_stop()
    assert _discover(controller, "--restore") == (
        0,
        "all circuits are restored\n",
    )
    assert _is_as_before(controller)


def test_a_queue_that_was_held_before_stays_so(
    controller: ControllerProcess,
) -> None:
    client = controller.client
    client.drain("upgrade")
    client.discover({"o1": [9, 10]}, listen_s=100)
    assert client.stop_discovery().state == "stopped"
    assert client.status().drained
    client.resume()
    assert _is_as_before(controller)


def test_a_controller_that_is_told_to_end_puts_the_circuits_back_first(
    controller: ControllerProcess,
) -> None:
    controller.client.discover(listen_s=100)
    wait_until(
        lambda: not controller.client.circuits()["o1"].map,
        "the ports to go dark",
    )
    assert controller.stop(signal.SIGTERM) == 0
    controller.start()
    assert _is_as_before(controller)
    whys = [record.why for record in controller.client.reconfigurations()]
    assert whys[-1] == "circuits from before the wiring discovery"


def test_requests_that_make_no_sense_are_refused(
    controller: ControllerProcess,
) -> None:
    with pytest.raises(BadInput, match="listen_s"):
        controller.client.discover(listen_s=0.0)
    with pytest.raises(BadInput, match="no OCS called"):
        controller.client.discover({"o9": [1]})


def test_fibres_behind_what_sorts_light_are_not_looked_for(
    tmp_path: Path,
) -> None:
    running = ControllerProcess(tmp_path)
    part = "passive_parts: [{name: mux1, kind: multiplexer, channels: 193.100-193.250}]\n"
    running.lab.write_text(running.lab.read_text() + part)
    running.start()
    try:
        with pytest.raises(
            ControllerError,
            match="the lab has mux1, a passive part",
        ):
            running.client.discover()
        assert _is_as_before(running)
    finally:
        running.stop()
