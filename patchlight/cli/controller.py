"""``patchlight controller``: run one, ask one how it is."""

from __future__ import annotations

import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from patchlight.console.connection import connect, controller_options, labs_up
from patchlight.console.options import ANY, AT_LEAST_0, chosen_policies, lab_option, policy_options
from patchlight.console.rendering import (
    Coloured,
    Column,
    Table,
    json_option,
    listing_options,
    print_json,
    say,
    when,
)
from patchlight.controller.changes.power import DEFAULT_TOLERANCES, POWER_CEILING_DBM, Tolerances

if TYPE_CHECKING:
    from patchlight.testbed.wire.rest.lab import AgentStatusAnswer, CircuitSwitchStatus


@click.group()
def controller() -> None:
    """Run the controller of a lab, and ask it how it is."""


@controller.command()
@lab_option("Lab file or built-in lab.", required=True)
@click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Where journal and jobs are kept [default: /var/lib/patchlight/LAB].",
)
@click.option(
    "--api",
    metavar="HOST:PORT|unix:PATH",
    help="Where the REST API listens; beyond this machine, with --tls  [default: the lab file's, "
    "else a Unix socket of the lab's own].",
)
@click.option(
    "--metrics",
    metavar="HOST:PORT",
    help="Where metrics for Prometheus are besides, for this machine alone: /metrics and nothing "
    "else  [default: at the API's address only].",
)
@click.option(
    "--traces",
    metavar="URL",
    help="Where the ways of jobs to their first iterations are sent as OpenTelemetry traces, like "
    "http://127.0.0.1:4318 (OTLP over HTTP)  [default: nowhere].",
)
@click.option(
    "--dashboard",
    "dashboard_at",
    metavar="HOST:PORT",
    help="Where a dashboard is besides, for this machine alone: a process of its own.",
)
@click.option("--openflow", metavar="HOST:PORT", help="Where packet switches connect to.")
@click.option(
    "--openflow-netns",
    type=click.Path(path_type=Path, exists=True),
    metavar="PATH",
    help="Network namespace that the OpenFlow speaker listens in.",
)
@click.option(
    "--engine",
    type=click.Choice(["ryu", "os-ken"]),
    help="OpenFlow engine [default: Ryu where it is installed].",
)
@click.option(
    "--tls",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Certificates (ca.pem, cert.pem, key.pem) for agents on TCP, and for users from other "
    "machines, from 'deploy certificates'.",
)
@click.option(
    "--ryu-app",
    "ryu_apps",
    multiple=True,
    metavar="MODULE:CLASS",
    help="A Ryu application of yours, run beside ours; may be given again.",
)
@click.option(
    "--power-ceiling",
    "power_ceiling_dbm",
    type=ANY,
    default=POWER_CEILING_DBM,
    metavar="DBM",
    help="More optical power than this at an OCS input is not switched.",
)
@click.option(
    "--loss-tolerance",
    type=AT_LEAST_0,
    default=DEFAULT_TOLERANCES.budget_db,
    metavar="DB",
    help="How far from the loss budget the power at an output may be.",
)
@click.option(
    "--baseline-tolerance",
    type=AT_LEAST_0,
    default=DEFAULT_TOLERANCES.baseline_db,
    metavar="DB",
    help="How much less than before makes a circuit degraded.",
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
    """Run the controller of LAB until Ctrl-C; circuits and flows outlive it.

    Of an emulated lab that is up, by its name, it goes on with what the one before it left.
    """
    from patchlight.controller.parts import ControllerSettings
    from patchlight.controller.service import serve
    from patchlight.testbed.labfile.reader import find_lab, read_lab
    from patchlight.testbed.wire.lab_api import is_beyond_this_machine, new_api_address, own_socket

    lab_file = labs_up().get(lab_name) or find_lab(lab_name)
    lab = read_lab(lab_file)
    if lab_file == labs_up().get(lab.name):
        from patchlight.emulation.fabric.lab_state import MARK
        from patchlight.emulation.fabric.plan import fabric_namespace
        from patchlight.testbed.linux.namespaces import namespace_path

        marked = {**os.environ, MARK: str(lab_file.parent)}
        if marked != os.environ:  # as one of the lab's processes it ends with the lab
            os.execve(sys.executable, sys.orig_argv, marked)
        state = state or lab_file.parent / "controller"
        options["openflow_netns"] = options["openflow_netns"] or namespace_path(
            fabric_namespace(lab.name)
        )
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
            say(f"controller of {lab.name}: {where}", err=True)
            if dashboard_at is not None:
                from patchlight.console.commands import Dashboard

                local = own_socket(lab.name) if is_beyond_this_machine(settings.api) else None
                beside.callback(Dashboard(local or settings.api, dashboard_at).close)

        serve(lab, settings, ready)


def _reach(ocs: CircuitSwitchStatus) -> Coloured:
    if ocs["reachable"]:
        return Coloured("answers", "good")
    silent_s = time.time() - (ocs["since"] or time.time())
    return Coloured(f"silent for {silent_s:.0f} s: {ocs['words']}", "bad")


def _presence(agent: AgentStatusAnswer) -> Coloured:
    if not agent["reachable"]:
        why = f": {agent['words']}" if agent["words"] else ""
        return Coloured(f"{agent['presence']}, silent for {agent['silence_s']:.0f} s{why}", "bad")
    words = "; ".join(("answers", *agent["problems"]))
    return Coloured(words, "bad" if agent["problems"] else "good")


@controller.command()
@listing_options
@controller_options
def status(lab_name: str | None, address: str | None, as_json: bool) -> None:
    """Which switches, circuit switches and agents the controller has."""
    with connect(lab_name, address) as client:
        answer = client.status()
    if as_json:
        print_json(answer)
        return
    title = f"lab {answer['lab']}, engine {answer['engine']}"
    table = Table(Column("device", whole=True), "kind", "state", title=title)
    for switch in answer["switches"]:
        state = Coloured("connected", "good") if switch["connected"] else Coloured("away", "bad")
        if switch["second_from"]:
            state = Coloured(f"connected; another from {switch['second_from']} is refused", "bad")
        table.add_row(switch["name"], f"packet switch {switch['datapath_id']:#x}", state)
    for ocs in answer["circuit_switches"]:
        table.add_row(ocs["name"], "circuit switch", _reach(ocs))
    for agent in answer["agents"]:
        table.add_row(agent["server"], "agent", _presence(agent))
    for words in answer["nic_differences"]:
        table.add_row("NICs", "that light joins", Coloured(words, "caution"))
    light = answer["light"]
    if light["defragment"]:
        seen = f", looked at {when(light['looked_at'])}" if light["looked_at"] else ""
        table.add_row("light", "of running jobs", f"follows them{seen}: {light['words']}")
    if answer["drained"]:
        table.add_row("queue", "of jobs", Coloured("drained: no job is started", "caution"))
    for policy in answer["policy_faults"]:
        words = f"failed {policy['faults']} times: the default decided"
        table.add_row(policy["policy"], f"{policy['kind']} policy", Coloured(words, "bad"))
    for part in answer["parts"]:
        if part["faults"]:
            now = "runs" if part["running"] else "begins again"
            words = f"{now}; failed {part['faults']} times, last: {part['last_fault']}"
            table.add_row(part["name"], "part of the controller", Coloured(words, "bad"))
    table.print()


@controller.command()
@json_option
@controller_options
def stop(as_json: bool, lab_name: str | None, address: str | None) -> None:
    """End the controller; its jobs, circuits and flows outlive it.

    Jobs that run go on, and queued ones stay queued: the next controller of the lab follows them.
    To end jobs, too, drain it first.
    """
    with connect(lab_name, address) as client:
        left = client.shut_down()
    if as_json:
        print_json({"jobs": left})
        return
    jobs = ", ".join(f"{count} {state}" for state, count in left.items()) or "none"
    say(f"the controller ends; jobs that stay as they are: {jobs}")


@controller.command()
@click.option("--why", default="", metavar="TEXT", help="Why; kept with the mark.")
@json_option
@controller_options
def drain(why: str, as_json: bool, lab_name: str | None, address: str | None) -> None:
    """End all running jobs, and start none until 'controller resume'.

    Queued jobs stay queued, also when the controller is started anew.
    """
    with connect(lab_name, address) as client:
        ended = client.drain(why)
    if as_json:
        print_json({"ended": ended})
    else:
        say(f"no job is started any more; ended: {', '.join(ended) or 'none, none ran'}")


@controller.command()
@controller_options
def resume(lab_name: str | None, address: str | None) -> None:
    """Start jobs again after 'controller drain'."""
    with connect(lab_name, address) as client:
        client.resume()
    say("jobs are started again")
