"""Simulated servers: NICs, GPUs and workers behind the agents' contracts.

An agent is the real one. A worker's program is a process of the world that speaks the real control
protocol and writes the real files; it trains only while its ring's packets arrive.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import json
import logging
import os
import shutil
import socket
from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import Any, Literal

import httpx

from patchlight.agents.api import AgentMetrics, make_app
from patchlight.agents.errors import GpuError, LaunchError, NicError
from patchlight.agents.gpus import GpuBackend, GpuReading
from patchlight.agents.nics.announcing import Neighbours
from patchlight.agents.nics.backend import NicBackend
from patchlight.agents.nics.state import NicAccess, NicState, WorkerNetwork
from patchlight.agents.nics.status import NO_CARRIER, Ear, NicPlace, NicProblem
from patchlight.agents.service import AgentService
from patchlight.agents.workers.contract import (
    ExitInfo,
    Runner,
    RunningWorker,
    WorkerHandle,
    WorkerLaunch,
)
from patchlight.agents.workers.keeper import OUTPUT, last_lines
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.model import Host, Nic, Server
from patchlight.testbed.linux.sockets import UNIX_CLIENT
from patchlight.testbed.wire.agent_status import NicStatus, RdmaStatus
from patchlight.testbed.wire.worker_api import SyntheticTask
from tests.simulation.disk import Disk
from tests.simulation.plant import Plant
from tests.simulation.world import Process, World


class Machine:
    """One server: what its hardware has, whoever controls it."""

    def __init__(self, world: World, plant: Plant, server: Server) -> None:
        self.world = world
        self.plant = plant
        self.server = server
        self.folder = world.folder / server.name
        self.disk = Disk(world, self.folder)
        self.claims = world.folder / f"claims-{server.name}"
        self.agent = Process(world, f"agent-{server.name}")
        self.agent.alive = False
        self.app: Any = None
        self.service: AgentService | None = None
        self.in_namespace: dict[str, str] = {}
        """The namespace that each interface is in, unless it is at home."""
        self.workers: dict[int, Worker] = {}
        self.dead_gpus: set[str] = set()
        self.next_launch: Literal["", "fails", "kills the agent"] = ""
        self.next_answer: Literal[
            "", "is late", "is lost", "is given twice"
        ] = ""
        self.on_worker: list[Callable[[Worker, str], None]] = []
        self.is_on = True
        self.runner: Callable[[Machine], SimulatedRunner] = SimulatedRunner

    def host_of(self, interface: str) -> Host:
        """The host with this interface."""
        return next(
            host
            for host in self.plant.lab.hosts
            if host.server.name == self.server.name
            and interface == (host.nic.interface or host.nic.name)
        )

    def start(self) -> None:
        """Start the agent's process; the server is on."""
        self.is_on = True
        self.agent = Process(self.world, f"agent-{self.server.name}")
        self.agent.disk = self.disk
        self.agent.at_end.append(lambda: setattr(self, "app", None))
        self.world.log(self.agent.name, "starts")
        self.agent.start(self._run(self.agent))

    def restart(self) -> None:
        """Start the agent unless it runs, or the server is off."""
        if not self.agent.alive and self.is_on:
            self.start()

    def switch_off(self) -> None:
        """End all that runs, and move the NICs home; what was written stays."""
        self.is_on = False
        self.agent.kill()
        for worker in self.workers.values():
            worker.kill(137)
        self.in_namespace.clear()
        shutil.rmtree(self.claims, ignore_errors=True)  # it is in memory
        self.disk.boots += 1

    def cut_power(self) -> None:
        """The same, and what was not synced is lost."""
        self.switch_off()
        self.disk.cut_power()

    async def _run(self, agent: Process) -> None:
        lab = self.plant.lab
        self.service = service = AgentService(
            lab,
            self.server,
            self.runner(self),
            SimulatedGpus(self),
            self.folder,
            nics=SimulatedNics(self),
            claims=self.claims,
            boot=self.boot,
        )
        try:
            await service.open()
        except PatchlightError as error:
            self.world.log(agent.name, f"cannot start: {error.message}")
            agent.end()
            self.world.loop.call_later(
                5.0, self.restart, context=contextvars.Context()
            )
            return
        self._api = make_app(service, lab.name, AgentMetrics(service))
        self.app = self._answer

    @property
    def boot(self) -> str:
        """The id of this boot."""
        return f"boot {self.disk.boots}"

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request, or do what is said of the next one."""
        fault = self.next_answer
        self.next_answer = ""
        request = await receive()

        async def again() -> Any:
            return request

        async def unheard(_: Any) -> None:
            pass

        if fault:
            self.world.log(
                self.agent.name, f"the answer to {scope['path']} {fault}"
            )
        if fault == "is late":
            await asyncio.sleep(self.world.draw.choice((1.0, 10.0, 40.0)))
        if fault == "is lost":
            await self._api(scope, again, unheard)
            await asyncio.Event().wait()
        await self._api(scope, again, send)
        if fault == "is given twice":  # to a request that is delivered twice
            await asyncio.sleep(self.world.draw.choice((0.0, 1.0, 20.0)))
            await self._api(scope, again, unheard)


class SimulatedNics(NicBackend):
    """NICs whose carrier and packets are those of the plant."""

    def __init__(self, machine: Machine) -> None:
        self.home = Path("/proc/self/ns/net")
        self._machine = machine
        self._plant = machine.plant

    def key(self, interface: str) -> str:
        """See ``NicBackend``."""
        return interface

    def find(self, nic: Nic) -> NicAccess:
        """See ``NicBackend``."""
        return NicAccess("veth", nic.interface or nic.name)

    def read(self, access: NicAccess) -> NicState:
        """See ``NicBackend``."""
        if access.interface in self._machine.in_namespace:
            raise NicError(f"{access.interface} is not here")
        host = self._machine.host_of(access.interface)
        return NicState(
            access.interface, host.nic.mac, 1500, up=True, mode="veth"
        )

    def give(
        self, state: NicState, namespace: str, network: WorkerNetwork
    ) -> None:
        """See ``NicBackend``."""
        if state.interface in self._machine.in_namespace:
            raise NicError(f"{state.interface} is not here")
        self._machine.in_namespace[state.interface] = namespace

    def take_back(self, state: NicState, namespace: str) -> str:
        """See ``NicBackend``."""
        for worker in self._machine.workers.values():
            if worker.launch.namespace == namespace:
                worker.kill(137)
        if self._machine.in_namespace.get(state.interface) == namespace:
            del self._machine.in_namespace[state.interface]
        return ""

    def block_egress(self, namespace: str, interface: str) -> None:
        """See ``NicBackend``."""

    def unblock_egress(self, namespace: str) -> None:
        """See ``NicBackend``."""

    def problem(self, place: NicPlace) -> NicProblem | None:
        """See ``NicBackend``."""
        return self._problem(place.state.interface)

    def _problem(self, interface: str) -> NicProblem | None:
        if self._plant.has_carrier(self._machine.host_of(interface)):
            return None
        return NicProblem(NO_CARRIER.format(interface), is_dark=True)

    def rdma(self, place: NicPlace) -> RdmaStatus | None:
        """See ``NicBackend``."""
        return None

    def idle_status(self, nic: Nic) -> NicStatus:
        """See ``NicBackend``."""
        return self._status(nic, None)

    def leased_status(
        self,
        nic: Nic,
        worker: str,
        place: NicPlace | None,
        rdma: RdmaStatus | None,
        problem: NicProblem | None,
    ) -> NicStatus:
        """See ``NicBackend``."""
        return self._status(nic, worker)

    def _status(self, nic: Nic, worker: str | None) -> NicStatus:
        problem = self._problem(nic.interface or nic.name)
        return NicStatus(
            name=nic.name,
            address=str(nic.address),
            state="idle" if worker is None else "leased",
            worker=worker,
            mac=nic.mac,
            carrier=problem is None,
            problem=problem.words if problem else "",
        )

    def announce_once(self, place: NicPlace) -> None:
        """See ``NicBackend``."""

    async def announce(
        self,
        place: NicPlace,
        neighbours: Neighbours,
        token: str,
        wait_s: float,
        mtu: int | None,
    ) -> list[str]:
        """See ``NicBackend``."""
        own = self._machine.host_of(place.state.interface)
        by_mac = {host.nic.mac.lower(): host for host in self._plant.lab.hosts}
        end = self._machine.world.now + wait_s
        while True:
            unheard = [
                address
                for mac, address in neighbours.items()
                if not self._plant.hears(by_mac[mac], own)
            ]
            if not unheard or self._machine.world.now >= end:
                return sorted(unheard)
            await asyncio.sleep(0.1)

    def probe(
        self, names: Mapping[str, str], token: str, listen_s: float
    ) -> Mapping[str, Ear]:
        """See ``NicBackend``."""
        raise NicError("probes are not simulated")


class SimulatedGpus(GpuBackend):
    """GPUs that are idle, or gone."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    async def open(self) -> None:
        """See ``GpuBackend``."""

    async def read(self, name: str) -> GpuReading:
        """See ``GpuBackend``."""
        if name in self._machine.dead_gpus:
            raise GpuError(f"GPU {name} has fallen off the bus")
        gpu = next(
            gpu for gpu in self._machine.server.gpus if gpu.name == name
        )
        return GpuReading(name, gpu.model, f"GPU-{name}", 0.0, 0.0)


class SimulatedRunner(Runner):
    """Launches workers as processes of the world, which outlive the agent."""

    name = "process"
    worker_user = "dynamic"

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    async def open(self) -> None:
        """See ``Runner``."""

    async def launch(self, launch: WorkerLaunch) -> RunningWorker:
        """See ``Runner``."""
        await asyncio.sleep(self._machine.world.draw.randint(50, 500) / 1000)
        fault, self._machine.next_launch = self._machine.next_launch, ""
        if fault == "fails":
            raise LaunchError("it cannot be launched now")
        worker = self.make(launch)
        self._machine.workers[worker.process.pid] = worker
        worker.begin()
        if fault:
            self._machine.agent.kill()
            await asyncio.sleep(0)
        return _Handle(worker)

    def make(self, launch: WorkerLaunch) -> Worker:
        """The program that is launched."""
        return Worker(self._machine, launch)

    async def adopt(
        self, handle: WorkerHandle, namespace: str, directory: Path
    ) -> RunningWorker:
        """See ``Runner``."""
        assert handle.pid is not None
        return _Handle(self._machine.workers[handle.pid])

    async def sweep(self, known: Container[str | None]) -> None:
        """See ``Runner``."""


class _Handle(RunningWorker):
    """A worker as one agent sees it."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    @property
    def handle(self) -> WorkerHandle:
        """See ``RunningWorker``."""
        return WorkerHandle(
            pid=self._worker.process.pid,
            started=1,
            boot=self._worker.machine.boot,
        )

    async def ended(self) -> ExitInfo:
        """See ``RunningWorker``."""
        code = await asyncio.shield(self._worker.exit_code)
        return ExitInfo(
            code, last_lines(self._worker.launch.directory / OUTPUT)
        )

    async def stop(self, grace_s: float) -> None:
        """See ``RunningWorker``."""
        if self._worker.stubborn:
            await asyncio.sleep(grace_s)
            self._worker.kill(137)
        await asyncio.sleep(
            min(
                grace_s, self._worker.machine.world.draw.randint(1, 300) / 1000
            )
        )
        self._worker.kill(143)

    async def freeze(self) -> None:
        """See ``RunningWorker``."""

    async def thaw(self) -> None:
        """See ``RunningWorker``."""

    async def dispose(self) -> None:
        """See ``RunningWorker``."""
        self._worker.kill(137)


class Worker:
    """A synthetic trainer: the control protocol and the files of ``agents.training``."""

    LOST_S = 120.0
    """A neighbour that is not heard for so long ends the training."""

    def __init__(self, machine: Machine, launch: WorkerLaunch) -> None:
        self.machine = machine
        self.launch = launch
        self.id = launch.spec.id
        self.process = Process(machine.world, f"worker-{self.id}")
        self.process.disk = machine.disk
        self.exit_code: asyncio.Future[int] = (
            machine.world.loop.create_future()
        )
        assert isinstance(launch.spec.task, SyntheticTask)
        self.task: SyntheticTask = launch.spec.task
        self.next = self.task.first_iteration
        self.done_iterations = self.next
        self.hold_at: int | None = None
        self.stop_at: int | None = None
        self.stubborn = False
        """Whether it ignores SIGTERM."""
        self.responsive = asyncio.Event()
        """Cleared while it hangs."""
        self.responsive.set()
        self.started = asyncio.Event()
        self.state = ""
        self.ring: list[Worker] = []

    def begin(self) -> None:
        """Start its program."""
        self.machine.world.log(self.process.name, "starts")
        self._tell("launched")
        self.process.start(self._run())

    async def _run(self) -> None:
        try:
            await self._main()
        except OSError as error:
            self.machine.world.log(
                self.process.name, f"fails: {error.strerror}"
            )
            self.exit_code.set_result(1)
            self.process.end()

    def fail(self, message: str) -> None:
        """Its program ends by itself with an error."""
        self._say("failed", message)
        self.kill(1)

    def _tell(self, what: str) -> None:
        for hear in tuple(self.machine.on_worker):
            hear(self, what)

    def kill(self, code: int) -> None:
        """End it with this exit code."""
        if not self.exit_code.done():
            self.exit_code.set_result(code)
            self.process.kill()

    async def _main(self) -> None:
        folder = self.launch.directory
        path = folder / "control.sock"
        with socket.socket(socket.AF_UNIX) as file, _in(folder):
            file.bind(path.name)
        await asyncio.start_unix_server(self._control, path)
        if lost := await self._join():
            self._say("failed", lost)
            self.exit_code.set_result(1)
            self.process.end()
            return
        self._say("ready")
        await self.started.wait()
        self._say("running")
        self.exit_code.set_result(await self._train())
        self.process.end()

    async def _train(self) -> int:
        for iteration in range(
            self.task.first_iteration, self.task.iterations
        ):
            await asyncio.sleep(self.task.compute_s)
            await self.responsive.wait()
            while self.hold_at == iteration and self.stop_at != iteration:
                if self.state != "held":
                    self._say("held")
                await asyncio.sleep(0.2)
            if self.stop_at == iteration:
                self._say(
                    "stopped",
                    f"stopped before the all-reduce of iteration {iteration}",
                )
                return 0
            if self.state == "held":
                self._say("running")
            self.next = iteration + 1
            if lost := await self._all_reduce(iteration):
                self._say("failed", lost)
                return 1
            self.done_iterations = iteration + 1
            report = {
                "index": iteration,
                "finished_at": self.machine.world.wall(),
                "compute_s": self.task.compute_s,
                "communication_s": 0.1,
                "sent_bytes": self.task.gradient_bytes,
                "check": "ok",
                "device": "sleep",
            }
            with (self.launch.directory / "reports.jsonl").open("a") as file:
                file.write(json.dumps(report) + "\n")
            self._say(self.state)
        self._say("done")
        return 0

    async def _join(self) -> str:
        """Wait for the whole ring; why it failed, if it did."""
        self.ring = self.machine.plant.ring_of(self.launch.spec)
        self.ring.append(self)
        size = len(self.launch.spec.ring)
        return await self._until(
            lambda: len(self.ring) == size and self._heard()
        )

    async def _all_reduce(self, iteration: int) -> str:
        """Exchange with the ring; why it failed, if it did."""
        lost = await self._until(
            lambda: (
                self._heard()
                and all(worker.next > iteration for worker in self.ring)
            )
        )
        await asyncio.sleep(0.1)
        return lost

    def _heard(self) -> bool:
        plant = self.machine.plant
        spec = self.launch.spec
        by_address = {str(host.nic.address): host for host in plant.lab.hosts}
        ring = [by_address[str(member.address)] for member in spec.ring]
        following = ring[(spec.rank + 1) % len(ring)]
        return len(ring) == 1 or plant.hears(ring[spec.rank], following)

    async def _until(self, condition: Callable[[], bool]) -> str:
        end = self.machine.world.now + self.LOST_S
        while not condition():
            if any(
                not w.process.alive and w.state != "done" for w in self.ring
            ):
                return "a worker of the ring is gone"
            if self.machine.world.now > end:
                return f"the ring was not whole for {self.LOST_S:g} s"
            await asyncio.sleep(0.25)
        return ""

    def _say(self, state: str, message: str = "") -> None:
        if state != self.state:
            self.state = state
            self._tell(state)
        words = {
            "state": state,
            "iterations_done": self.done_iterations,
            "message": message,
        }
        new = self.launch.directory / "state.json.new"
        new.write_text(json.dumps(words))
        os.replace(new, self.launch.directory / "state.json")

    async def _control(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while line := await reader.readline():
            request = json.loads(line)
            await self.responsive.wait()
            error = self._obey(request)
            reply: dict[str, Any] = {"ok": not error, "iteration": self.next}
            if error:
                reply["error"] = error
            writer.write(json.dumps(reply).encode() + b"\n")
        writer.close()

    def _obey(self, request: Mapping[str, Any]) -> str:
        operation = request["op"]
        if operation == "start":
            self.started.set()
            self._tell("start")
        elif operation == "release":
            self.hold_at = self.stop_at = None
        elif operation in ("hold", "stop-at"):
            iteration = request["iteration"]
            if not self.next <= iteration < self.task.iterations:
                return (
                    f"iteration {iteration} is over: the next all-reduce "
                    f"belongs to iteration {self.next}"
                )
            if operation == "hold":
                self.hold_at = iteration
            else:
                self.stop_at = iteration
        return ""


@contextlib.contextmanager
def _in(folder: Path) -> Any:
    """Be in a folder: paths of sockets are short."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


class ToProcess(httpx.AsyncBaseTransport):
    """Carries HTTP requests to an ASGI app of a process, with the delays and cuts of the world.

    ``find`` returns the process and its app, if it runs. What the server has begun goes on though
    the client is gone.
    """

    def __init__(
        self, world: World, client: Process, find: Any, user: int = 0
    ) -> None:
        self._world = world
        self._client = client
        self._find = find
        self._user = user

    async def handle_async_request(
        self, request: httpx.Request
    ) -> httpx.Response:
        """One request; ``httpx`` errors as over a socket."""
        body = await request.aread()
        limit_s = request.extensions.get("timeout", {}).get("read") or 3600.0
        try:
            async with asyncio.timeout(limit_s):
                return await self._exchange(request, body)
        except TimeoutError as error:
            raise httpx.ReadTimeout("", request=request) from error

    async def _exchange(
        self, request: httpx.Request, body: bytes
    ) -> httpx.Response:
        world = self._world
        network = self._world.network
        process, _ = self._find()
        arrived: asyncio.Future[None] = world.loop.create_future()
        network.when_open(
            self._client.name,
            process.name,
            lambda: world.loop.call_later(
                world.latency_s(), _set, arrived, context=self._own()
            ),
        )
        await arrived
        process, app = self._find()
        if not process.alive or app is None:
            raise httpx.ConnectError(
                "All connection attempts failed", request=request
            )
        answer: asyncio.Future[httpx.Response | None] = (
            world.loop.create_future()
        )

        def reply(response: httpx.Response | None) -> None:
            network.when_open(
                process.name,
                self._client.name,
                lambda: world.loop.call_later(
                    world.latency_s(),
                    _set,
                    answer,
                    response,
                    context=self._own(),
                ),
            )

        def died() -> None:
            reply(None)

        for hear in process.at_call:
            hear()
        process.at_end.append(died)
        process.start(self._serve(app, request, body, reply))
        try:
            response = await answer
        finally:
            if died in process.at_end:
                process.at_end.remove(died)
        if response is None:
            raise httpx.ReadError("the connection was reset", request=request)
        return response

    def _own(self) -> Any:
        return self._client.context.copy()

    async def _serve(
        self, app: Any, request: httpx.Request, body: bytes, done: Any
    ) -> None:
        sent = False

        async def receive() -> dict[str, Any]:
            nonlocal sent
            if not sent:
                sent = True
                return {
                    "type": "http.request",
                    "body": body,
                    "more_body": False,
                }
            await asyncio.Event().wait()  # the client stays until the end
            raise AssertionError

        status = 500
        headers = []
        parts = list[bytes]()

        async def send(message: Mapping[str, Any]) -> None:
            nonlocal status, headers
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = list(message.get("headers", []))
            else:
                parts.append(message.get("body", b""))

        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": "http",
            "path": request.url.path,
            "raw_path": request.url.raw_path.split(b"?")[0],
            "query_string": request.url.query,
            "root_path": "",
            "headers": [
                (name.lower(), value) for name, value in request.headers.raw
            ],
            "client": (UNIX_CLIENT, self._user),
            "server": ("localhost", None),
            "state": {"connection": {}},
        }
        try:
            await app(scope, receive, send)
        except Exception:  # the server has answered with 500, and logs it
            logging.getLogger(__name__).exception(
                "exception in the application"
            )
        done(
            httpx.Response(
                status,
                headers=headers,
                content=b"".join(parts),
                request=request,
            )
        )


def _set(future: asyncio.Future[Any], value: Any = None) -> None:
    if not future.done():
        future.set_result(value)
