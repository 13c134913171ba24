"""Who reaches whom in a lab that is up, and how fast: with sockets in the hosts' namespaces.

Nothing is started for it: a socket belongs to the namespace that it was opened in.
"""

import os
import select
import socket
import struct
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from patchlight.emulation.lab.hosts import EmulatedHost
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.linux import namespaces

_ECHO_REQUEST, _ECHO_REPLY = 8, 0
_ICMP = struct.Struct("!BBHHH")
_ATTEMPTS = 3
_CHUNK_BYTES = 1 << 18


class NotReached(PatchlightError):
    """One host could not connect to another."""


@dataclass(frozen=True, slots=True)
class Reachability:
    """How many pairs of hosts were tried (each both ways), and those that did not answer."""

    tried: int
    lost: tuple[tuple[str, str], ...]

    def __bool__(self) -> bool:
        return not self.lost


def ping_all(hosts: Sequence[EmulatedHost], wait_s: float = 1.0) -> Reachability:
    """Each host pings every other, up to three times, ``wait_s`` seconds for the answers."""
    lost: list[tuple[str, str]] = []
    for source in hosts:
        others = {host.address: host.name for host in hosts if host.name != source.name}
        answered = _ping(source, list(others), wait_s) if others else set()
        lost += [(source.name, name) for at, name in others.items() if at not in answered]
    return Reachability(len(hosts) * (len(hosts) - 1), tuple(lost))


def _ping(source: EmulatedHost, addresses: Sequence[str], wait_s: float) -> set[str]:
    """Those of the addresses that answer."""
    identity = os.getpid() & 0xFFFF
    answered: set[str] = set()
    with source.borrowed() as namespace:
        with namespaces.entered(namespace):
            icmp = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
        with icmp:
            for attempt in range(_ATTEMPTS):
                packet = _echo_request(identity, attempt)
                waiting = [address for address in addresses if address not in answered]
                for address in waiting:
                    try:
                        icmp.sendto(packet, (address, 0))
                    except OSError:
                        continue  # its link is down: nobody can answer
                deadline = time.monotonic() + wait_s
                while len(answered) < len(addresses):
                    left_s = deadline - time.monotonic()
                    if left_s <= 0 or not select.select([icmp], [], [], left_s)[0]:
                        break
                    data, (address, _) = icmp.recvfrom(2048)
                    kind, _, _, number, _ = _ICMP.unpack_from(data, (data[0] & 0xF) * 4)
                    if kind == _ECHO_REPLY and number == identity:
                        answered.add(address)
                if len(answered) >= len(addresses):
                    break
    return answered & set(addresses)


def _echo_request(identity: int, sequence: int) -> bytes:
    """An ICMP echo request without data (RFC 792)."""
    words = (_ECHO_REQUEST << 8, identity, sequence)
    total = sum(words)
    checksum = ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF
    return _ICMP.pack(_ECHO_REQUEST, 0, checksum, identity, sequence)


def tcp_rate_bps(sender: EmulatedHost, receiver: EmulatedHost, seconds: float) -> float:
    """What one TCP connection carries from one host to another, in payload bits per second.

    Counted where it arrives, from the first byte on. ``NotReached`` if they cannot connect.
    """
    if sender.name == receiver.name:
        raise BadInput(f"from {sender.name} to itself: expected two hosts")
    if not seconds > 0:
        raise BadInput(f"{seconds:g} seconds: expected more than 0")
    with ExitStack() as stack:
        spaces = [stack.enter_context(host.borrowed()) for host in (sender, receiver)]
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
                f"connecting from {sender.name} to {receiver.name}: {error}",
                hint="look at the links: is one of them dark or down?",
            ) from error
        server = stack.enter_context(listener.accept()[0])
        sending = threading.Thread(target=_send, args=(client, seconds))
        sending.start()
        received_bps = _receive_bps(server, seconds)
        sending.join()
    return received_bps


def _send(client: socket.socket, seconds: float) -> None:
    payload = bytes(_CHUNK_BYTES)
    deadline = time.monotonic() + seconds
    try:
        while time.monotonic() < deadline:
            client.send(payload)
    except OSError:
        pass  # the link went down: what arrived before is counted
    finally:
        client.close()


def _receive_bps(server: socket.socket, seconds: float) -> float:
    buffer = bytearray(_CHUNK_BYTES)
    server.settimeout(5.0)
    received = 0
    began = time.monotonic()
    try:
        while (size := server.recv_into(buffer)) and time.monotonic() < began + seconds:
            received += size
    except OSError:
        pass
    return received * 8 / max(time.monotonic() - began, 1e-9)
