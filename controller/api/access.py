"""The routes on who may do what: who one is, tokens, and the audit log."""

from dataclasses import asdict
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le
from fastapi import APIRouter
from pydantic import Field

from patchlight.controller.access.audit import AuditLog
from patchlight.controller.access.tokens import (
    LONGEST_LIFETIME_S,
    USUAL_LIFETIME_S,
    Token,
    Tokens,
    without_tokens,
)
from patchlight.controller.api.caller import Admin, Viewer
from patchlight.controller.api.openapi import gives
from patchlight.controller.changes import requests
from patchlight.testbed.lab.rules import Role
from patchlight.testbed.wire.rest import access as shapes

Answer = dict[str, Any]

RoleName = Literal["viewer", "user", "operator", "admin"]
TokenId = Annotated[str, Field(pattern=r"^[0-9a-f]{8}$")]


class TokenRequest(requests.Strict):
    """A token for ``user``, who has that role for so long, in seconds."""

    user: Annotated[requests.Text, Field(min_length=1, max_length=80)]
    role: RoleName = "viewer"
    lifetime_s: Annotated[float, Ge(60), Le(LONGEST_LIFETIME_S)] = USUAL_LIFETIME_S
    why: requests.Text = ""


def access_routes(tokens: Tokens, audit: AuditLog) -> APIRouter:
    """The routes on access to one lab."""
    routes = APIRouter(prefix="/v1", tags=["access"])

    @routes.get("/whoami", **gives(shapes.WhoAmI))
    async def whoami(caller: Viewer) -> Answer:
        return {"user": caller.by, "role": str(caller.role), "origin": caller.origin}

    @routes.get("/tokens", **gives(shapes.TokensShape))
    async def all_tokens(caller: Admin) -> Answer:
        return {"tokens": [asdict(token) for token in tokens.all()]}

    @routes.post("/tokens", **gives(shapes.NewToken, 201))
    async def create(request: TokenRequest, caller: Admin) -> Answer:
        role = Role.named(request.role)
        made, text = tokens.create(
            without_tokens(request.user),
            role,
            caller.by,
            without_tokens(request.why),
            request.lifetime_s,
        )
        return {**asdict(made), "token": text}

    @routes.delete("/tokens/{token_id}", **gives(shapes.TokenShape))
    async def revoke(token_id: TokenId, caller: Admin) -> Answer:
        found: Token = tokens.revoke(token_id, caller.by)
        return asdict(found)

    @routes.get("/audit", **gives(shapes.AuditShape))
    async def attempts(
        caller: Admin,
        last: requests.PageLength = requests.PAGE,
        after: requests.Number | None = None,
        user: requests.Text = "",
        outcome: requests.Text = "",
    ) -> Answer:
        return {"attempts": audit.rows(last, after, by=user, outcome=outcome)}

    return routes
