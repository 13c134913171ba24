"""``patchlight deploy push`` and ``bundle``: install a release on servers."""

from __future__ import annotations

import re
import socket
import tempfile
from contextlib import ExitStack, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from patchlight.agents.workers.contract import DEFAULT_IMAGE
from patchlight.console import rendering as out
from patchlight.console.connection import complete_server, labs_up
from patchlight.deploy.commands import options
from patchlight.testbed.errors import BadInput
from patchlight.testbed.linux.processes import own_program
from patchlight.testbed.linux.sockets import split_address

if TYPE_CHECKING:
    from patchlight.deploy.bundle import Supply
    from patchlight.deploy.check_machine import Finding, Workers
    from patchlight.deploy.push import Plan, Pushed, PushOptions
    from patchlight.deploy.ssh import Passwords
    from patchlight.testbed.lab.model import Lab, Server

_MEANINGS: dict[str, out.Meaning] = {
    "wrong": "bad",
    "unknown": "caution",
    "ok": "good",
}
_FILE = click.Path(
    path_type=Path,
    exists=True,
    dir_okay=False,
)


@click.command()
@options.server_options
@click.option(
    "--controller",
    metavar="SERVER",
    shell_complete=complete_server,
    help="Also run the lab's controller on this server. [default: the server where it already "
    "runs]",
)
@click.option(
    "--worker-kind",
    "workers",
    type=click.Choice(["docker", "process", "auto"]),
    default="auto",
    help="How agents run workers; auto: in containers if there is a Docker engine.",
)
@click.option(
    "--image",
    default=DEFAULT_IMAGE,
    help="Container image of workers.",
)
@click.option(
    "--image-file",
    type=_FILE,
    metavar="FILE",
    help="The image as a file of 'docker save', to load on the servers.",
)
@click.option(
    "--bundle",
    type=_FILE,
    metavar="FILE",
    help="Install from this file of 'deploy bundle', without a network.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Check the servers and change nothing there.",
)
@out.listing_options
def push(
    lab_name: str,
    chosen: tuple[str, ...],
    passwords: Passwords,
    controller: str | None,
    workers: Workers,
    image: str,
    image_file: Path | None,
    bundle: Path | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Install Patchlight on the servers of LAB.

    It works on all servers in parallel. Each gets a Python environment, the lab file, a
    certificate, and a service that keeps the agent running. Files that are already there are not
    copied again; if the command is interrupted, run it again and it continues. Running workers are
    not disturbed. A server that fails does not stop the others. At the end it prints the commands
    that reach the controller. Exit code 1 if a server failed.

    With --dry-run it checks SSH and its host key, sudo, Python, free disk space, the Docker engine,
    NVIDIA's driver and container toolkit; whether GPUs and NICs are those of the lab file, each GPU
    near its NIC; RDMA devices, kernel modules, MTUs and the clock. Then it says what a push would
    do. Exit code 1 if something is wrong.

    \b
    With --json: lab, ok, and servers, each with server, ok, and either
    release, changed, copied_bytes and version, or error and remedy.
    With --dry-run, servers has those that are ready, with release, runs and
    copy_bytes; checks are rows of server, check, state (ok, wrong or
    unknown), found and remedy.
    """
    from patchlight.controller.access.authority import (
        Authority,
        authority_folder,
    )
    from patchlight.deploy.bundle import FromFile, FromHere, bundle_file
    from patchlight.deploy.push import Push, PushOptions

    lab, servers = options.lab_and_servers(lab_name, chosen)
    if controller is not None and controller not in [
        server.name for server in servers
    ]:
        raise BadInput(
            f"--controller {controller}: expected one of the servers to push to"
        )
    if (
        controller is not None
        and lab.name in labs_up()
        and _answers(lab.controller_api)
    ):
        raise BadInput(
            f"emulated lab {lab.name} has a controller on this machine: a second one on "
            f"{controller} would compete with it",
            hint="Leave out --controller, or make the lab without one: "
            f"{own_program()} emulate up {lab_name} --replace --no-controller",
        )
    file = None if image_file is None else bundle_file(image_file)
    settings = PushOptions(
        options.deployer(),
        workers,
        image,
        file,
        controller,
    )
    with ExitStack() as stack:
        if bundle is None:
            supply: Supply = FromHere(lambda text: out.say(text, err=True))
        else:
            folder = stack.enter_context(
                tempfile.TemporaryDirectory(prefix="patchlight-bundle-")
            )
            supply = FromFile(bundle, Path(folder))
        if dry_run:
            return _dry_run(
                lab,
                servers,
                supply,
                settings,
                passwords,
                as_json=as_json,
            )
        authority = Authority(lab.name, authority_folder(lab.name))
        pushing = Push(
            lab,
            supply,
            authority,
            settings,
        )
        outcomes = options.on_servers(
            lab,
            servers,
            pushing.server,
            passwords,
        )
    try:
        options.report(
            lab,
            outcomes,
            asdict,
            _in_words,
            as_json=as_json,
        )
    finally:
        for way in () if as_json else pushing.ways_to_controller(lab_name):
            out.say(way)


def _answers(address: str | None) -> bool:
    """Whether the controller of an emulated lab runs, which has its API on TCP."""
    with suppress(OSError, BadInput):
        socket.create_connection(split_address(address or ""), 1).close()
        return True
    return False


def _in_words(pushed: Pushed) -> str:
    if not pushed.changed:
        return f"release {pushed.release} already runs, agent {pushed.version} answers"
    copied = (
        f"{pushed.copied_bytes / 1e6:.1f} MB copied, "
        if pushed.copied_bytes
        else ""
    )
    return f"{copied}release {pushed.release} runs, agent {pushed.version} answers"


@click.command()
@click.option(
    "--output",
    type=click.Path(
        path_type=Path,
        dir_okay=False,
    ),
    required=True,
    metavar="FILE",
    help="The file to write.",
)
@click.option(
    "--python",
    "pythons",
    multiple=True,
    metavar="3.12",
    help="Python of the servers; may be given again. [default: this machine's]",
)
@click.option(
    "--machine",
    metavar="x86_64",
    help="Architecture of the servers. [default: this machine's]",
)
@click.option(
    "--controller",
    is_flag=True,
    help="Include the packages of a controller.",
)
@out.json_option
def bundle(
    output: Path,
    pythons: tuple[str, ...],
    machine: str | None,
    controller: bool,
    as_json: bool,
) -> None:
    """Write an installation file for 'deploy push --bundle FILE'.

    It holds wheels of Patchlight and of its dependencies, in the versions installed here. Wheels
    for another Python or machine are downloaded.

    \b
    With --json: file, size_bytes, and parts, each with python, machine,
    role, release, and files (how many).
    """
    from patchlight.deploy.bundle import (
        ROLES,
        FromHere,
        Target,
        here,
        parts_for,
        write_bundle,
    )

    if old := [
        p for p in pythons if not re.fullmatch(r"3\.(1[1-9]|[2-9]\d)", p)
    ]:
        raise BadInput(f"--python {old[0]}: expected 3.11 or newer, like 3.12")
    if not output.absolute().parent.is_dir():
        raise BadInput(f"--output {output}: no folder {output.parent}")
    wanted = [
        Target(python, machine or here().machine)
        for python in pythons or [here().python]
    ]
    roles = ROLES if controller else ROLES[:1]
    supply = FromHere(lambda text: out.say(text, err=True))
    parts = parts_for(supply, wanted, roles)
    size = write_bundle(parts, output)
    if as_json:
        rows = [
            {
                **asdict(target),
                "role": role,
                "release": part.release,
                "files": len(part.files),
            }
            for (target, role), part in parts.items()
        ]
        out.print_json(
            {"file": str(output), "size_bytes": size, "parts": rows}
        )
        return
    kinds = ", ".join(str(target) for target in wanted)
    out.say(f"wrote {output}: {size / 1e6:.1f} MB, for {kinds}")


def _dry_run(
    lab: Lab,
    servers: list[Server],
    supply: Supply,
    settings: PushOptions,
    passwords: Passwords,
    *,
    as_json: bool,
) -> None:
    """Print what is wrong with the servers, and what a push would do on those that are ready."""
    from patchlight.deploy.check import check_servers
    from patchlight.deploy.push import plan_push

    with out.progress_bar("servers", out.console(stderr=True)) as tell:
        findings = check_servers(
            lab,
            tell,
            passwords,
            settings.workers,
            servers,
        )
    wrong = [finding for finding in findings if finding.ok is False]
    ready = [
        s
        for s in servers
        if s.name not in {finding.server for finding in wrong}
    ]
    if not as_json:
        _table(findings).print()
        for name, remedy in dict.fromkeys((f.check, f.remedy) for f in wrong):
            alike = [
                f.server
                for f in wrong
                if (f.check, f.remedy) == (name, remedy)
            ]
            out.say(f"{name} ({', '.join(alike)}): {remedy}")
        out.say(
            f"{len(ready)} of {len(servers)} servers of lab {lab.name} are ready"
        )
    plans = options.on_servers(
        lab,
        ready,
        partial(plan_push, supply, settings),
        passwords,
    )
    keys = ("server", "check", "state", "found", "remedy")
    checks = [
        {k: getattr(f, k) for k in keys if f.ok is False or k != "remedy"}
        for f in findings
    ]
    options.report(
        lab,
        plans,
        asdict,
        _plan_in_words,
        as_json=as_json,
        checks=checks,
    )


def _plan_in_words(plan: Plan) -> str:
    copy = f", {plan.copy_bytes / 1e6:.1f} MB to copy"
    if plan.runs == plan.release:
        return f"release {plan.release} already runs{copy}"
    return (
        f"would install release {plan.release}"
        + f" over {plan.runs}" * bool(plan.runs)
        + copy
    )


def _table(findings: list[Finding]) -> out.Table:
    """Problems, unknowns, and then a line for each server that is good."""
    server = out.Column("server", whole=True)
    table = out.Table(
        out.Column("", whole=True),
        server,
        out.Column("check", whole=True),
        "found",
    )
    for state, meaning in _MEANINGS.items():
        for finding in (f for f in findings if f.state == state != "ok"):
            table.add_row(
                out.Coloured(state, meaning),
                finding.server,
                finding.check,
                finding.found,
            )
    for name in dict.fromkeys(f.server for f in findings):
        good = [f.check for f in findings if f.ok and f.server == name]
        if good:
            table.add_row(
                out.Coloured("ok", "good"),
                name,
                f"{len(good)} checks",
                ", ".join(good),
            )
    return table
