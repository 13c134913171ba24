"""Manages the tokens of a lab, and its audit log.

A token replaces a login on this machine. Its text is shown once; only a hash of it is stored.
"""

import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from patchlight.controller.storage.database import (
    Database,
    Substitute,
    skip_record,
)
from patchlight.controller.storage.store import UNREADABLE
from patchlight.testbed.clock import unix_s
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.rules import Role
from patchlight.testbed.wire.rest.lab import AttemptRow, TokenShape

DAY_S = 86_400.0
USUAL_LIFETIME_S = 30 * DAY_S
LONGEST_LIFETIME_S = 366 * DAY_S
# A prefix that secret scanners recognise.
_PREFIX = "patchlight"
_LONGEST = 200
_SHOWN = re.compile(rf"({_PREFIX}_[0-9a-f]{{1,8}})_[A-Za-z0-9_-]+")


class Tokens:
    """The tokens of one lab, in the controller's database."""

    def __init__(
        self, store: Database, clock: Callable[[], float] = unix_s
    ) -> None:
        self._store = store
        self._clock = clock

    def create(
        self,
        user: str,
        role: Role,
        by: str,
        why: str = "",
        lifetime_s: float = USUAL_LIFETIME_S,
    ) -> tuple[TokenShape, str]:
        """A new token and its text, which is not shown again."""
        token_id = secrets.token_hex(4)
        secret = secrets.token_urlsafe(32)
        now = self._clock()
        made = TokenShape(
            id=token_id,
            user=user,
            role=str(role),
            created_at=now,
            created_by=by,
            expires_at=now + lifetime_s,
            why=why,
            revoked_at=None,
            revoked_by="",
        )
        sql = "INSERT INTO tokens (id, hash, record) VALUES (?, ?, ?)"
        self._store.write(
            sql,
            token_id,
            _hash(secret),
            json.dumps(dict(made)),
        )
        return made, f"{_PREFIX}_{token_id}_{secret}"

    def all(self) -> list[TokenShape]:
        """Every token ever created, oldest first."""
        return [token for token, _ in self._tokens("ORDER BY rowid")]

    def _tokens(
        self, which: str, *values: object
    ) -> list[tuple[TokenShape, str]]:
        # An unreadable token gives no rights.
        return self._store.each(
            "tokens",
            which,
            self._read,
            "id",
            "hash",
            unreadable=skip_record,
            values=values,
        )

    def _read(
        self,
        row: dict[str, Any],
        token_id: str,
        known: str,
    ) -> tuple[TokenShape, str]:
        """A token and its hash; ``ValueError`` if it could grant rights that nobody granted."""
        token = TokenShape.model_validate(row)
        if token.id != token_id or not isinstance(known, str):
            raise ValueError(f"it belongs to token {token.id}")
        if not token.expires_at <= self._clock() + LONGEST_LIFETIME_S + 1.0:
            raise ValueError("it expires later than any token can")
        Role.named(token.role)
        return token, known

    def revoke(self, token_id: str, by: str) -> TokenShape:
        """Revoke this token. ``BadInput`` for an unknown id."""
        token = next(
            (each for each in self.all() if each.id == token_id), None
        )
        if token is None:
            raise BadInput(
                f"unknown token id {token_id[:40]!r}",
                hint="'patchlight token list' shows the ids; do not pass the token itself",
            )
        if token.revoked_at is None:
            token.revoked_at = self._clock()
            token.revoked_by = by
            sql = "UPDATE tokens SET record = ? WHERE id = ?"
            self._store.write(sql, json.dumps(dict(token)), token_id)
        return token

    def holder(self, text: str) -> TokenShape | None:
        """The valid token for this text, or ``None``."""
        prefix, _, rest = text.partition("_")
        token_id, _, secret = rest.partition("_")
        if prefix != _PREFIX or len(text) > _LONGEST:
            return None
        for token, known in self._tokens("WHERE id = ?", token_id):
            is_good = (
                token.revoked_at is None and self._clock() < token.expires_at
            )
            if is_good and hmac.compare_digest(known, _hash(secret)):
                return token
        return None


def without_tokens(text: str) -> str:
    """A text that may be logged: tokens in it are replaced by their ids."""
    return _SHOWN.sub(r"\1_…", text)


def _hash(secret: str) -> str:
    # 256 random bits cannot be guessed, so a fast hash is enough.
    return hashlib.sha256(secret.encode()).hexdigest()


@dataclass(frozen=True)
class Attempt:
    """One request for a change, accepted or refused.

    ``what`` is its method and path, ``about`` what it created or changed: ids, numbers and states.
    ``status`` is the HTTP status, 0 without a response, and ``outcome`` is ``done``, ``refused``,
    ``failed`` or ``unknown``. ``repeated`` counts unlisted refusals of the same user.
    """

    by: str
    origin: str
    role: str
    what: str
    outcome: str
    status: int
    why: str = ""
    token: str = ""
    about: str = ""
    repeated: int = 0


class AuditLog:
    """The log of one lab, in the controller's database, which prevents changes to it."""

    def __init__(
        self, store: Database, clock: Callable[[], float] = unix_s
    ) -> None:
        self._store = store
        self._clock = clock

    def add(self, attempt: Attempt) -> None:
        """Log a request, now or when the disk has space: it was answered already."""
        sql = (
            "INSERT INTO audit (at, who, outcome, record) VALUES (?, ?, ?, ?)"
        )
        record = json.dumps(asdict(attempt))
        self._store.write_soon(
            (sql, (self._clock(), attempt.by, attempt.outcome, record))
        )

    def rows(
        self,
        last: int,
        after: int | None = None,
        *,
        by: str = "",
        outcome: str = "",
    ) -> list[AttemptRow]:
        """The ``last`` requests, or a number ``after`` that one; oldest first."""
        which = "WHERE number > ? AND (? = '' OR who = ?) AND (? = '' OR outcome = ?)"
        which += (
            " ORDER BY number"
            + ("" if after is not None else " DESC")
            + " LIMIT ?"
        )
        values = (after or 0, by, by, outcome, outcome, last)
        rows = self._store.each(
            "audit",
            which,
            _audited,
            "number",
            "at",
            "who",
            "outcome",
            unreadable=_not_readable,
            values=values,
        )
        return rows if after is not None else rows[::-1]


def _audited(
    row: Mapping[str, Any],
    number: int,
    at: float,
    who: str,
    outcome: str,
) -> AttemptRow:
    said = {
        "by": who,
        "outcome": outcome,
        "number": number,
        "at": at,
    }
    return AttemptRow.model_validate({**row, **said})


def _not_readable(
    number: int,
    at: object,
    who: object,
    outcome: object,
) -> Substitute[AttemptRow]:
    attempt = Attempt(
        str(who),
        "",
        "",
        UNREADABLE,
        str(outcome),
        0,
    )
    row = AttemptRow.model_construct(
        number=number,
        at=at if isinstance(at, float) else 0.0,
        **asdict(attempt),
    )
    return Substitute([row])
