"""What was found on the ports of circuit switches, beside what the lab file says of them.

Pure: findings in; words, differences and the fibres as they are, out.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from patchlight.controller.discovery.search import LIGHT, Findings, Heard, OcsPort
from patchlight.testbed.lab.model import Endpoint, Fibre, Lab

Verdict = Literal["as said", "differs", "not told", "free"]


@dataclass(frozen=True, slots=True)
class FoundPort:
    """One port of a circuit switch: what ``sends`` into it and what ``hears`` what goes out there
    (``None``: nobody was heard), and what the lab file ``said``.

    ``not told``: what the lab file says could not be probed, so that nothing is known.
    """

    port: OcsPort
    sends: str | None
    hears: str | None
    said: str | None
    verdict: Verdict
    words: str

    @property
    def end(self) -> str | None:
        """What the fibre pair goes to, if that is certain."""
        return self.sends if self.sends == self.hears else None


@dataclass(frozen=True, slots=True)
class FoundWiring:
    """All of it. ``differences`` and ``doubts`` in words; ``fibres`` are those of the lab file with
    what is certain put right."""

    ports: tuple[FoundPort, ...]
    differences: tuple[str, ...]
    doubts: tuple[str, ...]
    fibres: tuple[Fibre, ...]


def expected_ends(lab: Lab) -> dict[OcsPort, str]:
    """What the lab file says is plugged into each port of each circuit switch."""
    return {
        OcsPort(ocs, number): str(end)
        for ocs, fibres in lab.circuit_fibres.items()
        for number, (end, _) in fibres.items()
    }


def found_wiring(
    lab: Lab,
    found: Findings,
    elsewhere: Heard,
    ends: Collection[str],
    silent: Mapping[str, str],
    *,
    whole: bool = True,
) -> FoundWiring:
    """Compare. ``ends`` were probed; ``silent`` says why others were not. ``elsewhere``: who hears
    whom while all ports that were looked at are dark.

    Without ``whole`` circuits stayed lit beside the ports that were looked at, so that who hears
    whom in the dark is no fibre.
    """
    expected = expected_ends(lab)
    lit = found.inputs.keys() | found.outputs.keys()
    ports = tuple(
        _judged(port, found, expected.get(port), ends, silent)
        for port in sorted(lit | (expected.keys() if whole else set()))
    )
    certain = {row.port: row.end for row in ports if row.end is not None}
    # Who only sends LLDP cannot hear; where the file agrees or is silent, one way is enough.
    certain |= {
        row.port: row.sends
        for row in ports
        if row.sends not in (None, LIGHT) and row.hears is None and row.sends not in ends
    }
    direct = {(a, b) for a, b in elsewhere if a < b and (b, a) in elsewhere} if whole else set()
    beside = list(_beside(lab, elsewhere, direct, ends))
    return FoundWiring(
        ports,
        tuple(row.words for row in ports if row.verdict == "differs") + tuple(beside),
        tuple(found.doubts),
        _corrected(lab, certain, direct),
    )


def _judged(
    port: OcsPort,
    found: Findings,
    said: str | None,
    ends: Collection[str],
    silent: Mapping[str, str],
) -> FoundPort:
    sends, hears = found.inputs.get(port), found.outputs.get(port)
    lab_file = f"the lab file says {said}" if said else "the lab file has nothing there"

    def row(verdict: Verdict, words: str) -> FoundPort:
        return FoundPort(port, sends, hears, said, verdict, words)

    if sends is None and hears is None:
        if said is None:
            return row("free", "nothing was heard")
        if said in silent:
            return row("not told", f"{port}: {said} was not probed: {silent[said]}")
        sides = (found.inputs, found.outputs)
        looked_at = any(port in side or said in side.values() for side in sides)
        if not looked_at:
            words = f"{port}: nobody was found behind {port.ocs} who could tell; {lab_file}"
            return row("not told", words)
        return row("differs", f"nothing was heard at {port}, {lab_file}")
    if sends == LIGHT:
        words = f"light comes in at {port}, and no frame tells from where"
        return row("not told" if said in silent else "differs", f"{words}; {lab_file}")
    only_lldp = hears is None and sends not in ends
    if sends == hears or only_lldp:
        if sends == said:
            return row("as said", "" if hears else "only its LLDP was heard")
        return row("differs", f"fibre {port} goes to {sends}, {lab_file}")
    if sends is not None and hears is not None:
        words = f"the two fibres of {port} are crossed: {sends} sends into it, {hears} hears it"
        return row("differs", f"{words}; {lab_file}")
    if hears is None:
        words = f"{sends} sends into {port}, and does not hear what goes out there"
    else:
        words = f"{hears} hears what goes out at {port}, and nobody is heard who sends into it"
    return row("differs", f"{words}; {lab_file}")


def _beside(
    lab: Lab, elsewhere: Heard, direct: Collection[tuple[str, str]], ends: Collection[str]
) -> Iterator[str]:
    """In words, how the fibres that pass no circuit switch differ."""
    switches = {switch.name for switch in lab.circuit_switches}
    said = {
        (min(pair), max(pair))
        for fibre in lab.fibres
        if not {fibre.a.device, fibre.b.device} & switches
        for pair in [(str(fibre.a), str(fibre.b))]
    }
    for a, b in sorted(said):
        if {a, b} <= set(ends) and not {(a, b), (b, a)} <= elsewhere:
            yield f"{a} and {b} do not hear each other, the lab file has a fibre between them"
    for a, b in sorted(set(direct) - said):
        yield (
            f"{a} and {b} hear each other while all circuits are dark, the lab file has no "
            "fibre between them"
        )


def _corrected(
    lab: Lab, certain: Mapping[OcsPort, str], direct: Collection[tuple[str, str]]
) -> tuple[Fibre, ...]:
    """The lab's fibres as they run: each follows its device's end, with its rate and losses.

    What is in the way of a fibre that was found goes; what was found besides comes last.
    """
    named = _named_ends(lab)
    pairs = [(str(port), end) for port, end in certain.items()] + list(direct)
    other: dict[Endpoint, Endpoint] = {}
    for a, b in pairs:
        if a in named and b in named:
            other |= {named[a]: named[b], named[b]: named[a]}
    switches = {switch.name for switch in lab.circuit_switches}
    fibres: dict[frozenset[Endpoint], Fibre] = {}
    for fibre in lab.fibres:
        moved = [end for end in (fibre.a, fibre.b) if end in other and end.device not in switches]
        if other.get(fibre.a) == fibre.b or not {fibre.a, fibre.b} & other.keys():
            kept = fibre
        elif moved and moved[0] == fibre.a:
            kept = replace(fibre, b=other[fibre.a])
        elif moved:
            kept = replace(fibre, a=other[fibre.b])
        else:
            continue
        fibres.setdefault(frozenset((kept.a, kept.b)), kept)
    for near, far in other.items():
        fibres.setdefault(frozenset((near, far)), Fibre(far, near))
    return tuple(fibres.values())


def _named_ends(lab: Lab) -> dict[str, Endpoint]:
    """Every port of the lab that a fibre can end on, by its name."""
    ends = [host.endpoint for host in lab.hosts]
    counts = [(switch.name, switch.ports) for switch in lab.packet_switches]
    counts += [(switch.name, switch.ports) for switch in lab.circuit_switches]
    for name, ports in counts:
        ends += [Endpoint(name, str(number)) for number in range(1, ports + 1)]
    return {str(end): end for end in ends}
