"""The measured delays of control, as simulations use them."""

from patchlight.testbed.paths.schedulers import in_time, path_scheduler
from patchlight.testbed.paths.scheduling import (
    CONTROL_DELAYS,
    FlowRequest,
    PathNetwork,
)


def test_a_path_comes_a_round_trip_after_it_was_wanted() -> None:
    for delay in CONTROL_DELAYS.values():
        scheduler = path_scheduler(
            "first-come", PathNetwork(2, 1, rate_bps=8.0)
        )
        (path,) = in_time(
            scheduler, [(0.0, FlowRequest(0, 0, 1, 1.0))], delay.one_way_s
        )
        assert path.starts_s == delay.round_trip_s > 0
        assert "benchmarks.paths" in delay.source
