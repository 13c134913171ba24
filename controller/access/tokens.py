"""Tokens: what users from other machines, and programs, show in place of a login here.

A token is told once, when it is made. Kept is a hash of it: whoever reads the file cannot use it.
"""

import hashlib
import hmac
import json
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from patchlight.controller.storage.database import Database
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.rules import Role

DAY_S = 86_400.0
USUAL_LIFETIME_S = 30 * DAY_S
LONGEST_LIFETIME_S = 366 * DAY_S
# So that what looks for secrets in files knows one.
_PREFIX = "patchlight"
_LONGEST = 200
_SHOWN = re.compile(rf"({_PREFIX}_[0-9a-f]{{1,8}})_[A-Za-z0-9_-]+")


@dataclass(frozen=True)
class Token:
    """What is known of a token: not the token itself.

    ``user`` is who goes by it. Times are Unix times; it counts until ``expires_at`` unless it was
    revoked before.
    """

    id: str
    user: str
    role: str
    created_at: float
    created_by: str
    expires_at: float
    why: str = ""
    revoked_at: float | None = None
    revoked_by: str = ""

    def is_good(self, now: float) -> bool:
        """Whether who shows it is let in at that time."""
        return self.revoked_at is None and now < self.expires_at


class Tokens:
    """The tokens of one lab, in the controller's file."""

    def __init__(self, store: Database, clock: Callable[[], float] = time.time) -> None:
        self._store, self._clock = store, clock

    def create(
        self, user: str, role: Role, by: str, why: str = "", lifetime_s: float = USUAL_LIFETIME_S
    ) -> tuple[Token, str]:
        """A new token and its text, which nobody is told again."""
        token_id, secret, now = secrets.token_hex(4), secrets.token_urlsafe(32), self._clock()
        made = Token(token_id, user, str(role), now, by, now + lifetime_s, why)
        sql = "INSERT INTO tokens (id, hash, record) VALUES (?, ?, ?)"
        self._store.write(sql, token_id, _hash(secret), json.dumps(asdict(made)))
        return made, f"{_PREFIX}_{token_id}_{secret}"

    def all(self) -> list[Token]:
        """Every token that was ever made, the oldest first."""
        return self._store.each("tokens", "ORDER BY rowid", lambda row: Token(**row))

    def revoke(self, token_id: str, by: str) -> Token:
        """Let nobody in with this token any more. ``BadInput`` if there is none of that id."""
        token = next((each for each in self.all() if each.id == token_id), None)
        if token is None:
            raise BadInput(
                f"there is no token {token_id[:40]!r}",
                hint="'patchlight token list' shows them; name the id, not the token itself",
            )
        if token.revoked_at is None:
            token = Token(**{**asdict(token), "revoked_at": self._clock(), "revoked_by": by})
            sql = "UPDATE tokens SET record = ? WHERE id = ?"
            self._store.write(sql, json.dumps(asdict(token)), token_id)
        return token

    def holder(self, text: str) -> Token | None:
        """The token that somebody shows, if it is good now."""
        prefix, _, rest = text.partition("_")
        token_id, _, secret = rest.partition("_")
        if prefix != _PREFIX or len(text) > _LONGEST:
            return None
        found = self._store.each(
            *("tokens", "WHERE id = ?", lambda row, known: (Token(**row), known), "hash"),
            values=(token_id,),
        )
        for token, known in found:
            if hmac.compare_digest(known, _hash(secret)) and token.is_good(self._clock()):
                return token
        return None


def without_tokens(text: str) -> str:
    """A text that may be written down: of each token in it, its id."""
    return _SHOWN.sub(r"\1_…", text)


def _hash(secret: str) -> str:
    # 256 random bits cannot be guessed, so a quick hash does: there is nothing to slow down.
    return hashlib.sha256(secret.encode()).hexdigest()
