"""What clients make of a controller's or an agent's answers, and of one that goes away."""

import asyncio
import json
import re
import socket
import threading
import time
from collections.abc import AsyncIterator
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from fastapi import Request

from patchlight.agents.worker_life import START_S
from patchlight.client.client import ControllerClient, ControllerError
from patchlight.controller.api.admission import Admission
from patchlight.controller.api.caller import Doorman
from patchlight.controller.api.openapi import explain, new_app
from patchlight.controller.hosts import agent_client
from patchlight.controller.hosts.agent_client import (
    INTERVAL_S,
    LOST_AFTER,
    VERSION,
    AgentCallError,
    AgentClient,
    AgentIncompatible,
    AgentSilent,
    Presence,
)
from patchlight.controller.hosts.fleet import Fleet
from patchlight.controller.hosts.on_time import OnTimeClock
from patchlight.controller.jobs.specs import worker_specs
from patchlight.testbed.errors import BadInput, OutcomeUnknown
from patchlight.testbed.jobs import JobSpec
from patchlight.testbed.lab.model import Lab, Server
from patchlight.testbed.lab.rules import Access
from patchlight.testbed.labfile.check import MOST_RELOCK_S
from patchlight.testbed.labfile.reader import builtin_lab, read_lab
from patchlight.testbed.linux.sockets import UNIX_CLIENT
from patchlight.testbed.wire.worker_api import WorkerSpec, WorkerState
from tests.support.controller_process import ControllerProcess
from tests.support.waiting import eventually


def test_a_controller_that_goes_away_after_it_was_asked_leaves_the_outcome_unknown() -> (
    None
):
    lab = b'{"name": "small", "file": "small.yaml", "fingerprint": "1"}'

    def answer_nothing_more(listening: socket.socket) -> None:
        for turn in range(4):
            connection, _ = listening.accept()
            connection.recv(65536)
            if turn == 0:
                head = (
                    b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: "
                )
                connection.sendall(b"%b%d\r\n\r\n%b" % (head, len(lab), lab))
            connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(
            target=answer_nothing_more, args=(listening,)
        )
        thread.start()
        with ControllerClient(
            f"127.0.0.1:{listening.getsockname()[1]}"
        ) as client:
            with pytest.raises(OutcomeUnknown, match="its result is unknown"):
                client.reconfigure({"ocs1": ["1-2"]})
            # These change nothing, whatever became of them.
            with pytest.raises(ControllerError):
                client.preview_reconfiguration({"ocs1": ["1-2"]})
            with pytest.raises(ControllerError):
                client.circuits()
        thread.join()


async def test_an_unknown_outcome_goes_through_the_api_as_one() -> None:
    answer = await explain(
        Request({"type": "http"}), OutcomeUnknown("was it?")
    )
    assert json.loads(bytes(answer.body))["outcome"] == "unknown"


class Agent:
    """Answers every request with the same, and remembers what it was asked.

    The next ``lost`` requests get no answer.
    """

    def __init__(self) -> None:
        self.status = 200
        self.answer = ""
        self.requests: list[tuple[str, str]] = []
        self.lost = 0

    def say(self, answer: Any, status: int = 200) -> None:
        self.answer = json.dumps(answer)
        self.status = status

    async def serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = (
            head.lower().partition("content-length: ")[2].partition("\r\n")[0]
        )
        body = (await reader.readexactly(int(length or 0))).decode()
        self.requests.append((head.partition(" HTTP")[0], body))
        if self.lost:
            self.lost -= 1
            writer.close()
            return
        lines = (
            f"HTTP/1.1 {self.status} X",
            "connection: close",
            "",
            self.answer,
        )
        writer.write("\r\n".join(lines).encode())
        writer.close()


@pytest_asyncio.fixture
async def agent(tmp_path: Path) -> AsyncIterator[Agent]:
    made = Agent()
    async with await asyncio.start_unix_server(
        made.serve, tmp_path / "agent.sock"
    ):
        yield made


@pytest_asyncio.fixture
async def client(tmp_path: Path, agent: Agent) -> AsyncIterator[AgentClient]:
    made = AgentClient("server1", f"unix:{tmp_path / 'agent.sock'}")
    yield made
    await made.close()


async def test_a_newer_agent_may_say_more(
    agent: Agent, client: AgentClient
) -> None:
    agent.say({"id": "w", "state": "held", "unheard_of": 1})
    status = await client.worker("w")
    assert (status.state, status.last_lines) == (WorkerState.HELD, [])


async def test_an_answer_that_is_none_is_named(
    agent: Agent, client: AgentClient
) -> None:
    for answer in ({"id": "w", "state": "asleep"}, {}, "nonsense"):
        agent.say(answer)
        with pytest.raises(
            AgentCallError,
            match="agent of server1 answered GET /workers/w with an invalid",
        ):
            await client.worker("w")


async def test_a_refusal_comes_with_the_agents_words(
    agent: Agent, client: AgentClient
) -> None:
    agent.say({"error": "worker w is done", "hint": "nothing more to do"}, 409)
    with pytest.raises(
        AgentCallError, match="the agent of server1: worker w is done"
    ) as caught:
        await client.hold("w", 3)
    assert caught.value.hint == "nothing more to do"


async def test_what_goes_over_the_wire(
    agent: Agent, client: AgentClient
) -> None:
    agent.say({})
    await client.start("w")
    await client.hold("w", 3)
    await client.release("w")
    agent.say({"id": "w", "state": "stopped", "energy_j": 12.5})
    assert (await client.delete("w", 0.0)).energy_j == 12.5
    assert [
        (line, json.loads(body or "null")) for line, body in agent.requests
    ] == [
        ("POST /v1/workers/w/start", {}),
        ("POST /v1/workers/w/hold", {"iteration": 3}),
        ("POST /v1/workers/w/release", {}),
        ("DELETE /v1/workers/w", None),
    ]


async def test_an_agent_can_say_that_a_worker_does_not_start() -> None:
    limits: list[float] = []

    async def refuse(request: httpx.Request) -> httpx.Response:
        limits.append(request.extensions["timeout"]["read"])
        return httpx.Response(500, json={"error": "worker w does not start"})

    client = AgentClient(
        "server1", "unix:", transport=httpx.MockTransport(refuse)
    )
    with pytest.raises(AgentCallError, match="worker w does not start"):
        await client.start("w")
    await client.close()
    assert limits[0] > MOST_RELOCK_S + START_S


async def test_an_agent_that_hangs_is_lost_however_long_its_worker_may_take_to_end() -> (
    None
):
    limits: list[float] = []

    async def hang(request: httpx.Request) -> httpx.Response:
        limits.append(request.extensions["timeout"]["read"])
        if len(limits) < 3:
            raise httpx.ReadTimeout("", request=request)
        return httpx.Response(200, json={"id": "w", "state": "stopped"})

    clock = OnTimeClock()
    client = AgentClient(
        "server1", "unix:", transport=httpx.MockTransport(hang), clock=clock
    )
    assert (
        await client.delete("w", grace_s=3600.0)
    ).state is WorkerState.STOPPED
    assert max(limits) <= LOST_AFTER * INTERVAL_S, "it is asked again"
    limits.clear()
    client.heartbeat.silent_since = clock.now() - LOST_AFTER * INTERVAL_S
    with pytest.raises(AgentSilent):
        await client.delete("w", grace_s=3600.0)
    assert len(limits) == 1
    await client.close()


async def test_an_agent_that_is_not_there_is_named(tmp_path: Path) -> None:
    client = AgentClient("server1", f"unix:{tmp_path / 'nobody.sock'}")
    with pytest.raises(
        AgentCallError,
        match=r"the agent of server1 at unix:.* did not answer GET",
    ):
        await client.status()
    await client.close()


async def test_an_agent_that_says_nothing_is_told_with_how_long_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_client, "_DEADLINE_S", 1.0)

    async def serve(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await reader.read(-1)
        writer.close()

    async with await asyncio.start_unix_server(
        serve, tmp_path / "stopped.sock"
    ):
        client = AgentClient("server1", f"unix:{tmp_path / 'stopped.sock'}")
        with pytest.raises(
            AgentCallError, match=r"GET /status: ReadTimeout after 1 s\n"
        ):
            await client.status()
        client.heartbeat.answers_s.append(9.0)
        overloaded = r"ReadTimeout after 1 s \(server1 answers after 9 s: the machine is overloaded"
        with pytest.raises(AgentSilent, match=overloaded):
            await client.status()
        await client.close()


def one_worker(user: str = "") -> WorkerSpec:
    lab = read_lab(builtin_lab("ofc2022"))
    job = JobSpec("j", 1, 400, {"Tesla M40": 0.1})
    (spec,) = worker_specs("j-1", job, [lab.host("gpu0")], lab, user=user)
    return spec


async def test_an_order_that_is_lost_is_repeated_until_the_agent_counts_as_lost(
    agent: Agent, client: AgentClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_client, "_PAUSES_S", (0.001, 0.01))
    monkeypatch.setattr(agent_client, "INTERVAL_S", 0.3)
    agent.say({"id": "j-1", "state": "running"})
    agent.lost = 20
    assert (
        await client.create_worker(one_worker())
    ).state is WorkerState.RUNNING
    assert client.heartbeat.silent_since is None
    assert len(agent.requests) == 21
    assert len(set(agent.requests)) == 1  # the agent makes one worker of all
    agent.lost = 100_000
    began = asyncio.get_running_loop().time()
    with pytest.raises(
        AgentSilent, match="did not answer POST /workers: Server disconnected"
    ):
        await client.create_worker(one_worker())
    took_s = asyncio.get_running_loop().time() - began
    assert took_s >= 10 * 0.3
    assert client.heartbeat.presence(time.monotonic()) is Presence.LOST
    # An agent that is lost is not waited for again: each call is one attempt.
    before = len(agent.requests)
    for call in (
        client.start("j-1"),
        client.end("j-1", 0.0),
        client.release("j-1"),
    ):
        with pytest.raises(AgentSilent):
            await call
    assert len(agent.requests) == before + 3


async def test_an_agent_that_works_on_a_call_and_answers_others_is_not_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt times out, for longer than an agent may be silent; then the worker is made."""
    monkeypatch.setattr(agent_client, "_DEADLINE_S", 0.4)
    monkeypatch.setattr(agent_client, "_PAUSES_S", (0.01,))
    monkeypatch.setattr(agent_client, "INTERVAL_S", 0.05)
    made = asyncio.Event()
    creations = 0

    async def serve(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        nonlocal creations
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        answer: dict[str, Any] = {
            "server": "server1",
            "version": "1",
            "runner": "process",
        }
        answer |= {"gpus": [], "nics": [], "workers": []}
        if head.startswith("POST"):
            creations += 1
            await made.wait()
            answer = {"id": "j-1", "state": "starting"}
        text = json.dumps(answer)
        writer.write(
            f"HTTP/1.1 200 X\r\nconnection: close\r\n\r\n{text}".encode()
        )
        writer.close()

    async with await asyncio.start_unix_server(serve, tmp_path / "slow.sock"):
        server = Server("server1", f"unix:{tmp_path / 'slow.sock'}", (), ())
        fleet = Fleet(Lab("lab", IPv4Network("10.0.0.0/24"), (server,)))
        watching = asyncio.create_task(fleet.watch(period_s=0.02))
        creating = asyncio.create_task(
            fleet.agent_of("server1").create_worker(one_worker())
        )
        try:
            await eventually(
                lambda: creations > 3 or creating.done(), "several attempts"
            )
            assert not creating.done()
            made.set()
            assert (await creating).state is WorkerState.STARTING
        finally:
            made.set()
            watching.cancel()
            creating.cancel()
            await fleet.close()


async def test_a_late_answer_is_suspected_meanwhile_and_then_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_client, "INTERVAL_S", 0.3)
    late = asyncio.Event()

    async def serve(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await late.wait()
        answer = {"server": "server1", "version": VERSION, "runner": "process"}
        text = json.dumps({**answer, "gpus": [], "nics": [], "workers": []})
        writer.write(
            f"HTTP/1.1 200 X\r\nconnection: close\r\n\r\n{text}".encode()
        )
        writer.close()

    async with await asyncio.start_unix_server(serve, tmp_path / "late.sock"):
        server = Server("server1", f"unix:{tmp_path / 'late.sock'}", (), ())
        fleet = Fleet(Lab("lab", IPv4Network("10.0.0.0/24"), (server,)))
        watching = asyncio.create_task(fleet.watch(period_s=0.02))
        try:
            await eventually(
                lambda: fleet.silent() == {"server1"},
                "the agent to be suspected",
            )
            await asyncio.sleep(0.3)  # the answer is late by this
            late.set()
            await eventually(
                lambda: fleet.status()[0]["reachable"], "its answer"
            )
            (told,) = fleet.status()
            (problem,) = told["problems"]
            assert re.fullmatch(
                r"it answers after [\d.]+ s: the machine is overloaded",
                problem,
            )
        finally:
            watching.cancel()
            await fleet.close()


async def test_an_agent_is_told_who_submitted_a_job_unless_it_is_too_old(
    agent: Agent, client: AgentClient
) -> None:
    spec = one_worker(user="eva")
    status = {"server": "server1", "version": "1", "runner": "process"}
    nothing: dict[str, Any] = {"gpus": [], "nics": [], "workers": []}
    for told, user in (({"worker_user": "dynamic"}, "eva"), ({}, None)):
        agent.say({**status, **nothing, **told})
        await client.status()
        agent.say({"id": "j-1", "state": "starting"})
        await client.create_worker(spec)
        assert json.loads(agent.requests[-1][1]).get("user") == user


async def test_one_lost_sample_does_not_make_an_agent_silent_and_many_do(
    tmp_path: Path, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server("server1", f"unix:{tmp_path / 'agent.sock'}", (), ())
    fleet = Fleet(Lab("lab", IPv4Network("10.0.0.0/24"), (server,)))
    status = {"server": "server1", "version": "1", "runner": "process"}
    agent.say({**status, "gpus": [], "nics": [], "workers": []})
    watching = asyncio.create_task(fleet.watch(period_s=0.02))
    try:
        await eventually(
            lambda: fleet.status()[0]["reachable"], "the agent to answer"
        )
        agent.lost = 1
        await eventually(lambda: not agent.lost, "a sample to be lost")
        assert fleet.status()[0]["reachable"]
        agent.requests.clear()
        await eventually(lambda: len(agent.requests) > 1, "an answer")
        monkeypatch.setattr(agent_client, "INTERVAL_S", 0.05)
        agent.lost = 10_000
        await eventually(
            lambda: fleet.silent() == {"server1"}, "the agent to be silent"
        )
        assert not fleet.status()[0]["reachable"]
        await eventually(
            lambda: fleet.presence("server1") is Presence.LOST, "it to be lost"
        )
        (told,) = fleet.status()
        assert (told["presence"], told["version"]) == ("lost", "1")
        assert "did not answer GET /status" in told["words"]
        agent.lost = 0
        await eventually(
            lambda: fleet.status()[0]["reachable"], "the agent to be back"
        )
        assert fleet.status()[0]["words"] == ""
    finally:
        watching.cancel()
        await fleet.close()


async def test_an_agent_of_another_version_is_told_of_once(
    tmp_path: Path, agent: Agent, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server("server1", f"unix:{tmp_path / 'agent.sock'}", (), ())
    fleet = Fleet(Lab("lab", IPv4Network("10.0.0.0/24"), (server,)))
    status = {"server": "server1", "version": "0.0.1", "runner": "process"}
    agent.say({**status, "gpus": [], "nics": [], "workers": []})
    watching = asyncio.create_task(fleet.watch(period_s=0.02))
    try:
        await eventually(lambda: len(agent.requests) > 2, "a few samples")
        words = f"its version is 0.0.1, the controller's {VERSION}"
        assert fleet.status()[0]["problems"] == [words]
        assert fleet.status()[0]["reachable"]
        (said,) = [
            record
            for record in caplog.records
            if "has version" in record.message
        ]
        assert "server1 has version 0.0.1" in said.message
    finally:
        watching.cancel()
        await fleet.close()


@pytest.mark.parametrize(("api", "upgrade"), [(2, "controller"), (0, "agent")])
async def test_an_agent_that_speaks_another_version_of_the_api_is_not_called(
    agent: Agent, client: AgentClient, api: int, upgrade: str
) -> None:
    status = {
        "server": "server1",
        "version": "9.9",
        "runner": "process",
        "api": api,
    }
    agent.say({**status, "gpus": [], "nics": [], "workers": []})
    for call in (client.status, lambda: client.start("w")):
        with pytest.raises(
            AgentIncompatible,
            match=rf"\(Patchlight 9\.9\) has version.* {api} ",
        ) as no:
            await call()
        assert no.value.hint == f"upgrade the {upgrade}"
    assert [line for line, _ in agent.requests] == ["GET /v1/status"]
    agent.say({**status, "api": 1, "gpus": [], "nics": [], "workers": []})
    await client.status()
    await client.start("w")


async def test_another_servers_agent_is_not_taken_for_it(
    agent: Agent, client: AgentClient
) -> None:
    status = {"server": "server2", "version": "1", "runner": "process"}
    agent.say({**status, "gpus": [], "nics": [], "workers": []})
    with pytest.raises(
        AgentIncompatible, match=r"belongs to server2, not to server1"
    ):
        await client.status()


async def test_a_program_with_an_event_loop_uses_threads(
    controller: ControllerProcess,
) -> None:
    with ControllerClient(controller.api, user="eva") as client:
        status, maps = await asyncio.gather(
            asyncio.to_thread(client.status),
            asyncio.to_thread(client.circuits),
        )
        assert (status.lab, maps) == ("dry", controller.client.circuits())
        made = client.reconfigure({"o1": ["7-8"]}, why="maintenance")
        assert [row.id for row in client.reconfigurations()] == [made.id]
        events = client.follow_events(0)
        assert (
            next(e for e in events if e["kind"] == "circuits")["id"] == made.id
        )
        with pytest.raises(BadInput, match="did you mean"):
            client.reconfigure({"o2": ["7-8"]})
        with pytest.raises(BadInput, match="invalid name for saved maps"):
            client.save_map("..")
    with (
        ControllerClient("127.0.0.1:1") as client,
        pytest.raises(ControllerError, match="no answer from a controller"),
    ):
        client.status()


@pytest.mark.parametrize("text", ["Internal Server Error", "{}"])
def test_a_controller_that_fails_is_not_taken_for_another_version(
    text: str,
) -> None:
    wire = httpx.MockTransport(lambda _: httpx.Response(500, text=text))
    with ControllerClient("127.0.0.1:1", transport=wire) as client:
        with pytest.raises(
            ControllerError, match=r"failed on this request.* HTTP 500"
        ):
            client.status()
        with pytest.raises(OutcomeUnknown, match="failed on this request"):
            client.press_stop()


async def test_a_bug_of_a_route_is_told_as_a_problem() -> None:
    app = new_app("buggy")
    app.add_middleware(Admission, doorman=Doorman(Access()))

    @app.post("/v1/stop")
    async def bug() -> None:
        raise KeyError("x")

    wire = httpx.ASGITransport(
        app, raise_app_exceptions=False, client=(UNIX_CLIENT, 0)
    )
    async with httpx.AsyncClient(
        transport=wire, base_url="http://x"
    ) as client:
        answer = await client.post("/v1/stop")
    assert answer.status_code == 500
    assert answer.headers["content-type"] == "application/problem+json"
    assert (
        answer.json()["outcome"],
        "KeyError" in answer.json()["detail"],
    ) == ("unknown", True)
