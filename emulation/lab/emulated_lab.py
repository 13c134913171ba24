"""Emulates a lab on this machine: bring it up, use its hosts, take it down.

with EmulatedLab.from_file("lab.yaml") as lab:
    lab.host("server1.gpu0").run("ping -c 1 192.168.10.12")
    lab.ocs("ocs1").connect("gpu0:tor1.2")
    print(lab.iperf("gpu0", "gpu1"))
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self, Unpack

from patchlight.client.client import ControllerClient
from patchlight.emulation.fabric import build
from patchlight.emulation.fabric import lab_state as states
from patchlight.emulation.fabric.plan import (
    FabricPlan,
    check_fabric,
    is_machine,
    plan_fabric,
    with_swapped,
)
from patchlight.emulation.fabric.processes import Supervisor
from patchlight.emulation.fabric.telemetry import snmp_switches
from patchlight.emulation.lab import network, teardown
from patchlight.emulation.lab.capacity import suited
from patchlight.emulation.lab.hosts import EmulatedHost, write_hosts_file
from patchlight.emulation.lab.options import (
    LabKeywords,
    LabOptions,
    has_agents,
    has_controller,
    runtime_lab,
)
from patchlight.emulation.lab.services import LabServices, boot_again
from patchlight.emulation.servers.rehearsal import (
    Rehearsal,
    prepare_rehearsal,
    switch_service,
)
from patchlight.emulation.servers.server import service_name
from patchlight.testbed.errors import BadInput, PatchlightError, nearest
from patchlight.testbed.jobfile.reader import JobGiven
from patchlight.testbed.jobs import JobState
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.lab.rules import KINDS
from patchlight.testbed.lab.tuning import LIGHT_SOCKET, LightClient
from patchlight.testbed.labfile.reader import find_lab, read_lab
from patchlight.testbed.labfile.writer import write_lab
from patchlight.testbed.linux import docker_engine
from patchlight.testbed.linux.processes import own_program
from patchlight.testbed.wire.rest.jobs import JobAnswer, SubmittedJob


class NeedsRoot(PatchlightError):
    """Only root can create namespaces and links."""


class EmulatedLab:
    """An emulated lab, from a file (not yet up) or by ``attach``; up inside a ``with`` block.
    ``lab`` is the runtime lab, with the emulated devices' management addresses and the scale."""

    def __init__(
        self,
        lab: Lab,
        *,
        source: str,
        options: LabOptions,
        scale: float | None = None,
        replace: bool = False,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self.lab = lab
        self.run_dir = states.run_dir(lab.name)
        self._source = source
        self._options = options
        self._replace = replace
        self._scale = scale
        self._say = progress or (lambda _: None)
        self._plan: FabricPlan | None = None
        self._client: ControllerClient | None = None
        self._state: states.LabState | None = None

    @classmethod
    def from_file(
        cls,
        path: str | os.PathLike[str],
        scale: float | None = None,
        *,
        name: str | None = None,
        replace: bool = False,
        progress: Callable[[str], None] | None = None,
        **options: Unpack[LabKeywords],
    ) -> Self:
        """The lab in a file, or a built-in one. ``scale`` divides every rate (``None``: the file's,
        or what suits this machine); ``name`` is another name for it; ``replace`` removes an
        existing lab of that name; ``progress`` is called with a message at every step; the rest as
        in ``LabOptions``. ``BadInput`` if not possible."""
        lab = read_lab(find_lab(str(path)))
        emulated = cls.from_lab(
            lab,
            scale,
            name=name,
            replace=replace,
            progress=progress,
            **options,
        )
        emulated._source = str(path)
        return emulated

    @classmethod
    def from_lab(
        cls,
        lab: Lab,
        scale: float | None = None,
        *,
        name: str | None = None,
        replace: bool = False,
        progress: Callable[[str], None] | None = None,
        **options: Unpack[LabKeywords],
    ) -> Self:
        """A lab from a program (see ``LabBuilder``); arguments as in ``from_file``."""
        if scale is None and lab.scale != 1:
            scale = lab.scale
        if scale is not None and not scale > 0:
            raise BadInput(
                f"scale {scale:g} is not possible: expected more than 0, like 1000"
            )
        if unknown := options.keys() - LabKeywords.__annotations__:
            hint = nearest(min(unknown), LabKeywords.__annotations__)
            if min(unknown) in KINDS:
                hint = f"policies are passed as one object: policies=PolicyChoice({min(unknown)}=…)"
            raise BadInput(
                f"an emulated lab has no option {min(unknown)!r}", hint=hint
            )
        chosen = LabOptions(**options)
        lab = lab.with_changes(
            name=name or lab.name,
            scale=float(scale or 1),
            fabric=chosen.fabric or lab.fabric,
        )
        rdma = () if chosen.servers == "vm" else ("exclusive", "shared")
        wanted = {
            f"rdma: {host.nic.rdma}"
            for host in lab.hosts
            if host.nic.rdma in rdma
        }
        wanted |= {"rendezvous" for host in lab.hosts if host.nic.rendezvous}
        if wanted and progress is not None:
            said = ", ".join(sorted(wanted))
            progress(
                f"warning: ignoring {said} from the lab file: emulated NICs have no RDMA"
            )
        again: dict[str, Any] = {
            "scale": scale,
            "replace": replace,
            "progress": progress,
        }
        return cls(
            lab,
            source=lab.name,
            options=chosen,
            **again,
        )

    @classmethod
    def attach(cls, name: str, *, half_there: bool = False) -> Self:
        """A lab that is up, by its name (``half_there``: or unfinished); else ``BadInput``."""
        state = states.read_state(name)
        if state is None or not state.is_of_this_boot:
            up = ", ".join(states.recorded_labs()) or "none"
            raise BadInput(
                f"emulated lab {name!r} is not up (up: {up})",
                hint=f"start it: sudo {own_program()} emulate up LAB",
            )
        if state.phase != "up" and not half_there:
            raise teardown.left_half(state, name)
        emulated = cls(
            read_lab(state.run_dir / "lab.yaml"),
            source=state.source,
            options=LabOptions(),
        )
        emulated._state = state
        return emulated

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(
        self,
        kind: object,
        error: BaseException | None,
        trace: object,
    ) -> None:
        try:
            self.down()
        except PatchlightError as failure:
            if error is None:
                raise
            # The user must see the first error.
            self._say(f"taking the lab down also failed: {failure}")

    @property
    def plan(self) -> FabricPlan:
        """The processes and namespaces of the lab's fabric."""
        if self._plan is None:
            swaps = (
                self._options.swapped
                if self._state is None
                else self._state.swapped
            )
            self._plan = with_swapped(plan_fabric(self.lab), self.lab, swaps)
        return self._plan

    @property
    def state(self) -> states.LabState:
        """The lab's record; ``BadInput`` if it is not up."""
        if self._state is None:
            raise BadInput(
                f"lab {self.lab.name} is not up",
                hint="Call up() first, or use it in a with block.",
            )
        return self._state

    def up(self) -> None:
        """Make the lab, or nothing: after an error everything is removed. If a lab that is up has
        lost processes, they are restarted with the original file and options. ``NeedsRoot``,
        ``AlreadyThere``, ``LabBusy``, ``BadInput`` for a lab that cannot be emulated, and errors of
        its parts."""
        _require_root(f"making the emulated lab {self.lab.name}")
        check_fabric(self.lab, controller=self._options.controller)
        with states.lab_lock(self.lab.name):
            half = teardown.clear_the_way(
                self.lab.name,
                replace=self._replace,
                say=self._say,
            )
            if half is not None:
                self._go_on(half)
                return
            try:
                self._make()
            except BaseException:
                with _uninterrupted():
                    self._say("removing the unfinished lab")
                    self._state = None
                    teardown.remove_lab(self.lab.name)
                raise

    def _go_on(self, state: states.LabState) -> None:
        missing = teardown.missing_parts(state)
        self._say(
            f"lab {state.lab} has lost {', '.join(missing)}: restarting with its original lab "
            "file and options"
        )
        self.lab = read_lab(state.run_dir / "lab.yaml")
        self._state = state
        self._plan = None
        self._options = LabOptions(**state.options)
        services = LabServices(
            self.lab,
            state,
            self._options,
            self._say,
        )
        services.expect()
        supervisor = Supervisor(
            state, self._say, real_time=self._options.real_time
        )
        services.start(self.plan, supervisor)
        for server in self.lab.servers if state.ssh_config else ():
            if f"process {service_name(server.name)}" in missing:
                boot_again(
                    self.lab,
                    self.plan,
                    state,
                    server,
                    self._say,
                )
        for switch in filter(is_machine, self.lab.packet_switches):
            if f"process {service_name(switch.name)}" in missing:
                supervisor.start(
                    [switch_service(self.lab.name, switch, self._say)]
                )

    def _make(self) -> None:
        if self._scale is None or has_controller(self.lab, self._options):
            self.lab = suited(
                self.lab,
                self._scale,
                self._say,
                _for_a_measurement,
            )
            self._plan = None
        state = states.new_state(self.lab.name, self._source, self.lab.scale)
        agents = has_agents(self.lab, self._options)
        openflow = self.lab.controller_openflow
        by_snmp = snmp_switches(self.lab)
        chosen = self._options
        kind = chosen.servers
        policies = chosen.policies
        self.lab = runtime_lab(
            self.lab,
            agents=agents,
            policies=policies,
            servers=kind,
        )
        if self.lab.controller_openflow != openflow:
            self._say(
                "note: packet switches reach the controller inside the lab's network at "
                f"{self.lab.controller_openflow}, not at {openflow}"
            )
        if by_snmp.keys() != snmp_switches(self.lab).keys():
            self._say(
                "note: for SNMP of packet switches: apt-get install snmpd lldpd"
            )
        services = LabServices(
            self.lab,
            state,
            self._options,
            self._say,
        )
        services.check_requirements()
        rehearsal: Rehearsal | None = None
        kind = self._options.servers
        docker = self._options.docker
        if kind != "namespace" or any(
            map(is_machine, self.lab.packet_switches)
        ):
            rehearsal = prepare_rehearsal(
                self.lab,
                state,
                self._say,
                kind=kind,
                docker=docker,
            )
            self.lab = rehearsal.lab
        state.fabric = self.lab.fabric
        state.datapath = services.datapath
        state.controller_api = services.api if services.has_controller else ""
        # Another user with another DOCKER_HOST may take the lab down.
        state.docker = docker_engine.engine_url()
        state.swapped = [list(pair) for pair in self._options.swapped]
        # The runtime file has the policies.
        state.options = {
            k: v for k, v in asdict(self._options).items() if k != "policies"
        }
        state.namespaces |= dict.fromkeys(self.plan.namespaces, 0)
        state.save()
        self._state = state
        (self.run_dir / "lab.yaml").write_text(write_lab(self.lab))
        write_hosts_file(self.lab, self.run_dir)
        supervisor = Supervisor(
            state, self._say, real_time=self._options.real_time
        )
        services.expect()
        self._say(
            f"making {len(self.plan.namespaces)} namespaces, {len(self.plan.cables)} links"
        )
        build.build_links(
            self.plan,
            state.namespaces.__setitem__,
            offload=state.datapath != "netdev",
            bridges=state.datapath == "bridge",
        )
        if rehearsal is not None:
            rehearsal.join()
        state.save()
        services.start(
            self.plan, supervisor, rehearsal.services() if rehearsal else ()
        )
        if not self.lab.coloured:
            network.check_packet_sizes(self.lab, self.hosts)
        state.phase = "up"
        state.save()

    def down(self) -> None:
        """Remove the lab and everything in it; harmless if it does not exist."""
        if self._client is not None:
            self._client.close()
            self._client = None
        down_lab(self.lab.name)
        self._state = None

    def host(self, name: str) -> EmulatedHost:
        """A host by any of its names (``server1.gpu0``, ``gpu1``); ``BadInput`` if unknown."""
        return EmulatedHost(self.lab.host(name), self.plan, self.state)

    @property
    def hosts(self) -> tuple[EmulatedHost, ...]:
        """Every host, in lab file order."""
        return tuple(
            EmulatedHost(host, self.plan, self.state)
            for host in self.lab.hosts
        )

    def status(self) -> dict[str, Any]:
        """The lab's status: see ``lab_status``."""
        return teardown.lab_status(self.lab.name)

    @property
    def controller(self) -> ControllerClient:
        """The lab's controller; ``BadInput`` if the lab is not up or runs none."""
        if not self.state.controller_api:
            raise BadInput(
                f"lab {self.lab.name} runs without a controller",
                hint="start it with a controller: leave out --no-controller, or controller=False",
            )
        if self._client is None:
            self._client = ControllerClient(self.state.controller_api)
        return self._client

    def submit(
        self, *jobs: JobGiven, topology: str | None = None
    ) -> list[SubmittedJob]:
        """Queue training jobs that start together (each a ``JobSpec``, a mapping with a job file's
        keys, or a file's path); returns the controller's records. ``topology``: ``keep`` or
        ``regroup``; ``None``: that of the jobs or the lab. Wait with ``wait_for``."""
        return self.controller.submit(jobs, topology)

    def wait_for(self, job_id: str, deadline_s: float = 600.0) -> JobAnswer:
        """A job's status once it has ended; ``PatchlightError`` after the deadline."""
        ends = time.monotonic() + deadline_s
        while True:
            status = self.controller.job(job_id)
            if JobState(status.state).is_final:
                return status
            if time.monotonic() > ends:
                raise PatchlightError(
                    f"job {job_id} is {status.state} after {deadline_s:g} s",
                    hint="use a longer deadline_s, or stop it: lab.controller.stop(job_id)",
                )
            time.sleep(0.2)

    def ocs(self, name: str) -> network.LabOcs:
        """An optical circuit switch by its name, changed through the controller."""
        return network.LabOcs(
            self.lab, self.lab.circuit_switch(name), self.controller
        )

    def maps(self) -> dict[str, PortMap]:
        """The present circuits of each OCS, from the controller."""
        if not self.lab.circuit_switches:
            return {}
        answer = self.controller.circuits()
        return {
            switch.name: PortMap.parse(answer[switch.name].map or ())
            for switch in self.lab.circuit_switches
        }

    @property
    def wires(self) -> network.Wires:
        """The fibres: read, cut, splice, delay."""
        return network.Wires(self.lab, self.plan, self.state)

    @property
    def light(self) -> LightClient:
        """Its transceivers, to tune and read. Close the client, or use a ``with`` block."""
        return LightClient(self.run_dir / LIGHT_SOCKET)

    def pingall(self, wait_s: float = 1.0) -> network.Reachability:
        """Let every host ping every other; true if all answered."""
        return network.ping_all(self.hosts, wait_s)

    def iperf(
        self,
        sender: str,
        receiver: str,
        seconds: float = 2.0,
    ) -> float:
        """The rate of one TCP connection between two hosts, in payload bits per second."""
        return network.tcp_rate_bps(
            self.host(sender), self.host(receiver), seconds
        )

    def capture(
        self,
        host: str,
        path: str | os.PathLike[str],
        seconds: float,
        *,
        most_frames: int = 10_000_000,
        most_bytes: int = 1 << 30,
    ) -> network.Captured:
        """Record a host's fibre, both ways, as a pcap file."""
        end = self.host(host).far_end
        most = {"most_frames": most_frames, "most_bytes": most_bytes}
        return network.capture(
            end,
            Path(path),
            seconds=seconds,
            **most,
        )


def _require_root(doing: str) -> None:
    if os.geteuid() != 0:
        raise NeedsRoot(
            f"{doing} needs root", hint="Run the program with sudo."
        )


def down_lab(name: str) -> bool:
    """Take a lab down by its name; ``False`` if it does not exist."""
    _require_root(f"taking the emulated lab {name} down")
    teardown.remove_forgotten_disks()
    if not teardown.is_there(name):
        return False
    with states.lab_lock(name), _uninterrupted():
        return teardown.remove_lab(name)


def _for_a_measurement(lab: Lab) -> EmulatedLab:
    return EmulatedLab.from_lab(lab, 1, controller=False)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ignore Ctrl-C and termination until the block is done: a removal must be complete."""
    held = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    # Programs that are started inherit the mask; another thread may still get the signal.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, held)
    handlers = {}
    try:
        if threading.current_thread() is threading.main_thread():
            handlers = {
                number: signal.signal(number, lambda *_: None)
                for number in held
            }
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
