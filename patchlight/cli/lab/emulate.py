"""``patchlight emulate``: a lab made of software on this machine."""

import functools
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from patchlight.cli.completion import complete_host
from patchlight.cli.connection import complete_lab, lab_option, only_lab
from patchlight.cli.numbers import ANY
from patchlight.cli.policy.options import chosen_policies, policy_options
from patchlight.cli.rendering import Coloured, Column, Table, listing_options, print_json, say
from patchlight.emulation.fabric.lab_state import RUN_ROOT, recorded_labs
from patchlight.emulation.lab.emulated_lab import EmulatedLab, down_lab, lab_status, require_root
from patchlight.testbed.errors import BadInput


@click.group()
def emulate() -> None:
    """Run a lab in software on this machine."""


def _which_lab(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command ``lab``: its argument, or what ``--lab`` or ``PATCHLIGHT_LAB`` say."""

    @click.argument("named", metavar="[LAB]", required=False, shell_complete=complete_lab)
    @lab_option
    @functools.wraps(command)
    def with_lab(named: str | None, lab_name: str | None, **options: Any) -> Any:
        source = click.get_current_context().get_parameter_source("lab_name")
        if source is click.core.ParameterSource.COMMANDLINE and named not in (None, lab_name):
            raise BadInput(f"which lab, {named} or {lab_name}? expected one of them")
        if source is click.core.ParameterSource.ENVIRONMENT and options.get("every"):
            lab_name = None
        return command(lab=named or lab_name, **options)

    return with_lab


@emulate.command()
@click.argument("lab", shell_complete=complete_lab)
@click.option(
    "--scale",
    type=ANY,
    default=1.0,
    help="Divide every rate by this, and the bytes of jobs alike, so that times stay true.",
)
@click.option("--name", help="Call it otherwise than the lab file does.")
@click.option("--replace", is_flag=True, help="Remove a lab of that name first.")
@click.option("--no-controller", is_flag=True, help="Switches learn addresses by themselves.")
@click.option(
    "--agents/--no-agents",
    default=None,
    help="Run an agent on each server. [default: for a controller, up to 16 servers]",
)
@click.option(
    "--workers",
    type=click.Choice(["auto", "docker", "process"]),
    default="auto",
    help="What the agents run workers as.",
)
@click.option("--engine", type=click.Choice(["ryu", "os-ken"]), help="The OpenFlow engine.")
@click.option(
    "--fabric",
    type=click.Choice(["openvswitch", "bridge"]),
    help="What packet switches are made of. [default: as the lab file says]",
)
@click.option(
    "--real-time",
    is_flag=True,
    help="Run the lab before every ordinary process of this machine: its times hold on a busy one.",
)
@policy_options
def up(lab: str, no_controller: bool, **options: Any) -> None:
    """Bring LAB up: a lab file, or the name of a built-in lab."""
    require_root(f"patchlight emulate up {lab}")
    # A polite kill is undone like Ctrl-C.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    began = time.monotonic()
    policies = chosen_policies(options, lab)
    emulated = EmulatedLab.from_file(
        lab, controller=not no_controller, policies=policies, progress=_say, **options
    )
    emulated.up()
    _say(f"up in {time.monotonic() - began:.1f} s")
    called = emulated.lab.name
    hosts = emulated.lab.hosts
    if len(hosts) > 1:
        _say(
            f"try: patchlight emulate exec --lab {called} {hosts[0].name} -- "
            f"ping -c 1 {hosts[-1].nic.address}"
        )


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _say(message: str) -> None:
    say(message, err=True)


@emulate.command()
@_which_lab
@click.option("--all", "every", is_flag=True, help="Every lab that is here.")
def down(lab: str | None, every: bool) -> None:
    """Take LAB down: a name, or the file it was made of."""
    if (lab is None) == (not every):
        raise BadInput("expected the name of a lab, or --all")
    require_root(f"patchlight emulate down {lab or '--all'}")
    for name in recorded_labs() if lab is None else [_known(lab)]:
        removed = down_lab(name)
        _say(f"lab {name} is down" if removed else f"lab {name} was not up")


@emulate.command()
@_which_lab
@listing_options
def status(lab: str | None, as_json: bool) -> None:
    """Say what of LAB is there. Exits with 0 if it is up, else with 1."""
    state = lab_status(only_lab(recorded_labs()) if lab is None else _known(lab))
    state["hosts"] = []
    if "run_dir" in state and (Path(state["run_dir"]) / "lab.yaml").exists():
        emulated = EmulatedLab.attach(state["name"], half_there=True)
        state["hosts"] = [{"name": h.name, "address": h.address} for h in emulated.hosts]
    if as_json:
        print_json(state)
    else:
        _print_status(state)
    if state["state"] != "up":
        click.get_current_context().exit(1)


def _print_status(state: dict[str, Any]) -> None:
    if "run_dir" not in state:
        say(f"lab {state['name']} is {': '.join([state['state'], *state['missing']])}")
        return
    say(
        f"lab {state['name']} is {state['state'].replace('-', ' ')}: {state['source']}, "
        f"scale {state['scale']:g}, packet switches: {state['fabric']} ({state['datapath']})"
    )
    for missing in state["missing"]:
        say(f"  gone: {missing}")
    if state["controller_api"]:
        say(f"controller: http://{state['controller_api']}")
    pid = Column("pid", whole=True, right=True)
    table = Table(Column("process", whole=True), pid, "", Column("log", wide=True))
    for process in state["processes"]:
        how = Coloured("running", "good") if process["running"] else Coloured("gone", "bad")
        table.add_row(process["name"], str(process["pid"]), how, process["log"])
    if state["processes"]:
        table.print()
        say("")
    hosts = Table(Column("host", whole=True), "address")
    for host in state["hosts"]:
        hosts.add_row(host["name"], host["address"])
    hosts.print()


@emulate.command("list")
@listing_options
def list_labs(as_json: bool) -> None:
    """List the labs that are here."""
    labs = [lab_status(name) for name in recorded_labs()]
    if as_json:
        print_json(labs)
        return
    if not labs:
        _say("no emulated lab is up")
        return
    table = Table(Column("lab", whole=True), "state", "source")
    for item in labs:
        state = Coloured(item["state"], "good" if item["state"] == "up" else "caution")
        table.add_row(item["name"], state, item.get("source", ""))
    table.print()


@emulate.command("exec", context_settings={"ignore_unknown_options": True})
@click.argument("host", shell_complete=complete_host)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@lab_option
def execute(host: str, command: tuple[str, ...], lab_name: str | None) -> None:
    """Run a command as HOST: patchlight emulate exec gpu1 -- ping -c 1 192.168.10.12."""
    require_root(f"patchlight emulate exec {host} -- {' '.join(command)}")
    from patchlight.cli.lab.shell import run_attached

    click.get_current_context().exit(run_attached(attached(lab_name).host(host), list(command)))


@emulate.command()
@_which_lab
def shell(lab: str | None) -> None:
    """Open a prompt for LAB, where 'gpu1 ping gpu2' works."""
    require_root(f"patchlight emulate shell {lab or ''}".rstrip())
    from patchlight.cli.lab.shell import LabShell

    LabShell(attached(lab)).run()


def attached(lab: str | None) -> EmulatedLab:
    """The lab of that name, or the only one that is up."""
    return EmulatedLab.attach(only_lab(recorded_labs()) if lab is None else _known(lab))


def _known(lab: str) -> str:
    """The name of the lab meant: one that is here, or the one in the file of that name."""
    if lab in recorded_labs():
        return lab
    if Path(lab).is_file():
        from patchlight.testbed.labfile.reader import read_lab

        return read_lab(lab).name
    if "/" in lab:
        raise BadInput(f"no lab is called {lab!r}, and there is no such file (see {RUN_ROOT})")
    return lab
