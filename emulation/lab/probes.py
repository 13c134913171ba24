"""Measurements in a lab that is up: pings, the rate of a connection, captures of fibres.

They need no processes: a socket belongs to the namespace that it was opened in.
"""

import os
import select
import socket
import struct
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from patchlight.emulation.fabric.plan import PlannedEnd
from patchlight.emulation.lab.hosts import EmulatedHost
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.linux import namespaces

_ECHO_REQUEST, _ECHO_REPLY = 8, 0
_ICMP = struct.Struct("!BBHHH")
_ATTEMPTS = 3
_CHUNK_BYTES = 1 << 18
_ETH_P_ALL = 0x0003
_SNAP_BYTES = 65535
_BUFFER_BYTES = 8 << 20
_SO_RCVBUFFORCE, _SO_TIMESTAMPNS = 33, 35
_SOL_PACKET, _STATISTICS = 263, 6
# pcap with times in nanoseconds, version 2.4, Ethernet.
_HEADER = struct.pack("=IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, _SNAP_BYTES, 1)
_RECORD = struct.Struct("=IIII")
_TIME = struct.Struct("=qq")


class NotReached(PatchlightError):
    """One host could not connect to another."""


@dataclass(frozen=True, slots=True)
class Reachability:
    """How many pairs of hosts were tried (each both ways), and those that did not answer."""

    tried: int
    lost: tuple[tuple[str, str], ...]

    def __bool__(self) -> bool:
        return not self.lost


def ping_all(hosts: Sequence[EmulatedHost], wait_s: float = 1.0) -> Reachability:
    """Each host pings every other, up to three times, ``wait_s`` seconds for the answers."""
    lost: list[tuple[str, str]] = []
    for source in hosts:
        others = {host.address: host.name for host in hosts if host.name != source.name}
        answered = _ping(source, list(others), wait_s) if others else set()
        lost += [(source.name, name) for at, name in others.items() if at not in answered]
    return Reachability(len(hosts) * (len(hosts) - 1), tuple(lost))


def _ping(source: EmulatedHost, addresses: Sequence[str], wait_s: float) -> set[str]:
    """Those of the addresses that answer."""
    identity = os.getpid() & 0xFFFF
    answered: set[str] = set()
    with source.borrowed() as namespace:
        with namespaces.entered(namespace):
            icmp = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
        with icmp:
            for attempt in range(_ATTEMPTS):
                # An ICMP echo request without data (RFC 792).
                total = (_ECHO_REQUEST << 8) + identity + attempt
                checksum = ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF
                packet = _ICMP.pack(_ECHO_REQUEST, 0, checksum, identity, attempt)
                waiting = [address for address in addresses if address not in answered]
                for address in waiting:
                    with suppress(OSError):  # its link is down
                        icmp.sendto(packet, (address, 0))
                deadline = time.monotonic() + wait_s
                while len(answered) < len(addresses):
                    left_s = deadline - time.monotonic()
                    if left_s <= 0 or not select.select([icmp], [], [], left_s)[0]:
                        break
                    data, (address, _) = icmp.recvfrom(2048)
                    kind, _, _, number, _ = _ICMP.unpack_from(data, (data[0] & 0xF) * 4)
                    if kind == _ECHO_REPLY and number == identity:
                        answered.add(address)
                if len(answered) >= len(addresses):
                    break
    return answered & set(addresses)


def tcp_rate_bps(sender: EmulatedHost, receiver: EmulatedHost, seconds: float) -> float:
    """What one TCP connection carries from one host to another, in payload bits per second.

    Counted where it arrives, from the first byte on. ``NotReached`` if they cannot connect.
    """
    if sender.name == receiver.name:
        raise BadInput(f"from {sender.name} to itself: expected two hosts")
    if not seconds > 0:
        raise BadInput(f"{seconds:g} seconds: expected more than 0")
    with ExitStack() as stack:
        spaces = [stack.enter_context(host.borrowed()) for host in (sender, receiver)]
        with namespaces.entered(spaces[1]):
            listener = stack.enter_context(socket.socket())
        with namespaces.entered(spaces[0]):
            client = stack.enter_context(socket.socket())
        listener.bind((receiver.address, 0))
        listener.listen(1)
        client.settimeout(5.0)
        try:
            client.connect(listener.getsockname())
        except OSError as error:
            raise NotReached(
                f"connecting from {sender.name} to {receiver.name}: {error}",
                hint="look at the links: is one of them dark or down?",
            ) from error
        server = stack.enter_context(listener.accept()[0])
        sending = threading.Thread(target=_send, args=(client, seconds))
        sending.start()
        received_bps = _receive_bps(server, seconds)
        sending.join()
    return received_bps


def _send(client: socket.socket, seconds: float) -> None:
    payload = bytes(_CHUNK_BYTES)
    deadline = time.monotonic() + seconds
    # If the link goes down, what arrived before is counted.
    with client, suppress(OSError):
        while time.monotonic() < deadline:
            client.send(payload)


def _receive_bps(server: socket.socket, seconds: float) -> float:
    buffer = bytearray(_CHUNK_BYTES)
    server.settimeout(5.0)
    received, began = 0, time.monotonic()
    with suppress(OSError):
        while (size := server.recv_into(buffer)) and time.monotonic() < began + seconds:
            received += size
    return received * 8 / max(time.monotonic() - began, 1e-9)


@dataclass(frozen=True, slots=True)
class Captured:
    """What a capture wrote, and how many frames the kernel dropped because it was too slow."""

    frames: int
    size_bytes: int
    dropped: int


def capture(
    end: PlannedEnd, path: Path, *, seconds: float, most_frames: int, most_bytes: int
) -> Captured:
    """Write the frames that pass an end of a fibre, until the time, the frames or the bytes end.

    ``end`` is not the NIC's own, which moves between its server and workers. Ctrl-C ends it too,
    and leaves a whole file. ``PatchlightError`` if the file cannot be written.
    """
    with namespaces.entered(namespaces.namespace_path(end.namespace)):
        # Without a protocol it receives nothing until it is bound to its one interface.
        frames = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        frames.bind((end.name, _ETH_P_ALL))
    with frames:
        frames.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
        frames.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        try:
            with path.open("wb") as file:
                file.write(_HEADER)
                file.flush()
                return _copy(frames, file, seconds, most_frames, most_bytes)
        except OSError as error:
            raise PatchlightError(
                f"writing the capture to {path}: {error.strerror}",
                hint="name a file in a folder that has room and that you can write to",
            ) from error


def _copy(
    frames: socket.socket, file: BinaryIO, seconds: float, most_frames: int, most_bytes: int
) -> Captured:
    count, size = 0, len(_HEADER)
    deadline = time.monotonic() + seconds
    with suppress(KeyboardInterrupt):
        while count < most_frames and size < most_bytes:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not select.select([frames], [], [], left_s)[0]:
                break
            data, ancillary, _, _ = frames.recvmsg(_SNAP_BYTES, 256)
            # When the kernel took the frame: seconds and nanoseconds of Unix time.
            times = (v for *at, v in ancillary if at == [socket.SOL_SOCKET, _SO_TIMESTAMPNS])
            taken = next(times, None)
            arrival = _TIME.unpack(taken) if taken else divmod(time.time_ns(), 1_000_000_000)
            file.write(_RECORD.pack(*arrival, len(data), len(data)) + data)
            count += 1
            size += _RECORD.size + len(data)
    _, dropped = struct.unpack("=II", frames.getsockopt(_SOL_PACKET, _STATISTICS, 8))
    return Captured(count, size, dropped)
