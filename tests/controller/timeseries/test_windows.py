"""What was sampled in a window, as one row: sums over hosts, means over GPUs, extremes."""

import pytest

from patchlight.controller.storage.series_store import (
    JobThen,
    Spread,
    job_window,
    lab_window,
    summed,
)


def test_a_sum_holds_what_was_sampled_last_of_each() -> None:
    one = [(0.0, 1.0), (2.0, 3.0)]
    other = [(1.0, 10.0), (2.0, 20.0)]
    # 11 until second 2, when both change at once, and 23 from then on: never 13 or 21.
    assert summed([one, other]) == Spread(2.0 + 15.0, 11.0, 23.0)
    assert summed([one, []]) == Spread(2.0, 1.0, 3.0)
    assert summed([[], []]) is None


def test_a_job_is_what_its_hosts_did_while_it_had_them() -> None:
    hosts = [("a.g", "a.g"), ("b.g", "b.g"), ("c", "")]
    then = JobThen(hosts, [0.2, 0.4], since=5.0, until=8.0, predicted_s=0.25)
    busy = {
        "a.g": [(4.0, 1.0), (6.0, 0.5)],
        "b.g": [(6.0, 0.7)],
        "other": [(6.0, 1.0)],
    }
    sent = {"a.g": [(6.0, 1e9)], "c": [(6.0, 2e9), (9.0, 9e9)]}
    window = job_window(0, "j-1", then, busy, sent)
    assert window.gpus == 2
    assert window.busy == pytest.approx(Spread(0.6, 0.6, 0.6))
    assert window.sent_bps == Spread(3e9, 3e9, 3e9)
    assert (window.iterations, window.predicted_s) == (2, 0.25)
    assert window.iteration_s == pytest.approx(Spread(0.3, 0.2, 0.4))
    assert (
        job_window(0, "j-1", JobThen([], [], 0, 9, None), busy, sent).sent_bps
        is None
    )


def test_the_lab_is_any_of_its_gpus_and_hosts() -> None:
    window = lab_window(
        10, {"g": [(11.0, 0.0), (12.0, 0.5)], "h": [(11.0, 1.0)]}, {}
    )
    assert (window.gpus, window.busy, window.sent_bps) == (
        2,
        Spread(0.5, 0.0, 1.0),
        None,
    )
    assert window.as_json["busy"] == {"mean": 0.5, "least": 0.0, "most": 1.0}
    assert "job" not in window.as_json
