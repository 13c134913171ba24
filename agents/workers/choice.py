"""Which runner this server's workers get: ``docker``, ``process``, or what there is."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from patchlight.agents.workers.contract import Runner
from patchlight.testbed.errors import BadInput

DEFAULT_IMAGE = "patchlight-worker:latest"


def make_runner(choice: str, lab: str, server: str, image: str = DEFAULT_IMAGE) -> Runner:
    """The runner of that name; ``auto`` is Docker where an engine is, else processes."""
    if choice == "auto":
        choice = "docker" if engine_is_there() else "process"
    if choice == "process":
        from patchlight.agents.workers.process import ProcessRunner

        return ProcessRunner()
    if choice == "docker":
        # Imported only here: it takes a third of a second, and not every server has it.
        from patchlight.agents.workers.docker import DockerRunner

        return DockerRunner(lab, server, image)
    raise BadInput(f"--workers {choice!r}: expected 'docker', 'process' or 'auto'")


def engine_is_there() -> bool:
    """Whether a Docker engine was named in the environment or has its usual socket."""
    if os.environ.get("DOCKER_HOST"):
        return True
    try:
        return stat.S_ISSOCK(Path("/var/run/docker.sock").stat().st_mode)
    except OSError:
        return False
