"""What a link does to packets besides limiting them: delay, jitter and loss (``netem``).

A ``netem`` queue stands below the token bucket of ``rate_limits`` where there is one, else at the
root: the two combine. Not every kernel has it; ``check_supported`` says so before anything is made.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.linux import namespaces
from patchlight.testbed.linux.netlink import KernelRefused, Netlink, Request, attribute, attributes
from patchlight.testbed.linux.rate_limits import netem_request, read_netem

# tc_netem_qopt: latency and jitter in ticks (the attributes below, in ns, go before them), the
# longest queue in packets, loss as a share of 2^32 - 1, gap, duplicates.
_QOPT = struct.Struct("=IIIIII")
_LATENCY64, _JITTER64 = 10, 11
_MOST = 0xFFFFFFFF
_FRAME_BYTES = 1514
_QUEUE_S = 0.05
_LEAST_PACKETS, _MOST_PACKETS = 1000, 1_000_000
_LOOPBACK = 1


class NoNetem(PatchlightError):
    """The kernel has no ``netem``."""


@dataclass(frozen=True, slots=True)
class Impairment:
    """What happens to each packet that an interface sends; ``packet_loss`` is a fraction."""

    delay_s: float = 0.0
    jitter_s: float = 0.0
    packet_loss: float = 0.0

    def __bool__(self) -> bool:
        return bool(self.delay_s or self.jitter_s or self.packet_loss)


NOT_IMPAIRED = Impairment()


def impair_request(
    index: int, name: str, impairment: Impairment, rate_bps: float | None
) -> Request:
    """Impair what the interface sends, in place of an impairment that is there.

    ``rate_bps`` is its limit, which has to be set first; ``None``: it has none.
    """
    held_s = impairment.delay_s + impairment.jitter_s + _QUEUE_S
    packets = _MOST_PACKETS if rate_bps is None else round(rate_bps * held_s / 8 / _FRAME_BYTES)
    packets = min(max(packets, _LEAST_PACKETS), _MOST_PACKETS)
    loss = round(impairment.packet_loss * _MOST)
    options = _QOPT.pack(0, packets, loss, 0, 0, 0)
    options += attribute(_LATENCY64, struct.pack("=q", round(impairment.delay_s * 1e9)))
    options += attribute(_JITTER64, struct.pack("=q", round(impairment.jitter_s * 1e9)))
    doing = f"delaying and losing packets at {name} with netem"
    return netem_request(index, options, doing, limited=rate_bps is not None)


def read_impairments(netlink: Netlink) -> Mapping[int, Impairment]:
    """The impairment of each interface of the namespace that has one, by index."""
    found: dict[int, Impairment] = {}
    for index, options in read_netem(netlink).items():
        loss = _QOPT.unpack_from(options)[2]
        times = dict(attributes(options[_QOPT.size :]))
        delay_ns, jitter_ns = (
            struct.unpack("=q", times.get(kind, bytes(8)))[0] for kind in (_LATENCY64, _JITTER64)
        )
        if impairment := Impairment(delay_ns / 1e9, jitter_ns / 1e9, round(loss / _MOST, 9)):
            found[index] = impairment
    return found


def check_supported() -> None:
    """``NoNetem`` unless this kernel delays and loses packets; tried in a namespace of its own."""
    with namespaces.kept_namespace():
        namespaces.unshare_namespace()
        with Netlink() as netlink:
            try:
                netlink.run([impair_request(_LOOPBACK, "lo", Impairment(0.001), None)])
            except KernelRefused as error:
                raise NoNetem(
                    "this kernel cannot delay or lose packets: it has no netem, which delay, "
                    f"jitter and packet loss of fibres need ({error.message})",
                    hint="Load it with: modprobe sch_netem (on Ubuntu it comes with the package "
                    "linux-modules-extra), or take delay, jitter and packet_loss out.",
                ) from error
