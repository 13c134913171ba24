"""Record what a host's fibre carries, both ways, as a pcap file.

It listens at the fibre's far end, which stays where it is while the NIC moves between its server
and workers.
"""

import contextlib
import select
import socket
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from patchlight.emulation.fabric.plan import PlannedEnd
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.linux import namespaces

_ETH_P_ALL = 0x0003
_SNAP_BYTES = 65535
_BUFFER_BYTES = 8 << 20
_SO_RCVBUFFORCE, _SO_TIMESTAMPNS = 33, 35
_SOL_PACKET, _STATISTICS = 263, 6
# pcap with times in nanoseconds, version 2.4, Ethernet.
_HEADER = struct.pack("=IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, _SNAP_BYTES, 1)
_RECORD = struct.Struct("=IIII")
_TIME = struct.Struct("=qq")


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

    Ctrl-C ends it too: what came until then is in the file. ``PatchlightError`` if the file cannot
    be written.
    """
    with namespaces.entered(namespaces.namespace_path(end.namespace)):
        # Without a protocol it hears nothing until it is bound to its one interface.
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
    with contextlib.suppress(KeyboardInterrupt):
        while count < most_frames and size < most_bytes:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not select.select([frames], [], [], left_s)[0]:
                break
            data, ancillary, _, _ = frames.recvmsg(_SNAP_BYTES, 256)
            seconds_part, nanoseconds = _arrival(ancillary)
            file.write(_RECORD.pack(seconds_part, nanoseconds, len(data), len(data)) + data)
            count += 1
            size += _RECORD.size + len(data)
    _, dropped = struct.unpack("=II", frames.getsockopt(_SOL_PACKET, _STATISTICS, 8))
    return Captured(count, size, dropped)


def _arrival(ancillary: list[tuple[int, int, bytes]]) -> tuple[int, int]:
    """When the kernel took a frame: seconds and nanoseconds of Unix time."""
    for level, kind, value in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, _SO_TIMESTAMPNS):
            first, second = _TIME.unpack(value)
            return int(first), int(second)
    return divmod(time.time_ns(), 1_000_000_000)
