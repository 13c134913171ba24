"""A lab file's text with host keys or fibres changed; all else stays as its owner wrote it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import yaml

from patchlight.testbed.errors import BadInput
from patchlight.testbed.io.issues import FileError
from patchlight.testbed.lab.model import Endpoint, Fibre, Lab, Server
from patchlight.testbed.labfile.reader import LabFileError, parse_lab
from patchlight.testbed.labfile.writer import write_lab

_Change = tuple[int, int, str]
"""From where to where in the text, and what stands there then."""


def with_host_keys(text: str, servers: Mapping[str, str], jumps: Mapping[str, str]) -> str:
    """The text of a good lab file with the fingerprints of host keys in it.

    ``servers`` has them by server, ``jumps`` by the text of ``jump``. ``BadInput`` where the file
    is written in a way that leaves no place for one (a range stands for several servers).
    """
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    changes: list[_Change] = []
    for server in _items(_values(root).get("servers")):
        keys = _values(server)
        ssh = keys.get("ssh")
        fingerprint = servers.get(_text(keys.get("name")))
        if fingerprint is not None:
            if isinstance(ssh, yaml.MappingNode):
                changes.append(_put(ssh, "host_key", fingerprint))
            else:
                changes.append(_put(server, "ssh", f"{{host_key: {fingerprint}}}"))
    for owner in (_values(root).get("defaults"), *_items(_values(root).get("servers"))):
        ssh = _values(owner).get("ssh")
        fingerprint = jumps.get(_text(_values(ssh).get("jump")))
        if isinstance(ssh, yaml.MappingNode) and fingerprint is not None:
            changes.append(_put(ssh, "jump_host_key", fingerprint))
    written = _with(text, changes)
    before = parse_lab(text)
    expected = tuple(_vouched_for(server, servers, jumps) for server in before.servers)
    try:
        is_right = parse_lab(written) == before.with_changes(servers=expected)
    except FileError:
        is_right = False
    if not is_right:
        lines = [f"{name}: host_key: {key}" for name, key in servers.items()]
        lines += [f"jump {name}: jump_host_key: {key}" for name, key in jumps.items()]
        raise BadInput(
            "the lab file leaves no place for what belongs under 'ssh' of one server:\n    "
            + "\n    ".join(lines),
            hint="A range or an alias stands for several: write the servers out one by one, or "
            "use --known-hosts.",
        )
    return written


def _with(text: str, changes: Iterable[_Change]) -> str:
    for start, end, new in sorted(set(changes), reverse=True):
        text = text[:start] + new + text[end:]
    return text


def _vouched_for(server: Server, servers: Mapping[str, str], jumps: Mapping[str, str]) -> Server:
    host_key = servers.get(server.name, server.ssh.host_key)
    jump_host_key = jumps.get(server.ssh.jump or "", server.ssh.jump_host_key)
    return replace(server, ssh=replace(server.ssh, host_key=host_key, jump_host_key=jump_host_key))


def _put(group: yaml.MappingNode, key: str, value: str) -> _Change:
    """What to change so that a group that has at least one key says this."""
    there = _values(group).get(key)
    if there is not None:
        return there.start_mark.index, there.end_mark.index, value
    first_value = group.value[0][1]
    if group.flow_style:
        end = first_value.end_mark.index
        return end, end, f", {key}: {value}"
    # On a line of its own before the second key, or, where there is none, before the first.
    place = group.value[min(1, len(group.value) - 1)][0].start_mark
    return place.index, place.index, f"{key}: {value}\n{' ' * place.column}"


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
    listed = _values(root).get("fibres")
    if not isinstance(listed, yaml.SequenceNode) or len(listed.value) != len(lab.fibres):
        return None
    ends_of = wanted.fibre_ends
    switches = {switch.name for switch in lab.circuit_switches}
    left = _pairs(wanted)
    edits: list[_Change] = []
    gone: list[yaml.Node] = []
    for item, fibre in zip(listed.value, lab.fibres, strict=True):
        ends = _values(item).get("ends")
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
    return _with(text, edits)


def _line_starts(text: str) -> list[int]:
    """Where each line begins, and where the text ends."""
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return [*starts, len(text)]


def _values(node: yaml.Node | None) -> dict[str, yaml.Node]:
    if not isinstance(node, yaml.MappingNode):
        return {}
    return {_text(key): value for key, value in node.value}


def _items(node: yaml.Node | None) -> list[yaml.MappingNode]:
    found = node.value if isinstance(node, yaml.SequenceNode) else []
    return [item for item in found if isinstance(item, yaml.MappingNode)]


def _text(node: yaml.Node | None) -> str:
    return str(node.value) if isinstance(node, yaml.ScalarNode) else ""
