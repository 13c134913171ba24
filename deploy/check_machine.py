"""What one machine lacks for Patchlight: software, disk space, a Docker engine, the time."""

from collections.abc import Iterator
from typing import Literal

from patchlight.deploy.check_devices import Finding, gpus, nics
from patchlight.deploy.facts import DockerFacts, ServerFacts
from patchlight.testbed.lab.model import Server

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
