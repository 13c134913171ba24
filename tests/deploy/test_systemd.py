"""Deployments to a machine with systemd, while power, connections, disks and agents fail.

The test has a small part of the campaign; ``PATCHLIGHT_FAULTS=30`` sets another number of faults.
"""

import os
from pathlib import Path

import pytest

from tests.support.emulated_labs import left_of, no_virtual_machines
from tests.support.faulted_pushes import Machine, campaign

NAME = f"s{os.getpid()}"
COUNT = int(os.environ.get("PATCHLIGHT_FAULTS", "6"))


@pytest.mark.root
@pytest.mark.timeout(1800 + 600 * COUNT)
@pytest.mark.skipif(bool(no_virtual_machines()), reason=no_virtual_machines())
def test_faults_leave_one_of_two_releases_and_remove_leaves_nothing(tmp_path: Path) -> None:
    machine = Machine(NAME, tmp_path, seed=int(os.environ.get("PATCHLIGHT_SEED", "1")))
    try:
        machine.up()
        campaign(machine, COUNT, lambda line: print(line, flush=True))
    finally:
        machine.down()
    assert left_of(NAME) == []
