"""Identifies the caller of a request, and checks the roles that routes need.

The kernel knows the user id of the peer of a Unix socket, and of each local TCP socket. Only root
may name another user. A token identifies its user from anywhere.
"""

import asyncio
import grp
import os
import pwd
import re
import socket
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request

from patchlight.controller.access.tokens import Tokens
from patchlight.controller.changes.record import ChangeOptions
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.rules import Access, Role
from patchlight.testbed.linux.sockets import UNIX_CLIENT, is_loopback
from patchlight.testbed.wire.lab_api import UID_HEADER, USER_HEADER

_TABLES = {4: Path("/proc/net/tcp"), 6: Path("/proc/net/tcp6")}
_NOBODYS = "0"
_LONGEST_NAME = 80
_LONGEST_UID = 10
_BEARER = "bearer "
UNKNOWN = "(unknown)"
T = TypeVar("T")


class NotKnown(PatchlightError):
    """The caller must be known, and is not."""


class NotAllowed(PatchlightError):
    """The caller may not do that."""


@dataclass(frozen=True)
class Caller(ChangeOptions):
    """The caller and their role; ``token`` is the id of the token used."""

    role: Role = Role.NOBODY
    token: str = ""

    @property
    def place(self) -> str:
        """The origin: equal for all connections of a user there."""
        at, _, user = self.origin.partition(" ")
        return at.rpartition(":")[0] + user if ":" in at else self.origin


def admin_uids() -> frozenset[int]:
    """The user ids that are admins of this process."""
    # A user who started it by ``sudo`` can be root anyway.
    sudo_uid = os.environ.get("SUDO_UID", "")
    return frozenset(
        {0, os.geteuid()}
        | ({int(sudo_uid)} if sudo_uid.isdecimal() else set())
    )


class Doorman:
    """Identifies the callers of one lab's API."""

    def __init__(self, access: Access, tokens: Tokens | None = None) -> None:
        self._access = access
        self._tokens = tokens
        self._admin_uids = admin_uids()
        self._logins: dict[int, str] = {}
        # Others' reads in the loop's own threads do not delay it.
        self._looking_up = ThreadPoolExecutor(4, "users")

    async def caller(self, request: Request) -> Caller:
        """The user, the origin of the request, and the role.

        A local user has the name of the login. Root may name another user (``sudo``), and by user
        id also use their role. A user whom the kernel no longer shows is unknown. ``NotKnown`` for
        a bad token, or a missing one where it is needed.
        """
        host, port = request.client or ("", 0)
        here = host == UNIX_CLIENT or is_loopback(host)
        origin = f"{host}:{port}"
        shown = request.headers.get("authorization", "")
        if shown or not here:
            return self._holder(
                shown, "unix" if host == UNIX_CLIENT else origin
            )
        # A connection keeps its user.
        seen: dict[str, Any] = request.scope.get("state", {}).get(
            "connection", {}
        )
        if "uid" not in seen:
            server = request.scope.get("server")
            seen["uid"] = port
            if host != UNIX_CLIENT:
                # The kernel's table may be long.
                seen["uid"] = await self._look_up(
                    user_id_of, (host, port), server
                )
        uid: int | None = seen["uid"]
        origin = host if host == UNIX_CLIENT else origin
        if uid is None:
            who = f"{origin} (unknown user)"
            role = min(self._access.others, Role.VIEWER)
            return Caller(
                by=UNKNOWN,
                origin=who,
                role=role,
            )
        spoken_for = _spoken_for(request) if uid == 0 else None
        who = (
            f"uid {uid}"
            if spoken_for is None
            else f"uid {uid} for uid {spoken_for}"
        )
        declared = ""
        if uid == 0 and spoken_for is None:
            name = request.headers.get(USER_HEADER, "")[:_LONGEST_NAME]
            declared = "".join(c if c.isprintable() else "?" for c in name)
        uid = uid if spoken_for is None else spoken_for
        login = await self._login(uid)
        roles = seen.setdefault("roles", {})
        if uid not in roles:
            roles[uid] = await self._look_up(self._role_of, uid, login)
        return Caller(
            by=declared or login,
            origin=f"{origin} ({who})",
            role=roles[uid],
        )

    async def _look_up(
        self, function: Callable[..., T], *arguments: object
    ) -> T:
        """The result of a function that may read long tables, or use the network."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._looking_up, function, *arguments
        )

    async def _login(self, uid: int) -> str:
        """The name of a user, cached."""
        if uid not in self._logins:
            try:
                self._logins[uid] = (
                    await self._look_up(pwd.getpwuid, uid)
                ).pw_name
            except KeyError:
                return f"uid {uid}"
        return self._logins[uid]

    def _holder(self, shown: str, origin: str) -> Caller:
        is_bearer = shown[: len(_BEARER)].lower() == _BEARER
        text = shown[len(_BEARER) :].strip() if is_bearer else ""
        token = self._tokens.holder(text) if self._tokens and text else None
        if token is None:
            raise NotKnown(
                "this token is not valid: it may have been revoked, or have expired"
                if text
                else "requests from another machine need a token",
                hint="an admin creates one with 'patchlight token create'; then run: patchlight "
                "login --controller HOST:PORT",
            )
        return Caller(
            token.user,
            origin,
            role=Role.named(token.role),
            token=token.id,
        )

    def _role_of(self, uid: int, login: str) -> Role:
        if uid in self._admin_uids:
            return Role.ADMIN
        try:
            found = grp.getgrnam(self._access.group)
            is_member = (
                login in found.gr_mem
                or pwd.getpwuid(uid).pw_gid == found.gr_gid
            )
        except KeyError:
            is_member = False
        return self._access.members if is_member else self._access.others


def _spoken_for(request: Request) -> int | None:
    """The user id that root calls for; ``NotKnown`` if it is invalid."""
    said = request.headers.get(UID_HEADER)
    if said is None:
        return None
    if not (said.isascii() and said.isdecimal() and len(said) <= _LONGEST_UID):
        raise NotKnown(
            f"{said[:40]!r} in {UID_HEADER} is not a user id",
            hint="expected a number",
        )
    return int(said)


def who_asks(request: Request) -> Caller:
    """The caller as identified at admission, with the conditions in the headers.

    ``If-Match`` is an alternative to ``planned_from``, ``Prefer: respond-async`` (RFC 7240) to
    ``detaches``.
    """
    caller = request.state.caller
    assert isinstance(caller, Caller)
    if request.method == "GET":
        return caller
    tag = (
        request.headers.get("if-match", "")
        .strip()
        .removeprefix("W/")
        .strip('"')
    )
    preferred = request.headers.get("prefer", "").lower().split(",")
    detaches = any(
        each.partition(";")[0].strip() == "respond-async" for each in preferred
    )
    if not (detaches or (tag and tag != "*")):
        return caller
    return replace(
        caller,
        planned_from="" if tag == "*" else tag,
        detaches=detaches,
    )


_IN_WORDS: Mapping[Role, str] = {
    Role.NOBODY: "nobody",
    Role.VIEWER: "a viewer",
    Role.USER: "a user",
    Role.OPERATOR: "an operator",
    Role.ADMIN: "an admin",
}


def _dependency(
    role: Role, *, dry_run: Role | None = None
) -> Callable[[Request], Awaitable[Any]]:
    """The caller, who needs ``role``, or for a ``dry_run`` that one."""

    async def needs(request: Request) -> Caller:
        caller = who_asks(request)
        needed = (
            role
            if dry_run is None or not await _is_dry_run(request)
            else dry_run
        )
        if caller.role < needed:
            raise NotAllowed(
                f"{request.method} {request.url.path[:200]} needs the role {needed}; "
                f"{caller.by or UNKNOWN} is {_IN_WORDS[caller.role]}",
                hint="an admin gives roles with 'patchlight token create', or with "
                "controller: {access: …} in the lab file; the users of its group are operators",
            )
        return caller

    return needs


async def _is_dry_run(request: Request) -> bool:
    try:
        body = await request.json()
    except (ValueError, RecursionError):
        return False
    return isinstance(body, dict) and body.get("dry_run") is True


as_viewer = _dependency(Role.VIEWER)
as_operator = _dependency(Role.OPERATOR)

Viewer = Annotated[Caller, Depends(as_viewer)]
User = Annotated[Caller, Depends(_dependency(Role.USER))]
Submitter = Annotated[
    Caller, Depends(_dependency(Role.USER, dry_run=Role.VIEWER))
]
Operator = Annotated[Caller, Depends(as_operator)]
Admin = Annotated[Caller, Depends(_dependency(Role.ADMIN))]


def user_id_of(
    client: tuple[str, int], server: tuple[str, int | None] | None
) -> int | None:
    """The user id of a connection's client; ``None`` if it is on another machine."""
    try:
        address = ip_address(client[0])
    except ValueError:
        return None
    if server is None or server[1] is None or not is_loopback(client[0]):
        return None
    ours = _as_kernel(client)
    theirs = _as_kernel((server[0], server[1]))
    try:
        table = _TABLES[address.version].read_text()
    except OSError:
        return None
    # The table may be long: only the matching line is parsed.
    for line in re.findall(f": {ours} {theirs} (.*)", table):
        uid, inode = (line.split(maxsplit=7)[n] for n in (4, 6))
        # A socket closed by its process has no inode, and is shown as root's.
        if inode != _NOBODYS:
            return int(uid)
    return None


def _as_kernel(address: tuple[str, int]) -> str:
    """``0100007F:1F90``: each 32 bits of the address in the machine's byte order, then the port."""
    packed = ip_address(address[0]).packed
    words = (packed[at : at + 4] for at in range(0, len(packed), 4))
    # Like the kernel: on a little-endian machine the bytes of each word are reversed.
    host = "".join(
        f"{socket.ntohl(int.from_bytes(word, 'big')):08X}" for word in words
    )
    return f"{host}:{address[1]:04X}"
