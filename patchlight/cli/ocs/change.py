"""``patchlight ocs`` commands that change circuits, lock them or stop changes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from patchlight.cli import ocs
from patchlight.cli.ocs import names
from patchlight.cli.ocs.watch import refuse_direct, to_its_end
from patchlight.console.connection import complete_end
from patchlight.console.rendering import Column, Table, print_answer, say, when
from patchlight.testbed.errors import BadInput, PatchlightError, nearest

if TYPE_CHECKING:
    from patchlight.testbed.wire.rest.circuits import Lock

_switches = click.argument(
    "switches",
    nargs=-1,
    metavar="[OCS…]",
    shell_complete=names.complete_switch,
)


@click.command("connect")
@click.argument(
    "pairs",
    nargs=-1,
    required=True,
    metavar="[OCS] A:B…",
    shell_complete=names.complete_pair,
)
@click.option(
    "--one-way",
    is_flag=True,
    help="From A to B only.",
)
@ocs.change_options
def connect_ports(
    pairs: tuple[str, ...],
    one_way: bool,
    target: ocs.Target,
    options: ocs.Flags,
) -> None:
    """Connect two ports of an OCS, or two devices through any OCSs.

    \b
      patchlight ocs connect ocs1 3:17 server1.nic0:tor1.1
      patchlight ocs connect wss1 3:17@193.100-2dB
      patchlight ocs connect server1.nic0:tor1

    With an OCS, A and B are its ports, by number or by the port at the fibre's other end; on a
    wavelength switch the channel in THz and an attenuation follow. Without an OCS, each end is a
    NIC, a host, a packet switch (any free port) or its port. The path may cross several circuit
    switches; the one that needs the fewest changes is chosen.
    """
    name, *others = pairs
    if ":" in name:
        if one_way:
            raise BadInput(
                "--one-way needs an OCS: patchlight ocs connect --one-way OCS A:B"
            )
        ends = [names.named_pair(text) for text in pairs]
        with target.client() as client:
            preview = client.preview_light_paths(ends, force=options.force)
            if terms := ocs.confirmed(preview, options):
                record = client.light_paths(ends, **terms)
                ocs.print_change(record, as_json=options.as_json)
        return
    if name not in (
        known := [switch.name for switch in target.lab.optical_switches]
    ):
        raise BadInput(
            f"{name!r} is not a pair A:B and not an OCS: {nearest(name, known)}"
        )
    if not others:
        raise BadInput(f"expected ports of {name} to connect: A:B, like 3:17")
    texts = [
        names.cross_connect_text(
            target.lab,
            name,
            pair,
            one_way=one_way,
        )
        for pair in others
    ]
    maps = {name: texts}
    with target.client([name]) as client:
        preview = client.preview_reconfiguration(maps, force=options.force)
        if terms := ocs.confirmed(preview, options):
            record = client.reconfigure(maps, **terms)
            ocs.print_change(record, as_json=options.as_json)


@click.command()
@click.argument(
    "name",
    metavar="OCS",
    shell_complete=names.complete_switch,
)
@click.argument(
    "ports",
    nargs=-1,
    required=True,
    metavar="PORT…",
    shell_complete=names.complete_port,
)
@ocs.change_options
def disconnect(
    name: str,
    ports: tuple[str, ...],
    target: ocs.Target,
    options: ocs.Flags,
) -> None:
    """Disconnect ports, in both directions. On a wavelength switch PORT may be one channel:
    3@193.100.
    """
    wanted = {
        name: sorted(
            {names.place_number(target.lab, name, p) for p in ports}, key=str
        )
    }
    with target.client([name]) as client:
        preview = client.preview_reconfiguration(
            {},
            disconnect=wanted,
            force=options.force,
        )
        if terms := ocs.confirmed(preview, options):
            record = client.reconfigure({}, disconnect=wanted, **terms)
            ocs.print_change(record, as_json=options.as_json)


@click.command("apply")
@click.argument(
    "file",
    metavar="FILE|NAME",
    type=click.Path(allow_dash=True),
)
@click.option(
    "--only",
    is_flag=True,
    help="Remove all other circuits of each OCS in the file.",
)
@ocs.change_options
def apply_map(
    file: str,
    only: bool,
    target: ocs.Target,
    options: ocs.Flags,
) -> None:
    """Connect the circuits in a file, or restore saved ones.

    The file is YAML, JSON or CSV. --only --dry-run shows how the devices differ from it: '-' is on
    the device only, '+' in the file only. NAME comes from 'ocs save'; each OCS is restored
    completely.

    \b
    ocs1: [1-7, 2>8, "server1.nic0:tor1.1"]      YAML: both ways, one way, by names
    wss1: [1-3@193.100, 2>4@193.150-2dB]         a wavelength switch, with the channel
    ocs1,server1.nic0,tor1.1,one-way             CSV: OCS, from, to, way
    """
    if file != "-" and not Path(file).exists():
        with target.client(
            lambda store: getattr(store.saved_maps().get(file), "maps", {})
        ) as client:
            saved = [row.name for row in client.saved_maps()]
            if file not in saved:
                hint = nearest(file, saved, "the saved maps are")
                raise BadInput(f"no file or saved map {file!r}: {hint}")
            preview = client.preview_restore(file, force=options.force)
            if terms := ocs.confirmed(preview, options):
                record = client.restore(file, **terms)
                ocs.print_change(record, as_json=options.as_json)
        return
    maps = names.read_map_file(file, target.lab)
    with target.client(maps) as client:
        preview = client.preview_reconfiguration(
            maps,
            only=only,
            force=options.force,
        )
        if terms := ocs.confirmed(preview, options):
            record = client.reconfigure(maps, only=only, **terms)
            ocs.print_change(record, as_json=options.as_json)


@click.command("rollback")
@click.argument(
    "number",
    metavar="ID",
    type=int,
)
@ocs.change_options
def roll_back(
    number: int,
    target: ocs.Target,
    options: ocs.Flags,
) -> None:
    """Undo change ID; later changes stay."""
    with target.client(
        lambda store: getattr(store.reconfiguration(number), "changes", {})
    ) as client:
        preview = client.preview_roll_back(number, force=options.force)
        if terms := ocs.confirmed(preview, options):
            record = client.roll_back(number, **terms)
            ocs.print_change(record, as_json=options.as_json)


@click.command()
@click.argument(
    "nodes",
    nargs=-1,
    required=True,
    metavar="NODE…",
    shell_complete=complete_end,
)
@ocs.change_options
def colocate(
    nodes: tuple[str, ...],
    target: ocs.Target,
    options: ocs.Flags,
) -> None:
    """Connect servers or hosts to one packet switch.

    It chooses the packet switch that needs the fewest changes. This is for schedulers that place
    jobs themselves: see 'patchlight lab show --format slurm'.
    """
    with target.client() as client:
        preview = client.preview_together(nodes, force=options.force)
        if terms := ocs.confirmed(preview, options):
            record = client.together(nodes, **terms)
            ocs.print_change(record, as_json=options.as_json)


def _counts(maps: dict[str, list[str]]) -> str:
    return ", ".join(f"{ocs} ({len(texts)})" for ocs, texts in maps.items())


@click.command()
@click.argument("name", required=False)
@_switches
@ocs.why_option
@ocs.target_options
def save(
    name: str | None,
    switches: tuple[str, ...],
    why: str,
    target: ocs.Target,
    as_json: bool,
) -> None:
    """Save the present circuits under NAME, or list the saved maps.

    'ocs apply NAME' restores them. An earlier map of that name is replaced.
    """
    if name is None:
        with target.client(lambda _: (), talks=False) as client:
            saved = client.saved_maps()
        rows = (
            (
                row.name,
                when(row.at),
                row.by,
                _counts(row.maps),
                row.why,
            )
            for row in saved
        )
        columns = (
            Column("name", whole=True),
            "saved",
            "by",
            "circuit switches",
            "why",
        )
        print_answer(
            saved,
            Table(
                *columns,
                rows=rows,
                empty="no saved circuits",
            ),
            as_json=as_json,
        )
        return
    with target.client(switches) as client:
        record = client.save_map(name, switches, why)
    print_answer(
        record, f"saved as {name}: {_counts(record.maps)}", as_json=as_json
    )


@click.command()
@click.argument(
    "ports",
    nargs=-1,
    metavar="[PORT…]",
    shell_complete=names.complete_any_port,
)
@click.option(
    "--keep",
    is_flag=True,
    help="Lock for other users; you may still change the ports.",
)
@click.option(
    "--release",
    is_flag=True,
    help="Unlock the ports, even if others locked them.",
)
@ocs.why_option
@ocs.target_options
def lock(
    ports: tuple[str, ...],
    keep: bool,
    release: bool,
    why: str,
    target: ocs.Target,
    as_json: bool,
) -> None:
    """Lock ports against changes, unlock them, or list the locks.

    A port is ocs1.17, or the port at the fibre's other end; on a wavelength switch it may be one
    channel: wss1.3@193.100. Without ports, list the locks.
    """
    if keep and release:
        raise BadInput("--keep and --release exclude each other: give one")
    if release and not ports:
        raise BadInput(
            "name the ports to unlock: 'patchlight ocs lock' lists those locked"
        )
    if ports and not (why or release):
        raise BadInput("give the reason with --why: other users see it")
    by_switch = names.places_by_switch(target.lab, ports)
    with target.client(by_switch, talks=False) as client:
        rows = [] if ports else client.locks()
        for name, places in by_switch.items():
            rows += (
                client.unlock(name, places, why)
                if release
                else client.lock(
                    name,
                    places,
                    keep=keep,
                    why=why,
                )
            )
    if release:
        lines = [
            f"{_place(row)} is unlocked (was {row.kind} by {row.by})"
            for row in rows
        ]
        print_answer(
            rows,
            "\n".join(lines) or "none of these ports was locked",
            as_json=as_json,
        )
        return
    cells = (
        (
            _place(row),
            f"claim {row.claim}" if row.claim else row.kind,
            row.by,
            when(row.at),
            row.why,
        )
        for row in rows
    )
    table = Table(
        Column("port", whole=True),
        "lock",
        "by",
        "since",
        "why",
        rows=cells,
        empty="no locks",
    )
    print_answer(rows, table, as_json=as_json)


def _place(lock: Lock) -> str:
    channel = f"@{lock.channel}" if lock.channel else ""
    return f"{lock.ocs}.{lock.port}{channel}"


@click.command()
@click.argument(
    "number",
    metavar="[ID]",
    type=int,
    required=False,
)
@click.option(
    "--clear",
    is_flag=True,
    help="Allow changes again.",
)
@click.option(
    "--show",
    is_flag=True,
    help="Show whether changes are stopped.",
)
@ocs.why_option
@ocs.target_options
def stop(
    number: int | None,
    clear: bool,
    show: bool,
    why: str,
    target: ocs.Target,
    as_json: bool,
) -> None:
    """Stop change ID, or all changes, and roll back.

    The change halts before its next step and is rolled back; the command waits for that. A change
    in its last steps cannot be stopped: undo it with 'ocs rollback'. Without ID, new changes are
    refused too, until 'ocs stop --clear', even after a restart. Existing circuits stay.
    """
    if number is not None:
        if clear or show:
            raise BadInput(
                "ID does not go with --clear and --show, which concern all changes"
            )
        _stop_one(
            number,
            why,
            target,
            as_json=as_json,
        )
        return
    # Nothing is held for this: it must reach a change that is under way with --direct.
    with target.client(lambda _: (), talks=False) as client:
        unwritten = ""
        if not show:
            unwritten = (client.clear_stop if clear else client.press_stop)(
                why
            ).unwritten
        pressed = client.stop_button()
    text = "the stop button is not pressed: changes are allowed"
    if pressed is not None:
        reason = f": {pressed.why}" if pressed.why else ""
        text = f"all changes stopped by {pressed.by} at {when(pressed.at)}{reason}"
    print_answer({"pressed": pressed}, text, as_json=as_json)
    if unwritten:
        say(
            f"it holds, and will be saved once the disk has room: {unwritten}",
            err=True,
        )


def _stop_one(
    number: int,
    why: str,
    target: ocs.Target,
    *,
    as_json: bool,
) -> None:
    refuse_direct(target)
    with target.client() as client:
        client.cancel_change(number, why)
        record = to_its_end(client, number, lambda *_: None)
    ocs.say_record(record, as_json=as_json)
    if record.state not in ("refused", "rolled-back"):
        raise PatchlightError(
            f"change {number} was not stopped: it is {record.state}"
        )
