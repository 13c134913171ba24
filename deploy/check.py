"""Whether the servers of a lab are ready for a deployment: what is wrong, and how it is mended."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed

from patchlight.deploy.checks import nics, software
from patchlight.deploy.checks.finding import Finding
from patchlight.deploy.checks.machine import judge_machine
from patchlight.deploy.checks.software import Workers
from patchlight.deploy.facts import ServerFacts
from patchlight.deploy.facts_over_ssh import facts_over_ssh
from patchlight.deploy.host_keys import HostKeyRefused
from patchlight.deploy.ssh import Connections, LoginRefused, Passwords, Unreachable, ssh_place
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.model import Lab, Server

_AT_ONCE = 32
_STAGES: Mapping[type[PatchlightError], str] = {
    Unreachable: "reachable",
    HostKeyRefused: "host key",
    LoginRefused: "login",
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
    usual_mtu = nics.usual_mtu(answered)
    for server in lab.servers:
        told = facts[server.name]
        if isinstance(told, PatchlightError):
            check = _STAGES.get(type(told), "commands")
            yield Finding(server.name, check, False, told.message, told.hint or "")
            continue
        yield from _way_in(server)
        yield from software.sudo_and_python(server, told)
        yield from judge_machine(server, told, workers)
        yield from nics.mtus(server, told, usual_mtu)
        yield software.clock(server.name, told)


def _way_in(server: Server) -> Iterator[Finding]:
    host, port = ssh_place(server)
    jump = server.ssh.jump_host
    through = f" through {jump.host}" if jump else ""
    source = "of the lab file" if server.ssh.host_key else "in known_hosts"
    yield Finding(server.name, "reachable", True, f"{host} port {port}{through}")
    yield Finding(server.name, "host key", True, f"the one {source}")
