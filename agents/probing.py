"""Finding out what hangs on the fibres of idle NICs: probe frames out, probe frames and LLDP in."""

import errno
import selectors
import socket
import struct
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

from patchlight.agents.errors import NicError
from patchlight.testbed.linux import ethtool
from patchlight.testbed.wire.probe_frames import (
    ETHERTYPE,
    ETHERTYPE_LLDP,
    TO_THE_NEAREST,
    LldpNeighbour,
    lldp_neighbour,
    probe_frame,
    probe_source,
)

_EVERY_S = 0.1
_LARGEST_FRAME = 2048
_JOIN, _MULTICAST = 1, 0  # PACKET_ADD_MEMBERSHIP and PACKET_MR_MULTICAST of packet(7)


@dataclass
class Ear:
    """One NIC that is listened at: what has come so far, and what went wrong, if anything did."""

    interface: str
    heard: set[str] = field(default_factory=set)
    lldp: set[LldpNeighbour] = field(default_factory=set)
    carrier: bool = False
    problem: str = ""


def probe(names: Mapping[str, str], token: str, listen_s: float) -> dict[str, Ear]:
    """Send and hear for ``listen_s`` on these interfaces, by the names that probes give them.

    Blocks, in the calling thread's network namespace. ``NicError`` without the right to open
    such sockets; what befalls one NIC is its ``problem``.
    """
    ears = {name: Ear(interface) for name, interface in names.items()}
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        senders: dict[str, socket.socket] = {}
        for name, ear in ears.items():
            try:
                senders[name] = stack.enter_context(_opened(ear.interface, ETHERTYPE))
                lldp = stack.enter_context(_opened(ear.interface, ETHERTYPE_LLDP))
            except PermissionError as error:
                raise NicError(
                    f"listening at {ear.interface}: {error.strerror}", hint="run the agent as root"
                ) from error
            except OSError as error:
                ear.problem = f"{ear.interface}: {error.strerror}"
                continue
            selector.register(senders[name], selectors.EVENT_READ, ear)
            selector.register(lldp, selectors.EVENT_READ, ear)
        end = time.monotonic() + listen_s
        while (began := time.monotonic()) < end:
            for name, sender in senders.items():
                _send(sender, ears[name], name, token)
            until = min(began + _EVERY_S, end)
            while (left_s := until - time.monotonic()) > 0:
                for key, _ in selector.select(left_s):
                    assert isinstance(key.fileobj, socket.socket)
                    _hear(key.fileobj, key.data, token)
    for name in senders:
        ears[name].carrier = _has_carrier(ears[name].interface)
    return ears


def _opened(interface: str, ethertype: int) -> socket.socket:
    """A socket for the frames of this kind that come to an interface, not those that leave."""
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    try:
        opened.bind((interface, ethertype))
        index = socket.if_nametoindex(interface)
        group = bytes.fromhex(TO_THE_NEAREST.replace(":", ""))
        member = struct.pack("iHH8s", index, _MULTICAST, len(group), group)
        opened.setsockopt(263, _JOIN, member)  # SOL_PACKET, which Python does not name
        opened.setblocking(False)
    except BaseException:
        opened.close()
        raise
    return opened


def _send(sender: socket.socket, ear: Ear, name: str, token: str) -> None:
    mac: bytes = sender.getsockname()[4]
    try:
        sender.send(probe_frame(name, token, mac.hex(":")))
    except OSError as error:
        # A queue that is full, as it may be without light, is no fault: the next one goes.
        if error.errno not in (errno.EAGAIN, errno.ENOBUFS):
            ear.problem = f"{ear.interface}: {error.strerror}"
    else:
        ear.problem = ""


def _hear(listening: socket.socket, ear: Ear, token: str) -> None:
    try:
        frame = listening.recv(_LARGEST_FRAME)
    except OSError:
        return  # switched off meanwhile: sending says so
    if (source := probe_source(frame, token)) is not None:
        ear.heard.add(source)
    elif (neighbour := lldp_neighbour(frame)) is not None:
        ear.lldp.add(neighbour)


def _has_carrier(interface: str) -> bool:
    try:
        return ethtool.settle_link(interface)
    except OSError:
        return False
