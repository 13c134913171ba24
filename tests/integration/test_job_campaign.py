"""Random jobs while controller, agents, workers and hardware fail: the books balance afterwards.

Of the campaign in ``tests.support.job_campaign`` a small part; ``make bench`` runs all of it.
"""

from pathlib import Path

import pytest

from tests.support.job_campaign import campaign

pytestmark = [pytest.mark.root, pytest.mark.ovs]


def test_random_jobs_with_random_faults_leave_nothing_behind(tmp_path: Path) -> None:
    ended = campaign(tmp_path, 15, seed=1, in_a_round=15)
    assert sum(ended.values()) >= 15
    assert {kind.rpartition(" ")[2] for kind in ended} <= {"done", "failed", "stopped"}
