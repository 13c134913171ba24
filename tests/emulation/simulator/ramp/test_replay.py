"""PAC-ML's own simulator, replayed decision by decision: recordings of public ddls runs.

Each row of a recording in ``ddls/`` is a decision of a run of ddls: the model and requirement of
the job that came, the largest degree that its mask left, the servers that were busy (bits, as
Patchlight numbers them), the degree that it was told, whether the job was accepted, and if so its
servers and completion time. The degrees were chosen by a policy that saw ddls' own state.
"""

import csv
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from patchlight.emulation.simulator.ramp.lossnetwork import Episode, JobOutcome
from patchlight.emulation.simulator.ramp.ramp import PlacementRule
from patchlight.emulation.simulator.ramp.scenario import Job, Scenario
from patchlight.emulation.simulator.ramp.workloads import Workloads, law

RECORDINGS = sorted((Path(__file__).parent / "ddls").glob("*.csv"))
# What ddls itself said of the whole episode.
_WHOLE = re.compile(
    r"# Whole episode: (\d+) arrived, (\d+) blocked, blocking rate ([0-9.]+)\."
)


@dataclass(frozen=True)
class Recorded(Scenario):
    """A scenario whose only episode is the recorded one."""

    arrivals_recorded: tuple[Job, ...] = field(default=())

    def jobs(self, seed: int) -> list[Job]:
        return list(self.arrivals_recorded)


@dataclass(frozen=True)
class Recording:
    """A recording's rows, and its jobs with one more that comes at the end."""

    head: str
    rows: list[dict[str, str]]

    @classmethod
    def read(cls, path: Path) -> "Recording":
        lines = path.read_text().splitlines()
        head = [line for line in lines if line.startswith("#")]
        return cls("\n".join(head), list(csv.DictReader(lines[len(head) :])))

    def scenario(self, workloads: Workloads) -> Recorded:
        jobs = []
        for number, row in enumerate([*self.rows, self.rows[-1]]):
            graph = workloads.names.index(row["model"])
            beta = float(row["requirement"])
            alone = workloads.sequential_s[graph]
            jobs.append(
                Job(number, graph, beta, alone, beta * alone, 1000.0 * number)
            )
        return Recorded(
            workloads,
            law("A"),
            PlacementRule.RAMP_FIRST_FIT,
            1000.0 * len(self.rows),
            arrivals_recorded=tuple(jobs),
        )


@pytest.fixture(params=RECORDINGS, ids=lambda path: path.stem)
def recording(request: pytest.FixtureRequest) -> Recording:
    return Recording.read(request.param)


def test_every_decision_comes_to_the_same_as_in_ddls(
    recording: Recording, workloads: Workloads
) -> None:
    episode = Episode(recording.scenario(workloads), 0)
    outcomes: Counter[JobOutcome] = Counter()
    for number, row in enumerate(recording.rows):
        question = episode.question()
        assert question.cluster.occupied == int(row["occupied"], 16), number
        assert question.legal[-1] == int(row["largest_legal"]), number
        outcome = episode.decide(int(row["degree"]))
        outcomes[outcome] += 1
        assert (outcome is JobOutcome.ACCEPTED) == (row["accepted"] == "1"), (
            number
        )
        # ddls keeps no record of a job that was accepted last: its episode is over then.
        if outcome is JobOutcome.ACCEPTED and row["completion_s"]:
            accepted = episode.accepted[-1]
            assert accepted.servers == int(row["servers"], 16), number
            assert accepted.completion_s == pytest.approx(
                float(row["completion_s"]), rel=1e-6
            )
    assert outcomes[JobOutcome.ACCEPTED] > 10
    if whole := _WHOLE.search(recording.head):
        arrived = int(whole[1])
        blocked = int(whole[2])
        rate = float(whole[3])
        result = episode.result()
        assert result.arrivals == arrived
        assert sum(result.blocked.values()) + result.unfinished == blocked
        assert result.blocking_rate("faithful") == pytest.approx(
            rate, rel=1e-12
        )


def test_recordings_are_of_all_laws_and_one_is_a_whole_episode() -> None:
    heads = [Recording.read(path).head for path in RECORDINGS]
    assert {
        law for head in heads for law in re.findall(r"law ([A-D])", head)
    } == set("ABCD")
    assert sum(_WHOLE.search(head) is not None for head in heads) == 1


def test_recordings_hold_all_that_can_become_of_a_job(
    workloads: Workloads,
) -> None:
    outcomes: Counter[JobOutcome] = Counter()
    for path in RECORDINGS:
        recording = Recording.read(path)
        episode = Episode(recording.scenario(workloads), 0)
        outcomes.update(
            episode.decide(int(row["degree"])) for row in recording.rows
        )
    # ddls' mask forbade none of these degrees, and no model is too large for a server.
    assert set(JobOutcome) - set(outcomes) == {
        JobOutcome.ILLEGAL,
        JobOutcome.NO_MEMORY,
    }
