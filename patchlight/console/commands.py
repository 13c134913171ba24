"""How commands know the lab, keep what takes long, end with an exit code, and run a child."""

import contextlib
import errno
import importlib
import os
import shlex
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from patchlight.console.rendering import listing_options, say
from patchlight.console.shared import (
    address_option,
    lab_option,
    let_go_of_output,
)
from patchlight.testbed.errors import (
    FileError,
    PackageMissing,
    PatchlightError,
)
from patchlight.testbed.linux.processes import own_program

INTERRUPTED = 130
# What a machine has run out of, and what to do. None of it is a bug of ours.
_RUN_OUT = {
    errno.ENOSPC: "free some disk space",
    errno.EDQUOT: "free some of your disk quota",
    errno.EROFS: "name a writable folder",
    errno.EIO: "see the kernel's messages about the device: dmesg",
    errno.EMFILE: "allow more open files: ulimit -n 65536",
    errno.ENFILE: "close some programs, or raise the sysctl fs.file-max",
}
_DASHBOARD_ENDS_S = 10.0


def say_what_stays(lab: str) -> None:
    """Name the folder with the certificates of a lab that is gone, if there is one."""
    from patchlight.controller.access.authority import authority_folder

    folder = authority_folder(lab).parent
    if folder.exists():
        say(
            f"certificates of lab {lab} stay in {folder}: remove it if no server uses them",
            err=True,
        )


def kept(
    name: str,
    packages: Sequence[str],
    make: Callable[[], Any],
) -> Any:
    """The JSON value that ``make`` returns, kept in the user's cache as ``name``.

    It is made again once a file of these packages changes. Under sudo nothing is kept: the cache
    is another user's.
    """
    import hashlib
    import json

    from patchlight.testbed.linux.files import NoHome, user_folder

    read = (".py", ".json", ".onnx", ".yaml")
    folders = [
        Path(f) for p in packages for f in importlib.import_module(p).__path__
    ]
    files = sorted(
        f for folder in folders for f in folder.rglob("*") if f.suffix in read
    )
    stats = [
        (str(file), (at := file.stat()).st_mtime_ns, at.st_size)
        for file in files
    ]
    state = hashlib.sha256(repr((sys.version, stats)).encode()).hexdigest()
    try:
        path = (
            user_folder("XDG_CACHE_HOME", ".cache")
            / "patchlight"
            / f"{name}.json"
        )
    except NoHome:
        return make()
    mine = "SUDO_UID" not in os.environ
    with contextlib.suppress(
        OSError,
        ValueError,
        KeyError,
        TypeError,
    ):
        found = json.loads(path.read_text(encoding="utf-8")) if mine else {}
        if found["state"] == state:
            return found["value"]
    value = make()
    if mine:
        with contextlib.suppress(OSError):
            path.parent.mkdir(
                parents=True,
                exist_ok=True,
            )
            part = path.with_name(f".{path.name}.{os.getpid()}")
            part.write_text(
                json.dumps({"state": state, "value": value}), encoding="utf-8"
            )
            part.replace(path)
    return value


# Made once, so that the help of ``patchlight`` can describe them without a command's module.
lab_option()(address_option(listing_options(lambda: None)))


@dataclass
class CrashReport:
    """Whether an error is printed with its traceback (``--debug``, ``PATCHLIGHT_DEBUG=1``)."""

    traceback: bool = False


def report(error: BaseException, settings: CrashReport) -> int:
    """Print ``error`` to standard error as a user can use it; its exit code."""
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        say(error.code, err=True)
        return 1
    if isinstance(error, BrokenPipeError):
        let_go_of_output()
        return 0
    if isinstance(error, KeyboardInterrupt | click.Abort):
        say("patchlight: interrupted", err=True)
        return INTERRUPTED
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return error.exit_code
    if isinstance(error, click.ClickException):
        text = error.format_message().rstrip(".")
        say(f"patchlight: {text[:1].lower()}{text[1:]}", err=True)
        if isinstance(error, click.UsageError) and error.ctx is not None:
            say(f"  see: {error.ctx.command_path} --help", err=True)
        return error.exit_code
    if settings.traceback:
        say("".join(traceback.format_exception(error)), err=True)
    if isinstance(error, ModuleNotFoundError) and not (
        error.name or ""
    ).startswith("patchlight"):
        error = PackageMissing("this command", error)
    if isinstance(error, PatchlightError):
        # Mistakes in a file have one line each and nothing before it: editors jump to the place.
        say(
            str(error)
            if isinstance(error, FileError)
            else f"patchlight: {error}",
            err=True,
        )
        return error.exit_code
    if isinstance(error, OSError) and (
        what_to_do := _RUN_OUT.get(error.errno or 0)
    ):
        where = f" ({error.filename})" if error.filename else ""
        say(
            f"patchlight: could not continue: {error.strerror}{where}",
            err=True,
        )
        say(f"  {what_to_do}, and run the command again", err=True)
        let_go_of_output()
        return 1
    said = str(error).strip() or "no message"
    say(f"patchlight: unexpected {type(error).__name__}: {said}", err=True)
    if not settings.traceback:
        say(
            "  this is a bug in Patchlight; its traceback: patchlight --debug …",
            err=True,
        )
    return 1


def require_root(doing: str) -> None:
    """Raise ``PatchlightError`` with this command under sudo, unless this process is root."""
    if os.geteuid() != 0:
        words = shlex.join(sys.argv[1:])
        raise PatchlightError(
            f"{doing} needs root", hint=f"run: sudo {own_program()} {words}"
        )


class Dashboard:
    """``patchlight dashboard`` as a child, which also ends when its parent is killed."""

    def __init__(
        self,
        controller: str,
        listen_at: str | None = None,
        *,
        stdout: int | None = None,
    ) -> None:
        command = [
            sys.executable,
            "-m",
            "patchlight",
            "dashboard",
            "--while-stdin",
        ]
        command += ["--controller", controller]
        command += ["--listen", listen_at] if listen_at is not None else []
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=stdout,
            text=True,
        )

    def close(self) -> None:
        """End it, and wait until it has ended."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(_DASHBOARD_ENDS_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
