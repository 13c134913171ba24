"""Nodes that agree on paths: searched over all orders of events, and found out when made wrong."""

from dataclasses import replace

import pytest

from patchlight.testbed.errors import BadInput
from patchlight.testbed.paths.agreement import (
    Asking,
    Bounds,
    Lit,
    Message,
    Node,
)
from patchlight.testbed.paths.scheduling import NO_CHANNEL
from tests.support.path_search import Faults, Make, Meeting, Search

# Three nodes; node 0 owns channel 0 and node 1 channel 1, so node 2 has to get one from node 0.
BOUNDS = Bounds(epoch=1, nodes=3, owners=(0, 1), lease_us=2, margin_us=1)
ALL = [(2,), (2,), (0,)]
TO_ONE = [(2,), (2,), ()]
ONE_CHANNEL = [(2,), (), (0,)]


@pytest.mark.parametrize(
    ("wanted", "faults"),
    [
        (ALL, Faults(doubles=1)),
        ([(1,), (), (1,)], Faults(crashes=1)),
        (TO_ONE, Faults(losses=1, doubles=1)),
        (TO_ONE, Faults(delays=3)),
        (TO_ONE, Faults(crashes=1)),
        (TO_ONE, Faults(hasty=1, late_ticks=1)),
        (ONE_CHANNEL, Faults(losses=2)),
        (ONE_CHANNEL, Faults(crashes=1)),
        (ONE_CHANNEL, Faults(delays=2, late_ticks=1)),
        ([(2, 1), (), (1,)], Faults(doubles=1)),
    ],
)
def test_light_never_meets_and_everybody_comes_to_an_end(
    wanted: list[tuple[int, ...]], faults: Faults
) -> None:
    found = Search(BOUNDS, wanted, faults).run()
    assert found.stuck == []
    assert found.ends > 0
    assert found.states > 1000


def test_where_channels_go_by_destination_receivers_are_all_there_is_to_give() -> (
    None
):
    found = Search(replace(BOUNDS, owners=()), ALL, Faults(losses=1)).run()
    assert (found.stuck, found.ends > 0) == ([], True)


class _Gullible(Node):
    """Uses whatever is given, also to an attempt before."""

    __slots__ = ()

    def is_current(self, give: Message) -> bool:
        return isinstance(self.path, Asking)


class _Forgetful(Node):
    """Takes an old message of a node for its last."""

    __slots__ = ()

    def is_new(self, message: Message) -> bool:
        return True


def _hurried(number: int, bounds: Bounds, boot: int) -> Node:
    """A node that gives at once after it has started."""
    return replace(Node.started(number, bounds, boot), quiet_us=0)


@pytest.mark.parametrize(
    ("make", "wanted", "faults"),
    [
        (_Gullible.started, [(2, 1), (), (1,)], Faults(doubles=1)),
        (_Forgetful.started, [(1, 1), (), (1,)], Faults(doubles=1)),
        (_hurried, [(1,), (), (1,)], Faults(crashes=1)),
    ],
    ids=["gullible", "forgetful", "hurried"],
)
def test_a_node_that_is_made_wrong_is_found_out(
    make: Make, wanted: list[tuple[int, ...]], faults: Faults
) -> None:
    with pytest.raises(Meeting):
        Search(BOUNDS, wanted, faults, make).run()


def test_clocks_that_drift_further_than_the_margin_are_found_out() -> None:
    with pytest.raises(Meeting):
        Search(
            replace(BOUNDS, margin_us=0), TO_ONE, Faults(late_ticks=1)
        ).run()


BOUNDS_OF_4 = Bounds(
    epoch=1, nodes=4, owners=(0, 1, 2, 3), lease_us=1000, margin_us=10
)


def _awake(number: int, bounds: Bounds = BOUNDS_OF_4) -> Node:
    return Node.started(number, bounds, 0).elapse(
        bounds.lease_us + bounds.margin_us
    )[0]


def test_with_a_channel_for_each_receiver_one_answer_is_enough() -> None:
    sender, (ask,) = _awake(0).want(3)
    receiver, (give,) = _awake(3).hear(ask)
    sender, nothing = sender.hear(give)
    assert (sender.path, nothing) == (Lit(3, 3, 1000), ())
    sender, (release,) = sender.done()
    receiver, _ = receiver.hear(release)
    assert (sender.path, receiver.given) == (None, ())


def test_those_that_wait_get_it_in_the_order_in_which_they_came() -> None:
    receiver = _awake(3)
    asks = [_awake(number).want(3)[1][0] for number in (2, 0, 1)]
    told = []
    for ask in asks:
        receiver, messages = receiver.hear(ask)
        told += [message.to for message in messages]
    for ask in asks:
        end = ask._replace(kind="release", receiver=False, channel=NO_CHANNEL)
        receiver, messages = receiver.hear(end)
        told += [message.to for message in messages]
    assert told == [2, 0, 1]


def test_light_goes_off_with_its_lease_and_what_was_given_a_margin_later() -> (
    None
):
    sender, (ask,) = _awake(0).want(1)
    receiver, (give,) = _awake(1).hear(ask)
    sender, _ = sender.hear(give)
    for us, lit, held in (
        (999, True, True),
        (1, False, True),
        (9, False, True),
        (1, False, False),
    ):
        sender = sender.elapse(us)[0]
        receiver = receiver.elapse(us)[0]
        assert (sender.path is not None, bool(receiver.given)) == (lit, held)


def test_messages_of_other_bounds_are_not_heard() -> None:
    _, (ask,) = _awake(0).want(1)
    later = _awake(1, replace(BOUNDS_OF_4, epoch=2))
    assert later.hear(ask) == (later, ())


def test_what_makes_no_sense_is_said() -> None:
    node = _awake(0)
    with pytest.raises(
        BadInput,
        match="node 0 cannot send to node 0: expected another of 0 to 3",
    ):
        node.want(0)
    with pytest.raises(BadInput, match="node 0 has one transmitter"):
        node.want(1)[0].want(2)
    with pytest.raises(BadInput, match="channels belong to nodes"):
        replace(BOUNDS_OF_4, owners=(0, 4))
    with pytest.raises(BadInput, match="a lease of 0 µs"):
        replace(BOUNDS_OF_4, lease_us=0)
