"""``patchlight lab show``: a lab and its links, as tables, JSON, a picture or a topology."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from patchlight.cli.lab.files import counts, in_words
from patchlight.cli.lab.topology import keep, lab_and_maps, topology
from patchlight.console import rendering as out
from patchlight.console.connection import which_lab
from patchlight.console.shared import address_option
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.model import Endpoint, Host, Lab, OpticalSwitch
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.lab.topology import FORMATS
from patchlight.testbed.lab.wiring import LightPath, Links, trace_links
from patchlight.testbed.linux.sockets import UNIX
from patchlight.testbed.units import format_rate, format_time

_LINKS = "infragraph-links"
_PLANTS = ("infragraph", _LINKS)


@click.command()
@which_lab
@address_option
@out.listing_options
@click.option(
    "--format",
    "form",
    type=click.Choice(["topology", *FORMATS, *_PLANTS]),
    help="The nodes under each packet switch, for other schedulers: JSON; Slurm's topology.yaml "
    "(25.05 on) or topology.conf; Kueue's Topology and node labels. infragraph: all devices and "
    "fibres; infragraph-links: the present links without OCSs, for simulators.",
)
@click.option(
    "--output",
    "-o",
    type=click.Path(
        dir_okay=False,
        path_type=Path,
    ),
    metavar="FILE",
    help="Draw the lab: .svg, .png or .pdf. With --format, write this file when it changes.",
)
@click.option(
    "--follow",
    is_flag=True,
    help="With --format: update it after each change of circuits.",
)
@click.option(
    "--map",
    "map_file",
    metavar="FILE",
    help="Show these circuits: a file as 'ocs apply' takes it, or - for standard input.",
)
@click.option(
    "--start",
    "at_start",
    is_flag=True,
    help="Show the initial circuits of the lab file.",
)
def show(
    lab: str | None,
    address: str | None,
    as_json: bool,
    form: str | None,
    output: Path | None,
    follow: bool,
    map_file: str | None,
    at_start: bool,
) -> None:
    """Show a lab: devices, hosts, links; or draw it.

    \b
      patchlight lab show ofc2022 --output lab.svg
      patchlight lab show --format slurm --output topology.yaml --follow

    A lab that is up is shown with its present circuits, a lab file with its initial ones. In a
    topology, a node is a server; one with links to several packet switches is under the switch
    with most of its GPUs. While a circuit switch does not answer, the topology is incomplete:
    --output then leaves the file as it is.

    \b
    With --json, an object with these keys (rates in bits per second, null
    without a limit; times in seconds; losses in decibels):
      lab, network, fabric, scale
      devices   name, kind (server | packet-switch | circuit-switch |
                wavelength-switch | coupler | awg | multiplexer), ports,
                fibres, and more by kind
      hosts     name, server, gpu, model, nic, address, mac, rate_bps; and,
                null or empty without a link: peer, peers (several where
                a coupler splits the signal; then peer is null), switch,
                link_rate_bps, loss_db, channel (THz), via (a list of ocs, inp,
                out: all devices on the path)
      links     two-way links: a, b, rate_bps, loss_db, channel, via (from a on)
      circuits  cross-connects by OCS: a-b both ways, a>b one way
      spectra   channels by wavelength switch, as the lab starts
      dark      NICs, and switch ports with a fibre, without a two-way link
    """
    if form is not None and form not in _PLANTS:
        topology(
            lab,
            form,
            output,
            follow,
            address,
            map_file,
            at_start,
        )
        return
    if follow:
        raise BadInput(
            "--follow needs --output FILE and --format topology, slurm, slurm-conf or kueue"
        )
    lab_read, maps, source = lab_and_maps(
        lab,
        address,
        map_file,
        at_start,
    )
    if form is not None:
        from patchlight.testbed.generate.infragraph import infragraph_of

        out.say(f"lab {lab_read.name}: {source}", err=True)
        links = trace_links(lab_read, maps) if form == _LINKS else None
        text = infragraph_of(lab_read, links)
        out.print_document(text) if output is None else keep(output, text)
        return
    if output is not None:
        from patchlight.testbed.draw.drawing import draw_lab

        out.save_picture(output, lambda: draw_lab(lab_read, maps))
        return
    described = describe_lab(lab_read, maps)
    if as_json:
        out.print_json(described)
        return
    network = f", network {lab_read.network}" if lab_read.hosts else ""
    out.say(
        f"{lab_read.name}{network}: {in_words(counts(lab_read))}; {source}\n"
    )
    for table in tables(lab_read, described):
        table.print()
        out.say("")
    out.say(dark_line(described["dark"]))


def describe_lab(lab: Lab, maps: Mapping[str, PortMap]) -> dict[str, Any]:
    """The lab and its links under these maps; the help of ``patchlight lab show`` has the keys."""
    links = trace_links(lab, maps)
    # Every NIC, and packet-switch ports with a fibre.
    ends = dict.fromkeys(
        [*(host.endpoint for host in lab.hosts), *lab.fibre_ends]
    )
    optical = {device.name for device in (*lab.circuit_switches, *lab.sorting)}
    return {
        "lab": lab.name,
        "network": str(lab.network),
        "fabric": lab.fabric,
        "scale": lab.scale,
        "devices": list(_devices(lab)),
        "hosts": [_host(host, links, lab) for host in lab.hosts],
        "links": [
            {"a": str(a), "b": str(b), **_path(links.paths[a])}
            for a, b in links.pairs()
        ],
        "circuits": {
            name: list(port_map.texts) for name, port_map in maps.items()
        },
        "spectra": {
            w.name: list(w.initial.texts) for w in lab.wavelength_switches
        },
        "dark": [
            str(end)
            for end in ends
            if end.device not in optical and not links.peers(end)
        ],
    }


def _devices(lab: Lab) -> Iterable[dict[str, Any]]:
    fibres = Counter(end.device for end in lab.fibre_ends)

    def common(
        name: str,
        kind: str,
        ports: int,
    ) -> dict[str, Any]:
        return {
            "name": name,
            "kind": kind,
            "ports": ports,
            "fibres": fibres[name],
        }

    def optics(switch: OpticalSwitch) -> dict[str, Any]:
        times = {"switching_time_s": switch.switching_time_s}
        return times | {"insertion_loss_db": switch.insertion_loss_db}

    for server in lab.servers:
        yield {
            **common(server.name, "server", len(server.nics)),
            "management": server.management,
            "gpus": [
                {"name": gpu.name, "model": gpu.model} for gpu in server.gpus
            ],
        }
    for switch in lab.packet_switches:
        yield {
            **common(switch.name, "packet-switch", switch.ports),
            "driver": switch.driver,
            "datapath_id": None
            if switch.datapath_id is None
            else f"{switch.datapath_id:016x}",
        }
    for ocs in lab.circuit_switches:
        at = {"driver": ocs.driver, "address": ocs.address}
        yield common(ocs.name, "circuit-switch", ocs.ports) | at | optics(ocs)
    for wss in lab.wavelength_switches:
        shape = {
            "inputs": wss.inputs,
            "outputs": wss.outputs,
            "grid": str(wss.grid),
        }
        yield (
            common(wss.name, "wavelength-switch", wss.ports)
            | shape
            | optics(wss)
        )
    for part in lab.passive_parts:
        yield {
            **common(part.name, part.kind, part.ports),
            "channels": [str(channel) for channel in part.channels],
            "insertion_loss_db": part.loss_db,
        }


def _path(path: LightPath) -> dict[str, Any]:
    return {
        "rate_bps": path.rate_bps,
        "loss_db": round(path.loss_db, 3),
        "channel": None if path.channel is None else str(path.channel),
        "via": [
            {"ocs": ocs, "inp": c.inp, "out": c.out} for ocs, c in path.through
        ],
    }


def _host(
    host: Host,
    links: Links,
    lab: Lab,
) -> dict[str, Any]:
    peer = links.peer(host.endpoint)
    path = _path(links.paths[host.endpoint]) if peer else {"via": []}
    return {
        "name": host.name,
        "server": host.server.name,
        "gpu": host.gpu.name if host.gpu else None,
        "model": host.gpu.model if host.gpu else None,
        "nic": host.nic.name,
        "address": str(host.nic.address),
        "mac": host.nic.mac,
        "rate_bps": host.nic.rate_bps,
        "peer": str(peer) if peer else None,
        "peers": [str(end) for end in links.peers(host.endpoint)],
        "switch": links.switch_of(lab, host.endpoint),
        "link_rate_bps": path.get("rate_bps"),
        "loss_db": path.get("loss_db"),
        "channel": path.get("channel"),
        "via": path["via"],
    }


def tables(lab: Lab, described: Mapping[str, Any]) -> Iterator[out.Table]:
    """A described lab as tables for a terminal."""
    devices = out.Table(
        out.Column("device", whole=True),
        "kind",
        *out.numbers("ports", "fibres"),
        "particulars",
        title="Devices",
    )
    for device in described["devices"]:
        kind = device["kind"].replace("-", " ")
        row = (
            device["name"],
            kind,
            device["ports"],
            device["fibres"],
            _particulars(device),
        )
        devices.add_row(*map(str, row))
    yield devices
    hosts = out.Table(
        out.Column("host", whole=True),
        "GPU",
        out.Column("NIC", wide=True),
        "address",
        *out.numbers("rate"),
        "linked to",
        "through",
        out.Column(
            "loss",
            wide=True,
            right=True,
        ),
        *([out.Column("THz", whole=True)] if lab.coloured else []),
        title="Hosts",
    )
    for host in described["hosts"]:
        up = host["peer"] is not None
        peers = host["peers"]
        linked_to = peers[0] if len(peers) == 1 else f"{len(peers)} ports"
        hosts.add_row(
            host["name"],
            host["model"] or "none",
            host["nic"],
            host["address"],
            format_rate(host["rate_bps"]),
            linked_to if peers else out.Coloured("no link", "bad"),
            _through(host["via"]) if up else "",
            f"{host['loss_db']:g} dB" if up else "",
            *([host["channel"] or ""] if lab.coloured else []),
        )
    yield hosts
    if ways := [
        (name, way)
        for name, ways in described["spectra"].items()
        for way in ways
    ]:
        yield out.Table(
            "device",
            "channel",
            title="Channels",
            rows=ways,
        )
    packet_switches = {switch.name for switch in lab.packet_switches}
    trunks = [
        (
            f"{link['a']} – {link['b']}",
            format_rate(link["rate_bps"]),
            f"{link['loss_db']:g} dB",
            _through(link["via"]),
        )
        for link in described["links"]
        if {Endpoint.parse(link[end]).device for end in "ab"}
        <= packet_switches
    ]
    if trunks:
        numeric = out.numbers("rate", "loss")
        yield out.Table(
            "link",
            *numeric,
            "through",
            title="Links between switches",
            rows=trunks,
        )


def dark_line(dark: Iterable[str]) -> str:
    """One line with the ports without a link, by device."""
    by_device: dict[str, list[str]] = {}
    for end in map(Endpoint.parse, dark):
        by_device.setdefault(end.device, []).append(end.port)
    if not by_device:
        return "All ports have a link."
    return "No link: " + "; ".join(
        f"{name} {', '.join(p)}" for name, p in by_device.items()
    )


def _particulars(device: Mapping[str, Any]) -> str:
    if device["kind"] == "server":
        models = [gpu["model"] for gpu in device["gpus"]]
        counted = [f"{models.count(m)} × {m}" for m in dict.fromkeys(models)]
        at = device["management"] or UNIX
        return ", ".join(
            counted if at.startswith(UNIX) else [*counted, f"agent {at}"]
        )
    if device["kind"] == "packet-switch":
        return (
            f"datapath {device['datapath_id']}"
            if device["datapath_id"]
            else device["driver"]
        )
    if device["kind"] == "wavelength-switch":
        grid = (
            "flexible grid"
            if device["grid"] == "flexible"
            else f"grid {device['grid']}"
        )
        return (
            f"{device['inputs']}×{device['outputs']}, {grid}, switches in "
            f"{format_time(device['switching_time_s'])}, loses {device['insertion_loss_db']:g} dB"
        )
    if "channels" in device:
        channels = device["channels"]
        sorts = f"{channels[0]}–{channels[-1]} THz, " if channels else ""
        return f"{sorts}loses {device['insertion_loss_db']:g} dB"
    return (
        f"{device['driver']} at {device['address']}, switches in "
        f"{format_time(device['switching_time_s'])}, loses {device['insertion_loss_db']:g} dB"
    )


def _through(via: list[dict[str, Any]]) -> str:
    return (
        ", ".join(f"{hop['ocs']} {hop['inp']}→{hop['out']}" for hop in via)
        or "fibre"
    )
