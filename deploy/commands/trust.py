"""``patchlight deploy trust`` and ``certificates``: host keys and certificates."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from patchlight.console import rendering as out
from patchlight.console.connection import (
    complete_server,
    running_lab,
    running_lab_file,
)
from patchlight.console.shared import complete_lab
from patchlight.deploy.commands.options import with_servers
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.labfile.reader import labs_dir, read_lab

if TYPE_CHECKING:
    from patchlight.deploy.trust import Looks, Shown


_MEANINGS: dict[str, out.Meaning] = {
    "changed": "bad",
    "away": "bad",
    "new": "caution",
    "known": "good",
}


@click.command()
@click.argument("lab", shell_complete=complete_lab)
@click.option(
    "--known-hosts",
    is_flag=True,
    help="Write to ~/.ssh/known_hosts, not to the lab file.",
)
@click.option(
    "--fingerprints",
    type=click.Path(
        path_type=Path,
        dir_okay=False,
    ),
    help="Do not ask: trust the keys in this file, which has a server and its fingerprint per "
    "line.",
)
@click.option(
    "--replace",
    multiple=True,
    metavar="SERVER",
    shell_complete=complete_server,
    help="A server that was reinstalled: accept its changed key.",
)
@out.wide_option
def trust(
    lab: str,
    known_hosts: bool,
    fingerprints: Path | None,
    replace: tuple[str, ...],
) -> None:
    """Show the SSH host keys of the servers of LAB, and store those that you confirm.

    Compare each key with the one on the server's console: ssh-keygen -lf
    /etc/ssh/ssh_host_ed25519_key.pub. Keys are stored in the lab file, as host_key under ssh of
    each server. Scripts use --fingerprints, with a file collected at the consoles.

    A changed key is replaced only if that file has the new one, or if --replace names the server.
    Jump hosts come first. Exit code 1 if a key is left unconfirmed.
    """
    from patchlight.deploy.trust import (
        looks_at_jump_hosts,
        looks_at_servers,
        read_fingerprints,
    )

    file = running_lab_file(lab)
    if not known_hosts and file.resolve().parent == labs_dir().resolve():
        raise BadInput(
            f"the lab file of {lab} is part of Patchlight and is not changed",
            hint="Copy it and use the copy, or use --known-hosts.",
        )
    meant = with_servers(read_lab(file))
    names = [*looks_at_jump_hosts(meant), *looks_at_servers(meant)]
    for name in replace:
        if name not in names:
            raise BadInput(
                f"--replace {name}: expected one of {', '.join(names)}"
            )
    expected = (
        None if fingerprints is None else read_fingerprints(fingerprints)
    )
    left = 0
    for looks_of in (looks_at_jump_hosts, looks_at_servers):
        # Read again: to reach the servers, the keys of the hosts before them are needed.
        looks = looks_of(read_lab(file))
        if looks:
            left += _vouch(
                looks,
                None if known_hosts else file,
                expected,
                set(replace),
            )
    if left:
        sys.exit(1)


def _vouch(
    looks: Looks,
    file: Path | None,
    expected: dict[str, set[str]] | None,
    replace: set[str],
) -> int:
    """Show keys, ask to confirm them, and store them; how many are left."""
    from patchlight.deploy.trust import (
        shown_keys,
        vouch_in_known_hosts,
        vouch_in_lab_file,
    )

    with out.progress_bar("servers", out.console(stderr=True)) as tell:
        found = shown_keys(looks, tell)
    _print(found)
    shown = [
        each
        for each in found.values()
        if not isinstance(each, PatchlightError)
    ]
    wanted = [each for each in shown if each.state != "known"]
    if expected is None:
        vouched = [
            each
            for each in wanted
            if each.state == "new" or each.name in replace
        ]
        if vouched:
            _ask(vouched)
    else:
        vouched = [
            e for e in wanted if e.fingerprint in expected.get(e.name, ())
        ]
    for each in wanted:
        if each not in vouched:
            out.say(_why_not(each, expected), err=True)
    if file is None and any(each.in_lab_file for each in vouched):
        names = ", ".join(each.name for each in vouched if each.in_lab_file)
        raise BadInput(
            f"the lab file has another host_key for {names}, which takes precedence: nothing was "
            f"written",
            hint="Leave out --known-hosts, or remove host_key from the lab file.",
        )
    if vouched and file is None:
        vouch_in_known_hosts(vouched)
    elif vouched and file is not None:
        vouch_in_lab_file(file, vouched)
    where = "~/.ssh/known_hosts" if file is None else str(file)
    if vouched:
        out.say(
            f"{len(vouched)} keys written to {where}: {', '.join(e.name for e in vouched)}"
        )
    elif not wanted and shown:
        out.say(f"all {len(shown)} keys are known")
    return len(found) - len(shown) + len(wanted) - len(vouched)


def _print(found: dict[str, Shown | PatchlightError]) -> None:
    server = out.Column("server", whole=True)
    table = out.Table(
        out.Column("", whole=True),
        server,
        "host key",
        out.Column("kind", wide=True),
    )
    for state, meaning in _MEANINGS.items():
        for name, each in found.items():
            if isinstance(each, PatchlightError):
                if state == "away":
                    table.add_row(
                        out.Coloured(state, meaning),
                        name,
                        each.message,
                        "",
                    )
            elif each.state == state:
                before = (
                    f", was {', '.join(each.before)}" if each.before else ""
                )
                text = f"{each.fingerprint}{before}"
                table.add_row(
                    out.Coloured(state, meaning),
                    name,
                    text,
                    each.key.get_name(),
                )
    table.print()


def _ask(vouched: list[Shown]) -> None:
    names = ", ".join(each.name for each in vouched)
    out.say(
        "Compare each key with the one on the server's console: "
        "ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub",
        err=True,
    )
    if not sys.stdin.isatty():
        raise PatchlightError(
            f"the keys of {names} need confirmation at a terminal: nothing was written",
            hint="Collect the fingerprints at the servers, and use --fingerprints FILE.",
        )
    if not click.confirm(f"Are the keys of {names} correct?", err=True):
        raise PatchlightError(
            "the keys were not confirmed: nothing was written"
        )


def _why_not(each: Shown, expected: dict[str, set[str]] | None) -> str:
    if expected is not None and each.name not in expected:
        return f"{each.name}: it is not in the file of fingerprints"
    if expected is not None:
        return f"{each.name}: its key differs from the file of fingerprints: do not continue"
    return (
        f"{each.name}: its key has changed. If it was reinstalled: --replace {each.name}. "
        "If not, this may be a man-in-the-middle attack: do not continue"
    )


@click.command()
@click.argument("lab", shell_complete=complete_lab)
@click.option(
    "--output",
    type=click.Path(
        path_type=Path,
        file_okay=False,
    ),
    required=True,
    metavar="DIR",
    help="Parent of the folders.",
)
@click.option(
    "--authority",
    type=click.Path(
        path_type=Path,
        file_okay=False,
    ),
    metavar="DIR",
    help="Folder of the lab's certificate authority  [default: "
    "~/.local/share/patchlight/labs/LAB/ca].",
)
@click.option(
    "--for",
    "only",
    multiple=True,
    metavar="NAME",
    help="A server, a packet switch, 'controller', 'prometheus', or 'switches' for a machine "
    "with several packet switches; may be given again. [default: all]",
)
@click.option(
    "--new-keys",
    "anew",
    is_flag=True,
    help="Also create new keys, if old ones may have leaked.",
)
@out.listing_options
def certificates(
    lab: str,
    output: Path,
    authority: Path | None,
    only: tuple[str, ...],
    anew: bool,
    as_json: bool,
) -> None:
    """Make certificates for the controller and agents of LAB, and for Prometheus.

    With OpenFlow over TLS, also for packet switches. Each gets a folder under DIR with ca.pem,
    cert.pem and key.pem: controller, prometheus, agents/SERVER, and switches/SWITCH. Copy it to the
    machine of that program, readable by it alone, and name it with --tls. If you run the command
    again, it renews certificates that end within 60 days. The first run makes the lab's authority;
    with its folder, anybody can act as the controller of the lab.

    \b
    With --json: lab, authority, and certificates, each with name, folder,
    not_after and fingerprint.
    """
    from patchlight.controller.access.authority import (
        Authority,
        authority_folder,
    )

    meant = running_lab(lab)
    switches = [switch.name for switch in meant.packet_switches]
    known = [
        "controller",
        "prometheus",
        *(server.name for server in meant.servers),
    ]
    known += [*switches, "switches"] if switches else []
    if unknown := [name for name in only if name not in known]:
        raise BadInput(
            f"--for {unknown[0]}: lab {meant.name} has no such name",
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
            made.append(
                signer.for_switch(
                    switch, output / "switches" / switch, anew=anew
                )
            )
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
        out.print_json(
            {
                "lab": meant.name,
                "authority": str(signer.folder),
                "certificates": rows,
            }
        )
        return
    table = out.Table(
        out.Column("name in the lab", whole=True), "valid until", "folder"
    )
    for each in made:
        table.add_row(
            each.name, f"{each.not_after:%Y-%m-%d}", str(each.folder)
        )
    table.print()
    out.say(
        f"the certificate authority of lab {meant.name} is in {signer.folder}: keep it secret"
    )
