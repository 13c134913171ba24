"""The judge finds what it must find: one rule after the other is violated in a world."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Sequence
from typing import Any

from patchlight.testbed.lab.rules import Allowance, Discipline
from tests.simulation.draw_lab import draw_lab
from tests.simulation.history import History
from tests.simulation.servers import Worker

RULES = Discipline(each_user=Allowance(gpus=2, jobs=2))


class Scene:
    """An open lab in which Anna's job trains on two GPUs."""

    def __init__(self, history: History) -> None:
        self.judge = history.judge
        self.users = history.users
        self.lab = history.lab
        self.job: dict[str, Any] = {}

    async def begin(self) -> None:
        """Submit the job, and wait until it trains."""
        await self.lab.open()
        await self.users.open()
        models = {
            gpu.model for server in self.lab.lab.servers for gpu in server.gpus
        }
        job = {
            "name": "first",
            "iterations": 1000,
            "gradient_bytes": 4,
            "compute_s": dict.fromkeys(models, 1.0),
            "workers": 2,
        }
        await self.users.call(
            "anna", "POST", "/jobs", {"jobs": [job], "topology": "keep"}
        )
        await asyncio.sleep(20)
        (self.job,) = (await self.users.call("anna", "GET", "/jobs"))["jobs"]
        assert not self.judge.found
        assert [worker.state for worker in self.workers] == [
            "running",
            "running",
        ]

    @property
    def workers(self) -> list[Worker]:
        return [
            w
            for machine in self.lab.machines.values()
            for w in machine.workers.values()
        ]

    def answer(
        self, user: str, call: str, body: Any, status: int = 200
    ) -> None:
        """Let the controller give this answer."""
        self.judge.answered(
            self.judge.ordered(user, call, {"jobs": []}), status, body
        )

    def lists(self, *changes: dict[str, Any]) -> None:
        """Let the controller list the job with other fields, and further ones like it."""
        self.answer(
            "eva",
            "GET /jobs",
            {"jobs": [{**self.job, **each} for each in changes]},
        )

    def launch_again(self, worker: Worker, **changes: Any) -> Worker:
        """Let an agent launch a worker that it has launched before."""
        spec = worker.launch.spec.model_copy(update=changes)
        launch = dataclasses.replace(worker.launch, spec=spec)
        again = Worker(worker.machine, launch)
        worker.machine.workers[again.process.pid] = again
        self.judge.worker_started(again, "launched")
        return again

    async def lose(self, rank: int) -> None:
        """Let a device lose the circuit of a worker by itself."""
        worker = self.workers[rank]
        host = worker.machine.host_of(worker.launch.spec.nic)
        at = self.lab.lab.fibre_ends[host.endpoint][0]
        device = self.lab.plant.devices[at.device]
        assert device.emulated is not None
        await device.emulated.lose(
            str(next(c for c in device.map if c.inp == int(at.port)))
        )

    async def rest(
        self, claims: Sequence[dict[str, Any]] = (), **changes: Any
    ) -> None:
        """Let the judge see the end of the history, with other fields of the job."""
        circuits = await self.users.call("operator", "GET", "/circuits")
        status = await self.users.call("operator", "GET", "/status")
        jobs = [{**self.job, **changes}]
        self.judge.at_rest(jobs, circuits, status, claims)


async def violations(scene: Scene) -> AsyncIterator[str]:
    """Violate one rule after the other; yields what the judge must say."""
    judge = scene.judge
    job = scene.job
    first, _ = scene.workers
    # Light.
    await scene.lose(0)
    yield "nobody may break"
    judge.ordered(
        "operator",
        "POST /reconfigurations",
        {"only": True, "spare_jobs": True},
    )
    await scene.lose(1)
    yield "nobody may break"
    device = next(
        device for device in scene.lab.plant.devices.values() if device.map
    )
    assert device.emulated is not None
    judge.orders.clear()
    await scene.users.call("operator", "POST", "/stop", {})
    await device.emulated.lose(str(next(iter(device.map))))
    yield "moved while the stop button was on"
    judge.locked[device.switch.name, next(iter(device.map)).inp] = "operator"
    await device.emulated.lose(str(next(iter(device.map))))
    yield "operator had locked port"
    judge.locked.clear()
    judge.stopped_since = None
    host = first.machine.host_of(first.launch.spec.nic).name
    port = next(iter(device.map)).inp
    held = {
        "name": "c1",
        "state": "held",
        "hosts": [host],
        "owned": {device.switch.name: [port]},
        "until": None,
    }
    scene.answer("eva", "GET /claims", {"claims": [held]})
    await device.emulated.lose(str(next(iter(device.map))))
    yield f"claim c1 had port {port}"
    scene.launch_again(first, id="claimed-0")
    yield f"claimed-0 is on {host}, which claim c1 has"
    both = {"claims": [held, {**held, "name": "c2"}]}
    scene.answer("eva", "GET /claims", both)
    yield "claims c1 and c2 have"
    scene.answer("operator", "DELETE /claims/c1", {"claims": []})
    scene.answer("operator", "DELETE /claims/c2", {"claims": []})

    # Answers.
    scene.answer("eva", "POST /locks", {"locks": []})
    yield "eva may not POST /locks"
    scene.answer("anna", "GET /jobs", {}, 500)
    yield "was answered with 500"
    scene.lists({"hosts": ["a", "b", "c"]})
    yield "has 3 GPUs, and the limit is 2"
    scene.lists({"id": "1"}, {"id": "2"}, {"id": "3"})
    yield "has 3 jobs, and the limit is 2"
    urgent = {**job, "id": "x", "gang": "x", "state": "queued", "hosts": []}
    urgent["spec"] = {**job["spec"], "priority": 5}
    scene.answer("anna", "POST /jobs", {"jobs": [urgent]})
    await asyncio.sleep(1)
    scene.answer("anna", "POST /jobs", {"jobs": [{**job, "id": "y"}]})
    scene.lists(urgent, {"id": "y", "gang": "y"})
    yield "y runs, and x came first"
    scene.lists({"id": "z", "state": "failed"})
    await asyncio.sleep(1)
    scene.lists({"id": "z", "state": "done"})
    yield "was failed, and is done"

    # Workers.
    scene.launch_again(first)
    yield "runs twice"
    scene.launch_again(first, id="other-0")
    yield "belongs to other-0 and"
    task = first.task.model_copy(update={"first_iteration": 900})
    scene.launch_again(first, id="first-1-0", task=task)
    yield "skips iterations: it begins at 900"
    judge.submitted["second"] = {"after": [job["id"]]}
    scene.launch_again(first, id="second-0", job="second")
    yield "was launched before job"
    first.kill(1)
    judge.worker_started(scene.launch_again(first), "start")
    yield "trains for the second time"

    # Rest.
    await scene.rest()
    yield "still runs"
    await scene.rest()
    yield "job second was acknowledged"
    (first.machine.folder / "left").touch()
    await scene.rest()
    yield "has a file that nobody needs"
    await scene.rest(state="queued")
    yield "is queued for ever"
    await scene.rest(state="done")
    yield "is done, and its workers have not finished"
    await scene.rest(state="failed", message="")
    yield "nothing says why"
    await scene.rest(state="stopped")
    yield "nobody ordered that"
    waits = {"name": "c3", "state": "waiting", "words": "in line"}
    await scene.rest(claims=[waits])
    yield "claim c3 waits for ever: in line"
    device.map = device.map.without([next(iter(device.map))])
    await scene.rest()
    yield "but the API says"
    scene.answer("ben", f"DELETE /jobs/{job['id']}", job)
    yield f"ben may not DELETE /jobs/{job['id']}: it belongs to anna"
    judge.orders.clear()
    await scene.rest()
    yield "1 jobs are called first, and 0 were submitted"

    # What would change all that.
    await scene.users.call("operator", "POST", "/drain", {})
    judge.worker_started(scene.launch_again(first, id="late-0"), "start")
    yield "starts while the lab is drained"
    scene.lists({"state": "stopped"})
    judge.worker_started(scene.launch_again(first, id="later-0"), "start")
    yield "starts, and its job was stopped"


def test_the_judge_finds_each_violation() -> None:
    history = History(1, [], draw_lab(1).with_changes(queue=RULES))
    missed = []

    async def play(world: object) -> None:
        scene = Scene(history)
        await scene.begin()
        async for words in violations(scene):
            if not any(words in each for each in history.judge.found):
                missed.append((words, [*history.judge.found]))
            history.judge.found.clear()

    history._play = play  # type: ignore[method-assign]
    history.run()
    assert not missed
