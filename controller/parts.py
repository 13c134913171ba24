"""The controller's parts, made and joined: nothing runs yet, nothing is open but the store."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patchlight.controller.access.audit import Attempt, AuditLog
from patchlight.controller.background import Background
from patchlight.controller.changes.device_watch import DeviceWatch
from patchlight.controller.changes.operations import CircuitOperations
from patchlight.controller.changes.parts import CircuitParts
from patchlight.controller.changes.power import DEFAULT_TOLERANCES, POWER_CEILING_DBM, Tolerances
from patchlight.controller.changes.transaction import Transactions
from patchlight.controller.circuits.contract import AnyDriver
from patchlight.controller.circuits.registry import open_driver, password_of
from patchlight.controller.discovery.discovery import Discovery
from patchlight.controller.discovery.listening import SwitchListening
from patchlight.controller.discovery.window import MaintenanceWindow
from patchlight.controller.hosts.agent_client import VERSION, AgentTls
from patchlight.controller.hosts.fleet import Fleet
from patchlight.controller.hosts.nics import NicMacs, differences
from patchlight.controller.jobs.job_table import JobTable
from patchlight.controller.jobs.ledger import JobLedger, JobOutputs, Retention
from patchlight.controller.jobs.rewiring import JobTraffic
from patchlight.controller.jobs.scheduler import Scheduler
from patchlight.controller.openflow.client import Speaker, SpeakerOptions, SwitchTls
from patchlight.controller.openflow.packet_switches import PacketSwitches, UnknownSwitches
from patchlight.controller.paths.bounds import BoundsService
from patchlight.controller.paths.service import PathService
from patchlight.controller.recorder import Recorder
from patchlight.controller.storage.series_store import open_series
from patchlight.controller.storage.store import open_store
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.portmap import AnyMap
from patchlight.testbed.lab.queueing import NOTHING_SAID, PolicyChoice
from patchlight.testbed.wire.lab_api import LabIdentity


@dataclass(frozen=True)
class Settings:
    """What the controller is told beside the lab file.

    ``openflow_netns`` is the network namespace that the OpenFlow speaker listens in (a path;
    ``None``: the controller's own). ``tls`` is the folder with its certificate, for agents that
    listen on TCP. More power than ``power_ceiling_dbm`` is not switched; ``tolerances`` say how
    much may be missing. ``policies`` go before those of the lab file. ``lab_file`` is where the
    lab was read. ``metrics`` is where they are answered besides (``host:port``), ``traces`` where
    traces of jobs are sent (an OTLP receiver's ``http://host:port``).
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


def _switch_tls(lab: Lab, folder: Path | None) -> SwitchTls | None:
    if not lab.controller_openflow_tls:
        return None
    if folder is None:
        raise BadInput(
            f"lab {lab.name} has OpenFlow over TLS, and the controller has no certificate",
            hint="make one with 'patchlight deploy certificates LAB --output DIR', and name its "
            "folder with --tls DIR/controller",
        )
    return SwitchTls(folder, lab.name, tuple(switch.name for switch in lab.packet_switches))


class Controller:
    """All parts of a running controller."""

    def __init__(self, lab: Lab, settings: Settings) -> None:
        self.lab, self.settings = lab, settings
        self.identity = LabIdentity.of(lab, settings.lab_file)
        tls = AgentTls(lab.name, settings.tls) if settings.tls else None
        switch_tls = _switch_tls(lab, settings.tls)
        self.store = open_store(settings.state_dir)
        self.series = open_series(settings.state_dir)
        self.background = Background(self._on_part_fault)
        self.fleet = Fleet(lab, tls, NicMacs(lab, self.store))
        self.drivers: dict[str, AnyDriver] = {
            switch.name: open_driver(switch, password_of(switch))
            for switch in lab.optical_switches
            if switch.driver
        }
        self.speaker = Speaker(
            SpeakerOptions(
                socket=settings.state_dir / "speaker.sock",
                datapath_ids=tuple(switch.datapath_id for switch in lab.packet_switches),
                listen=settings.openflow,
                netns=str(settings.openflow_netns) if settings.openflow_netns else None,
                engine=settings.engine,
                apps=tuple(settings.ryu_apps),
                tls=switch_tls,
            )
        )
        self.switches = PacketSwitches(lab, self.speaker, self.fleet.macs.of)
        self.fleet.on_macs = self.switches.learn
        self.unknown_switches = UnknownSwitches()
        outputs = JobOutputs(settings.state_dir / "outputs")
        self.jobs = JobTable(JobLedger(self.store), outputs)
        self.retention = Retention(self.store, self.jobs.ledger, outputs, lab.queue)
        self.traffic = JobTraffic(
            self.jobs,
            lambda: self.circuits.maps.present_links(),
            lambda: self.fleet.faults().no_carrier,
        )
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
        self.operations = CircuitOperations(self.circuits, self.transactions)
        self.scheduler = Scheduler(
            lab, self.fleet, self.store, self.jobs, self.transactions, settings.policies, lab.queue
        )
        self.recorder = Recorder(
            self.series,
            self.fleet,
            self.switches,
            self.jobs,
            self.scheduler.forecasts,
            lab.queue.keep_for_s,
        )
        self.paths = PathService(lab, self._maps_as_known, store=self.store)
        self.path_bounds = BoundsService(lab, self.fleet, self.jobs, self.paths)
        self.discovery = Discovery(
            lab,
            MaintenanceWindow(
                self.circuits, self.transactions, self.switches, self.scheduler, self.jobs
            ),
            SwitchListening(lab, self.fleet, self.switches, self.speaker),
        )

    def status(self) -> dict[str, Any]:
        """Who is there and who is not."""
        connected, second_from = self.switches.connected(), self.switches.second_from(time.time())
        return {
            "lab": self.lab.name,
            "version": VERSION,
            "engine": self.speaker.info.get("engine"),
            "policies": self.scheduler.policies.words,
            "policy_faults": [
                {"kind": kind, "policy": policy, "faults": faults}
                for (kind, policy), faults in self.scheduler.policies.faults.items()
            ],
            "light": self.scheduler.rewiring.status(),
            "drained": self.scheduler.drained,
            "queue_pass_s": self.scheduler.last_pass_s,
            "parts": self.background.status(),
            "switches": [
                {
                    "name": s.name,
                    "datapath_id": s.datapath_id,
                    "connected": connected[s.name],
                    "second_from": second_from.get(s.name),
                }
                for s in self.lab.packet_switches
            ],
            "nic_differences": differences(
                self.lab, self.circuits.maps.present_links(), self.fleet.nics()
            ),
            "unknown_switch_connections": self.unknown_switches.connections,
            "circuit_switches": self.circuits.devices.status(),
            "agents": self.fleet.status(),
        }

    def _maps_as_known(self) -> Mapping[str, AnyMap] | None:
        last = self.circuits.maps.last
        return None if last is None else last.everywhere

    def on_event(self, event: dict[str, Any]) -> None:
        """Hear what the OpenFlow speaker reports."""
        kind, now = event["event"], time.time()
        self.switches.on_event(event, now)
        told: dict[str, Any] | None = event
        if kind == "unknown-switch":
            told = self.unknown_switches.connected(event["datapath_id"], event["address"], now)
        if kind not in ("counters", "frame", "traffic") and told is not None:
            self.store.add_event(now, f"openflow-{kind}", told)
        if kind in ("refused-switch", "second-switch"):
            who = event.get("datapath_id")
            by = "a switch" if who is None else f"switch {who:#x}"
            attempt = Attempt(
                by, event["address"], "nobody", "OpenFlow", "refused", 0, about=event["why"]
            )
            AuditLog(self.store).add(attempt)

    def _on_part_fault(self, part: str, why: str) -> None:
        self.store.add_event(time.time(), "part-fault", {"part": part, "message": why})
