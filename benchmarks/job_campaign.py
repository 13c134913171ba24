"""Random jobs in an emulated lab while random things go wrong: do the books balance afterwards?

In rounds: jobs come, faults come and go, all jobs end; then ``benchmarks.job_audit`` reads
what is left.
"""

import contextlib
import functools
import heapq
import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.job_audit import wrong_with
from benchmarks.lab_faults import ocs_fault, random_faults, small_disks
from patchlight import EmulatedLab
from patchlight.client.client import ControllerClient, ControllerError
from patchlight.testbed.errors import BadInput, OutcomeUnknown, PatchlightError
from patchlight.testbed.jobs import JobSpec, JobState
from patchlight.testbed.lab.rules import PolicyChoice
from tests.support.lab_processes import (
    until_agent_answers,
    until_controller_answers,
)
from tests.support.waiting import PATIENCE_S

_COMPUTE = {"Tesla M40": 0.05, "Titan V": 0.05}
_ROUND_S = 3.0

POLICY = '''
from patchlight.controller.policies.placement import Consolidated


class Moody(Consolidated):
    """As the default, but finds no place for some jobs, ever, and never answers on others."""

    def place(self, cluster, job, workers):
        while job.name.startswith("hangs"):
            pass
        return None if job.name.startswith("never") else super().place(cluster, job, workers)
'''


def campaign(
    folder: Path,
    count: int,
    seed: int,
    *,
    in_a_round: int = 10,
    say: Callable[[str], None] = lambda line: None,
) -> Counter[str]:
    """Run so many jobs: how each kind ended. ``PatchlightError`` if something is wrong afterwards.

    ``folder`` is for a policy of the user's; ``say`` hears of every fault, and how jobs ended.
    """
    policy = folder / "moody.py"
    policy.write_text(POLICY)
    choice = PolicyChoice(placement=f"{policy}:Moody", deadline_s=0.5)
    rng = random.Random(seed)
    ended = Counter[str]()
    with (
        EmulatedLab.from_file(
            "ofc2022",
            scale=1000,
            name=f"faults{seed}",
            workers="process",
            policies=choice,
        ) as lab,
        small_disks(lab),
    ):
        for first in range(0, count, in_a_round):
            numbers = range(first, min(first + in_a_round, count))
            one = _Round(lab, rng, [f"{number:03}" for number in numbers], say)
            ended += one.run()
            if wrong := one.wrong():
                jobs = f"jobs {numbers[0]} to {numbers[-1]} (seed {seed})"
                raise PatchlightError(f"after {jobs}: {'; '.join(wrong)}")
    return ended


class _Round:
    """Some jobs, and what befalls the lab meanwhile."""

    def __init__(
        self,
        lab: EmulatedLab,
        rng: random.Random,
        numbers: Sequence[str],
        say: Callable[[str], None],
    ) -> None:
        self._lab = lab
        self._rng = rng
        self._numbers = list(numbers)
        self._say = say
        self._began = time.monotonic()
        self._kinds: dict[str, str] = {}
        self._order = itertools.count()
        self._deeds: list[tuple[float, int, Callable[[], None]]] = []

    def run(self) -> Counter[str]:
        """Let it all happen, and wait until every job has ended; how they did, by kind."""
        while self._numbers:
            self._plan_jobs()
        self._plan_faults()
        with contextlib.ExitStack() as self._befallen:
            while self._deeds:
                at_s, _, deed = heapq.heappop(self._deeds)
                time.sleep(max(0.0, self._began + at_s - time.monotonic()))
                try:
                    deed()
                except (ControllerError, OutcomeUnknown):
                    # The controller is away, or its disk full: a later deed mends that.
                    self._then(time.monotonic() - self._began + 0.2, deed)
        for server in self._lab.lab.servers:
            until_agent_answers(self._lab, server.name)
        until_controller_answers(self._lab)
        return self._until_all_ended()

    def _then(self, at_s: float, deed: Callable[[], None]) -> None:
        if at_s > PATIENCE_S:
            raise PatchlightError(
                f"after {at_s:.0f} s the controller still refuses"
            )
        heapq.heappush(self._deeds, (at_s, next(self._order), deed))

    def _say_now(self, what: str) -> None:
        self._say(f"{time.monotonic() - self._began:6.2f} s  {what}")

    # -- jobs

    def _plan_jobs(self) -> None:
        rng = self._rng
        kinds = (
            "plain",
            "plain",
            "plain",
            "gang",
            "program",
            "fails",
            "image",
            "endless",
        )
        kind = rng.choice((*kinds, "restarted", "named", "never", "hangs"))
        count = 2 if kind == "gang" and len(self._numbers) > 1 else 1
        names = [f"{kind}-{self._numbers.pop(0)}" for _ in range(count)]
        specs = [self._spec(name, kind) for name in names]
        topology = rng.choice(["keep", "regroup"])
        at_s = rng.uniform(0, _ROUND_S)
        self._kinds |= dict.fromkeys(names, kind)
        self._then(at_s, lambda: self._submit(specs, topology))
        for name in names:
            if kind == "endless":
                later_s = at_s + rng.uniform(0, _ROUND_S)
                self._then(later_s, functools.partial(self._stop, name))
            elif kind == "restarted":
                later_s = at_s + rng.uniform(0.5, 2.0)
                self._then(later_s, functools.partial(self._restart, name))

    def _spec(self, name: str, kind: str) -> JobSpec:
        rng = self._rng
        usual: dict[str, Any] = {
            "retries": rng.choice([0, 0, 1, 2]),
            "dark_limit_s": 2.0,
        }
        usual |= {
            "workers": rng.randint(1, 2 if kind == "gang" else 4),
            "seed": rng.randint(0, 99),
        }
        shell = {
            "fails": "sleep 0.2; exit 3",
            "program": "sleep 0.5",
            "image": "true",
        }
        if kind in (*shell, "endless"):
            command = ("sh", "-c", shell.get(kind, "sleep 600"))
            image = "no-such-image:latest" if kind == "image" else None
            return JobSpec(
                name, trainer="command", command=command, image=image, **usual
            )
        if kind == "named":
            hosts = rng.sample(
                [host.name for host in self._lab.lab.hosts],
                usual.pop("workers"),
            )
            usual["hosts"] = tuple(hosts)
        return JobSpec(name, rng.randint(2, 12), 4_000_000, _COMPUTE, **usual)

    def _submit(self, specs: Sequence[JobSpec], topology: str) -> None:
        def submit(client: ControllerClient) -> None:
            # Whoever got no answer does not know whether the jobs were taken.
            if not client.jobs(name=specs[0].name):
                client.submit(specs, topology)

        self._ask(submit)

    def _stop(self, name: str) -> None:
        self._ask(lambda client: client.stop(client.jobs(name=name)[-1].id))

    def _restart(self, name: str) -> None:
        with contextlib.suppress(BadInput):  # it may wait yet
            self._ask(
                lambda client: client.restart(client.jobs(name=name)[-1].id)
            )

    def _ask(self, question: Callable[[ControllerClient], object]) -> None:
        with ControllerClient(
            self._lab.state.controller_api, deadline_s=3.0
        ) as client:
            question(client)

    # -- faults

    def _plan_faults(self) -> None:
        befallen: set[str] = set()
        for _ in range(5):
            faults = random_faults(self._lab, self._rng)
            name = self._rng.choice(sorted(faults))
            target, begin = faults[name]
            if target in befallen:
                continue
            befallen.add(target)
            block = contextlib.ExitStack()
            at_s = self._rng.uniform(0.2, _ROUND_S + 2.0)

            def start(
                name: str = name,
                begin: Any = begin,
                block: contextlib.ExitStack = block,
            ) -> None:
                self._say_now(name)
                self._befallen.push(block)
                block.enter_context(begin())

            def end(
                name: str = name, block: contextlib.ExitStack = block
            ) -> None:
                self._say_now(f"{name}: over")
                block.close()

            self._then(at_s, start)
            self._then(at_s + self._rng.uniform(0.3, 2.5), end)

    # -- the end

    def _until_all_ended(self) -> Counter[str]:
        with ControllerClient(self._lab.state.controller_api) as client:
            # What no change has used up is not to befall the repair.
            ocs_fault(self._lab, refuse_next="", cut="")
            client.repair(["ocs1"], why="what was lost")
            deadline = time.monotonic() + PATIENCE_S
            while True:
                jobs = [
                    job
                    for name in self._kinds
                    for job in client.jobs(name=name)
                ]
                left = [
                    job for job in jobs if not JobState(job.state).is_final
                ]
                if not left:
                    break
                for job in left:
                    if self._kinds[job.spec.name] in (
                        "never",
                        "endless",
                    ):
                        client.stop(job.id)
                if time.monotonic() > deadline:
                    words = [f"{j.id} is {j.state}: {j.message}" for j in left]
                    raise PatchlightError(
                        f"after {PATIENCE_S} s: {'; '.join(words)}"
                    )
                time.sleep(0.2)
        for job in jobs:
            self._say_now(f"{job.id} ({self._kinds[job.spec.name]}) {job.state}: "
                          f"{job.message}")  # fmt: skip
        if len(jobs) < len(self._kinds):
            raise PatchlightError(
                f"{len(self._kinds)} jobs were taken, and {len(jobs)} are there"
            )
        return Counter(
            f"{self._kinds[job.spec.name]}: {job.state}" for job in jobs
        )

    def wrong(self) -> list[str]:
        """What is still wrong when everything had time to come to rest."""
        deadline = time.monotonic() + PATIENCE_S
        while (wrong := wrong_with(self._lab.lab, self._lab.run_dir)) and (
            time.monotonic() < deadline
        ):
            time.sleep(0.2)
        return wrong
