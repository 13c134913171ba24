"""Who may do what over the API: roles, tokens, TLS, what is written down, and what never is."""

import contextlib
import grp
import os
import re
import socket
import stat
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from patchlight.cli.main import cli
from patchlight.client.client import ControllerClient, ControllerError
from patchlight.client.connection import logins
from patchlight.controller.access.authority import Authority
from patchlight.controller.access.tokens import Tokens
from patchlight.controller.api.admission import Slowdown
from patchlight.controller.api.app import create_app
from patchlight.controller.service import listening_for_api
from patchlight.controller.storage.database import JournalError
from patchlight.controller.storage.store import Store
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.rules import Access, Role
from patchlight.testbed.labfile.reader import parse_lab
from patchlight.testbed.labfile.writer import write_lab
from patchlight.testbed.wire.lab_api import keepers_socket
from tests.support.controller_process import ControllerProcess
from tests.support.job_cluster import Cluster, simulated
from tests.support.waiting import free_ports

ELSEWHERE = "192.0.2.9"
JOB = {
    "name": "j",
    "iterations": 1,
    "gradient_bytes": 4,
    "compute_s": {"M": 0.1},
    "workers": 1,
}


class Api:
    """The API of a cluster, for callers on other machines and for root at its Unix socket."""

    def __init__(self, cluster: Cluster, access: Access | None = None) -> None:
        if access is not None:
            cluster.parts.lab = cluster.lab.with_changes(access=access)
        self.app = create_app(cluster.parts)
        self.store = cluster.store
        self.tokens = Tokens(cluster.store)

    async def ask(
        self,
        method: str,
        path: str,
        token: str | None = None,
        client: tuple[str, int] = (ELSEWHERE, 5),
        **options: Any,
    ) -> httpx.Response:
        """An answer to somebody elsewhere, or to a ``client``."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        headers |= options.pop("headers", {})
        transport = httpx.ASGITransport(
            self.app, client=client, raise_app_exceptions=False
        )
        async with httpx.AsyncClient(
            transport=transport, base_url="http://lab"
        ) as asking:
            where = path if path == "/metrics" else f"/v1{path}"
            return await asking.request(
                method, where, headers=headers, **options
            )

    def token(self, role: Role, user: str = "eva") -> str:
        return self.tokens.create(user, role, "root")[1]

    async def attempts(self) -> list[dict[str, Any]]:
        answer = await self.ask(
            "GET", "/audit?last=1000", self.token(Role.ADMIN)
        )
        return list(answer.json()["attempts"])


@simulated()
async def test_who_comes_from_elsewhere_without_a_good_token_is_turned_away_and_noted(
    cluster: Cluster,
) -> None:
    api = Api(cluster)
    good = api.token(Role.VIEWER)
    assert (await api.ask("GET", "/lab", good)).status_code == 200
    for token in (None, "", "x", good[:-1], good.replace("_", ""), f"{good}x"):
        answer = await api.ask("POST", "/stop", token, json={})
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert "patchlight token create" in answer.json()["hint"]
    tried = (await api.attempts())[-1]
    assert tried["what"] == "POST /v1/stop"
    assert (tried["outcome"], tried["origin"]) == ("refused", f"{ELSEWHERE}:5")


@simulated()
async def test_a_role_may_do_what_those_before_it_may_and_no_more(
    cluster: Cluster,
) -> None:
    api = Api(cluster)
    asked: list[tuple[Role, str, str, Any]] = [
        (Role.VIEWER, "GET", "/circuits", None),
        (Role.VIEWER, "POST", "/jobs", {"jobs": [JOB], "dry_run": True}),
        (Role.USER, "POST", "/jobs", {"jobs": [JOB]}),
        (Role.OPERATOR, "POST", "/reconfigurations", {}),
        (Role.OPERATOR, "DELETE", "/jobs/j-1?force=true", None),
        (Role.OPERATOR, "POST", "/drain", {}),
        (Role.ADMIN, "GET", "/audit", None),
        (Role.ADMIN, "POST", "/tokens", {"user": "max"}),
    ]
    for role in list(Role)[1:]:
        token = api.token(role)
        client = (f"192.0.2.{role + 10}", 5)
        for needed, method, path, body in asked:
            answer = await api.ask(method, path, token, client, json=body)
            assert (answer.status_code == 403) == (role < needed), (
                role,
                path,
                answer.text,
            )
            if role < needed:
                assert answer.json()["outcome"] == "nothing-done"
    assert (await api.ask("GET", "/whoami", api.token(Role.USER))).json()[
        "role"
    ] == "user"


@simulated()
async def test_every_route_is_for_somebody(cluster: Cluster) -> None:
    api = Api(cluster)
    closed = Api(cluster, Access(others=Role.NOBODY))
    asked: list[str] = []
    viewer = api.token(Role.VIEWER)
    for path, operations in api.app.openapi()["paths"].items():
        there = re.sub(r"\{\w+\}", "1", path).removeprefix("/v1")
        for method in operations:
            if method == "get":
                answer = await closed.ask("GET", there, client=("unix", 65534))
            else:
                # Each from a place of its own: who is refused again and again waits.
                client = (f"192.0.2.{len(asked) % 250}", 5)
                answer = await api.ask(
                    method.upper(), there, viewer, client, json={}
                )
            assert answer.status_code == 403, (method, path, answer.text)
            asked.append(method)
    assert set(asked) == {"get", "post", "put", "delete"}


@simulated()
async def test_a_token_ends_and_can_be_revoked(cluster: Cluster) -> None:
    api = Api(cluster)
    now = 1000.0
    store = Store(":memory:")
    tokens = Tokens(store, lambda: now)
    made, text = tokens.create("eva", Role.USER, "root", "", 60)
    assert tokens.holder(text) == made
    now = 1061.0
    assert tokens.holder(text) is None
    admin = api.token(Role.ADMIN)
    answer = await api.ask(
        "POST", "/tokens", admin, json={"user": "max", "role": "operator"}
    )
    assert answer.status_code == 201
    row = answer.json()
    assert (await api.ask("GET", "/lab", row["token"])).status_code == 200
    gone = await api.ask("DELETE", f"/tokens/{row['id']}", admin)
    assert gone.json()["revoked_by"] == "eva"
    assert (await api.ask("GET", "/lab", row["token"])).status_code == 401
    assert (
        await api.ask("DELETE", "/tokens/00000000", admin)
    ).status_code == 422


@simulated()
async def test_a_canary_is_in_no_log_error_or_file(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    api = Api(cluster)
    answer = await api.ask(
        "POST", "/tokens", api.token(Role.ADMIN), json={"user": "max"}
    )
    text = answer.json()["token"]
    canary = text.split("_", 2)[2]
    admin = api.token(Role.ADMIN)
    said = [
        await api.ask("DELETE", f"/tokens/{text}", admin),
        await api.ask(
            "POST", "/tokens", admin, json={"user": text[:80], "why": text}
        ),
        await api.ask("POST", "/stop", f"{text}x", json={"why": text}),
        await api.ask(
            "POST", "/stop", api.token(Role.VIEWER), json={"why": text}
        ),
        await api.ask("GET", "/tokens", admin),
        await api.ask("GET", "/audit", admin),
    ]
    assert canary not in "".join(each.text for each in said)
    assert canary not in caplog.text
    kept = (
        api.store.rows(f"SELECT * FROM {table}")
        for table in ("tokens", "audit", "events")
    )
    assert canary not in "".join(map(str, kept))


@simulated()
async def test_a_job_with_its_plan_is_one_request_and_a_dry_run_is_none(
    cluster: Cluster,
) -> None:
    api = Api(cluster)
    user = api.token(Role.USER)
    before = len(await api.attempts())
    spec = {**JOB, "compute_s": {"Tesla M40": 0.1}}
    planned = await api.ask(
        "POST", "/jobs", user, json={"jobs": [spec], "dry_run": True}
    )
    assert (planned.status_code, planned.json()["jobs"][0]["job"]) == (
        200,
        "j",
    )
    wrong = await api.ask(
        "POST", "/jobs", user, json={"jobs": [JOB], "dry_run": True}
    )
    assert wrong.status_code == 422
    assert len(await api.attempts()) == before
    queued = await api.ask(
        "POST", "/jobs", user, json={"jobs": [spec], "plan": True}
    )
    (row,) = queued.json()["jobs"]
    assert (queued.status_code, row["state"], row["plan"]["job"]) == (
        201,
        "queued",
        "j",
    )
    assert [each["what"] for each in (await api.attempts())[before:]] == [
        "POST /v1/jobs"
    ]


@simulated()
async def test_the_audit_log_has_who_what_why_and_outcome_and_stays(
    cluster: Cluster,
) -> None:
    api = Api(cluster)
    operator = api.token(Role.OPERATOR)
    change = {"maps": {"ocs1": ["1-2"]}, "why": "because"}
    await api.ask(
        "POST", "/reconfigurations", operator, json={**change, "dry_run": True}
    )
    await api.ask(
        "POST", "/stop", operator, json={"why": "the fire\u2019s alarm"}
    )
    await api.ask("POST", "/reconfigurations", operator, json=change)
    stopped, refused = [
        a for a in await api.attempts() if a["what"].startswith("POST /v1/")
    ][-2:]
    assert (stopped["by"], stopped["role"], stopped["outcome"]) == (
        "eva",
        "operator",
        "done",
    )
    assert (stopped["why"], stopped["what"]) == (
        "the fire\u2019s alarm",
        "POST /v1/stop",
    )
    assert (refused["outcome"], refused["why"]) == ("failed", "because")
    assert refused["about"].endswith(" refused")
    for sql in ("DELETE FROM audit", "UPDATE audit SET who = 'x'"):
        with pytest.raises(JournalError, match="only added to"):
            api.store.write(sql)


async def test_who_is_refused_again_and_again_waits_longer_and_others_do_not() -> (
    None
):
    now = 0.0
    slept = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    slowdown = Slowdown(lambda: now, sleep)
    for _ in range(12):
        await slowdown.refused("here")
    assert slept == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0]
    await slowdown.refused("there")
    now = 61.0
    await slowdown.refused("here")
    assert len(slept) == 7


def _lab(tmp_path: Path, **access: Any) -> Lab:
    return parse_lab(
        ControllerProcess(tmp_path).lab.read_text(), "lab"
    ).with_changes(name=f"access{os.getpid()}", access=Access(**access))


def test_a_lab_file_says_what_the_machines_users_may_do(
    tmp_path: Path,
) -> None:
    lab = _lab(tmp_path, group="optics", others=Role.NOBODY)
    assert parse_lab(write_lab(lab), "lab") == lab
    with pytest.raises(PatchlightError, match="is not a role"):
        parse_lab(write_lab(lab).replace("nobody", "somebody"), "lab")


@pytest.mark.parametrize(
    ("others", "mode"), [(Role.NOBODY, 0o660), (Role.VIEWER, 0o666)]
)
def test_the_unix_socket_is_for_those_who_may_do_something(
    tmp_path: Path, others: Role, mode: int
) -> None:
    path = tmp_path / "api.sock"
    lab = _lab(tmp_path, group="no-such-group", others=others)
    with listening_for_api(lab, f"unix:{path}", None):
        assert stat.S_IMODE(path.stat().st_mode) == mode
    own = os.getgid()
    lab = _lab(tmp_path, group=grp.getgrgid(own).gr_name)
    with listening_for_api(lab, f"unix:{path}", None):
        assert (stat.S_IMODE(path.stat().st_mode), path.stat().st_gid) == (
            0o660,
            own,
        )
    assert not path.exists()


def test_others_cannot_fill_the_queue_of_who_runs_the_controller(
    tmp_path: Path,
) -> None:
    path = tmp_path / "api.sock"
    with contextlib.ExitStack() as stack:
        stack.enter_context(
            listening_for_api(_lab(tmp_path), f"unix:{path}", None)
        )
        with contextlib.suppress(BlockingIOError):
            while True:
                flood = stack.enter_context(socket.socket(socket.AF_UNIX))
                flood.setblocking(False)
                flood.connect(str(path))
        chosen = str(keepers_socket(path))
        caller = stack.enter_context(socket.socket(socket.AF_UNIX))
        caller.setblocking(False)
        caller.connect(chosen)
        assert stat.S_IMODE(os.stat(chosen).st_mode) == 0o600
    assert not list(tmp_path.glob("*.sock")) + list(tmp_path.glob(".*.sock"))


def test_beyond_the_machine_a_certificate_for_answering_is_needed(
    tmp_path: Path,
) -> None:
    lab = _lab(tmp_path)
    with (
        pytest.raises(BadInput, match="without TLS") as said,
        contextlib.ExitStack() as stack,
    ):
        stack.enter_context(listening_for_api(lab, "0.0.0.0:0", None))
    assert "--tls" in (said.value.hint or "")
    wrong = Authority(lab.name, tmp_path / "ca").for_prometheus(
        tmp_path / "prometheus"
    )
    with pytest.raises(BadInput), contextlib.ExitStack() as stack:
        stack.enter_context(listening_for_api(lab, "0.0.0.0:0", wrong.folder))


def _this_machine() -> str:
    """An address of this machine that is not loopback, or none."""
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe,
        contextlib.suppress(OSError),
    ):
        probe.connect(("192.0.2.1", 9))
        return str(probe.getsockname()[0])
    return ""


@pytest.mark.skipif(
    not _this_machine(), reason="this machine has no address but loopback"
)
def test_a_user_elsewhere_logs_in_over_tls_with_a_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    process = ControllerProcess(tmp_path)
    name = f"access{os.getpid()}"
    process.lab.write_text(
        process.lab.read_text().replace("name: dry", f"name: {name}")
    )
    tls = Authority(name, tmp_path / "ca").for_controller(tmp_path / "tls")
    process.api = f"{_this_machine()}:{free_ports(1)[0]}"
    process.options = ["--tls", str(tls.folder)]
    run = CliRunner()
    local = f"unix:/run/patchlight/{name}/api.sock"
    if os.geteuid():
        local = f"unix:{tmp_path}/run/patchlight/controllers/{name}.sock"
    process.asked_at = local
    process.start()
    try:
        made = run.invoke(
            cli, ["token", "create", "eva", "--controller", local, "--json"]
        )
        assert made.exit_code == 0, made.output
        with ControllerClient(local) as client:
            row = client.create_token("eva", "user")
        at = ["--controller", process.api]
        with pytest.raises(BadInput, match="not logged in"):
            run.invoke(cli, ["ocs", "show", *at], catch_exceptions=False)
        ca = ["--ca", str(tls.folder / "ca.pem"), "--token-file", "-"]
        said = run.invoke(cli, ["login", *at, *ca], input=f"{row.token}\n")
        assert (
            f"logged in to controller.{name} at {process.api} as eva, user"
            in said.output
        )
        kept = tmp_path / "config/patchlight/logins.json"
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600
        assert run.invoke(cli, ["job", "list", *at]).exit_code == 0
        with ControllerClient(
            process.api, login=logins()[process.api]
        ) as client:
            assert client.whoami().user == "eva"
            with pytest.raises(
                ControllerError, match="needs the role operator; eva is a user"
            ):
                client.press_stop()
        other = Authority("other", tmp_path / "other").for_controller(
            tmp_path / "other-tls"
        )
        ca[1] = str(other.folder / "ca.pem")
        wrong = run.invoke(cli, ["login", *at, *ca], input="x\n")
        assert isinstance(wrong.exception, PatchlightError)
        assert "no controller of that authority" in wrong.exception.message
        assert row.token not in process.log.read_text()
        with ControllerClient(local) as client:
            assert client.audit()[-1].by == "eva"
            client.revoke_token(row.id)
        told = run.invoke(
            cli, ["audit", "--controller", local, "--wide"]
        ).output
        assert "request tokens" in told
        assert "POST" not in told
        assert run.invoke(cli, ["job", "list", *at]).exit_code == 1
    finally:
        process.stop()
