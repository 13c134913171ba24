"""Defines a driver's login data, timeouts and dialect (its table of commands)."""

from __future__ import annotations

import base64
import difflib
import functools
import json
import os
import re
import string
import tomllib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar, get_type_hints
from urllib.parse import quote

import httpx

from patchlight.controller.circuits.contract import LoginRefused
from patchlight.testbed.errors import BadInput, reason
from patchlight.testbed.lab.model import OpticalSwitch, PacketSwitch

# Without tab and line feed, which replies of several lines contain.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class Timeouts:
    """Timeouts of answers and connections, and the keep-alive interval."""

    answer_s: float = 10.0
    connect_s: float = 5.0
    keep_alive_s: float = 60.0


DEFAULT_TIMEOUTS = Timeouts()


@dataclass(frozen=True)
class DeviceLinks:
    """How drivers reach devices. A simulation has its own.

    ``http`` makes the transport of HTTP requests (``None``: TCP, with TLS). Without ``ssh``, a
    session's bytes are sent over TCP as they are, without a login. ``log_in`` connects to where
    commands run (``None``: over SSH). ``launch_speaker`` starts the
    OpenFlow speaker of a circuit switch (``None``: as a process), whose socket is in a folder below
    ``sockets`` (``None``: that of temporary files).
    """

    http: Callable[[], httpx.AsyncBaseTransport] | None = None
    ssh: bool = True
    log_in: Callable[[Session], Awaitable[Any]] | None = None
    launch_speaker: Callable[[Sequence[str]], Awaitable[Any]] | None = None
    sockets: Path | None = None


DEFAULT_LINKS = DeviceLinks()


@functools.lru_cache(maxsize=64)
def _forms(user: str, password: str) -> tuple[str, ...]:
    """The forms of a password in protocols: plain, quoted, in JSON, in a URL, as HTTP's login."""
    if not password:
        return ()
    forms = {
        password,
        password.replace('"', '""'),
        password.replace("\\", "\\\\").replace('"', '\\"'),
        json.dumps(password)[1:-1],
        quote(password, safe=""),
        base64.b64encode(
            f"{user}:{password}".encode(errors="replace")
        ).decode(),
    }
    return tuple(
        sorted(
            forms,
            key=len,
            reverse=True,
        )
    )


@dataclass(frozen=True)
class Session:
    """The device's address, login and timeouts."""

    name: str
    host: str
    port: int
    user: str
    password: str = field(repr=False)
    timeouts: Timeouts = DEFAULT_TIMEOUTS
    legacy_ssh: bool = False
    identity: str | None = None
    host_key: str | None = None

    @classmethod
    def of(
        cls,
        switch: OpticalSwitch | PacketSwitch,
        password: str,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
    ) -> Session:
        """The session with a switch of the lab; ``BadInput`` for an invalid address."""
        host, _, port = switch.address.rpartition(":")
        if not host or not port.isdigit():
            raise BadInput(
                f"{switch.name}: {switch.address!r} is not an address: expected host:port"
            )
        legacy = switch.legacy_ssh
        host = host.strip("[]")
        session = cls(
            switch.name,
            host,
            int(port),
            switch.user,
            password,
            timeouts,
            legacy,
        )
        if isinstance(switch, PacketSwitch):
            session = replace(
                session,
                identity=switch.identity,
                host_key=switch.host_key,
            )
        return session

    def masked(self, text: str) -> str:
        """The text for logs and errors.

        Without the password in any protocol's form, and with control characters escaped: a device's
        message must not control a terminal or start a log line.
        """
        for form in _forms(self.user, self.password):
            text = text.replace(form, "****")
        return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)

    def login_refused(self, words: str) -> LoginRefused:
        """The device's refusal of the user or password, with its message."""
        words = self.masked(words)
        return LoginRefused(
            f"logging in to {self.name} as {self.user!r} was refused: {words}",
            words=words,
            hint=f"check user and {'identity' if self.identity else 'password_env'} of the switch "
            "in the lab file",
        )


DIRECTORY_VARIABLE = "PATCHLIGHT_DIALECTS"

_TEMPLATE = "template"
_PATTERN = "pattern"
Template = Annotated[str, _TEMPLATE]
"""A command template: ``"DLT-PATCH::{ins}:{ctag}:;"``."""
Pattern = Annotated[str, _PATTERN]
"""A regular expression; a correction must name the groups of the built-in one."""


class Bare(str):
    """Text made from numbers and a dialect's marks: it goes into a command unquoted."""


def filled(
    template: str,
    quoted: Callable[[str], str],
    **values: str | int,
) -> str:
    """A template with these values; each text that is not ``Bare`` is passed to ``quoted``.

    A user's or device's text, like a name, must not end a command or start another. Every command
    is made here.
    """
    return template.format(
        **{
            key: value if isinstance(value, (int, Bare)) else quoted(value)
            for key, value in values.items()
        }
    )


@dataclass(frozen=True)
class Dialect:
    """The base of all tables. ``FIELDS``: what the templates of a table may name."""

    FIELDS: ClassVar[frozenset[str]] = frozenset()


@dataclass(frozen=True)
class NumberedDialect(Dialect):
    """A device with separate numbers for inputs and outputs, and lists of ``list_limit`` pairs.

    At or below ``dark_dbm`` a port has no signal.
    """

    list_limit: int = 512
    dark_dbm: float = -50.0


@dataclass(frozen=True)
class PolatisDialect(NumberedDialect):
    """A Polatis: a model in which ``any_to_any`` is found has no inputs and outputs.

    ``port_ready``, ``port_locked`` and ``port_absent`` match the state of a port; all else has
    failed. ``model_size`` is searched in the model, where the device tells its size no other way.
    """

    vendor: str = "Polatis"
    any_to_any: Pattern = r"\b\d+xCC\b"
    model_size: Pattern = r"\b(?P<ins>\d{1,9})x(?P<outs>\d{1,9})\b"
    port_ready: Pattern = r"ENABLED"
    port_locked: Pattern = r"DISABLED"
    port_absent: Pattern = r"(?!)"


D = TypeVar("D", bound=Dialect)


def corrected(driver: str, built_in: D) -> D:
    """The built-in table with the user's corrections for that driver, if any.

    Raises ``BadInput`` with every mistake of the file.
    """
    directory = os.environ.get(DIRECTORY_VARIABLE)
    if not directory:
        return built_in
    path = Path(directory) / f"{driver}.toml"
    if not path.exists():
        return built_in
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadInput(
            f"reading the dialect {path}: {reason(error)}"
        ) from error
    mistakes = [
        m
        for key, value in table.items()
        if (m := _mistake(key, value, built_in))
    ]
    if mistakes:
        raise BadInput(
            f"the dialect {path} has mistakes:\n  " + "\n  ".join(mistakes)
        )
    return replace(built_in, **table)


def _mistake(
    key: str,
    value: object,
    built_in: Dialect,
) -> str | None:
    known = {f.name: getattr(built_in, f.name) for f in fields(built_in)}
    if key not in known:
        near = difflib.get_close_matches(key, known, n=1)
        return f"{key}: unknown entry" + (
            f"; did you mean {near[0]}?" if near else ""
        )
    wanted = type(known[key])
    if type(value) is not wanted and not (
        wanted is float and type(value) is int
    ):
        return f"{key}: expected a {wanted.__name__}, got {value!r}"
    if type(value) is int and wanted is int and value < 1:
        return f"{key}: expected more than {value!r}"
    if not isinstance(value, str):
        return None
    hints = get_type_hints(type(built_in), include_extras=True)
    kinds: tuple[Any, ...] = getattr(hints[key], "__metadata__", ())
    if _TEMPLATE in kinds:
        try:
            names = {
                name
                for _, name, _, _ in string.Formatter().parse(value)
                if name is not None
            }
        except ValueError as error:
            return f"{key}: {error}"
        wrong = names - built_in.FIELDS
        return (
            f"{key}: unknown fields: {', '.join(sorted(wrong))}"
            if wrong
            else None
        )
    if _PATTERN in kinds:
        try:
            groups = re.compile(value).groupindex
        except re.error as error:
            return f"{key}: not a pattern: {error}"
        missing = set(re.compile(known[key]).groupindex) - set(groups)
        return (
            f"{key}: lacks the groups {', '.join(sorted(missing))}"
            if missing
            else None
        )
    return None


def shortened(text: str) -> str:
    """A command for logs and errors: long lists are shortened."""
    return text if len(text) <= 200 else text[:197] + "..."
