"""Sets an interface's rate limit (``tbf``), and its delay, jitter and loss (``netem``).

``tbf`` is in every kernel seen so far; unlike ``htb`` it needs no class, and unlike ``police`` it
queues instead of dropping. An interface that changes its namespace loses its limit: ``save_limit``
and ``restore_limit`` use the kernel's own attributes, which are exact at any rate. A ``netem``
queue is below the token bucket, or at the root without one. Not every kernel has it;
``check_supported`` checks first.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.linux import namespaces
from patchlight.testbed.linux import netlink as rtnetlink
from patchlight.testbed.linux.netlink import (
    Netlink,
    Request,
    attribute,
    attributes,
)
from patchlight.testbed.units import format_rate

_NEWQDISC = 36
_GETQDISC = 38
_TCMSG = struct.Struct("=BxxxiIII")
_ROOT = 0xFFFFFFFF
_HANDLE = 0x10000  # 1:
_BELOW = 0x10001  # the one class of the tbf, 1:1
_NETEM_HANDLE = 0x20000  # 2:
_TCA_KIND = 1
_TCA_OPTIONS = 2
_NESTED = 0x8000
_TBF_PARMS = 1
_TBF_RATE64 = 4
_TBF_BURST = 6
# tc_tbf_qopt: two tc_ratespec (cell_log, linklayer, overhead, align, mpu, rate), limit, buffer,
# mtu. With link layer 1 (Ethernet) the kernel computes times without a table.
_RATESPEC = struct.Struct("=BBHhHI")
_QOPT_TAIL = struct.Struct("=III")
_ETHERNET = 1
_USUAL_MTU = 1500
_HEADER_BYTES = 14
_FRAME_BYTES = 1514
# A timer that fires once a tick (250 to 1000 Hz) needs at least a tick's worth of tokens.
_TICK_S = 0.004
_QUEUE_S = 0.05
_LEAST_QUEUE_BYTES = 64 * 1024
# Default queueing disciplines, which the kernel chooses again.
_KERNEL_QDISCS = {
    "mq",
    "fq",
    "fq_codel",
    "pfifo",
    "pfifo_fast",
    "noqueue",
    "noop",
}


class NotShaped(PatchlightError):
    """A rate could not be set, or was missing when read back."""


class LimitNotKept(PatchlightError):
    """A queueing discipline would be lost, or was, when its interface changed namespaces."""


@dataclass(
    frozen=True,
    slots=True,
)
class SavedLimit:
    """A ``tbf`` at the root (``options``), a ``netem`` below it or alone, or both, as the kernel's
    attributes in hex; empty for none."""

    options: str = ""
    netem: str = ""


@dataclass(
    frozen=True,
    slots=True,
)
class TokenBucket:
    """The parameters of one limit, in bytes and bytes per second."""

    rate_bytes_per_s: int
    burst_bytes: int
    limit_bytes: int


def token_bucket(rate_bps: float, mtu: int = _USUAL_MTU) -> TokenBucket:
    """A token bucket for a rate of ``rate_bps``. Its burst, two frames or one timer tick at that
    rate, makes the rate reachable with any timer; a larger frame would be dropped. The queue holds
    50 ms, at least 64 KiB, so that one TCP connection can fill the link: its window must cover the
    queue's delay."""
    rate = max(1, round(rate_bps / 8))
    burst = max(2 * (_HEADER_BYTES + mtu), round(rate * _TICK_S))
    limit = burst + max(_LEAST_QUEUE_BYTES, round(rate * _QUEUE_S))
    return TokenBucket(rate, min(burst, 1 << 30), min(limit, 1 << 31))


def limit_request(
    index: int,
    name: str,
    rate_bps: float,
    mtu: int = _USUAL_MTU,
) -> Request:
    """Limit what the interface sends, replacing a previous limit."""
    bucket = token_bucket(rate_bps, mtu)
    old_rate = min(bucket.rate_bytes_per_s, 0xFFFFFFFF)
    parms = (
        _RATESPEC.pack(
            0,
            _ETHERNET,
            0,
            0,
            0,
            old_rate,
        )
        + _RATESPEC.pack(
            0,
            0,
            0,
            0,
            0,
            0,
        )
        + _QOPT_TAIL.pack(bucket.limit_bytes, 0, 0)
    )
    options = [attribute(_TBF_PARMS, parms)]
    if bucket.rate_bytes_per_s > 0xFFFFFFFF:
        options.append(
            attribute(_TBF_RATE64, struct.pack("=Q", bucket.rate_bytes_per_s))
        )
    options.append(
        attribute(_TBF_BURST, struct.pack("=I", bucket.burst_bytes))
    )
    doing = f"limiting {name} to {format_rate(rate_bps)} with a tbf queue"
    return _set_tbf(index, b"".join(options), doing)


def _set_tbf(
    index: int,
    options: bytes,
    doing: str,
) -> Request:
    head = _TCMSG.pack(
        0,
        index,
        _HANDLE,
        _ROOT,
        0,
    ) + attribute(_TCA_KIND, b"tbf\0")
    return _set(head + attribute(_TCA_OPTIONS | _NESTED, options), doing)


def _set_netem(
    index: int,
    options: bytes,
    doing: str,
    *,
    limited: bool,
) -> Request:
    parent = _BELOW if limited else _ROOT
    head = _TCMSG.pack(
        0,
        index,
        _NETEM_HANDLE,
        parent,
        0,
    ) + attribute(_TCA_KIND, b"netem\0")
    return _set(head + attribute(_TCA_OPTIONS, options), doing)


def _set(body: bytes, doing: str) -> Request:
    return Request(
        _NEWQDISC,
        rtnetlink.F_CREATE | rtnetlink.F_REPLACE,
        body,
        doing,
    )


@dataclass(
    frozen=True,
    slots=True,
)
class _Qdisc:
    index: int
    handle: int
    parent: int
    kind: str
    options: bytes


def _qdiscs(netlink: Netlink) -> Iterator[_Qdisc]:
    request = Request(
        _GETQDISC,
        rtnetlink.F_DUMP,
        _TCMSG.pack(
            0,
            0,
            0,
            0,
            0,
        ),
        "reading the queues",
    )
    for message_type, body in netlink.ask(request):
        if message_type == _NEWQDISC:
            _, index, handle, parent, _ = _TCMSG.unpack_from(body)
            values = dict(attributes(body[_TCMSG.size :]))
            kind = values.get(_TCA_KIND, b"").rstrip(b"\0").decode()
            yield _Qdisc(
                index,
                handle,
                parent,
                kind,
                values.get(_TCA_OPTIONS, b""),
            )


def read_limits(netlink: Netlink) -> dict[int, float]:
    """The limit of each interface of the namespace that has one, in bit/s, by index."""
    limits: dict[int, float] = {}
    for qdisc in _qdiscs(netlink):
        if qdisc.parent != _ROOT or qdisc.kind != "tbf":
            continue
        options = dict(attributes(qdisc.options))
        if _TBF_RATE64 in options:
            (rate,) = struct.unpack_from("=Q", options[_TBF_RATE64])
        else:
            rate = _RATESPEC.unpack_from(options[_TBF_PARMS])[5]
        limits[qdisc.index] = rate * 8.0
    return limits


def save_limit(
    netlink: Netlink,
    index: int,
    name: str,
) -> SavedLimit | None:
    """The token bucket and ``netem`` of an interface, if any; ``LimitNotKept`` for another
    discipline, which a move would lose."""
    saved = None
    for qdisc in _qdiscs(netlink):
        if (
            qdisc.index != index
            or qdisc.handle == 0
            or qdisc.kind in _KERNEL_QDISCS
        ):
            continue
        if qdisc.kind == "netem" and qdisc.parent in (_ROOT, _BELOW):
            saved = replace(saved or SavedLimit(), netem=qdisc.options.hex())
            continue
        if qdisc.kind != "tbf" or qdisc.parent != _ROOT:
            raise LimitNotKept(
                f"{name} has a {qdisc.kind} queueing discipline, which would be lost when the "
                f"NIC moves to a worker",
                hint="only a tbf at the root, with or without a netem, can be moved: tc qdisc "
                f"show dev {name}",
            )
        saved = replace(saved or SavedLimit(), options=qdisc.options.hex())
    return saved


def restore_limit(
    netlink: Netlink,
    index: int,
    name: str,
    limit: SavedLimit,
) -> None:
    """Give an interface these queues; ``LimitNotKept`` if it has others afterwards."""
    if save_limit(netlink, index, name) == limit:
        return
    doing = f"limiting the rate of {name}"
    requests = []
    if limit.options:
        requests.append(_set_tbf(index, bytes.fromhex(limit.options), doing))
    if limit.netem:
        options = bytes.fromhex(limit.netem)
        limited = bool(limit.options)
        requests.append(
            _set_netem(
                index,
                options,
                doing,
                limited=limited,
            )
        )
    netlink.run(requests)
    applied = save_limit(netlink, index, name)
    if applied != limit:
        raise LimitNotKept(
            f"{doing}: requested {limit}, the kernel has {applied}"
        )


def verify_limits(
    netlink: Netlink, limited: Iterable[tuple[int, str, float]]
) -> None:
    """Raise ``NotShaped`` unless each (index, name, rate) has its limit."""
    if wrong := wrong_limits(read_limits(netlink), limited):
        first = dict(list(wrong.items())[:5])
        have = "; ".join(
            f"{name} has {limit}" for name, limit in first.items()
        )
        raise NotShaped(
            f"shaping {', '.join(first)}: read back, {have}",
            hint="Something removed or replaced the queue, so rates would be wrong.",
        )


def wrong_limits(
    limits: Mapping[int, float], limited: Iterable[tuple[int, str, float]]
) -> dict[str, str]:
    """The actual limit of each interface whose limit is wrong."""
    wrong: dict[str, str] = {}
    for index, name, rate_bps in limited:
        have = limits.get(index)
        expected = token_bucket(rate_bps).rate_bytes_per_s * 8.0
        if have is None:
            wrong[name] = f"no limit instead of {format_rate(rate_bps)}"
        elif abs(have - expected) > 0.01 * expected:
            wrong[name] = (
                f"{format_rate(have)} instead of {format_rate(rate_bps)}"
            )
    return wrong


# tc_netem_qopt: latency and jitter in ticks (the attributes below, in ns, override them), queue
# length in packets, loss as a share of 2^32 - 1, gap, duplicates.
_QOPT = struct.Struct("=IIIIII")
_LATENCY64 = 10
_JITTER64 = 11
_MOST = 0xFFFFFFFF
_LEAST_PACKETS = 1000
_MOST_PACKETS = 1_000_000
_LOOPBACK = 1


class NoNetem(PatchlightError):
    """The kernel has no ``netem``."""


@dataclass(
    frozen=True,
    slots=True,
)
class Impairment:
    """Delay, jitter and loss of packets that an interface sends; ``packet_loss`` is a fraction."""

    delay_s: float = 0.0
    jitter_s: float = 0.0
    packet_loss: float = 0.0

    def __bool__(self) -> bool:
        return bool(self.delay_s or self.jitter_s or self.packet_loss)


NOT_IMPAIRED = Impairment()


def impair_request(
    index: int,
    name: str,
    impairment: Impairment,
    rate_bps: float | None,
) -> Request:
    """Impair what the interface sends. ``rate_bps`` is its present limit, or ``None``."""
    held_s = impairment.delay_s + impairment.jitter_s + _QUEUE_S
    packets = (
        _MOST_PACKETS
        if rate_bps is None
        else round(rate_bps * held_s / 8 / _FRAME_BYTES)
    )
    packets = min(max(packets, _LEAST_PACKETS), _MOST_PACKETS)
    loss = round(impairment.packet_loss * _MOST)
    options = _QOPT.pack(
        0,
        packets,
        loss,
        0,
        0,
        0,
    )
    options += attribute(
        _LATENCY64, struct.pack("=q", round(impairment.delay_s * 1e9))
    )
    options += attribute(
        _JITTER64, struct.pack("=q", round(impairment.jitter_s * 1e9))
    )
    doing = f"delaying and losing packets at {name} with netem"
    return _set_netem(
        index,
        options,
        doing,
        limited=rate_bps is not None,
    )


def read_impairments(netlink: Netlink) -> Mapping[int, Impairment]:
    """The impairment of each interface of the namespace that has one, by index."""
    found: dict[int, Impairment] = {}
    for qdisc in _qdiscs(netlink):
        if qdisc.kind != "netem":
            continue
        loss = _QOPT.unpack_from(qdisc.options)[2]
        times = dict(attributes(qdisc.options[_QOPT.size :]))
        delay_ns, jitter_ns = (
            struct.unpack("=q", times.get(kind, bytes(8)))[0]
            for kind in (_LATENCY64, _JITTER64)
        )
        if impairment := Impairment(
            delay_ns / 1e9, jitter_ns / 1e9, round(loss / _MOST, 9)
        ):
            found[qdisc.index] = impairment
    return found


def check_supported() -> None:
    """``NoNetem`` unless this kernel delays and loses packets; tried in a new namespace."""
    with namespaces.kept_namespace():
        namespaces.unshare_namespace()
        with Netlink() as netlink:
            try:
                netlink.run(
                    [
                        impair_request(
                            _LOOPBACK,
                            "lo",
                            Impairment(0.001),
                            None,
                        )
                    ]
                )
            except rtnetlink.KernelRefused as error:
                raise NoNetem(
                    "this kernel has no netem, which delay, jitter and packet loss of fibres "
                    f"need ({error.message})",
                    hint="Load it with: modprobe sch_netem (on Ubuntu in the package "
                    "linux-modules-extra), or remove delay, jitter and packet_loss.",
                ) from error
