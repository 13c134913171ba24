"""The part of the controller's client that is about who may do what."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast
from urllib.parse import quote

from patchlight.client.calls import Call, Calls, call

if TYPE_CHECKING:
    from patchlight.testbed.wire.rest.access import AttemptRow, NewToken, TokenShape, WhoAmI


class AccessCalls(Calls):
    """What can be asked and told of tokens; ``ControllerClient`` makes the calls."""

    @call
    def whoami(self) -> Call[WhoAmI]:
        """The ``user`` that one is to the controller, the ``role``, and the ``origin``."""
        return cast("WhoAmI", (yield from self._call("GET", "/whoami")))

    @call
    def create_token(
        self, user: str, role: str = "viewer", lifetime_s: float | None = None, why: str = ""
    ) -> Call[NewToken]:
        """Make a token: what is known of it, and the ``token``, which is told only now."""
        body = {"user": user, "role": role, "why": why}
        lasts = {} if lifetime_s is None else {"lifetime_s": lifetime_s}
        return cast("NewToken", (yield from self._call("POST", "/tokens", body | lasts)))

    @call
    def tokens(self) -> Call[list[TokenShape]]:
        """What is known of each token that was made."""
        return list((yield from self._call("GET", "/tokens"))["tokens"])

    @call
    def revoke_token(self, token_id: str) -> Call[TokenShape]:
        """Let nobody in with the token of that id any more."""
        path = f"/tokens/{quote(token_id, safe='')}"
        return cast("TokenShape", (yield from self._call("DELETE", path)))

    @call
    def audit(
        self, last: int = 100, *, user: str = "", outcome: str = ""
    ) -> Call[list[AttemptRow]]:
        """The last attempts to change something, the oldest first."""
        which = {"user": user, "outcome": outcome}
        wanted = {key: value for key, value in which.items() if value}
        return list((yield from self._call("GET", "/audit", last=last, **wanted))["attempts"])
