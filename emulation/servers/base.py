"""The root file system that all rehearsal servers of this machine share, read-only."""

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.linux import deploy_file

_PREFIX = "server-base: "


class NoRehearsalServers(PatchlightError):
    """This machine cannot run servers with a root file system of their own."""


def server_base(say: Callable[[str], None], *, docker: bool = False) -> Path:
    """The folder of the root file system, made where there is none (once, about a minute).

    With ``docker`` it is the one that has a Docker engine. ``say`` hears of each step. Raises
    ``NoRehearsalServers`` where it cannot be made.
    """
    script = str(deploy_file("server-base.sh"))
    command = ["bash", script, *(["--docker"] if docker else [])]
    lines: list[str] = []
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            for line in process.stderr:
                lines.append(line.strip().removeprefix(_PREFIX))
                if line.startswith(_PREFIX):
                    say(lines[-1])
            folder = process.stdout.read().strip()
        except BaseException:
            # All of it: the shell alone would wait for the program that it runs.
            os.killpg(process.pid, signal.SIGTERM)
            raise
    if process.returncode or not folder:
        wrote = "\n    ".join(lines[-15:])
        raise NoRehearsalServers(
            f"making the root file system of the servers: {script} ended with status "
            f"{process.returncode}; the last it wrote:\n    {wrote}",
            hint="It needs mmdebstrap and, the first time, a mirror of the distribution: run "
            "deploy/bootstrap.sh, see to the network, or name a mirror with PATCHLIGHT_MIRROR.",
        )
    return Path(folder)


def has_docker(base: Path) -> bool:
    """Whether servers with this root file system have a Docker engine."""
    return (base / "usr/sbin/dockerd").exists()


def check_overlay(base: Path, trial: Path) -> None:
    """Raise ``NoRehearsalServers`` where no server's root can be mounted over ``base``.

    ``trial`` is a folder to be made where the servers' disks are, and removed again.
    """
    layers = {"upperdir": trial / "upper", "workdir": trial / "work"}
    root = trial / "root"
    for folder in (*layers.values(), root):
        folder.mkdir(parents=True)
    options = ",".join(f"{key}={folder}" for key, folder in {"lowerdir": base, **layers}.items())
    own = ["unshare", "--mount", "--pid", "--uts", "--ipc", "--cgroup", "--fork"]
    mount = ["mount", "-t", "overlay", "-o", options, "overlay", str(root)]
    try:
        tried = subprocess.run([*own, *mount], capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise NoRehearsalServers(
            "starting a server with a root of its own: there is no command unshare here",
            hint="Install util-linux, or use --servers namespace.",
        ) from error
    shutil.rmtree(trial)
    if tried.returncode:
        raise NoRehearsalServers(
            f"mounting a server's root over {base}: {tried.stderr.strip()}",
            hint="It needs overlay file systems, namespaces of processes and mounts, and "
            f"{trial.parent} on a plain disk: a container has them only if it is privileged, "
            "with a volume there. --servers namespace needs none of it.",
        )
