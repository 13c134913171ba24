"""What ``patchlight ocs`` prints of changes, and how it asks before one that breaks something."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from patchlight.cli.ocs.options import ChangeOptions
from patchlight.console.rendering import harmless, print_json, say
from patchlight.testbed.errors import OutcomeUnknown, PatchlightError

if TYPE_CHECKING:
    from patchlight.testbed.wire.rest.changes import Change, MapChange, Plan, Progress

BULK = 8
"""Who frees more circuits than this without others in their place is asked twice."""


def carry_out(
    plan: Callable[[], Plan],
    change: Callable[..., Change],
    options: ChangeOptions,
    *,
    repairs: bool = False,
) -> None:
    """Show, confirm where something in use would break, change, and say what became of it.

    ``change`` takes ``HowToChange``. ``repairs``: what somebody else made is to go, so that nobody
    is asked about it.
    """
    preview = plan()
    if options.dry_run:
        print_preview(preview, as_json=options.as_json)
        return
    if repairs:
        preview["strangers"] = {}
    shown = confirm(preview, options)
    record = change(
        why=options.why,
        # Agreed to what was shown: then neither the maps nor who uses them may have changed.
        planned_from=preview["planned_from"] if shown else "",
        spare_jobs=not preview["jobs"],
        detach=options.detach,
    )
    print_answer(record, as_json=options.as_json)


def confirm(preview: Plan, options: ChangeOptions) -> bool:
    """Ask as often as the change deserves; whether somebody was shown it and agreed."""
    lost = sum(preview["lost"].values())
    bulk = lost > BULK or (bool(preview["cleared"]) and lost > 2)
    if preview["objections"] or not (preview["jobs"] or preview["strangers"] or bulk):
        return False  # nothing to lose, or it will be refused anyway
    asked = False
    if not options.yes:
        for line in _lines(preview):
            say(line, err=True)
        _agree(lambda: click.confirm("Go on?", err=True))
        asked = True
    if bulk and options.yes < 2:
        names = ", ".join(preview["lost"])
        what = f"{lost} cross-connects of {names} go without others in their place"
        question = f"{what}. Type {names} to go on"
        _agree(
            lambda: (
                click.prompt(harmless(question), err=True, default="", show_default=False) == names
            )
        )
        asked = True
    return asked


def _agree(question: Callable[[], bool]) -> None:
    try:
        agreed = question()
    except click.Abort as error:
        raise PatchlightError(
            "not confirmed: nothing was changed",
            hint="scripts say --yes, and --yes --yes before many circuits go",
        ) from error
    if not agreed:
        raise PatchlightError("not confirmed: nothing was changed")


def print_preview(preview: Plan, *, as_json: bool) -> None:
    """What would change; raises where it would be refused."""
    if as_json:
        print_json(preview)
    else:
        for line in _lines(preview) or ["nothing to change: the maps are so already"]:
            say(line)
    if preview["objections"]:
        raise PatchlightError("this change would be refused")


def _lines(preview: Plan) -> list[str]:
    lines = change_lines(preview["changes"])
    lines += [f"link goes: {link}" for link in preview["links_down"]]
    lines += [f"link comes: {link}" for link in preview["links_up"]]
    lines += [f"in use by job {job}, which pauses meanwhile" for job in preview["jobs"]]
    lines += [
        f"{name}: {', '.join(texts)} made by somebody else: 'patchlight ocs drift'"
        for name, texts in preview["strangers"].items()
    ]
    return lines + [f"against it: {words}" for words in preview["objections"]]


def say_unreachable(answers: Mapping[str, Any]) -> None:
    """Raise if some of these circuit switches (by name) do not answer."""
    silent = {n: a["unreachable"] for n, a in answers.items() if a.get("unreachable")}
    if silent:
        raise PatchlightError(
            "\n".join(f"{name} does not answer: {words}" for name, words in silent.items()),
            hint="what is said of the others holds; of these nothing is known",
        )


def change_lines(changes: Mapping[str, MapChange]) -> list[str]:
    """A change as lines: ``ocs1 - 2>5`` goes, ``ocs1 + 2>4`` comes."""
    return [
        f"{name} {sign} {text}"
        for name, change in changes.items()
        for sign, texts in (("-", change["breaks"]), ("+", change["makes"]))
        for text in texts
    ]


def print_answer(record: Change, *, as_json: bool) -> None:
    """Say what became of a change as ``print_record``; of one that goes on, how it is followed."""
    number = record["id"]
    if record["state"] != "intent":
        print_record(record, as_json=as_json)
    elif as_json:
        print_json(record)
    else:
        say(f"change {number} has begun: {progress_line(record['progress'])}")
        say(f"patchlight ocs watch {number} follows it, patchlight ocs cancel {number} halts it")


def progress_line(progress: Progress) -> str:
    """How far a change is: ``make ocs1, 2 of 6 cross-connects``."""
    count = progress["cross_connects"]
    of = f", {progress['done']} of {count} cross-connects" if count else ""
    at = f" {progress['ocs']}" if progress["ocs"] else ""
    cancelled = f"; {progress['cancelled']}" if progress["cancelled"] else ""
    return f"{progress['stage']}{at}{of}{cancelled}"


def print_record(record: Change, *, as_json: bool = False) -> None:
    """Say what became of a change; raise where it did not come about."""
    say_record(record, as_json=as_json)
    check_record(record)


def check_record(record: Change) -> None:
    """Raise where a change did not come about."""
    number, state = record["id"], record["state"]
    if state == "unknown":
        raise OutcomeUnknown(f"change {number} has an unknown outcome")
    if state == "intent":
        raise PatchlightError(f"change {number} is not over yet")
    if state != "committed":
        raise PatchlightError(f"change {number} did not come about")


def say_record(record: Change, *, as_json: bool) -> None:
    """Say what became of a change."""
    if as_json:
        print_json(record)
    else:
        for line in change_lines(record["changes"]):
            say(line)
        for note in record["notes"]:
            say(f"note: {note}")
        stages = ", ".join(f"{name} {1e3 * s:.1f} ms" for name, s in record["stages_s"].items())
        number = f"change {record['id']} " if record["id"] else ""
        say(f"{number}{record['state']}: {record['message']} ({stages})")
