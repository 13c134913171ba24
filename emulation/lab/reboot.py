"""A rehearsal server loses its power, and boots again: its disk and its fibres are as they were."""

import os
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from ipaddress import IPv4Address
from pathlib import Path

from patchlight.emulation.fabric import lab_state as states
from patchlight.emulation.fabric.lab_state import LabState
from patchlight.emulation.fabric.plan import FabricPlan, namespace_name
from patchlight.emulation.fabric.processes import Supervisor
from patchlight.emulation.lab.borrowed_nic import HostNic, HostUnreachable
from patchlight.emulation.servers.groups import remove_groups
from patchlight.emulation.servers.rehearsal import server_service, service_name
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.lab.model import Lab, Server
from patchlight.testbed.linux import namespaces
from patchlight.testbed.linux.processes import process_start

_DEADLINE_S = 30.0


def reboot(lab: Lab, plan: FabricPlan, name: str, say: Callable[[str], None]) -> None:
    """End all that runs on a server at once, and boot it; returns when its sshd answers.

    NICs that workers had are the server's again, as after a reset. ``BadInput`` if there is no
    such server in the lab, or its servers do not boot; ``LabBusy`` while the lab is being made.
    """
    server = lab.device(name)
    if not isinstance(server, Server):
        raise BadInput(f"{name} is not a server of lab {lab.name}")
    with states.lab_lock(lab.name):
        state = states.read_state(lab.name)
        if state is None or state.servers != "ssh" or server.ssh.address is None:
            raise BadInput(
                f"lab {lab.name} has no servers that boot",
                hint="make it with: patchlight emulate up LAB --servers ssh",
            )
        boot_again(lab, plan, state, server, say)


def boot_again(
    lab: Lab, plan: FabricPlan, state: LabState, server: Server, say: Callable[[str], None]
) -> None:
    """Boot one server once all that ran on it has ended; the caller holds the lab's lock."""
    name = server.name
    with ExitStack() as stack:
        home = namespaces.namespace_path(namespace_name(lab.name, name))
        away = list[tuple[HostNic, int]]()
        for nic in [HostNic(h, plan, state) for h in lab.hosts if h.server.name == name]:
            with suppress(HostUnreachable):
                if (place := nic.find()) != home:
                    # Held open: with its namespace, an emulated NIC would go for good.
                    descriptor = namespaces.open_namespace(place)
                    stack.callback(os.close, descriptor)
                    away.append((nic, descriptor))
        _power_off(state, name)
        for nic, descriptor in away:
            nic.move(descriptor, home, several_nics=len(server.nics) > 1)
        state.processes = [each for each in state.processes if each.name != service_name(name)]
        state.save()
        remove_groups(lab.name, name)  # what its containers were in
        address = IPv4Address(server.ssh.address)
        service = server_service(lab.name, Path(state.base), name, address)
        Supervisor(state, say).start([service])


def _power_off(state: LabState, server: str) -> None:
    process = next((p for p in state.processes if p.name == service_name(server)), None)
    if process is None or not states.is_running(process):
        return
    # Its child is the first process of the server: the kernel ends all others with that.
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    with suppress(ProcessLookupError):
        os.kill(process.pid, 9)
    ends = time.monotonic() + _DEADLINE_S
    while any(process_start(int(child)) is not None for child in children):
        if time.monotonic() > ends:
            raise PatchlightError(f"ending the processes of {server}: they will not go")
        time.sleep(0.01)
