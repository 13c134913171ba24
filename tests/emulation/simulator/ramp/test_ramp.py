import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchlight.emulation.simulator.ramp.ramp import (
    PAC_ML_SHAPE,
    PlacementRule,
    Ramp,
    RampShape,
    block_shapes,
    place,
    scan,
)
from patchlight.testbed.errors import BadInput

RAMP = Ramp(PAC_ML_SHAPE)


@pytest.mark.parametrize(
    ("count", "shapes"),
    [
        (1, [(1, 1, 1)]),
        (2, [(2, 1, 1), (1, 1, 2), (1, 2, 1)]),
        (4, [(2, 2, 1), (4, 1, 1), (2, 1, 2)]),
        (6, [(3, 1, 2), (3, 2, 1)]),
        (8, [(2, 2, 2), (4, 1, 2), (4, 2, 1)]),
        (10, []),
        (12, []),
        (14, []),
        (16, [(4, 4, 1)]),
    ],
)
def test_shapes_of_the_papers_cluster(
    count: int, shapes: list[tuple[int, int, int]]
) -> None:
    assert block_shapes(count, PAC_ML_SHAPE) == shapes


def test_coordinates_and_numbers_are_inverse() -> None:
    seen = [RAMP.coordinates(server) for server in range(PAC_ML_SHAPE.size)]
    assert seen[0] == (0, 0, 0)
    assert seen[1] == (0, 0, 1)
    assert seen[2] == (0, 1, 0)
    assert seen[8] == (1, 0, 0)
    assert [RAMP.server(*each) for each in seen] == list(range(32))


def test_first_fit_takes_shapes_and_origins_in_turn() -> None:
    first = RAMP.first_free(4, 0)
    assert first is not None
    square = [(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0)]
    assert [RAMP.coordinates(server) for server in first.servers] == square
    second = RAMP.first_free(4, first.mask)
    assert second is not None
    assert {RAMP.coordinates(s)[2] for s in second.servers} == {1}


def test_a_diagonal_is_taken_when_no_rectangle_is_free() -> None:
    # Free are (i, i, 0): no rectangle of 2 or 4, but diagonals.
    free = sum(1 << RAMP.server(i, i, 0) for i in range(4))
    occupied = (2**32 - 1) & ~free
    four = RAMP.first_free(4, occupied)
    two = RAMP.first_free(2, occupied)
    assert four is not None
    assert four.mask == free
    assert two is not None
    assert [RAMP.coordinates(s) for s in two.servers] == [(0, 0, 0), (1, 1, 0)]
    assert RAMP.first_free(6, occupied) is None


@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 2, 4, 6, 8, 16]))
def test_a_block_is_free_and_of_its_size(occupied: int, count: int) -> None:
    block = RAMP.first_free(count, occupied)
    free = RAMP.free_blocks(count, occupied)
    assert (block is None) == (not free)
    if block is not None:
        assert block == free[0]
        assert block.mask & occupied == 0
        assert block.mask.bit_count() == len(set(block.servers)) == count


@given(
    st.builds(
        RampShape, st.integers(1, 5), st.integers(1, 5), st.integers(1, 3)
    )
)
def test_any_shape_of_cluster(shape: RampShape) -> None:
    ramp = Ramp(shape)
    for degree in ramp.degrees:
        block = ramp.first_free(degree, 0)
        assert block is not None
        assert block.mask < 1 << shape.size
    assert ramp.first_free(1, (1 << shape.size) - 1) is None


def test_a_cluster_of_nothing() -> None:
    with pytest.raises(BadInput, match="at least 1 of each"):
        RampShape(4, 0, 2)


@pytest.mark.parametrize(
    "shape", [RampShape(4, 4, 2), RampShape(6, 3, 4), RampShape(3, 5, 1)]
)
def test_large_clusters_find_the_block_that_a_list_of_all_blocks_gives(
    shape: RampShape,
) -> None:
    ramp = Ramp(shape)
    rng = np.random.default_rng(0)
    for count in (1, 2, 3, 4, 6, 8, 16):
        for part in (0.0, 0.2, 0.4, 0.6, 1.0):
            occupied = sum(
                1 << int(n)
                for n in np.flatnonzero(rng.random(shape.size) < part)
            )
            assert scan(ramp, count, occupied) == ramp.first_free(
                count, occupied
            )


def test_a_cluster_of_65536_servers_places_jobs() -> None:
    ramp = Ramp(RampShape(32, 32, 64))
    assert ramp.degrees[:4] == (1, 2, 4, 6)
    occupied = 0
    for _ in range(20):
        part, whole = (
            place(ramp, PlacementRule.RAMP_BLOCK, (4, 16), occupied) or ()
        )
        assert (len(part.servers), len(whole.servers)) == (4, 16)
        assert not part.mask & ~whole.mask
        assert not occupied & whole.mask
        occupied |= whole.mask
