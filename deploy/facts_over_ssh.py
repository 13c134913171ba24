"""What a server tells of itself over SSH."""

import time
from collections.abc import Iterable
from dataclasses import replace

import paramiko

from patchlight.deploy.facts import NoFacts, ServerFacts, parse_facts
from patchlight.deploy.facts_here import facts_script
from patchlight.deploy.sudo import SudoRefused, as_root
from patchlight.testbed.errors import PatchlightError

_PATIENCE_S = 90.0
_MOST_BYTES, _LONGEST_LINE = 1 << 20, 1 << 10
# Some users' shells greet also where nobody reads it.
_MOST_LINES_BEFORE = 100


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
