"""What optical power to expect where, from the lab's launch powers and losses (pure).

Loss budget: power at an output = launch power − fibre losses − insertion losses passed, in dB.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from testbed.lab import Endpoint, Lab, PacketSwitch, Server
from testbed.portmap import CrossConnect
from testbed.wiring import Links, fibre_ends

# How far measured power may lie from the budget: connectors, ageing and the spread of a
# switch's insertion loss over its paths stay within it; a missed mirror does not.
TOLERANCE_DB = 3.0


@dataclass(frozen=True, slots=True)
class Expected:
    """The power that a cross-connect should show at its output, and who sends the light."""

    power_dbm: float
    source: Endpoint


def launch_power_dbm(lab: Lab, source: Endpoint) -> float:
    """The power of the transmitter at ``source``."""
    device = lab.device(source.device)
    if isinstance(device, Server):
        return next(nic.launch_power_dbm for nic in device.nics if nic.name == source.port)
    assert isinstance(device, PacketSwitch)
    return device.launch_power_dbm


def expected_powers(
    lab: Lab, links: Links, asked: frozenset[tuple[str, CrossConnect]] | None = None
) -> dict[tuple[str, CrossConnect], Expected]:
    """For each cross-connect that light passes on its way to a receiver: what to expect.

    With ``asked`` only along paths that pass one of these.
    """
    ends = fibre_ends(lab)
    loss_of = {c.name: c.insertion_loss_db for c in lab.circuit_switches}
    expected: dict[tuple[str, CrossConnect], Expected] = {}
    for path in links.paths.values():
        if asked is not None and asked.isdisjoint(path.hops):
            continue
        power_dbm = launch_power_dbm(lab, path.source)
        at = path.source
        for ocs, cross_connect in path.hops:
            power_dbm -= ends[at][1].loss_db + loss_of[ocs]
            expected[ocs, cross_connect] = Expected(round(power_dbm, 3), path.source)
            at = Endpoint(ocs, str(cross_connect.out))
    return expected


def judge(
    expected: Mapping[CrossConnect, Expected],
    made: CrossConnect,
    in_dbm: float | None,
    out_dbm: float | None,
) -> tuple[str, bool]:
    """What the powers say of a cross-connect: (words, whether it failed).

    Empty words mean verified. Without light at the input nothing can be said of the mirrors:
    that is unverified, not failed.
    """
    if made not in expected:
        return f"{made}: unverified, it is on no way from a transmitter to a receiver", False
    want = expected[made].power_dbm
    if out_dbm is None:
        if in_dbm is None:
            source = expected[made].source
            return f"{made}: unverified, no light from {source} reaches in:{made.inp}", False
        return f"{made}: no light at out:{made.out}, expected {want:.1f} dBm", True
    if abs(out_dbm - want) > TOLERANCE_DB:
        return f"{made}: {out_dbm:.1f} dBm at out:{made.out}, expected {want:.1f} dBm", True
    return "", False
