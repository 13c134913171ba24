"""``patchlight ocs fault``: have an emulated switch fail on purpose."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import click

from patchlight.testbed.errors import BadInput, PatchlightError

_ANSWERS_WITHIN_S = 10.0


@click.command(
    epilog='FAULT is a JSON object: {"refuse_next": "busy"}, {"cut": "after"}, {"stall_s": 2}, '
    '{"fail_ports": [7]}, {"lose": "3>9"}, {"reboot": "keep"}. An empty one, {}, changes nothing.'
)
@click.argument("control", metavar="SOCKET", type=click.Path(path_type=Path))
@click.argument("fault", metavar="FAULT")
def fault(control: Path, fault: str) -> None:
    """Tell an emulated switch, at its --control SOCKET, what is to go wrong.

    Prints the faults that stand then.
    """
    try:
        request = json.loads(fault)
    except ValueError as error:
        raise BadInput(f"{fault!r} is not JSON: {error}") from error
    answer = _send(control, request)
    if not answer["ok"]:
        raise BadInput(f"the emulated switch does not know that fault: {answer['error']}")
    click.echo(json.dumps(answer["faults"]))


def _send(control: Path, request: object) -> dict[str, object]:
    try:
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(_ANSWERS_WITHIN_S)
            line.connect(str(control))
            line.sendall(json.dumps(request).encode() + b"\n")
            with line.makefile() as reply:
                answer: dict[str, object] = json.loads(reply.readline())
                return answer
    except (OSError, ValueError) as error:
        raise PatchlightError(
            f"no emulated switch answers at {control}: {error}",
            hint="start one with 'patchlight ocs emulate … --control SOCKET'",
        ) from error
