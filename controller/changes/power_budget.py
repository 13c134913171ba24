"""What optical power to expect where, from the lab's launch powers and losses (pure).

Loss budget: power at an output = launch power − fibre losses − insertion losses passed, in dB.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from patchlight.testbed.lab import Endpoint, Lab, PacketSwitch, Server
from patchlight.testbed.portmap import CrossConnect
from patchlight.testbed.wiring import Links

VerdictKind = Literal["ok", "degraded", "unverified", "failed"]


@dataclass(frozen=True, slots=True)
class Tolerances:
    """How far measured power may lie from what it should be, in dB.

    ``budget_db``: from the loss budget, up or down. Connectors, ageing and the spread of a
    switch's insertion loss over its paths stay within it; a missed mirror does not.
    ``baseline_db``: below what the same circuit showed before. Mirrors come back to the same
    place within some tenths of a dB, and monitors read as exactly.
    """

    budget_db: float = 3.0
    baseline_db: float = 1.5


DEFAULT_TOLERANCES = Tolerances()

POWER_CEILING_DBM = 13.0
"""More power than this is not sent through the mirrors, nor to a receiver behind them."""

# Monitors read noise at dark ports: with less power than this at an input, and none expected, its
# loss through the switch says nothing.
_DIMMEST_DBM = -30.0


@dataclass(frozen=True, slots=True)
class Expected:
    """The power that a cross-connect should show at its output, and the transmitter it is from."""

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
    """For each cross-connect on a path to a receiver: what to expect.

    With ``asked`` only along paths that pass one of these.
    """
    ends = lab.fibre_ends
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


class PowerVerdict(NamedTuple):
    """What powers say of a cross-connect. ``words`` is empty where it is ``ok``.

    ``failed``: the circuit is down or loses too much. ``degraded``: it is up, with less power
    than it had before. ``unverified``: nothing can be said.
    """

    kind: VerdictKind
    words: str = ""


def judge(
    expected: Expected | None,
    baseline_dbm: float | None,
    made: CrossConnect,
    in_dbm: float | None,
    out_dbm: float | None,
    insertion_loss_db: float,
    tolerances: Tolerances = DEFAULT_TOLERANCES,
) -> PowerVerdict:
    """What the powers at both ends of a cross-connect say of it.

    Against the loss budget if it is on the path of a known transmitter (``expected``), and
    against its own earlier power (``baseline_dbm``) if there is one. With neither, what is lost
    between its ends counts, if the device measures both. Without power at the input nothing can
    be said of the mirrors.
    """
    should = expected.power_dbm if expected is not None else baseline_dbm
    if should is None:
        return _judge_loss(made, in_dbm, out_dbm, insertion_loss_db + tolerances.budget_db)
    if out_dbm is None:
        if in_dbm is None:
            source = expected.source if expected is not None else "anywhere"
            words = f"{made}: unverified, no light from {source} reaches in:{made.inp}"
            return PowerVerdict("unverified", words)
        words = f"{made}: no light at out:{made.out}, expected {should:.1f} dBm"
        return PowerVerdict("failed", words)
    if expected is not None and abs(out_dbm - expected.power_dbm) > tolerances.budget_db:
        words = f"{made}: {out_dbm:.1f} dBm at out:{made.out}, expected {should:.1f} dBm"
        return PowerVerdict("failed", words)
    if baseline_dbm is not None and baseline_dbm - out_dbm > tolerances.baseline_db:
        words = (
            f"{made}: degraded, {out_dbm:.1f} dBm at out:{made.out}, "
            f"{baseline_dbm - out_dbm:.1f} dB less than it had before ({baseline_dbm:.1f} dBm)"
        )
        return PowerVerdict("degraded", words)
    return PowerVerdict("ok")


def _judge_loss(
    made: CrossConnect, in_dbm: float | None, out_dbm: float | None, most_db: float
) -> PowerVerdict:
    if in_dbm is None or in_dbm < _DIMMEST_DBM:
        words = f"{made}: unverified, nobody is known to send light to in:{made.inp}"
        return PowerVerdict(
            "unverified", words + (", and none is measured" if out_dbm is None else "")
        )
    if out_dbm is None:
        words = f"{made}: no light at out:{made.out}, but {in_dbm:.1f} dBm at in:{made.inp}"
        return PowerVerdict("failed", words)
    if in_dbm - out_dbm > most_db:
        words = f"{made}: loses {in_dbm - out_dbm:.1f} dB, expected at most {most_db:.1f} dB"
        return PowerVerdict("failed", words)
    return PowerVerdict("ok")
