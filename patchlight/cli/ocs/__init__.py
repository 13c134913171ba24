"""What the ``patchlight ocs`` commands share: options, a client, and how a change is made."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from patchlight.console.connection import (
    connect,
    controller_options,
    lab_meant,
    user_name,
)
from patchlight.console.rendering import (
    harmless,
    listing_options,
    print_json,
    say,
)
from patchlight.console.shared import SharedOption
from patchlight.testbed.errors import BadInput, OutcomeUnknown, PatchlightError
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.wiring import driven
from patchlight.testbed.linux.files import user_folder
from patchlight.testbed.wire.lab_api import RUN_ROOT

if TYPE_CHECKING:
    from patchlight.client.circuit_calls import HowToChange
    from patchlight.client.client import ControllerClient
    from patchlight.console.direct import Needs
    from patchlight.testbed.wire.rest import circuits as shapes


@dataclass(frozen=True)
class Target:
    """Which lab is meant, and whether its devices are reached through a controller."""

    lab_name: str | None
    address: str | None
    direct: bool = False
    state: Path | None = None

    @functools.cached_property
    def lab(self) -> Lab:
        """The lab whose names the command uses."""
        return lab_meant(self.lab_name, self.address)

    @property
    def state_dir(self) -> Path:
        """Where ``--direct`` keeps its journal: where the controller does, to share the locks."""
        if self.state is not None:
            return self.state
        name = self.lab.name
        if (RUN_ROOT / name / "lab.yaml").exists():
            return RUN_ROOT / name / "controller"
        if os.geteuid() == 0:
            return Path("/var/lib/patchlight") / name
        return (
            user_folder("XDG_STATE_HOME", ".local/state") / "patchlight" / name
        )

    @contextlib.contextmanager
    def client(
        self,
        needs: Collection[str] | Needs | None = None,
        *,
        talks: bool = True,
    ) -> Iterator[ControllerClient]:
        """A client of the controller, or with ``--direct`` of the devices.

        ``needs``: the optical switches that the command is about, or how to find them in the
        journal; all of the lab's if none are named. Without ``talks`` it only uses the journal.
        """
        if not self.direct:
            with connect(self.lab_name, self.address) as client:
                yield client
            return
        if self.address is not None:
            raise BadInput("--direct and --controller exclude each other")
        from patchlight.console.direct import direct_client

        if needs is not None and not callable(needs):
            names = [driven(self.lab.optical_switch(name)) for name in needs]
            needs = (lambda _: names) if names else None
        with direct_client(
            self.lab,
            self.state_dir,
            user_name(),
            needs,
            talks=talks,
        ) as client:
            yield client


@dataclass(frozen=True)
class Flags:
    """The options of a change; ``yes`` is how often ``--yes`` was given."""

    dry_run: bool
    yes: int
    why: str
    as_json: bool
    detach: bool = False
    force: bool = False


_of_ocs = partial(
    click.option,
    cls=SharedOption,
    of="ocs",
)
why_option = _of_ocs(
    "--why",
    default="",
    show_default=False,
    metavar="TEXT",
    help="The reason, for the history.",
)


def target_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command ``--lab``, ``--controller``, ``--direct``, ``--state`` as ``target``, and
    ``--json`` as ``as_json``, and ``--wide``."""

    @controller_options
    @_of_ocs(
        "--state",
        type=click.Path(
            path_type=Path,
            file_okay=False,
        ),
        metavar="DIR",
        help="Folder of the journal with --direct. [default: the controller's]",
    )
    @_of_ocs(
        "--direct",
        is_flag=True,
        help="Talk to the device without a controller.",
    )
    @listing_options
    @functools.wraps(command)
    def with_target(
        lab_name: str | None,
        address: str | None,
        direct: bool,
        state: Path | None,
        **options: Any,
    ) -> Any:
        return command(
            target=Target(
                lab_name,
                address,
                direct,
                state,
            ),
            **options,
        )

    return with_target


def change_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command that changes circuits ``--dry-run``, ``--yes``, ``--why``, ``--detach``,
    ``--force``, ``--json`` as ``options``, and the options of ``target_options``."""

    @target_options
    @why_option
    @_of_ocs(
        "-y",
        "--yes",
        count=True,
        show_default=False,
        help="Do not ask; twice: also skip the question before many circuits go.",
    )
    @_of_ocs(
        "--dry-run",
        is_flag=True,
        help="Show what would change, and change nothing.",
    )
    @_of_ocs(
        "--detach",
        is_flag=True,
        help="Start the change and return; 'ocs watch ID' follows it.",
    )
    @_of_ocs(
        "--force",
        is_flag=True,
        help="Also change ports of claims; with colocate also circuits of jobs.",
    )
    @functools.wraps(command)
    def with_options(target: Target, **given: Any) -> Any:
        options = Flags(
            **{each.name: given.pop(each.name) for each in fields(Flags)}
        )
        if options.detach and target.direct:
            raise BadInput(
                "--detach and --direct exclude each other: only a controller works in the "
                "background"
            )
        return command(
            target=target,
            options=options,
            **given,
        )

    return with_options


BULK = 8
"""Freeing more circuits than this, without others in their place, is confirmed twice."""


def confirmed(
    preview: shapes.PlanAnswer, options: Flags, *, repairs: bool = False
) -> HowToChange | None:
    """The terms on which to make a change that was previewed; ``None`` with ``--dry-run``.

    With ``--dry-run`` the change is printed. Else it is shown and confirmed where something in use
    would break, and ``PatchlightError`` says that it was not. ``repairs``: what others made is
    removed without a question.
    """
    if options.dry_run:
        print_preview(preview, as_json=options.as_json)
        return None
    if repairs:
        preview.strangers = {}
    shown = _confirm(preview, options)
    return {
        "why": options.why,
        # Agreed to what was shown: then neither the maps nor who uses them may have changed.
        "planned_from": preview.planned_from if shown else "",
        "spare_jobs": not preview.jobs,
        "detach": options.detach,
        "force": options.force,
    }


def _confirm(preview: shapes.PlanAnswer, options: Flags) -> bool:
    """Ask as often as the change deserves; whether the user was shown it and agreed."""
    lost = sum(preview.lost.values())
    is_bulk = lost > BULK or (bool(preview.cleared) and lost > 2)
    in_use = preview.jobs or preview.strangers
    if preview.objections or not (in_use or is_bulk):
        return False  # nothing to lose, or it will be refused anyway
    ask_twice = is_bulk and options.yes < 2
    agreed = True
    try:
        if not options.yes:
            for line in _lines(preview):
                say(line, err=True)
            agreed = click.confirm("Go on?", err=True)
        if agreed and ask_twice:
            agreed = _names_typed(lost, ", ".join(preview.lost))
    except click.Abort as error:
        raise PatchlightError(
            "not confirmed: nothing was changed",
            hint="scripts need --yes, or --yes --yes where many circuits go",
        ) from error
    if not agreed:
        raise PatchlightError("not confirmed: nothing was changed")
    return not options.yes or ask_twice


def _names_typed(lost: int, names: str) -> bool:
    """Whether the user typed the switches' names before many circuits go."""
    what = (
        f"{lost} cross-connects of {names} are removed without a replacement"
    )
    question = harmless(f"{what}. Type {names} to go on")
    typed: str = click.prompt(
        question,
        err=True,
        default="",
        show_default=False,
    )
    return typed == names


def print_preview(preview: shapes.PlanAnswer, *, as_json: bool) -> None:
    """Print what would change; ``PatchlightError`` where it would be refused."""
    if as_json:
        print_json(preview)
    else:
        for line in _lines(preview) or ["nothing to change"]:
            say(line)
    if preview.objections:
        raise PatchlightError("this change would be refused")


def _lines(preview: shapes.PlanAnswer) -> list[str]:
    lines = change_lines(preview.changes)
    lines += [f"link down: {link}" for link in preview.links_down]
    lines += [f"link up: {link}" for link in preview.links_up]
    lines += [f"in use by job {job}, which pauses" for job in preview.jobs]
    lines += [
        f"{name}: {', '.join(texts)} made outside Patchlight (see: patchlight ocs verify)"
        for name, texts in preview.strangers.items()
    ]
    return lines + [f"refused: {words}" for words in preview.objections]


def say_unreachable(
    answers: Mapping[str, shapes.OcsMap | shapes.LightAnswer],
) -> None:
    """``PatchlightError`` if some of these circuit switches (by name) do not answer."""
    silent = {n: a.unreachable for n, a in answers.items() if a.unreachable}
    if silent:
        raise PatchlightError(
            "\n".join(
                f"{name} does not answer: {words}"
                for name, words in silent.items()
            ),
            hint="the plan covers the other switches only",
        )


_NOT_MADE = {
    "refused": "not made: ",
    "rolled-back": "undone: ",
    "unknown": "perhaps made: ",
}


def not_made(change: shapes.ChangeAnswer) -> str:
    """What happened to a change whose circuits were not made as planned; else empty."""
    return _NOT_MADE.get(change.state, "") if change.changes else ""


def change_lines(changes: Mapping[str, shapes.MapChangeAnswer]) -> list[str]:
    """A change as lines: ``ocs1 - 2>5`` goes, ``ocs1 + 2>4`` comes."""
    return [
        f"{name} {sign} {text}"
        for name, change in changes.items()
        for sign, texts in (("-", change.breaks), ("+", change.makes))
        for text in texts
    ]


def print_change(record: shapes.ChangeAnswer, *, as_json: bool) -> None:
    """Print a change as ``print_record``; of one under way, how to follow it."""
    number = record.id
    if record.progress is None:
        print_record(record, as_json=as_json)
    elif as_json:
        print_json(record)
    else:
        say(f"change {number} has started: {progress_line(record.progress)}")
        say(
            f"patchlight ocs watch {number} follows it, patchlight ocs stop {number} stops it"
        )


def progress_line(progress: shapes.ProgressAnswer) -> str:
    """How far a change is: ``make ocs1, 2 of 6 cross-connects``."""
    count = progress.cross_connects
    of = f", {progress.done} of {count} cross-connects" if count else ""
    at = f" {progress.ocs}" if progress.ocs else ""
    cancelled = f"; {progress.cancelled}" if progress.cancelled else ""
    return f"{progress.stage}{at}{of}{cancelled}"


def print_record(
    record: shapes.ChangeAnswer,
    *,
    as_json: bool,
    one_line: bool = False,
) -> None:
    """Print the outcome of a change; ``OutcomeUnknown`` or ``PatchlightError`` if not committed."""
    say_record(
        record,
        as_json=as_json,
        one_line=one_line,
    )
    number = record.id
    state = record.state
    if state == "unknown":
        raise OutcomeUnknown(f"change {number} has an unknown outcome")
    if state == "intent":
        raise PatchlightError(f"change {number} is still in progress")
    if state != "committed":
        raise PatchlightError(f"change {number} was not made")


def say_record(
    record: shapes.ChangeAnswer,
    *,
    as_json: bool,
    one_line: bool = False,
) -> None:
    """Print the outcome of a change."""
    if as_json:
        print_json(record, one_line=one_line)
        return
    notes = (f"note: {note}" for note in record.notes)
    for line in (*change_lines(record.changes), *notes):
        say(line)
    stages = {name: f"{1e3 * s:.0f} ms" for name, s in record.stages_s.items()}
    longest = ", ".join(
        f"{name} {took}" for name, took in stages.items() if took != "0 ms"
    )
    took = (
        f" in {1e3 * sum(record.stages_s.values()):.0f} ms ({longest})"
        if longest
        else ""
    )
    number = f"change {record.id} " if record.id else ""
    message = "" if record.message == "done" else f": {record.message}"
    say(f"{number}{record.state}{took}{message}")
