"""``patchlight ocs watch``: follow events of circuits, or one change."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from patchlight.cli import ocs
from patchlight.cli.ocs.view import named_switches, switches_argument
from patchlight.console import rendering as out
from patchlight.console.connection import NEWS_WITHIN_S, patiently
from patchlight.console.events import event_words
from patchlight.testbed.errors import BadInput

if TYPE_CHECKING:
    from patchlight.client.client import ControllerClient
    from patchlight.testbed.wire.rest.circuits import (
        ChangeAnswer,
        ProgressAnswer,
    )

Answer = dict[str, Any]

_POLL_S = 0.5
_CIRCUIT_EVENTS = {
    "circuits",
    "circuits-begun",
    "map",
    "baselines",
    "claim",
    "drift",
    "alarm",
    "unreachable",
    "reachable",
    "locked",
    "unlocked",
    "stopped",
    "stop-cleared",
    "resumed",
}


@click.command()
@switches_argument
@click.option(
    "--after-event",
    "since",
    type=int,
    metavar="N",
    help="Start after event N.  [default: now]",
)
@click.option(
    "--count",
    type=click.IntRange(min=1),
    metavar="N",
    help="End after N events.",
)
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Also notices, and events about other things than circuits.",
)
@ocs.target_options
def watch(
    switches: tuple[str, ...],
    since: int | None,
    count: int | None,
    everything: bool,
    target: ocs.Target,
    as_json: bool,
) -> None:
    """Follow changes, alarms, drift and locks until Ctrl-C.

    With the ID of a change, follow that change to its end, stage by stage. With --direct, follow
    the devices' reports and changes; other clients can still use them.
    """
    is_id = len(switches) == 1 and switches[0].isdecimal()
    if is_id and all(
        switch.name != switches[0] for switch in target.lab.optical_switches
    ):
        _follow_change(target, int(switches[0]), as_json=as_json)
        return
    names = set(named_switches(target.lab, switches)) if switches else None
    left = count
    for event in _followed(target, names, since):
        about = (
            {event["ocs"]} if "ocs" in event else set(event.get("changes", {}))
        )
        if names and about and not names & about:
            continue
        if not everything and (
            event["kind"] not in _CIRCUIT_EVENTS
            or event.get("severity") == "notice"
        ):
            continue
        if as_json:
            out.print_json(event, one_line=True)
        else:
            out.say(_event_line(event))
        left = None if left is None else left - 1
        if left == 0:
            return


def _follow_change(
    target: ocs.Target,
    number: int,
    *,
    as_json: bool,
) -> None:
    refuse_direct(target)

    def tell(record: ChangeAnswer, progress: ProgressAnswer) -> None:
        if as_json:
            out.print_json(record, one_line=True)
        else:
            out.say(
                f"{out.when(progress.since)}  {ocs.progress_line(progress)}"
            )

    with target.client() as client:
        record = to_its_end(client, number, tell)
    ocs.print_record(
        record,
        as_json=as_json,
        one_line=True,
    )


def to_its_end(
    client: ControllerClient,
    number: int,
    tell: Callable[[ChangeAnswer, ProgressAnswer], None],
) -> ChangeAnswer:
    """A change as it is once it is over; ``tell`` is called with each step before."""
    record = client.reconfiguration(number)
    try:
        while progress := record.progress:
            tell(record, progress)
            step = progress.step
            record = client.reconfiguration(number, step, NEWS_WITHIN_S)
    except KeyboardInterrupt:
        out.say(
            f"patchlight: change {number} continues unwatched",
            err=True,
        )
        raise
    return record


def refuse_direct(target: ocs.Target) -> None:
    """``BadInput`` for a change under way with ``--direct``."""
    if target.direct:
        raise BadInput(
            "a change with --direct ends with its command: leave out --direct"
        )


def _followed(
    target: ocs.Target,
    names: set[str] | None,
    since: int | None,
) -> Iterator[Answer]:
    """The events, without end."""
    if target.direct:
        from patchlight.console.direct import watching

        with watching(target.lab, names or (), target.state_dir) as happened:
            while True:
                yield from happened(_POLL_S)
    with target.client() as client:
        seen = client.last_event() if since is None else since
        while True:
            # Its journal keeps the events, so nothing is missed when it is back.
            events = patiently(lambda: client.events(seen), also_refused=True)  # noqa: B023
            for event in events:
                seen = event["number"]
                yield event
            time.sleep(_POLL_S)


def _event_line(event: Answer) -> str:
    # Not above: importing pydantic takes longer than --help should.
    from patchlight.testbed.wire.rest.circuits import MapChangeAnswer

    changes = ocs.change_lines(
        {
            name: MapChangeAnswer(**change)
            for name, change in event.get("changes", {}).items()
        }
    )
    lines = [f"{out.when(event['at'])}  {out.harmless(event_words(event))}"]
    return "\n".join(lines + [f"    {line}" for line in changes])
