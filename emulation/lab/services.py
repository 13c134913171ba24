"""Runs the processes of an emulated lab, and reboots servers. The controller starts when optical
switches, GPUs, agents and packet switches answer."""

import os
import select
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

from patchlight.client.client import ControllerClient
from patchlight.emulation.fabric import build, links
from patchlight.emulation.fabric import lab_state as states
from patchlight.emulation.fabric.lab_state import LabState
from patchlight.emulation.fabric.plan import (
    FabricPlan,
    fabric_namespace,
    is_machine,
    namespace_name,
)
from patchlight.emulation.fabric.processes import (
    LabService,
    Supervisor,
    nursery,
)
from patchlight.emulation.fabric.telemetry import telemetry_services
from patchlight.emulation.lab.hosts import HostNic, HostUnreachable
from patchlight.emulation.lab.options import (
    LabOptions,
    driven_switches,
    has_agents,
    has_controller,
)
from patchlight.emulation.servers.rehearsal import server_service
from patchlight.emulation.servers.server import remove_groups, service_name
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.lab.model import Lab, Server
from patchlight.testbed.lab.tuning import LIGHT_SOCKET
from patchlight.testbed.linux import (
    docker_engine,
    namespaces,
    quoted_deploy_file,
    rate_limits,
)
from patchlight.testbed.linux.sockets import (
    UNIX,
    is_beyond_this_machine,
    listen,
    unix_socket_answers,
)
from patchlight.testbed.wire.lab_api import system_socket
from patchlight.testbed.wire.rest.lab import Status

# Modules that devices, agents and a controller import at their start.
_IMPORTS = (
    "patchlight.agents.__main__",
    "patchlight.agents.api",
    "patchlight.agents.workers.docker",
    "patchlight.agents.workers.forking",
    "patchlight.cli.controller",
    "patchlight.controller.api.app",
    "patchlight.controller.service",
    "patchlight.emulation.lab.gpus",
    "patchlight.emulation.optical.__main__",
    "patchlight.testbed.labfile.reader",
    "patchlight.testbed.linux.http_server",
    "pydantic.v1",  # FastAPI imports it for each route
    "pyroute2",
)


_POWER_OFF_S = 30.0


class LabServices:
    """The processes of one lab."""

    def __init__(
        self,
        lab: Lab,
        state: LabState,
        options: LabOptions,
        say: Callable[[str], None],
    ) -> None:
        self._lab = lab
        self._state = state
        self._options = options
        self._say = say
        self._run_dir = state.run_dir
        self._client: ControllerClient | None = None
        self.has_controller = has_controller(lab, options)
        self._has_agents = has_agents(lab, options)
        self.datapath = (
            build.datapath_type() if lab.fabric == "openvswitch" else "bridge"
        )

    def check_requirements(self) -> None:
        """Raise, before anything is made, if a program or kernel feature is missing."""
        if any(
            fibre.delay_s or fibre.packet_loss for fibre in self._lab.fibres
        ):
            rate_limits.check_supported()
        if self._options.servers != "vm" and any(
            h.nic.vlan for h in self._lab.hosts
        ):
            links.check_vlans()
        if self.datapath != "bridge" and not all(
            map(is_machine, self._lab.packet_switches)
        ):
            build.check_installed()
        if not self.has_controller:
            return
        options = self._options
        with_tls = self._lab.controller_openflow_tls
        at = self._lab.controller_api
        shown = with_tls or is_beyond_this_machine(at)
        if (with_tls and not options.switch_tls) or (
            shown and not options.tls
        ):
            raise BadInput(
                f"lab {self._lab.name} has OpenFlow over TLS, or its API at {at}, which other "
                "machines can reach: its controller and switches need certificates",
                hint="'patchlight emulate up' creates them; in Python pass their folders with "
                "tls= "
                "and switch_tls= ('deploy certificates --for controller --for switches')",
            )
        # Fails if another program listens there, or the address is not local.
        listen(at).close()

    def expect(self) -> None:
        """Start what takes long while the links are made."""
        if self._has_agents or self.has_controller:
            nursery(_IMPORTS)

    def start(
        self,
        plan: FabricPlan,
        supervisor: Supervisor,
        servers: Iterable[LabService] = (),
    ) -> None:
        """Start everything that is not running, and ``servers``; return when all of it answers."""
        light = [*self._light()]
        optical = [*self._optical_switches()]
        if supervisor.missing(light):
            # Optical switches report their maps to it only at their start.
            supervisor.end(optical)
            supervisor.start(light)
        supervisor.launch(
            [
                *optical,
                *self._gpus(),
                *self._agents(),
                *servers,
            ]
        )
        for services in (
            telemetry_services(self._lab, self._run_dir)
            if self.has_controller
            else ()
        ):
            supervisor.start(services)
        if not plan.in_fabric or self.datapath == "bridge":
            if self.has_controller:
                self._launch_controller(supervisor)
            supervisor.wait()
            self._wait_for_switches(plan, supervisor)
            return
        switches = build.OpenVSwitch(
            self._run_dir / "ovs",
            namespaces.namespace_path(plan.fabric),
            keeps_rates=any(end.rate_bps is not None for end in plan.ends),
        )
        if self._state.phase != "up":
            count = len(plan.in_fabric)
            self._say(
                f"starting Open vSwitch ({self.datapath} datapath), {count} switches"
            )
        is_new = switches.start(supervisor.start)
        if self.has_controller:
            # It starts while the switches get their ports, and receives its address later.
            self._launch_controller(supervisor)
        if is_new:
            switches.add_bridges(
                plan, self.datapath, learning=not self.has_controller
            )
            build.limit_switch_ports(plan, plan.in_fabric)
        else:
            switches.check_ports(plan)
        supervisor.wait()
        if self.has_controller:
            tls = (
                self._options.switch_tls
                if self._lab.controller_openflow_tls
                else None
            )
            if is_new:
                switches.set_controller(
                    plan, self._lab.controller_openflow, tls
                )
        self._wait_for_switches(plan, supervisor)
        # Open vSwitch reconfigures its ports at every database change.
        build.verify_switch_ports(plan)

    def _wait_for_switches(
        self, plan: FabricPlan, supervisor: Supervisor
    ) -> None:
        if self.has_controller and plan.bridges:
            supervisor.wait_for_all(
                "controller",
                self._connected_switches,
                sum(not bridge.learns for bridge in plan.bridges),
                "packet switches connected to it",
            )

    def _launch_controller(self, supervisor: Supervisor) -> None:
        options = {
            "--state": self._run_dir / "controller",
            "--openflow-netns": namespaces.namespace_path(
                fabric_namespace(self._lab.name)
            ),
            "--api": self._lab.controller_api,
            "--engine": self._options.engine,
            "--tls": self._options.tls,
        }
        controller = self._module(
            "controller",
            "patchlight controller run",
            options,
            ready=lambda: self._controller_status() is not None,
        )
        if supervisor.missing([controller]):
            self._say(f"starting the controller at {self._lab.controller_api}")
            supervisor.launch([controller])

    @property
    def api(self) -> str:
        """Where local root reaches the controller, without a token."""
        at = self._lab.controller_api
        return (
            f"{UNIX}{system_socket(self._lab.name)}"
            if is_beyond_this_machine(at)
            else at
        )

    def _controller_status(self) -> "Status | None":
        if self._client is None:
            self._client = ControllerClient(self.api, deadline_s=2)
        with suppress(PatchlightError):
            status = self._client.status()
            return status if status.lab == self._lab.name else None
        return None

    def _connected_switches(self) -> int:
        status = self._controller_status()
        return (
            0
            if status is None
            else sum(bool(s.connected) for s in status.switches)
        )

    def _optical_switches(self) -> Iterator[LabService]:
        directory = self._run_dir / "optical"
        light = self._run_dir / LIGHT_SOCKET
        for switch in driven_switches(self._lab):
            directory.mkdir(
                mode=0o700,
                exist_ok=True,
            )
            ready_file = directory / f"{switch.name}.address"
            options = {
                "--ocs": switch.name,
                "--listen": switch.address,
                "--light": light if self._lab.coloured else "",
                "--netns": ""
                if self._lab.coloured
                else namespace_name(self._lab.name, switch.name),
                "--state": directory / f"{switch.name}.json",
                "--control": directory / f"{switch.name}.control",
                "--ready-file": ready_file,
            }
            yield self._module(
                switch.name,
                "patchlight.emulation.optical",
                options,
                ready=ready_file.exists,
                announces=ready_file,
            )

    def _light(self) -> Iterator[LabService]:
        if not self._lab.coloured:
            return
        path = self._run_dir / LIGHT_SOCKET
        path.parent.mkdir(
            mode=0o700,
            exist_ok=True,
        )
        yield self._module(
            "light",
            "patchlight.emulation.light",
            {"--socket": path},
            ready=lambda: unix_socket_answers(path),
        )

    def _gpus(self) -> Iterator[LabService]:
        # Only a server with its own root file system has just its GPUs in /dev.
        by_server = self._options.servers == "ssh"
        folder = self._run_dir / "gpus"
        sockets = [
            folder
            / (server.name if by_server else "")
            / f"{server.name}.{gpu.name}.sock"
            for server in self._lab.servers
            for gpu in server.gpus
        ]
        if (self._has_agents or by_server) and sockets:
            # Forked workers use their sockets as other users.
            folder.mkdir(
                mode=0o711,
                exist_ok=True,
            )
            yield self._module(
                "gpus",
                "patchlight.emulation.lab.gpus",
                {"--dir": folder, "--by-server": by_server},
                ready=lambda: all(
                    unix_socket_answers(path) for path in sockets
                ),
            )

    def _agents(self) -> Iterator[LabService]:
        if not self._has_agents:
            return
        workers = self._workers()
        forks = (
            self._run_dir / "workers.sock" if workers == "process" else None
        )
        if forks is not None:
            yield self._module(
                "workers",
                "patchlight.agents.workers.forking",
                {"--socket": forks},
                ready=forks.exists,
                announces=forks,
            )
        for server in self._lab.servers:
            assert server.management is not None
            path = Path(server.management.removeprefix("unix:"))
            path.parent.mkdir(
                mode=0o711,
                parents=True,
                exist_ok=True,
            )
            options = {
                "--server": server.name,
                "--listen": server.management,
                "--worker-kind": workers,
                "--gpu-source": f"socket:{self._run_dir / 'gpus'}",
                "--fork-from": forks,
                "--state": self._run_dir / "agents" / server.name,
                "--light": self._run_dir / LIGHT_SOCKET
                if self._lab.coloured
                else None,
            }
            yield self._module(
                f"agent-{server.name}",
                "patchlight.agents",
                options,
                namespace=namespaces.namespace_path(
                    namespace_name(self._lab.name, server.name)
                ),
                ready=partial(unix_socket_answers, path),
            )

    def _workers(self) -> str:
        """Whether ``auto`` means Docker (if it has the workers' image) or processes."""
        if self._options.workers != "auto":
            return self._options.workers
        from patchlight.agents.workers.contract import DEFAULT_IMAGE

        if docker_engine.has_image(DEFAULT_IMAGE):
            return "docker"
        if docker_engine.answers():
            self._say(
                f"workers run as processes: image {DEFAULT_IMAGE} not found (make it: sudo bash "
                f"{quoted_deploy_file('worker-image.sh')})"
            )
        else:
            self._say(
                "workers run as processes: no Docker engine answers (for containers: apt install "
                "docker.io, then 'emulate up --replace')"
            )
        return "process"

    def _module(
        self,
        name: str,
        command: str,
        options: Mapping[str, object],
        *,
        ready: Callable[[], bool],
        announces: Path | None = None,
        namespace: Path | None = None,
    ) -> LabService:
        argv = [
            sys.executable,
            "-m",
            *command.split(),
            f"--lab={self._run_dir / 'lab.yaml'}",
        ]
        argv += [
            o if v is True else f"{o}={v}" for o, v in options.items() if v
        ]
        return LabService(
            name,
            argv,
            ready,
            namespace,
            imports=_IMPORTS,
            announces=announces,
        )


def reboot(
    lab: Lab,
    plan: FabricPlan,
    name: str,
    say: Callable[[str], None],
) -> None:
    """Cut a server's power, boot it, and return when its sshd answers; it gets workers' NICs back.
    ``BadInput`` for an unknown server; ``LabBusy`` while the lab is being made."""
    server = lab.device(name)
    if not isinstance(server, Server):
        raise BadInput(f"{name} is not a server of lab {lab.name}")
    with states.lab_lock(lab.name):
        state = states.read_state(lab.name)
        if state is None or state.ssh_config is None:
            raise BadInput(
                f"lab {lab.name} has no servers that can reboot",
                hint="start it with: patchlight emulate up LAB --server-kind ssh (or docker, vm)",
            )
        boot_again(
            lab,
            plan,
            state,
            server,
            say,
        )


def boot_again(
    lab: Lab,
    plan: FabricPlan,
    state: LabState,
    server: Server,
    say: Callable[[str], None],
) -> None:
    """Boot one server after everything on it has ended; the caller holds the lab's lock."""
    name = server.name
    with ExitStack() as stack:
        home = namespaces.namespace_path(namespace_name(lab.name, name))
        away = list[tuple[HostNic, int]]()
        for nic in [
            HostNic(h, plan, state) for h in lab.hosts if h.server.name == name
        ]:
            with suppress(HostUnreachable):
                if (place := nic.find()) != home:
                    # Held open: an emulated NIC is lost with its namespace.
                    away.append(
                        (nic, stack.enter_context(namespaces.opened(place)))
                    )
        _power_off(state, name)
        for nic, descriptor in away:
            nic.move(descriptor, home, several_nics=len(server.nics) > 1)
        state.processes = [
            each for each in state.processes if each.name != service_name(name)
        ]
        state.save()
        remove_groups(lab.name, name)  # the cgroups of its containers
        service = server_service(
            lab.name,
            state.servers,
            Path(state.base),
            server,
        )
        Supervisor(state, say).start([service])


def _power_off(state: LabState, server: str) -> None:
    process = next(
        (p for p in state.processes if p.name == service_name(server)), None
    )
    if process is None or not states.is_running(process):
        return
    # Without a kernel of its own, all processes of the server end with its first one, the child.
    children = (
        Path(f"/proc/{process.pid}/task/{process.pid}/children")
        .read_text()
        .split()
    )
    with ExitStack() as stack, suppress(ProcessLookupError):
        fds = [
            os.pidfd_open(pid) for pid in (process.pid, *map(int, children))
        ]
        for fd in fds:
            stack.callback(os.close, fd)
        signal.pidfd_send_signal(fds[0], signal.SIGKILL)
        if not all(
            select.select(
                [fd],
                [],
                [],
                _POWER_OFF_S,
            )[0]
            for fd in fds
        ):
            raise PatchlightError(
                f"ending the processes of {server}: some remain"
            )
