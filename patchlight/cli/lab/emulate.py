"""``patchlight emulate``: a lab made of software on this machine."""

import math
import signal
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from patchlight.cli.lab import emulated
from patchlight.console import options as opts
from patchlight.console import rendering as out
from patchlight.console.commands import complete_lab, lab_option, require_root
from patchlight.console.connection import complete_host, offline_lab, which_lab
from patchlight.emulation.fabric.lab_state import recorded_labs
from patchlight.emulation.lab.emulated_lab import EmulatedLab, down_lab
from patchlight.emulation.lab.teardown import lab_status, only_processes
from patchlight.testbed.errors import BadInput, nearest
from patchlight.testbed.labfile.reader import find_lab, read_lab
from patchlight.testbed.linux.processes import own_program
from patchlight.testbed.linux.rate_limits import Impairment
from patchlight.testbed.linux.sockets import is_beyond_this_machine
from patchlight.testbed.units import parse_share, parse_size, parse_time


@click.group()
def emulate() -> None:
    """Run a lab in software on this machine."""


@emulate.command()
@click.argument("lab", shell_complete=complete_lab)
@click.option(
    "--scale",
    type=opts.ANY,
    help="Divide rates and the bytes of jobs by this, so that times stay true.  "
    "[default: the lab file's, or what this machine carries]",
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
@click.option(
    "--servers",
    type=click.Choice(["namespace", "ssh"]),
    default="namespace",
    help="What servers are: a network and an agent, or a machine to deploy to over SSH.",
)
@click.option(
    "--docker", is_flag=True, help="With --servers ssh: each server has a Docker engine of its own."
)
@click.option(
    "--swap",
    "swapped",
    nargs=2,
    multiple=True,
    metavar="PORT PORT",
    help="Plug the fibres of two ports in the wrong way round: 'patchlight lab discover' finds it.",
)
@opts.policy_options
def up(lab: str, no_controller: bool, **options: Any) -> None:
    """Bring LAB up: a lab file, or the name of a built-in lab.

    Of a lab that is up but has lost processes, those are started and all else goes on: jobs too.
    It keeps the lab file and the options that it was made with; --replace makes it from scratch.

    With --servers ssh each server has a root file system, processes and an sshd of its own, and
    answers at the management address that the runtime lab file says. No agent runs on it until
    one is deployed; the controller runs, and finds the agents silent.
    """
    require_root(f"making the emulated lab {lab}")
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
    if (options["servers"] == "ssh" or shown) and not no_controller:
        options |= _credentials(options["name"] or meant_lab.name, switches=over_tls)
    started = EmulatedLab.from_file(
        lab, controller=not no_controller, policies=policies, progress=_say, **options
    )
    started.up()
    _say(f"up in {time.monotonic() - began:.1f} s")
    called = started.lab.name
    if started.state.ssh_config is not None:
        server = started.lab.servers[0].name
        _say(f"no agent runs on the servers yet; runtime lab file: {started.run_dir}/lab.yaml")
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
    from patchlight.controller.access.authority import Authority, authority_folder

    authority = Authority(lab, authority_folder(lab))
    folder = authority.folder.parent
    made = {"tls": authority.for_controller(folder / "controller").folder}
    if switches:
        made["switch_tls"] = authority.for_switches(folder / "all-switches").folder
    return made


def _say(message: str) -> None:
    out.say(message, err=True)


@emulate.command()
@which_lab
@click.option("--all", "every", is_flag=True, help="Every lab that is here.")
def down(lab: str | None, every: bool) -> None:
    """Take LAB down: a name, or the file it was made of."""
    if (lab is None) == (not every):
        raise BadInput("expected the name of a lab, or --all")
    require_root(f"taking {'all emulated labs' if every else f'the emulated lab {lab}'} down")
    for name in recorded_labs() if lab is None else [emulated.meant(lab)]:
        if not down_lab(name) and lab is not None:
            hint = nearest(name, recorded_labs(), "the labs here:")
            raise BadInput(f"no emulated lab is called {name!r}: nothing was done", hint=hint)
        _say(f"lab {name} is down")


@emulate.command()
@which_lab
@out.listing_options
def status(lab: str | None, as_json: bool) -> None:
    """Say what of LAB is there. Exits with 0 if it is up, else with 1."""
    state = lab_status(emulated.meant(lab))
    state["hosts"] = []
    if "run_dir" in state and (Path(state["run_dir"]) / "lab.yaml").exists():
        started = EmulatedLab.attach(state["name"], half_there=True)
        state["hosts"] = [{"name": h.name, "address": h.address} for h in started.hosts]
    out.print_answer(state, lambda: _print_status(state), as_json=as_json)
    if state["state"] != "up":
        click.get_current_context().exit(1)


def _print_status(state: dict[str, Any]) -> None:
    if "run_dir" not in state:
        out.say(f"lab {state['name']} is {': '.join([state['state'], *state['missing']])}")
        return
    out.say(
        f"lab {state['name']} is {state['state'].replace('-', ' ')}: {state['source']}, "
        f"scale {state['scale']:g}, packet switches: {state['fabric']} ({state['datapath']})"
    )
    for missing in state["missing"]:
        out.say(f"  gone: {missing}")
    if state["state"] == "half-there":
        lost = only_processes(state["missing"])
        again = f"sudo {own_program()} emulate up"
        out.say(
            f"start what is gone: {again} {state['name']}"
            if lost
            else f"make it again: {again} {state['source']} --name {state['name']} --replace"
        )
    if state["ssh_config"]:
        out.say(f"servers: sudo ssh -F {state['ssh_config']} SERVER")
    if state["controller_api"]:
        at = state["controller_api"]
        out.say(f"controller: {at if at.startswith('unix:') else f'http://{at}'}")
    log = out.Column("log", wide=True)
    table = out.Table(out.Column("process", whole=True), *out.numbers("pid"), "", log)
    for process in state["processes"]:
        how = out.Coloured("running", "good") if process["running"] else out.Coloured("gone", "bad")
        table.add_row(process["name"], str(process["pid"]), how, process["log"])
    if state["processes"]:
        table.print()
        out.say("")
    rows = ((host["name"], host["address"]) for host in state["hosts"])
    out.Table(out.Column("host", whole=True), "address", rows=rows).print()


@emulate.command("list")
@out.listing_options
def list_labs(as_json: bool) -> None:
    """List the labs that are here."""
    labs = [lab_status(name) for name in recorded_labs()]
    table = out.Table(out.Column("lab", whole=True), "state", "source")
    for item in labs:
        state = out.Coloured(item["state"], "good" if item["state"] == "up" else "caution")
        table.add_row(item["name"], state, item.get("source", ""))
    shown = table if labs else lambda: _say("no emulated lab is up")
    out.print_answer(labs, shown, as_json=as_json)


@emulate.command("exec", context_settings={"ignore_unknown_options": True})
@click.argument("host", shell_complete=complete_host)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@lab_option()
def execute(host: str, command: tuple[str, ...], lab_name: str | None) -> None:
    """Run a command as HOST: patchlight emulate exec gpu1 -- ping -c 1 192.168.10.12."""
    require_root(f"running a command as {host} of an emulated lab")
    click.get_current_context().exit(
        emulated.run_attached(emulated.attached(lab_name).host(host), list(command))
    )


@emulate.command()
@which_lab
def shell(lab: str | None) -> None:
    """Open a prompt for LAB, where 'gpu1 ping gpu2' works."""
    require_root("the prompt of an emulated lab")
    emulated.LabShell(emulated.attached(lab)).run()


@emulate.command()
@click.argument("a")
@click.argument("b")
@click.argument("state", type=click.Choice(["up", "down"]), required=False)
@click.option("--delay", type=opts.Quantity(parse_time), help="Hold each packet so long, each way.")
@click.option("--jitter", type=opts.Quantity(parse_time), help="By how much that varies.")
@click.option("--packet-loss", type=opts.Quantity(parse_share), help="Lose this share, like 0.1%.")
@lab_option()
@out.json_option
def link(
    a: str,
    b: str,
    state: str | None,
    delay: float | None,
    jitter: float | None,
    packet_loss: float | None,
    lab_name: str | None,
    as_json: bool,
) -> None:
    """Cut, splice, delay or show the fibre between A and B: hosts, ports or devices.

    \b
      patchlight emulate link gpu0 ocs1 down
      patchlight emulate link tor1.7 tor2.7 --delay 5ms --packet-loss 0.1%

    Delay, jitter and loss are those of the fibre in both directions; what is not given becomes
    none, and rates stay. A way through an OCS is two fibres.

    \b
    With --json, the fibre as it is then: a, b (its ends), up, delay_s,
    jitter_s, packet_loss (a share).
    """
    require_root(f"the fibre between {a} and {b} of an emulated lab")
    wires = emulated.attached(lab_name).wires
    fibre = wires.between(a, b)
    if state is not None:
        wires.set_up(fibre, up=state == "up")
    if (delay, jitter, packet_loss) != (None, None, None):
        wires.impair(fibre, Impairment(delay or 0.0, jitter or 0.0, packet_loss or 0.0))
    found = wires.state(fibre)
    out.print_answer(emulated.fibre_row(found), emulated.fibre_line(found), as_json=as_json)


@emulate.command()
@click.argument("server")
@lab_option()
def reboot(server: str, lab_name: str | None) -> None:
    """Cut the power of SERVER, one that has an sshd, and boot it again.

    All that runs there ends at once. Its disk and its fibres stay as they are.
    """
    require_root(f"rebooting {server} of an emulated lab")
    from patchlight.emulation.lab.services import reboot as reboot_server

    lab = emulated.attached(lab_name)
    reboot_server(lab.lab, lab.plan, server, _say)
    _say(f"{server} has booted")


@emulate.command()
@click.argument("host")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File to write.")
@click.option("--for", "seconds", type=opts.Quantity(parse_time), help="How long, like 10s.")
@click.option("--frames", type=click.IntRange(1), default=10_000_000, help="At most so many.")
@click.option(
    "--size", type=opts.Quantity(parse_size), default="1GiB", help="At most so long a file."
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
    """Record what the fibre of HOST carries, both ways, as a pcap file.

    It ends with the time, the frames, the size or Ctrl-C, whichever comes first.

    \b
    With --json, what was written: file, frames, size_bytes, dropped (frames
    that came too fast).
    """
    require_root(f"capturing what {host} of an emulated lab sends")
    lab = emulated.attached(lab_name)
    path = output or Path(f"{lab.host(host).name}.pcap")
    _say(f"capturing {lab.host(host).name} into {path}")
    limits = {"most_frames": frames, "most_bytes": size}
    done = lab.capture(host, path, math.inf if seconds is None else seconds, **limits)
    missed = f", {done.dropped} more came too fast" if done.dropped else ""
    text = f"wrote {path}: {done.frames} frames{missed}"
    out.print_answer({"file": str(path), **asdict(done)}, text, as_json=as_json)


emulate.add_command(emulated.tune)
