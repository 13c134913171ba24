"""Whether the servers of a lab are ready for a deployment: what is wrong, and how to mend it."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace

import paramiko

from patchlight.deploy import check_machine
from patchlight.deploy.check_machine import Finding, Workers, clock, judge_machine, sudo_and_python
from patchlight.deploy.facts import NoFacts, ServerFacts, facts_script, parse_facts
from patchlight.deploy.host_keys import HostKeyRefused
from patchlight.deploy.remote import SudoRefused, as_root
from patchlight.deploy.ssh import Connections, Passwords, SshLoginRefused, Unreachable, ssh_place
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.model import Lab, Server

_PATIENCE_S = 90.0
_MOST_BYTES, _LONGEST_LINE = 1 << 20, 1 << 10
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
) -> list[Finding]:
    """Look at all servers at once; ``progress`` hears how many of how many are done.

    The findings are in the order of the servers. A server that fails stops no other.
    """
    facts: dict[str, ServerFacts | PatchlightError] = {}
    with Connections(passwords) as connections, ThreadPoolExecutor(_AT_ONCE) as pool:
        asked = {pool.submit(_ask, connections, server): server.name for server in lab.servers}
        for done, future in enumerate(as_completed(asked), 1):
            facts[asked[future]] = future.result()
            progress(done, len(asked))
    return list(judge(lab, facts, workers))


def _ask(connections: Connections, server: Server) -> ServerFacts | PatchlightError:
    try:
        with connections.to(server) as client:
            return facts_over_ssh(client, server.name, connections.passwords.sudo)
    except PatchlightError as error:
        return error


def judge(
    lab: Lab, facts: Mapping[str, ServerFacts | PatchlightError], workers: Workers = "auto"
) -> Iterator[Finding]:
    """What follows from what the servers told, or from the errors that they gave instead.

    ``workers`` says what an agent is to make of them: containers, processes, or what it can.
    """
    answered = [
        (server, told)
        for server in lab.servers
        if isinstance(told := facts[server.name], ServerFacts)
    ]
    usual_mtu = check_machine.usual_mtu(answered)
    for server in lab.servers:
        told = facts[server.name]
        if isinstance(told, PatchlightError):
            check = _STAGES.get(type(told), "commands")
            yield Finding(server.name, check, False, told.message, told.hint or "")
            continue
        yield from _way_in(server)
        yield from sudo_and_python(server, told)
        yield from judge_machine(server, told, workers)
        yield from check_machine.mtus(server, told, usual_mtu)
        yield clock(server.name, told)


def _way_in(server: Server) -> Iterator[Finding]:
    host, port = ssh_place(server)
    jump = server.ssh.jump_host
    through = f" through {jump.host}" if jump else ""
    source = "of the lab file" if server.ssh.host_key else "in known_hosts"
    yield Finding(server.name, "reachable", True, f"{host} port {port}{through}")
    yield Finding(server.name, "host key", True, f"the one {source}")


def facts_over_ssh(
    client: paramiko.SSHClient, server: str, sudo_password: str | None = None
) -> ServerFacts:
    """Ask a server over an open connection: as root, as an agent sees it, where sudo lets us.

    ``PatchlightError`` if it does not answer.
    """
    refusal = None
    try:
        try:
            streams = as_root(client, "sh -s", server, sudo_password)
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
        facts = parse_facts(_lines(first, rest), began, ended)
    except (OSError, EOFError, NoFacts, paramiko.SSHException) as error:
        raise PatchlightError(
            f"asking {server} what it has: {str(error) or type(error).__name__}",
            hint="Log in by hand, and see whether commands run there.",
        ) from error
    return replace(facts, sudo_refusal=refusal)


def _lines(first: str, rest: bytes | str) -> Iterable[str]:
    text = rest.decode(errors="replace") if isinstance(rest, bytes) else rest
    return [first, *text.splitlines()]
