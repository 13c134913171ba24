"""Placements that remember what is free decide as ones that look at every server each time."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patchlight.controller.policies.contract import (
    ClusterShape,
    ClusterView,
    GpuSite,
    JobView,
    PlacementPolicy,
)
from patchlight.controller.policies.placement import (
    BestFit,
    Consolidated,
    FragmentationAware,
    RackAware,
    _fragments,
)
from patchlight.controller.policies.sets import joined, lowest, members, pack

Parts = Sequence[int]


def best_fit(
    view: ClusterView, free: int, servers: Parts, racks: Parts, workers: int
) -> list[int]:
    return pack([free & server for server in servers], workers)


def with_dark(
    free: int, racks: Parts, found: list[int], workers: int
) -> list[int]:
    return found + lowest(
        free & ~joined(g for r in racks for g in members(r)),
        workers - len(found),
    )


def consolidated(
    view: ClusterView, free: int, servers: Parts, racks: Parts, workers: int
) -> list[int]:
    return with_dark(
        free, racks, pack([free & rack for rack in racks], workers), workers
    )


def rack_aware(
    view: ClusterView, free: int, servers: Parts, racks: Parts, workers: int
) -> list[int]:
    parts = [free & rack for rack in racks]
    turns = list[int]()
    for gpu in pack(parts, workers):
        if not (turns and turns[-1] >> gpu & 1):
            turns.append(next(part for part in parts if part >> gpu & 1))
    found: list[int] = []
    for rack in turns:
        within = [rack & server for server in servers]
        found += pack(within, min(rack.bit_count(), workers - len(found)))
    return with_dark(free, racks, found, workers)


def fragmentation_aware(
    view: ClusterView, free: int, servers: Parts, racks: Parts, workers: int
) -> list[int]:
    counted = [
        (part.bit_count(), part)
        for server in servers
        if (part := free & server)
    ]
    most = max(server.bit_count() for server in servers)
    fragment = _fragments(
        [each.workers for each in view.recent] or [workers], most
    )
    counted.sort(key=lambda each: -each[0])
    found: list[int] = []
    while counted and counted[0][0] < workers - len(found):
        found += members(counted.pop(0)[1])
    left = workers - len(found)
    if not left:
        return found
    fitting = [each for each in counted if each[0] >= left]
    best = min(
        fitting,
        key=lambda each: (
            fragment[each[0] - left] - fragment[each[0]],
            each[0],
        ),
    )
    return found + lowest(best[1], left)


Linear = Callable[[ClusterView, int, Parts, Parts, int], list[int]]


@pytest.mark.parametrize(
    ("policy", "linear"),
    [
        (BestFit, best_fit),
        (Consolidated, consolidated),
        (RackAware, rack_aware),
        (FragmentationAware, fragmentation_aware),
    ],
)
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_they_decide_as_if_they_looked_at_all(
    policy: type[PlacementPolicy], linear: Linear, data: st.DataObject
) -> None:
    sites = data.draw(
        st.lists(
            st.builds(
                GpuSite,
                st.just("gpu"),
                st.integers(0, 5),
                st.integers(-1, 3),
                st.sampled_from(["A", "B"]),
            ),
            min_size=1,
            max_size=24,
        )
    )
    names = tuple(map(str, range(6))), tuple(map(str, range(4)))
    shape = ClusterShape(tuple(sites), *names)
    chosen = policy()
    for _ in range(6):
        occupied = data.draw(st.integers(0, shape.everything))
        wanted = data.draw(st.integers(1, len(sites)))
        models = frozenset(
            data.draw(st.lists(st.sampled_from(["A", "B"]), max_size=1))
        )
        recent = [
            JobView("r", workers)
            for workers in data.draw(st.lists(st.integers(1, 8)))
        ]
        view = ClusterView(0.0, shape, occupied, recent=recent)
        job = JobView("job", wanted, gpu_models=models)
        free = view.free_for(job)
        expected = None
        if free.bit_count() >= wanted:
            expected = linear(
                view, free, shape.server_gpus, shape.rack_gpus, wanted
            )
        assert chosen.place(view, job, wanted) == expected
        if data.draw(st.booleans()):
            moved = data.draw(
                st.dictionaries(
                    st.integers(0, len(sites) - 1),
                    st.integers(-1, 3),
                    max_size=3,
                )
            )
            shape = shape.relit(moved)
            anew = ClusterShape(shape.gpus, *names)
            assert (shape.rack_gpus, shape.server_gpus) == (
                anew.rack_gpus,
                anew.server_gpus,
            )
            assert all(
                shape.gpus[gpu].rack == rack for gpu, rack in moved.items()
            )


def test_only_what_changed_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from patchlight.controller.policies import sets

    shape = ClusterShape(
        tuple(GpuSite(f"gpu{n}", n // 8, n // 128) for n in range(8 * 1024)),
        tuple(map(str, range(1024))),
        tuple(map(str, range(64))),
    )
    looked: list[int] = []
    real = members

    def counted(gpus: int) -> list[int]:
        found = real(gpus)
        looked.append(len(found))
        return found

    monkeypatch.setattr(sets, "members", counted)
    policy = BestFit()
    occupied = 0
    for _ in range(5):
        ring = policy.place(
            ClusterView(0.0, shape, occupied), JobView("job"), 6
        )
        assert ring is not None
        occupied |= joined(ring)
    assert looked == [8 * 1024, 6, 6, 6, 6]


@given(st.sets(st.integers(0, 5000)))
def test_members_of_large_sets(numbers: set[int]) -> None:
    assert members(joined(numbers)) == sorted(numbers)
