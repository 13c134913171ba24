"""``patchlight emulate``: a lab made of software on this machine."""

import math
import os
import signal
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from patchlight.cli.lab import emulated
from patchlight.console import options as opts
from patchlight.console import rendering as out
from patchlight.console.commands import require_root, say_what_stays
from patchlight.console.connection import (
    complete_end,
    complete_host,
    offline_lab,
    which_lab,
)
from patchlight.console.shared import (
    Command,
    LazyGroup,
    complete_lab,
    lab_option,
)
from patchlight.emulation.fabric.lab_state import recorded_labs
from patchlight.emulation.lab.emulated_lab import EmulatedLab, down_lab
from patchlight.emulation.lab.teardown import lab_status, only_processes
from patchlight.testbed.errors import BadInput, nearest
from patchlight.testbed.labfile.reader import find_lab, read_lab
from patchlight.testbed.linux.processes import own_program
from patchlight.testbed.linux.rate_limits import Impairment
from patchlight.testbed.linux.sockets import is_beyond_this_machine
from patchlight.testbed.units import parse_share, parse_size, parse_time

_DEVICE = Command("patchlight.cli.lab.device")


@click.group(
    cls=LazyGroup,
    prefix="emulate ",
    built_in={"ocs": _DEVICE, "fault": _DEVICE},
)
def emulate() -> None:
    """Run a lab in software on this machine."""


@emulate.command()
@click.argument("lab", shell_complete=complete_lab)
@click.option(
    "--scale",
    type=opts.ANY,
    help="Divide all rates and the bytes of jobs by this; times stay true.  "
    "[default: the lab file's, else one that fits]",
)
@click.option("--name", help="The lab's name.  [default: the lab file's]")
@click.option(
    "--replace",
    is_flag=True,
    help="Take down a lab of that name first.",
)
@click.option(
    "--no-controller",
    is_flag=True,
    help="Start no controller; switches learn addresses.",
)
@click.option(
    "--agents/--no-agents",
    default=None,
    help="Run an agent on each server.  [default: with a controller and up to 16 servers]",
)
@click.option(
    "--worker-kind",
    "workers",
    type=click.Choice(["auto", "docker", "process"]),
    default="auto",
    help="Run workers as containers or processes.",
)
@click.option(
    "--engine",
    type=click.Choice(["ryu", "os-ken"]),
    help="The OpenFlow engine.",
)
@click.option(
    "--fabric",
    type=click.Choice(["openvswitch", "bridge"]),
    help="How packet switches are built. [default: the lab file's]",
)
@click.option(
    "--real-time",
    is_flag=True,
    help="Run the lab at real-time priority, for accurate times on a busy machine.",
)
@click.option(
    "--server-kind",
    "servers",
    type=click.Choice(["namespace", "ssh", "docker", "vm", "docker-vm"]),
    default="namespace",
    help="How servers are emulated: namespace, with an agent; ssh or docker, to deploy to, the "
    "latter with Docker; vm or docker-vm, the same as virtual machines with systemd and soft "
    "RoCE.",
)
@click.option(
    "--swap",
    "swapped",
    nargs=2,
    multiple=True,
    metavar="PORT PORT",
    help="Swap the fibres of two ports, for 'lab discover' to find.",
)
@opts.policy_options
def up(
    lab: str,
    no_controller: bool,
    **options: Any,
) -> None:
    """Start an emulated lab from a lab file or a built-in lab.

    If a lab of that name is up, only its dead processes are restarted: jobs continue, and the lab
    keeps its file and options. --replace starts it again from scratch.

    With --server-kind ssh, docker or vm, each server has its own root file system, processes and
    sshd, at the management address in the runtime lab file. No agent runs until you deploy one.
    """
    require_root(f"starting the emulated lab {lab}")
    if (kind := options["servers"]).startswith("docker"):
        options |= {
            "servers": "vm" if kind == "docker-vm" else "ssh",
            "docker": True,
        }
    # A polite kill is undone like Ctrl-C.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    began = time.monotonic()
    lab = offline_lab(lab)
    policies = opts.chosen_policies(options, lab)
    meant_lab = read_lab(find_lab(lab))
    over_tls = meant_lab.controller_openflow_tls
    at = meant_lab.controller_api
    shown = over_tls or bool(at and is_beyond_this_machine(at))
    if (options["servers"] != "namespace" or shown) and not no_controller:
        options |= _credentials(
            options["name"] or meant_lab.name, switches=over_tls
        )
    started = EmulatedLab.from_file(
        lab,
        controller=not no_controller,
        policies=policies,
        progress=_say,
        **options,
    )
    started.up()
    _say(f"up in {time.monotonic() - began:.1f} s")
    called = started.lab.name
    if started.state.ssh_config is not None:
        server = started.lab.servers[0].name
        _say(
            f"the servers have no agent yet; runtime lab file: {started.run_dir}/lab.yaml"
        )
        _say(f"deploy to them: sudo {own_program()} deploy push {called}")
        _say(f"log in: sudo ssh -F {started.state.ssh_config} {server}")
    hosts = started.lab.hosts
    if len(hosts) > 1:
        _say(
            f"try: sudo {own_program()} emulate exec --lab {called} {hosts[0].name} -- "
            f"ping -c 1 {hosts[-1].nic.address}"
        )


def _credentials(lab: str, *, switches: bool) -> dict[str, Path]:
    """Certificates: the controller's for the agents, and its switches' for the controller."""
    from patchlight.controller.access.authority import (
        Authority,
        authority_folder,
    )

    authority = Authority(lab, authority_folder(lab))
    folder = authority.folder.parent
    made = {"tls": authority.for_controller(folder / "controller").folder}
    if switches:
        made["switch_tls"] = authority.for_switches(
            folder / "all-switches"
        ).folder
    return made


def _say(message: str) -> None:
    out.say(message, err=True)


@emulate.command()
@which_lab
@click.option(
    "--all",
    "every",
    is_flag=True,
    help="All emulated labs of this machine.",
)
def down(lab: str | None, every: bool) -> None:
    """Take an emulated lab down."""
    if (lab is None) == (not every):
        raise BadInput("expected the name of a lab, or --all")
    require_root(
        f"taking {'all emulated labs' if every else f'the emulated lab {lab}'} down"
    )
    for name in recorded_labs() if lab is None else [emulated.meant(lab)]:
        if name in recorded_labs():
            _say(f"taking lab {name} down, a few seconds…")
        if not down_lab(name) and lab is not None:
            hint = nearest(name, recorded_labs(), "these are up:")
            raise BadInput(f"no emulated lab {name!r}", hint=hint)
        _say(f"lab {name} is down")
        say_what_stays(name)


@emulate.command()
@which_lab
@out.listing_options
def status(lab: str | None, as_json: bool) -> None:
    """Show the state of an emulated lab, or list them.

    The exit code is 1 if a lab is not up. Without LAB, --json prints a list, of all labs.
    """
    names = recorded_labs() if lab is None else [emulated.meant(lab)]
    states = [_state(name) for name in names]
    if as_json:
        out.print_json(states if lab is None else states[0])
    elif len(states) == 1:
        _print_status(states[0])
    else:
        rows = (
            (state["name"], _up(state["state"]), state.get("source", ""))
            for state in states
        )
        columns = (out.Column("lab", whole=True), "state", "source")
        out.Table(
            *columns,
            rows=rows,
            empty="no emulated lab is up",
        ).print()
    if any(state["state"] != "up" for state in states):
        click.get_current_context().exit(1)


def _state(name: str) -> dict[str, Any]:
    state = lab_status(name)
    state["hosts"] = []
    if "run_dir" in state and (Path(state["run_dir"]) / "lab.yaml").exists():
        started = EmulatedLab.attach(state["name"], half_there=True)
        state["hosts"] = [
            {"name": h.name, "address": h.address} for h in started.hosts
        ]
    return state


_STATES = {"half-there": "partly up", "making": "starting"}


def _up(state: str) -> out.Coloured:
    return out.Coloured(
        _STATES.get(state, state), "good" if state == "up" else "caution"
    )


def _print_status(state: dict[str, Any]) -> None:
    if "run_dir" not in state:
        out.say(
            f"lab {state['name']} is {': '.join([state['state'], *state['missing']])}"
        )
        return
    out.say(
        f"lab {state['name']} is {_STATES.get(state['state'], state['state'])}: {state['source']}, "
        f"scale {state['scale']:g}, packet switches: {state['fabric']} ({state['datapath']})"
    )
    for missing in state["missing"]:
        out.say(f"  stopped: {missing}")
    if state["state"] == "half-there":
        lost = only_processes(state["missing"])
        again = f"sudo {own_program()} emulate up"
        out.say(
            f"start these again: {again} {state['name']}"
            if lost
            else f"rebuild it: {again} {state['source']} --name {state['name']} --replace"
        )
    if state["ssh_config"]:
        out.say(f"servers: sudo ssh -F {state['ssh_config']} SERVER")
    if state["controller_api"]:
        at = state["controller_api"]
        out.say(
            f"controller: {at if at.startswith('unix:') else f'http://{at}'}"
        )
    log = out.Column("log", wide=True)
    table = out.Table(
        out.Column("process", whole=True),
        *out.numbers("pid"),
        "",
        log,
    )
    for process in state["processes"]:
        how = (
            out.Coloured("running", "good")
            if process["running"]
            else out.Coloured("stopped", "bad")
        )
        table.add_row(
            process["name"],
            str(process["pid"]),
            how,
            process["log"],
        )
    if state["processes"]:
        table.print()
        out.say("")
    rows = ((host["name"], host["address"]) for host in state["hosts"])
    out.Table(out.Column("host", whole=True), "address", rows=rows).print()


@emulate.command("exec", context_settings={"ignore_unknown_options": True})
@click.argument(
    "host",
    required=False,
    shell_complete=complete_host,
)
@click.argument(
    "command",
    nargs=-1,
    type=click.UNPROCESSED,
)
@lab_option()
def execute(
    host: str | None,
    command: tuple[str, ...],
    lab_name: str | None,
) -> None:
    """Run a command on a host of an emulated lab.

    \b
      patchlight emulate exec gpu1 -- ping -c 1 192.168.10.12
      patchlight emulate exec gpu1          a shell on gpu1
      patchlight emulate exec               a prompt, where 'gpu1 ping gpu2' works
    """
    require_root(
        f"running a command as {host} of an emulated lab"
        if host
        else "the prompt"
    )
    lab = emulated.attached(lab_name)
    if host is None:
        emulated.LabShell(lab).run()
        return
    words = list(command) or [os.environ.get("SHELL", "/bin/sh")]
    click.get_current_context().exit(
        emulated.run_attached(lab.host(host), words)
    )


@emulate.command()
@click.argument("a", required=False, shell_complete=complete_end)
@click.argument("b", required=False, shell_complete=complete_end)
@click.argument(
    "state",
    type=click.Choice(["up", "down"]),
    required=False,
)
@click.option(
    "--delay",
    type=opts.Quantity(parse_time),
    help="Delay in each direction.",
)
@click.option(
    "--jitter",
    type=opts.Quantity(parse_time),
    help="Variation of the delay.",
)
@click.option(
    "--packet-loss",
    type=opts.Quantity(parse_share),
    help="Share of lost packets, like 0.1%.",
)
@lab_option()
@out.json_option
def link(
    a: str | None,
    b: str | None,
    state: str | None,
    lab_name: str | None,
    as_json: bool,
    **impairment: float | None,
) -> None:
    """Cut, restore or delay a fibre of an emulated lab.

    \b
      patchlight emulate link gpu0 ocs1 down
      patchlight emulate link tor1.7 tor2.7 --delay 5ms --packet-loss 0.1%
      patchlight emulate link                            all fibres

    A and B are hosts, ports or devices at the ends of one fibre; a path through an OCS has two
    fibres. Delay, jitter and loss apply in both directions; those that are not given become 0.

    \b
    With --json, the fibre as it is then: a, b (its ends), up, delay_s,
    jitter_s, packet_loss (a share); without A and B, a list of them.
    """
    require_root("the fibres of an emulated lab")
    lab = emulated.attached(lab_name)
    if a is None:
        states = lab.wires.states(lab.lab.fibres)
        lines = "\n".join(map(emulated.fibre_line, states))
        out.print_answer(
            [emulated.fibre_row(each) for each in states],
            lines,
            as_json=as_json,
        )
        return
    if b is None:
        raise BadInput(f"which fibre of {a}? expected its other end too")
    fibre = lab.wires.between(a, b)
    if state is not None:
        lab.wires.set_up(fibre, up=state == "up")
    if any(value is not None for value in impairment.values()):
        delay, jitter, loss = (
            impairment[k] or 0.0 for k in ("delay", "jitter", "packet_loss")
        )
        lab.wires.impair(fibre, Impairment(delay, jitter, loss))
    found = lab.wires.state(fibre)
    out.print_answer(
        emulated.fibre_row(found), emulated.fibre_line(found), as_json=as_json
    )


@emulate.command()
@click.argument("host", shell_complete=complete_host)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="File to write.  [default: HOST.pcap]",
)
@click.option(
    "--for",
    "seconds",
    type=opts.Quantity(parse_time),
    help="Duration, like 10s.  [default: until Ctrl-C]",
)
@click.option(
    "--frames",
    type=click.IntRange(1),
    default=10_000_000,
    help="Stop after this many frames.",
)
@click.option(
    "--size",
    type=opts.Quantity(parse_size),
    default="1GiB",
    help="Stop at this file size.",
)
@lab_option()
@out.json_option
def capture(
    host: str,
    output: Path | None,
    seconds: float | None,
    frames: int,
    size: int,
    lab_name: str | None,
    as_json: bool,
) -> None:
    """Capture a host's packets into a pcap file.

    It records both directions of the host's fibre, until a limit is reached or you press Ctrl-C.

    \b
    With --json, what was written: file, frames, size_bytes, dropped (frames that arrived too fast).
    """
    require_root(f"capturing packets of {host}")
    lab = emulated.attached(lab_name)
    path = output or Path(f"{lab.host(host).name}.pcap")
    _say(f"capturing {lab.host(host).name} into {path}")
    limits = {"most_frames": frames, "most_bytes": size}
    done = lab.capture(
        host,
        path,
        math.inf if seconds is None else seconds,
        **limits,
    )
    missed = f", {done.dropped} more arrived too fast" if done.dropped else ""
    text = f"wrote {path}: {done.frames} frames{missed}"
    out.print_answer(
        {"file": str(path), **asdict(done)}, text, as_json=as_json
    )


emulate.add_command(emulated.tune)
