"""Time series on disk: any period, thinned, and never more than so much."""

import random
from pathlib import Path

import pytest

from patchlight.controller.storage.series_store import (
    WIDTHS_S,
    SeriesStore,
    SeriesWindow,
    Spread,
)
from patchlight.controller.storage.state_folder import open_series

HOUR = WIDTHS_S[-1]


def window(
    at: int, job: str = "", value: float = 0.5, iterations: int = 0
) -> SeriesWindow:
    spread = Spread(value, value - 0.1, value + 0.1)
    return SeriesWindow(
        at,
        job,
        4,
        spread,
        spread,
        iterations,
        spread if iterations else None,
        0.25,
    )


def filled(store: SeriesStore, since: int, until: int, job: str = "") -> None:
    for at in range(since, until, WIDTHS_S[0]):
        store.add([window(at, job)])


def test_what_was_written_is_read_again_also_by_the_next_one(
    tmp_path: Path,
) -> None:
    store = open_series(tmp_path / "state")
    row = SeriesWindow(
        20,
        "j-1",
        2,
        None,
        Spread(1e9, 0.0, 2e9),
        3,
        Spread(0.3, 0.2, 0.4),
        None,
    )
    store.add([window(20), row])
    store.close()
    again = open_series(tmp_path / "state")
    assert again.read(0, 100) == (10, [window(20), row])
    assert again.read(0, 100, jobs=["j-1"]) == (10, [row])
    assert again.read(30, 100) == (10, [])
    assert again.read(0, 20) == (10, [])
    assert again.read(29.9, 100)[1], (
        "a window that ends in the period is in it"
    )


def test_fewer_points_are_means_and_extremes(tmp_path: Path) -> None:
    store = SeriesStore(tmp_path / "samples.db")
    values = [0.2, 0.4, 0.9]
    for number, value in enumerate(values):
        store.add([window(600 + 10 * number, "j", value, iterations=number)])
    width, (found,) = store.read(0, 1e9, points=1)
    assert (width, found.at, found.iterations) == (30, 600, 3)
    assert found.busy == pytest.approx(Spread(0.5, 0.1, 1.0))
    # An iteration counts as much as any other: one of 0.4 s and two of 0.9 s.
    assert found.iteration_s == pytest.approx(
        Spread((0.4 + 1.8) / 3, 0.3, 1.0)
    )


def test_a_long_past_is_there_in_wider_windows_and_the_file_stays_small(
    tmp_path: Path,
) -> None:
    most = 400
    store = SeriesStore(tmp_path / "samples.db", most_rows=most)
    filled(store, 0, 3 * HOUR)
    counts = dict(
        store.rows("SELECT width_s, count(*) FROM windows GROUP BY width_s")
    )
    assert counts == {10: most, 60: 180, 600: 18, 3600: 3}
    for since, until, width in (
        (3 * HOUR - 600, 3 * HOUR, 10),  # still there in all detail
        (0, 3 * HOUR, 60),
        (HOUR, HOUR + 1200, 60),
    ):
        found_width, found = store.read(since, until)
        assert found_width == width
        assert [w.at for w in found] == list(range(since, until, width))
        assert {w.busy and round(w.busy.mean, 9) for w in found} == {0.5}
    assert len(store.read(0, 3 * HOUR, points=20)[1]) <= 20 + 1


def test_windows_that_were_missed_are_widened_later(tmp_path: Path) -> None:
    store = SeriesStore(tmp_path / "samples.db")
    filled(store, 0, 50)  # not a minute yet: the controller ends here
    filled(store, 170, 200)
    rows = store.rows("SELECT at FROM windows WHERE width_s = 60 ORDER BY at")
    assert rows == [(0,), (120,)]


def test_what_is_older_than_the_lab_keeps_goes(tmp_path: Path) -> None:
    store = SeriesStore(tmp_path / "samples.db")
    filled(store, 0, 1200)
    store.add([window(1200)], before=1200)
    assert [w.at for w in store.read(0, 2000)[1]] == [1200]


def test_a_young_lab_is_shown_in_detail_over_a_long_period() -> None:
    store = SeriesStore(":memory:")
    # An hour's window begins before there were any samples.
    begin = 5 * HOUR + 2840
    filled(store, begin, begin + 1500)
    width, found = store.read(0, 1e9)
    assert (width, len(found)) == (10, 150)


def test_a_mean_of_any_width_is_that_of_what_was_written() -> None:
    store = SeriesStore(":memory:", most_rows=10_000)
    draw = random.Random(3)
    values = [draw.random() for _ in range(2 * HOUR // 10)]
    for number, value in enumerate(values):
        store.add([window(10 * number, value=value)])
    for width in WIDTHS_S:
        rows = store.rows(
            "SELECT avg(busy), max(busy_most) FROM windows WHERE width_s = ?",
            width,
        )
        assert rows[0] == pytest.approx(
            (sum(values) / len(values), max(values) + 0.1)
        )
