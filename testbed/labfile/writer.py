"""Writes lab files: new, commented, or with changed fibres; also their JSON Schema and reference.

``python -m patchlight.testbed.labfile.writer`` prints the reference as Markdown.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any, get_args

import yaml

from patchlight.testbed.io.describe import (
    described,
    description,
    published,
    sample,
    sections,
)
from patchlight.testbed.io.keys import (
    HexadecimalNumber,
    Keys,
    Listed,
    OneLine,
    read,
)
from patchlight.testbed.io.reader import FileIssues, is_bare_text
from patchlight.testbed.lab.model import Endpoint, Fibre, Lab
from patchlight.testbed.labfile import reader
from patchlight.testbed.labfile.schema import COMMON, LabKeys

_Base: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_MAP, _SEQ, _STR, _INT = (
    f"tag:yaml.org,2002:{kind}" for kind in ("map", "seq", "str", "int")
)


class _Dumper(_Base):  # type: ignore[misc]
    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(dumper: Any, text: str) -> Any:
    # PyYAML quotes what YAML 1.1 would misread; the reader recognises more numbers.
    return dumper.represent_scalar(
        _STR, text, style=None if is_bare_text(text) else '"'
    )


_Dumper.add_representer(str, _text)
_Dumper.add_representer(
    OneLine, lambda d, v: d.represent_mapping(_MAP, v, flow_style=True)
)
_Dumper.add_representer(
    Listed, lambda d, v: d.represent_sequence(_SEQ, v, flow_style=True)
)
_Dumper.add_representer(
    HexadecimalNumber, lambda d, v: d.represent_scalar(_INT, hex(v))
)


def write_lab(lab: Lab) -> str:
    """YAML text that ``parse_lab`` reads back as equal; defaults are omitted."""
    return to_yaml(LabKeys.written(lab))


def to_yaml(document: Any) -> str:
    """A lab's document or part of it as YAML text."""
    text: str = yaml.dump(
        document,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=1_000_000,
        default_flow_style=False,
    )
    return text


_WIDTH = 100
_FILE_HEAD = (
    "# A Patchlight lab file. Keys after a # are optional and show the default or",
    "# an example. To check the file: patchlight lab check FILE",
    "",
)


def write_commented_lab(lab: Lab) -> str:
    """Commented YAML text that ``parse_lab`` reads back as equal."""
    lines = _group(LabKeys, LabKeys.written(lab))
    return "".join(f"{line}\n" for line in (*_FILE_HEAD, *lines))


def _group(group: type[Keys], values: Mapping[str, Any]) -> Iterator[str]:
    keys = described(group)["properties"]
    for name, field in group.field_of.items():
        about = description(keys[name])
        yield from wrap(
            f"{about[0].upper()}{about[1:]}.",
            _WIDTH - 12,
            initial_indent="# ",
            subsequent_indent="# ",
        )
        value = values.get(name)
        if value is None:
            yield f"# {name}: {_left_out(group, name, keys[name])}"
        elif "properties" in keys[name].get("items", ()):
            yield f"{name}:"
            kind, *_ = get_args(group.model_fields[field].annotation)
            yield from _items(kind, value)
        else:
            yield from to_yaml({name: value}).splitlines()


def _items(group: type[Keys], items: list[Mapping[str, Any]]) -> Iterator[str]:
    starts = True
    for line in _group(group, items[0]):
        indent = (
            "    " if not starts else "  " if line.startswith("#") else "  - "
        )
        starts = starts and line.startswith("#")
        yield f"{indent}{line}"
    for item in items[1:]:
        yield from (f"  {line}" for line in to_yaml([item]).splitlines())


def _left_out(
    group: type[Keys],
    name: str,
    key: Mapping[str, Any],
) -> str:
    """The default of a key if it can stand in a file, else an example."""
    if shown := key.get("shown"):
        tried = read(group, f"{name}: {shown}", FileIssues(name))
        if tried is not None and name in tried:
            return str(shown)
    return sample(key)


def json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a lab file, for editors.

    It covers keys and the form of values. Only ``read_lab`` checks the whole file (a port used
    twice, an address outside the network).
    """
    lab = published(described(LabKeys))
    for name in reader.ITEMS:
        if name in lab["properties"]:
            _with_short_forms(name, lab["properties"][name])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Patchlight lab file",
        **lab,
    }


def _with_short_forms(name: str, items: dict[str, Any]) -> None:
    """Allow ranges, one-line fibres, and keys with defaults to be omitted, in a list's schema."""
    group = items["items"]
    several = {"type": "string", "pattern": reader.RANGE_PATTERN}
    common = COMMON.get(reader.ITEMS[name], ())
    group["required"] = [key for key in group["required"] if key not in common]
    for key, value in group["properties"].items():
        about = value.pop("description", None)
        if key == "cross_connects":
            value["items"] = {"anyOf": [value["items"], several]}
        elif key == "ends":
            value = {"anyOf": [value, {"type": "string"}]}
        elif key in reader.RANGED:
            value = {"anyOf": [value, several]}
        group["properties"][key] = value | {"description": about}
        if key in reader.ITEMS:
            _with_short_forms(key, value)
    if name == "fibres":
        items["items"] = {"anyOf": [group, {"type": "string"}]}


_HEAD = """\
# Lab files

A lab file is YAML in UTF-8. Every key that is not listed here is a mistake, as is a key that stands
twice; `patchlight lab check FILE` names all mistakes with line and column, `patchlight lab check
--schema` prints a JSON Schema for editors, and `patchlight lab init` writes a first file with
comments. What looks like a number but is a name stands in quotes: `"3090"`.
"""
_SHORT = """\
## Ranges and defaults

Equal things need not be written one by one. A range in a name makes as many of them:
`server[1-4]` are four servers, `[1-3,7]` leaves numbers out, `[01-12]` keeps the zeros, and of two
ranges in one text the last runs fastest. Other texts of the same item have as many values
(`10.0.0.[11-14]:8471`) or one for all; in a list inside a server, one for each of each server too,
as the addresses below. A fibre may stand in one line, with as many ports on both sides. `defaults`
holds what equal things have in common; what a thing says itself goes before it, of `ssh` key by
key. YAML wants quotes around brackets inside `{…}` and `[…]`, and where a text begins with one.

```yaml
name: short
network: 192.168.10.0/24
defaults:
  gpu: {model: A100}
  nic: {rate: 40Gbps}
  ssh: {user: admin}
  fibre: {rate: 40Gbps}
servers:
  - name: server[1-4]
    management: 10.0.0.[11-14]:8471
    gpus:
      - name: gpu[0-1]
    nics:
      - {name: "nic[0-1]", address: "192.168.10.[11-18]", gpu: "gpu[0-1]"}
packet_switches:
  - {name: "tor[1-2]", datapath_id: "[1-2]", ports: 9}
circuit_switches:
  - name: ocs1
    driver: calient-tl1
    address: 10.0.0.5:3082
    ports: 32
    cross_connects: ["[1-4]-[9-12]", "[5-8]-[17-20]"]
fibres:
  - server[1-4].nic[0-1] - ocs1.[1-8]
  - tor[1-2].[1-8] - ocs1.[9-24]
  - ends: tor1.9 - tor2.9
    rate: 10Gbps
```

Ranges are taken in `name`, `management`, `address`, `uuid`, `datapath_id`, `gpu`, `interface`,
`password_env`, `ends`, `interfaces`, `cross_connects` and `telemetry`.
"""


def lab_file_reference() -> str:
    """Each group of keys as a table, and a whole file, as Markdown."""
    example = write_commented_lab(reader.load_lab("ofc2022"))
    whole = f"## A whole file\n\n```yaml\n{example}```\n"
    return "\n".join(
        [
            _HEAD,
            *sections(described(LabKeys)),
            whole,
            _SHORT,
        ]
    )


Change = tuple[int, int, str]
"""A span of the text, and its replacement."""


def with_changes(text: str, changes: Iterable[Change]) -> str:
    """The text with these changes."""
    for start, end, new in sorted(set(changes), reverse=True):
        text = text[:start] + new + text[end:]
    return text


@dataclass(
    frozen=True,
    slots=True,
)
class Rewired:
    """The new text; without ``keeps_comments`` the whole file was rewritten."""

    text: str
    keeps_comments: bool


def rewired(text: str, fibres: Sequence[tuple[str, str]]) -> Rewired:
    """The lab file ``text`` with fibres between exactly these pairs of ends.

    A fibre follows its end that is not at a circuit switch, and keeps its other keys.
    ``LabFileError`` for a text with mistakes.
    """
    lab = reader.parse_lab(text)
    wanted = _with_fibres(lab, fibres)
    try:
        edited = _edited(text, lab, wanted)
        if edited is not None and _pairs(reader.parse_lab(edited)) == _pairs(
            wanted
        ):
            return Rewired(edited, keeps_comments=True)
    except reader.LabFileError:
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
            a,
            b,
            like.rate_bps,
            like.loss_db,
            like.delay_s,
            like.jitter_s,
            like.packet_loss,
        )

    return lab.with_changes(fibres=tuple(made(a, b) for a, b in pairs))


def _edited(
    text: str,
    lab: Lab,
    wanted: Lab,
) -> str | None:
    """The text with its fibres changed in place; ``None`` if some line is not one fibre."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    listed = values_of(root).get("fibres")
    if not isinstance(listed, yaml.SequenceNode) or len(listed.value) != len(
        lab.fibres
    ):
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
        kept = [
            at for at, end in enumerate(both) if end.device not in switches
        ]
        moved = next((at for at in kept if both[at] in ends_of), None)
        other = None if moved is None else ends_of[both[moved]][0]
        if (
            moved is None
            or other is None
            or frozenset((both[moved], other)) not in left
        ):
            gone.append(item)
            continue
        left.discard(frozenset((both[moved], other)))
        node = ends.value[1 - moved]
        quote = node.style or ""
        edits.append(
            (
                node.start_mark.index,
                node.end_mark.index,
                f"{quote}{other}{quote}",
            )
        )
    lines = _line_starts(text)
    for item in gone:
        first = item.start_mark.line
        last = item.end_mark.line
        if first != last or listed.flow_style:
            return None
        edits.append((lines[first], lines[first + 1], ""))
    if left:
        if listed.flow_style or not listed.value:
            return None
        after = lines[listed.value[-1].end_mark.line + 1]
        indent = text[lines[listed.start_mark.line] : listed.start_mark.index]
        new = [
            fibre
            for fibre in wanted.fibres
            if frozenset((fibre.a, fibre.b)) in left
        ]
        written = "".join(f"{indent}- {{ends: [{f.a}, {f.b}]}}\n" for f in new)
        edits.append(
            (
                after,
                after,
                written if text[after - 1 : after] == "\n" else f"\n{written}",
            )
        )
    return with_changes(text, edits)


def _line_starts(text: str) -> list[int]:
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return [*starts, len(text)]


def values_of(node: yaml.Node | None) -> dict[str, yaml.Node]:
    """The values of a mapping by their keys."""
    if not isinstance(node, yaml.MappingNode):
        return {}
    return {reader.text_of(key): value for key, value in node.value}


if __name__ == "__main__":
    print(lab_file_reference())
