"""Builds a planned fabric: namespaces, links, addresses, limits, and packet switches.

Each namespace is created, entered once, and configured in one batch; the other end of a link is
configured when all namespaces exist. 256 hosts take well under a second.

Packet switches are Linux bridges, or a private Open vSwitch with its own database, sockets and
daemons in the lab's fabric namespace. The host's Open vSwitch is never used.
"""

import json
import os
import shutil
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from patchlight.emulation.fabric import links
from patchlight.emulation.fabric.plan import (
    FabricPlan,
    PlannedBridge,
    PlannedEnd,
)
from patchlight.emulation.fabric.processes import LabService
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.linux import devices, namespaces, rate_limits
from patchlight.testbed.linux.credentials import (
    CA_FILE,
    CERTIFICATE_FILE,
    KEY_FILE,
)
from patchlight.testbed.linux.netlink import (
    KernelRefused,
    Netlink,
    Request,
    attribute,
)
from patchlight.testbed.linux.sockets import unix_socket_answers

# Routing table numbers of NICs that share a server; lower ones are the kernel's.
_FIRST_TABLE = 1000
_SCHEMA = Path("/usr/share/openvswitch/vswitch.ovsschema")
_INSTALL = "Install it with: sudo apt-get install openvswitch-switch"
# Ports per ovs-vsctl call: well below the limit of a command line.
_PORTS_IN_A_CALL = 500
_NETLINK_GENERIC = 16
_GENL_CONTROL = 16
_GET_FAMILY = 3
_FAMILY_NAME = 2


def build_links(
    plan: FabricPlan,
    made: Callable[[str, int], None],
    *,
    offload: bool,
    bridges: bool,
) -> None:
    """Make a plan's namespaces (``made`` is called with name and inode of each), links, and its
    packet switches that are machines; with ``bridges`` also the others, as Linux bridges; else the
    caller makes those and limits their ports. ``offload`` leaves checksum offload on. After an
    error the caller cleans up."""
    namespaces.prepare_directory()
    with ExitStack() as opened:
        work = _Work(plan, opened, offload=offload)
        with namespaces.kept_namespace():
            for name in plan.namespaces:
                made(name, work.make(name))
        made_here = [
            bridge for bridge in plan.bridges if bridges or bridge.machine
        ]
        index_of = {
            (bridge.namespace, bridge.name): bridge.index
            for bridge in made_here
        }
        for bridge in made_here:
            work.later[bridge.namespace].insert(
                0, links.add_bridge(bridge.name, bridge.index)
            )
        for end in plan.ends:
            if master := index_of.get((end.namespace, end.bridge or "")):
                work.later[end.namespace].append(
                    links.set_master(end.index, master, end.name)
                )
        for name, requests in work.later.items():
            with Netlink(namespaces.namespace_path(name)) as netlink:
                netlink.run(requests)
                if name in work.limited:
                    rate_limits.verify_limits(netlink, work.limited[name])
        # Until every link that is up carries frames.
        interfaces = defaultdict[str, list[str]](list)
        for end in plan.ends:
            if end.up:
                interfaces[end.namespace].append(end.name)
        with namespaces.kept_namespace():
            for namespace, names in interfaces.items():
                namespaces.enter(namespaces.namespace_path(namespace))
                for name in names:
                    devices.settle_link(name)
    limit_switch_ports(plan, made_here)


def limit_switch_ports(
    plan: FabricPlan, bridges: Sequence[PlannedBridge]
) -> None:
    """Limit what the ports of these packet switches send, and read it back."""
    for namespace in {bridge.namespace for bridge in bridges}:
        with Netlink(namespaces.namespace_path(namespace)) as netlink:
            ports = [
                e
                for e in plan.ends
                if e.bridge is not None and e.namespace == namespace
            ]
            netlink.run(
                [
                    _limit(end, end.rate_bps)
                    for end in ports
                    if end.rate_bps is not None
                ]
            )
            netlink.run([request for end in ports for request in _impair(end)])
            rate_limits.verify_limits(netlink, _port_limits(plan, namespace))


def verify_switch_ports(plan: FabricPlan) -> None:
    """Raise ``NotShaped`` if a packet-switch port has lost its limit."""
    for namespace in {bridge.namespace for bridge in plan.bridges}:
        with Netlink(namespaces.namespace_path(namespace)) as netlink:
            rate_limits.verify_limits(netlink, _port_limits(plan, namespace))


def _port_limits(
    plan: FabricPlan, namespace: str
) -> list[tuple[int, str, float]]:
    return [
        (end.index, end.name, end.rate_bps)
        for end in plan.ends
        if end.bridge is not None
        and end.rate_bps is not None
        and end.namespace == namespace
    ]


class _Work:
    def __init__(
        self,
        plan: FabricPlan,
        opened: ExitStack,
        *,
        offload: bool,
    ) -> None:
        self._opened = opened
        self._offload = offload
        self._servers = set(plan.servers)
        self._cables = defaultdict[str, list[tuple[PlannedEnd, PlannedEnd]]](
            list
        )
        for a, b in plan.cables:
            self._cables[a.namespace].append((a, b))
            if b.namespace != a.namespace:
                self._cables[b.namespace].append((b, a))
        self._nics = Counter(
            end.namespace for end in plan.ends if end.address is not None
        )
        self._open: dict[str, int] = {}
        self._made: set[str] = set()
        self.later = defaultdict[str, list[Request]](list)
        self.limited = defaultdict[str, list[tuple[int, str, float]]](list)

    def make(self, name: str) -> int:
        inode = namespaces.create_here(name)
        self._made.add(name)
        # No IPv6 in the data network avoids neighbour discovery traffic.
        namespaces.set_sysctl("ipv6/conf/all/disable_ipv6", 1)
        # A new namespace inherits forwarding from the host, where Docker enables it.
        namespaces.set_sysctl("ipv4/ip_forward", 0)
        if self._nics[name] > 1:
            # Several NICs in one subnet: each answers ARP for its own address only, and accepts
            # packets regardless of the main routing table.
            namespaces.set_sysctl("ipv4/conf/all/arp_ignore", 1)
            namespaces.set_sysctl("ipv4/conf/all/arp_announce", 2)
            for scope in ("all", "default"):
                namespaces.set_sysctl(f"ipv4/conf/{scope}/rp_filter", 0)
        if name not in self._servers:
            # Few, with many links each: kept open. Servers are many, with few links.
            self._open[name] = self._opened.enter_context(
                namespaces.opened(namespaces.namespace_path(name))
            )
        requests = [links.set_up(links.LOOPBACK, "lo")]
        made_here = []
        with ExitStack() as opened:
            for near, far in self._cables[name]:
                if far.namespace in self._made:
                    requests.append(self._link(near, far, opened))
                    requests.extend(self._settings(near))
                    made_here.append(near)
                    if far.up:
                        self.later[far.namespace].append(
                            links.set_up(far.index, far.name)
                        )
                    self.later[far.namespace] += self._settings(far)
            with Netlink() as netlink:
                netlink.run(requests)
                if name in self.limited and name in self._servers:
                    rate_limits.verify_limits(netlink, self.limited.pop(name))
        if not self._offload:
            for end in made_here:
                if end.address is not None:
                    devices.set_tx_checksum(end.name, False)
        return inode

    def _link(
        self,
        near: PlannedEnd,
        far: PlannedEnd,
        opened: ExitStack,
    ) -> Request:
        namespace = None
        if far.namespace != near.namespace:
            namespace = self._open.get(far.namespace)
            namespace = namespace or opened.enter_context(
                namespaces.opened(namespaces.namespace_path(far.namespace))
            )
        return links.add_veth(
            links.LinkEnd(
                near.name,
                near.index,
                near.mac,
                up=near.up,
                mtu=near.mtu,
            ),
            links.LinkEnd(
                far.name,
                far.index,
                far.mac,
                namespace,
                mtu=far.mtu,
            ),
        )

    def _settings(self, end: PlannedEnd) -> list[Request]:
        """The settings of an end besides its link; packet-switch ports get limits later."""
        requests: list[Request] = []
        if end.address is not None:
            several_nics = self._nics[end.namespace] > 1
            if several_nics:
                table = _FIRST_TABLE + end.index
                requests.append(links.add_source_rule(end.address.ip, table))
            requests += nic_requests(end, end.index, several_nics=several_nics)
        if end.bridge is None:
            if end.rate_bps is not None:
                requests.append(_limit(end, end.rate_bps))
                self.limited[end.namespace].append(
                    (end.index, end.name, end.rate_bps)
                )
            requests += _impair(end)
        return requests


def _limit(end: PlannedEnd, rate_bps: float) -> Request:
    return rate_limits.limit_request(
        end.index,
        end.name,
        rate_bps,
        end.mtu,
    )


def _impair(end: PlannedEnd) -> list[Request]:
    if not end.impairment:
        return []
    return [
        rate_limits.impair_request(
            end.index,
            end.name,
            end.impairment,
            end.rate_bps,
        )
    ]


def nic_requests(
    end: PlannedEnd,
    index: int,
    *,
    several_nics: bool,
) -> list[Request]:
    """Address and routes of a NIC that is up, in a table of its own if NICs share a namespace."""
    assert end.address is not None
    requests = [links.add_address(index, end.address, end.name)]
    table = links.MAIN_TABLE
    if several_nics:
        table = _FIRST_TABLE + end.index
        requests.append(
            links.add_subnet_route(
                index,
                end.address,
                table,
                end.name,
            )
        )
    return requests + [
        links.add_route(
            index,
            each,
            table,
            end.name,
        )
        for each in end.routes
    ]


class OpenVSwitchFailed(PatchlightError):
    """Open vSwitch is missing, did not start, or rejected its configuration."""


@dataclass(
    frozen=True,
    slots=True,
)
class OpenVSwitch:
    """The private Open vSwitch whose files are in ``directory``. ``keeps_rates``: its links have
    rates."""

    directory: Path
    namespace: Path
    keeps_rates: bool = False

    @property
    def environment(self) -> dict[str, str]:
        """The variables that point Open vSwitch's tools at this one."""
        return dict.fromkeys(
            ("OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR"), str(self.directory)
        )

    @property
    def _database(self) -> str:
        return f"unix:{self.directory}/db.sock"

    def start(self, start: Callable[[Sequence[LabService]], None]) -> bool:
        """Start the database and the switch daemon with ``start``. Returns whether the database is
        new: an old one has its switches, without flows."""
        self.directory.mkdir(
            mode=0o700,
            parents=True,
            exist_ok=True,
        )
        database = self.directory / "conf.db"
        is_new = not database.exists()
        if is_new:
            self._tool(
                [
                    "ovsdb-tool",
                    "create",
                    str(database),
                    str(_schema()),
                ]
            )
        socket = self.directory / "db.sock"
        arguments = [str(database), f"--remote=punix:{socket}"]
        start([self._daemon("ovsdb-server", arguments, socket)])
        # One thread of each kind: labs are many small switches on few cores.
        threads = [
            f"other_config:n-{kind}-threads=1"
            for kind in ("handler", "revalidator")
        ]
        self.vsctl(
            [
                "init",
                "--",
                "set",
                "Open_vSwitch",
                ".",
                *threads,
            ],
            wait=False,
        )
        control = self.directory / "ovs-vswitchd.ctl"
        start([self._daemon("ovs-vswitchd", [self._database], control)])
        # ovs-vsctl waits until the daemon has read the database.
        self.vsctl(
            [
                "set",
                "Open_vSwitch",
                ".",
                f"external_ids:started={time.time()}",
            ]
        )
        return is_new

    def _daemon(
        self,
        name: str,
        arguments: Sequence[str],
        answers: Path,
    ) -> LabService:
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
            # It forwards packets: one that waits for a processor is late, and a queue that is not
            # served in time drops others, so links would be slower than the lab file says.
            is_favoured=self.keeps_rates and name == "ovs-vswitchd",
        )

    def add_bridges(
        self,
        plan: FabricPlan,
        datapath: str,
        *,
        learning: bool,
    ) -> None:
        """Make every packet switch with its ports. ``learning`` ones need no controller."""
        commands: list[list[str]] = []
        for bridge in plan.in_fabric:
            name = bridge.name
            learns = learning or bridge.learns
            commands.append(
                new_bridge(
                    name,
                    bridge.datapath_id,
                    datapath,
                    learning=learns,
                )
            )
            if bridge.spanning_tree:
                commands.append(
                    [
                        "--",
                        "set",
                        "Bridge",
                        name,
                        "rstp_enable=true",
                    ]
                )
            for number, interface in bridge.ports:
                command = [
                    "--",
                    "add-port",
                    name,
                    interface,
                ]
                command += [
                    "--",
                    "set",
                    "Interface",
                    interface,
                    f"ofport_request={number}",
                ]
                # Open vSwitch removes the queue of every port, except with this QoS type.
                commands.append(
                    [
                        *command,
                        "--",
                        "set",
                        "Port",
                        interface,
                        "qos=@noop",
                    ]
                )
        for first in range(0, len(commands), _PORTS_IN_A_CALL):
            call = chain.from_iterable(
                commands[first : first + _PORTS_IN_A_CALL]
            )
            self.vsctl(
                [
                    "--id=@noop",
                    "create",
                    "QoS",
                    "type=linux-noop",
                    *call,
                ]
            )
        self.check_ports(plan)

    def set_controller(
        self,
        plan: FabricPlan,
        address: str,
        tls: Path | None = None,
    ) -> None:
        """Connect every switch to ``host:port``, with the certificate in the folder ``tls``. Call
        it when the controller listens: otherwise Open vSwitch retries in 1, 2, 4 and 8 s."""
        command = [] if tls is None else ["--", *set_tls(tls)]
        target = f"{'tcp' if tls is None else 'ssl'}:{address}"
        for bridge in (each for each in plan.in_fabric if not each.learns):
            command += [
                "--",
                "set-controller",
                bridge.name,
                target,
            ]
            command += [
                "--",
                "set",
                "Controller",
                bridge.name,
            ]
            command += ["connection_mode=out-of-band", "max_backoff=1000"]
        if command:
            self.vsctl(command[1:])

    def check_ports(self, plan: FabricPlan) -> None:
        """``OpenVSwitchFailed`` unless each port has its number."""
        table = self.vsctl(
            [
                "--format=json",
                "--columns=name,ofport,error",
                "list",
                "Interface",
            ]
        )
        have = {row[0]: row[1:] for row in json.loads(table)["data"]}
        for bridge in plan.in_fabric:
            for number, interface in bridge.ports:
                got, error = have.get(
                    interface, (None, "it is not in the database")
                )
                if got != number:
                    raise OpenVSwitchFailed(
                        f"making port {number} of {bridge.switch}: Open vSwitch gave {interface} "
                        f"the number {got}: {error}",
                        hint=f"see {self.directory}/ovs-vswitchd.log",
                    )

    def vsctl(self, command: Sequence[str], *, wait: bool = True) -> str:
        """The output of ``ovs-vsctl``; ``OpenVSwitchFailed`` on errors."""
        options = ["--timeout=60", *([] if wait else ["--no-wait"])]
        return self._tool(
            [
                "ovs-vsctl",
                f"--db={self._database}",
                *options,
                *command,
            ]
        )

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


def new_bridge(
    name: str,
    datapath_id: int | None,
    datapath: str,
    *,
    learning: bool,
) -> list[str]:
    """The part of an ``ovs-vsctl`` call that makes a bridge; see ``OpenVSwitch.add_bridges``."""
    settings = [
        f"datapath_type={datapath}",
        f"fail_mode={'standalone' if learning else 'secure'}",
        "protocols=OpenFlow13",
        "other-config:disable-in-band=true",
    ]
    if datapath_id is not None:
        settings.append(f"other-config:datapath-id={datapath_id:016x}")
    return [
        "--",
        "add-br",
        name,
        "--",
        "set",
        "Bridge",
        name,
        *settings,
    ]


def set_tls(folder: Path) -> list[str]:
    """The part of an ``ovs-vsctl`` call that gives all bridges the certificate in a folder."""
    return [
        "set-ssl",
        *(
            str(folder / name)
            for name in (KEY_FILE, CERTIFICATE_FILE, CA_FILE)
        ),
    ]


def executable(name: str) -> str:
    """The full path of one of Open vSwitch's programs; ``OpenVSwitchFailed`` if missing."""
    # sudo and cron may omit the sbin directories from PATH.
    path = os.pathsep.join(
        [
            os.environ.get("PATH", ""),
            "/usr/sbin",
            "/usr/local/sbin",
            "/sbin",
        ]
    )
    program = shutil.which(name, path=path)
    if program is None:
        raise OpenVSwitchFailed(
            f"this lab needs Open vSwitch, but {name} was not found",
            hint=_INSTALL,
        )
    return program


def _schema() -> Path:
    if not _SCHEMA.exists():
        raise OpenVSwitchFailed(
            f"Open vSwitch's database schema {_SCHEMA} not found",
            hint=_INSTALL,
        )
    return _SCHEMA


def datapath_type() -> str:
    """``system`` if the kernel has Open vSwitch's datapath, else ``netdev`` (userspace)."""
    body = bytes(
        [
            _GET_FAMILY,
            1,
            0,
            0,
        ]
    ) + attribute(_FAMILY_NAME, b"ovs_datapath\0")
    try:
        with Netlink(family=_NETLINK_GENERIC) as netlink:
            netlink.ask(
                Request(
                    _GENL_CONTROL,
                    0,
                    body,
                    "looking for Open vSwitch in the kernel",
                )
            )
    except KernelRefused:
        return "netdev"
    return "system"


def check_installed() -> None:
    """``OpenVSwitchFailed``, with how to install it, unless all its programs are installed."""
    for name in ("ovsdb-tool", "ovsdb-server", "ovs-vswitchd", "ovs-vsctl"):
        executable(name)
    _schema()
