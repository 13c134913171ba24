"""Deployments to a machine with systemd, while power, connections, disks and agents fail.

Thirty take 24 minutes alone on two cores, so it runs only where ``PATCHLIGHT_FAULTS`` says how many
faults there are to be.
"""

import os
from pathlib import Path

import pytest

from tests.support.emulated_labs import left_of, no_virtual_machines
from tests.support.faulted_pushes import Machine, campaign

NAME = f"s{os.getpid()}"
COUNT = int(os.environ.get("PATCHLIGHT_FAULTS", "0"))


@pytest.mark.root
@pytest.mark.timeout(1800 + 600 * COUNT)
@pytest.mark.skipif(not COUNT, reason="PATCHLIGHT_FAULTS is not set")
@pytest.mark.skipif(bool(no_virtual_machines()), reason=no_virtual_machines())
def test_faults_leave_one_of_two_releases_and_remove_leaves_nothing(tmp_path: Path) -> None:
    machine = Machine(NAME, tmp_path, seed=int(os.environ.get("PATCHLIGHT_SEED", "1")))
    try:
        machine.up()
        campaign(machine, COUNT, lambda line: print(line, flush=True))
    finally:
        machine.down()
    assert left_of(NAME) == []
