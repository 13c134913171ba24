"""The runtime lab: the lab of the file, with addresses at which the emulated devices answer."""

from __future__ import annotations

from dataclasses import replace

from patchlight.emulation.fabric.lab_state import recorded_labs, run_dir
from patchlight.testbed.lab import Lab
from patchlight.testbed.linux.sockets import free_ports


def runtime_lab(lab: Lab) -> Lab:
    """``lab`` as the controller and the agents of its emulation will know it.

    Agents answer on Unix sockets of the runtime directory, circuit switches and the
    controller's API on free loopback ports. Switches reach the controller inside their own
    namespace, where its OpenFlow port is always free.
    """
    directory = run_dir(lab.name)
    # The usual port is for the only lab; two that come up at once must not race for it.
    alone = not set(recorded_labs()) - {lab.name}
    usual = int(lab.controller_api.rpartition(":")[2]) if alone else 0
    api, *ports = free_ports(1 + len(lab.circuit_switches), usual)
    return lab.with_changes(
        servers=tuple(
            replace(
                server,
                management=f"unix:{directory}/agents/{server.name}.sock",
                # The emulated interface is called by the NIC's name, whatever the real one is.
                nics=tuple(replace(nic, interface=None) for nic in server.nics),
            )
            for server in lab.servers
        ),
        circuit_switches=tuple(
            replace(switch, address=f"127.0.0.1:{port}")
            for switch, port in zip(lab.circuit_switches, ports, strict=True)
        ),
        controller_api=f"127.0.0.1:{api}",
        controller_openflow=f"127.0.0.1:{lab.controller_openflow.rpartition(':')[2]}",
    )
