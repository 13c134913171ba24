"""Who may do what: who one is, tokens, and who wanted to change what."""

from typing import Literal

from typing_extensions import TypedDict

from patchlight.testbed.wire.rest import exactly


@exactly
class WhoAmI(TypedDict):
    """Who one is to the controller."""

    user: str
    role: str
    origin: str


@exactly
class TokenShape(TypedDict):
    """What is known of a token; it lets its ``user`` in until then, unless it was revoked."""

    id: str
    user: str
    role: str
    created_at: float
    created_by: str
    expires_at: float
    why: str
    revoked_at: float | None
    revoked_by: str


@exactly
class NewToken(TokenShape):
    """A token that was just made; its text, ``token``, is told only now."""

    token: str


@exactly
class TokensShape(TypedDict):
    """Every token that was made."""

    tokens: list[TokenShape]


@exactly
class AttemptRow(TypedDict):
    """An attempt to change something."""

    number: int
    at: float
    by: str
    origin: str
    role: str
    what: str
    outcome: Literal["done", "refused", "failed", "unknown"]
    status: int
    why: str
    token: str
    about: str
    repeated: int


@exactly
class AuditShape(TypedDict):
    """Who wanted to change what."""

    attempts: list[AttemptRow]
