"""A private Open vSwitch: its own database, sockets and daemons, in the lab's fabric namespace.

The host's Open vSwitch, if it runs, is never spoken to.
"""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from patchlight.emulation.fabric.plan import FabricPlan
from patchlight.emulation.fabric.processes import LabService
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.linux.credentials import CA_FILE, CERTIFICATE_FILE, KEY_FILE
from patchlight.testbed.linux.netlink import KernelRefused, Netlink, Request, attribute
from patchlight.testbed.linux.sockets import unix_socket_answers

_SCHEMA = Path("/usr/share/openvswitch/vswitch.ovsschema")
_INSTALL = "Install it with: sudo apt-get install openvswitch-switch"
# Ports in one ovs-vsctl call: far below the longest command line, and few calls.
_PORTS_IN_A_CALL = 500
_NETLINK_GENERIC, _GENL_CONTROL, _GET_FAMILY, _FAMILY_NAME = 16, 16, 3, 2


class OpenVSwitchFailed(PatchlightError):
    """Open vSwitch is missing, did not start, or did not take its configuration."""


@dataclass(frozen=True, slots=True)
class OpenVSwitch:
    """The private Open vSwitch whose files are in ``directory``."""

    directory: Path
    namespace: Path

    @property
    def environment(self) -> dict[str, str]:
        """The variables that point Open vSwitch's tools at this one."""
        return dict.fromkeys(("OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR"), str(self.directory))

    @property
    def _database(self) -> str:
        return f"unix:{self.directory}/db.sock"

    def start(self, start: Callable[[Sequence[LabService]], None]) -> bool:
        """Have ``start`` start the database and the switch daemon, each until it answers.

        Returns whether the database is new. An old one has its switches, without flows.
        """
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        database = self.directory / "conf.db"
        is_new = not database.exists()
        if is_new:
            self._tool(["ovsdb-tool", "create", str(database), str(_schema())])
        socket = self.directory / "db.sock"
        arguments = [str(database), f"--remote=punix:{socket}"]
        start([self._daemon("ovsdb-server", arguments, socket)])
        # One thread of each kind: labs are many small switches on few cores.
        threads = [f"other_config:n-{kind}-threads=1" for kind in ("handler", "revalidator")]
        self.vsctl(["init", "--", "set", "Open_vSwitch", ".", *threads], wait=False)
        control = self.directory / "ovs-vswitchd.ctl"
        start([self._daemon("ovs-vswitchd", [self._database], control)])
        # ovs-vsctl waits for a change: the daemon has then read the whole database.
        self.vsctl(["set", "Open_vSwitch", ".", f"external_ids:started={time.time()}"])
        return is_new

    def _daemon(self, name: str, arguments: Sequence[str], answers: Path) -> LabService:
        return LabService(
            name=name,
            argv=[
                executable(name),
                *arguments,
                f"--unixctl={self.directory}/{name}.ctl",
                f"--pidfile={self.directory}/{name}.pid",
                f"--log-file={self.directory}/{name}.log",
                "-vconsole:err",
            ],
            namespace=self.namespace,
            environment=self.environment,
            ready=lambda: unix_socket_answers(answers),
            abrupt=True,
        )

    def add_bridges(self, plan: FabricPlan, datapath: str, *, learning: bool) -> None:
        """Make every packet switch with its ports, and check that each got its number.

        ``learning`` switches find routes themselves; others carry nothing until a controller
        programs them.
        """
        commands: list[list[str]] = []
        for bridge in plan.bridges:
            name = bridge.name
            commands.append(new_bridge(name, bridge.datapath_id, datapath, learning=learning))
            for number, interface in bridge.ports:
                command = ["--", "add-port", name, interface]
                command += ["--", "set", "Interface", interface, f"ofport_request={number}"]
                # Open vSwitch takes the queue off every port it configures, again at each change,
                # except from ports whose QoS is of this type.
                commands.append([*command, "--", "set", "Port", interface, "qos=@noop"])
        for first in range(0, len(commands), _PORTS_IN_A_CALL):
            call = chain.from_iterable(commands[first : first + _PORTS_IN_A_CALL])
            self.vsctl(["--id=@noop", "create", "QoS", "type=linux-noop", *call])
        self.check_ports(plan)

    def set_controller(self, plan: FabricPlan, address: str, tls: Path | None = None) -> None:
        """Have every switch connect to a controller at ``host:port``.

        ``tls``: over TLS, with the certificate in that folder (``credentials``).

        Best once it listens: after a refusal Open vSwitch tries again in 1, 2, 4 and 8 s,
        ``max_backoff`` or not, because it heeds that only after the first success.
        """
        command: list[str] = []
        if tls is not None:
            command += ["--", *set_tls(tls)]
        target = f"{'tcp' if tls is None else 'ssl'}:{address}"
        for bridge in plan.bridges:
            command += ["--", "set-controller", bridge.name, target]
            command += ["--", "set", "Controller", bridge.name]
            command += ["connection_mode=out-of-band", "max_backoff=1000"]
        self.vsctl(command[1:])

    def check_ports(self, plan: FabricPlan) -> None:
        """``OpenVSwitchFailed`` unless each port has its number."""
        table = self.vsctl(["--format=json", "--columns=name,ofport,error", "list", "Interface"])
        have = {row[0]: row[1:] for row in json.loads(table)["data"]}
        for bridge in plan.bridges:
            for number, interface in bridge.ports:
                got, error = have.get(interface, (None, "it is not in the database"))
                if got != number:
                    raise OpenVSwitchFailed(
                        f"making port {number} of {bridge.switch}: Open vSwitch gave {interface} "
                        f"the number {got}: {error}",
                        hint=f"See {self.directory}/ovs-vswitchd.log.",
                    )

    def vsctl(self, command: Sequence[str], *, wait: bool = True) -> str:
        """What ``ovs-vsctl`` prints; ``OpenVSwitchFailed`` if it refuses."""
        options = ["--timeout=60", *([] if wait else ["--no-wait"])]
        return self._tool(["ovs-vsctl", f"--db={self._database}", *options, *command])

    def _tool(self, command: Sequence[str]) -> str:
        done = subprocess.run(
            [executable(command[0]), *command[1:]],
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise OpenVSwitchFailed(
                f"{command[0]} for the fabric in {self.directory}: {done.stderr.strip()[-2000:]}",
                hint=f"See {self.directory}/ovs-vswitchd.log.",
            )
        return done.stdout


def new_bridge(name: str, datapath_id: int, datapath: str, *, learning: bool) -> list[str]:
    """The part of an ``ovs-vsctl`` call that makes a bridge; see ``OpenVSwitch.add_bridges``."""
    settings = [
        f"datapath_type={datapath}",
        f"fail_mode={'standalone' if learning else 'secure'}",
        "protocols=OpenFlow13",
        f"other-config:datapath-id={datapath_id:016x}",
        "other-config:disable-in-band=true",
    ]
    return ["--", "add-br", name, "--", "set", "Bridge", name, *settings]


def set_tls(folder: Path) -> list[str]:
    """The part of an ``ovs-vsctl`` call that has all bridges show the certificate in a folder."""
    return ["set-ssl", *(str(folder / name) for name in (KEY_FILE, CERTIFICATE_FILE, CA_FILE))]


def executable(name: str) -> str:
    """The full path of one of Open vSwitch's programs; ``OpenVSwitchFailed`` if missing."""
    # sudo and cron may leave the sbin directories out of PATH.
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin", "/sbin"])
    program = shutil.which(name, path=path)
    if program is None:
        raise OpenVSwitchFailed(
            f"this lab's packet switches are Open vSwitch, but there is no {name} here",
            hint=_INSTALL,
        )
    return program


def _schema() -> Path:
    if not _SCHEMA.exists():
        raise OpenVSwitchFailed(
            f"Open vSwitch's database schema is not at {_SCHEMA}", hint=_INSTALL
        )
    return _SCHEMA


def datapath_type() -> str:
    """``system`` where the kernel has Open vSwitch's datapath, else ``netdev`` (userspace)."""
    body = bytes([_GET_FAMILY, 1, 0, 0]) + attribute(_FAMILY_NAME, b"ovs_datapath\0")
    try:
        with Netlink(family=_NETLINK_GENERIC) as netlink:
            netlink.ask(Request(_GENL_CONTROL, 0, body, "looking for Open vSwitch in the kernel"))
    except KernelRefused:
        return "netdev"
    return "system"


def check_installed() -> None:
    """``OpenVSwitchFailed``, with how to install it, unless all its programs are here."""
    for name in ("ovsdb-tool", "ovsdb-server", "ovs-vswitchd", "ovs-vsctl"):
        executable(name)
    _schema()
