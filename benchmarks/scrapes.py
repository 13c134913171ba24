"""What a scrape of the controller costs in a lab of 500 GPUs whose circuit switch has 1,000 ports.

The controller's parts are made and not run; agents and the circuit switch tell what they would.
"""

import asyncio
import tempfile
import time
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

from benchmarks import figure
from patchlight.controller.circuits.contract import Capabilities, DirectedPort
from patchlight.controller.circuits.drivers.dry_run import DryRun
from patchlight.controller.jobs.running_job import RunningJob
from patchlight.controller.metrics.exposition import ControllerMetrics
from patchlight.controller.parts import Controller, ControllerSettings
from patchlight.testbed.jobs import JobSpec
from patchlight.testbed.lab.model import (
    CircuitSwitch,
    Endpoint,
    Fibre,
    Gpu,
    Lab,
    Nic,
    Server,
)
from patchlight.testbed.lab.portmap import PortMap
from tests.support.waiting import eventually
from tests.support.watched_lab import TellingAgent

GPUS = 500
PORTS = 1000
JOBS = 50
_TIMES = 20


def run() -> list[dict[str, Any]]:
    """The figures, for both formats that Prometheus may ask for."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_figures(Path(folder)))


async def _figures(folder: Path) -> list[dict[str, Any]]:
    controller = Controller(
        _lab(), ControllerSettings(folder, "127.0.0.1:0", "127.0.0.1:0")
    )
    metrics = ControllerMetrics(controller)
    await _fill(controller, metrics)
    found = []
    for name in ("text", "OpenMetrics"):
        size = 0
        began_s = time.process_time()
        for _ in range(_TIMES):
            size = len(
                metrics.as_text(openmetrics=name == "OpenMetrics").splitlines()
            )
        cpu_ms = 1e3 * (time.process_time() - began_s) / _TIMES
        what = (
            f"controller, scrape of {GPUS} GPUs and {PORTS} OCS ports, {name}"
        )
        found.append(
            figure(f"{what}: processor time", cpu_ms, "ms", "at most 100")
        )
        found.append(figure(f"{what}: lines", size, "lines"))
    await controller.fleet.close()
    controller.store.close()
    return found


class _Monitored(DryRun):
    """A circuit switch in memory that measures power at every port."""

    capabilities = Capabilities(power_in=True, power_out=True)

    async def power(self, ports: Any) -> dict[DirectedPort, float | None]:
        return {port: 0.0 if port.side == "in" else -1.0 for port in ports}


def _lab() -> Lab:
    servers = tuple(
        Server(
            f"s{s}",
            f"127.0.0.1:{10_000 + s}",
            tuple(Gpu(f"gpu{n}", "V100") for n in range(10)),
            tuple(
                Nic(
                    f"nic{n}",
                    IPv4Address(f"10.0.{s}.{n}"),
                    rate_bps=10**10,
                    gpu=f"gpu{n}",
                    mac=f"02:00:00:00:{s:02x}:{n:02x}",
                )
                for n in range(10)
            ),
        )
        for s in range(GPUS // 10)
    )
    lit = PortMap.duplex((n, n + PORTS // 2) for n in range(1, PORTS // 2 + 1))
    ocs = CircuitSwitch("ocs1", "dry-run", "127.0.0.1:1", PORTS, initial=lit)
    ends = [Endpoint(s.name, nic.name) for s in servers for nic in s.nics]
    fibres = tuple(
        Fibre(end, Endpoint("ocs1", str(n))) for n, end in enumerate(ends, 1)
    )
    return Lab(
        name="wide",
        network=IPv4Network("10.0.0.0/16"),
        servers=servers,
        circuit_switches=(ocs,),
        fibres=fibres,
    )


async def _fill(controller: Controller, metrics: ControllerMetrics) -> None:
    """Have every port lit, every agent heard, and every GPU in a job that has reported."""
    lab = controller.lab
    fleet = controller.fleet
    controller.drivers["ocs1"] = _Monitored(lab.circuit_switch("ocs1"))
    for server in lab.servers:
        fleet.clients[server.name] = TellingAgent(server)
    watching = asyncio.create_task(fleet.watch())
    await eventually(
        lambda: len(fleet.latest_gpus()) == GPUS, "all agents to be heard"
    )
    watching.cancel()
    await metrics.power.measure()
    spec = JobSpec("job", 100, 10**9, {"V100": 0.1}, workers=GPUS // JOBS)
    for number in range(JOBS):
        hosts = lab.hosts[number::JOBS]
        running = RunningJob(f"job-{number}", spec, hosts, _nothing)
        controller.jobs.running[running.id] = running
        for hear in controller.jobs.on_reports:
            hear(running, [_report(rank) for rank in range(len(hosts))])


def _report(rank: int) -> dict[str, Any]:
    times = {"compute_s": 0.1, "communication_s": 0.1, "finished_at": 1.0}
    return {"rank": rank, "index": 0, "sent_bytes": 1000, **times}


async def _nothing(*_: Any) -> None:
    return
