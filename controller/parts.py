"""Assembles the controller's parts; runs background parts and the recorder."""

import asyncio
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

import httpx

from patchlight.controller.access.tokens import Attempt, AuditLog
from patchlight.controller.changes.device_watch import DeviceWatch
from patchlight.controller.changes.parts import CircuitParts
from patchlight.controller.changes.power import (
    DEFAULT_TOLERANCES,
    POWER_CEILING_DBM,
    Tolerances,
)
from patchlight.controller.changes.service import CircuitService
from patchlight.controller.changes.transaction import Transactions
from patchlight.controller.circuits.contract import AnyDriver
from patchlight.controller.circuits.dialect import DEFAULT_LINKS, DeviceLinks
from patchlight.controller.circuits.registry import open_driver, password_of
from patchlight.controller.discovery.discovery import Discovery
from patchlight.controller.discovery.window import (
    MaintenanceWindow,
    SwitchListening,
)
from patchlight.controller.hosts.agent_client import VERSION, AgentTls
from patchlight.controller.hosts.fleet import Fleet, NicMacs, differences
from patchlight.controller.jobs import ledger
from patchlight.controller.jobs.job_table import Forecasts, JobTable
from patchlight.controller.jobs.placement import LabReach
from patchlight.controller.jobs.rewiring import JobTraffic
from patchlight.controller.jobs.running_job import RunningJob
from patchlight.controller.jobs.scheduler import Scheduler
from patchlight.controller.jobs.workdirs import Workdirs
from patchlight.controller.packet_switches.openflow.client import (
    Launch,
    Speaker,
    UnknownSwitches,
)
from patchlight.controller.packet_switches.openflow.flowtable import (
    SpeakerOptions,
    SwitchTls,
)
from patchlight.controller.packet_switches.registry import (
    PacketDriverFactory,
    open_packet_driver,
)
from patchlight.controller.packet_switches.snmp import (
    SnmpSession,
    SnmpSessionFactory,
)
from patchlight.controller.packet_switches.switches import PacketSwitches
from patchlight.controller.packet_switches.telemetry import Telemetry
from patchlight.controller.paths.bounds import BoundsService
from patchlight.controller.paths.service import PathService
from patchlight.controller.storage import series_store
from patchlight.controller.storage.database import JournalError
from patchlight.controller.storage.state_folder import open_series, open_store
from patchlight.testbed.clock import unix_s
from patchlight.testbed.errors import BadInput, PatchlightError, in_words
from patchlight.testbed.lab.model import Host, Lab
from patchlight.testbed.lab.packet_drivers import DEFAULT_DRIVER
from patchlight.testbed.lab.portmap import AnyMap
from patchlight.testbed.lab.rules import NOTHING_SAID, PolicyChoice
from patchlight.testbed.wire.lab_api import LabIdentity
from patchlight.testbed.wire.rest.lab import (
    AgentStatusAnswer,
    CircuitSwitchStatus,
    HostWithoutLink,
    LightStatus,
    PacketSwitchStatus,
    PartStatus,
    PolicyFaultsAnswer,
    Status,
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ControllerSettings:
    """What a controller needs besides the lab file.

    ``openflow_netns``: the network namespace of the OpenFlow speaker (a path; ``None``: the
    controller's). ``tls``: the folder with the controller's certificate. Circuits with more power
    than ``power_ceiling_dbm`` are refused. ``policies`` override those of the lab file, read from
    ``lab_file``. ``metrics``: a further address for them (``host:port``). ``traces``: an OTLP
    receiver for traces of jobs (``http://host:port``).
    """

    state_dir: Path
    api: str
    openflow: str
    openflow_netns: Path | None = None
    engine: str | None = None
    ryu_apps: Sequence[str] = ()
    tls: Path | None = None
    power_ceiling_dbm: float = POWER_CEILING_DBM
    tolerances: Tolerances = DEFAULT_TOLERANCES
    policies: PolicyChoice = NOTHING_SAID
    lab_file: Path | None = None
    metrics: str | None = None
    traces: str | None = None


@dataclass(frozen=True)
class ExternalIO:
    """A controller's links to other processes: the transport to an agent, by server (``None``: its
    socket), those to optical switches and the folder of their locks (``None``: the user's), what
    starts the OpenFlow speaker, and what drives and polls the other packet switches. A simulation
    has its own."""

    transport_to: Callable[[str], httpx.AsyncBaseTransport | None] = (
        lambda server: None
    )
    launch_speaker: Launch | None = None
    open_packet_driver: PacketDriverFactory = open_packet_driver
    open_snmp: SnmpSessionFactory = SnmpSession
    device_links: DeviceLinks = DEFAULT_LINKS
    device_locks: Path | None = None


class Controller:
    """All parts of a controller."""

    def __init__(
        self,
        lab: Lab,
        settings: ControllerSettings,
        external: ExternalIO | None = None,
    ) -> None:
        self.external = external = external or ExternalIO()
        self.lab = lab
        self.settings = settings
        self.identity = LabIdentity.of(lab, settings.lab_file)
        tls = AgentTls(lab.name, settings.tls) if settings.tls else None
        switch_tls = None
        if lab.controller_openflow_tls:
            if settings.tls is None:
                raise BadInput(
                    f"lab {lab.name} has OpenFlow over TLS, but the controller has no certificate",
                    hint="create one with 'patchlight deploy certificates LAB --output DIR', and "
                    "pass its folder with --tls DIR/controller",
                )
            names = tuple(switch.name for switch in lab.packet_switches)
            switch_tls = SwitchTls(settings.tls, lab.name, names)
        self.store = open_store(settings.state_dir)
        try:
            self.series = open_series(settings.state_dir, self.store.lab_id)
        except PatchlightError:
            self.store.close()
            raise
        self.background = Background(
            lambda part, why: self.store.add_event(
                time.time(), "part-fault", {"part": part, "message": why}
            )
        )
        self.fleet = Fleet(
            lab,
            tls,
            NicMacs(lab, self.store),
            external.transport_to,
        )
        self.drivers: dict[str, AnyDriver] = {
            switch.name: open_driver(
                switch, password_of(switch), external.device_links
            )
            for switch in lab.optical_switches
            if switch.driver
        }
        self.speaker = Speaker(
            SpeakerOptions(
                socket=settings.state_dir / "speaker.sock",
                datapath_ids=tuple(
                    s.datapath_id for s in lab.packet_switches if s.datapath_id
                ),
                listen=settings.openflow,
                netns=str(settings.openflow_netns)
                if settings.openflow_netns
                else None,
                engine=settings.engine,
                apps=tuple(settings.ryu_apps),
                tls=switch_tls,
            ),
            external.launch_speaker,
        )
        packet_drivers = [
            external.open_packet_driver(switch, password_of(switch))
            for switch in lab.packet_switches
            if switch.driver != DEFAULT_DRIVER
        ]
        self.switches = PacketSwitches(
            lab,
            self.speaker,
            self.fleet.macs.of,
            packet_drivers,
            self._port_changed,
        )
        self.telemetry = Telemetry(
            lab,
            partial(self.switches.count, "snmp"),
            settings.openflow_netns,
            partial(self.switches.report_missing, "snmp"),
            external.open_snmp,
        )
        self.fleet.on_macs = self.switches.learn
        self.fleet.on_counters = self.switches.count_nics
        self.unknown_switches = UnknownSwitches()
        outputs = ledger.JobOutputs(settings.state_dir / "outputs")
        self.jobs = JobTable(
            ledger.JobLedger(self.store),
            outputs,
            Workdirs(settings.state_dir / "workdirs"),
        )
        self.retention = ledger.Retention(
            self.store,
            self.jobs.ledger,
            outputs,
            lab.queue,
        )
        reach = LabReach(lab, self.fleet, self.switches)
        self.traffic = JobTraffic(self.jobs, reach)
        self.circuits = CircuitParts(
            lab,
            self.drivers,
            self.store,
            self.switches,
            self.traffic,
            settings.power_ceiling_dbm,
            settings.tolerances,
        )
        self.transactions = Transactions(self.circuits)
        self.device_watch = DeviceWatch(self.circuits, self.transactions)
        self.fleet.on_carrier = self.device_watch.look_soon
        self.circuit_service = CircuitService(self.circuits, self.transactions)
        self.scheduler = Scheduler(
            lab,
            self.fleet,
            self.store,
            self.jobs,
            self.transactions,
            reach,
            settings.policies,
            lab.queue,
        )
        self.recorder = Recorder(
            self.series,
            self.fleet,
            self.switches,
            self.jobs,
            self.scheduler.forecasts,
            lab.queue.keep_for_s,
            on_sources=lambda sources: self.store.add_event(
                time.time(), "counted-by", {"hosts": dict(sources)}
            ),
        )
        self.paths = PathService(lab, self._maps_as_known, store=self.store)
        self.path_bounds = BoundsService(
            lab,
            self.fleet,
            self.jobs,
            self.paths,
        )
        self.discovery = Discovery(
            lab,
            MaintenanceWindow(
                self.circuits,
                self.transactions,
                self.switches,
                self.scheduler,
                self.jobs,
            ),
            SwitchListening(
                lab,
                self.fleet,
                self.switches,
                self.speaker,
                self.telemetry,
            ),
        )

    async def status(self) -> Status:
        """The response to ``GET /v1/status``."""
        last = self.scheduler.policies.last_faults
        connected = self.switches.connected()
        second_from = self.switches.second_from(time.time())
        lacking = self.switches.lacking()
        foreign = self.switches.foreign()
        troubles = self.switches.troubles()
        without_groups = self.switches.without_groups()
        missing = self.switches.missing_by_switch()
        return Status(
            lab=self.lab.name,
            version=VERSION,
            engine=self.speaker.info.get("engine"),
            policies=self.scheduler.policies.words,
            policy_faults=[
                PolicyFaultsAnswer(
                    kind=kind,
                    policy=policy,
                    faults=faults,
                    last=last[kind, policy],
                )
                for (
                    kind,
                    policy,
                ), faults in self.scheduler.policies.faults.items()
            ],
            light=LightStatus(**self.scheduler.rewiring.status()),
            drained=self.scheduler.drained,
            queue_pass_s=self.scheduler.last_pass_s,
            parts=self.background.status(),
            switches=[
                PacketSwitchStatus(
                    name=s.name,
                    driver=s.driver,
                    datapath_id=s.datapath_id,
                    connected=connected.get(s.name),
                    trouble=troubles.get(s.name),
                    second_from=second_from.get(s.name),
                    lacks=lacking.get(s.name),
                    foreign=foreign.get(s.name, []),
                    snmp_problem=self.telemetry.problems.get(s.name),
                    without_groups=s.name in without_groups,
                    ports_down=self.switches.ports_down(s.name),
                    ports_missing=missing[s.name],
                )
                for s in self.lab.packet_switches
            ],
            nic_differences=differences(
                self.lab, self.circuits.maps.present_links(), self.fleet.nics()
            ),
            hosts_without_link=await self._hosts_without_link(),
            unknown_switch_connections=self.unknown_switches.connections,
            circuit_switches=[
                CircuitSwitchStatus(**each)
                for each in self.circuits.devices.status()
            ],
            agents=[AgentStatusAnswer(**each) for each in self.fleet.status()],
        )

    async def _hosts_without_link(self) -> list[HostWithoutLink]:
        found = self.scheduler.reach().without_link
        macs = {
            name: self.fleet.macs.of(self.lab.host(name)).lower()
            for name in found
        }
        behind = await self.telemetry.behind(macs.values())
        words = {
            name: f"; {behind[mac]} has its MAC"
            for name, mac in macs.items()
            if mac in behind
        }
        return [
            HostWithoutLink(host=h, reason=reason + words.get(h, ""))
            for h, reason in found.items()
        ]

    def _port_changed(
        self,
        switch: str,
        port: int,
        why: str,
    ) -> None:
        """A packet switch has lost one of the lab's ports, or has it again."""
        kind = "port-missing" if why else "port-back"
        words = f"{switch} has {why or f'port {port} again'}"
        _log.warning("%s", words)
        self.store.add_event(
            time.time(),
            kind,
            {"switch": switch, "port": port, "message": words},
        )

    def _maps_as_known(self) -> Mapping[str, AnyMap] | None:
        last = self.circuits.maps.last
        return None if last is None else last.everywhere

    def on_event(self, event: dict[str, Any]) -> None:
        """Handle an event of the OpenFlow speaker."""
        kind = event["event"]
        now = time.time()
        self.switches.on_event(event, now)
        told: dict[str, Any] | None = event
        if kind == "unknown-switch":
            told = self.unknown_switches.connected(
                event["datapath_id"], event["address"], now
            )
        if kind not in ("counters", "frame", "traffic") and told is not None:
            self.store.add_event(now, f"openflow-{kind}", told)
        if kind in ("refused-switch", "second-switch"):
            who = event.get("datapath_id")
            by = "a switch" if who is None else f"switch {who:#x}"
            attempt = Attempt(
                by,
                event["address"],
                "nobody",
                "OpenFlow",
                "refused",
                0,
                about=event["why"],
            )
            AuditLog(self.store).add(attempt)


FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 30.0
# After this run time, another failure is considered a new one.
_LONG_LIFE_S = 60.0


class Background:
    """Runs endless parts, and restarts failed ones after a pause, which doubles from 0.2 s to 30 s
    and is reset after a minute without a fault."""

    def __init__(self, on_fault: Callable[[str, str], None]) -> None:
        self._on_fault = on_fault
        self._parts: dict[asyncio.Task[None], PartStatus] = {}

    def start(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        """Run this repeatedly until ``close``."""
        part = PartStatus(
            name=name,
            running=True,
            faults=0,
            last_fault="",
            last_fault_at=None,
        )
        self._parts[asyncio.create_task(self._keep(part, run), name=name)] = (
            part
        )

    def status(self) -> list[PartStatus]:
        """Each part: whether it runs now, how often it failed, and its last fault."""
        return list(self._parts.values())

    async def close(self) -> None:
        """End all parts."""
        for task in self._parts:
            task.cancel()
        await asyncio.gather(*self._parts, return_exceptions=True)

    async def _keep(
        self, part: PartStatus, run: Callable[[], Awaitable[None]]
    ) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            began = time.monotonic()
            try:
                await run()
                why = "it ended unexpectedly"
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                why = "its work was cancelled"  # and not the part itself
            except Exception as error:
                why = in_words(error)
                _log.exception(
                    "the controller's %s failed and is restarted", part.name
                )
            part.running = False
            part.last_fault = why
            part.last_fault_at = time.time()
            part.faults += 1
            try:
                self._on_fault(part.name, why)
            except Exception:  # A full disk, say: the part restarts anyway.
                _log.exception("recording a fault of %s", part.name)
            if time.monotonic() - began > _LONG_LIFE_S:
                pause_s = FIRST_PAUSE_S
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            part.running = True


WIDTH_S = series_store.WIDTHS_S[0]
# How much later the samples of a window may arrive.
_LATE_S = 1.5


class Recorder:
    """Stores samples of GPUs and ports, and workers' reports by job, in windows of time, for
    ``keep_for_s`` (``None``: until there are too many). ``on_sources`` is called when others count
    what hosts send, with the number of hosts by who counts."""

    def __init__(
        self,
        store: series_store.SeriesStore,
        fleet: Fleet,
        switches: PacketSwitches,
        table: JobTable,
        forecasts: Forecasts,
        keep_for_s: float | None = None,
        clock: Callable[[], float] = unix_s,
        on_sources: Callable[[Mapping[str, int]], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._fleet = fleet
        self._switches = switches
        self._table = table
        self._forecasts = forecasts
        self._keep_for_s = keep_for_s
        self._clock = clock
        self._heard: dict[str, tuple[Sequence[Host], list[float]]] = {}
        self._sources = dict[str, int]()
        self._on_sources = on_sources
        table.on_reports.append(self._hear)

    async def run(self) -> None:
        """Write each window at its end."""
        written = 0
        while True:
            now = self._clock() - _LATE_S
            begin = int(now - now % WIDTH_S)
            if begin == written:  # a timer may be a little early
                begin += WIDTH_S
            await asyncio.sleep(begin + WIDTH_S - now)
            await self.write(begin)
            written = begin

    async def write(self, begin: int) -> None:
        """Write the window that began then, with the iterations reported since the last one."""
        period = float(begin), float(begin + WIDTH_S)
        gpu_samples = _within(self._fleet.gpu_samples, period)
        port_rates = _within(self._switches.port_rates, period)
        by = {sample["host"]: str(sample["by"]) for sample in port_rates}
        if (
            sources := dict(Counter(by.values()))
        ) and sources.keys() != self._sources.keys():
            self._on_sources(sources)
            self._sources = sources
        jobs = self._jobs_then(period)
        before = 0.0 if self._keep_for_s is None else begin - self._keep_for_s

        def put_on_disk() -> None:
            busy = _by_name(gpu_samples, "gpu", "utilization")
            sent = _by_name(port_rates, "host", "tx_bps")
            windows = (
                [series_store.lab_window(begin, busy, sent)]
                if busy or sent
                else []
            )
            windows += [
                series_store.job_window(
                    begin,
                    job,
                    then,
                    busy,
                    sent,
                )
                for job, then in jobs.items()
            ]
            self._store.add(
                (w for w in windows if w.busy or w.sent_bps or w.iterations),
                before,
            )

        try:
            await asyncio.to_thread(put_on_disk)
        except (
            JournalError
        ) as error:  # a full disk, say: these samples are lost
            _log.warning("%s", error)

    def _hear(
        self, job: RunningJob, reports: Sequence[Mapping[str, Any]]
    ) -> None:
        _, times_s = self._heard.setdefault(job.id, (job.hosts, []))
        times_s += [
            report["compute_s"] + report["communication_s"]
            for report in reports
        ]

    def _jobs_then(
        self, period: tuple[float, float]
    ) -> dict[str, series_store.JobThen]:
        """The jobs that have hosts, and those that reported and have ended since."""
        heard = self._heard
        self._heard = {}
        for job_id, job in self._table.running.items():
            if job.hosts:
                heard.setdefault(job_id, (job.hosts, []))
        predicted = self._forecasts.running() if heard else {}
        found = {}
        for job_id, (hosts, times_s) in heard.items():
            status = self._table.find(job_id)
            since = status.runs_since if status is not None else None
            until = status.finished_at if status is not None else None
            begins = period[0] if since is None else since
            ends = until or period[1]
            should = predicted.get(job_id, {}).get("predicted_iteration_s")
            named = [
                (h.name, f"{h.server.name}.{h.gpu.name}" if h.gpu else "")
                for h in hosts
            ]
            found[job_id] = series_store.JobThen(
                named,
                times_s,
                begins,
                ends,
                should,
            )
        return found


def _within(
    samples: Sequence[Mapping[str, Any]], period: tuple[float, float]
) -> list[Mapping[str, Any]]:
    """The samples of a period: the latest of what arrives over time."""
    since, until = period
    latest = takewhile(lambda sample: sample["at"] >= since, reversed(samples))
    return [sample for sample in latest if sample["at"] < until][::-1]


def _by_name(
    samples: Iterable[Mapping[str, Any]],
    name: str,
    value: str,
) -> Mapping[str, list[series_store.Sample]]:
    found: defaultdict[str, list[series_store.Sample]] = defaultdict(list)
    for sample in samples:
        found[sample[name]].append((sample["at"], sample[value]))
    return found
