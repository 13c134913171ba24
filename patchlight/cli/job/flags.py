"""Options that say of a job what a job file could say: made of the keys of job files."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from patchlight.console.connection import Complete, complete_hosts
from patchlight.console.options import complete_policy
from patchlight.testbed.errors import BadInput
from patchlight.testbed.io.fields import FieldType, ListOf
from patchlight.testbed.io.forms import MapOf, mapping_of, value_of
from patchlight.testbed.io.issues import nearest
from patchlight.testbed.jobfile.reader import Overrides
from patchlight.testbed.jobfile.schema import ARRAY, KEYS, SWEEP

Command = Callable[..., Any]
_SWEPT = {key.name: key.type for key in SWEEP.keys}
_PAIRS = {"compute": "MODEL=TIME", "environment": "NAME=VALUE"}


def reads(type: FieldType) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """An option's callback that reads a value as a file has it; commas part a list's items."""

    def read(context: click.Context, parameter: click.Parameter, given: Any) -> Any:
        try:
            if isinstance(given, tuple):
                return tuple(value_of(type, text) for text in given)
            return None if given is None else value_of(type, given)
        except BadInput as error:
            raise click.BadParameter(error.message, context, parameter) from error

    return read


def _sentence(name: str, more: str = "") -> str:
    about = KEYS[name].about
    return f"{about[0].upper()}{about[1:]}{more}."


def _of_key(
    name: str,
    metavar: str,
    *flags: str,
    default: str = "",
    multiple: bool = False,
    complete: Complete | None = None,
) -> Callable[[Command], Command]:
    key = KEYS[name]
    type: FieldType = key.type
    if multiple and isinstance(type, ListOf):
        type = type.item
    shown = default or key.default
    return click.option(
        *(flags or [f"--{name.replace('_', '-')}"]),
        name,
        callback=None if isinstance(type, MapOf) else reads(type),
        multiple=multiple,
        metavar=metavar,
        shell_complete=complete,
        help=_sentence(name, "; may be given again" * multiple)
        + (f"  [default: {shown}]" if shown else ""),
    )


_OPTIONS = (
    _of_key("workers", "N|auto"),
    _of_key("degrees", "N,N…"),
    _of_key("hosts", "HOST,HOST…", complete=complete_hosts),
    _of_key("gpu_models", "MODEL,MODEL…"),
    _of_key("trainer", "synthetic|torch|command"),
    _of_key("model", "NAME"),
    _of_key("batch", "N"),
    _of_key("data", "FOLDER"),
    _of_key("iterations", "N", default="10 without a file"),
    _of_key("gradient", "SIZE", default="553MB without a file"),
    _of_key(
        "compute",
        _PAIRS["compute"],
        multiple=True,
        default="500ms on every model of the lab without a file",
    ),
    _of_key("seed", "N"),
    _of_key("image", "IMAGE"),
    _of_key("environment", _PAIRS["environment"], "--env", multiple=True),
    _of_key("mounts", "SOURCE:TARGET[:rw]", "--mount", multiple=True),
    _of_key("shared_memory", "SIZE"),
    _of_key("memory", "SIZE"),
    _of_key("cpus", "N"),
    _of_key("working_directory", "FOLDER"),
    _of_key("hold", "auto|protocol|freeze"),
    _of_key("graph", "NAME|FILE"),
    _of_key("requirement", "NUMBER"),
    _of_key("deadline", "TIME"),
    _of_key("priority", "N"),
    _of_key("after", "JOB,JOB…"),
    _of_key("retries", "N"),
    _of_key("checkpoint", "FOLDER"),
    _of_key("checkpoint_every", "N"),
    click.option(
        "--preemptible/--no-preemptible",
        default=None,
        help=f"{_sentence('preemptible')}  [default: preemptible]",
    ),
    _of_key("topology", "keep|regroup|POLICY", complete=complete_policy),
    click.option("--regroup", is_flag=True, help="The same as --topology regroup."),
    _of_key("placement", "POLICY", complete=complete_policy),
    _of_key("dark_limit", "TIME"),
    click.option(
        "--sweep",
        multiple=True,
        metavar="KEY=VALUE,VALUE…",
        help="A job for each value, or each combination of values if given again: of "
        f"{', '.join(_SWEPT)}.",
    ),
    click.option("--array", callback=reads(ARRAY), metavar="N", help="So many of the job."),
)


def job_options(command: Command) -> Command:
    """Give a command an option for each key of a job file, as keywords for ``overrides``."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def overrides(
    *, regroup: bool, sweep: Sequence[str], array: int | None, command: Sequence[str], **keys: Any
) -> Overrides:
    """What the options say; ``command`` are the words of a program.

    ``BadInput`` where they do not go together.
    """
    if regroup and keys["topology"] == "keep":
        raise BadInput("--regroup and --topology keep exclude each other")
    if regroup:
        keys["topology"] = "regroup"
    for key, metavar in _PAIRS.items():
        keys[key] = _pairs(key, metavar, keys[key])
    if keys["graph"] is not None and Path(keys["graph"]).is_file():
        # A job file's own is looked for beside the file.
        keys["graph"] = str(Path(keys["graph"]).absolute())
    keys["command"] = tuple(command)
    values = {key: value for key, value in keys.items() if value is not None and value != ()}
    return Overrides({key: v for key, v in values.items() if v != {}}, _sweep(sweep), array)


def _pairs(key: str, metavar: str, texts: Sequence[str]) -> Any:
    pairs: dict[str, str] = {}
    for text in texts:
        # A model's name may have a sign of its own, and so may a variable's value.
        name, sign, value = text.rpartition("=") if key == "compute" else text.partition("=")
        if not sign or not name:
            raise BadInput(f"{text!r}: expected {metavar}, like {KEYS[key].sample.strip('{}')}")
        pairs[name] = value
    type = KEYS[key].type
    assert isinstance(type, MapOf)
    return mapping_of(type, pairs)


def _sweep(texts: Sequence[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for text in texts:
        key, sign, listed = text.partition("=")
        if not sign or key not in _SWEPT:
            raise BadInput(f"--sweep {text}: no number {key!r} of a job: {nearest(key, _SWEPT)}")
        try:
            values[key] = value_of(_SWEPT[key], listed)
        except BadInput as error:
            raise BadInput(f"--sweep {text}: {error.message}") from error
    return values
