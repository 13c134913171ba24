"""Options of commands that log in to servers: the passwords, from a prompt or a file."""

from __future__ import annotations

import functools
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from patchlight.testbed.errors import BadInput

Command = TypeVar("Command", bound=Callable[..., Any])
_LONGEST = 4096


def ssh_options(command: Command) -> Command:
    """Give a command the options of passwords; it gets them as ``passwords``."""

    @functools.wraps(command)
    def with_passwords(
        *arguments: Any,
        ask_password: bool,
        password_file: Path | None,
        ask_sudo_password: bool,
        sudo_password_file: Path | None,
        **options: Any,
    ) -> Any:
        from patchlight.deploy.ssh import Passwords

        login = _password("password", ask_password, password_file)
        sudo = _password("sudo-password", ask_sudo_password, sudo_password_file, default=login)
        return command(*arguments, passwords=Passwords(login, sudo), **options)

    made: Any = with_passwords
    for option in reversed(_options()):
        made = option(made)
    wrapped: Command = made
    return wrapped


def _options() -> list[Callable[[Any], Any]]:
    file = click.Path(path_type=Path)
    return [
        click.option("--ask-password", is_flag=True, help="Ask for the password to log in with."),
        click.option("--password-file", type=file, help="Read it from a file of yours alone."),
        click.option("--ask-sudo-password", is_flag=True, help="Ask for the password of sudo."),
        click.option("--sudo-password-file", type=file, help="Read it from a file of yours alone."),
    ]


def _password(option: str, ask: bool, file: Path | None, default: str | None = None) -> str | None:
    if ask and file is not None:
        raise BadInput(f"--ask-{option} and --{option}-file exclude each other: give one")
    if file is not None:
        return read_password(file)
    if not ask:
        return None
    if not sys.stdin.isatty():
        raise BadInput(
            f"--ask-{option} needs a terminal to ask at",
            hint=f"Use --{option}-file FILE, with a file that only you may read.",
        )
    what = "Password to log in with" if option == "password" else "Password of sudo"
    if default:
        what += " (empty: the same)"
    given: str = click.prompt(what, default=default or "", hide_input=True, show_default=False)
    return given or None


def read_password(file: Path) -> str:
    """The first line of a file that nobody but its owner may read; ``BadInput`` for any other."""
    try:
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise BadInput(f"cannot read the password in {file}: {error.strerror}") from error
    with os.fdopen(fd, "rb") as opened:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise BadInput(f"{file} is no plain file: expected one with a password")
        if status.st_mode & 0o077:
            raise BadInput(f"others may read the password in {file}", hint=f"Run: chmod 600 {file}")
        text = opened.read(_LONGEST).decode(errors="replace")
    password = text.split("\n")[0].rstrip("\r")
    if not password:
        raise BadInput(f"{file} is empty: expected a password on its first line")
    return password
