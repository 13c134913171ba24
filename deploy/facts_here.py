"""What this machine tells of itself; it needs no package but the standard library."""

import subprocess
import time
from pathlib import Path

from patchlight.deploy.facts import NoFacts, ServerFacts, parse_facts
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.linux import deploy_file, docker_engine

_PATIENCE_S = 90.0
_MOST_BYTES = 1 << 20


def facts_script() -> str:
    """``facts.sh``, and then what asks the Docker engine."""
    ask = Path(docker_engine.__file__).read_text(encoding="utf-8")
    shell = deploy_file("facts.sh").read_text(encoding="utf-8")
    return f"{shell}\npython3 - tells <<'END OF PROGRAM'\n{ask}\nEND OF PROGRAM\n"


def facts_here(root: Path | None = None) -> ServerFacts:
    """What this machine has; with ``root``, what a folder laid out as ``/`` says that it has.

    ``PatchlightError`` if it cannot be told.
    """
    now = time.time()
    try:
        done = subprocess.run(
            ["sh", "-s", "--", str(root or "")],
            input=facts_script(),
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
