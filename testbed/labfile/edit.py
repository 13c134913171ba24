"""A lab file's text with fibres changed; all else stays as its owner wrote it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import yaml

from patchlight.testbed.lab.model import Endpoint, Fibre, Lab
from patchlight.testbed.labfile.reader import LabFileError, parse_lab
from patchlight.testbed.labfile.writer import write_lab

Change = tuple[int, int, str]
"""From where to where in the text, and what stands there then."""


def with_changes(text: str, changes: Iterable[Change]) -> str:
    """The text with these changes."""
    for start, end, new in sorted(set(changes), reverse=True):
        text = text[:start] + new + text[end:]
    return text


@dataclass(frozen=True, slots=True)
class Rewired:
    """The new text; without ``keeps_comments`` the whole file was written again."""

    text: str
    keeps_comments: bool


def rewired(text: str, fibres: Sequence[tuple[str, str]]) -> Rewired:
    """The lab file ``text`` with fibres between these pairs of ends, and no others.

    A fibre of the file follows its end that is not at a circuit switch, and keeps its other keys.
    ``LabFileError`` for a text with mistakes.
    """
    lab = parse_lab(text)
    wanted = _with_fibres(lab, fibres)
    try:
        edited = _edited(text, lab, wanted)
        if edited is not None and _pairs(parse_lab(edited)) == _pairs(wanted):
            return Rewired(edited, keeps_comments=True)
    except LabFileError:
        pass
    return Rewired(write_lab(wanted), keeps_comments=False)


def _pairs(lab: Lab) -> set[frozenset[Endpoint]]:
    return {frozenset((fibre.a, fibre.b)) for fibre in lab.fibres}


def _with_fibres(lab: Lab, fibres: Sequence[tuple[str, str]]) -> Lab:
    pairs = [(Endpoint.parse(a), Endpoint.parse(b)) for a, b in fibres]
    old = {frozenset((fibre.a, fibre.b)): fibre for fibre in lab.fibres}
    switches = {switch.name for switch in lab.circuit_switches}

    def made(a: Endpoint, b: Endpoint) -> Fibre:
        known = old.get(frozenset((a, b)))
        if known is not None:
            return known
        device = next((end for end in (a, b) if end.device not in switches), a)
        there = lab.fibre_ends.get(device)
        like = there[1] if there is not None else Fibre(a, b)
        return Fibre(
            a, b, like.rate_bps, like.loss_db, like.delay_s, like.jitter_s, like.packet_loss
        )

    return lab.with_changes(fibres=tuple(made(a, b) for a, b in pairs))


def _edited(text: str, lab: Lab, wanted: Lab) -> str | None:
    """The text with its fibres changed in place; ``None`` where one line is not one fibre."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    listed = values_of(root).get("fibres")
    if not isinstance(listed, yaml.SequenceNode) or len(listed.value) != len(lab.fibres):
        return None
    ends_of = wanted.fibre_ends
    switches = {switch.name for switch in lab.circuit_switches}
    left = _pairs(wanted)
    edits: list[Change] = []
    gone: list[yaml.Node] = []
    for item, fibre in zip(listed.value, lab.fibres, strict=True):
        ends = values_of(item).get("ends")
        if not isinstance(ends, yaml.SequenceNode) or len(ends.value) != 2:
            return None
        if [node.value for node in ends.value] != [str(fibre.a), str(fibre.b)]:
            return None
        if frozenset((fibre.a, fibre.b)) in left:
            left.discard(frozenset((fibre.a, fibre.b)))
            continue
        both = (fibre.a, fibre.b)
        kept = [at for at, end in enumerate(both) if end.device not in switches]
        moved = next((at for at in kept if both[at] in ends_of), None)
        other = None if moved is None else ends_of[both[moved]][0]
        if moved is None or other is None or frozenset((both[moved], other)) not in left:
            gone.append(item)
            continue
        left.discard(frozenset((both[moved], other)))
        node = ends.value[1 - moved]
        quote = node.style or ""
        edits.append((node.start_mark.index, node.end_mark.index, f"{quote}{other}{quote}"))
    lines = _line_starts(text)
    for item in gone:
        first, last = item.start_mark.line, item.end_mark.line
        if first != last or listed.flow_style:
            return None
        edits.append((lines[first], lines[first + 1], ""))
    if left:
        if listed.flow_style or not listed.value:
            return None
        after = lines[listed.value[-1].end_mark.line + 1]
        indent = text[lines[listed.start_mark.line] : listed.start_mark.index]
        new = [fibre for fibre in wanted.fibres if frozenset((fibre.a, fibre.b)) in left]
        written = "".join(f"{indent}- {{ends: [{f.a}, {f.b}]}}\n" for f in new)
        edits.append((after, after, written if text[after - 1 : after] == "\n" else f"\n{written}"))
    return with_changes(text, edits)


def _line_starts(text: str) -> list[int]:
    """Where each line begins, and where the text ends."""
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return [*starts, len(text)]


def values_of(node: yaml.Node | None) -> dict[str, yaml.Node]:
    """The values of a mapping by their keys."""
    if not isinstance(node, yaml.MappingNode):
        return {}
    return {text_of(key): value for key, value in node.value}


def text_of(node: yaml.Node | None) -> str:
    """The text of a scalar, or ``""``."""
    return str(node.value) if isinstance(node, yaml.ScalarNode) else ""
