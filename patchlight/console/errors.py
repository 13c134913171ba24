"""How an error ends the command line: what is printed, and the exit code."""

import errno
import os
import shlex
import sys
import traceback
from dataclasses import dataclass
from typing import NoReturn

import click

from patchlight.console.rendering import say
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.io.issues import FileError
from patchlight.testbed.linux.processes import own_program

INTERRUPTED = 130
# What a machine has run out of, and what to do. None of it is a bug of ours.
_RUN_OUT = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some of your disk quota",
    errno.EROFS: "name a folder that can be written to",
    errno.EIO: "see what the kernel says of the device: dmesg",
    errno.EMFILE: "allow more open files: ulimit -n 65536",
    errno.ENFILE: "close some programs, or raise the sysctl fs.file-max",
}


@dataclass
class CrashReport:
    """Whether an error is printed with its traceback (``--debug``, ``PATCHLIGHT_DEBUG=1``)."""

    traceback: bool = False


def report(error: BaseException, settings: CrashReport) -> int:
    """Print ``error`` to standard error as a user can use it; the exit code it asks for."""
    if isinstance(error, SystemExit):
        return _code_of(error)
    if isinstance(error, BrokenPipeError):
        # Whoever read our output has gone. Python would complain once more while it closes
        # standard output, so give it a place to write to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    if isinstance(error, KeyboardInterrupt | click.Abort):
        say("patchlight: interrupted", err=True)
        return INTERRUPTED
    if isinstance(error, click.ClickException):
        error.show()
        return error.exit_code
    if settings.traceback:
        traceback.print_exception(error)
    if isinstance(error, FileError):
        # One line each and nothing before it, so that editors can jump to the place.
        say(str(error), err=True)
        return error.exit_code
    if isinstance(error, PatchlightError):
        say(f"patchlight: {error}", err=True)
        return error.exit_code
    if isinstance(error, OSError) and (what_to_do := _RUN_OUT.get(error.errno or 0)):
        where = f" ({error.filename})" if error.filename else ""
        say(f"patchlight: could not go on: {error.strerror}{where}", err=True)
        say(f"  {what_to_do}, and run the command again", err=True)
        return 1
    said = str(error).strip() or "no message"
    say(f"patchlight: unexpected {type(error).__name__}: {said}", err=True)
    if not settings.traceback:
        say("  this is a bug in Patchlight; its traceback: patchlight --debug …", err=True)
    return 1


def _code_of(error: SystemExit) -> int:
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    say(error.code, err=True)
    return 1


def only_some_finished(finished: int, wanted: int, counted: str) -> NoReturn:
    """End a command like Ctrl-C did, once what is finished of its work is written."""
    say(f"patchlight: only {finished} of {wanted} {counted} are finished and written", err=True)
    raise KeyboardInterrupt


def require_root(doing: str) -> None:
    """``PatchlightError`` that says how to run this very command, unless this process is root."""
    if os.geteuid() != 0:
        words = shlex.join(sys.argv[1:])
        raise PatchlightError(f"{doing} needs root", hint=f"run: sudo {own_program()} {words}")
