"""Reads tables of a packet switch by SNMP."""

import asyncio
import socket
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.rules import Snmp
from patchlight.testbed.linux import namespaces
from patchlight.testbed.linux.credentials import secret_of
from patchlight.testbed.linux.sockets import split_address

Oid = tuple[int, ...]
Value = int | bytes
Column = dict[Oid, Value]
"""The values of a table's column, by the rest of their OIDs."""

# An answer of so many counters fits a packet of 1,500 bytes.
_VALUES = 45
_TIMEOUT_S = 2.0
_REPEATS = 1
_MOST_ROWS = 200_000
_WITHOUT_VALUE = ("NoSuchObject", "NoSuchInstance", "EndOfMibView")


class SnmpFailed(PatchlightError):
    """A switch did not answer, or not with what is needed."""


class AnySnmpSession(Protocol):
    """What carries requests to an SNMP agent; see ``SnmpSession``."""

    async def following(
        self, after: Sequence[Oid], rows: int
    ) -> list[tuple[Oid, Value | None]]:
        """Up to ``rows`` times what follows each of these in the agent, row by row."""

    def close(self) -> None:
        """Close its socket."""


class SnmpAgent:
    """The SNMP agent of the packet switch ``name``."""

    def __init__(self, name: str, session: AnySnmpSession) -> None:
        self.name = name
        self._session = session
        self._one_request = asyncio.Lock()

    def close(self) -> None:
        """Close its socket."""
        self._session.close()

    async def walk(
        self, *columns: Oid, rows: Collection[int] = ()
    ) -> list[Column]:
        """These columns of one table, read together; only from the lowest to the highest of
        ``rows``, if any. ``SnmpFailed`` without an answer."""
        found: list[Column] = [{} for _ in columns]
        start = (min(rows) - 1,) if rows else ()
        left = {
            number: column + start for number, column in enumerate(columns)
        }
        while left:
            order = tuple(left)
            for place, (oid, value) in enumerate(
                await self._next([left[n] for n in order])
            ):
                number = order[place % len(order)]
                column = columns[number]
                if number not in left:
                    continue
                rest = oid[len(column) :]
                beyond = value is None or oid[: len(column)] != column
                if beyond or (rows and rest > (max(rows),)):
                    del left[number]
                elif oid <= left[number] or len(found[number]) > _MOST_ROWS:
                    raise SnmpFailed(
                        f"{self.name}: its SNMP table does not end"
                    )
                else:
                    assert value is not None
                    left[number] = oid
                    found[number][rest] = value
        return found

    async def _next(self, after: list[Oid]) -> list[tuple[Oid, Value | None]]:
        # Many agents answer one request at a time.
        async with self._one_request:
            return await self._session.following(after, _VALUES // len(after))


class SnmpSession:
    """SNMPv2c or v3 over UDP to the agent of the packet switch ``name``, from the network namespace
    ``netns``."""

    def __init__(
        self,
        name: str,
        said: Snmp,
        netns: Path | None = None,
    ) -> None:
        self.name = name
        self._said = said
        self._netns = netns
        self._community = secret_of(
            said.community_env, f"the SNMP community of {name}"
        )
        self._auth = secret_of(
            said.auth_env, f"the SNMP password of {said.user} at {name}"
        )
        self._priv = secret_of(
            said.priv_env,
            f"the SNMP privacy password of {said.user} at {name}",
        )
        self._session: tuple[Any, ...] | None = None

    def close(self) -> None:
        """Close its socket."""
        if self._session is not None:
            self._session[1].close_dispatcher()
            self._session = None

    async def following(
        self, after: Sequence[Oid], rows: int
    ) -> list[tuple[Oid, Value | None]]:
        """Up to ``rows`` times what follows each of these in the agent, row by row.

        ``SnmpFailed`` without an answer.
        """
        if self._session is None:
            self._session = await self._open()
        api, engine, login, target = self._session
        error, status, _, values = await api.bulk_cmd(
            engine,
            login,
            target,
            api.ContextData(),
            0,
            rows,
            *(api.ObjectType(api.ObjectIdentity(oid)) for oid in after),
            lookupMib=False,
        )
        if error:
            raise self._failure(type(error).__name__, str(error))
        if status or not values:
            why = status.prettyPrint() if status else "an empty answer"
            raise SnmpFailed(
                f"{self.name} at {self._said.address}: SNMP error: {why}"
            )
        return [(tuple(oid), _plain(value)) for oid, value in values]

    def _failure(self, kind: str, words: str) -> SnmpFailed:
        said = self._said
        where = f"{self.name} at {self._said.address}"
        if kind != "RequestTimedOut":
            return SnmpFailed(
                f"{where} refuses the SNMP user {said.user}: {words}"
            )
        community = (
            f"the community in {said.community_env}"
            if said.community_env
            else "'public'"
        )
        of = f"user {said.user}" if said.user else community
        return SnmpFailed(
            f"no SNMP answer from {where}: check the address, and that it allows {of} to read "
            f"from this machine"
        )

    async def _open(self) -> tuple[Any, ...]:
        api, engine = await asyncio.to_thread(_new_engine)
        host, port = split_address(self._said.address)
        kind = (
            api.Udp6TransportTarget if ":" in host else api.UdpTransportTarget
        )
        try:
            target = await kind.create(
                (host, port),
                timeout=_TIMEOUT_S,
                retries=_REPEATS,
            )
        except Exception as error:
            raise SnmpFailed(f"{self.name}: {host} not found") from error
        with ExitStack() as stack:
            if self._netns is not None:
                stack.enter_context(namespaces.entered(self._netns))
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            local = socket.socket(
                family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK
            )
        target.open_client_mode = lambda: (
            kind.PROTO_TRANSPORT().open_server_mode(sock=local)
        )
        return api, engine, self._login(api), target

    def _login(self, api: Any) -> Any:
        if self._said.user is None:
            return api.CommunityData(self._community or "public", mpModel=1)
        hashes = {
            "sha256": api.USM_AUTH_HMAC192_SHA256,
            "sha512": api.USM_AUTH_HMAC384_SHA512,
            "sha": api.USM_AUTH_HMAC96_SHA,
            "md5": api.USM_AUTH_HMAC96_MD5,
        }
        return api.UsmUserData(
            self._said.user,
            self._auth or None,
            self._priv or None,
            hashes[self._said.auth] if self._auth else api.USM_AUTH_NONE,
            api.USM_PRIV_CFB128_AES if self._priv else api.USM_PRIV_NONE,
        )


SnmpSessionFactory = Callable[[str, Snmp, Path | None], AnySnmpSession]


def _new_engine() -> tuple[Any, Any]:
    # It takes half a second, so a thread does it.
    from pysnmp.hlapi.v3arch import asyncio as api

    return api, api.SnmpEngine()


def _plain(value: Any) -> Value | None:
    if type(value).__name__ in _WITHOUT_VALUE:
        return None
    if hasattr(value, "asOctets"):
        return bytes(value.asOctets())
    # Another table that follows may have values of other types.
    return int(value) if hasattr(value, "__int__") else str(value).encode()
