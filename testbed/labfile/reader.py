"""Lab files: YAML in; a ``Lab``, or every mistake in it with line and column, out."""

from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

from patchlight.testbed.errors import BadInput, FileError, FileIssue, nearest
from patchlight.testbed.io.fields import Fields, plain
from patchlight.testbed.io.reader import FileIssues, Located, compose, read_text
from patchlight.testbed.lab.model import Endpoint, Lab
from patchlight.testbed.lab.ocs_drivers import OCS_DRIVERS
from patchlight.testbed.lab.optical_links import Light, Meeting
from patchlight.testbed.lab.rules import KINDS, NOTHING_SAID, PolicyKind, full_path
from patchlight.testbed.labfile.check import SWITCHES, check_lab
from patchlight.testbed.labfile.ranges import write_out
from patchlight.testbed.labfile.schema import COMMON, LAB


class LabFileError(FileError):
    """A lab file has mistakes."""


def read_lab(path: str | Path) -> Lab:
    """The lab in this file; ``LabFileError`` with every mistake in it.

    Policy files that it names are looked for beside it.
    """
    expected = f"a lab file, or one of the built-in labs: {', '.join(builtin_labs())}"
    lab = parse_lab(read_text(path, LabFileError, expected), str(path))
    if lab.policies == NOTHING_SAID:
        return lab
    return lab.with_changes(policies=lab.policies.beside(Path(path).parent))


def parse_lab(text: str, name: str = "lab") -> Lab:
    """The lab in this YAML text; ``name`` is what messages call the file."""
    fields, issues = _checked_fields(text, name), FileIssues(name, LabFileError)
    lab: Lab = plain(fields)
    if lab.coloured:
        _check_meetings(lab, fields, issues)
        issues.raise_if_any()
    return lab


def oversights(path: str | Path) -> tuple[FileIssue, ...]:
    """What the lab in this file seems to lack, though it is good; ``LabFileError`` if it is not."""
    issues = FileIssues(str(path), LabFileError)
    fields = _checked_fields(read_text(path, LabFileError), str(path))
    _note_oversights(fields, issues)
    _note_weak_signals(plain(fields), fields, issues)
    return issues.found


def policy_mistakes(
    path: str | Path, check: Callable[[str, PolicyKind], object]
) -> tuple[FileIssue, ...]:
    """What ``check`` says (``BadInput``) of the policies that a good lab file names, by place."""
    issues = FileIssues(str(path), LabFileError)
    fields = _checked_fields(read_text(path, LabFileError), str(path))
    named: Fields = fields.value_of("policies", Fields())
    for kind in KINDS:
        if kind in named:
            try:
                check(full_path(named[kind].value, Path(path).parent), kind)
            except BadInput as error:
                issues.at(named[kind], error.message)
    return issues.found


def _checked_fields(text: str, name: str) -> Fields:
    issues = FileIssues(name, LabFileError)
    root = compose(text, issues, LAB.what, LAB.expected())
    located = None if root is None else LAB.read(write_out(root, issues, COMMON), issues)
    if located is not None:
        check_lab(located.value, issues)
    issues.raise_if_any()
    assert located is not None
    fields: Fields = located.value
    return fields


def _note_oversights(lab: Fields, issues: FileIssues) -> None:
    """Note what a good lab file seems to lack."""
    servers, *kinds = (lab.listed(key) for key in ("servers", *SWITCHES))
    switches = [switch for kind in kinds for switch in kind]
    if not (servers or switches):
        issues.at(lab["name"], "the lab has nothing but a name: expected servers or switches")
    user = lab["workers"].value.get("user") if "workers" in lab else None
    if user is not None and user.value == "root":
        message = "workers run as root: whoever may submit jobs can read all files of the servers"
        issues.at(user, f"{message}; expected dynamic, or a user by name")
    plugged: set[Endpoint] = {
        end.value for fibre in lab.listed("fibres") for end in fibre["ends"].value
    }
    for server in servers:
        _note_server(server, plugged, issues)
    joined = {end.device for end in plugged}
    # A switch alone is a lab for whoever tries a driver.
    if servers or len(switches) > 1:
        for name in (switch["name"] for switch in switches):
            if name.value not in joined:
                message = f"nothing joins {name.value}: expected a fibre to it in 'fibres'"
                issues.at(name, message)
    emulated = {driver.name for driver in OCS_DRIVERS.values() if driver.device}
    emulated |= {point.name for point in entry_points(group="patchlight.emulated_ocs")}
    for switch in lab.listed("circuit_switches"):
        driver = switch["driver"]
        if driver.value not in emulated:
            message = f"no emulated device speaks {driver.value}: the lab cannot be emulated"
            issues.at(driver, f"{message}; expected one of {', '.join(sorted(emulated))}")


def _note_server(server: Fields, plugged: set[Endpoint], issues: FileIssues) -> None:
    name: Located[str] = server["name"]
    if "management" not in server:
        message = f"server {name.value} has no management address, at which its agent answers"
        issues.at(name, f"{message}: expected 'management: {name.value}:8471'")
    for nic in (nic["name"] for nic in server.listed("nics")):
        if Endpoint(name.value, nic.value) not in plugged:
            message = f"NIC {name.value}.{nic.value} has no fibre: expected one in 'fibres'"
            issues.at(nic, message)


def _check_meetings(lab: Lab, fields: Fields, issues: FileIssues) -> None:
    """Note where two signals of one channel meet at the start, at the fibre where they do."""
    by_fibre: dict[Endpoint, list[Meeting]] = {}
    for meeting in Light(lab, lab.initial_maps).meetings:
        by_fibre.setdefault(meeting.at, []).append(meeting)
    for at, meetings in by_fibre.items():
        others = f" (pairs that meet there: {len(meetings)})" if len(meetings) > 1 else ""
        message = f"{meetings[0]}{others}: expected other channels, or other ways for them"
        issues.at(_fibre(lab, fields, at), message)


def _note_weak_signals(lab: Lab, fields: Fields, issues: FileIssues) -> None:
    """Note receivers at which too little optical power arrives at the start."""
    weak = Light(lab, lab.initial_maps).weak if lab.coloured else ()
    for path, power_dbm in weak:
        message = f"{power_dbm:.1f} dBm of {path.source} arrive at {path.sink}"
        issues.at(_fibre(lab, fields, path.sink), f"{message}: expected its sensitivity or more")


def _fibre(lab: Lab, fields: Fields, end: Endpoint) -> Located[object]:
    """Where the fibre at that end stands in the file."""
    fibre = lab.fibre_ends[end][1]
    located: Located[object] = fields["fibres"].value[lab.fibres.index(fibre)]
    return located


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
