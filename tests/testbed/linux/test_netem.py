"""Delay, jitter and loss of a link: beside its limit, moved with it, refused where it must be."""

import os
import socket
import struct
import time
from ipaddress import IPv4Interface

import pytest

from patchlight.emulation.fabric import links
from patchlight.testbed.linux import namespaces, rate_limits
from patchlight.testbed.linux import rate_limits as netem
from patchlight.testbed.linux.netlink import (
    KernelRefused,
    Netlink,
    set_neighbours,
)
from patchlight.testbed.linux.rate_limits import (
    Impairment,
    impair_request,
    read_impairments,
)

pytestmark = pytest.mark.root


def has_netem() -> bool:
    try:
        netem.check_supported()
    except netem.NoNetem:
        return False
    return True


@pytest.fixture
def pair(pair: tuple[Netlink, Netlink]) -> tuple[Netlink, Netlink]:
    """The pair with addresses: ``a`` 10.9.9.1, ``b`` 10.9.9.2, which ``a`` knows without ARP:
    a lost request would hold all packets up for a second."""
    for netlink, name, number in zip(pair, "ab", (1, 2), strict=True):
        address = IPv4Interface(f"10.9.9.{number}/24")
        netlink.run([links.add_address(100, address, name)])
    a, b = pair
    set_neighbours(a, 100, "a", [("10.9.9.2", links.list_links(b)["b"].mac)])
    return pair


def round_trips_s(count: int) -> list[float]:
    """The times of UDP packets from ``a`` to ``b`` that arrive, of so many."""
    paths = [
        namespaces.namespace_path(f"pl.test-{os.getpid()}-{n}.x")
        for n in ("a", "b")
    ]
    with namespaces.entered(paths[1]):
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with namespaces.entered(paths[0]):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with sender, receiver:
        receiver.bind(("10.9.9.2", 5000))
        receiver.settimeout(1)
        for _ in range(count):
            sender.sendto(
                struct.pack("=d", time.monotonic()), ("10.9.9.2", 5000)
            )
        times: list[float] = []
        while len(times) < count:
            try:
                (sent,) = struct.unpack("=d", receiver.recv(64))
            except TimeoutError:
                return times
            times.append(time.monotonic() - sent)
    return times


@pytest.mark.skipif(
    not os.geteuid() and has_netem(), reason="this kernel has netem"
)
def test_a_kernel_without_it_is_told_with_what_to_do(
    pair: tuple[Netlink, Netlink],
) -> None:
    with pytest.raises(
        netem.NoNetem, match="this kernel has no netem"
    ) as caught:
        netem.check_supported()
    assert "modprobe sch_netem" in str(caught.value)
    with pytest.raises(
        KernelRefused, match="delaying and losing packets at a with netem"
    ):
        pair[0].run([impair_request(100, "a", Impairment(0.01), None)])


needs_netem = pytest.mark.skipif(
    bool(os.geteuid()) or not has_netem(), reason="this kernel has no netem"
)


@pytest.mark.kernel
@needs_netem
@pytest.mark.parametrize("rate_bps", [None, 40e6])
def test_packets_are_delayed_and_lost(
    pair: tuple[Netlink, Netlink], rate_bps: float | None
) -> None:
    a, _ = pair
    if rate_bps is not None:
        a.run([rate_limits.limit_request(100, "a", rate_bps)])
    for impairment in (Impairment(0.03, 0.005, 0.5), Impairment(0.05)):
        a.run([impair_request(100, "a", impairment, rate_bps)])
        assert read_impairments(a) == {100: impairment}
        arrived = round_trips_s(200)
        assert min(arrived) >= impairment.delay_s - impairment.jitter_s - 0.001
        assert (
            len(arrived) < 200
            if impairment.packet_loss
            else len(arrived) == 200
        )
    if rate_bps is not None:
        rate_limits.verify_limits(a, [(100, "a", rate_bps)])
    a.run([impair_request(100, "a", netem.NOT_IMPAIRED, rate_bps)])
    assert read_impairments(a) == {}
    assert len(round_trips_s(200)) == 200


@pytest.mark.kernel
@needs_netem
@pytest.mark.parametrize("rate_bps", [None, 40e6])
def test_what_is_saved_is_restored(
    pair: tuple[Netlink, Netlink], rate_bps: float | None
) -> None:
    a, b = pair
    impairment = Impairment(0.02, 0.001, 0.25)
    if rate_bps is not None:
        a.run([rate_limits.limit_request(100, "a", rate_bps)])
    a.run([impair_request(100, "a", impairment, rate_bps)])
    saved = rate_limits.save_limit(a, 100, "a")
    assert saved is not None
    rate_limits.restore_limit(b, 100, "b", saved)
    assert read_impairments(b) == {100: impairment}
    assert rate_limits.read_limits(b) == rate_limits.read_limits(a)
