"""Lab files: YAML in; a ``Lab``, or every mistake in it with line and column, out."""

from collections.abc import Callable
from pathlib import Path

from patchlight.testbed.errors import BadInput
from patchlight.testbed.io.fields import Fields, plain
from patchlight.testbed.io.issues import FileError, FileIssue, FileIssues, nearest
from patchlight.testbed.io.reader import compose, read_text
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.queueing import KINDS, NOTHING_SAID, PolicyKind, full_path
from patchlight.testbed.labfile.check import check_lab
from patchlight.testbed.labfile.optical_check import (
    check_meetings,
    note_oversights,
    note_weak_signals,
)
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
        check_meetings(lab, fields, issues)
        issues.raise_if_any()
    return lab


def oversights(path: str | Path) -> tuple[FileIssue, ...]:
    """What the lab in this file seems to lack, though it is good; ``LabFileError`` if it is not."""
    issues = FileIssues(str(path), LabFileError)
    fields = _checked_fields(read_text(path, LabFileError), str(path))
    note_oversights(fields, issues)
    note_weak_signals(plain(fields), fields, issues)
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
