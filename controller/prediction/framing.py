"""The overhead of headers and acknowledgements."""

from typing import NamedTuple

from patchlight.testbed.errors import BadInput

ETHERNET_BYTES = 38
"""Around a packet on a wire: preamble 8, header 14, checksum 4, gap 12 (IEEE 802.3)."""
EMULATED_BYTES = 14
"""The same in an emulated lab, whose rate limits count the header alone."""
# IPv4 20 (RFC 791), TCP 20 (RFC 9293), and its timestamps 12 (RFC 7323), Linux's default.
_HEADERS_BYTES = 52
# An acknowledgement for every second full segment (RFC 9293, 3.8.6.3).
_ACKNOWLEDGED = 2
_LEAST_MTU = 576
_MOST_MTU = 65_535


class Framing(NamedTuple):
    """Bits on links for each bit that is sent: ``there`` on those to the receiver, ``back`` on
    those from it to the sender."""

    there: float = 1.0
    back: float = 0.0


BARE = Framing()
"""Links carry what is sent and nothing else."""


def tcp(mtu: int, frame_bytes: int = ETHERNET_BYTES) -> Framing:
    """Bulk transfers over TCP and IPv4 in packets of at most ``mtu`` bytes, each with
    ``frame_bytes`` around it.

    ``BadInput`` for an MTU that is none.
    """
    if not _LEAST_MTU <= mtu <= _MOST_MTU:
        raise BadInput(
            f"an MTU of {mtu} bytes: expected {_LEAST_MTU} to {_MOST_MTU}"
        )
    payload = mtu - _HEADERS_BYTES
    acknowledgement = _HEADERS_BYTES + frame_bytes
    return Framing(
        (mtu + frame_bytes) / payload,
        acknowledgement / (_ACKNOWLEDGED * payload),
    )
