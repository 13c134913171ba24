"""The examples in the API's description, and on its page, are what a controller answers.

With ``PATCHLIGHT_WRITE_EXAMPLES=1`` the first test writes the answers of now into
``controller/api/examples.json``, whose requests are written by hand.
"""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from patchlight.controller.api.openapi import (
    PROBLEMS,
    Example,
    examples,
    explained,
)
from patchlight.controller.hosts.fleet import Fleet
from patchlight.testbed.errors import PROBLEM_MEDIA_TYPE, PatchlightError
from patchlight.testbed.labfile.reader import read_lab
from tests.support.coloured_labs import STAR
from tests.support.controller_process import (
    ControllerProcess,
    controller_process,
)
from tests.support.waiting import PATIENCE_S, free_ports

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "controller/api/examples.json"
PAGE = (ROOT / "docs/rest-api.md").read_text(encoding="utf-8")
# One controller for all of them: what it is told first is in the examples.
pytestmark = pytest.mark.xdist_group("examples of the API")
LAB_FILE = "/etc/patchlight/dry.yaml"

# A request comes at any time, and may take any; who asks, from where, with what, differs.
TIMES = re.compile(r"at|until|since|.*_at|queue_pass_s|stages_s")
OF_THIS_RUN = {
    "id",
    "gang",
    "user",
    "origin",
    "token",
    "file",
    "fingerprint",
    "version",
    "engine",
}


class Described(ControllerProcess):
    """A controller of the dry lab."""

    def tidied(self, text: str) -> str:
        """An answer with usual addresses for those of this run."""
        text = text.replace(self.api, "127.0.0.1:8470").replace(
            str(self.lab), LAB_FILE
        )
        return re.sub(
            r"openflow: '127.0.0.1:\d+", "openflow: '127.0.0.1:6653", text
        )


class Star(Described):
    """A controller of four servers on a star coupler, where paths are to be had."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (openflow,) = free_ports(1)
        self.lab.write_text(
            f'{STAR}controller: {{openflow: "127.0.0.1:{openflow}"}}\n'
        )


def _running(folder: Path, make: type[Described]) -> Iterator[Described]:
    with controller_process(folder, make) as process:
        assert isinstance(process, Described)
        yield process


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Described]:
    yield from _running(tmp_path_factory.mktemp("examples"), Described)


@pytest.fixture(scope="module")
def star(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Described]:
    yield from _running(tmp_path_factory.mktemp("star"), Star)


class Comparison:
    """Whether answers are as their examples: in shape, and in value, where that can be.

    ``now``: what an id of the examples is in this run.
    """

    def __init__(self) -> None:
        self.now: dict[str, str] = {}

    def in_this_run(self, text: str) -> str:
        for old, new in self.now.items():
            text = text.replace(old, new)
        return text

    def __call__(
        self, shown: Any, said: Any, where: str, key: str = ""
    ) -> None:
        kinds = {type(shown), type(said)}
        assert len(kinds) == 1 or kinds == {int, float}, where
        if isinstance(shown, dict):
            assert shown.keys() == said.keys(), where
            for name in shown:
                within = key if key == "stages_s" else name
                self(shown[name], said[name], f"{where}.{name}", within)
        elif isinstance(shown, list):
            assert len(shown) == len(said), where
            if key == "notes":  # of switches, in any order
                shown = sorted(shown)
                said = sorted(said)
            for n, (one, other) in enumerate(zip(shown, said, strict=True)):
                self(one, other, f"{where}[{n}]")
        elif isinstance(shown, str) and key in OF_THIS_RUN:
            self.now.setdefault(shown, said)
        elif isinstance(shown, str):
            assert self.in_this_run(shown) == said, where
        elif not isinstance(shown, float) or not TIMES.fullmatch(key):
            assert shown == said, where


def parameters(process: Described, example: Example) -> dict[str, Any]:
    """Those of an example, with the ids of this run."""
    given = dict(example.get("parameters", {}))
    if "job_id" in given:
        given["job_id"] = process.client.jobs()[-1].id
    if "token_id" in given:
        given["token_id"] = process.client.tokens()[0].id
    return given


def ask(process: Described, example: Example, given: dict[str, Any]) -> Any:
    """What is answered to the request of an example."""
    url = f"http://{process.api}{example['path'].format(**given)}"
    body = example.get("body")
    query = example.get("query")
    options: dict[str, Any] = {
        "trust_env": False,
        "verify": False,
        "timeout": PATIENCE_S,
    }
    with httpx.Client(headers=example.get("headers"), **options) as client:
        answer = client.request(
            example["method"], url, json=body, params=query
        )
    assert answer.is_success, (url, answer.text)
    assert answer.status_code == example.get("status", answer.status_code)
    text = process.tidied(answer.text)
    return (
        json.loads(text) if "json" in answer.headers["content-type"] else text
    )


def test_every_example_is_what_a_controller_answers(
    described: Described, star: Described
) -> None:
    compared = Comparison()
    writes = "PATCHLIGHT_WRITE_EXAMPLES" in os.environ
    for example in examples():
        if example["path"] == "/v1/shutdown":
            continue
        process = (
            star if example["path"].startswith("/v1/paths") else described
        )
        given = parameters(process, example)
        answer = ask(process, example, given)
        if writes:
            example["answer"] = answer
            if given:
                example["parameters"] = given
        compared(
            example["answer"], answer, f"{example['method']} {example['path']}"
        )
    if writes:
        lines = ",\n".join(
            json.dumps(example, ensure_ascii=False) for example in examples()
        )
        EXAMPLES.write_text(f"[\n{lines}\n]\n")


def test_every_route_is_described_with_an_example(
    described: Described,
) -> None:
    api = described.send("GET", "/openapi.json").json()
    for path, operations in api["paths"].items():
        for method, operation in operations.items():
            where = f"{method.upper()} {path}"
            well = [
                r
                for code, r in operation["responses"].items()
                if code[0] == "2"
            ]
            contents = [
                c for answer in well for c in answer["content"].values()
            ]
            assert any("examples" in content for content in contents), where
            for content in operation.get("requestBody", {"content": {}})[
                "content"
            ].values():
                assert content["examples"], where


def test_the_page_shows_what_is_answered(described: Described) -> None:
    routes = {(example["method"], example["path"]) for example in examples()}
    named = re.findall(r"\b(GET|POST|PUT|DELETE) (/v1/[\w/{}-]+)", PAGE)
    assert named
    assert set(named) <= routes
    (shown,) = (
        json.loads(text)
        for text in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    )
    token = described.client.create_token("eva", "user")
    answer = described.send(
        "POST",
        "/v1/stop",
        json={},
        headers={"Authorization": f"Bearer {token.token}"},
    )
    assert (
        answer.json()
        == shown
        == PROBLEMS["4XX"]["content"][PROBLEM_MEDIA_TYPE]["example"]
    )
    described.client.revoke_token(token.id)
    no_agent = Fleet(read_lab(described.lab)).agent_of
    with pytest.raises(PatchlightError) as caught:
        no_agent("a")
    shown = PROBLEMS["5XX"]["content"][PROBLEM_MEDIA_TYPE]["example"]
    assert json.loads(bytes(explained(caught.value).body)) == shown


def test_the_page_shows_an_event_as_it_is_told(described: Described) -> None:
    (shown,) = re.findall(r"```text\n(id: .*?)```", PAGE, re.DOTALL)
    after = described.client.last_event()
    made = described.client.reconfigure({"o1": ["9-10"]}, why="maintenance")
    stream = {"Accept": "text/event-stream"}
    url = f"http://{described.api}/v1/events"
    options: dict[str, Any] = {"trust_env": False, "timeout": PATIENCE_S}
    with httpx.stream(
        "GET", url, params={"after": after}, headers=stream, **options
    ) as answer:
        lines = answer.iter_lines()
        told = [next(lines) for _ in range(3)]
    described.client.roll_back(made.id)
    page = [re.match(r"(\w+): (.*)", line) for line in shown.splitlines()]
    said = [re.match(r"(\w+): (.*)", line) for line in told]
    assert [m and m[1] for m in page] == [m and m[1] for m in said]
    one, other = ([m[2] for m in found if m] for found in (page, said))
    event = json.loads(one[2])
    now = json.loads(other[2])
    assert (event.keys(), event["number"], one[1]) == (
        now.keys(),
        int(one[0]),
        other[1],
    )
    assert (event["state"], event["kind"], event["why"]) == (
        now["state"],
        now["kind"],
        now["why"],
    )


def test_a_shutdown_is_answered_before_the_end(described: Described) -> None:
    (example,) = (
        each for each in examples() if each["path"] == "/v1/shutdown"
    )
    Comparison()(
        example["answer"], ask(described, example, {}), "POST /v1/shutdown"
    )
