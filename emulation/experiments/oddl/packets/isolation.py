"""The slow layer: two jobs, each with a network of light of its own, and one of them floods.

Wavelength switches give a job either a star to itself, or channels of a star that nothing else
comes in on. The other job's transceivers are tuned to every channel that they can send.
"""

import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import comb
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from patchlight.console.direct import direct_client
from patchlight.controller.circuits.protocols.ssh import FILE_VARIABLE
from patchlight.emulation.experiments.oddl.packets.crew import Load, crew_of
from patchlight.emulation.experiments.oddl.packets.flood import Arrivals, flood
from patchlight.emulation.lab.emulated_lab import EmulatedLab
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.spectrum import SpectrumMap
from patchlight.testbed.lab.tuning import LIGHT_SOCKET
from patchlight.testbed.paths.light_networks import LightNetwork, light_networks

_ALL_CHANNELS, _FIRST_TWO, _LAST_TWO = "193.175/200", "193.125/100", "193.225/100"
WAYS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "star": {f"wss{n}": [f"1-{2 if n < 3 else 3}@{_ALL_CHANNELS}"] for n in range(1, 5)},
    "channels": {f"wss{n}": [f"1-2@{_FIRST_TWO if n < 3 else _LAST_TWO}"] for n in range(1, 5)},
}
"""How a job gets light of its own in the lab ``oddl4``: what the wavelength switches then have."""
LEAST_PAIRS = 6
"""Of fewer than so many there is no interval that holds a median with 95 %."""
_TOGETHER_S = 1.0
_CONFIDENCE = 0.95


class Pairs(NamedTuple):
    """Iterations of the neighbour in turns, in seconds: while nobody floods, and while one does."""

    quiet_s: list[float]
    flooded_s: list[float]


def measure_isolation(
    emulated: EmulatedLab, load: Load, pairs: int, slowdown: float, say: Callable[[str], None]
) -> dict[str, Any]:
    """The first job of a lab ``oddl4`` that is up trains, and the second floods.

    First all are on one star, where the flood arrives at everybody; then so many pairs of
    iterations in each of ``WAYS``. Iterations are in the job's seconds: those measured, divided by
    ``slowdown``. ``PatchlightError`` if the wavelength switches cannot be changed.
    """
    hosts, light = emulated.hosts, emulated.run_dir / LIGHT_SOCKET
    jobs = {way: _two_networks(emulated.lab, maps) for way, maps in WAYS.items()}
    own = jobs["channels"][0]  # Its channels are there in both ways.
    trains = [emulated.host(name) for name in own.hosts]
    floods = [host for host in hosts if host.name not in own.hosts]
    found: dict[str, Any] = {}
    with Arrivals(hosts) as arrivals:

        def arrived(frames: int) -> dict[str, int]:
            count = arrivals.count()
            return {
                "frames_flooded": frames,
                "frames_at_flooding_job": sum(count[host.name] for host in floods),
                "frames_at_neighbour": sum(count[host.name] for host in trains),
            }

        say("a job floods its neighbour on the same star")
        with flood(floods, hosts, light) as flooded:
            time.sleep(_TOGETHER_S)
        found["together"] = arrived(flooded.frames)
        with crew_of(emulated, load, own) as crew:
            for way, maps in WAYS.items():
                say(f"each job with {'a star' if way == 'star' else 'channels'} of its own")
                took_s = _rewire(emulated.lab, maps)
                crew.train(1)  # Its connections find their pace.
                arrivals.count()
                frames, times = 0, Pairs([], [])
                for _ in range(pairs):
                    times.quiet_s.append(crew.train(1).took_s / slowdown)
                    with flood(floods, hosts, light) as flooded:
                        times.flooded_s.append(crew.train(1).took_s / slowdown)
                    frames += flooded.frames
                found[way] = {**arrived(frames), **change_in(times), "rewired_in_s": took_s}
    return found


def change_in(times: Pairs) -> dict[str, Any]:
    """By which part of itself an iteration takes longer in the flood, pair by pair.

    The median of ``LEAST_PAIRS`` or more, and the interval that holds it with 95 % at least,
    whatever their distribution is: that of the sign test.
    """
    parts = sorted(after / before - 1 for before, after in zip(*times, strict=True))
    # As likely as not, a value is below the median: how few values are with 2.5 % or less?
    count, rank = len(parts), 0
    while 2 * sum(comb(count, fewer) for fewer in range(rank + 1)) <= (1 - _CONFIDENCE) * 2**count:
        rank += 1
    return {
        "iteration_change": median(parts),
        "iteration_change_interval": [parts[rank - 1], parts[-rank]],
        "quiet_iterations_s": list(times.quiet_s),
        "flooded_iterations_s": list(times.flooded_s),
    }


def _two_networks(lab: Lab, maps: Mapping[str, Sequence[str]]) -> list[LightNetwork]:
    spectra = {name: SpectrumMap.parse(texts) for name, texts in maps.items()}
    found = light_networks(lab, spectra)
    assert len(found) == 2
    return found


def _rewire(lab: Lab, maps: Mapping[str, Sequence[str]]) -> float:
    """Have the wavelength switches let through these channels and no others; in how many seconds.

    As ``patchlight ocs apply --only --direct`` does it: checked, read back and verified.
    """
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="patchlight-oddl-") as journal,
        _host_keys_in(Path(journal) / "known_hosts"),
        direct_client(lab, Path(journal)) as client,
    ):
        changed = client.reconfigure(maps, only=True, why="each job has light of its own")
    if changed["state"] != "committed":
        raise PatchlightError(
            f"giving each job light of its own: {changed['message']}",
            hint="run it again; 'patchlight doctor' says whether this machine has what it needs",
        )
    return time.monotonic() - began


@contextmanager
def _host_keys_in(file: Path) -> Iterator[None]:
    """Who emulated switches are is nothing to remember: their ports are others' the next time."""
    logging.getLogger("patchlight.ssh").addHandler(logging.NullHandler())
    before = os.environ.get(FILE_VARIABLE)
    os.environ[FILE_VARIABLE] = str(file)
    try:
        yield
    finally:
        del os.environ[FILE_VARIABLE]
        if before is not None:
            os.environ[FILE_VARIABLE] = before
