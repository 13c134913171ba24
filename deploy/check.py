"""Whether one machine, and the servers of a lab, are ready: what is wrong, and how to mend it."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from typing import Literal

import paramiko

from patchlight.deploy import check_devices
from patchlight.deploy.check_devices import Finding, gpus, nics
from patchlight.deploy.facts import DockerFacts, NoFacts, ServerFacts, facts_script, parse_facts
from patchlight.deploy.host_keys import HostKeyRefused
from patchlight.deploy.remote import SudoRefused, as_root
from patchlight.deploy.ssh import Connections, Passwords, SshLoginRefused, Unreachable, ssh_place
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.model import Lab, Server

Workers = Literal["docker", "process", "auto"]

_PYTHON = (3, 11)
# For the bundle, an environment made of it, and the one before, to go back to.
_LEAST_FREE_BYTES = 2 << 30
_MOST_OFFSET_S = 1.0


def judge_machine(server: Server, facts: ServerFacts, workers: Workers) -> Iterator[Finding]:
    """What is there, and what of ``server`` in the lab file is not.

    What the lab file does not claim is only told, and its lack is never wrong.
    """
    yield from machine(server, facts)
    yield from docker(server, facts, workers)
    yield from bubblewrap(server, facts, workers)
    yield from gpus(server, facts)
    yield from nics(server, facts)


def sudo_and_python(server: Server, facts: ServerFacts) -> Iterator[Finding]:
    """What a deployment runs by."""
    refusal, user = facts.sudo_refusal, server.ssh.user or "the user who logs in"
    yield Finding(
        server.name,
        "sudo",
        refusal is None,
        refusal or "lets us be root",
        f"give its password (--ask-sudo-password), or let {user} use sudo without a "
        f"password: a line 'NAME ALL=(ALL) NOPASSWD: ALL' in /etc/sudoers.d on {server.name}",
    )
    version = ".".join(map(str, facts.python)) if facts.python else "none"
    good = facts.python is not None and facts.python[:2] >= _PYTHON and facts.has_venv
    without = "" if facts.has_venv or not facts.python else ", without venv"
    yield Finding(
        server.name,
        "Python",
        good,
        version + without,
        f"install Python 3.11 or newer with venv: apt-get install python3 python3-venv, "
        f"on {server.name}",
    )


def machine(server: Server, facts: ServerFacts) -> Iterator[Finding]:
    """Room on its disk, and what keeps services running."""
    free = facts.free_bytes
    yield Finding(
        server.name,
        "free disk",
        None if free is None else free >= _LEAST_FREE_BYTES,
        "not told" if free is None else f"{free / (1 << 30):.1f} GiB in /opt",
        f"make room in /opt of {server.name}: 2 GiB",
    )
    version = facts.systemd
    found = f"version {version}" if version else "none: the agent gets a supervisor of its own"
    yield Finding(server.name, "systemd", True, found)


def docker(server: Server, facts: ServerFacts, workers: Workers) -> Iterator[Finding]:
    """The engine, and whether its containers can have the server's GPUs.

    Nothing where workers are processes; where either will do, no engine is no failure.
    """
    engine = facts.docker
    if workers == "process":
        return
    if engine is None:
        yield Finding(server.name, "Docker engine", None, "cannot be told without Python")
        return
    yield _engine(server, facts, engine, workers)
    if engine.answers and (facts.gpus or facts.driver):
        yield _toolkit(server, facts, engine)


def bubblewrap(server: Server, facts: ServerFacts, workers: Workers) -> Iterator[Finding]:
    """What confines workers that are processes; nothing where none is."""
    if workers == "docker" or (workers == "auto" and facts.docker and facts.docker.answers):
        return
    found = f"version {facts.bwrap}" if facts.bwrap else "not installed: process workers need it"
    remedy = f"apt-get install bubblewrap libseccomp2, on {server.name}"
    yield Finding(server.name, "bubblewrap", facts.bwrap is not None, found, remedy)


def _engine(server: Server, facts: ServerFacts, engine: DockerFacts, workers: Workers) -> Finding:
    check = "Docker engine"
    if engine.answers is None:
        return Finding(server.name, check, None, f"do not know how to ask {engine.url}")
    if engine.answers:
        found = f"answers at {engine.url} (API {engine.api})"
        return Finding(server.name, check, True, found)
    found = f"{engine.url} {engine.said}"
    if facts.user != "root" and "Permission denied" in engine.said:
        return Finding(server.name, check, None, f"{found}; only root can try it")
    remedy = f"apt-get install docker.io && systemctl start docker, on {server.name}"
    if workers == "auto":
        return Finding(server.name, check, None, f"{found}: workers will be processes", remedy)
    return Finding(server.name, check, False, found, remedy)


def _toolkit(server: Server, facts: ServerFacts, engine: DockerFacts) -> Finding:
    ways = [*facts.cdi]
    if not ways and any(device.startswith("nvidia.com/gpu") for device in engine.devices):
        ways.append("the engine's CDI devices")
    if "nvidia" in engine.runtimes:
        ways.append("runtime nvidia")
    version = f"version {facts.toolkit}" if facts.toolkit else "none"
    found = f"{version}; GPUs by {', '.join(ways)}" if ways else f"{version}; no CDI, no runtime"
    remedy = (
        "apt-get install nvidia-container-toolkit && nvidia-ctk cdi generate "
        f"--output=/etc/cdi/nvidia.yaml, on {server.name}"
    )
    return Finding(server.name, "container toolkit", bool(ways), found, remedy)


def clock(server: str, facts: ServerFacts) -> Finding:
    """Whether its time is ours."""
    offset, uncertain = facts.clock_offset_s, facts.clock_uncertainty_s
    way = "ahead" if offset > 0 else "behind"
    found = f"{abs(offset):.3f} s {way}, ± {uncertain:.3f} s"
    good = abs(offset) - uncertain <= _MOST_OFFSET_S
    remedy = f"have {server} keep time by the network: apt-get install chrony"
    return Finding(server, "clock", good, found, remedy)


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
    usual_mtu = check_devices.usual_mtu(answered)
    for server in lab.servers:
        told = facts[server.name]
        if isinstance(told, PatchlightError):
            check = _STAGES.get(type(told), "commands")
            yield Finding(server.name, check, False, told.message, told.hint or "")
            continue
        yield from _way_in(server)
        yield from sudo_and_python(server, told)
        yield from judge_machine(server, told, workers)
        yield from check_devices.mtus(server, told, usual_mtu)
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
