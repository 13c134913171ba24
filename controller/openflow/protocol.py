"""What the controller and the OpenFlow speaker say to each other: JSON, one message a line.

A request is ``{"v": 1, "id": 7, "op": "apply", "deadline_s": 5, ...}``; its reply carries the
same id and either ``"ok": true`` with ``"result"`` or ``"ok": false`` with ``"error"`` (and
``"failed"``, the entries that a switch refused). A message with ``"event"`` comes unasked.
Nothing here knows an OpenFlow engine, so both sides can import it.
"""

import json
from typing import Any

from patchlight.testbed.errors import PatchlightError

VERSION = 1
# A table of 100,000 entries is some 20 MiB of JSON.
LONGEST_LINE = 64 * 2**20
DEFAULT_DEADLINE_S = 10.0

OPERATIONS = ("hello", "switches", "describe", "ports", "apply", "read_flows", "counters", "send")

Message = dict[str, Any]


class ProtocolError(PatchlightError):
    """The other side of the speaker's socket said something that is not the protocol."""


def encode(message: Message) -> bytes:
    """One message as one line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Message:
    """The message in one line; ``ProtocolError`` if there is none."""
    try:
        message = json.loads(line)
    except ValueError as error:
        raise ProtocolError(f"not a JSON message: {line[:80]!r} ({error})") from error
    if not isinstance(message, dict):
        raise ProtocolError(f"a message must be a JSON object, not {line[:80]!r}")
    return message
