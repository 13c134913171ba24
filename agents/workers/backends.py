"""What a worker can be: a process, a container, or what an installed package makes of it.

An entry point of the group ``patchlight.worker_backends`` is one more: a callable that takes
``BackendOptions`` and gives a ``Runner``. ``tests/agents/test_worker_backends.py`` says what such a
one has to do.
"""

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from patchlight.agents.workers.contract import Runner
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.rules import DYNAMIC

GROUP = "patchlight.worker_backends"
DEFAULT_IMAGE = "patchlight-worker:latest"


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """What the agent was started with: names of its lab and server, the image of containers, how
    they get an NVIDIA GPU, whom processes run as, and the socket at which they are forked."""

    lab: str
    server: str
    image: str = DEFAULT_IMAGE
    gpu_access: str = "auto"
    worker_user: str = DYNAMIC
    fork_from: Path | None = None


def make_runner(choice: str, options: BackendOptions) -> Runner:
    """The runner of that name; ``auto`` is Docker where an engine is, else processes.

    ``BadInput`` if there is none of that name, or an installed one cannot be imported.
    """
    if choice == "auto":
        choice = "docker" if engine_is_there() else "process"
    installed = {point.name: _by(point) for point in entry_points(group=GROUP)}
    known = {**installed, "docker": _docker, "process": _process}
    if choice not in known:
        more = "".join(f", {name!r}" for name in sorted(known.keys() - {"docker", "process"}))
        raise BadInput(f"--workers {choice!r}: expected 'docker', 'process' or 'auto'{more}")
    return known[choice](options)


def _process(options: BackendOptions) -> Runner:
    from patchlight.agents.workers.process import ProcessRunner

    return ProcessRunner(options.worker_user, options.fork_from, options.lab)


def _docker(options: BackendOptions) -> Runner:
    # Imported only here: it takes a third of a second, and not every server has it.
    from patchlight.agents.workers.docker import DockerRunner

    return DockerRunner(
        options.lab, options.server, options.image, options.gpu_access, options.worker_user
    )


def _by(point: EntryPoint) -> Callable[[BackendOptions], Runner]:
    def make(options: BackendOptions) -> Runner:
        try:
            load = point.load()
        except Exception as error:
            raise BadInput(
                f"--workers {point.name}: it is installed as {point.value} but cannot be imported: "
                f"{type(error).__name__}: {error}"
            ) from error
        made: Runner = load(options)
        return made

    return make


def engine_is_there() -> bool:
    """Whether a Docker engine was named in the environment or has its usual socket."""
    if os.environ.get("DOCKER_HOST"):
        return True
    try:
        return stat.S_ISSOCK(Path("/var/run/docker.sock").stat().st_mode)
    except OSError:
        return False
