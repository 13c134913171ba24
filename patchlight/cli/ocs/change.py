"""``patchlight ocs`` commands that change circuits."""

import functools

import click

from patchlight.cli.ocs.names import (
    complete_pair,
    complete_port,
    complete_switch,
    cross_connect_text,
    named_pair,
    place_number,
    read_map_file,
)
from patchlight.cli.ocs.options import (
    ChangeFlags,
    OcsTarget,
    carry_out,
    change_options,
    print_preview,
    target_options,
    why_option,
)
from patchlight.console.rendering import Column, Table, print_json, say, when


@click.command("connect")
@click.argument("name", metavar="OCS", shell_complete=complete_switch)
@click.argument("pairs", nargs=-1, required=True, metavar="A:B…", shell_complete=complete_pair)
@click.option("--one-way/--duplex", show_default=False, help="Only A to B, or also back [default].")
@change_options
def connect_ports(
    name: str, pairs: tuple[str, ...], one_way: bool, target: OcsTarget, options: ChangeFlags
) -> None:
    """Join ports: by number (3:17) or by what is plugged in (server1.nic0:tor1.1).

    Of a wavelength switch with the channel in THz: 3:17@193.100, weaker 3:17@193.100-2dB.
    """
    texts = [cross_connect_text(target.lab, name, pair, one_way=one_way) for pair in pairs]
    with target.client([name]) as client:
        wanted = {name: texts}
        plan = functools.partial(client.preview_reconfiguration, wanted)
        carry_out(plan, functools.partial(client.reconfigure, wanted), options)


@click.command()
@click.argument("name", metavar="OCS", shell_complete=complete_switch)
@click.argument("ports", nargs=-1, required=True, metavar="PORT…", shell_complete=complete_port)
@change_options
def disconnect(name: str, ports: tuple[str, ...], target: OcsTarget, options: ChangeFlags) -> None:
    """Break every cross-connect of these ports, in and out.

    Of a wavelength switch also of one channel there: 3@193.100.
    """
    places = sorted({place_number(target.lab, name, port) for port in ports}, key=str)
    with target.client([name]) as client:
        wanted = {name: places}
        plan = functools.partial(client.preview_reconfiguration, {}, disconnect=wanted)
        carry_out(plan, functools.partial(client.reconfigure, {}, disconnect=wanted), options)


_file = click.argument("file", type=click.Path(dir_okay=False, allow_dash=True))
_only = click.option(
    "--only", is_flag=True, help="Also remove what the file does not have, of each OCS in it."
)


@click.command("apply")
@_file
@_only
@change_options
def apply_map(file: str, only: bool, target: OcsTarget, options: ChangeFlags) -> None:
    """Bring about the cross-connects of FILE: YAML, JSON or CSV, ports or names.

    \b
    ocs1: [1-7, 2>8, "server1.nic0:tor1.1"]      YAML: both ways, one way, by names
    wss1: [1-3@193.100, 2>4@193.150-2dB]         of a wavelength switch with the channel
    ocs1,server1.nic0,tor1.1,one-way             CSV: OCS, from, to, way
    """
    maps = read_map_file(file, target.lab)
    with target.client(maps) as client:
        plan = functools.partial(client.preview_reconfiguration, maps, only=only)
        carry_out(plan, functools.partial(client.reconfigure, maps, only=only), options)


@click.command()
@_file
@_only
@target_options
def plan(file: str, only: bool, target: OcsTarget, as_json: bool) -> None:
    """What applying FILE would change, which links and jobs ride on it, what is against it."""
    maps = read_map_file(file, target.lab)
    with target.client(maps) as client:
        print_preview(client.preview_reconfiguration(maps, only=only), as_json=as_json)


@click.command("diff")
@_file
@target_options
def diff_map(file: str, target: OcsTarget, as_json: bool) -> None:
    """How the devices differ from FILE: '-' they have, '+' they lack."""
    from patchlight.cli.ocs.options import change_lines

    maps = read_map_file(file, target.lab)
    with target.client(maps) as client:
        changes = client.preview_reconfiguration(maps, only=True)["changes"]
    if as_json:
        print_json(changes)
    else:
        for line in change_lines(changes):
            say(line)


@click.command("rollback")
@click.argument("number", metavar="ID", type=int)
@change_options
def roll_back(number: int, target: OcsTarget, options: ChangeFlags) -> None:
    """Undo change ID and nothing that other changes did ('patchlight ocs history')."""
    with target.client(
        lambda store: (store.reconfiguration(number) or {}).get("changes", {})
    ) as client:
        plan = functools.partial(client.preview_roll_back, number)
        carry_out(plan, functools.partial(client.roll_back, number), options)


@click.command()
@click.argument("nodes", nargs=-1, required=True, metavar="NODE…")
@click.option("--force", is_flag=True, help="Also move circuits of running jobs, which pause.")
@change_options
def together(nodes: tuple[str, ...], force: bool, target: OcsTarget, options: ChangeFlags) -> None:
    """Light the NICs of servers (or hosts) onto one packet switch, with the fewest moves.

    For schedulers that place work themselves: see 'patchlight lab topology'. Circuits of running
    jobs stay where they are unless --force is given.
    """
    with target.client() as client:
        plan = functools.partial(client.preview_together, nodes, force=force)
        carry_out(plan, functools.partial(client.together, nodes, force=force), options)


@click.command("light")
@click.argument("pairs", nargs=-1, required=True, metavar="A:B…", shell_complete=complete_pair)
@change_options
def light_paths(pairs: tuple[str, ...], target: OcsTarget, options: ChangeFlags) -> None:
    """Join ends by light, over as many circuit switches as it takes, with the fewest changes.

    An end is a NIC or a host (server1.nic0), a packet switch (tor1: any port) or its port (tor1.3).
    """
    ends = [named_pair(text) for text in pairs]
    with target.client() as client:
        plan = functools.partial(client.preview_light_paths, ends)
        carry_out(plan, functools.partial(client.light_paths, ends), options)


@click.command()
@click.argument("name")
@click.argument("switches", nargs=-1, metavar="[OCS…]", shell_complete=complete_switch)
@why_option
@target_options
def save(name: str, switches: tuple[str, ...], why: str, target: OcsTarget, as_json: bool) -> None:
    """Keep the present maps under NAME, for 'restore'. Replaces what had that name."""
    with target.client(switches) as client:
        record = client.save_map(name, switches, why)
    if as_json:
        print_json(record)
    else:
        kept = ", ".join(f"{ocs} ({len(texts)})" for ocs, texts in record["maps"].items())
        say(f"saved as {name}: {kept}")


@click.command()
@click.argument("name", required=False)
@click.option("--list", "listing", is_flag=True, help="List the saved maps instead.")
@change_options
def restore(name: str | None, listing: bool, target: OcsTarget, options: ChangeFlags) -> None:
    """Bring about the maps saved as NAME, whole."""
    if name is not None and not listing:
        with target.client(
            lambda store: store.saved_maps().get(name, {}).get("maps", {})
        ) as client:
            plan = functools.partial(client.preview_restore, name)
            carry_out(plan, functools.partial(client.restore, name), options)
        return
    with target.client(lambda _: (), talks=False) as client:
        saved = client.saved_maps()
    if options.as_json:
        print_json(saved)
        return
    table = Table(Column("name", whole=True), "saved", "by", "circuit switches", "why")
    for row in saved:
        switches = ", ".join(f"{ocs} ({len(texts)})" for ocs, texts in row["maps"].items())
        table.add_row(row["name"], when(row["at"]), row["by"], switches, row["why"])
    table.print()


COMMANDS = (
    connect_ports,
    disconnect,
    apply_map,
    diff_map,
    plan,
    roll_back,
    together,
    light_paths,
    save,
    restore,
)
