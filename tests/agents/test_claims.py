"""Two labs that list the same GPU: one has it, the other hears who."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from patchlight.agents.errors import AgentError, Conflict
from patchlight.agents.leases import Claims
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.linux.processes import process_start

GPU = {"gpu GPU-1234": "GPU gpu0"}
BOTH = {"nic 1 eth0": "NIC nic0", **GPU}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "claims"


@pytest.fixture
def other_agent() -> Iterator[subprocess.Popen[bytes]]:
    """A process that stands for the agent of another lab."""
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE
    ) as process:
        yield process
        process.kill()


def claimed_by(folder: Path, agent: subprocess.Popen[bytes]) -> None:
    """As if that process had made the claims that this one has just made."""
    for path in folder.glob("*.json"):
        claim = json.loads(path.read_text())
        claim |= {
            "agent": agent.pid,
            "agent_started": process_start(agent.pid),
        }
        path.write_text(json.dumps(claim))


def test_what_one_lab_has_no_other_gets_until_it_is_given_up(
    folder: Path,
) -> None:
    first = Claims("alpha", folder)
    second = Claims("beta", folder)
    first.take("job-0", "pl.alpha.s.w-job-0", GPU)
    with pytest.raises(Conflict) as refused:
        second.take("job-7", "pl.beta.s.w-job-7", BOTH)
    assert str(refused.value.message) == (
        "GPU gpu0 is leased to worker job-0 of lab alpha, which shares this server"
    )
    assert refused.value.hint
    # It got nothing at all: the NIC is free still.
    first.take("job-1", "pl.alpha.s.w-job-1", {"nic 1 eth0": "NIC nic0"})
    for worker in ("job-0", "job-0", "job-1"):
        first.give_up(f"pl.alpha.s.w-{worker}")
    assert not folder.exists()
    second.take("job-7", "pl.beta.s.w-job-7", BOTH)
    assert folder.stat().st_mode & 0o777 == 0o700


def test_the_next_agent_of_the_lab_claims_again(
    folder: Path, other_agent: subprocess.Popen[bytes]
) -> None:
    claims = Claims("alpha", folder)
    claims.take("job-0", "pl.alpha.s.w-job-0", GPU)
    claimed_by(folder, other_agent)
    claims.take("job-0", "pl.alpha.s.w-job-0", GPU)
    (claim,) = folder.glob("*.json")
    assert json.loads(claim.read_text())["agent"] == os.getpid()


def test_a_claim_ends_with_its_agent_where_the_worker_does_not_run(
    folder: Path, other_agent: subprocess.Popen[bytes]
) -> None:
    Claims("alpha", folder).take("job-0", "pl.alpha.s.w-job-0", GPU)
    claimed_by(folder, other_agent)
    beta = Claims("beta", folder)
    with pytest.raises(Conflict):
        beta.take("job-7", "pl.beta.s.w-job-7", GPU)
    other_agent.kill()
    other_agent.wait()
    beta.take("job-7", "pl.beta.s.w-job-7", GPU)


def test_a_claim_that_a_crash_left_half_written_goes_with_the_last_one(
    folder: Path,
) -> None:
    claims = Claims("alpha", folder)
    claims.take("job-0", "pl.alpha.s.w-job-0", GPU)
    (folder / "0123456789abcdef.new").write_text("{")
    claims.give_up("pl.alpha.s.w-job-0")
    assert not folder.exists()


def test_a_folder_that_others_can_write_in_is_refused(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(
        PatchlightError, match="other users can put files into"
    ):
        Claims("alpha", folder).take("job-0", "pl.alpha.s.w-job-0", GPU)
    assert list(folder.iterdir()) == []


def test_a_claim_that_cannot_be_written_is_an_error_that_says_where(
    folder: Path,
) -> None:
    folder.write_text("")
    with pytest.raises(
        AgentError, match=f"claiming GPU and NIC in {folder}: "
    ):
        Claims("alpha", folder).take("job-0", "pl.alpha.s.w-job-0", GPU)
