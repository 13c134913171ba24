"""``patchlight deploy certificates``: who is who in a lab, as files to be carried by hand."""

from pathlib import Path

import click

from patchlight.console.connection import running_lab
from patchlight.console.lab_option import complete_lab
from patchlight.console.rendering import Column, Table, listing_options, print_json, say
from patchlight.testbed.errors import BadInput


@click.command()
@click.argument("lab", shell_complete=complete_lab)
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    metavar="DIR",
    help="Where the folders are made.",
)
@click.option(
    "--authority",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Where the lab's authority is kept  [default: ~/.local/share/patchlight/labs/LAB/ca].",
)
@click.option(
    "--for",
    "only",
    multiple=True,
    metavar="NAME",
    help="A server, a packet switch, 'controller', 'prometheus', or 'switches' for a machine that "
    "is several packet switches; may be given again. [default: all that the lab needs]",
)
@click.option("--anew", is_flag=True, help="New keys, too: somebody may have seen the old ones.")
@listing_options
def certificates(
    lab: str, output: Path, authority: Path | None, only: tuple[str, ...], anew: bool, as_json: bool
) -> None:
    """Make the certificates of LAB: for its controller, its agents, and Prometheus.

    With OpenFlow over TLS, for its packet switches, too. Each gets a folder under DIR with ca.pem,
    cert.pem and key.pem: controller, prometheus, agents/SERVER, and switches/SWITCH. Copy it to
    where that program runs, readable by it alone, and name it there with --tls. Run again, the
    command renews what ends within 60 days and leaves the rest as it is. The lab's authority is
    made the first time; who has its folder can be the controller of the lab.

    \b
    With --json: lab, authority, and certificates, each with name, folder,
    not_after and fingerprint.
    """
    from patchlight.controller.access.authority import Authority, authority_folder

    meant = running_lab(lab)
    switches = [switch.name for switch in meant.packet_switches]
    known = ["controller", "prometheus", *(server.name for server in meant.servers)]
    known += [*switches, "switches"] if switches else []
    if unknown := [name for name in only if name not in known]:
        raise BadInput(
            f"--for {unknown[0]}: lab {meant.name} has nobody of that name",
            hint=f"expected one of: {', '.join(known)}",
        )
    signer = Authority(meant.name, authority or authority_folder(meant.name))
    made = []
    if not only or "controller" in only:
        made.append(signer.for_controller(output / "controller", anew=anew))
    if not only or "prometheus" in only:
        made.append(signer.for_prometheus(output / "prometheus", anew=anew))
    for server in meant.servers:
        if not only or server.name in only:
            folder = output / "agents" / server.name
            made.append(signer.for_agent(server.name, folder, anew=anew))
    for switch in switches:
        if switch in only or (not only and meant.controller_openflow_tls):
            made.append(signer.for_switch(switch, output / "switches" / switch, anew=anew))
    if "switches" in only:
        made.append(signer.for_switches(output / "all-switches", anew=anew))
    if as_json:
        rows = [
            {
                "name": each.name,
                "folder": str(each.folder),
                "not_after": each.not_after.isoformat(),
                "fingerprint": each.fingerprint,
            }
            for each in made
        ]
        print_json({"lab": meant.name, "authority": str(signer.folder), "certificates": rows})
        return
    table = Table(Column("name in the lab", whole=True), "valid until", "folder")
    for each in made:
        table.add_row(each.name, f"{each.not_after:%Y-%m-%d}", str(each.folder))
    table.print()
    say(f"the authority of lab {meant.name} is in {signer.folder}: keep it to yourself")
