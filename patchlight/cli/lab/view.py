"""What ``patchlight lab`` says of a lab: as JSON (stable) and as tables."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from patchlight.console.rendering import Coloured, Column, Table
from patchlight.testbed.lab.model import Endpoint, Host, Lab, PacketSwitch
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.lab.wiring import LightPath, Links, trace_links
from patchlight.testbed.units import format_rate, format_time


def maps_as_json(maps: Mapping[str, PortMap]) -> dict[str, list[str]]:
    """The maps as map files have them."""
    return {name: list(port_map.texts) for name, port_map in maps.items()}


def describe_lab(lab: Lab, maps: Mapping[str, PortMap]) -> dict[str, Any]:
    """The lab and its links under these maps, in plain JSON values: the help of ``patchlight
    lab show`` has the keys."""
    links = trace_links(lab, maps)
    return {
        "lab": lab.name,
        "network": str(lab.network),
        "fabric": lab.fabric,
        "scale": lab.scale,
        "devices": list(_devices(lab)),
        "hosts": [_host(host, links, lab) for host in lab.hosts],
        "links": [{"a": str(a), "b": str(b), **_path(links.paths[a])} for a, b in links.pairs()],
        "circuits": maps_as_json(maps),
        "spectra": {w.name: list(w.initial.texts) for w in lab.wavelength_switches},
        "dark": [str(end) for end in dark_ports(lab, links)],
    }


def dark_ports(lab: Lab, links: Links) -> tuple[Endpoint, ...]:
    """NICs, and packet-switch ports with a fibre, whose light and somebody's meet nowhere now."""
    optical = {device.name for device in (*lab.circuit_switches, *lab.sorting)}
    ends = [host.endpoint for host in lab.hosts]
    nics = set(ends)
    ends += [end for end in lab.fibre_ends if end not in nics]
    return tuple(end for end in ends if end.device not in optical and not links.peers(end))


def _devices(lab: Lab) -> Iterable[dict[str, Any]]:
    fibres = Counter(end.device for end in lab.fibre_ends)

    def common(name: str, kind: str, ports: int) -> dict[str, Any]:
        return {"name": name, "kind": kind, "ports": ports, "fibres": fibres[name]}

    for server in lab.servers:
        yield {
            **common(server.name, "server", len(server.nics)),
            "management": server.management,
            "gpus": [{"name": gpu.name, "model": gpu.model} for gpu in server.gpus],
        }
    for switch in lab.packet_switches:
        datapath_id = f"{switch.datapath_id:016x}"
        yield {**common(switch.name, "packet-switch", switch.ports), "datapath_id": datapath_id}
    for ocs in lab.circuit_switches:
        particulars = ("driver", "address", "switching_time_s", "insertion_loss_db")
        yield {
            **common(ocs.name, "circuit-switch", ocs.ports),
            **{name: getattr(ocs, name) for name in particulars},
        }
    for wss in lab.wavelength_switches:
        yield {
            **common(wss.name, "wavelength-switch", wss.ports),
            "inputs": wss.inputs,
            "outputs": wss.outputs,
            "grid": str(wss.grid),
            "switching_time_s": wss.switching_time_s,
            "insertion_loss_db": wss.insertion_loss_db,
        }
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
        "via": [{"ocs": ocs, "inp": c.inp, "out": c.out} for ocs, c in path.through],
    }


def _host(host: Host, links: Links, lab: Lab) -> dict[str, Any]:
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


def tables(lab: Lab, maps: Mapping[str, PortMap]) -> list[Table]:
    """The same as tables for a terminal."""
    described = describe_lab(lab, maps)
    counted = (Column(name, whole=True, right=True) for name in ("ports", "fibres"))
    name = Column("device", whole=True)
    devices = Table(name, "kind", *counted, "particulars", title="Devices")
    for device in described["devices"]:
        kind = device["kind"].replace("-", " ")
        row = (device["name"], kind, device["ports"], device["fibres"], _particulars(device))
        devices.add_row(*map(str, row))
    hosts = Table(
        Column("host", whole=True),
        "GPU",
        Column("NIC", wide=True),
        "address",
        Column("rate", whole=True, right=True),
        "lit onto",
        "through",
        Column("loss", wide=True, right=True),
        *([Column("THz", whole=True)] if lab.coloured else []),
        title="Hosts",
    )
    for host in described["hosts"]:
        up = host["peer"] is not None
        hosts.add_row(
            host["name"],
            host["model"] or "none",
            host["nic"],
            host["address"],
            format_rate(host["rate_bps"]),
            _lit_onto(host["peers"]),
            _through(host["via"]) if up else "",
            f"{host['loss_db']:g} dB" if up else "",
            *([host["channel"] or ""] if lab.coloured else []),
        )
    shown = [devices, hosts]
    if ways := [(name, way) for name, ways in described["spectra"].items() for way in ways]:
        spectra = Table("device", "channel", title="Channels")
        for name, way in ways:
            spectra.add_row(name, way)
        shown.append(spectra)
    between = [link for link in described["links"] if _joins_switches(lab, link)]
    if between:
        numbers = (Column(name, whole=True, right=True) for name in ("rate", "loss"))
        trunks = Table("link", *numbers, "through", title="Links between switches")
        for link in between:
            ends, loss = f"{link['a']} – {link['b']}", f"{link['loss_db']:g} dB"
            trunks.add_row(ends, format_rate(link["rate_bps"]), loss, _through(link["via"]))
        shown.append(trunks)
    return shown


def _lit_onto(peers: Sequence[str]) -> str | Coloured:
    if not peers:
        return Coloured("dark", "bad")
    return peers[0] if len(peers) == 1 else f"{len(peers)} ports"


def dark_line(lab: Lab, maps: Mapping[str, PortMap]) -> str:
    """One line that names the dark ports, ports of one device together."""
    by_device: dict[str, list[str]] = {}
    for end in dark_ports(lab, trace_links(lab, maps)):
        by_device.setdefault(end.device, []).append(end.port)
    if not by_device:
        return "No port is dark."
    return "Dark: " + "; ".join(f"{name} {', '.join(p)}" for name, p in by_device.items())


def _particulars(device: Mapping[str, Any]) -> str:
    if device["kind"] == "server":
        models = [gpu["model"] for gpu in device["gpus"]]
        counted = [f"{models.count(m)} × {m}" for m in dict.fromkeys(models)]
        agent = [f"agent {device['management']}"] if device["management"] else []
        return ", ".join(counted + agent)
    if device["kind"] == "packet-switch":
        return f"datapath {device['datapath_id']}"
    if device["kind"] == "wavelength-switch":
        grid = "flexible grid" if device["grid"] == "flexible" else f"grid {device['grid']}"
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
    return ", ".join(f"{hop['ocs']} {hop['inp']}→{hop['out']}" for hop in via) or "fibre"


def _joins_switches(lab: Lab, link: Mapping[str, Any]) -> bool:
    ends = (Endpoint.parse(link["a"]), Endpoint.parse(link["b"]))
    return all(isinstance(lab.device(end.device), PacketSwitch) for end in ends)
