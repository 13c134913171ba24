"""A lab in a simulated world, and its controller seen from inside: no time, no network, no mocks.

``@simulated()`` runs a test in a world of its own. The lab is ofc2022 with the real controller and
agents; its workers, switches and devices are those of ``tests.simulation``.
"""

import asyncio
import functools
import inspect
import json
import logging
import os
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx

from patchlight.agents.workers import keeper
from patchlight.agents.workers.contract import WorkerLaunch
from patchlight.controller.changes.parts import CircuitParts
from patchlight.controller.changes.transaction import Transactions
from patchlight.controller.jobs.job_table import JobTable
from patchlight.controller.jobs.rewiring import JobTraffic
from patchlight.controller.jobs.scheduler import DEFAULT_DISCIPLINE, Scheduler
from patchlight.controller.parts import Controller
from patchlight.controller.storage.store import Store
from patchlight.testbed.jobs import JobSpec, JobState
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.rules import Discipline, PolicyChoice, WorkerPolicy
from patchlight.testbed.labfile.reader import builtin_lab, read_lab
from patchlight.testbed.wire.worker_api import SyntheticTask
from tests.simulation.lab import SimulatedLab
from tests.simulation.optical import Device
from tests.simulation.servers import Machine, SimulatedRunner, Worker
from tests.simulation.world import Process, World, bury

PATIENCE_S = 300.0
"""How much simulated time may pass until something comes about."""

LAB = read_lab(builtin_lab("ofc2022")).with_changes(
    workers=WorkerPolicy(mounts=("/srv:rw",))
)
COMPUTE = {"Tesla M40": 0.1, "Titan V": 0.1}
ITERATIONS = 10_000
"""More than a job trains before a test ends it."""


class LedWorker(Worker):
    """A worker that a test leads: it may have to wait before it is ready, and ends when told."""

    def __init__(self, machine: Machine, launch: WorkerLaunch) -> None:
        self.spec = launch.spec
        task = launch.spec.task
        if not isinstance(task, SyntheticTask):
            program = SyntheticTask(
                iterations=ITERATIONS, gradient_bytes=4, compute_s=0.1
            )
            launch = replace(
                launch, spec=launch.spec.model_copy(update={"task": program})
            )
        super().__init__(machine, launch)
        self.ready = asyncio.Event()
        self.trains = True
        """Whether it trains by itself, or only as ``skip_to`` says."""

    async def _train(self) -> int:
        if self.trains:
            return await super()._train()
        while self.stop_at is None:
            state = "running" if self.hold_at is None else "held"
            if state != self.state:
                self._say(state)
            await asyncio.sleep(0.5)  # simulated: costs no time
        self._say("stopped")
        return 0

    async def _main(self) -> None:
        if self.spec.task.trainer == "command":
            await self._run_program()
        await self.ready.wait()
        await super()._main()

    async def _run_program(self) -> None:
        """A program behind the keeper's gate, which runs until a test ends it."""
        folder = self.launch.directory
        keeper.make_gate(folder)
        gate = os.open(folder / keeper.START, os.O_RDONLY | os.O_NONBLOCK)
        while not os.read(gate, 8):  # noqa: ASYNC110 - a file tells nobody that it has changed
            await asyncio.sleep(0.1)  # simulated: costs no time
        os.close(gate)
        (folder / keeper.STARTED).touch()
        self.state = "running"
        await asyncio.Event().wait()

    def prints(self, text: str) -> None:
        """Its program prints this."""
        with (self.launch.directory / keeper.OUTPUT).open("a") as file:
            file.write(text)

    def prints_report(self, index: int) -> None:
        """It says that it has done the iteration of this index, right or wrong."""
        done = {"index": index, "finished_at": self.machine.world.wall()}
        with (self.launch.directory / "reports.jsonl").open("a") as file:
            file.write(json.dumps(done) + "\n")

    def skip_to(self, iterations: int) -> None:
        """It says that it has done all before this one."""
        for index in range(self.done_iterations, iterations):
            self.prints_report(index)
        self.done_iterations = self.next = iterations
        self._say(self.state)

    def _say(self, state: str, message: str = "") -> None:
        super()._say(state, message)
        if message != "a worker of the ring is gone":
            return
        gone = next(
            each
            for each in self.ring
            if not each.process.alive and each.state != "done"
        )
        path = self.launch.directory / "state.json"
        words = {
            **json.loads(path.read_text()),
            "lost_rank": gone.launch.spec.rank,
        }
        path.write_text(json.dumps(words))

    def end(self, state: str = "done", message: str = "") -> None:
        """Its program ends so."""
        if message:
            self.prints(f"{message}\n")
        self._say(state, message)
        self.exit_code.set_result(0 if state == "done" else 1)
        self.process.end()


class LedRunner(SimulatedRunner):
    """Launches workers that a test leads."""

    def make(self, launch: WorkerLaunch) -> Worker:
        """See ``SimulatedRunner``."""
        return LedWorker(self._machine, launch)


class ToAgent(httpx.AsyncBaseTransport):
    """The way to an agent, on which a test may refuse or hold up calls."""

    def __init__(
        self, way: httpx.AsyncBaseTransport, cluster: "Cluster"
    ) -> None:
        self._way = way
        self._cluster = cluster

    async def handle_async_request(
        self, request: httpx.Request
    ) -> httpx.Response:
        """See ``httpx``."""
        call, worker = _call_of(request)
        if worker:
            self._cluster.calls.append((call, worker))
        for name in (call, f"{call} {worker}"):
            if (gate := self._cluster.gates.get(name)) is not None:
                await gate.wait()
            if (refusal := self._cluster.refusals.get(name)) is None:
                continue
            if isinstance(refusal, httpx.Response):
                return refusal
            if isinstance(refusal, Exception):
                raise refusal
            return httpx.Response(
                409, json={"error": refusal}, request=request
            )
        return await self._way.handle_async_request(request)


def _call_of(request: httpx.Request) -> tuple[str, str]:
    """What a request to an agent is called here, and the worker that it is about."""
    _, _, kind, *words = request.url.path.split("/")
    if kind != "workers":
        return kind, ""
    if not words:
        return "create", json.loads(request.content)["id"]
    by_method = {"GET": "worker", "DELETE": "delete"}
    return words[1] if len(words) > 1 else by_method[request.method], words[0]


class Cluster(SimulatedLab):
    """The simulated lab, with the parts of its controller."""

    def __init__(self, world: World, lab: Lab, policies: PolicyChoice) -> None:
        super().__init__(world, lab)
        self.policies = policies
        self.calls: list[tuple[str, str]] = []
        """Calls of agents, each with the worker that it is about."""
        self.refusals: dict[str, str | Exception | httpx.Response] = {}
        """What a call of an agent is answered with instead."""
        self.gates: dict[str, asyncio.Event] = {}
        """Calls of agents wait for these."""
        self.trains = True
        """Whether new workers train by themselves."""
        self.at_end = ExitStack()
        self.get_ready = True
        """Whether new workers get ready by themselves."""
        self.on_worker.append(self._launched)
        for machine in self.machines.values():
            machine.runner = LedRunner

    def _launched(self, worker: Worker, what: str) -> None:
        if what == "launched" and isinstance(worker, LedWorker):
            worker.trains = self.trains
            if self.get_ready:
                worker.ready.set()

    def way_to(
        self, process: Process, server: str
    ) -> httpx.AsyncBaseTransport:
        """See ``SimulatedLab``."""
        return ToAgent(super().way_to(process, server), self)

    @property
    def parts(self) -> Controller:
        """The controller."""
        assert self.made is not None
        return self.made

    @property
    def scheduler(self) -> Scheduler:
        """The controller's."""
        return self.parts.scheduler

    @property
    def table(self) -> JobTable:
        """The controller's."""
        return self.parts.jobs

    @property
    def store(self) -> Store:
        """The controller's."""
        return self.parts.store

    @property
    def circuits(self) -> CircuitParts:
        """The controller's."""
        return self.parts.circuits

    @property
    def transactions(self) -> Transactions:
        """The controller's."""
        return self.parts.transactions

    @property
    def traffic(self) -> JobTraffic:
        """The controller's."""
        return self.parts.traffic

    @property
    def ocs(self) -> Device:
        """The lab's circuit switch."""
        return self.plant.devices["ocs1"]

    @property
    def workers(self) -> dict[str, LedWorker]:
        """Those that run now, in the order of their names."""
        found = [
            worker
            for machine in self.machines.values()
            for worker in machine.workers.values()
            if worker.process.alive and isinstance(worker, LedWorker)
        ]
        return {
            worker.id: worker
            for worker in sorted(found, key=lambda worker: worker.id)
        }

    def workers_of(self, job_id: str) -> list[LedWorker]:
        """The workers that a job has now, by rank."""
        return [
            each for each in self.workers.values() if each.spec.job == job_id
        ]

    def start_controller(self) -> Process:
        """See ``SimulatedLab``; the processes of users' policies are real, and end with it."""
        process = super().start_controller()
        process.at_end.append(self._end_policies)
        return process

    def _end_policies(self) -> None:
        if self.made is not None:
            self.made.scheduler.policies.close()

    async def kill_and_restart(self) -> None:
        """The controller is killed, and another one starts with what is on its disk."""
        self.controller.kill()
        await self.start()

    async def start(self) -> None:
        """Start a controller, and wait until it serves."""
        self.start_controller()
        async with asyncio.timeout(PATIENCE_S):
            await self.until_served()

    def submit(self, *specs: JobSpec, topology: Any = "keep") -> list[str]:
        """Queue one gang; its jobs' ids."""
        return [status.id for status in self.scheduler.submit(specs, topology)]

    async def until(self, condition: Callable[[], object]) -> None:
        """Let time pass until this holds."""
        deadline = self.world.now + PATIENCE_S
        while not condition():
            assert self.world.now < deadline, [
                (each.id, each.state, self.scheduler.message(each))
                for each in self.table.page()
            ]
            await asyncio.sleep(0.02)  # simulated: costs no time

    async def until_state(self, job_id: str, state: JobState) -> None:
        """Let time pass until a job is so."""
        await self.until(lambda: self.table[job_id].state is state)

    async def until_trains(self, job_id: str) -> None:
        """Let time pass until a job runs, and all its workers train."""
        await self.until_state(job_id, JobState.RUNNING)
        await self.until(
            lambda: all(w.state == "running" for w in self.workers_of(job_id))
        )

    async def until_done(self, job_id: str, iterations: int) -> None:
        """Let a job train so many iterations."""
        await self.until(
            lambda: self.table[job_id].iterations_done >= iterations
        )

    def end(self, job_id: str, state: str = "done", message: str = "") -> None:
        """The programs of all workers of a job end so."""
        for worker in self.workers_of(job_id):
            worker.end(state, message)

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Those of a kind."""
        return [
            event for event in self.store.events() if event["kind"] == kind
        ]

    def faults(self) -> list[str]:
        """What policies did wrong."""
        return [event["message"] for event in self.events("policy-fault")]

    def switches_of(self, hosts: Sequence[str]) -> set[str | None]:
        """The packet switches that circuits join these hosts to."""
        links = self.plant.links()
        return {
            links.switch_of(self.lab, self.lab.host(name).endpoint)
            for name in hosts
        }


Test = Callable[..., Coroutine[Any, Any, None]]


def simulated(
    policies: PolicyChoice = PolicyChoice(),  # noqa: B008 - it is frozen
    discipline: Discipline = DEFAULT_DISCIPLINE,
    lab: Lab = LAB,
) -> Callable[[Test], Callable[..., None]]:
    """Run a test's coroutine with a ``Cluster`` as its first argument, in a world of its own."""
    lab = lab.with_changes(queue=discipline)

    def decorate(test: Test) -> Callable[..., None]:
        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            async def story(cluster: Cluster) -> None:
                try:
                    await test(cluster, **fixtures)
                finally:
                    if "monkeypatch" in fixtures:
                        # Before the world puts its own back: each restores what it found.
                        fixtures["monkeypatch"].undo()

            play(lab, policies, story)

        signature = inspect.signature(test)
        run.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=list(signature.parameters.values())[1:]
        )
        return run

    return decorate


def play(
    lab: Lab,
    policies: PolicyChoice,
    story: Callable[[Cluster], Coroutine[Any, Any, None]],
) -> None:
    """Open a lab in a world of its own, and play this with it."""
    level = logging.getLogger().level
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="pl") as folder:
        world = World(1, Path(folder))

        async def begin() -> None:
            cluster = Cluster(world, lab, policies)
            with cluster.at_end:
                try:
                    await cluster.open()
                    await story(cluster)
                finally:
                    cluster.controller.kill()

        with world.entered():
            world.run(begin())
        bury(world)
    logging.getLogger().setLevel(level)


def job(name: str, *hosts: str, workers: int = 0, **more: Any) -> JobSpec:
    """A job that trains until a test ends it."""
    spec = JobSpec(
        name, ITERATIONS, 4_000_000, COMPUTE, workers=workers, hosts=hosts
    )
    return replace(spec, **more)


async def submit_running(
    cluster: Cluster, *specs: JobSpec, topology: str = "keep"
) -> list[str]:
    """Queue one gang, and wait until it trains; its jobs' ids."""
    job_ids = cluster.submit(*specs, topology=topology)
    for job_id in job_ids:
        await cluster.until_trains(job_id)
    return job_ids


async def finish(cluster: Cluster, job_id: str, state: str = "done") -> None:
    """All workers of a job end so, and the job with them."""
    cluster.end(job_id, state)
    await cluster.until(lambda: cluster.table[job_id].state.is_final)
