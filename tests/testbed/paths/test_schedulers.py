"""What every scheduler of paths keeps to, and what each is for."""

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patchlight.testbed.errors import BadInput
from patchlight.testbed.paths.schedulers import (
    SCHEDULERS,
    in_time,
    path_scheduler,
)
from patchlight.testbed.paths.scheduling import (
    FlowRequest,
    PathGrant,
    PathNetwork,
)

every_scheduler = pytest.mark.parametrize("name", SCHEDULERS)


def _routes(nodes: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Those of an AWG router: the k-th channel goes k nodes further on."""
    ranks = np.arange(nodes)
    return (ranks[None, :] - ranks[:, None]) % nodes


@st.composite
def _networks(draw: st.DrawFn) -> PathNetwork:
    nodes = draw(st.integers(2, 5))
    routed = draw(st.booleans())
    return PathNetwork(
        nodes,
        nodes if routed else draw(st.integers(1, 5)),
        rate_bps=8.0,
        tuning_s=draw(st.sampled_from([0.0, 0.5])),
        transmitters=draw(st.integers(1, 2)),
        receivers=draw(st.integers(1, 2)),
        routes=_routes(nodes) if routed else None,
    )


@st.composite
def _arrivals(draw: st.DrawFn, nodes: int) -> list[tuple[float, FlowRequest]]:
    found = []
    for number in range(draw(st.integers(0, 12))):
        source, destination = draw(st.permutations(range(nodes)))[:2]
        collective = draw(st.sampled_from([None, "a", "b"]))
        flow = FlowRequest(
            number,
            source,
            destination,
            draw(st.integers(1, 4)),
            collective=collective,
            round=draw(st.integers(0, 2)) if collective else 0,
        )
        found.append((draw(st.integers(0, 4)) / 2, flow))
    return found


@every_scheduler
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_paths_never_meet_and_every_flow_is_sent(
    name: str, data: st.DataObject
) -> None:
    network = data.draw(_networks())
    arrivals = data.draw(_arrivals(network.nodes))
    paths = list(in_time(path_scheduler(name, network), arrivals))
    assert {path.flow for path in paths} == set(range(len(arrivals)))
    for a, b in combinations(paths, 2):
        if a.starts_s < b.ends_s and b.starts_s < a.ends_s:
            assert (a.source, a.transmitter) != (b.source, b.transmitter)
            assert (a.destination, a.receiver) != (b.destination, b.receiver)
            assert a.channel != b.channel or network.routes is not None
    for path in paths:
        if network.routes is not None:
            assert (
                path.channel == network.routes[path.source, path.destination]
            )


@every_scheduler
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_nobody_waits_for_whom_all_is_free(
    name: str, data: st.DataObject
) -> None:
    network = data.draw(_networks())
    scheduler = path_scheduler(name, network)
    waiting = {}
    in_use: dict[int, PathGrant] = {}
    for now_s, flow in data.draw(_arrivals(network.nodes)):
        scheduler.admit([flow], now_s)
        waiting[flow.flow] = flow
        for done in (
            data.draw(st.sets(st.sampled_from(sorted(in_use))))
            if in_use
            else ()
        ):
            scheduler.release(done, now_s)
            del in_use[done]
        for grant in scheduler.grants(now_s):
            in_use[grant.flow] = grant
            del waiting[grant.flow]
        sending = Counter(grant.source for grant in in_use.values())
        receiving = Counter(grant.destination for grant in in_use.values())
        has_channels = (
            network.routes is not None or len(in_use) < network.channels
        )
        assert not [
            flow
            for flow in waiting.values()
            if sending[flow.source] < network.transmitters
            and receiving[flow.destination] < network.receivers
            and has_channels
        ]
        assert {flow.flow for flow in scheduler.waiting} == set(waiting)
        assert {grant.flow for grant in scheduler.granted} == set(in_use)


def _all_to_all(nodes: int, collective: str = "a") -> list[FlowRequest]:
    pairs = [(a, b) for a in range(nodes) for b in range(nodes) if a != b]
    return [
        FlowRequest(i, a, b, 1.0, collective=collective)
        for i, (a, b) in enumerate(pairs)
    ]


def test_an_all_to_all_takes_one_path_less_than_it_has_nodes() -> None:
    network = PathNetwork(12, 12, rate_bps=8.0, tuning_s=0.25)
    flows = [(0.0, flow) for flow in _all_to_all(12)]
    ends_s = {
        name: max(
            path.ends_s
            for path in in_time(path_scheduler(name, network), flows)
        )
        for name in SCHEDULERS
    }
    assert ends_s["collective"] == 11 * 1.25
    assert ends_s["first-come"] > 11 * 1.25


def test_a_ring_is_one_round_and_keeps_its_light() -> None:
    network = PathNetwork(1024, 1024, rate_bps=8.0, tuning_s=0.25)
    scheduler = path_scheduler("collective", network)
    for step in range(3):
        now_s = 2.0 * step
        ring = [
            FlowRequest(n, n, (n + 1) % 1024, 1.0, collective="r")
            for n in range(1024)
        ]
        scheduler.admit(ring, now_s)
        paths = scheduler.grants(now_s)
        assert {path.starts_s for path in paths} == {
            now_s + (0.25 if step == 0 else 0.0)
        }
        assert len(paths) == 1024
        for path in paths:
            scheduler.release(path.flow, path.ends_s)


def test_the_order_is_what_the_name_says() -> None:
    network = PathNetwork(3, 1)
    flows = [
        FlowRequest(0, 0, 1, 3.0, collective="a", round=1),
        FlowRequest(1, 1, 2, 1.0, deadline_s=9.0, collective="b"),
        FlowRequest(2, 2, 0, 2.0, deadline_s=5.0, collective="a"),
    ]
    orders: dict[str, list[int]] = {}
    for name in SCHEDULERS:
        scheduler = path_scheduler(name, network)
        assert scheduler.admit(flows, 0.0) == []
        orders[name] = []
        while paths := scheduler.grants(0.0):
            orders[name] += [path.flow for path in paths]
            scheduler.release(paths[0].flow, 0.0)
    assert orders == {
        "first-come": [0, 1, 2],
        "shortest-first": [1, 2, 0],
        "deadline-first": [2, 1, 0],
        "matching": [0, 1, 2],
        "collective": [2, 0, 1],
    }


@pytest.mark.parametrize("channels", [2, 5])
def test_matching_passes_no_pair_over(channels: int) -> None:
    nodes = 5
    rounds = 200
    scheduler = path_scheduler("matching", PathNetwork(nodes, channels))
    served = Counter[tuple[int, int]]()
    number = 0
    for flow in _all_to_all(nodes):
        scheduler.admit([flow._replace(flow=number)], 0.0)
        number += 1
    for _ in range(rounds):
        for path in scheduler.grants(0.0):
            served[path.source, path.destination] += 1
            scheduler.release(path.flow, 0.0)
            scheduler.admit(
                [FlowRequest(number, path.source, path.destination, 1.0)], 0.0
            )
            number += 1
    mean = rounds * channels / (nodes * (nodes - 1))
    assert len(served) == nodes * (nodes - 1)
    assert min(served.values()) > 0.5 * mean


def test_control_takes_its_time_before_and_after_a_path() -> None:
    network = PathNetwork(2, 1, rate_bps=8.0)
    flows = [(0.0, FlowRequest(number, 0, 1, 1.0)) for number in range(2)]
    paths = list(
        in_time(path_scheduler("first-come", network), flows, control_s=0.1)
    )
    assert [path.starts_s for path in paths] == pytest.approx([0.2, 1.4])


def test_a_flow_that_cannot_be_in_time_or_has_no_way_is_refused() -> None:
    routes = np.full((3, 3), -1)
    routes[0, 1] = 0
    scheduler = path_scheduler(
        "first-come", PathNetwork(3, 1, rate_bps=8.0, routes=routes)
    )
    flows = [
        FlowRequest(0, 0, 1, 4.0, deadline_s=12.0),
        FlowRequest(1, 0, 1, 4.0, deadline_s=14.0),
        FlowRequest(2, 1, 0, 1.0),
    ]
    assert [
        (refusal.flow, refusal.reason)
        for refusal in scheduler.admit(flows, 10.0)
    ] == [
        (0, "its deadline is in 2 s, and sending it takes 4 s"),
        (2, "there is no path from node 1 to node 0"),
    ]
    assert [path.flow for path in scheduler.grants(10.0)] == [1]


@every_scheduler
@pytest.mark.parametrize(
    ("flow", "words"),
    [
        (
            FlowRequest(1, 2, 2, 1.0),
            "flow 1 goes from node 2 to itself: expected another",
        ),
        (FlowRequest(1, 2, 4, 1.0), "flow 1: unknown node 4: expected 0 to 3"),
        (
            FlowRequest(1, 2, 3, 0.0),
            "flow 1 has 0 bytes: expected more than 0",
        ),
        (
            FlowRequest(0, 2, 3, 1.0),
            "flow 0 already exists: expected another number",
        ),
    ],
)
def test_of_flows_with_a_mistake_none_is_taken(
    name: str, flow: FlowRequest, words: str
) -> None:
    scheduler = path_scheduler(name, PathNetwork(4, 4))
    with pytest.raises(BadInput, match=words):
        scheduler.admit([FlowRequest(0, 0, 1, 1.0), flow], 0.0)
    assert scheduler.grants(0.0) == []
    assert scheduler.waiting == []


def test_what_there_is_not_is_said() -> None:
    with pytest.raises(BadInput, match="expected first-come, shortest-first"):
        path_scheduler("fastest", PathNetwork(4, 4))
    with pytest.raises(BadInput, match="expected 2 nodes or more"):
        PathNetwork(4, 0)
    with pytest.raises(BadInput, match="do not fit 4 nodes"):
        PathNetwork(4, 2, routes=_routes(4))
    with pytest.raises(BadInput, match="unknown flow 7"):
        path_scheduler("matching", PathNetwork(4, 4)).release(7, 0.0)
