"""``patchlight controller``: run, drain, stop, back up and restore a controller."""

from __future__ import annotations

import io
import os
import shutil
import sqlite3
import sys
import tarfile
import tempfile
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from patchlight.console import rendering as out
from patchlight.console.connection import labs_up, with_client
from patchlight.console.options import (
    ANY,
    AT_LEAST_0,
    chosen_policies,
    policy_options,
)
from patchlight.console.shared import lab_option
from patchlight.controller.changes.power import (
    DEFAULT_TOLERANCES,
    POWER_CEILING_DBM,
    Tolerances,
)
from patchlight.controller.storage.state_folder import CHECK, DATABASE, SAMPLES
from patchlight.testbed.errors import BadInput, PatchlightError, reason

if TYPE_CHECKING:
    from patchlight.client.client import ControllerClient


@click.group()
def controller() -> None:
    """Run, drain and stop the controller of a lab."""


@controller.command()
@lab_option("Lab file or built-in lab.", required=True)
@click.option(
    "--state",
    type=click.Path(
        path_type=Path,
        file_okay=False,
    ),
    metavar="DIR",
    help="Folder of the journal and jobs.  [default: /var/lib/patchlight/LAB]",
)
@click.option(
    "--api",
    metavar="HOST:PORT|unix:PATH",
    help="Address of the REST API; for other machines, add --tls.  [default: the lab file's, else "
    "a Unix socket]",
)
@click.option(
    "--metrics",
    metavar="HOST:PORT",
    help="Also serve /metrics for Prometheus at this local address.  [default: only at the "
    "API's address]",
)
@click.option(
    "--traces",
    metavar="URL",
    help="Send OpenTelemetry traces of starting jobs here, like http://127.0.0.1:4318 (OTLP over "
    "HTTP).  [default: none]",
)
@click.option(
    "--dashboard",
    "dashboard_at",
    metavar="HOST:PORT",
    help="Also run a dashboard at this local address, in its own process.",
)
@click.option(
    "--openflow",
    metavar="HOST:PORT",
    help="Address that packet switches connect to.",
)
@click.option(
    "--openflow-netns",
    type=click.Path(
        path_type=Path,
        exists=True,
    ),
    metavar="PATH",
    help="Network namespace that the OpenFlow speaker listens in.",
)
@click.option(
    "--engine",
    type=click.Choice(["ryu", "os-ken"]),
    help="OpenFlow engine.  [default: Ryu if it is installed]",
)
@click.option(
    "--tls",
    type=click.Path(
        path_type=Path,
        file_okay=False,
    ),
    metavar="FOLDER",
    help="Certificates (ca.pem, cert.pem, key.pem) for agents on TCP, and for users from other "
    "machines, from 'deploy certificates'.",
)
@click.option(
    "--ryu-app",
    "ryu_apps",
    multiple=True,
    metavar="MODULE:CLASS",
    help="Your own Ryu application, to run beside Patchlight's; may be given again.",
)
@click.option(
    "--power-ceiling",
    "power_ceiling_dbm",
    type=ANY,
    default=POWER_CEILING_DBM,
    metavar="DBM",
    help="Do not switch more optical power than this at an OCS input.",
)
@click.option(
    "--loss-tolerance",
    type=AT_LEAST_0,
    default=DEFAULT_TOLERANCES.budget_db,
    metavar="DB",
    help="Largest difference between the power at an output and the loss budget.",
)
@click.option(
    "--baseline-tolerance",
    type=AT_LEAST_0,
    default=DEFAULT_TOLERANCES.baseline_db,
    metavar="DB",
    help="A circuit that loses more than this since its baseline is degraded.",
)
@policy_options
def run(
    lab_name: str,
    state: Path | None,
    api: str | None,
    openflow: str | None,
    dashboard_at: str | None,
    loss_tolerance: float,
    baseline_tolerance: float,
    **options: Any,
) -> None:
    """Run the controller of LAB until Ctrl-C; circuits and flow entries stay.

    For an emulated lab that is up, given by name, it continues where the last controller stopped.
    """
    from patchlight.controller.parts import ControllerSettings
    from patchlight.controller.service import serve
    from patchlight.testbed.labfile.reader import find_lab, read_lab
    from patchlight.testbed.linux.sockets import is_beyond_this_machine
    from patchlight.testbed.wire.lab_api import new_api_address, own_socket

    lab_file = labs_up().get(lab_name) or find_lab(lab_name)
    lab = read_lab(lab_file)
    if lab_file == labs_up().get(lab.name):
        from patchlight.emulation.fabric.lab_state import MARK
        from patchlight.emulation.fabric.plan import fabric_namespace
        from patchlight.testbed.linux.namespaces import namespace_path

        marked = {**os.environ, MARK: str(lab_file.parent)}
        if (
            marked != os.environ
        ):  # as one of the lab's processes it ends with the lab
            os.execve(sys.executable, sys.orig_argv, marked)
        state = state or lab_file.parent / "controller"
        options["openflow_netns"] = options[
            "openflow_netns"
        ] or namespace_path(fabric_namespace(lab.name))
    settings = ControllerSettings(
        state_dir=state or Path("/var/lib/patchlight") / lab.name,
        api=api or new_api_address(lab),
        openflow=openflow or lab.controller_openflow,
        tolerances=Tolerances(loss_tolerance, baseline_tolerance),
        policies=chosen_policies(options),
        lab_file=lab_file,
        **options,
    )
    api = settings.api
    if is_beyond_this_machine(api):
        api += f" and {own_socket(lab.name)}"
    where = f"API on {api}, OpenFlow on {settings.openflow}"
    with ExitStack() as beside:

        def ready() -> None:
            out.say(f"controller of {lab.name}: {where}", err=True)
            if dashboard_at is not None:
                from patchlight.console.commands import Dashboard

                local = (
                    own_socket(lab.name)
                    if is_beyond_this_machine(settings.api)
                    else None
                )
                beside.callback(
                    Dashboard(local or settings.api, dashboard_at).close
                )

        serve(lab, settings, ready)


@controller.command()
@click.option(
    "--release",
    is_flag=True,
    help="Remove Patchlight's entries from packet switches.",
)
@out.json_option
@with_client
def stop(
    client: ControllerClient,
    release: bool,
    as_json: bool,
) -> None:
    """Stop the controller; jobs, circuits and flow entries stay.

    Running jobs continue, and queued jobs stay queued: the next controller of the lab takes them
    over. To end jobs too, drain it first.
    """
    left = client.shut_down(release=release)
    jobs = (
        ", ".join(f"{count} {state}" for state, count in left.items())
        or "none"
    )
    text = f"the controller stops; these jobs continue: {jobs}"
    out.print_answer({"jobs": left}, text, as_json=as_json)


@controller.command()
@click.option(
    "--end",
    is_flag=True,
    help="Start jobs again.",
)
@click.option(
    "--why",
    default="",
    metavar="TEXT",
    help="The reason, for the history.",
)
@out.json_option
@with_client
def drain(
    client: ControllerClient,
    end: bool,
    why: str,
    as_json: bool,
) -> None:
    """End all running jobs; start none until --end.

    Queued jobs stay queued, also after a restart of the controller.
    """
    if end:
        if why:
            raise BadInput("--why does not go with --end: leave it out")
        client.resume()
        out.print_answer(
            {"drained": False}, "jobs can start again", as_json=as_json
        )
        return
    ended = client.drain(why)
    text = f"no more jobs start; ended: {', '.join(ended) or 'none, none ran'}"
    out.print_answer({"ended": ended}, text, as_json=as_json)


_KEPT = DATABASE, SAMPLES
_LAB_FILE = "lab.yaml"


def _state_of(lab_name: str, state: Path | None) -> tuple[Path, Path]:
    """The lab's file, and the folder where its controller keeps its state."""
    from patchlight.testbed.labfile.reader import find_lab, read_lab

    up = labs_up().get(lab_name)
    lab_file = up or find_lab(lab_name)
    if state is None and up is not None:
        return lab_file, up.parent / "controller"
    return lab_file, state or Path("/var/lib/patchlight") / read_lab(
        lab_file
    ).name


_state_option = click.option(
    "--state",
    type=click.Path(
        path_type=Path,
        file_okay=False,
    ),
    metavar="DIR",
    help="Where the controller keeps its state [default: /var/lib/patchlight/LAB].",
)


@controller.command()
@click.argument(
    "file",
    type=click.Path(
        path_type=Path,
        dir_okay=False,
    ),
)
@lab_option("Lab file or built-in lab.", required=True)
@_state_option
def backup(
    file: Path,
    lab_name: str,
    state: Path | None,
) -> None:
    """Write the controller's state to FILE, a tar archive.

    It has the journal, jobs, tokens' hashes, samples and the lab file. The controller may run. It
    has no output of jobs and no TLS keys.
    """
    lab_file, folder = _state_of(lab_name, state)
    if not (folder / _KEPT[0]).exists():
        raise BadInput(
            f"no controller state found in {folder}",
            hint="name its folder with --state",
        )
    if file.exists():
        raise BadInput(
            f"{file} exists already: name another file, or move it away"
        )
    with tempfile.TemporaryDirectory() as name:
        snapshots = [
            Path(name) / kept for kept in _KEPT if (folder / kept).exists()
        ]
        part = file.with_name(f"{file.name}.part")
        try:
            for snapshot in snapshots:
                source = f"file:{quote(str(folder / snapshot.name))}?mode=ro"
                with (
                    closing(sqlite3.connect(source, uri=True)) as live,
                    closing(sqlite3.connect(snapshot)) as copy,
                ):
                    live.backup(copy)
            descriptor = os.open(
                part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600
            )
            with (
                os.fdopen(descriptor, "wb") as raw,
                tarfile.open(
                    fileobj=raw,
                    mode="w:gz",
                ) as tar,
            ):
                for snapshot in snapshots:
                    tar.add(snapshot, snapshot.name)
                tar.add(lab_file.resolve(), _LAB_FILE)
            part.rename(file)
        except (OSError, sqlite3.Error) as error:
            part.unlink(missing_ok=True)
            raise PatchlightError(
                f"backing up {folder} to {file}: {reason(error)}"
            ) from error
    out.say(f"{file}: the state of {folder} and the lab file {lab_file}")


@controller.command()
@click.argument(
    "file",
    type=click.Path(
        path_type=Path,
        dir_okay=False,
        exists=True,
    ),
)
@click.option(
    "--state",
    type=click.Path(
        path_type=Path,
        file_okay=False,
    ),
    metavar="DIR",
    required=True,
    help="A new or empty folder for the state.",
)
def restore(file: Path, state: Path) -> None:
    """Unpack a backup into an empty folder, for a controller to run on.

    Jobs that started after the backup are unknown to it, and it ends their workers.
    """
    if state.exists() and any(state.iterdir()):
        raise BadInput(
            f"{state} is not empty: nothing was restored",
            hint="name a new folder, or move its files away",
        )
    try:
        with tarfile.open(file) as tar:
            members = [
                m
                for m in tar.getmembers()
                if m.isfile() and m.name in (*_KEPT, _LAB_FILE)
            ]
            names = {member.name for member in members}
            if not {_KEPT[0], _LAB_FILE} <= names:
                raise BadInput(
                    f"{file} is not a backup of a controller: {_KEPT[0]} is not in it"
                )
            state.mkdir(
                parents=True,
                exist_ok=True,
            )
            state.chmod(0o750)
            for member in members:
                found = tar.extractfile(member)
                (state / member.name).touch(mode=0o600)
                with (state / member.name).open("wb") as target:
                    shutil.copyfileobj(found or io.BytesIO(), target)
            (state / CHECK).touch(mode=0o600)  # the database is whole
    except (OSError, tarfile.TarError) as error:
        raise PatchlightError(
            f"restoring {file} to {state}: {reason(error)}"
        ) from error
    lab_file = state / _LAB_FILE
    out.say(f"restored to {state}")
    out.say(
        f"run it with: patchlight controller run --lab {lab_file} --state {state}"
    )
