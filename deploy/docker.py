"""A Docker engine with the worker image, for as long as something needs it."""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.linux import deploy_file


class NoEngine(PatchlightError):
    """No Docker engine, or no worker image in it, can be had here."""


@contextmanager
def engine_with_image(
    say: Callable[[str], None], *, torch: bool = False
) -> Iterator[None]:
    """Inside the block a Docker engine answers at ``DOCKER_HOST`` and has the worker image.

    The one that answers already, else a private one that is stopped at the end; ``torch`` is for
    PyTorch's image, too. ``NoEngine`` where a script of this folder fails; it has said why.
    """
    before = os.environ.get("DOCKER_HOST")
    url = _run(
        "docker-engine.sh", "status", stderr=subprocess.DEVNULL
    ).stdout.strip()
    started = not url
    if started:
        say("starting a private Docker engine")
        url = _checked("docker-engine.sh", "start")
    os.environ["DOCKER_HOST"] = url
    try:
        say(f"looking for the worker image in the Docker engine at {url}")
        _checked("worker-image.sh")
        if torch:
            _checked("worker-image.sh", "--torch")
        yield
    finally:
        if started:
            _checked("docker-engine.sh", "stop")
        if before is None:
            os.environ.pop("DOCKER_HOST", None)
        else:
            os.environ["DOCKER_HOST"] = before


def _checked(script: str, *arguments: str) -> str:
    """The output of one of the scripts beside this file; its standard error goes to the user."""
    process = _run(script, *arguments)
    if process.returncode:
        raise NoEngine(
            f"{deploy_file(script)} ended with status {process.returncode} (see above)",
            hint="--worker-kind process needs no Docker engine.",
        )
    return process.stdout.strip()


def _run(
    script: str,
    *arguments: str,
    stderr: int | None = None,
) -> subprocess.CompletedProcess[str]:
    # By bash, because files of a wheel are not executable.
    command = ["bash", str(deploy_file(script)), *arguments]
    return subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        check=False,
    )
