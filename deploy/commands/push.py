"""``patchlight deploy check``, ``push`` and ``bundle``: bring a release to servers."""

from __future__ import annotations

import re
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from patchlight.agents.workers.contract import DEFAULT_IMAGE
from patchlight.console import rendering as out
from patchlight.console.commands import complete_lab
from patchlight.console.connection import running_lab
from patchlight.deploy.commands import options
from patchlight.testbed.errors import BadInput

if TYPE_CHECKING:
    from patchlight.deploy.check_machine import Finding, Workers
    from patchlight.deploy.push import Pushed
    from patchlight.deploy.ssh import Passwords

_MEANINGS: dict[str, out.Meaning] = {"wrong": "bad", "unknown": "caution", "ok": "good"}
_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.command()
@options.server_options
@click.option(
    "--controller",
    metavar="SERVER",
    shell_complete=options.complete_server,
    help="The lab's controller runs on this server, too. [default: it stays where it is]",
)
@click.option(
    "--workers",
    type=click.Choice(["docker", "process", "auto"]),
    default="auto",
    help="What the agents run workers as; auto: a container where a Docker engine is.",
)
@click.option("--image", default=DEFAULT_IMAGE, help="The container image of workers.")
@click.option(
    "--image-file",
    type=_FILE,
    metavar="FILE",
    help="That image, as 'docker save' writes it, for the Docker engines of the servers.",
)
@click.option(
    "--bundle",
    type=_FILE,
    metavar="FILE",
    help="Take everything from this file of 'deploy bundle', and nothing from a network.",
)
@out.listing_options
def push(
    lab_name: str,
    chosen: tuple[str, ...],
    passwords: Passwords,
    controller: str | None,
    workers: str,
    image: str,
    image_file: Path | None,
    bundle: Path | None,
    as_json: bool,
) -> None:
    """Put this version of Patchlight on the servers of LAB, and start their agents.

    All servers at once. What is there already is not copied again; interrupted anywhere, the
    command goes on when it is run again. Each server gets an environment of its own, the lab file,
    a certificate, and a service that keeps the agent running. Workers that run are not
    disturbed. A server that fails stops no other. Exit code 1 if one failed. At the end it prints
    the commands that reach the controller, on its server and from here.

    \b
    With --json: lab, ok, and servers, each with server, ok, and either
    release, changed, copied_bytes and version, or error and remedy.
    """
    from patchlight.controller.access.authority import Authority, authority_folder
    from patchlight.deploy.bundle import FromFile, FromHere, Supply, bundle_file
    from patchlight.deploy.push import Push, PushOptions

    lab, servers = options.lab_and_servers(lab_name, chosen)
    if controller is not None and controller not in [server.name for server in servers]:
        raise BadInput(f"--controller {controller}: expected one of the servers to push to")
    file = None if image_file is None else bundle_file(image_file)
    settings = PushOptions(options.deployer(), workers, image, file, controller)
    with ExitStack() as stack:
        if bundle is None:
            supply: Supply = FromHere(lambda text: out.say(text, err=True))
        else:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="patchlight-bundle-"))
            supply = FromFile(bundle, Path(folder))
        authority = Authority(lab.name, authority_folder(lab.name))
        pushing = Push(lab, supply, authority, settings)
        outcomes = options.on_servers(lab, servers, pushing.server, passwords)
    try:
        options.report(lab, outcomes, asdict, _in_words, as_json=as_json)
    finally:
        for way in () if as_json else pushing.ways_to_controller(lab_name):
            out.say(way)


def _in_words(pushed: Pushed) -> str:
    if not pushed.changed:
        return f"release {pushed.release} runs already, agent {pushed.version} answers"
    copied = f"{pushed.copied_bytes / 1e6:.1f} MB copied, " if pushed.copied_bytes else ""
    return f"{copied}release {pushed.release} runs, agent {pushed.version} answers"


@click.command()
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    metavar="FILE",
    help="The file to write.",
)
@click.option(
    "--python",
    "pythons",
    multiple=True,
    metavar="3.12",
    help="For servers with this Python; may be given again. [default: this machine's]",
)
@click.option(
    "--machine", metavar="x86_64", help="For servers of this kind. [default: this machine's]"
)
@click.option("--controller", is_flag=True, help="With what a controller needs.")
@out.json_option
def bundle(
    output: Path, pythons: tuple[str, ...], machine: str | None, controller: bool, as_json: bool
) -> None:
    """Write a file with all that servers are given, for 'deploy push --bundle FILE'.

    It has wheels of this Patchlight and of the packages that it requires, in the versions that are
    installed here. For another Python or machine than this one they are downloaded.

    \b
    With --json: file, size_bytes, and parts, each with python, machine,
    role, release, and files (how many).
    """
    from patchlight.deploy.bundle import ROLES, FromHere, Target, here, parts_for, write_bundle

    if old := [p for p in pythons if not re.fullmatch(r"3\.(1[1-9]|[2-9]\d)", p)]:
        raise BadInput(f"--python {old[0]}: expected 3.11 or newer, like 3.12")
    if not output.absolute().parent.is_dir():
        raise BadInput(f"--output {output}: there is no folder {output.parent}")
    wanted = [Target(python, machine or here().machine) for python in pythons or [here().python]]
    roles = ROLES if controller else ROLES[:1]
    supply = FromHere(lambda text: out.say(text, err=True))
    parts = parts_for(supply, wanted, roles)
    size = write_bundle(parts, output)
    if as_json:
        rows = [
            {**asdict(target), "role": role, "release": part.release, "files": len(part.files)}
            for (target, role), part in parts.items()
        ]
        out.print_json({"file": str(output), "size_bytes": size, "parts": rows})
        return
    kinds = ", ".join(str(target) for target in wanted)
    out.say(f"wrote {output}: {size / 1e6:.1f} MB, for {kinds}")


@click.command()
@click.argument("lab", shell_complete=complete_lab)
@click.option(
    "--workers",
    type=click.Choice(["docker", "process", "auto"]),
    default="auto",
    help="What workers are to be; auto: no Docker engine is no failure.",
)
@options.ssh_options
@out.listing_options
def check(lab: str, workers: Workers, passwords: Passwords, as_json: bool) -> None:
    """Look over SSH whether the servers of LAB are ready for Patchlight.

    All servers at once: SSH and its host key, sudo, Python, free disk, the Docker engine and
    NVIDIA's driver and container toolkit; whether the GPUs and NICs are those of the lab file,
    each GPU near its NIC, RDMA devices and kernel modules ready, MTUs equal, the clock right.
    What is wrong comes first, each with its remedy. What the lab file does not claim is never
    wrong. Nothing on the servers changes. Exit code 1 if something is wrong.

    \b
    With --json: lab, ready, and checks, each with server, check, state
    (ok, wrong or unknown), found and remedy.
    """
    from patchlight.deploy.check import check_servers

    meant = options.with_servers(running_lab(lab))
    with out.progress_bar("servers", out.console(stderr=True)) as tell:
        findings = check_servers(meant, tell, passwords, workers)
    wrong = [finding for finding in findings if finding.ok is False]
    if as_json:
        keys = ("server", "check", "state", "found", "remedy")
        rows = [
            {key: getattr(f, key) for key in keys if f.ok is False or key != "remedy"}
            for f in findings
        ]
        out.print_json({"lab": meant.name, "ready": not wrong, "checks": rows})
    else:
        _table(findings).print()
        for name, remedy in dict.fromkeys((f.check, f.remedy) for f in wrong):
            alike = [f.server for f in wrong if (f.check, f.remedy) == (name, remedy)]
            out.say(f"{name} ({', '.join(alike)}): {remedy}")
        ready = len(meant.servers) - len({finding.server for finding in wrong})
        out.say(f"{ready} of {len(meant.servers)} servers of lab {meant.name} are ready")
    if wrong:
        sys.exit(1)


def _table(findings: list[Finding]) -> out.Table:
    """What is wrong, what cannot be told, and then in a line for each server what is good."""
    server = out.Column("server", whole=True)
    table = out.Table(out.Column("", whole=True), server, out.Column("check", whole=True), "found")
    for state, meaning in _MEANINGS.items():
        for finding in (f for f in findings if f.state == state != "ok"):
            table.add_row(
                out.Coloured(state, meaning), finding.server, finding.check, finding.found
            )
    for name in dict.fromkeys(f.server for f in findings):
        good = [f.check for f in findings if f.ok and f.server == name]
        if good:
            table.add_row(out.Coloured("ok", "good"), name, f"{len(good)} checks", ", ".join(good))
    return table
