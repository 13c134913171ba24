"""Ways to have ``facts.sh`` run: on a server over SSH, or on this machine."""

import subprocess
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import paramiko

from patchlight.deploy.facts import NoFacts, ServerFacts, parse_facts
from patchlight.deploy.sudo import SudoRefused, as_root
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.linux import deploy_file, docker_engine

_PATIENCE_S = 90.0
_MOST_BYTES, _LONGEST_LINE = 1 << 20, 1 << 10


def _script() -> str:
    """``facts.sh``, and then what asks the Docker engine."""
    ask = Path(docker_engine.__file__).read_text(encoding="utf-8")
    shell = deploy_file("facts.sh").read_text(encoding="utf-8")
    return f"{shell}\npython3 - tells <<'END OF PROGRAM'\n{ask}\nEND OF PROGRAM\n"


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
        script.write(_script())
        script.channel.shutdown_write()
        first = output.readline(_LONGEST_LINE)
        ended = time.time()
        rest = output.read(_MOST_BYTES)
        facts = parse_facts(_lines(first, rest), began, ended)
    except (OSError, EOFError, NoFacts, paramiko.SSHException) as error:
        raise PatchlightError(
            f"asking {server} what it has: {error or type(error).__name__}",
            hint="Log in by hand, and see whether commands run there.",
        ) from error
    return replace(facts, sudo_refusal=refusal)


def facts_here(root: Path | None = None) -> ServerFacts:
    """What this machine has; with ``root``, what a folder laid out as ``/`` says that it has.

    ``PatchlightError`` if it cannot be told.
    """
    now = time.time()
    try:
        done = subprocess.run(
            ["sh", "-s", "--", str(root or "")],
            input=_script(),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE_S,
            check=False,
        )
        return parse_facts(done.stdout[:_MOST_BYTES].splitlines(), now, time.time())
    except (OSError, NoFacts, subprocess.TimeoutExpired) as error:
        raise PatchlightError(
            f"asking this machine what it has: {error}",
            hint=f"Run it by hand, and see: sh {deploy_file('facts.sh')}",
        ) from error


def _lines(first: str, rest: bytes | str) -> Iterable[str]:
    text = rest.decode(errors="replace") if isinstance(rest, bytes) else rest
    return [first, *text.splitlines()]
