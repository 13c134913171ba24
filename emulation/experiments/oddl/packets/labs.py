"""The two labs: four servers on ODDL's light, and the same four on one packet switch."""

from dataclasses import replace

from patchlight.testbed.generate.builder import LabBuilder
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.labfile.reader import load_lab
from patchlight.testbed.paths.light_networks import LightNetwork, light_networks
from patchlight.testbed.units import format_rate

_MODEL = "oddl4"


def light_lab(tuning_time_s: float) -> Lab:
    """The built-in lab ``oddl4``, with transceivers that take so long to be tuned."""
    lab = load_lab(_MODEL)
    servers = []
    for server in lab.servers:
        nics = []
        for nic in server.nics:
            assert nic.transceiver is not None
            transceiver = replace(nic.transceiver, tuning_time_s=tuning_time_s)
            nics.append(replace(nic, transceiver=transceiver))
        servers.append(replace(server, nics=tuple(nics)))
    # Nobody speaks OpenFlow here: there is no packet switch.
    return lab.with_changes(name="oddl-light", servers=tuple(servers), fabric="bridge")


def switch_lab() -> Lab:
    """Its servers, with NICs of the same rate, on one switch that never has to wait."""
    model = load_lab(_MODEL)
    build = LabBuilder("oddl-switch", network=str(model.network), fabric="bridge")
    build.switch("ideal")
    for host in model.hosts:
        rate = format_rate(host.nic.rate_bps)
        build.fibre(build.server(host.server.name, gpus=["Generic"], rate=rate), "ideal")
    return build.lab()


def network_of_all(lab: Lab) -> LightNetwork:
    """The one network of light that all hosts are in, as the lab file has the switches."""
    (network,) = light_networks(lab, {})
    return network


def rate_bps(lab: Lab) -> float:
    """Of the slowest NIC, before any scale."""
    return min(float(host.nic.rate_bps or "inf") for host in lab.hosts)
