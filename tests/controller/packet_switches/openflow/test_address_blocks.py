from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from patchlight.controller.packet_switches.openflow.forwarding import (
    address_blocks,
)

BITS = 8


@given(
    st.dictionaries(st.integers(0, 255), st.sampled_from("abc")),
    st.integers(0, BITS),
)
def test_each_address_is_in_one_block_and_that_is_its_owners(
    owner_of: dict[int, str], shortest: int
) -> None:
    blocks = list(address_blocks(owner_of, BITS, shortest))
    assert all(block.length >= shortest for block in blocks)
    for address, owner in owner_of.items():
        holding = [
            b for b in blocks if (address ^ b.first) >> (BITS - b.length) == 0
        ]
        assert [block.owner for block in holding] == [owner]
    ranges = sorted(
        (b.first, b.first + (1 << (BITS - b.length))) for b in blocks
    )
    assert all(end <= begin for (_, end), (begin, _) in pairwise(ranges))


def test_neighbours_of_one_owner_are_one_block() -> None:
    owner_of = dict.fromkeys(range(0x20, 0x30), "a") | dict.fromkeys(
        range(0x41, 0x50), "b"
    )
    blocks = list(address_blocks(owner_of, BITS))
    assert [(b.first, b.length, b.owner) for b in blocks] == [
        (0x20, 4, "a"),
        (0x40, 4, "b"),
    ]


def test_a_foreign_address_divides_a_block() -> None:
    blocks = list(address_blocks({0: "a", 1: "a", 2: "b", 3: "a"}, 2))
    assert [(b.first, b.length, b.owner) for b in blocks] == [
        (0, 1, "a"),
        (2, 2, "b"),
        (3, 2, "a"),
    ]
