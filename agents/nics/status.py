"""Reads the status of NICs and discovers their neighbours by probe frames and LLDP. An RDMA device
has no GIDs for a while after an outage; a worker with RDMA counts as disconnected until then."""

import errno
import selectors
import socket
import struct
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from patchlight.agents.errors import NicError, NotHere
from patchlight.agents.nics.moving import find_access
from patchlight.agents.nics.state import (
    NicState,
    gid_of,
    is_rdma_active,
    rdma_counters,
)
from patchlight.testbed.errors import PatchlightError, reason
from patchlight.testbed.lab.model import Nic, Server
from patchlight.testbed.linux import devices, namespaces
from patchlight.testbed.wire import probe_frames
from patchlight.testbed.wire.agent_status import (
    NicCounters,
    NicStatus,
    RdmaStatus,
)

GONE = "{} is gone: the server no longer has this interface"
NO_CARRIER = "{} has no carrier"


@dataclass(
    frozen=True,
    slots=True,
)
class NicPlace:
    """Where a NIC is, at home if it stays there: ``inside`` is the name of the interface with the
    worker's ``address``."""

    namespace: Path
    state: NicState
    inside: str
    address: IPv4Address


@dataclass(
    frozen=True,
    slots=True,
)
class NicProblem:
    """A problem of a NIC, as text; ``is_dark``: the only cause may be a missing optical signal."""

    words: str
    is_dark: bool = False


def nic_of(server: Server, name: str) -> Nic:
    """The server's NIC of that name, or ``NotHere``."""
    if (
        nic := next((n for n in server.nics if n.name == name), None)
    ) is not None:
        return nic
    raise NotHere(f"server {server.name} has no NIC {name!r}")


def problem_of(namespace: Path, interface: str) -> NicProblem | None:
    """The problem of a NIC that should be in the namespace; ``None`` if it is healthy."""
    gone = NicProblem(GONE.format(interface))
    if not namespaces.is_one(namespace):
        return gone
    try:
        carrier = namespaces.inside(
            namespace, lambda: devices.settle_link(interface)
        )
    except OSError as exc:
        return (
            gone
            if exc.errno == errno.ENODEV
            else NicProblem(f"{interface}: {reason(exc)}")
        )
    return (
        None
        if carrier
        else NicProblem(NO_CARRIER.format(interface), is_dark=True)
    )


def rdma_status(place: NicPlace) -> RdmaStatus | None:
    """The state of a worker's RDMA device and the GID of its address; ``None`` without one."""
    device = place.state.rdma
    if device is None:
        return None

    def look() -> RdmaStatus:
        with devices.sysfs() as root:
            return RdmaStatus(
                device=device.name,
                port=device.port,
                active=is_rdma_active(device, root),
                gid=gid_of(place.inside, place.address, root),
                counters=rdma_counters(device, root),
            )

    return namespaces.inside(place.namespace, look)


def rdma_problem(
    status: RdmaStatus | None, address: IPv4Address
) -> NicProblem | None:
    """Why a worker's RDMA device is not usable yet."""
    if status is None:
        return None
    if not status.active:
        words = (
            f"port {status.port} of RDMA device {status.device} is not active"
        )
        return NicProblem(words, is_dark=True)
    if status.gid is None:
        words = f"RDMA device {status.device} has no RoCEv2 GID of {address}"
        return NicProblem(words, is_dark=True)
    return None


def facts_of(
    namespace: Path,
    interface: str,
    port: tuple[Path, str],
) -> dict[str, Any]:
    """Fields of a ``NicStatus`` read from an interface; empty if it is gone. ``port``: namespace
    and interface of the NIC itself, which has the priority and pause counters."""

    def of_port() -> tuple[devices.Priorities | None, dict[str, int]]:
        return devices.read_priorities(port[1]), devices.pause_frames(port[1])

    try:
        reading = namespaces.inside(
            namespace, lambda: devices.read_link(interface)
        )
        priorities, pauses = namespaces.inside(port[0], of_port)
    except (OSError, PatchlightError):
        return {}
    counted = {
        k: v
        for k, v in asdict(reading).items()
        if k in NicCounters.model_fields
    }
    return {
        "mac": reading.mac,
        "mtu": reading.mtu,
        "carrier_changes": reading.carrier_changes,
        "counters": NicCounters(
            **counted,
            pause_frames=pauses,
        ),
        "pfc": None if priorities is None else list(priorities.paused),
        "dscp_priorities": None
        if priorities is None
        else dict(priorities.of_dscp),
    }


def idle_status(nic: Nic, home: Path) -> NicStatus:
    """The status of a NIC that no worker has."""
    status = _status(nic)
    try:
        access = namespaces.inside(home, lambda: find_access(nic))
    except NicError as exc:
        return status.model_copy(update={"problem": exc.message})
    port = access.function.port if access.function else access.interface
    facts = facts_of(home, access.interface, (home, port)) | {
        "mode": access.mode
    }
    if nic.mtu is not None:
        facts["mtu"] = nic.mtu
    if not nic.keeps_mac:
        facts.pop("mac", None)
    return _with(status, facts, problem_of(home, access.interface))


def leased_status(
    nic: Nic,
    home: Path,
    worker: str,
    place: NicPlace | None,
    rdma: RdmaStatus | None,
    problem: NicProblem | None,
) -> NicStatus:
    """The status of a NIC that a worker has; ``place`` is ``None`` before the NIC has moved."""
    status = _status(nic, worker)
    if place is None:
        return status
    state = place.state
    port = (
        (home, state.function.port)
        if state.function
        else (place.namespace, state.interface)
    )
    if state.mode == "macvlan":
        port = home, state.interface
    facts = facts_of(place.namespace, state.interface, port) | {
        "mode": state.mode,
        "rdma": rdma,
    }
    facts.pop("mac", None)
    if nic.keeps_mac:
        facts["mac"] = state.mac
    return _with(status, facts, problem)


def _status(nic: Nic, worker: str | None = None) -> NicStatus:
    return NicStatus(
        name=nic.name,
        address=str(nic.address),
        state="idle" if worker is None else "leased",
        worker=worker,
        mac=None if nic.keeps_mac else nic.mac,
    )


def _with(
    status: NicStatus,
    facts: dict[str, Any],
    problem: NicProblem | None,
) -> NicStatus:
    if problem is not None:
        facts |= {"problem": problem.words, "carrier": not problem.is_dark}
    return status.model_copy(update=facts)


_EVERY_S = 0.1
_LARGEST_FRAME = 2048
_JOIN = 1
_MULTICAST = 0  # PACKET_ADD_MEMBERSHIP and PACKET_MR_MULTICAST of packet(7)


@dataclass
class Ear:
    """A NIC that listens: the frames received so far, and its problem, if any."""

    interface: str
    heard: set[str] = field(default_factory=set)
    lldp: set[probe_frames.LldpNeighbour] = field(default_factory=set)
    carrier: bool = False
    problem: str = ""


def probe(
    names: Mapping[str, str],
    token: str,
    listen_s: float,
) -> dict[str, Ear]:
    """Send and receive probes for ``listen_s`` on these interfaces of the thread's namespace,
    keyed by probe name. A failure of one NIC is stored as its ``problem``; ``NicError``: no
    permission."""
    ears = {name: Ear(interface) for name, interface in names.items()}
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        senders: dict[str, socket.socket] = {}
        for name, ear in ears.items():
            try:
                senders[name] = stack.enter_context(
                    _opened(ear.interface, probe_frames.ETHERTYPE)
                )
                lldp = stack.enter_context(
                    _opened(ear.interface, probe_frames.ETHERTYPE_LLDP)
                )
            except PermissionError as error:
                raise NicError(
                    f"listening at {ear.interface}: {error.strerror}",
                    hint="run the agent as root",
                ) from error
            except OSError as error:
                ear.problem = f"{ear.interface}: {error.strerror}"
                continue
            selector.register(senders[name], selectors.EVENT_READ, ear)
            selector.register(lldp, selectors.EVENT_READ, ear)
        end = time.monotonic() + listen_s
        while (began := time.monotonic()) < end:
            for name, sender in senders.items():
                _send(
                    sender,
                    ears[name],
                    name,
                    token,
                )
            until = min(began + _EVERY_S, end)
            while (left_s := until - time.monotonic()) > 0:
                for key, _ in selector.select(left_s):
                    listening = key.fileobj
                    assert isinstance(listening, socket.socket)
                    try:
                        frame = listening.recv(_LARGEST_FRAME)
                    except OSError:
                        continue
                    if (
                        source := probe_frames.probe_source(frame, token)
                    ) is not None:
                        key.data.heard.add(source)
                    elif (
                        neighbour := probe_frames.lldp_neighbour(frame)
                    ) is not None:
                        key.data.lldp.add(neighbour)
    for name in senders:
        with suppress(OSError):
            ears[name].carrier = devices.settle_link(ears[name].interface)
    return ears


def _opened(interface: str, ethertype: int) -> socket.socket:
    """A socket for received frames of this kind, without those that leave the interface."""
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    try:
        opened.bind((interface, ethertype))
        index = socket.if_nametoindex(interface)
        group = bytes.fromhex(probe_frames.TO_THE_NEAREST.replace(":", ""))
        member = struct.pack(
            "iHH8s",
            index,
            _MULTICAST,
            len(group),
            group,
        )
        # SOL_PACKET, which Python does not define.
        opened.setsockopt(263, _JOIN, member)
        opened.setblocking(False)
    except BaseException:
        opened.close()
        raise
    return opened


def _send(
    sender: socket.socket,
    ear: Ear,
    name: str,
    token: str,
) -> None:
    mac: bytes = sender.getsockname()[4]
    try:
        sender.send(probe_frames.probe_frame(name, token, mac.hex(":")))
        sender.send(probe_frames.lldp_probe(name, token, mac.hex(":")))
    except OSError as error:
        # A full queue is normal without an optical signal: skip this probe.
        if error.errno not in (errno.EAGAIN, errno.ENOBUFS):
            ear.problem = f"{ear.interface}: {error.strerror}"
    else:
        ear.problem = ""
