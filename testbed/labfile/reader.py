"""Lab files: YAML in; a ``Lab``, or every mistake in it with line and column, out."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from patchlight.testbed.errors import BadInput
from patchlight.testbed.io.fields import plain
from patchlight.testbed.io.groups import Fields
from patchlight.testbed.io.issues import FileError, FileIssue, FileIssues, nearest
from patchlight.testbed.io.reader import compose, read_text
from patchlight.testbed.lab.access import SshAccess
from patchlight.testbed.lab.model import (
    CircuitSwitch,
    Emulation,
    Fibre,
    Gpu,
    Lab,
    Nic,
    OcsFault,
    OcsUser,
    PacketSwitch,
    Server,
    default_mac,
)
from patchlight.testbed.lab.nic import Rendezvous
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.lab.queueing import KINDS, PolicyKind, full_path
from patchlight.testbed.lab.wavelengths import WavelengthSwitch
from patchlight.testbed.labfile.access_schema import access_of
from patchlight.testbed.labfile.check import check_lab
from patchlight.testbed.labfile.colours_schema import (
    passive_part_of,
    transceiver_of,
    wavelength_switch_of,
)
from patchlight.testbed.labfile.emulated_schema import TRIGGERS
from patchlight.testbed.labfile.light_check import check_light, note_weak_light
from patchlight.testbed.labfile.listed import items
from patchlight.testbed.labfile.oversights import note_oversights
from patchlight.testbed.labfile.policies_schema import choice_of
from patchlight.testbed.labfile.queue_schema import discipline_of
from patchlight.testbed.labfile.ranges import write_out
from patchlight.testbed.labfile.schema import COMMON, LAB
from patchlight.testbed.labfile.workers_schema import worker_policy_of
from patchlight.testbed.labfile.writer import FIELD_OF


class LabFileError(FileError):
    """A lab file has mistakes."""


def read_lab(path: str | Path) -> Lab:
    """The lab in this file; ``LabFileError`` with every mistake in it.

    Policy files that it names are looked for beside it.
    """
    expected = f"a lab file, or one of the built-in labs: {', '.join(builtin_labs())}"
    lab = parse_lab(read_text(path, LabFileError, expected), str(path))
    return lab.with_changes(policies=lab.policies.beside(Path(path).parent))


def parse_lab(text: str, name: str = "lab") -> Lab:
    """The lab in this YAML text; ``name`` is what messages call the file."""
    fields, issues = _checked_fields(text, name), FileIssues(name, LabFileError)
    lab = _build(fields)
    check_light(lab, fields, issues)
    issues.raise_if_any()
    return lab


def oversights(path: str | Path) -> tuple[FileIssue, ...]:
    """What the lab in this file seems to lack, though it is good; ``LabFileError`` if it is not."""
    issues = FileIssues(str(path), LabFileError)
    fields = _checked_fields(read_text(path, LabFileError), str(path))
    note_oversights(fields, issues)
    note_weak_light(_build(fields), fields, issues)
    return issues.found


def policy_mistakes(
    path: str | Path, check: Callable[[str, PolicyKind], object]
) -> tuple[FileIssue, ...]:
    """What ``check`` says (``BadInput``) of the policies that a good lab file names, by place."""
    issues = FileIssues(str(path), LabFileError)
    fields = _checked_fields(read_text(path, LabFileError), str(path))
    named: Fields = fields["policies"].value if "policies" in fields else Fields()
    for kind in KINDS:
        if kind in named:
            try:
                check(full_path(named[kind].value, Path(path).parent), kind)
            except BadInput as error:
                issues.at(named[kind], error.message)
    return issues.found


def _checked_fields(text: str, name: str) -> Fields:
    issues = FileIssues(name, LabFileError)
    root = compose(text, issues, LAB)
    located = None if root is None else LAB.read(write_out(root, issues, COMMON), issues)
    if located is not None:
        check_lab(located.value, issues)
    issues.raise_if_any()
    assert located is not None
    fields: Fields = located.value
    return fields


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


_COLOURED = ("wavelength_switches", "passive_parts")
_LISTS = ("servers", "packet_switches", "circuit_switches", *_COLOURED, "fibres")


def _build(fields: Fields) -> Lab:
    """The lab of a file without mistakes."""
    controller: Fields = fields["controller"].value if "controller" in fields else Fields()
    return Lab(
        servers=tuple(map(_server, items(fields, "servers"))),
        packet_switches=tuple(map(_packet_switch, items(fields, "packet_switches"))),
        circuit_switches=tuple(map(_circuit_switch, items(fields, "circuit_switches"))),
        wavelength_switches=tuple(map(_wavelength_switch, items(fields, _COLOURED[0]))),
        passive_parts=tuple(map(passive_part_of, items(fields, _COLOURED[1]))),
        fibres=tuple(map(_fibre, items(fields, "fibres"))),
        **{f"controller_{key}": address for key, address in _values(controller, "access").items()},
        access=access_of(controller["access"].value if "access" in controller else Fields()),
        queue=discipline_of(fields["queue"].value if "queue" in fields else Fields()),
        policies=choice_of(fields["policies"].value if "policies" in fields else Fields()),
        workers=worker_policy_of(fields["workers"].value if "workers" in fields else Fields()),
        **_values(fields, "controller", "defaults", "queue", "policies", "workers", *_LISTS),
    )


def _values(fields: Fields, *but: str) -> dict[str, Any]:
    """The values of a group, named as the model's fields are; absent keys keep its defaults."""
    return {FIELD_OF.get(key, key): item.value for key, item in fields.items() if key not in but}


def _server(fields: Fields) -> Server:
    return Server(
        name=fields["name"].value,
        management=fields["management"].value if "management" in fields else None,
        gpus=tuple(Gpu(**_values(gpu)) for gpu in items(fields, "gpus")),
        ssh=SshAccess(**_values(fields["ssh"].value)) if "ssh" in fields else SshAccess(),
        emulated_gpus="emulated_gpus" in fields and fields["emulated_gpus"].value,
        nics=tuple(map(_nic, items(fields, "nics"))),
    )


def _nic(fields: Fields) -> Nic:
    own = default_mac(fields["address"].value)
    mac = fields["mac"].value if "mac" in fields else "hardware"
    way = fields["rendezvous"].value if "rendezvous" in fields else None
    coloured = fields["transceiver"].value if "transceiver" in fields else None
    return Nic(
        mac=own if mac in ("hardware", "lab") else mac,
        lab_mac=mac in ("lab", own),
        routes=tuple(route.value for route in fields["routes"].value) if "routes" in fields else (),
        rendezvous=None if way is None else Rendezvous(**_values(way)),
        transceiver=None if coloured is None else transceiver_of(coloured),
        **_values(fields, "mac", "routes", "rendezvous", "transceiver"),
    )


def _packet_switch(fields: Fields) -> PacketSwitch:
    coloured = fields["transceivers"].value if "transceivers" in fields else {}
    transceivers = sorted((port, transceiver_of(item.value)) for port, item in coloured.items())
    return PacketSwitch(transceivers=tuple(transceivers), **_values(fields, "transceivers"))


def _circuit_switch(fields: Fields) -> CircuitSwitch:
    listed = fields["cross_connects"].value if "cross_connects" in fields else []
    initial = PortMap.of(cross_connect for item in listed for cross_connect in item.value)
    return CircuitSwitch(
        initial=initial,
        emulated=_emulated_of(fields),
        **_values(fields, "cross_connects", "emulated"),
    )


def _wavelength_switch(fields: Fields) -> WavelengthSwitch:
    return wavelength_switch_of(fields, _emulated_of(fields))


def _emulated_of(switch: Fields) -> Emulation:
    return _emulated(switch["emulated"].value) if "emulated" in switch else Emulation()


def _emulated(fields: Fields) -> Emulation:
    return Emulation(
        faults=tuple(map(_fault, items(fields, "faults"))),
        users=tuple(OcsUser(**_values(user)) for user in items(fields, "users")),
        conflict_time_s=fields["conflict_time"].value if "conflict_time" in fields else None,
    )


def _fault(fields: Fields) -> OcsFault:
    return OcsFault.of(
        {key: value for key, value in plain(fields).items() if key not in TRIGGERS},
        after_s=fields["after"].value if "after" in fields else 0.0,
        after_changes=fields["after_changes"].value if "after_changes" in fields else 0,
    )


def _fibre(fields: Fields) -> Fibre:
    a, b = (end.value for end in fields["ends"].value)
    return Fibre(a=a, b=b, **_values(fields, "ends"))
