"""Controls the network of a lab that is up: fibres, optical circuit switches, and measurements with
sockets in the hosts' namespaces. Cutting a fibre takes one end down, preferably a switch's, because
NICs move. The kernel holds all state."""

from __future__ import annotations

import itertools
import json
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from patchlight.client.client import ControllerClient
from patchlight.emulation.fabric import links
from patchlight.emulation.fabric.lab_state import LabState, run_dir
from patchlight.emulation.fabric.plan import FabricPlan, PlannedEnd
from patchlight.emulation.lab.hosts import EmulatedHost
from patchlight.testbed.errors import BadInput, PatchlightError, reason
from patchlight.testbed.lab.model import CircuitSwitch, Endpoint, Fibre, Lab
from patchlight.testbed.lab.optical_links import is_end
from patchlight.testbed.lab.packet_sizes import USUAL_MTU
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.lab.reach import Reach
from patchlight.testbed.lab.wiring import trace_links
from patchlight.testbed.linux import namespaces, rate_limits
from patchlight.testbed.linux.netlink import Netlink
from patchlight.testbed.linux.rate_limits import Impairment
from patchlight.testbed.wire.rest.circuits import ChangeAnswer

_ECHO_REQUEST = 8
_ECHO_REPLY = 0
_ICMP = struct.Struct("!BBHHH")
_IP_HEADER_BYTES = 20
_SMALL_BYTES = 100
# Of ip(7), which Python does not define.
_IP_MTU_DISCOVER = 10
_NEVER_IN_FRAGMENTS = 2
_CHUNK_BYTES = 1 << 18
_SNAP_BYTES = 65535
_SO_RCVBUFFORCE = 33
_SO_TIMESTAMPNS = 35
_SOL_PACKET = 263
_STATISTICS = 6
# pcap with times in nanoseconds, version 2.4, Ethernet.
_HEADER = struct.pack(
    "=IHHiIII",
    0xA1B23C4D,
    2,
    4,
    0,
    0,
    _SNAP_BYTES,
    1,
)
_RECORD = struct.Struct("=IIII")


@dataclass(
    frozen=True,
    slots=True,
)
class FibreState:
    """The state of a fibre; ``impairment`` is that of the worse end."""

    fibre: Fibre
    up: bool
    impairment: Impairment


class Wires:
    """The fibres of one lab that is up. Needs root."""

    def __init__(
        self,
        lab: Lab,
        plan: FabricPlan,
        state: LabState,
    ) -> None:
        self._lab = lab
        self._plan = plan
        self._state = state

    def between(self, a: str, b: str) -> Fibre:
        """The fibre between two ports, hosts or devices; ``BadInput`` unless exactly one exists."""
        sides = [self._ports(name) for name in (a, b)]
        joined = [
            fibre
            for fibre in self._lab.fibres
            if (fibre.a in sides[0] and fibre.b in sides[1])
            or (fibre.b in sides[0] and fibre.a in sides[1])
        ]
        if len(joined) == 1:
            return joined[0]
        if joined:
            several = ", ".join(
                f"{fibre.a} – {fibre.b}" for fibre in joined[:6]
            )
            raise BadInput(
                f"{len(joined)} fibres join {a} and {b}: {several}: name the ports"
            )
        ends = self._lab.fibre_ends
        near = [
            f"{port} – {ends[port][0]}"
            for side in sides
            for port in side
            if port in ends
        ][:6]
        raise BadInput(
            f"no fibre joins {a} and {b}",
            hint=f"fibres there: {', '.join(near) or 'none'}; a path through an OCS has two "
            f"fibres",
        )

    def _ports(self, name: str) -> set[Endpoint]:
        if name in self._lab.host_names:
            return {self._lab.host_names[name].endpoint}
        if "." in name:
            port = Endpoint.parse(name)
            self._lab.device(port.device)
            return {port}
        device = self._lab.device(name)
        return {
            end for end in self._lab.fibre_ends if end.device == device.name
        }

    def state(self, fibre: Fibre) -> FibreState:
        """The present state of a fibre."""
        return self.states([fibre])[0]

    def states(self, fibres: Sequence[Fibre]) -> list[FibreState]:
        """The present state of fibres; each namespace is read once."""
        seen: dict[
            Path,
            tuple[Mapping[str, links.KernelLink], Mapping[int, Impairment]],
        ] = {}
        states = []
        for fibre in fibres:
            up = True
            worst = rate_limits.NOT_IMPAIRED
            for end, namespace in self._ends(fibre):
                if namespace not in seen:
                    with Netlink(namespace) as netlink:
                        impairments = rate_limits.read_impairments(netlink)
                        seen[namespace] = (
                            links.list_links(netlink),
                            impairments,
                        )
                here, impaired = seen[namespace]
                link = here[end.name]
                # Down because of a missing signal does not mean cut.
                up = up and (link.up or link.alias == links.HELD_DARK)
                this = impaired.get(link.index, worst)
                worst = max(
                    worst,
                    this,
                    key=lambda i: (i.packet_loss, i.delay_s, i.jitter_s),
                )
            states.append(FibreState(fibre, up, worst))
        return states

    def set_up(self, fibre: Fibre, *, up: bool) -> None:
        """Cut a fibre, or splice it."""
        end, namespace = min(
            self._ends(fibre), key=lambda pair: pair[0].address is not None
        )
        with Netlink(namespace) as netlink:
            link = links.list_links(netlink)[end.name]
            requests = [links.set_up(link.index, end.name, up=up)]
            if link.alias:
                # The emulated light checks for a signal again.
                requests.insert(0, links.set_alias(link.index, ""))
            netlink.run(requests)

    def impair(self, fibre: Fibre, impairment: Impairment) -> None:
        """Delay or lose packets of the fibre, both ways; its rate is unchanged. ``NoNetem``."""
        if (
            not 0 <= impairment.packet_loss <= 1
            or impairment.jitter_s > impairment.delay_s
        ):
            raise BadInput(
                "expected a packet loss from 0 to 100%, and a jitter of at most the delay"
            )
        if self._lab.coloured and not any(
            is_end(self._lab, e.device) for e in (fibre.a, fibre.b)
        ):
            raise BadInput(
                f"fibre {fibre.a} – {fibre.b} cannot be impaired: in labs with wavelengths, only "
                "fibres of NICs and packet switches delay or lose packets"
            )
        rate_limits.check_supported()
        with ExitStack() as stack:
            requests = []
            for end, namespace in self._ends(fibre):
                netlink = stack.enter_context(Netlink(namespace))
                index = links.list_links(netlink)[end.name].index
                request = rate_limits.impair_request(
                    index,
                    end.name,
                    impairment,
                    end.rate_bps,
                )
                requests.append((netlink, request))
            for netlink, request in requests:
                netlink.run([request])

    def _ends(self, fibre: Fibre) -> Iterator[tuple[PlannedEnd, Path]]:
        cable = self._plan.cables[self._lab.fibres.index(fibre)]
        hosts = {host.endpoint: host for host in self._lab.hosts}
        for endpoint, planned in zip((fibre.a, fibre.b), cable, strict=True):
            if endpoint in hosts:
                nic = EmulatedHost(hosts[endpoint], self._plan, self._state)
                yield planned, nic.namespace()
            else:
                yield planned, namespaces.namespace_path(planned.namespace)


def send_fault(control: Path, request: dict[str, Any]) -> dict[str, Any]:
    """Set faults of the emulated switch at that socket; returns the active ones.

    ``BadInput`` for unknown ones, ``PatchlightError`` if no switch answers.
    """
    try:
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(30)
            line.connect(str(control))
            line.sendall(json.dumps(request).encode() + b"\n")
            with line.makefile() as answers:
                answer = json.loads(answers.readline())
    except (OSError, ValueError) as error:
        raise PatchlightError(
            f"no emulated switch answers at {control}: {reason(error)}",
            hint="see: patchlight emulate status, or patchlight emulate ocs --help",
        ) from error
    if not answer["ok"]:
        raise BadInput(
            f"the emulated switch refused the fault: {answer['error']}"
        )
    return dict(answer["faults"])


class LabOcs:
    """One OCS. Changes are transactions of the controller, with its errors."""

    def __init__(
        self,
        lab: Lab,
        switch: CircuitSwitch,
        controller: ControllerClient,
    ) -> None:
        self.switch = switch
        self._lab = lab
        self._controller = controller

    @property
    def map(self) -> PortMap:
        """Its present cross-connects."""
        return PortMap.parse(
            self._controller.circuits()[self.switch.name].map or ()
        )

    def connect(self, *circuits: str, why: str = "") -> ChangeAnswer:
        """Make circuits, replacing conflicting ones; returns the change. ``"1-7"``, ``"2>8"``, or
        hosts and ports with fibres to this OCS: ``"gpu0:tor1.2"``."""
        texts = []
        for text in circuits:
            a, colon, b = text.partition(":")
            texts.append(f"{self._port(a)}-{self._port(b)}" if colon else text)
        return self._controller.reconfigure({self.switch.name: texts}, why=why)

    def disconnect(self, *ports: int, why: str = "") -> ChangeAnswer:
        """Disconnect ports, both ways; returns the change."""
        disconnect = {self.switch.name: ports}
        return self._controller.reconfigure(
            {},
            disconnect=disconnect,
            why=why,
        )

    def fault(self, **settings: Any) -> dict[str, Any]:
        """Set faults of the emulated device (``fail_ports=[3]``, ``stall_s=2``, as in a lab file);
        returns the active ones. ``BadInput`` for unknown ones."""
        return send_fault(
            run_dir(self._lab.name)
            / "optical"
            / f"{self.switch.name}.control",
            settings,
        )

    def _port(self, name: str) -> int:
        end = (
            self._lab.host(name).endpoint
            if name in self._lab.host_names or "." not in name
            else Endpoint.parse(name)
        )
        other = self._lab.fibre_ends.get(end)
        if other is None or other[0].device != self.switch.name:
            raise BadInput(
                f"no fibre joins {name} and {self.switch.name}",
                hint=f"to see the fibres: patchlight lab show {self._lab.name}",
            )
        return int(other[0].port)


class NotReached(PatchlightError):
    """One host could not connect to another."""


@dataclass(
    frozen=True,
    slots=True,
)
class Reachability:
    """The number of host pairs (each both ways), and those that did not answer."""

    tried: int
    lost: tuple[tuple[str, str], ...]

    def __bool__(self) -> bool:
        return not self.lost


def ping_all(
    hosts: Sequence[EmulatedHost], wait_s: float = 1.0
) -> Reachability:
    """Let each host ping every other, up to three times, ``wait_s`` seconds each."""
    lost: list[tuple[str, str]] = []
    for source in hosts:
        others = {
            host.address: host.name
            for host in hosts
            if host.name != source.name
        }
        answered = _ping(source, list(others), wait_s) if others else set()
        lost += [
            (source.name, name)
            for at, name in others.items()
            if at not in answered
        ]
    return Reachability(len(hosts) * (len(hosts) - 1), tuple(lost))


def check_packet_sizes(lab: Lab, hosts: Sequence[EmulatedHost]) -> None:
    """``NotReached`` unless packets as large as the MTU of the lab file pass between hosts that the
    initial circuits join, each to the next one."""
    reach = Reach(lab, trace_links(lab, lab.initial_maps))
    sized = [host for host in hosts if host.host.nic.mtu is not None]
    for one, other in itertools.pairwise(sized):
        if one.host.nic.vlan != other.host.nic.vlan or reach.apart(
            [one.host, other.host]
        ):
            continue
        mtu = min(
            one.host.nic.mtu or USUAL_MTU, other.host.nic.mtu or USUAL_MTU
        )
        if not _answers(one, other, mtu):
            also = (
                "smaller packets do"
                if _answers(one, other, _SMALL_BYTES)
                else "small packets do not either"
            )
            words = f"packets of {mtu} bytes do not pass from {one.name} to {other.name}"
            raise NotReached(f"{words}, {also}")


def _answers(
    source: EmulatedHost,
    other: EmulatedHost,
    mtu: int,
) -> bool:
    """Whether a packet of that size passes there and back."""
    if source.is_virtual:
        size = mtu - _IP_HEADER_BYTES - _ICMP.size
        return not source.run(
            f"ping -c 3 -W 2 -M do -s {size} {other.address}"
        ).returncode
    return bool(
        _ping(
            source,
            [other.address],
            1.0,
            mtu,
        )
    )


def _ping(
    source: EmulatedHost,
    addresses: Sequence[str],
    wait_s: float,
    mtu: int = 0,
) -> set[str]:
    identity = os.getpid() & 0xFFFF
    answered: set[str] = set()
    with source.borrowed() as namespace:
        with namespaces.entered(namespace):
            icmp = socket.socket(
                socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP
            )
        with icmp:
            icmp.setsockopt(
                socket.IPPROTO_IP, _IP_MTU_DISCOVER, _NEVER_IN_FRAGMENTS
            )
            for attempt in range(3):
                # An ICMP echo request (RFC 792); zeros as data do not change its checksum.
                total = (_ECHO_REQUEST << 8) + identity + attempt
                checksum = ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF
                packet = _ICMP.pack(
                    _ECHO_REQUEST,
                    0,
                    checksum,
                    identity,
                    attempt,
                )
                packet = packet.ljust(mtu - _IP_HEADER_BYTES, b"\0")
                waiting = [
                    address for address in addresses if address not in answered
                ]
                for address in waiting:
                    with suppress(OSError):  # its link is down
                        icmp.sendto(packet, (address, 0))
                deadline = time.monotonic() + wait_s
                while len(answered) < len(addresses):
                    left_s = deadline - time.monotonic()
                    if (
                        left_s <= 0
                        or not select.select(
                            [icmp],
                            [],
                            [],
                            left_s,
                        )[0]
                    ):
                        break
                    data, (address, _) = icmp.recvfrom(_SNAP_BYTES)
                    kind, _, _, number, _ = _ICMP.unpack_from(
                        data, (data[0] & 0xF) * 4
                    )
                    if kind == _ECHO_REPLY and number == identity:
                        answered.add(address)
                if len(answered) >= len(addresses):
                    break
    return answered & set(addresses)


def tcp_rate_bps(
    sender: EmulatedHost,
    receiver: EmulatedHost,
    seconds: float,
) -> float:
    """The rate of one TCP connection in payload bits per second, measured at the receiver from the
    first byte. ``NotReached`` if the hosts cannot connect."""
    if sender.name == receiver.name:
        raise BadInput(f"from {sender.name} to itself: expected two hosts")
    if not seconds > 0:
        raise BadInput(f"{seconds:g} seconds: expected more than 0")
    with ExitStack() as stack:
        spaces = [
            stack.enter_context(host.borrowed()) for host in (sender, receiver)
        ]
        with namespaces.entered(spaces[1]):
            listener = stack.enter_context(socket.socket())
        with namespaces.entered(spaces[0]):
            client = stack.enter_context(socket.socket())
        listener.bind((receiver.address, 0))
        listener.listen(1)
        client.settimeout(5.0)
        try:
            client.connect(listener.getsockname())
        except OSError as error:
            raise NotReached(
                f"connecting from {sender.name} to {receiver.name}: {reason(error)}",
                hint="check the links: one may be down or have no circuit",
            ) from error
        server = stack.enter_context(listener.accept()[0])
        sending = threading.Thread(
            target=_send,
            args=(client, seconds),
        )
        sending.start()
        buffer = bytearray(_CHUNK_BYTES)
        server.settimeout(5.0)
        received = 0
        began = time.monotonic()
        with suppress(OSError):
            while (
                size := server.recv_into(buffer)
            ) and time.monotonic() < began + seconds:
                received += size
        received_bps = received * 8 / max(time.monotonic() - began, 1e-9)
        sending.join()
    return received_bps


def _send(client: socket.socket, seconds: float) -> None:
    payload = bytes(_CHUNK_BYTES)
    deadline = time.monotonic() + seconds
    # If the link goes down, received bytes still count.
    with client, suppress(OSError):
        while time.monotonic() < deadline:
            client.send(payload)


@dataclass(
    frozen=True,
    slots=True,
)
class Captured:
    """The result of a capture: frames written, and frames that the kernel dropped."""

    frames: int
    size_bytes: int
    dropped: int


def capture(
    end: PlannedEnd,
    path: Path,
    *,
    seconds: float,
    most_frames: int,
    most_bytes: int,
) -> Captured:
    """Record the frames at the switch end of a fibre, because NICs move. Ctrl-C ends it and leaves
    a valid file. ``PatchlightError`` if the file cannot be written."""
    with namespaces.entered(namespaces.namespace_path(end.namespace)):
        # Without a protocol it receives nothing until bound to its interface.
        frames = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        frames.bind((end.name, 0x0003))  # ETH_P_ALL
    with frames:
        frames.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 8 << 20)
        frames.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        try:
            with path.open("wb") as file:
                file.write(_HEADER)
                file.flush()
                return _copy(
                    frames,
                    file,
                    seconds,
                    most_frames,
                    most_bytes,
                )
        except OSError as error:
            raise PatchlightError(
                f"writing the capture to {path}: {error.strerror}",
                hint="choose a file in a writable folder with free space",
            ) from error


def _copy(
    frames: socket.socket,
    file: BinaryIO,
    seconds: float,
    most_frames: int,
    most_bytes: int,
) -> Captured:
    count = 0
    size = len(_HEADER)
    deadline = time.monotonic() + seconds
    with suppress(KeyboardInterrupt):
        while count < most_frames and size < most_bytes:
            left_s = deadline - time.monotonic()
            if (
                left_s <= 0
                or not select.select(
                    [frames],
                    [],
                    [],
                    left_s,
                )[0]
            ):
                break
            data, ancillary, _, _ = frames.recvmsg(_SNAP_BYTES, 256)
            # The kernel's timestamp: seconds and nanoseconds of Unix time.
            times = (
                v
                for *at, v in ancillary
                if at == [socket.SOL_SOCKET, _SO_TIMESTAMPNS]
            )
            taken = next(times, None)
            arrival = (
                struct.unpack("=qq", taken)
                if taken
                else divmod(time.time_ns(), 1_000_000_000)
            )
            file.write(_RECORD.pack(*arrival, len(data), len(data)) + data)
            count += 1
            size += _RECORD.size + len(data)
    _, dropped = struct.unpack(
        "=II", frames.getsockopt(_SOL_PACKET, _STATISTICS, 8)
    )
    return Captured(count, size, dropped)
