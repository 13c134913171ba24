"""Bounds within which nodes agree on paths: which are handed out, kept, and taken back."""

from collections.abc import Iterable

import pytest

from patchlight.controller.paths.bounds import (
    BoundsOrder,
    PathJob,
    PathShares,
    why_no_paths,
)
from patchlight.testbed.lab.spectrum import SpectrumMap
from patchlight.testbed.labfile.reader import load_lab
from patchlight.testbed.paths.light_networks import light_networks
from patchlight.testbed.wire.agent_status import PathNodeStatus

ODDL4 = load_lab("oddl4")
SERVERS = [server.name for server in ODDL4.servers]
NETWORKS = light_networks(ODDL4, {})
Said = dict[str, dict[str, PathNodeStatus]]


def job(*numbers: int) -> PathJob:
    return PathJob("vgg", [ODDL4.hosts[n] for n in numbers], 575e6)


def after(orders: Iterable[BoundsOrder], said: Said) -> Said:
    """What agents say once they have carried orders out."""
    told = {server: dict(nics) for server, nics in said.items()}
    for server, nic, bounds, _ in orders:
        told[server].pop(nic, None)
        if bounds is not None:
            told[server][nic] = PathNodeStatus(
                nic=nic,
                epoch=bounds.epoch,
                job=bounds.job,
                number=bounds.number,
                state="quiet",
            )
    return told


NOBODY: Said = {server: {} for server in SERVERS}


def test_a_job_has_bounds_while_it_runs() -> None:
    shares = PathShares()
    given = shares.orders([job(1, 0)], NETWORKS, NOBODY, 1000.0)
    first, second = (order.bounds for order in given)
    assert first is not None
    assert second is not None
    assert [(order.server, order.epoch) for order in given] == [
        ("server2", 1000),
        ("server1", 1000),
    ]
    assert (first.number, second.number) == (0, 1)
    assert first.channels == second.channels == ["193.150", "193.100"]
    assert first.key == second.key
    # 2 s, 2 × 1 ms to tune, 4 × what 575 MB take two nodes at 100 Gb/s.
    assert first.lease_us == 2_370_000
    assert shares.orders([job(1, 0)], NETWORKS, NOBODY, 1001.0) == given
    said = after(given, NOBODY)
    assert shares.orders([job(1, 0)], NETWORKS, said, 1002.0) == []
    # An agent that has lost its bounds is given the same.
    assert (
        shares.orders([job(1, 0)], NETWORKS, {**said, "server1": {}}, 1003.0)
        == given[1:]
    )
    over = shares.orders([], NETWORKS, said, 1004.0)
    assert [(order.server, order.bounds, order.epoch) for order in over] == [
        ("server1", None, 1000),
        ("server2", None, 1000),
    ]
    assert shares.orders([], NETWORKS, NOBODY, 1005.0) == []


def test_another_controller_leaves_the_bounds_that_all_of_a_job_have() -> None:
    jobs = [job(0, 1)]
    said = after(PathShares().orders(jobs, NETWORKS, NOBODY, 1000.0), NOBODY)
    later = PathShares()
    # Until all have been heard nothing is taken from anybody.
    assert (
        later.orders(jobs, NETWORKS, {"server1": said["server1"]}, 2000.0)
        == []
    )
    assert later.orders(jobs, NETWORKS, said, 2001.0) == []
    # What it has not given it cannot give again: all get others, of a later epoch.
    anew = later.orders(jobs, NETWORKS, {**said, "server1": {}}, 900.0)
    assert [(order.server, order.epoch) for order in anew] == [
        ("server1", 1001),
        ("server2", 1001),
    ]


def test_other_hosts_are_another_epoch() -> None:
    shares = PathShares()
    said = after(shares.orders([job(0, 1)], NETWORKS, NOBODY, 1000.0), NOBODY)
    moved = shares.orders([job(0, 2)], NETWORKS, said, 1000.0)
    assert {
        order.server: (order.bounds is None, order.epoch) for order in moved
    } == {
        "server1": (False, 1001),
        "server2": (True, 1000),
        "server3": (False, 1001),
    }


@pytest.mark.parametrize(
    ("hosts", "maps", "words"),
    [
        ((0,), {}, "it has one worker"),
        (
            (0, 2),
            {"wss3": ["1-3@193.175/200"], "wss4": ["1-3@193.175/200"]},
            "not in one optical network",
        ),
        (
            (0, 1),
            {"wss3": ["1-3@193.175/200"], "wss4": ["1-3@193.175/200"]},
            "",
        ),
        (
            (0, 1),
            {name: ["1-2@193.225/100"] for name in ("wss1", "wss2")},
            "lack a channel each",
        ),
    ],
)
def test_only_hosts_of_one_network_with_channels_of_their_own_get_bounds(
    hosts: tuple[int, ...], maps: dict[str, list[str]], words: str
) -> None:
    given = {name: SpectrumMap.parse(texts) for name, texts in maps.items()}
    spectra = {
        switch.name: switch.initial for switch in ODDL4.wavelength_switches
    } | given
    networks = light_networks(ODDL4, spectra)
    assert words in why_no_paths(job(*hosts), networks)
    given_to = PathShares().orders([job(*hosts)], networks, NOBODY, 1000.0)
    assert bool(given_to) == (not words)
