"""Commands on a server as root."""

import contextlib
import secrets
from shlex import quote

import paramiko
from paramiko.channel import ChannelFile, ChannelStderrFile, ChannelStdinFile

from patchlight.testbed.errors import PatchlightError

_PATIENCE_S = 30.0
_MOST_BYTES = 1 << 16


class NoCommands(PatchlightError):
    """The server runs no commands for the user who logged in."""


class SudoRefused(PatchlightError):
    """``sudo`` does not let us be root."""


def as_root(
    client: paramiko.SSHClient, command: str, server: str, password: str | None = None
) -> tuple[ChannelStdinFile, ChannelFile, ChannelStderrFile]:
    """Start a shell command as root; its standard streams, as ``exec_command`` gives them.

    Whoever logs in as root needs no sudo. The password goes to sudo's standard input, and only
    once sudo has asked for it, so that it never is a command's input. ``SudoRefused`` where sudo
    wants what we have not, ``NoCommands`` where it did not get as far; ``server`` is the name for
    messages.
    """
    transport = client.get_transport()
    if transport is None:
        raise paramiko.SSHException("the connection is closed")
    prompt, ready = f"sudo-{secrets.token_hex(8)}:", f"root-{secrets.token_hex(8)}"
    # On both streams: a greeting of the user's shell does not belong to the command either.
    run = quote(f"echo {ready}; echo {ready} >&2; {command}")
    channel = transport.open_session(timeout=_PATIENCE_S)
    channel.settimeout(_PATIENCE_S)
    try:
        # The user's own shell may be one that knows no `if`.
        script = f'[ "$(id -u)" = 0 ] && exec sh -c {run}; exec sudo -S -p {prompt} -- sh -c {run}'
        channel.exec_command(f"env LC_ALL=C sh -c {quote(script)}")
        _let_in(channel, prompt.encode(), f"{ready}\n".encode(), server, password)
        channel.settimeout(None)
    except BaseException:
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            channel.close()
        raise
    return channel.makefile_stdin("wb"), channel.makefile("r"), channel.makefile_stderr("r")


def _let_in(
    channel: paramiko.Channel, prompt: bytes, ready: bytes, server: str, password: str | None
) -> None:
    """Answer sudo's question, until the command is about to run."""
    said, told = b"", False
    while not said.endswith(ready):
        # Byte by byte: what comes after belongs to the command.
        try:
            byte = channel.recv_stderr(1)
        except TimeoutError as error:
            raise _refused(server, _words(said, prompt) or "it says nothing") from error
        said += byte
        if not byte or len(said) > _MOST_BYTES:
            words = _words(said + channel.recv(_MOST_BYTES), prompt)
            if "sudo" in words:
                raise _refused(server, words)
            raise NoCommands(
                f"running a command on {server}: it said {words!r} and ended",
                hint="Does the shell of the user who logs in there run commands?",
            )
        if said.endswith(prompt):
            if password is None:
                raise _refused(server, "a password is required")
            if told:
                raise _refused(server, "it does not take the password")
            channel.sendall(f"{password}\n".encode())
            told, said = True, b""
    said = b""
    while not said.endswith(ready):
        byte = channel.recv(1)
        said += byte
        if not byte or len(said) > _MOST_BYTES:
            raise _refused(server, "what it runs does not answer")


def _words(said: bytes, prompt: bytes) -> str:
    lines = said.replace(prompt, b"").decode(errors="replace").split("\n")
    return " ".join(line.strip() for line in lines if line.strip())[-300:]


def _refused(server: str, reason: str) -> SudoRefused:
    return SudoRefused(
        f"becoming root on {server}: sudo: {reason.removeprefix('sudo: ')}",
        hint="Give the password of sudo (--ask-sudo-password), or let the user use it without a "
        f"password: a line 'NAME ALL=(ALL) NOPASSWD: ALL' in /etc/sudoers.d on {server}",
    )
