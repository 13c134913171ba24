"""``patchlight login``, ``token`` and ``audit``: who may do what, and who did."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from patchlight.console import rendering as out
from patchlight.console.connection import (
    controller_options,
    running_lab,
    with_client,
)
from patchlight.console.options import Quantity
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.rules import ROLES
from patchlight.testbed.units import parse_time

if TYPE_CHECKING:
    from patchlight.client.client import ControllerClient
    from patchlight.testbed.wire.rest.lab import TokenShape

_COLOURS: Mapping[str, out.Meaning] = {
    "done": "good",
    "refused": "bad",
    "failed": "caution",
    "unknown": "bad",
}
_VERBS = {
    "POST": "request",
    "PUT": "set",
    "PATCH": "change",
    "DELETE": "remove",
}


def _address(lab_name: str | None, address: str | None) -> str:
    found = address or running_lab(lab_name).controller_api
    if not found or found.startswith("unix:"):
        raise BadInput(
            "which controller? A Unix socket needs no token",
            hint="give its address with --controller HOST:PORT",
        )
    return found


@click.command()
@click.option(
    "--ca",
    type=click.Path(
        path_type=Path,
        exists=True,
        dir_okay=False,
    ),
    metavar="FILE",
    help="The certificate of the lab's authority: ca.pem, from 'deploy certificates'.",
)
@click.option(
    "--token-file",
    type=click.File("r"),
    metavar="FILE",
    help="A file with the token; - is standard input.  [default: ask for it]",
)
@click.option(
    "--forget",
    is_flag=True,
    help="Forget the token; 'token revoke' makes it invalid.",
)
@controller_options
def login(
    ca: Path | None,
    token_file: Any,
    forget: bool,
    lab_name: str | None,
    address: str | None,
) -> None:
    """Log in to a controller on another machine, with a token.

    An admin creates the token there with 'patchlight token create'. It is stored for your user
    only; every command to that controller uses it.
    """
    from patchlight.client.client import ControllerClient
    from patchlight.client.connection import (
        Login,
        controller_name_at,
        keep_login,
    )

    where = _address(lab_name, address)
    if forget:
        keep_login(where, None)
        out.say(f"no token is stored for {where}")
        return
    if ca is None:
        raise BadInput(
            "--ca is missing: expected the certificate of the lab's authority, ca.pem"
        )
    authority = ca.read_text()
    name = controller_name_at(where, authority)
    if token_file is not None:
        token = token_file.readline().strip()
    else:
        token = click.prompt(
            f"token for {name}",
            hide_input=sys.stdin.isatty(),
            err=True,
        ).strip()
    made = Login(token, authority, name)
    with ControllerClient(where, login=made) as client:
        who = client.whoami()
    keep_login(where, made)
    out.say(f"logged in to {name} at {where} as {who.user}, {who.role}")


@click.group()
def token() -> None:
    """Create and revoke the tokens that users log in with from other machines."""


@token.command()
@click.argument("user")
@click.option(
    "--role",
    type=click.Choice(ROLES),
    default="viewer",
    help="What the user may do.",
)
@click.option(
    "--lifetime",
    default="30d",
    type=Quantity(parse_time),
    metavar="TIME",
    help="How long the token is valid.",
)
@click.option(
    "--why",
    default="",
    metavar="TEXT",
    help="The reason, kept with the token.",
)
@out.json_option
@with_client
def create(
    client: ControllerClient,
    user: str,
    role: str,
    lifetime: float,
    why: str,
    as_json: bool,
) -> None:
    """Create a token for USER and print it; it is not shown again.

    A viewer can read; a user can also submit jobs and stop their own; an operator can also change
    circuits and all jobs; an admin can also create tokens.
    """
    made = client.create_token(
        user,
        role,
        lifetime,
        why,
    )
    out.print_answer(made, made.token, as_json=as_json)
    if not as_json:
        out.say(
            f"token {made.id} for {user}, {role}, good until {out.when(made.expires_at)}; "
            "use it with: patchlight login",
            err=True,
        )


def _state(row: TokenShape) -> out.Coloured:
    if row.revoked_at is not None:
        return out.Coloured(
            f"revoked by {row.revoked_by}, {out.when(row.revoked_at)}",
            "bad",
        )
    if row.expires_at < time.time():
        return out.Coloured(f"ended {out.when(row.expires_at)}", "caution")
    return out.Coloured(f"good until {out.when(row.expires_at)}", "good")


@token.command("list")
@out.listing_options
@with_client
def list_tokens(client: ControllerClient, as_json: bool) -> None:
    """List all tokens with user, creator and expiry."""
    rows = client.tokens()
    table = out.Table(
        out.Column("id", whole=True),
        "user",
        "role",
        "made by",
        "state",
        "why",
    )
    for row in rows:
        cells = (
            row.id,
            row.user,
            row.role,
            row.created_by,
            _state(row),
            row.why,
        )
        table.add_row(*cells)
    out.print_answer({"tokens": rows}, table, as_json=as_json)


@token.command()
@click.argument("token_id", metavar="ID")
@with_client
def revoke(client: ControllerClient, token_id: str) -> None:
    """Revoke the token with that ID."""
    match = re.fullmatch(r"(?:patchlight_)?([0-9a-f]{8})(?:_\S*)?", token_id)
    if match is None:
        raise BadInput(
            "this is not a token's id: 'patchlight token list' shows them"
        )
    gone = client.revoke_token(match[1])
    out.say(f"token {gone.id} for {gone.user} is revoked")


@click.command()
@click.option(
    "--last",
    type=click.IntRange(1, 1000),
    default=50,
    help="Number of requests.",
)
@click.option(
    "--user",
    default="",
    metavar="NAME",
    help="Only requests of this user.",
)
@click.option(
    "--outcome",
    type=click.Choice(list(_COLOURS)),
    help="Only this outcome.",
)
@out.listing_options
@with_client
def audit(
    client: ControllerClient,
    last: int,
    user: str,
    outcome: str | None,
    as_json: bool,
) -> None:
    """List requests that change something: who, from where, what, outcome and reason."""
    rows = client.audit(
        last,
        user=user,
        outcome=outcome or "",
    )
    table = out.Table(
        "when",
        "who",
        "from",
        "what",
        "outcome",
        "why",
    )
    for row in rows:
        words = f"{row.outcome} {row.status} {row.about}".rstrip()
        if row.repeated:
            words += f", and {row.repeated} more"
        outcome_cell = out.Coloured(words, _COLOURS[row.outcome])
        who = row.by or "(unknown user)"
        method, _, path = row.what.partition(" ")
        what = f"{_VERBS.get(method, method)} {path.removeprefix('/v1/')}"
        # A client's port says nothing.
        origin = re.sub(r":\d+( |$)", r"\1", row.origin)
        table.add_row(
            out.when(row.at),
            who,
            origin,
            what,
            outcome_cell,
            row.why,
        )
    out.print_answer({"attempts": rows}, table, as_json=as_json)
