"""Rounds on networks that light circuits: in turns, where paths are fewer than flows.

Which flows come first is decided by the scheduler of paths that the controller has, too.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from patchlight.emulation.simulator.network.collectives import Round
from patchlight.emulation.simulator.network.contract import Switching
from patchlight.testbed.paths.schedulers import path_scheduler
from patchlight.testbed.paths.scheduling import FlowRequest, PathNetwork

AHEAD = "collective"
"""The scheduler that is told of all rounds of an iteration at once."""


class Turn(NamedTuple):
    """A round, or the part of it that is sent at one time, and the seconds before it begins.

    ``dark_s`` is for circuits that change, ``control_s`` for asking for them and being told.
    """

    round: Round
    dark_s: float = 0.0
    control_s: float = 0.0


def turns_of(rounds: Sequence[Round], switching: Switching) -> list[Turn]:
    """Rounds in as many turns as circuits make necessary."""
    parts = [part for each in rounds for part in _parts(each, switching)]
    if not switching.dark_s and not switching.control_s:
        return [Turn(part) for part in parts]
    edges = [set(zip(p.source.tolist(), p.destination.tolist(), strict=True)) for p in parts]
    found = []
    for number, part in enumerate(parts):
        # The one before is, for the first, the last of the iteration before.
        changes = not switching.once and edges[number] != edges[number - 1]
        asks = number == 0 or switching.scheduler != AHEAD
        found.append(
            Turn(
                part, switching.dark_s if changes else 0.0, 2 * switching.control_s if asks else 0.0
            )
        )
    return found


def _parts(each: Round, switching: Switching) -> list[Round]:
    """A round, or parts of it in which nobody has more flows than circuits, one after the other."""
    count = len(each.source)
    channels = switching.channels or count
    sent, received = (int(np.bincount(side).max()) for side in (each.source, each.destination))
    most = switching.fan_out or count
    if max(sent, received) <= most and count <= channels:
        return [each]  # Every scheduler gives a path to all that fit.
    nodes = int(max(each.source.max(), each.destination.max())) + 1
    light = PathNetwork(nodes, channels, transmitters=most, receivers=most)
    scheduler = path_scheduler(switching.scheduler, light)
    ends = zip(each.source.tolist(), each.destination.tolist(), strict=True)
    flows = [FlowRequest(n, *pair, each.bits / 8, collective="") for n, pair in enumerate(ends)]
    scheduler.admit(flows, 0.0)
    parts = []
    while grants := scheduler.grants(0.0):
        for grant in grants:
            scheduler.release(grant.flow, 0.0)
        chosen = np.sort([grant.flow for grant in grants])
        parts.append(
            each._replace(source=each.source[chosen], destination=each.destination[chosen])
        )
    return parts
