"""The emulated device with OCP's model, as pygnmi sees it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from patchlight.emulation.optical.vendors.gnmi import CERTIFICATE
from tests.support.emulated_devices import ROOT, lab_file, running
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.xdist_group("pygnmi")


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What pygnmi got, by step: see ``tests.support.foreign_gnmi``."""
    folder = tmp_path_factory.mktemp("gnmi")
    lab = lab_file(
        folder,
        driver="ocp-gnmi",
        initial=("1>7",),
        extra=", password_env: OCS1_PASSWORD",
    )
    certificate = folder / "certificate.pem"
    certificate.write_text(CERTIFICATE)
    with running(folder, lab, "--no-fabric", OCS1_PASSWORD="pw") as device:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "tests.support.foreign_gnmi",
                device.switch.address,
                str(certificate),
                "pw",
            ],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S * 4,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_it_says_which_models_it_has(told: dict[str, Any]) -> None:
    assert {
        "ocp-ocs-optical-switch",
        "ocp-ocs-optical-switch-connections",
        "ocp-ocs-optical-switch-port",
    } <= {*told["models"]}
    assert "invalid user or password" in told["login"]


def test_what_is_there_is_told(told: dict[str, Any]) -> None:
    (connections,) = told["first"].values()
    (entry,) = connections[
        "ocp-ocs-optical-switch-connections:port-connection"
    ]
    assert entry["config"] == {
        "name": "patchlight-1-7",
        "input-port-name": "port-1",
        "output-port-name": "port-39",
    }
    assert entry["state"]["status"] == "CONNECTED"
    assert len(told["prefixed"]) == 1
    assert "is not there" in told["no path"]


def test_a_set_connects_and_both_ports_tell_the_other(
    told: dict[str, Any],
) -> None:
    assert len(told["set"]["response"]) == 2
    assert told["status"] == ["CONNECTED", "CONNECTED"]
    (connection,) = told["peer"].values()
    assert connection["ocp-ocs-optical-switch-port:peer"] == "port-41"
    assert connection["ocp-ocs-optical-switch-port:connected"] is True
    assert told["moved"] == "CONNECTED"


def test_a_set_is_done_or_refused_as_a_whole(told: dict[str, Any]) -> None:
    assert "x3: port 3 is in use by x1" in told["twice"]
    assert told["nothing of it"] is False
    for words, reason in zip(
        told["wrong"],
        (
            "'port-99' is no output",
            "'port-41' is no input",
            "its name is not its key",
            "None is no input",
            "cannot be written",
            "Expecting value",
            "Expecting value",
            "enabled cannot be 'yes'",
            "no port port-77",
            "MAINTAIN, RESTORE, REMOVE",
            "not bidirectional",
        ),
        strict=True,
    ):
        assert reason in words
    assert {*told["last"].values()} == {"x2", "x9"}


def test_an_entry_on_a_disabled_port_is_invalid(told: dict[str, Any]) -> None:
    (state,) = told["on a disabled port"].values()
    prefix = "ocp-ocs-optical-switch-connections"
    assert state[f"{prefix}:status"] == "INVALID"
    assert state[f"{prefix}:status-reason"] == "port 8 is disabled"


def test_a_stream_tells_changes_and_samples(told: dict[str, Any]) -> None:
    text = json.dumps(told["heard"])
    assert "sync_response" in text
    for words in ("CONNECTED", "PENDING_CONNECTION", "name=x1", "INVALID"):
        assert words in text
    assert text.count("total-error-count") > 2
    assert '"delete"' in text


def test_the_certificate_is_that_of_a_device(tmp_path: Path) -> None:
    assert CERTIFICATE.startswith("-----BEGIN CERTIFICATE-----")
