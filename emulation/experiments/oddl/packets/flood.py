"""A job that floods: frames at full rate, to everybody, on every channel; and who got any of them.

The frames have an EtherType of their own, so each that arrives anywhere is known for one.
"""

import errno
import itertools
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from patchlight.emulation.lab.hosts import EmulatedHost
from patchlight.testbed.lab.tuning import LightClient
from patchlight.testbed.linux import namespaces
from patchlight.testbed.paths.light_networks import channels_of

_ETHERTYPE = 0x88B6
"""The second of the two that IEEE 802 leaves for local experiments; probes have the first."""
_EVERYBODY = "ff:ff:ff:ff:ff:ff"
_PAYLOAD_BYTES = 1500
_SOL_PACKET, _STATISTICS = 263, 6
_ON_A_CHANNEL_S = 0.05
_FULL_S = 0.001


class Arrivals:
    """Counts the flooded frames that come in at hosts, by their names; needs root."""

    def __init__(self, hosts: Sequence[EmulatedHost]) -> None:
        self._ears = {host.name: _opened(host, _ETHERTYPE) for host in hosts}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for ear in self._ears.values():
            ear.close()

    def count(self) -> dict[str, int]:
        """How many have come in since the last count."""
        # The kernel counts those that nobody reads, too, and begins anew with each answer.
        return {
            name: int(struct.unpack("=II", ear.getsockopt(_SOL_PACKET, _STATISTICS, 8))[0])
            for name, ear in self._ears.items()
        }


class Flood:
    """How many frames were sent so far."""

    def __init__(self) -> None:
        self.frames = 0


@contextmanager
def flood(
    hosts: Sequence[EmulatedHost], victims: Sequence[EmulatedHost], light: Path
) -> Iterator[Flood]:
    """Inside the block, hosts send to each of the ``victims`` and to everybody.

    It begins once each host has sent on each of its channels.
    Each goes through the channels of its transceiver over and over, at the rate of its NIC. At the
    end they are dark. ``light`` is the socket of the lab's light.
    """
    sent, stop = Flood(), threading.Event()
    with ThreadPoolExecutor(len(hosts)) as pool:
        begun = [threading.Event() for _ in hosts]
        floods = [
            pool.submit(_flood, host, victims, light, on_all, stop)
            for host, on_all in zip(hosts, begun, strict=True)
        ]
        try:
            for on_all, each in zip(begun, floods, strict=True):
                while not on_all.wait(_ON_A_CHANNEL_S) and not each.done():
                    pass
            yield sent
        finally:
            stop.set()
            sent.frames = sum(each.result() for each in floods)


def _flood(
    host: EmulatedHost,
    victims: Sequence[EmulatedHost],
    light: Path,
    on_all: threading.Event,
    stop: threading.Event,
) -> int:
    nic = host.host.nic
    assert nic.transceiver is not None
    to = [_EVERYBODY, *(str(victim.host.nic.mac) for victim in victims)]
    frames = itertools.cycle([_frame(mac, str(nic.mac)) for mac in to])
    channels, sent = list(channels_of(nic.transceiver)), 0
    with LightClient(light) as tuning, _opened(host) as out:
        out.settimeout(_ON_A_CHANNEL_S)
        for turn, channel in enumerate(itertools.cycle(channels)):
            if turn == len(channels):
                on_all.set()
            if stop.is_set():
                break
            tuning.tune(host.host.endpoint, channel)
            ends = time.monotonic() + _ON_A_CHANNEL_S
            while time.monotonic() < ends and not stop.is_set():
                sent += _sent(out, next(frames))
        tuning.darken(host.host.endpoint)
    return sent


def _sent(out: socket.socket, frame: bytes) -> bool:
    """Whether the NIC took a frame; else its queue was full, and has had a moment."""
    try:
        out.send(frame)
    except TimeoutError:
        return False
    except OSError as error:
        if error.errno != errno.ENOBUFS:
            raise
        time.sleep(_FULL_S)
        return False
    return True


def _frame(to: str, source: str) -> bytes:
    ends = bytes.fromhex((to + source).replace(":", ""))
    return ends + _ETHERTYPE.to_bytes(2, "big") + bytes(_PAYLOAD_BYTES)


def _opened(host: EmulatedHost, hears: int = 0) -> socket.socket:
    """A socket for whole frames at a host's NIC; it hears those of one EtherType, or none."""
    with namespaces.entered(host.namespace()):
        opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        opened.bind((host.host.endpoint.port, hears))
    return opened
