"""The API keeps to its own description, gives answers again, and serves no asset of others."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from patchlight.client.client import ControllerClient
from tests.support.controller_process import (
    ControllerProcess,
    controller_process,
)

CONFIG = Path(__file__).parent.parent / "support/schemathesis.toml"
JOB: dict[str, Any] = {
    "name": "j",
    "iterations": 1,
    "gradient_bytes": 4,
    "compute_s": {"M": 0.1},
    "workers": 1,
}


@pytest.fixture(scope="module")
def described(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ControllerProcess]:
    with controller_process(tmp_path_factory.mktemp("described")) as process:
        yield process


def test_answers_are_as_described(
    controller: ControllerProcess, tmp_path: Path
) -> None:
    schemathesis = [
        sys.executable,
        "-m",
        "schemathesis.cli",
        "--config-file",
        str(CONFIG),
    ]
    what = [
        "run",
        f"http://{controller.api}/openapi.json",
        "--exclude-path",
        "/v1/shutdown",
    ]
    how = [
        "--max-examples",
        "2",
        "--phases",
        "fuzzing,stateful",
        "--no-color",
        "--seed",
        "1",
    ]
    done = subprocess.run(
        [*schemathesis, *what, *how, "--suppress-health-check=all"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,  # where it keeps what it found
    )
    assert done.returncode == 0, done.stdout[-5000:]
    assert " passed" in done.stdout
    assert controller.process.poll() is None


def test_a_request_with_a_key_has_its_effect_once(
    described: ControllerProcess,
) -> None:
    key = {"Idempotency-Key": "6f2"}
    jobs = {"jobs": [JOB]}
    first = described.send("POST", "/v1/jobs", json=jobs, headers=key)
    count = len(described.client.jobs())
    again = described.send("POST", "/v1/jobs", json=jobs, headers=key)
    assert (
        (again.status_code, again.json())
        == (first.status_code, first.json())
        == (201, _)
    )
    assert again.headers["idempotency-replayed"] == "true"
    other = described.send("POST", "/v1/jobs", json={"jobs": []}, headers=key)
    assert (
        other.status_code,
        "another request" in other.json()["detail"],
    ) == (422, True)
    assert len(described.client.jobs()) == count
    # What was refused was not done, and may be asked again.
    wrong = {"maps": {"nope": ["1-2"]}}
    key = {"Idempotency-Key": "6f3"}
    assert described.send(
        "POST", "/v1/reconfigurations", json=wrong, headers=key
    ).is_error
    assert described.send(
        "POST", "/v1/reconfigurations", json={}, headers=key
    ).is_success


class _Anything:
    def __eq__(self, other: object) -> bool:
        return True


_: Any = _Anything()


def test_a_plan_is_a_condition_by_its_tag(
    described: ControllerProcess,
) -> None:
    wanted = {"maps": {"o1": ["13-14"]}}
    planned = described.send(
        "POST", "/v1/reconfigurations", json={**wanted, "dry_run": True}
    )
    tag = planned.headers["etag"]
    assert tag == f'"{planned.json()["planned_from"]}"'
    assert described.send("GET", "/v1/circuits").headers["etag"] == tag
    with ControllerClient(described.api) as client:
        client.reconfigure({"o1": ["15-16"]})
    late = described.send(
        "POST", "/v1/reconfigurations", json=wanted, headers={"If-Match": tag}
    )
    assert late.json().get("state", "refused") == "refused", late.text
    now = {"If-Match": described.send("GET", "/v1/circuits").headers["etag"]}
    done = described.send(
        "POST", "/v1/reconfigurations", json=wanted, headers=now
    )
    assert done.json()["state"] == "committed"


def test_what_is_not_done_is_said_with_problem_details(
    described: ControllerProcess,
) -> None:
    answer = described.send("GET", "/v1/stop/clear")
    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    problem = answer.json()
    assert problem.keys() == {
        "type",
        "title",
        "status",
        "detail",
        "hint",
        "outcome",
    }
    assert (problem["title"], problem["outcome"]) == (
        "Method Not Allowed",
        "nothing-done",
    )
    assert (
        described.send("GET", "/v1/maps/x").headers["allow"] == "DELETE, PUT"
    )


def test_the_page_on_the_api_brings_all_that_it_needs(
    described: ControllerProcess,
) -> None:
    page = described.send("GET", "/docs")
    assert page.status_code == 200
    for name in ("swagger-ui-bundle.js", "swagger-ui.css"):
        assert f"/docs/{name}" in page.text
        assert len(described.send("GET", f"/docs/{name}").content) > 10_000
    assert "://" not in page.text
    assert "default-src 'self'" in page.headers["content-security-policy"]
    assert (
        described.send("GET", "/docs/../../openapi.json/x").status_code == 404
    )
