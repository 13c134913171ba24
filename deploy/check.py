"""Whether the servers of a lab are ready for a deployment, and what is deployed on them."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from typing import Any

import paramiko

from patchlight.deploy import check_machine
from patchlight.deploy.check_machine import (
    Finding,
    Workers,
    clock,
    judge_machine,
    sudo_and_python,
)
from patchlight.deploy.facts import (
    NoFacts,
    ServerFacts,
    facts_script,
    parse_facts,
)
from patchlight.deploy.host_keys import HostKeyRefused
from patchlight.deploy.push import (
    AgentDoesNotAnswer,
    LabAgents,
    wait_until_it_answers,
)
from patchlight.deploy.remote import Remote, SudoRefused, as_root
from patchlight.deploy.ssh import (
    Connections,
    Passwords,
    SshLoginRefused,
    Unreachable,
    ssh_place,
)
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.model import Lab, Server

_PATIENCE_S = 90.0
_MOST_BYTES = 1 << 20
_LONGEST_LINE = 1 << 10
# Some users' shells greet also where nobody reads it.
_MOST_LINES_BEFORE = 100
_AT_ONCE = 32
_STAGES: Mapping[type[PatchlightError], str] = {
    Unreachable: "reachable",
    HostKeyRefused: "host key",
    SshLoginRefused: "login",
}


def check_servers(
    lab: Lab,
    progress: Callable[[int, int], None],
    passwords: Passwords | None = None,
    workers: Workers = "auto",
    servers: Sequence[Server] | None = None,
) -> list[Finding]:
    """The findings on ``servers`` (default: all); one that fails stops no other."""
    facts: dict[str, ServerFacts | PatchlightError] = {}
    with (
        Connections(passwords) as connections,
        ThreadPoolExecutor(_AT_ONCE) as pool,
    ):
        chosen = lab.servers if servers is None else servers
        asked = {
            pool.submit(_ask, connections, server): server.name
            for server in chosen
        }
        for done, future in enumerate(as_completed(asked), 1):
            facts[asked[future]] = future.result()
            progress(done, len(asked))
    return list(judge(lab, facts, workers))


def _ask(
    connections: Connections, server: Server
) -> ServerFacts | PatchlightError:
    try:
        with connections.to(server) as client:
            return facts_over_ssh(
                client, server.name, connections.passwords.sudo
            )
    except PatchlightError as error:
        return error


def judge(
    lab: Lab,
    facts: Mapping[str, ServerFacts | PatchlightError],
    workers: Workers = "auto",
) -> Iterator[Finding]:
    """The findings from the servers' answers, or from their errors."""
    asked = [
        (server, facts[server.name])
        for server in lab.servers
        if server.name in facts
    ]
    answered = [
        (server, told)
        for server, told in asked
        if isinstance(told, ServerFacts)
    ]
    usual_mtu = check_machine.usual_mtu(answered)
    for server, told in asked:
        if isinstance(told, PatchlightError):
            check = _STAGES.get(type(told), "commands")
            yield Finding(
                server.name,
                check,
                False,
                told.message,
                told.hint or "",
            )
            continue
        host, port = ssh_place(server)
        jump = server.ssh.jump_host
        through = f" through {jump.host}" if jump else ""
        source = "of the lab file" if server.ssh.host_key else "in known_hosts"
        yield Finding(
            server.name,
            "reachable",
            True,
            f"{host} port {port}{through}",
        )
        yield Finding(
            server.name,
            "host key",
            True,
            f"the one {source}",
        )
        yield from sudo_and_python(server, told)
        yield from judge_machine(server, told, workers)
        yield from check_machine.mtus(server, told, usual_mtu)
        yield clock(server.name, told)


def facts_over_ssh(
    client: paramiko.SSHClient,
    server: str,
    sudo_password: str | None = None,
) -> ServerFacts:
    """Ask a server found, as root where sudo lets us; ``PatchlightError`` if it is silent."""
    refusal = None
    try:
        try:
            streams = as_root(
                client,
                "sh -s",
                server,
                sudo_password,
            )
        except SudoRefused as error:
            refusal = error.message
            streams = client.exec_command("sh -s", timeout=_PATIENCE_S)
        script, output, _ = streams
        output.channel.settimeout(_PATIENCE_S)
        began = time.time()
        script.write(facts_script())
        script.channel.shutdown_write()
        first = output.readline(_LONGEST_LINE)
        for _ in range(_MOST_LINES_BEFORE):
            if first.startswith("time ") or not first:
                break
            first = output.readline(_LONGEST_LINE)
        ended = time.time()
        rest = output.read(_MOST_BYTES)
        text = (
            rest.decode(errors="replace") if isinstance(rest, bytes) else rest
        )
        facts = parse_facts([first, *text.splitlines()], began, ended)
    except (OSError, EOFError, NoFacts, paramiko.SSHException) as error:
        raise PatchlightError(
            f"collecting facts about {server}: {str(error) or type(error).__name__}",
            hint="Log in by hand, and check that commands run there.",
        ) from error
    return replace(facts, sudo_refusal=refusal)


class WorkersRun(PatchlightError):
    """A server has workers that would be ended."""


@dataclass(
    frozen=True,
    slots=True,
)
class Installed:
    """The state of a server: ``None`` is no release, or no controller that is to run there.

    ``version`` is what the agent answers, ``since`` when it was started (Unix time), ``restarts``
    how often it was started again by itself, ``problem`` why it is not healthy.
    """

    release: str | None
    previous: str | None = None
    pushed_at: float | None = None
    pushed_by: str = ""
    version: str | None = None
    since: float | None = None
    restarts: int = 0
    workers: int = 0
    controller: bool | None = None
    problem: str = ""


class Servers:
    """The servers of a deployment, for several threads; concurrent deployers see ``who``."""

    def __init__(self, agents: LabAgents, who: str) -> None:
        self._agents = agents
        self._who = who

    def status(self, server: Server, remote: Remote) -> Installed:
        """How it is on one server; nothing changes."""
        found = remote.ask("look")
        release = found["release"]
        previous = found["previous"]
        if release is None:
            return Installed(
                None,
                problem="nothing is deployed"
                if not found["here"]
                else "incomplete",
            )
        services = found["services"]
        agent = services.get(
            "agent", {"running": False, "since": None, "restarts": 0}
        )
        version = None
        workers = 0
        problem = ""
        try:
            answer = self._agents.status(server, remote)
            version = answer["version"]
            workers = _running(answer)
            gpus = [
                f"GPU {gpu['name']}: {gpu['problem']}"
                for gpu in answer["gpus"]
                if gpu["problem"]
            ]
            nics = [
                f"NIC {nic['name']}: {nic['problem']}"
                for nic in answer["nics"]
                if nic["problem"]
            ]
            problem = "; ".join(gpus + nics)
        except AgentDoesNotAnswer as error:
            problem = (
                error.message if agent["running"] else "its agent is down"
            )
        controller = services.get("controller")
        if controller is not None and not controller["running"]:
            problem = "; ".join(
                filter(None, [problem, "its controller is down"])
            )
        return Installed(
            release["id"],
            previous and previous["id"],
            release["at"],
            release["by"],
            version,
            agent["since"],
            agent["restarts"],
            workers,
            controller and controller["running"],
            problem,
        )

    def act(
        self,
        action: str,
        server: Server,
        remote: Remote,
    ) -> str:
        """``restart`` or ``stop`` what runs; workers go on. Says what was done."""
        roles = self._begun(remote)
        remote.ask(
            "act",
            action=action,
            roles=roles,
        )
        if action == "restart":
            wait_until_it_answers(self._agents, server, remote)
        return " and ".join(roles)

    def roll_back(self, server: Server, remote: Remote) -> str:
        """Go back to the release before, and wait until its agent answers; that release."""
        self._begun(remote)
        release: dict[str, Any] = remote.ask("roll_back")
        wait_until_it_answers(self._agents, server, remote)
        return str(release["id"])

    def remove(
        self,
        server: Server,
        remote: Remote,
        *,
        end_workers: bool,
    ) -> bool:
        """Leave nothing of the lab there; False if nothing was. ``WorkersRun`` where some do."""
        found = remote.ask("look")
        if not found["here"]:
            return False
        remote.ask("lock", who=self._who)
        if (
            found["services"].get("agent", {}).get("running")
            or found["leases"]
        ):
            self._give_back(
                server,
                remote,
                found,
                end_workers,
            )
        remote.ask("remove")
        return True

    def _give_back(
        self,
        server: Server,
        remote: Remote,
        found: dict[str, Any],
        end_workers: bool,
    ) -> None:
        """Have the agent end its workers; one that does not run is started for that."""
        try:
            answer = self._agents.status(server, remote)
        except AgentDoesNotAnswer:
            if not found["leases"]:
                return  # it has nothing of the server's
            remote.ask(
                "act",
                action="restart",
                roles=["agent"],
            )
            answer = wait_until_it_answers(self._agents, server, remote)
        running = _running(answer)
        if running and not end_workers:
            raise WorkersRun(
                f"{running} workers run on {server.name}",
                hint="End their jobs first (patchlight job stop), or use --end-workers.",
            )
        self._agents.drain(server, remote, answer)

    def _begun(self, remote: Remote) -> Sequence[str]:
        """Be the only one who changes something; the roles that are set up there."""
        remote.ask("lock", who=self._who)
        found = remote.ask("look")
        if found["release"] is None or not found["services"]:
            raise PatchlightError(
                f"Patchlight is not deployed to {remote.server}",
                hint="Deploy it: patchlight deploy push LAB",
            )
        # Workers would lose them.
        return sorted(found["services"].keys() - {"gpus"})


def _running(answer: dict[str, Any]) -> int:
    """How many workers an agent has that have not ended."""
    ended = {"done", "failed", "stopped"}
    return sum(worker["state"] not in ended for worker in answer["workers"])
