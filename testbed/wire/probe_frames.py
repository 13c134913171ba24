"""Encodes and decodes the probe frames that find the ends of fibres, and other devices' LLDP.

A probe names its source port. Bridges do not forward its destination address (IEEE 802.1Q, table
8-1), so it stays on this fibre.
"""

import string
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

ETHERTYPE = 0x88B5
"""The first of two EtherTypes for local experiments (IEEE 802)."""

ETHERTYPE_LLDP = 0x88CC
TO_THE_NEAREST = "01:80:c2:00:00:0e"

_MAGIC = b"patchlight-probe\0"
_LLDP_MAGIC = b"patchlight-probe "
_HEADER_BYTES = 14
_LEAST_BYTES = 60
# Type, length and value; these types identify the sender (IEEE 802.1AB).
_CHASSIS = 1
_PORT = 2
_TIME_TO_LIVE = 3
_PORT_DESCRIPTION = 4
_SYSTEM_NAME = 5
_MAC_OF = {_CHASSIS: 4, _PORT: 3}  # the subtype whose value is a MAC
_PRINTABLE = set(string.printable.encode()) - set(
    string.whitespace.encode()
) | {0x20}
_LONGEST_NAME = 120


@dataclass(
    frozen=True,
    slots=True,
)
class LldpNeighbour:
    """The sender of LLDP: the device's name or id, its port, and the port's description."""

    device: str
    port: str
    about: str = ""

    def __str__(self) -> str:
        return f"{self.device} port {self.port}"


def probe_frame(
    source: str,
    token: str,
    mac: str = "02:50:4c:00:00:01",
) -> bytes:
    """The frame of a search that ``source`` (``tor1.3``) sends with this ``token`` and ``mac``."""
    addresses = bytes.fromhex(f"{TO_THE_NEAREST}{mac}".replace(":", ""))
    payload = _MAGIC + token.encode() + b"\0" + source.encode() + b"\0"
    return (addresses + ETHERTYPE.to_bytes(2, "big") + payload).ljust(
        _LEAST_BYTES, b"\0"
    )


def probe_source(frame: bytes, token: str) -> str | None:
    """The source of a probe of this search; ``None`` for other frames."""
    kind, payload = _split(frame)
    if kind != ETHERTYPE or not payload.startswith(_MAGIC):
        return None
    said, _, rest = payload[len(_MAGIC) :].partition(b"\0")
    name, ended, _ = rest.partition(b"\0")
    return (
        name.decode(errors="replace")
        if ended and said == token.encode()
        else None
    )


def lldp_neighbour(frame: bytes) -> LldpNeighbour | None:
    """The sender of an LLDP frame; ``None`` for other frames and those without a port."""
    kind, payload = _split(frame)
    if kind != ETHERTYPE_LLDP:
        return None
    return sender_of(dict(_fields(payload)))


def sender_of(fields: Mapping[int, bytes]) -> LldpNeighbour | None:
    """The sender with these fields of LLDP, by their types; ``None`` without a port, and for a
    probe."""
    said: dict[int, str] = {}
    for number, value in fields.items():
        if number in _MAC_OF and len(value) > 1:
            is_mac = value[0] == _MAC_OF[number] and len(value) == 7
            said[number] = value[1:].hex(":") if is_mac else _text(value[1:])
        elif number in (_SYSTEM_NAME, _PORT_DESCRIPTION) and value:
            said[number] = _text(value)
    is_probe = fields.get(_PORT_DESCRIPTION, b"").startswith(_LLDP_MAGIC)
    if is_probe or _PORT not in said or _CHASSIS not in said:
        return None
    device = said.get(_SYSTEM_NAME, said[_CHASSIS])
    return LldpNeighbour(device, said[_PORT], said.get(_PORT_DESCRIPTION, ""))


def lldp_probe(
    source: str,
    token: str,
    mac: str,
) -> bytes:
    """The same probe as LLDP, for switches that have LLDP but hand over no frames: they say by SNMP
    what they heard. It is valid for ten seconds, and harmless to others."""
    name = source.encode()
    fields = {
        _CHASSIS: b"\x07" + name,  # assigned locally
        _PORT: b"\x07" + name,
        _TIME_TO_LIVE: (10).to_bytes(2, "big"),
        _PORT_DESCRIPTION: _LLDP_MAGIC + token.encode(),
    }
    payload = b"".join(
        (number << 9 | len(value)).to_bytes(2, "big") + value
        for number, value in fields.items()
    )
    addresses = bytes.fromhex(f"{TO_THE_NEAREST}{mac}".replace(":", ""))
    end = bytes(2)
    frame = addresses + ETHERTYPE_LLDP.to_bytes(2, "big") + payload + end
    return frame.ljust(_LEAST_BYTES, b"\0")


def lldp_probe_source(
    port: bytes,
    description: bytes,
    token: str,
) -> str | None:
    """The source of such a probe of this search, from its port and description; else ``None``."""
    is_one = description == _LLDP_MAGIC + token.encode()
    return port.decode(errors="replace") if is_one else None


def _split(frame: bytes) -> tuple[int, bytes]:
    return int.from_bytes(frame[12:14], "big"), frame[_HEADER_BYTES:]


def _fields(payload: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 2 <= len(payload):
        head = int.from_bytes(payload[at : at + 2], "big")
        number = head >> 9
        length = head & 0x1FF
        if not number or at + 2 + length > len(payload):
            return
        yield number, payload[at + 2 : at + 2 + length]
        at += 2 + length


def _text(value: bytes) -> str:
    shown = value[:_LONGEST_NAME]
    return shown.decode() if set(shown) <= _PRINTABLE else shown.hex(":")
