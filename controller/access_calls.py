"""The part of the controller's client that is about who may do what."""

from abc import ABC, abstractmethod
from typing import Any
from urllib.parse import quote

Answer = dict[str, Any]


class AccessCalls(ABC):
    """What can be asked and told of tokens; ``ControllerClient`` makes the calls."""

    @abstractmethod
    def _call(self, method: str, path: str, body: Any = None, **query: Any) -> Answer: ...

    def whoami(self) -> Answer:
        """The ``user`` that one is to the controller, the ``role``, and the ``origin``."""
        return self._call("GET", "/whoami")

    def create_token(
        self, user: str, role: str = "viewer", lifetime_s: float | None = None, why: str = ""
    ) -> Answer:
        """Make a token: what is known of it, and the ``token``, which is told only now."""
        body = {"user": user, "role": role, "why": why}
        lasts = {} if lifetime_s is None else {"lifetime_s": lifetime_s}
        return self._call("POST", "/tokens", body | lasts)

    def tokens(self) -> list[Answer]:
        """What is known of each token that was made."""
        return list(self._call("GET", "/tokens")["tokens"])

    def revoke_token(self, token_id: str) -> Answer:
        """Let nobody in with the token of that id any more."""
        return self._call("DELETE", f"/tokens/{quote(token_id, safe='')}")

    def audit(self, last: int = 100, *, user: str = "", outcome: str = "") -> list[Answer]:
        """The last attempts to change something, the oldest first."""
        which = {"user": user, "outcome": outcome}
        wanted = {key: value for key, value in which.items() if value}
        return list(self._call("GET", "/audit", last=last, **wanted)["attempts"])
