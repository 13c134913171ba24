"""Namespaces, links and limits, as the kernel then shows them."""

import errno
import os
from ipaddress import IPv4Interface

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchlight.emulation.fabric import links
from patchlight.testbed.linux import namespaces, rate_limits
from patchlight.testbed.linux.devices import set_tx_checksum, settle_link
from patchlight.testbed.linux.namespaces import NamespaceError
from patchlight.testbed.linux.netlink import KernelRefused, Netlink


@pytest.mark.root
def test_a_pair_is_made_across_namespaces(
    pair: tuple[Netlink, Netlink],
) -> None:
    a, b = pair
    assert set(links.list_links(a)) == {"lo", "a"}
    link = links.list_links(b)["b"]
    assert (link.index, link.kind, link.up, link.peer_index) == (
        100,
        "veth",
        True,
        100,
    )


@pytest.mark.root
def test_a_batch_says_which_request_the_kernel_refused(
    pair: tuple[Netlink, Netlink],
) -> None:
    a, _ = pair
    address = IPv4Interface("10.9.9.1/24")
    requests = [
        links.add_address(100, address, "a"),
        links.set_up(4711, "nobody"),
        links.set_alias(100, "after"),
    ]
    with pytest.raises(
        KernelRefused, match=r"bringing nobody up.*No such device"
    ) as caught:
        a.run(requests)
    assert caught.value.code == errno.ENODEV
    a.run(requests[:1])  # The socket is still in step.


@pytest.mark.root
def test_long_batches_are_answered(pair: tuple[Netlink, Netlink]) -> None:
    a, _ = pair
    a.run([links.set_alias(100, f"alias {n}") for n in range(1000)])


@pytest.mark.root
@pytest.mark.parametrize("rate_bps", [1e6, 10e6, 40e9, 400e9])
def test_limits_are_read_back_as_set(
    pair: tuple[Netlink, Netlink], rate_bps: float
) -> None:
    a, _ = pair
    a.run([rate_limits.limit_request(100, "a", rate_bps)])
    rate_limits.verify_limits(a, [(100, "a", rate_bps)])
    a.run([rate_limits.limit_request(100, "a", rate_bps / 2)])
    with pytest.raises(rate_limits.NotShaped, match="instead of"):
        rate_limits.verify_limits(a, [(100, "a", rate_bps)])


@pytest.mark.root
def test_an_unlimited_link_is_not_taken_for_a_limited_one(
    pair: tuple[Netlink, Netlink],
) -> None:
    with pytest.raises(
        rate_limits.NotShaped, match="no limit instead of 10Mbps"
    ):
        rate_limits.verify_limits(pair[1], [(100, "b", 10e6)])


@pytest.mark.root
def test_a_limit_on_nothing_is_an_error(pair: tuple[Netlink, Netlink]) -> None:
    with pytest.raises(KernelRefused, match="limiting ghost to 10Mbps"):
        pair[0].run([rate_limits.limit_request(4711, "ghost", 10e6)])


@pytest.mark.root
def test_checksum_offload_goes_off_and_links_carry_at_once(
    pair: tuple[Netlink, Netlink],
) -> None:
    name = f"pl.test-{os.getpid()}-a.x"
    with namespaces.entered(namespaces.namespace_path(name)):
        set_tx_checksum("a", False)
        assert settle_link("a")


@pytest.mark.root
def test_a_name_that_is_taken_is_refused_and_not_touched() -> None:
    name = f"pl.test-{os.getpid()}-c.x"
    own = namespaces.own_inode()
    namespaces.prepare_directory()
    with namespaces.kept_namespace():
        made = namespaces.create_here(name)
        with pytest.raises(NamespaceError, match="already exists"):
            namespaces.create_here(name)
    assert namespaces.own_inode() == own
    assert namespaces.inode(namespaces.namespace_path(name)) == made
    namespaces.delete(name)
    assert not namespaces.namespace_path(name).exists()


@given(st.floats(min_value=1e3, max_value=8e11))
def test_a_token_bucket_can_reach_its_rate(rate_bps: float) -> None:
    bucket = rate_limits.token_bucket(rate_bps)
    assert bucket.rate_bytes_per_s == pytest.approx(rate_bps / 8, rel=0.01)
    # Two full frames, or what the rate sends in a 4 ms tick (up to 1 GiB).
    assert bucket.burst_bytes >= min(
        max(2 * 1514, bucket.rate_bytes_per_s * 0.0039), 1 << 30
    )
    assert bucket.limit_bytes - bucket.burst_bytes >= 64 * 1024
    assert bucket.limit_bytes < 1 << 32


def test_a_limit_that_is_missing_or_other_is_told() -> None:
    wanted = [(1, "a", 40e6), (2, "b", 10e6), (3, "c", 10e6)]
    assert rate_limits.wrong_limits({1: 40e6, 2: 20e6}, wanted) == {
        "b": "20Mbps instead of 10Mbps",
        "c": "no limit instead of 10Mbps",
    }
