"""``patchlight ocs`` commands that change circuits, or keep them from being changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from patchlight.cli import ocs
from patchlight.cli.ocs import names
from patchlight.console.rendering import Column, Table, print_answer, print_json, say, when
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.lab.wiring import driven

if TYPE_CHECKING:
    from patchlight.testbed.wire.rest.circuits import Lock

_switch = click.argument("name", metavar="OCS", shell_complete=names.complete_switch)
_switches = click.argument(
    "switches", nargs=-1, metavar="[OCS…]", shell_complete=names.complete_switch
)
_pairs = click.argument(
    "pairs", nargs=-1, required=True, metavar="A:B…", shell_complete=names.complete_pair
)
_file = click.argument("file", type=click.Path(dir_okay=False, allow_dash=True))
_only = click.option(
    "--only", is_flag=True, help="Also remove what the file does not have, of each OCS in it."
)
_any_ports = click.argument(
    "ports", nargs=-1, metavar="PORT…", shell_complete=names.complete_any_port
)


@click.command("connect")
@_switch
@_pairs
@click.option("--one-way/--duplex", show_default=False, help="Only A to B, or also back [default].")
@ocs.change_options
def connect_ports(
    name: str, pairs: tuple[str, ...], one_way: bool, target: ocs.Target, options: ocs.Flags
) -> None:
    """Join ports: by number (3:17) or by what is plugged in (server1.nic0:tor1.1).

    Of a wavelength switch with the channel in THz: 3:17@193.100, weaker 3:17@193.100-2dB.
    """
    texts = [names.cross_connect_text(target.lab, name, pair, one_way=one_way) for pair in pairs]
    with target.client([name]) as client:
        ocs.carry_out(client.preview_reconfiguration, client.reconfigure, options, {name: texts})


@click.command()
@_switch
@click.argument(
    "ports", nargs=-1, required=True, metavar="PORT…", shell_complete=names.complete_port
)
@ocs.change_options
def disconnect(name: str, ports: tuple[str, ...], target: ocs.Target, options: ocs.Flags) -> None:
    """Break every cross-connect of these ports, in and out.

    Of a wavelength switch also of one channel there: 3@193.100.
    """
    wanted = {name: sorted({names.place_number(target.lab, name, p) for p in ports}, key=str)}
    with target.client([name]) as client:
        plan, change = client.preview_reconfiguration, client.reconfigure
        ocs.carry_out(plan, change, options, {}, disconnect=wanted)


@click.command("apply")
@_file
@_only
@ocs.change_options
def apply_map(file: str, only: bool, target: ocs.Target, options: ocs.Flags) -> None:
    """Bring about the cross-connects of FILE: YAML, JSON or CSV, ports or names.

    \b
    ocs1: [1-7, 2>8, "server1.nic0:tor1.1"]      YAML: both ways, one way, by names
    wss1: [1-3@193.100, 2>4@193.150-2dB]         of a wavelength switch with the channel
    ocs1,server1.nic0,tor1.1,one-way             CSV: OCS, from, to, way
    """
    maps = names.read_map_file(file, target.lab)
    with target.client(maps) as client:
        ocs.carry_out(client.preview_reconfiguration, client.reconfigure, options, maps, only=only)


@click.command()
@_file
@_only
@ocs.target_options
def plan(file: str, only: bool, target: ocs.Target, as_json: bool) -> None:
    """What applying FILE would change, which links and jobs ride on it, what is against it."""
    maps = names.read_map_file(file, target.lab)
    with target.client(maps) as client:
        ocs.print_preview(client.preview_reconfiguration(maps, only=only), as_json=as_json)


@click.command("diff")
@_file
@ocs.target_options
def diff_map(file: str, target: ocs.Target, as_json: bool) -> None:
    """How the devices differ from FILE: '-' they have, '+' they lack."""
    maps = names.read_map_file(file, target.lab)
    with target.client(maps) as client:
        changes = client.preview_reconfiguration(maps, only=True)["changes"]
    print_answer(changes, lambda: ocs.say_changes(changes), as_json=as_json)


@click.command("rollback")
@click.argument("number", metavar="ID", type=int)
@ocs.change_options
def roll_back(number: int, target: ocs.Target, options: ocs.Flags) -> None:
    """Undo change ID and nothing that other changes did ('patchlight ocs history')."""
    with target.client(
        lambda store: (store.reconfiguration(number) or {}).get("changes", {})
    ) as client:
        ocs.carry_out(client.preview_roll_back, client.roll_back, options, number)


@click.command()
@click.argument("nodes", nargs=-1, required=True, metavar="NODE…")
@click.option("--force", is_flag=True, help="Also move circuits of running jobs, which pause.")
@ocs.change_options
def together(nodes: tuple[str, ...], force: bool, target: ocs.Target, options: ocs.Flags) -> None:
    """Light the NICs of servers (or hosts) onto one packet switch, with the fewest moves.

    For schedulers that place work themselves: see 'patchlight lab topology'. Circuits of running
    jobs stay where they are unless --force is given.
    """
    with target.client() as client:
        ocs.carry_out(client.preview_together, client.together, options, nodes, force=force)


@click.command("light")
@_pairs
@ocs.change_options
def light_paths(pairs: tuple[str, ...], target: ocs.Target, options: ocs.Flags) -> None:
    """Join ends by light, over as many circuit switches as it takes, with the fewest changes.

    An end is a NIC or a host (server1.nic0), a packet switch (tor1: any port) or its port (tor1.3).
    """
    ends = [names.named_pair(text) for text in pairs]
    with target.client() as client:
        ocs.carry_out(client.preview_light_paths, client.light_paths, options, ends)


def _counts(maps: dict[str, list[str]]) -> str:
    return ", ".join(f"{ocs} ({len(texts)})" for ocs, texts in maps.items())


@click.command()
@click.argument("name")
@_switches
@ocs.why_option
@ocs.target_options
def save(name: str, switches: tuple[str, ...], why: str, target: ocs.Target, as_json: bool) -> None:
    """Keep the present maps under NAME, for 'restore'. Replaces what had that name."""
    with target.client(switches) as client:
        record = client.save_map(name, switches, why)
    print_answer(record, f"saved as {name}: {_counts(record['maps'])}", as_json=as_json)


@click.command()
@click.argument("name", required=False)
@click.option("--list", "listing", is_flag=True, help="List the saved maps instead.")
@ocs.change_options
def restore(name: str | None, listing: bool, target: ocs.Target, options: ocs.Flags) -> None:
    """Bring about the maps saved as NAME, whole."""
    if name is not None and not listing:
        with target.client(
            lambda store: store.saved_maps().get(name, {}).get("maps", {})
        ) as client:
            ocs.carry_out(client.preview_restore, client.restore, options, name)
        return
    with target.client(lambda _: (), talks=False) as client:
        saved = client.saved_maps()
    rows = (
        (row["name"], when(row["at"]), row["by"], _counts(row["maps"]), row["why"]) for row in saved
    )
    columns = (Column("name", whole=True), "saved", "by", "circuit switches", "why")
    print_answer(saved, Table(*columns, rows=rows), as_json=options.as_json)


@click.command()
@_any_ports
@click.option(
    "--why", default="", show_default=False, metavar="TEXT", help="The reason; others are shown it."
)
@click.option("--keep", is_flag=True, help="Only keep others off: your own changes still go.")
@ocs.target_options
def lock(ports: tuple[str, ...], why: str, keep: bool, target: ocs.Target, as_json: bool) -> None:
    """Lock ports (ocs1.17, or what is plugged in): no change touches them until 'unlock'.

    Of a wavelength switch also one channel of a port: wss1.3@193.100.
    Without ports: list the locks.
    """
    by_switch = names.places_by_switch(target.lab, ports)
    with target.client(by_switch, talks=False) as client:
        if not ports:
            rows = client.locks()
        elif not why:
            raise BadInput("say --why: whoever is stopped by the lock is shown the reason")
        else:
            rows = [
                row
                for name, places in by_switch.items()
                for row in client.lock(name, places, keep=keep, why=why)
            ]
    cells = ((_place(row), row["kind"], row["by"], when(row["at"]), row["why"]) for row in rows)
    table = Table(Column("port", whole=True), "lock", "by", "since", "why", rows=cells)
    print_answer(rows, table, as_json=as_json)


@click.command()
@_any_ports
@ocs.why_option
@ocs.target_options
def unlock(ports: tuple[str, ...], why: str, target: ocs.Target, as_json: bool) -> None:
    """Unlock ports, whoever locked them."""
    if not ports:
        raise BadInput("name the ports to unlock: 'patchlight ocs lock' lists those locked")
    by_switch = names.places_by_switch(target.lab, ports)
    with target.client(by_switch, talks=False) as client:
        rows = [row for ocs, places in by_switch.items() for row in client.unlock(ocs, places, why)]
    lines = [f"{_place(row)} is unlocked (was {row['kind']} by {row['by']})" for row in rows]
    print_answer(rows, "\n".join(lines) or "none of these was locked", as_json=as_json)


def _place(lock: Lock) -> str:
    channel = f"@{lock['channel']}" if lock["channel"] else ""
    return f"{lock['ocs']}.{lock['port']}{channel}"


@click.command()
@_switches
@click.option("--adopt", is_flag=True, help="Take what the devices have as committed.")
@click.option("--repair", is_flag=True, help="Bring the devices back to what was committed.")
@ocs.change_options
def drift(
    switches: tuple[str, ...], adopt: bool, repair: bool, target: ocs.Target, options: ocs.Flags
) -> None:
    """How the devices differ from their last committed maps; ends with 1 if they do."""
    if adopt and repair:
        raise BadInput("--adopt and --repair exclude each other")
    wanted = [driven(target.lab.optical_switch(name)) for name in switches]
    with target.client(wanted) as client:
        if repair:
            ocs.carry_out(client.preview_repair, client.repair, options, wanted, repairs=True)
            return
        if adopt and not options.dry_run:
            ocs.print_record(client.adopt(wanted, options.why), as_json=options.as_json)
            return
        differences = {n: d for n, d in client.drift().items() if not wanted or n in wanted}
    if options.as_json:
        print_json(differences)
    for name, differs in () if options.as_json else differences.items():
        since, at = differs["reconfiguration"], differs["committed_at"]
        against = f"change {since}" if since else f"what it had at {when(at)}" if at else "nothing"
        lines = [f"{name} - {text} is missing" for text in differs["missing"]]
        lines += [f"{name} + {text} was not made here" for text in differs["unknown"]]
        if differs["unreachable"]:
            lines = [f"{name} does not answer: {differs['unreachable']}"]
        say("\n".join(lines) or f"{name} is as committed with {against}")
    if not adopt and any(d["missing"] or d["unknown"] for d in differences.values()):
        raise PatchlightError(
            "the devices differ from what was committed",
            hint="--repair brings them back, --adopt takes them as they are",
        )
    ocs.say_unreachable(differences)


@click.command()
@click.option("--clear", is_flag=True, help="Let changes begin again.")
@click.option("--status", is_flag=True, help="Only say whether it is pressed.")
@ocs.why_option
@ocs.target_options
def stop(clear: bool, status: bool, why: str, target: ocs.Target, as_json: bool) -> None:
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
    text = "the stop button is not pressed: changes may begin"
    if pressed is not None:
        reason = f": {pressed['why']}" if pressed["why"] else ""
        text = f"pressed by {pressed['by']} at {when(pressed['at'])}{reason}"
    print_answer({"pressed": pressed}, text, as_json=as_json)
    if unwritten:
        say(f"this counts, and is written once there is room: {unwritten}", err=True)
