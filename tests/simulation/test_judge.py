"""The judge finds what it must find: one rule after the other is violated in a world."""

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine
from typing import Any

from patchlight.testbed.lab.rules import Allowance, Discipline
from tests.simulation.draw_lab import draw_lab
from tests.simulation.history import History
from tests.simulation.servers import Worker

RULES = Discipline(each_user=Allowance(gpus=2, jobs=2))


class Scene:
    """An open lab in which Anna's job trains on two GPUs."""

    def __init__(self, history: History) -> None:
        self.judge, self.users, self.lab = history.judge, history.users, history.lab
        self.job: dict[str, Any] = {}

    async def begin(self) -> None:
        """Submit the job, and wait until it trains."""
        models = {gpu.model for server in self.lab.lab.servers for gpu in server.gpus}
        job = {
            "name": "first",
            "iterations": 1000,
            "gradient_bytes": 4,
            "compute_s": dict.fromkeys(models, 1.0),
            "workers": 2,
        }
        await self.users.call("anna", "POST", "/jobs", {"jobs": [job], "topology": "keep"})
        await asyncio.sleep(20)
        await self.look()
        assert not self.judge.found
        assert [worker.state for worker in self.workers] == ["running", "running"]

    async def look(self) -> None:
        """Read the job."""
        (self.job,) = (await self.users.call("anna", "GET", "/jobs"))["jobs"]

    @property
    def workers(self) -> list[Worker]:
        return [w for machine in self.lab.machines.values() for w in machine.workers.values()]

    def answer(self, user: str, call: str, body: Any, status: int = 200) -> None:
        """Let the controller give this answer."""
        self.judge.answered(self.judge.ordered(user, call, {"jobs": []}), status, body)

    def lists(self, *changes: dict[str, Any]) -> None:
        """Let the controller list the job with other fields, and further ones like it."""
        self.answer("eva", "GET /jobs", {"jobs": [{**self.job, **each} for each in changes]})

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
        await device.emulated.lose(str(next(c for c in device.map if c.inp == int(at.port))))

    async def rest(self, **changes: Any) -> None:
        """Let the judge see the end of the history, with other fields of the job."""
        circuits = await self.users.call("operator", "GET", "/circuits")
        status = await self.users.call("operator", "GET", "/status")
        self.judge.at_rest([{**self.job, **changes}], circuits, status)


Plant = Callable[[Scene], Coroutine[Any, Any, None]]


async def a_circuit_goes(scene: Scene) -> None:
    await scene.lose(0)


async def a_circuit_goes_though_jobs_are_spared(scene: Scene) -> None:
    scene.judge.ordered("operator", "POST /reconfigurations", {"only": True, "spare_jobs": True})
    await scene.lose(1)


async def light_moves_after_a_stop(scene: Scene) -> None:
    await scene.users.call("operator", "POST", "/stop", {})
    device = next(device for device in scene.lab.plant.devices.values() if device.map)
    assert device.emulated is not None
    await device.emulated.lose(str(next(iter(device.map))))


async def a_job_starts_while_drained(scene: Scene) -> None:
    await scene.users.call("operator", "POST", "/drain", {})
    scene.judge.worker_started(scene.launch_again(scene.workers[0], id="other-0"), "start")


async def a_worker_runs_twice(scene: Scene) -> None:
    scene.launch_again(scene.workers[0])


async def a_gpu_belongs_to_two(scene: Scene) -> None:
    scene.launch_again(scene.workers[0], id="other-0")


async def an_attempt_trains_twice(scene: Scene) -> None:
    scene.workers[0].kill(1)
    scene.judge.worker_started(scene.launch_again(scene.workers[0]), "start")


async def an_attempt_skips_iterations(scene: Scene) -> None:
    first = scene.workers[0]
    task = first.task.model_copy(update={"first_iteration": 900})
    scene.launch_again(first, id="first-1-0", task=task)


async def a_job_starts_too_early(scene: Scene) -> None:
    scene.judge.submitted["second"] = {"after": [scene.job["id"]]}
    scene.launch_again(scene.workers[0], id="second-0", job="second")


async def an_ended_job_starts(scene: Scene) -> None:
    scene.lists({"state": "stopped"})
    scene.judge.worker_started(scene.launch_again(scene.workers[0], id="other-0"), "start")


async def an_end_changes(scene: Scene) -> None:
    scene.lists({"id": "z", "state": "failed"})
    await asyncio.sleep(1)
    scene.lists({"id": "z", "state": "done"})


async def a_user_has_too_many_gpus(scene: Scene) -> None:
    scene.lists({"hosts": ["a", "b", "c"]})


async def a_user_has_too_many_jobs(scene: Scene) -> None:
    scene.lists({"id": "1"}, {"id": "2"}, {"id": "3"})


async def a_job_overtakes(scene: Scene) -> None:
    first = {**scene.job, "id": "x", "gang": "x", "state": "queued", "hosts": []}
    first["spec"] = {**scene.job["spec"], "priority": 5}
    scene.answer("anna", "POST /jobs", {"jobs": [first]})
    await asyncio.sleep(1)
    scene.answer("anna", "POST /jobs", {"jobs": [{**scene.job, "id": "y"}]})
    scene.lists(first, {"id": "y", "gang": "y", "submitted_at": first["submitted_at"] + 1})


async def a_viewer_may_do_everything(scene: Scene) -> None:
    scene.answer("eva", "POST /locks", {"locks": []})


async def a_user_stops_the_job_of_another(scene: Scene) -> None:
    scene.answer("ben", f"DELETE /jobs/{scene.job['id']}", scene.job)


async def the_controller_fails(scene: Scene) -> None:
    scene.answer("anna", "GET /jobs", {}, 500)


async def a_request_makes_two_jobs(scene: Scene) -> None:
    scene.judge.orders.clear()
    await scene.rest()


async def a_job_is_forgotten(scene: Scene) -> None:
    scene.judge.submitted["lost"] = {}
    await scene.rest()


async def a_job_waits_for_ever(scene: Scene) -> None:
    await scene.rest(state="queued")


async def a_job_is_not_done(scene: Scene) -> None:
    await scene.rest(state="done")


async def nobody_says_why_it_failed(scene: Scene) -> None:
    await scene.rest(state="failed", message="")


async def nobody_stopped_it(scene: Scene) -> None:
    await scene.rest(state="stopped")


async def a_worker_is_left(scene: Scene) -> None:
    await scene.rest(state="failed", message="x")


async def a_file_is_left(scene: Scene) -> None:
    (next(iter(scene.lab.machines.values())).folder / "left").touch()
    await scene.rest()


async def the_api_shows_another_map(scene: Scene) -> None:
    device = next(iter(scene.lab.plant.devices.values()))
    device.map = device.map.without([next(iter(device.map))])
    await scene.rest()


RULES_BROKEN: tuple[tuple[Plant, str], ...] = (
    (a_circuit_goes, "nobody may break"),
    (a_circuit_goes_though_jobs_are_spared, "nobody may break"),
    (light_moves_after_a_stop, "moved while the stop button was on"),
    (a_viewer_may_do_everything, "eva may not POST /locks"),
    (the_controller_fails, "was answered with 500"),
    (a_user_has_too_many_gpus, "has 3 GPUs, and the limit is 2"),
    (a_user_has_too_many_jobs, "has 3 jobs, and the limit is 2"),
    (a_job_overtakes, "y runs, and x came first"),
    (a_worker_runs_twice, "runs twice"),
    (a_gpu_belongs_to_two, "belongs to other-0 and"),
    (an_attempt_skips_iterations, "skips iterations: it begins at 900"),
    (a_job_starts_too_early, "was launched before job"),
    (an_attempt_trains_twice, "trains for the second time"),
    (a_worker_is_left, "still runs"),
    (a_job_is_forgotten, "job lost was acknowledged"),
    (a_job_waits_for_ever, "is queued for ever"),
    (a_job_is_not_done, "is done, and its workers have not finished"),
    (nobody_says_why_it_failed, "nothing says why"),
    (nobody_stopped_it, "nobody ordered that"),
    (a_file_is_left, "has a file that nobody needs"),
    (the_api_shows_another_map, "but the API says"),
    (a_user_stops_the_job_of_another, "ben has stopped a job of anna without force"),
    (a_request_makes_two_jobs, "1 jobs are called first, and 0 were submitted"),
    (a_job_starts_while_drained, "starts while the lab is drained"),
    (an_ended_job_starts, "starts, and its job was stopped"),
    (an_end_changes, "was failed, and is done"),
)


def test_the_judge_finds_each_violation() -> None:
    history = History(1, [], draw_lab(1).with_changes(queue=RULES))
    missed = []

    async def play(world: object) -> None:
        scene = Scene(history)
        await history.lab.open()
        await history.users.open()
        await scene.begin()
        for plant, words in RULES_BROKEN:
            history.judge.found.clear()
            await plant(scene)
            if not any(words in each for each in history.judge.found):
                missed.append((plant.__name__, [*history.judge.found]))

    history._play = play  # type: ignore[method-assign]
    history.run()
    assert not missed
