"""``patchlight ocs`` commands that keep circuits safe: locks, drift, the stop button."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import click

from patchlight.cli.ocs.names import complete_any_port, complete_switch, places_by_switch
from patchlight.cli.ocs.options import (
    ChangeFlags,
    OcsTarget,
    carry_out,
    change_options,
    print_record,
    say_unreachable,
    target_options,
    why_option,
)
from patchlight.console.rendering import Column, Table, print_json, say, when
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.lab.wiring import driven

if TYPE_CHECKING:
    from patchlight.testbed.wire.rest.circuits import Lock

_ports = click.argument("ports", nargs=-1, metavar="PORT…", shell_complete=complete_any_port)


@click.command()
@_ports
@click.option(
    "--why", default="", show_default=False, metavar="TEXT", help="The reason; others are shown it."
)
@click.option("--keep", is_flag=True, help="Only keep others off: your own changes still go.")
@target_options
def lock(
    ports: tuple[str, ...], why: str | None, keep: bool, target: OcsTarget, as_json: bool
) -> None:
    """Lock ports (ocs1.17, or what is plugged in): no change touches them until 'unlock'.

    Of a wavelength switch also one channel of a port: wss1.3@193.100.
    Without ports: list the locks.
    """
    with target.client(places_by_switch(target.lab, ports), talks=False) as client:
        if not ports:
            rows = client.locks()
        elif not why:
            raise BadInput("say --why: whoever is stopped by the lock is shown the reason")
        else:
            rows = [
                row
                for name, places in places_by_switch(target.lab, ports).items()
                for row in client.lock(name, places, keep=keep, why=why)
            ]
    if as_json:
        print_json(rows)
        return
    table = Table(Column("port", whole=True), "lock", "by", "since", "why")
    for row in rows:
        table.add_row(_place(row), row["kind"], row["by"], when(row["at"]), row["why"])
    table.print()


@click.command()
@_ports
@why_option
@target_options
def unlock(ports: tuple[str, ...], why: str, target: OcsTarget, as_json: bool) -> None:
    """Unlock ports, whoever locked them."""
    if not ports:
        raise BadInput("name the ports to unlock: 'patchlight ocs lock' lists those locked")
    by_switch = places_by_switch(target.lab, ports)
    with target.client(by_switch, talks=False) as client:
        rows = [
            row for name, places in by_switch.items() for row in client.unlock(name, places, why)
        ]
    if as_json:
        print_json(rows)
        return
    for row in rows:
        say(f"{_place(row)} is unlocked (was {row['kind']} by {row['by']})")
    if not rows:
        say("none of these was locked")


def _place(lock: Lock) -> str:
    channel = f"@{lock['channel']}" if lock["channel"] else ""
    return f"{lock['ocs']}.{lock['port']}{channel}"


@click.command()
@click.argument("switches", nargs=-1, metavar="[OCS…]", shell_complete=complete_switch)
@click.option("--adopt", is_flag=True, help="Take what the devices have as committed.")
@click.option("--repair", is_flag=True, help="Bring the devices back to what was committed.")
@change_options
def drift(
    switches: tuple[str, ...], adopt: bool, repair: bool, target: OcsTarget, options: ChangeFlags
) -> None:
    """How the devices differ from their last committed maps; ends with 1 if they do."""
    if adopt and repair:
        raise BadInput("--adopt and --repair exclude each other")
    names = [driven(target.lab.optical_switch(name)) for name in switches]
    with target.client(names) as client:
        if repair:
            plan = functools.partial(client.preview_repair, names)
            carry_out(plan, functools.partial(client.repair, names), options, repairs=True)
            return
        if adopt and not options.dry_run:
            print_record(client.adopt(names, options.why), as_json=options.as_json)
            return
        differences = {n: d for n, d in client.drift().items() if not names or n in names}
    if options.as_json:
        print_json(differences)
    for name, differs in differences.items():
        since, at = differs["reconfiguration"], differs["committed_at"]
        against = f"change {since}" if since else f"what it had at {when(at)}" if at else "nothing"
        lines = [f"{name} - {text} is missing" for text in differs["missing"]]
        lines += [f"{name} + {text} was not made here" for text in differs["unknown"]]
        if differs["unreachable"]:
            lines = [f"{name} does not answer: {differs['unreachable']}"]
        if not options.as_json:
            for line in lines or [f"{name} is as committed with {against}"]:
                say(line)
    if not adopt and any(d["missing"] or d["unknown"] for d in differences.values()):
        raise PatchlightError(
            "the devices differ from what was committed",
            hint="--repair brings them back, --adopt takes them as they are",
        )
    say_unreachable(differences)


@click.command()
@click.option("--clear", is_flag=True, help="Let changes begin again.")
@click.option("--status", is_flag=True, help="Only say whether it is pressed.")
@why_option
@target_options
def stop(clear: bool, status: bool, why: str, target: OcsTarget, as_json: bool) -> None:
    """Press the stop button: the change under way halts before its next step and rolls back.

    New changes are refused until somebody says 'stop --clear', also after the controller
    started anew. Circuits that stand are not touched.
    """
    # Nothing is held for this: it must reach a change that is under way with --direct.
    with target.client(lambda _: (), talks=False) as client:
        unwritten = ""
        if not status:
            unwritten = (client.clear_stop if clear else client.press_stop)(why)["unwritten"]
        pressed = client.stop_button()
    if as_json:
        print_json({"pressed": pressed})
    elif pressed is None:
        say("the stop button is not pressed: changes may begin")
    else:
        reason = f": {pressed['why']}" if pressed["why"] else ""
        say(f"pressed by {pressed['by']} at {when(pressed['at'])}{reason}")
    if unwritten:
        say(f"this counts, and is written once there is room: {unwritten}", err=True)


COMMANDS = (lock, unlock, drift, stop)
