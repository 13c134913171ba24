"""A message of the agreement on paths as a datagram, and back; signed with the bounds' key."""

import hashlib
import hmac
import struct
from typing import get_args

from patchlight.testbed.paths.agreement import Kind, Message

_KINDS: tuple[Kind, ...] = get_args(Kind)
_FORMAT = struct.Struct("!4sBIHHQ?i")
_MAGIC = b"PLP1"
_SIGNATURE_BYTES = 16
KEY_BYTES = 32


def packed(message: Message, key: bytes) -> bytes:
    """The datagram: 26 bytes and a signature of 16 (keyed BLAKE2s)."""
    kind = _KINDS.index(message.kind)
    body = _FORMAT.pack(_MAGIC, kind, *message[1:])
    return body + _signature(body, key)


def unpacked(datagram: bytes, key: bytes) -> Message | None:
    """The message; ``None`` for what is none, or is not signed with the key."""
    body, signature = datagram[: _FORMAT.size], datagram[_FORMAT.size :]
    if len(body) < _FORMAT.size or not hmac.compare_digest(signature, _signature(body, key)):
        return None
    magic, kind, epoch, sender, to, attempt, receiver, channel = _FORMAT.unpack(body)
    if magic != _MAGIC or kind >= len(_KINDS):
        return None
    return Message(_KINDS[kind], epoch, sender, to, attempt, receiver, channel)


def _signature(body: bytes, key: bytes) -> bytes:
    return hashlib.blake2s(body, digest_size=_SIGNATURE_BYTES, key=key).digest()
