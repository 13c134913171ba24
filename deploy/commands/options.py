"""Options shared by ``patchlight deploy``'s commands, and ``patchlight deploy prometheus``."""

from __future__ import annotations

import functools
import os
import shutil
import socket
import stat
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import yaml

from patchlight.console import rendering as out
from patchlight.console.connection import (
    complete_server,
    running_lab,
    user_name,
)
from patchlight.console.shared import SharedOption, complete_lab
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.labfile.values import HOST_PORT
from patchlight.testbed.linux import credentials
from patchlight.testbed.linux.processes import own_program
from patchlight.testbed.units import parse_time

if TYPE_CHECKING:
    from patchlight.deploy.check import Servers
    from patchlight.deploy.remote import Remote, ServerResult
    from patchlight.deploy.ssh import Passwords
    from patchlight.testbed.lab.model import Lab, Server


Command = TypeVar("Command", bound=Callable[..., Any])
_LONGEST = 4096
_UNIX = "unix:"


def ssh_options(command: Command) -> Command:
    """Give a command the options of passwords; it gets them as ``passwords``."""

    @functools.wraps(command)
    def with_passwords(
        *arguments: Any,
        ask_password: bool,
        password_file: Path | None,
        ask_sudo_password: bool,
        sudo_password_file: Path | None,
        **options: Any,
    ) -> Any:
        from patchlight.deploy.ssh import Passwords

        login = _password("password", ask_password, password_file)
        sudo = _password(
            "sudo-password",
            ask_sudo_password,
            sudo_password_file,
            default=login,
        )
        return command(
            *arguments,
            passwords=Passwords(login, sudo),
            **options,
        )

    made: Any = with_passwords
    shared = functools.partial(
        click.option,
        cls=SharedOption,
        of="deploy",
    )
    for of_what, asked in (("sudo-", "for sudo"), ("", "for the login")):
        about = f"Read the password {asked} from a file (mode 0600)."
        file = click.Path(path_type=Path)
        made = shared(
            f"--{of_what}password-file",
            type=file,
            help=about,
        )(made)
        about = f"Ask for the password {asked}."
        made = shared(
            f"--ask-{of_what}password",
            is_flag=True,
            help=about,
        )(made)
    wrapped: Command = made
    return wrapped


def _password(
    option: str,
    ask: bool,
    file: Path | None,
    default: str | None = None,
) -> str | None:
    if ask and file is not None:
        raise BadInput(
            f"--ask-{option} and --{option}-file exclude each other: give one"
        )
    if file is not None:
        return read_password(file)
    if not ask:
        return None
    if not sys.stdin.isatty():
        raise BadInput(
            f"--ask-{option} needs a terminal",
            hint=f"Use --{option}-file FILE, a file that only you can read.",
        )
    what = (
        "Password to log in with"
        if option == "password"
        else "Password of sudo"
    )
    if default:
        what += " (empty: the same)"
    given: str = click.prompt(
        what,
        default=default or "",
        hide_input=True,
        show_default=False,
    )
    return given or None


def read_password(file: Path) -> str:
    """The first line of a file that nobody but its owner may read; ``BadInput`` for any other."""
    try:
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise BadInput(
            f"cannot read the password in {file}: {error.strerror}"
        ) from error
    with os.fdopen(fd, "rb") as opened:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise BadInput(
                f"{file} is not a plain file: expected a file with a password"
            )
        if status.st_mode & 0o077:
            raise BadInput(
                f"others may read the password in {file}",
                hint=f"Run: chmod 600 {file}",
            )
        text = opened.read(_LONGEST).decode(errors="replace")
    password = text.split("\n")[0].rstrip("\r")
    if not password:
        raise BadInput(
            f"{file} is empty: expected a password on its first line"
        )
    return password


R = TypeVar("R")


def server_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command LAB, as ``lab_name``, ``--server``, as ``chosen``, and ``passwords``."""
    command = ssh_options(command)
    command = click.option(
        "--server",
        "chosen",
        cls=SharedOption,
        of="deploy",
        multiple=True,
        metavar="SERVER",
        shell_complete=complete_server,
        help="Only this server; may be given again.",
    )(command)
    return click.argument(
        "lab_name",
        metavar="LAB",
        shell_complete=complete_lab,
    )(command)


def with_servers(lab: Lab) -> Lab:
    """This lab; ``BadInput`` if it has no servers, or none that SSH can reach."""
    if not lab.servers:
        raise BadInput(
            f"lab {lab.name} has no servers: expected some in the lab file"
        )
    if all(
        server.ssh.address is None
        and (server.management or _UNIX).startswith(_UNIX)
        for server in lab.servers
    ):
        raise BadInput(
            f"no server of lab {lab.name} has an SSH address",
            hint="Write 'ssh: {address: HOST}' at each server, or emulate servers with SSH: "
            f"{own_program()} emulate up {lab.name} --server-kind ssh",
        )
    return lab


def lab_and_servers(
    lab_name: str, chosen: Sequence[str]
) -> tuple[Lab, list[Server]]:
    """The lab, and the servers of it that are meant."""
    lab = with_servers(running_lab(lab_name))
    names = [server.name for server in lab.servers]
    for name in chosen:
        if name not in names:
            raise BadInput(
                f"lab {lab.name} has no server {name!r}: it has {', '.join(names)}"
            )
    return lab, [
        server for server in lab.servers if not chosen or server.name in chosen
    ]


def deployer() -> str:
    """The deploying user's name, for others to read."""
    return f"{user_name()} on {socket.gethostname()}"


def on_servers(
    lab: Lab,
    servers: Sequence[Server],
    work: Callable[[Server, Remote], R],
    passwords: Passwords,
) -> list[ServerResult[R]]:
    """Do the same on these servers, and show how far it is."""
    from patchlight.deploy.remote import on_all_servers

    with out.progress_bar("servers", out.console(stderr=True)) as tell:
        return on_all_servers(
            lab,
            servers,
            work,
            tell,
            passwords,
        )


def servers_of(lab: Lab) -> Servers:
    """A lab's deployment, for this user."""
    from patchlight.controller.access.authority import (
        Authority,
        authority_folder,
    )
    from patchlight.deploy.check import Servers
    from patchlight.deploy.push import LabAgents, controller_credentials

    authority = Authority(lab.name, authority_folder(lab.name))
    return Servers(
        LabAgents(lab, controller_credentials(authority)), deployer()
    )


def act_on_servers(
    lab_name: str,
    chosen: Sequence[str],
    passwords: Passwords,
    work: Callable[[Servers, Server, Remote], R],
    key: str,
    in_words: Callable[[R], str],
    *,
    as_json: bool,
) -> None:
    """Do the same on the servers that are meant, and report it; ``key`` names a result in JSON."""
    lab, servers = lab_and_servers(lab_name, chosen)
    outcomes = on_servers(
        lab,
        servers,
        functools.partial(work, servers_of(lab)),
        passwords,
    )
    report(
        lab,
        outcomes,
        lambda result: {key: result},
        in_words,
        as_json=as_json,
    )


def report(
    lab: Lab,
    outcomes: Sequence[ServerResult[R]],
    row: Callable[[R], dict[str, Any]],
    in_words: Callable[[R], str],
    *,
    as_json: bool,
    checks: Sequence[dict[str, Any]] = (),
) -> None:
    """Print the results, failures first with their remedies; exit code 1 if something failed.

    ``checks`` were printed before; they go into the JSON, and one that is wrong is a failure.
    """
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    bad = bool(failed) or any(check["state"] == "wrong" for check in checks)
    if as_json:
        rows = []
        for outcome in outcomes:
            if outcome.error is not None:
                told = {
                    "error": outcome.error.message,
                    "remedy": outcome.error.hint or "",
                }
            else:
                assert outcome.result is not None
                told = row(outcome.result)
            rows.append(
                {"server": outcome.server, "ok": outcome.error is None, **told}
            )
        checked = {"checks": checks} if checks else {}
        out.print_json(
            {
                "lab": lab.name,
                "ok": not bad,
                "servers": rows,
                **checked,
            }
        )
    else:
        table = out.Table(
            out.Column("", whole=True),
            out.Column("server", whole=True),
            "what",
        )
        for outcome in failed:
            assert outcome.error is not None
            table.add_row(
                out.Coloured("failed", "bad"),
                outcome.server,
                outcome.error.message,
            )
        for outcome in outcomes:
            if outcome.result is not None:
                table.add_row(
                    out.Coloured("ok", "good"),
                    outcome.server,
                    in_words(outcome.result),
                )
        if outcomes:
            table.print()
        for hint in dict.fromkeys(
            o.error.hint for o in failed if o.error and o.error.hint
        ):
            alike = [
                o.server for o in failed if o.error and o.error.hint == hint
            ]
            out.say(f"{', '.join(alike)}: {hint}")
    if bad:
        sys.exit(1)


DEFAULT_METRICS = "127.0.0.1:9470"
_DEPLOY = Path(__file__).resolve().parents[1]
RULES = _DEPLOY / "prometheus" / "patchlight.rules.yml"
DASHBOARDS = tuple(sorted((_DEPLOY / "grafana").glob("*.json")))
CONFIG_FILE = "prometheus.yml"
CONTROLLER_JOB = "patchlight-controller"
AGENTS_JOB = "patchlight-agent"


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
    help="Folder for the files.",
)
@click.option(
    "--controller",
    "address",
    metavar="HOST:PORT",
    help="Address of the controller's metrics, as in 'controller run --metrics' [default: the "
    f"lab file's controller.api if it is a TCP address, else {DEFAULT_METRICS}].",
)
@click.option(
    "--certificates",
    type=click.Path(
        path_type=Path,
        file_okay=False,
    ),
    default=Path("/etc/prometheus/patchlight"),
    metavar="DIR",
    help="Prometheus's folder with ca.pem, cert.pem and key.pem, from 'deploy certificates'.",
)
@click.option(
    "--every",
    default="15s",
    metavar="TIME",
    help="Scrape interval.",
)
@out.json_option
def prometheus(
    lab: str,
    output: Path,
    address: str | None,
    certificates: Path,
    every: str,
    as_json: bool,
) -> None:
    """Write a Prometheus configuration for LAB.

    DIR gets prometheus.yml, which names the controller and each agent; patchlight.rules.yml with
    alerts; and grafana/ with dashboards to import. Start 'prometheus
    --config.file=DIR/prometheus.yml', or add the parts to your configuration. If you run the
    command again, it overwrites the files.
    """
    meant = running_lab(lab)
    api = meant.controller_api
    where = address or (
        api if api and not api.startswith(_UNIX) else DEFAULT_METRICS
    )
    HOST_PORT.take(where)
    every_s = parse_time(every)
    if every_s < 1:
        raise BadInput(f"--every {every}: expected 1s or more, like 15s")
    config = scrape_config(
        meant,
        where,
        certificates,
        every_s,
    )
    files = write_monitoring(output, config)
    if as_json:
        out.print_json(
            {"lab": meant.name, "files": [str(file) for file in files]}
        )
        return
    agents = len(config["scrape_configs"]) - 1
    out.say(
        f"wrote {output / CONFIG_FILE}: the controller at {where}, and {agents} agents"
    )
    if left_out := len(meant.servers) - agents:
        out.say(
            f"{left_out} servers are omitted: their agents have no TCP port"
        )
    if where == DEFAULT_METRICS and address is None:
        out.say(f"start the controller with --metrics {where}")


def scrape_config(
    lab: Lab,
    controller: str,
    certificates: Path,
    every_s: float,
) -> dict[str, Any]:
    """``prometheus.yml`` as a value.

    ``controller`` is where the controller's metrics are (``host:port``), ``certificates`` the
    folder with the certificate for ``prometheus`` on the machine where that runs. Agents that
    answer on Unix sockets, as an emulated lab's do, are left out: no Prometheus reads these.
    """
    every = f"{round(1000 * every_s)}ms"
    jobs: list[dict[str, Any]] = [
        {
            "job_name": CONTROLLER_JOB,
            "static_configs": [
                {"targets": [controller], "labels": {"lab": lab.name}}
            ],
        }
    ]
    for server in lab.servers:
        if server.management is None or server.management.startswith(_UNIX):
            continue
        jobs.append(
            {
                # A name of its own, for its certificate: so each is a job of its own.
                "job_name": f"{AGENTS_JOB}-{server.name}",
                "scheme": "https",
                "tls_config": {
                    "ca_file": str(certificates / credentials.CA_FILE),
                    "cert_file": str(
                        certificates / credentials.CERTIFICATE_FILE
                    ),
                    "key_file": str(certificates / credentials.KEY_FILE),
                    "server_name": credentials.agent_name(
                        server.name, lab.name
                    ),
                },
                "static_configs": [
                    {
                        "targets": [server.management],
                        "labels": {"lab": lab.name, "server": server.name},
                    }
                ],
            }
        )
    return {
        "global": {
            "scrape_interval": every,
            "scrape_timeout": every,
            "evaluation_interval": every,
        },
        "rule_files": [RULES.name],
        "scrape_configs": jobs,
    }


def write_monitoring(folder: Path, config: dict[str, Any]) -> list[Path]:
    """Put configuration, rules and dashboards into a folder; ``PatchlightError`` if that fails."""
    try:
        (folder / "grafana").mkdir(
            parents=True,
            exist_ok=True,
        )
        written = [folder / CONFIG_FILE]
        written[0].write_text(yaml.safe_dump(config, sort_keys=False))
        for source in (RULES, *DASHBOARDS):
            inside = "grafana" if source in DASHBOARDS else ""
            written.append(
                Path(shutil.copyfile(source, folder / inside / source.name))
            )
    except OSError as error:
        raise PatchlightError(
            f"writing the configuration of Prometheus to {folder}: {error.strerror}",
            hint="name a writable folder with --output",
        ) from error
    return written
