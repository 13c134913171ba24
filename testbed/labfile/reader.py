"""Lab files: YAML in; a ``Lab``, or every mistake in it with line and column, out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from patchlight.testbed.emulated import Emulation, OcsFault, OcsUser
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab import (
    CircuitSwitch,
    Fibre,
    Gpu,
    Lab,
    Nic,
    PacketSwitch,
    Server,
    default_mac,
)
from patchlight.testbed.labfile.check import check_lab
from patchlight.testbed.labfile.emulated_schema import TRIGGERS
from patchlight.testbed.labfile.errors import FileIssue, FileIssues, LabFileError, nearest
from patchlight.testbed.labfile.schema import LAB, json_schema
from patchlight.testbed.labfile.writer import FIELD_OF, write_lab
from patchlight.testbed.labfile.yaml_schema import Fields
from patchlight.testbed.portmap import PortMap

__all__ = [
    "FileIssue",
    "LabFileError",
    "builtin_lab",
    "builtin_labs",
    "find_lab",
    "json_schema",
    "labs_dir",
    "load_lab",
    "parse_lab",
    "read_lab",
    "write_lab",
]

_DEEPEST = 32  # A lab file has 7 levels.
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Base):  # type: ignore[misc]
    """Composes nodes only; what a plain scalar means is decided by ``yaml_schema``."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012


def read_lab(path: str | Path) -> Lab:
    """The lab in this file; ``LabFileError`` with every mistake in it."""
    try:
        content = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        message = f"cannot be read ({reason}): expected a lab file, or one of the built-in labs: "
        raise LabFileError(
            [FileIssue(str(path), 1, 1, message + ", ".join(builtin_labs()))]
        ) from None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start]
        line = before.count(b"\n") + 1
        column = error.start - (before.rfind(b"\n") + 1) + 1
        message = f"byte 0x{content[error.start]:02x} is not UTF-8: expected a text file in UTF-8"
        raise LabFileError([FileIssue(str(path), line, column, message)]) from None
    return parse_lab(text, str(path))


def parse_lab(text: str, name: str = "lab") -> Lab:
    """The lab in this YAML text; ``name`` is what mistakes call the file."""
    mistakes = FileIssues(name)
    root = _compose(text, mistakes)
    fields = Fields()
    if root is not None:
        found = LAB.read(root, mistakes)
        if found is not None:
            fields = found.value
            check_lab(fields, mistakes)
    if mistakes:
        raise mistakes.error()
    return _build(fields)


def _compose(text: str, mistakes: FileIssues) -> yaml.Node | None:
    strange = yaml.reader.Reader.NON_PRINTABLE.search(text)
    if strange:
        before, shown = text[: strange.start()], f"U+{ord(strange.group()):04X}"
        message = f"not YAML: character {shown} stands there: expected printable text"
        mistakes.add(before.count("\n") + 1, len(before) - before.rfind("\n"), message)
        return None
    try:
        if _is_deep(text):
            mistakes.add(1, 1, f"nested more than {_DEEPEST} levels deep: expected a lab file")
            return None
        root: yaml.Node | None = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        problem = ", ".join(part for part in (error.context, error.problem) if part)
        mistakes.add(line, column, f"not YAML: {problem}: expected 'key: value' lines and lists")
        return None
    except (yaml.YAMLError, ValueError) as error:
        mistakes.add(1, 1, f"not YAML: {error}")
        return None
    if root is None:
        required = ", ".join(key.name for key in LAB.keys if key.required)
        mistakes.add(1, 1, f"the file is empty: expected a lab with keys {required}")
    return root


def _is_deep(text: str) -> bool:
    """Whether a text nests too deeply to be composed: the parser would overrun its stack."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _DEEPEST:
                return True
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
    return False


def labs_dir() -> Path:
    """Where the built-in lab files are."""
    return Path(__file__).parents[1] / "labs"


def builtin_labs() -> tuple[str, ...]:
    """The names of the built-in labs."""
    return tuple(sorted(path.stem for path in labs_dir().glob("*.yaml")))


def builtin_lab(name: str) -> Path:
    """The file of a built-in lab; ``BadInput`` naming those there are."""
    if name in builtin_labs():
        return labs_dir() / f"{name}.yaml"
    raise BadInput(f"no built-in lab is called {name!r}: {nearest(name, builtin_labs())}")


def find_lab(text: str) -> Path:
    """The lab file meant by a command-line argument: a path, or a built-in lab's name.

    ``BadInput`` if it is neither.
    """
    path = Path(text)
    try:
        if path.exists() and not path.is_dir():
            return path
    except (OSError, ValueError):
        pass
    if text in builtin_labs():
        return builtin_lab(text)
    known = nearest(text, builtin_labs(), "the built-in labs are")
    raise BadInput(
        f"no lab file at {text!r}, and no built-in lab is called so: {known}",
        hint="name a lab file, or make one with: patchlight lab generate --help",
    )


def load_lab(text: str) -> Lab:
    """The lab meant by a command-line argument: ``read_lab(find_lab(text))``."""
    return read_lab(find_lab(text))


def _build(fields: Fields) -> Lab:
    """The lab of a file without mistakes."""
    controller: Fields = fields["controller"].value if "controller" in fields else Fields()
    return Lab(
        servers=tuple(map(_server, _items(fields, "servers"))),
        packet_switches=tuple(
            PacketSwitch(**_plain(item)) for item in _items(fields, "packet_switches")
        ),
        circuit_switches=tuple(map(_circuit_switch, _items(fields, "circuit_switches"))),
        fibres=tuple(map(_fibre, _items(fields, "fibres"))),
        **{f"controller_{key}": found.value for key, found in controller.items()},
        **_plain(fields, "controller", "servers", "packet_switches", "circuit_switches", "fibres"),
    )


def _items(fields: Fields, key: str) -> list[Fields]:
    return [item.value for item in fields[key].value] if key in fields else []


def _plain(fields: Fields, *but: str) -> dict[str, Any]:
    """The values of a group, named as the model's fields are; absent keys keep its defaults."""
    return {FIELD_OF.get(k, k): found.value for k, found in fields.items() if k not in but}


def _server(fields: Fields) -> Server:
    return Server(
        name=fields["name"].value,
        management=fields["management"].value if "management" in fields else None,
        gpus=tuple(Gpu(**_plain(gpu)) for gpu in _items(fields, "gpus")),
        nics=tuple(
            Nic(**{"mac": default_mac(nic["address"].value), **_plain(nic)})
            for nic in _items(fields, "nics")
        ),
    )


def _circuit_switch(fields: Fields) -> CircuitSwitch:
    found = fields["cross_connects"].value if "cross_connects" in fields else []
    initial = PortMap.of(c for item in found for c in item.value)
    plain = _plain(fields, "cross_connects", "emulated")
    emulated = _emulated(fields["emulated"].value) if "emulated" in fields else Emulation()
    return CircuitSwitch(initial=initial, emulated=emulated, **plain)


def _emulated(fields: Fields) -> Emulation:
    return Emulation(
        faults=tuple(map(_fault, _items(fields, "faults"))),
        users=tuple(OcsUser(**_plain(user)) for user in _items(fields, "users")),
        conflict_time_s=fields["conflict_time"].value if "conflict_time" in fields else None,
    )


def _fault(fields: Fields) -> OcsFault:
    return OcsFault.of(
        {key: _bare(found.value) for key, found in fields.items() if key not in TRIGGERS},
        after_s=fields["after"].value if "after" in fields else 0.0,
        after_changes=fields["after_changes"].value if "after_changes" in fields else 0,
    )


def _bare(value: Any) -> Any:
    """A list's or mapping's items without their places."""
    if isinstance(value, list):
        return [item.value for item in value]
    return {k: item.value for k, item in value.items()} if isinstance(value, dict) else value


def _fibre(fields: Fields) -> Fibre:
    a, b = (end.value for end in fields["ends"].value)
    return Fibre(a=a, b=b, **_plain(fields, "ends"))
