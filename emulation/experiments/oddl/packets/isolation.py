"""Measures what a job notices of a neighbour that floods all channels."""

import errno
import itertools
import logging
import os
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from math import comb
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, Self

from patchlight.console.direct import direct_client
from patchlight.controller.circuits.protocols.ssh import FILE_VARIABLE
from patchlight.emulation.experiments.oddl.packets.crew import (
    NodeLoad,
    crew_of,
)
from patchlight.emulation.lab.emulated_lab import EmulatedLab
from patchlight.emulation.lab.hosts import EmulatedHost
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.spectrum import SpectrumMap
from patchlight.testbed.lab.tuning import LIGHT_SOCKET, LightClient
from patchlight.testbed.linux import namespaces
from patchlight.testbed.paths.light_networks import channels_of, light_networks

_ETHERTYPE = 0x88B6
"""The second of the two that IEEE 802 leaves for local experiments; probes have the first."""
_EVERYBODY = "ff:ff:ff:ff:ff:ff"
_PAYLOAD_BYTES = 1500
_SOL_PACKET = 263
_STATISTICS = 6
_ON_A_CHANNEL_S = 0.05
_FULL_S = 0.001


class FrameArrivals:
    """Counts the flooded frames that come in at hosts, by their names; needs root."""

    def __init__(self, hosts: Sequence[EmulatedHost]) -> None:
        self._ears = {host.name: _opened(host, _ETHERTYPE) for host in hosts}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for ear in self._ears.values():
            ear.close()

    def count(self) -> dict[str, int]:
        """How many have come in since the last count."""
        # The kernel also counts those that are not read, and starts over with each answer.
        return {
            name: int(
                struct.unpack(
                    "=II", ear.getsockopt(_SOL_PACKET, _STATISTICS, 8)
                )[0]
            )
            for name, ear in self._ears.items()
        }


class Flood:
    """How many frames were sent so far."""

    def __init__(self) -> None:
        self.frames = 0


@contextmanager
def flood(
    hosts: Sequence[EmulatedHost],
    victims: Sequence[EmulatedHost],
    light: Path,
) -> Iterator[Flood]:
    """Inside the block hosts send to each of the ``victims`` and to everybody, on all channels.

    It begins once each host has sent on each of its channels; at the end they are dark.
    """
    sent = Flood()
    stop = threading.Event()
    with ThreadPoolExecutor(len(hosts)) as pool:
        begun = [threading.Event() for _ in hosts]
        floods = [
            pool.submit(
                _flood,
                host,
                victims,
                light,
                on_all,
                stop,
            )
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
    channels = list(channels_of(nic.transceiver))
    sent = 0
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


_ALL_CHANNELS = "193.175/200"
_FIRST_TWO = "193.125/100"
_LAST_TWO = "193.225/100"
WAYS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "star": {
        f"wss{n}": [f"1-{2 if n < 3 else 3}@{_ALL_CHANNELS}"]
        for n in range(1, 5)
    },
    "channels": {
        f"wss{n}": [f"1-2@{_FIRST_TWO if n < 3 else _LAST_TWO}"]
        for n in range(1, 5)
    },
}
"""The maps of the wavelength switches of the lab ``oddl4`` that keep jobs apart."""
LEAST_PAIRS = 6
"""Fewer values have no 95 % interval of the median."""
_TOGETHER_S = 1.0
_CONFIDENCE = 0.95


class Pairs(NamedTuple):
    """Iterations of the neighbour in turns, in seconds: without a flood, and with one."""

    quiet_s: list[float]
    flooded_s: list[float]


def measure_isolation(
    emulated: EmulatedLab,
    load: NodeLoad,
    pairs: int,
    slowdown: float,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """The first job of a lab ``oddl4`` that is up trains, and the second floods.

    First all on one star, then pairs of iterations in each of ``WAYS``; times are divided by
    ``slowdown``. ``PatchlightError`` if the wavelength switches cannot be changed.
    """
    hosts = emulated.hosts
    light = emulated.run_dir / LIGHT_SOCKET
    # Its channels are there in both ways.
    spectra = {
        name: SpectrumMap.parse(texts)
        for name, texts in WAYS["channels"].items()
    }
    own, _ = light_networks(emulated.lab, spectra)
    trains = [emulated.host(name) for name in own.hosts]
    floods = [host for host in hosts if host.name not in own.hosts]
    found: dict[str, Any] = {}
    with FrameArrivals(hosts) as arrivals:

        def arrived(frames: int) -> dict[str, int]:
            count = arrivals.count()
            return {
                "frames_flooded": frames,
                "frames_at_flooding_job": sum(
                    count[host.name] for host in floods
                ),
                "frames_at_neighbour": sum(
                    count[host.name] for host in trains
                ),
            }

        say("a job floods its neighbour on the same star")
        with flood(floods, hosts, light) as flooded:
            time.sleep(_TOGETHER_S)
        found["together"] = arrived(flooded.frames)
        with crew_of(emulated, load, own) as crew:
            for way, maps in WAYS.items():
                say(
                    f"each job with its own {'star' if way == 'star' else 'channels'}"
                )
                took_s = _rewire(emulated.lab, maps)
                crew.train(1)  # Its connections find their pace.
                arrivals.count()
                frames = 0
                times = Pairs([], [])
                for _ in range(pairs):
                    times.quiet_s.append(crew.train(1).took_s / slowdown)
                    with flood(floods, hosts, light) as flooded:
                        times.flooded_s.append(crew.train(1).took_s / slowdown)
                    frames += flooded.frames
                found[way] = {
                    **arrived(frames),
                    **change_in(times),
                    "rewired_in_s": took_s,
                }
    return found


def change_in(times: Pairs) -> dict[str, Any]:
    """By which part of itself an iteration takes longer in the flood, pair by pair.

    The median, and the interval that holds it with 95 %, by the sign test: for any distribution.
    """
    parts = sorted(
        after / before - 1 for before, after in zip(*times, strict=True)
    )
    # As likely as not, a value is below the median: how few values are with 2.5 % or less?
    count = len(parts)
    rank = 0
    while (
        2 * sum(comb(count, fewer) for fewer in range(rank + 1))
        <= (1 - _CONFIDENCE) * 2**count
    ):
        rank += 1
    return {
        "iteration_change": median(parts),
        "iteration_change_interval": [parts[rank - 1], parts[-rank]],
        "quiet_iterations_s": list(times.quiet_s),
        "flooded_iterations_s": list(times.flooded_s),
    }


def _rewire(lab: Lab, maps: Mapping[str, Sequence[str]]) -> float:
    """Let through these channels only, as ``ocs apply --only --direct``; in how many seconds."""
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="patchlight-oddl-") as journal,
        _host_keys_in(Path(journal) / "known_hosts"),
        direct_client(lab, Path(journal)) as client,
    ):
        changed = client.reconfigure(
            maps,
            only=True,
            why="each job has its own optical paths",
        )
    if changed.state != "committed":
        raise PatchlightError(
            f"giving each job its own optical paths: {changed.message}",
            hint="run it again; 'patchlight doctor' checks this machine",
        )
    return time.monotonic() - began


@contextmanager
def _host_keys_in(file: Path) -> Iterator[None]:
    """Keep host keys in ``file``: emulated switches have other ports and keys the next time."""
    logging.getLogger("patchlight.ssh").addHandler(logging.NullHandler())
    before = os.environ.get(FILE_VARIABLE)
    os.environ[FILE_VARIABLE] = str(file)
    try:
        yield
    finally:
        del os.environ[FILE_VARIABLE]
        if before is not None:
            os.environ[FILE_VARIABLE] = before
