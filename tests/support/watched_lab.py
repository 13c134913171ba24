"""A controller's parts at work without root, with its API and metrics.

The OCS is the emulated device, the OpenFlow speaker the real one. Agents, packet switches and the
workers of one job tell what they would.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from patchlight.controller.api.app import create_app, metrics_routes
from patchlight.controller.hosts.agent_client import (
    VERSION,
    AgentClient,
    Heartbeat,
)
from patchlight.controller.hosts.on_time import OnTimeClock
from patchlight.controller.jobs.running_job import RunningJob
from patchlight.controller.metrics.exposition import ControllerMetrics
from patchlight.controller.parts import WIDTH_S, Controller, ControllerSettings
from patchlight.testbed.jobs import JobSpec, JobState, JobStatus
from patchlight.testbed.lab.model import Server
from patchlight.testbed.labfile.reader import builtin_lab, read_lab
from patchlight.testbed.linux.http_server import http_server
from patchlight.testbed.linux.sockets import listen
from patchlight.testbed.wire.agent_status import (
    AgentStatus,
    GpuStatus,
    GpuTelemetry,
    NicStatus,
)
from tests.support.emulated_devices import Running, running
from tests.support.waiting import free_ports

LAB = read_lab(builtin_lab("ofc2022"))
JOB = "job-1"
TELEMETRY = GpuTelemetry(
    memory_bytes=80 << 30,
    memory_used_bytes=1 << 30,
    power_w=300.0,
    energy_j=1e6,
    temperature_c=60.0,
    sm_clock_hz=1.4e9,
    memory_clock_hz=1.2e9,
    pcie_sent_bps=1e9,
    pcie_received_bps=1e9,
    nvlink_sent_bps=1e9,
    nvlink_received_bps=1e9,
    processes=(1,),
    mig=False,
    ecc_corrected=0,
    ecc_uncorrected=0,
)


class TellingAgent(AgentClient):
    """The agent of a server whose GPUs are busy, and whose NICs are well."""

    def __init__(self, server: Server) -> None:
        self.server = server.name
        self._server = server
        self.heartbeat = Heartbeat()
        self._clock = OnTimeClock()

    async def close(self) -> None:
        return None

    async def status(self) -> AgentStatus:
        busy: dict[str, Any] = {
            "utilization": 0.9,
            "busy_s": 1.0,
            "telemetry": TELEMETRY,
        }
        return AgentStatus(
            server=self.server,
            version=VERSION,
            runner="",
            gpus=[
                GpuStatus(name=g.name, model=g.model, **busy)
                for g in self._server.gpus
            ],
            nics=[
                NicStatus(
                    name=nic.name, address=str(nic.address), state="idle"
                )
                for nic in self._server.nics
            ],
            workers=[],
        )


@dataclass
class WatchedLab:
    """The controller, its OCS, and where its API is, metrics included."""

    controller: Controller
    device: Running
    address: str


@contextlib.asynccontextmanager
async def watched_lab(folder: Path) -> AsyncIterator[WatchedLab]:
    """The parts at work, with a job that reports all the time, until the block ends."""
    with running(folder, builtin_lab("ofc2022"), "--no-fabric") as device:
        lab = LAB.with_changes(circuit_switches=(device.switch,))
        (openflow,) = free_ports(1)
        settings = ControllerSettings(
            folder / "state", "", f"127.0.0.1:{openflow}"
        )
        controller = Controller(lab, settings)
        metrics = ControllerMetrics(controller)
        for server in lab.servers:
            controller.fleet.clients[server.name] = TellingAgent(server)
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(controller.store.close)
            stack.callback(controller.series.close)
            stack.push_async_callback(controller.drivers["ocs1"].close)
            await controller.circuits.devices.open()
            stack.push_async_callback(controller.speaker.close)
            await controller.speaker.start()
            stack.push_async_callback(controller.switches.close)
            stack.push_async_callback(controller.background.close)
            await controller.device_watch.begin()
            await controller.transactions.settle_flows()
            controller.background.start("fleet", controller.fleet.watch)
            controller.background.start(
                "device watch", controller.device_watch.run
            )
            controller.background.start("optical power", metrics.power.run)
            controller.background.start("job", lambda: _train(controller))
            app = create_app(controller)
            app.include_router(metrics_routes(metrics))
            answering = http_server(app, lifespan="off")
            listener = stack.enter_context(listen("127.0.0.1:0"))
            serving = asyncio.create_task(answering.serve(sockets=[listener]))
            try:
                address = f"127.0.0.1:{listener.getsockname()[1]}"
                yield WatchedLab(controller, device, address)
            finally:
                answering.should_exit = True
                await serving


async def put_samples_on_disk(lab: WatchedLab) -> None:
    """Write what was sampled lately, without waiting for the window's end."""
    now = int(time.time())
    for begin in (now - now % WIDTH_S - WIDTH_S, now - now % WIDTH_S):
        await lab.controller.recorder.write(begin)


async def _train(controller: Controller) -> None:
    """One job on all GPUs, whose workers report; the ToRs count what they send."""
    hosts = controller.lab.hosts
    names = tuple(host.name for host in hosts)
    spec = JobSpec(
        "trains",
        10_000,
        10**6,
        {"Tesla M40": 0.1, "Titan V": 0.1},
        hosts=names,
    )
    status = JobStatus(
        JOB, spec, JobState.RUNNING, hosts=names, runs_since=time.time()
    )
    controller.jobs.add([replace(status, submitted_at=time.time())])
    job = controller.jobs.running[JOB] = RunningJob(JOB, spec, hosts, _nothing)
    seen = {
        "kind": "placement",
        "policy": "first-fit",
        "answer": [0],
        "seconds": 0.001,
    }
    controller.jobs.ledger.add_decision(JOB, time.time(), seen)
    for index in range(spec.iterations):
        now = time.time()
        done = {"index": index, "finished_at": now, "sent_bytes": 10**6}
        took = {"compute_s": 0.1, "communication_s": 0.1}
        for hear in controller.jobs.on_reports:
            hear(
                job,
                [{"rank": rank, **done, **took} for rank in range(len(hosts))],
            )
        for switch in controller.lab.packet_switches:
            counted = {"rx_bytes": 10**6 * index, "tx_bytes": 10**6 * index}
            ports = [
                {"port": port, **counted}
                for port in range(1, switch.ports + 1)
            ]
            told = {
                "datapath_id": switch.datapath_id,
                "at": now,
                "ports": ports,
            }
            controller.on_event({"event": "counters", **told})
        await asyncio.sleep(0.3)  # an iteration


async def _nothing(*_: Any) -> None:
    return
