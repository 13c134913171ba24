"""A lab file with other fibres: the text as it is, comments and order kept, but for these."""

from collections.abc import Sequence
from dataclasses import dataclass

import yaml

from patchlight.testbed.lab.model import Endpoint, Fibre, Lab
from patchlight.testbed.labfile.reader import LabFileError, parse_lab
from patchlight.testbed.labfile.writer import write_lab


@dataclass(frozen=True, slots=True)
class Rewired:
    """The new text, and whether it is the old one but for its fibres; else it was written anew."""

    text: str
    keeps_comments: bool


def rewired(text: str, fibres: Sequence[tuple[str, str]]) -> Rewired:
    """The lab file ``text`` with fibres between these pairs of ends, and no others.

    A fibre of the file follows its end that is no circuit switch's, and keeps what it says besides.
    ``LabFileError`` for a text that is no lab file.
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
    listed = _value(root, "fibres")
    if not isinstance(listed, yaml.SequenceNode) or len(listed.value) != len(lab.fibres):
        return None
    ends_of = wanted.fibre_ends
    switches = {switch.name for switch in lab.circuit_switches}
    left = _pairs(wanted)
    edits: list[tuple[int, int, str]] = []
    gone: list[yaml.Node] = []
    for item, fibre in zip(listed.value, lab.fibres, strict=True):
        ends = _value(item, "ends")
        if not isinstance(ends, yaml.SequenceNode) or len(ends.value) != 2:
            return None
        if [node.value for node in ends.value] != [str(fibre.a), str(fibre.b)]:
            return None
        if frozenset((fibre.a, fibre.b)) in left:
            left.discard(frozenset((fibre.a, fibre.b)))
            continue
        kept = [at for at, end in enumerate((fibre.a, fibre.b)) if end.device not in switches]
        moved = next((at for at in kept if (fibre.a, fibre.b)[at] in ends_of), None)
        pair = None if moved is None else _pair_of((fibre.a, fibre.b)[moved], wanted)
        if moved is None or pair not in left:
            gone.append(item)
            continue
        left.discard(pair)
        node, other = ends.value[1 - moved], ends_of[(fibre.a, fibre.b)[moved]][0]
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
    for begin, end, words in sorted(edits, reverse=True):
        text = text[:begin] + words + text[end:]
    return text


def _pair_of(end: Endpoint, lab: Lab) -> frozenset[Endpoint]:
    return frozenset((end, lab.fibre_ends[end][0]))


def _value(node: yaml.Node | None, key: str) -> yaml.Node | None:
    if not isinstance(node, yaml.MappingNode):
        return None
    return next((value for name, value in node.value if name.value == key), None)


def _line_starts(text: str) -> list[int]:
    """Where each line begins, and where the text ends."""
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return [*starts, len(text)]
