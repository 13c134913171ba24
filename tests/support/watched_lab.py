"""A controller's parts at work without root, and a real Prometheus that scrapes its metrics.

The OCS is the emulated device, the OpenFlow speaker the real one. Agents, packet switches and the
workers of one job tell what they would.
"""

import asyncio
import contextlib
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import yaml

from patchlight.controller.agent_client import VERSION, AgentClient
from patchlight.controller.api.app import create_app
from patchlight.controller.jobs.running_job import RunningJob
from patchlight.controller.metrics.exposition import ControllerMetrics
from patchlight.controller.parts import Controller, Settings
from patchlight.deploy.monitoring import CONFIG_FILE, RULES, scrape_config, write_monitoring
from patchlight.testbed.agent_status import AgentStatus, GpuStatus, GpuTelemetry, NicStatus
from patchlight.testbed.jobs import JobSpec, JobState, JobStatus
from patchlight.testbed.lab import Server
from patchlight.testbed.labfile.reader import builtin_lab, read_lab
from patchlight.testbed.linux.http_server import http_server
from patchlight.testbed.linux.sockets import listen
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
        self.server, self._server = server.name, server

    async def close(self) -> None:
        return None

    async def status(self) -> AgentStatus:
        busy: dict[str, Any] = {"utilization": 0.9, "busy_s": 1.0, "telemetry": TELEMETRY}
        return AgentStatus(
            server=self.server,
            version=VERSION,
            runner="",
            gpus=[GpuStatus(name=g.name, model=g.model, **busy) for g in self._server.gpus],
            nics=[
                NicStatus(name=nic.name, address=str(nic.address), state="idle")
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
        settings = Settings(folder / "state", "", f"127.0.0.1:{openflow}")
        controller = Controller(lab, settings)
        metrics = ControllerMetrics(controller)
        for server in lab.servers:
            controller.fleet.clients[server.name] = TellingAgent(server)
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(controller.store.close)
            stack.push_async_callback(controller.drivers["ocs1"].close)
            await controller.circuits.devices.open()
            stack.push_async_callback(controller.speaker.close)
            await controller.speaker.start()
            stack.push_async_callback(controller.switches.close)
            stack.push_async_callback(controller.background.close)
            await controller.device_watch.begin()
            await controller.transactions.settle_flows()
            controller.background.start("fleet", controller.fleet.watch)
            controller.background.start("device watch", controller.device_watch.run)
            controller.background.start("optical power", metrics.power.run)
            controller.background.start("job", lambda: _train(controller))
            app = create_app(controller)
            app.include_router(metrics.routes())
            answering = http_server(app, lifespan="off")
            listener = stack.enter_context(listen("127.0.0.1:0"))
            serving = asyncio.create_task(answering.serve(sockets=[listener]))
            try:
                address = f"127.0.0.1:{listener.getsockname()[1]}"
                yield WatchedLab(controller, device, address)
            finally:
                answering.should_exit = True
                await serving


async def _train(controller: Controller) -> None:
    """One job on all GPUs, whose workers report; the ToRs count what they send."""
    hosts = controller.lab.hosts
    names = tuple(host.name for host in hosts)
    spec = JobSpec("trains", 10_000, 10**6, {"Tesla M40": 0.1, "Titan V": 0.1}, hosts=names)
    status = JobStatus(JOB, spec, JobState.RUNNING, hosts=names, runs_since=time.time())
    controller.jobs.add([replace(status, submitted_at=time.time())])
    job = controller.jobs.running[JOB] = RunningJob(JOB, spec, hosts, _nothing)
    seen = {"kind": "placement", "policy": "first-fit", "answer": [0], "seconds": 0.001}
    controller.jobs.ledger.add_decision(JOB, time.time(), seen)
    for index in range(spec.iterations):
        now = time.time()
        done = {"index": index, "finished_at": now, "sent_bytes": 10**6}
        took = {"compute_s": 0.1, "communication_s": 0.1}
        for hear in controller.jobs.on_reports:
            hear(job, [{"rank": rank, **done, **took} for rank in range(len(hosts))])
        for switch in controller.lab.packet_switches:
            counted = {"rx_bytes": 10**6 * index, "tx_bytes": 10**6 * index}
            ports = [{"port": port, **counted} for port in range(1, switch.ports + 1)]
            told = {"datapath_id": switch.datapath_id, "at": now, "ports": ports}
            controller.on_event({"event": "counters", **told})
        await asyncio.sleep(0.3)


async def _nothing(reports: list[dict[str, Any]]) -> None:
    return


class PrometheusServer:
    """A Prometheus, asked over its own API."""

    def __init__(self, address: str) -> None:
        self._client = httpx.Client(base_url=f"http://{address}/api/v1", timeout=30)

    def _ask(self, path: str, **parameters: str) -> Any:
        answer = self._client.get(path, params=parameters)
        assert answer.status_code == 200, (parameters, answer.text)
        return answer.json()["data"]

    def is_ready(self) -> bool:
        """Whether it answers."""
        with contextlib.suppress(httpx.TransportError):
            return self._client.get("/status/runtimeinfo").status_code == 200
        return False

    def values(self, query: str) -> list[float]:
        """The values that a query has now, but for those that are no number."""
        found = self._ask("/query", query=query)["result"]
        values = [float(each["value"][1]) for each in found]
        return [value for value in values if value == value]

    def firing(self) -> set[str]:
        """The names of the alerts that fire."""
        alerts = self._ask("/alerts")["alerts"]
        return {a["labels"]["alertname"] for a in alerts if a["state"] == "firing"}

    def exemplars(self, query: str) -> list[dict[str, str]]:
        """The labels of the exemplars that it kept."""
        now = time.time()
        found = self._ask("/query_exemplars", query=query, start=str(now - 600), end=str(now))
        return [dict(each["labels"]) for series in found for each in series["exemplars"]]

    def series(self) -> int:
        """How many series it has in all."""
        return int(self._ask("/status/tsdb")["headStats"]["numSeries"])


@contextlib.contextmanager
def prometheus_server(folder: Path, watched: str) -> Iterator[PrometheusServer]:
    """A Prometheus that scrapes a controller each second until the block ends.

    Its configuration and rules are those that ``patchlight deploy prometheus`` writes, but alerts
    wait for nothing: how long they do is tested with time that ``promtool`` makes up.
    """
    lab = LAB.with_changes(servers=())  # no agents that answer over TLS
    write_monitoring(folder, scrape_config(lab, watched, folder, 1.0))
    rules = yaml.safe_load((folder / RULES.name).read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule.pop("for", None)
    (folder / RULES.name).write_text(yaml.safe_dump(rules))
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    command = ["prometheus", f"--config.file={folder / CONFIG_FILE}", "--log.level=warn"]
    command += [f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address={address}"]
    command += ["--enable-feature=exemplar-storage"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
        try:
            yield PrometheusServer(address)
        finally:
            process.terminate()
            process.wait(20)
