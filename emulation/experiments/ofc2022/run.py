"""Runs OFC 2022: brings up the lab, runs the cases through the controller's API, takes it down."""

from __future__ import annotations

import datetime
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from patchlight.client.client import ControllerClient
from patchlight.controller.access.authority import Authority, authority_folder
from patchlight.controller.hosts.fleet import SAMPLES_KEPT_S
from patchlight.emulation.experiments.ofc2022 import analysis, results
from patchlight.emulation.experiments.ofc2022.report import write_report
from patchlight.emulation.fabric.roce import RoceMeter
from patchlight.emulation.lab.emulated_lab import EmulatedLab
from patchlight.emulation.simulator.results import cpu_ticks, provenance
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.jobs import (
    JobSpec,
    JobState,
    JobStatus,
    Trainer,
    Transport,
)
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.labfile.reader import find_lab, load_lab
from patchlight.testbed.linux import docker_engine
from patchlight.testbed.wire.rest.circuits import ChangeAnswer
from patchlight.testbed.wire.rest.lab import Status

_STATUS_POLL_S = 0.1


class ExperimentClient:
    """The experiment's requests to a controller. Unusable answers are errors."""

    def __init__(self, controller: ControllerClient) -> None:
        self._controller = controller

    def wait_until_complete(self, deadline_s: float) -> Status:
        """The controller's status once every packet switch and agent is there."""
        deadline = time.monotonic() + deadline_s
        while True:
            status = self._controller.status()
            lacking = [s.name for s in status.switches if s.connected is False]
            lacking += [a.server for a in status.agents if not a.reachable]
            if not lacking:
                return status
            if time.monotonic() > deadline:
                raise PatchlightError(
                    f"after {deadline_s:.0f} s the controller cannot reach "
                    f"{', '.join(lacking)}"
                )
            time.sleep(_STATUS_POLL_S)

    def reconfigure(
        self, maps: Mapping[str, PortMap]
    ) -> analysis.MeasuredChange:
        """Give each of these circuit switches just this map."""
        asked = {
            name: [str(c) for c in port_map] for name, port_map in maps.items()
        }
        return _committed(
            self._controller.reconfigure(
                asked,
                only=True,
                why="the initial wiring of a case",
            )
        )

    def regroup(self, job_ids: Sequence[str]) -> analysis.MeasuredChange:
        """Bring each of these running jobs under its own packet switch."""
        return _committed(self._controller.regroup(job_ids))

    def reconfigurations(
        self, since: float
    ) -> tuple[analysis.MeasuredChange, ...]:
        """Reconfigurations that began after the Unix time ``since`` and changed something."""
        rows = self._controller.reconfigurations()
        return tuple(
            _committed(r) for r in rows if r.started_at > since and r.changes
        )

    def submit(
        self, jobs: Sequence[JobSpec], *, regroup: bool
    ) -> list[JobStatus]:
        """Start jobs together, on rewired circuits if ``regroup``."""
        rows = self._controller.submit(jobs, "regroup" if regroup else "keep")
        return [JobStatus.from_dict(row.as_json) for row in rows]

    def job(self, job_id: str) -> JobStatus:
        """The controller's record of one job."""
        return JobStatus.from_dict(self._controller.job(job_id).as_json)

    def iterations(self, job_id: str) -> tuple[analysis.Iteration, ...]:
        """Every iteration that the job's workers reported; an unchecked sum is an error."""
        rows, _ = self._controller.iterations(job_id)
        for row in rows:
            if row.check != "ok":
                raise PatchlightError(
                    f"job {job_id}: rank {row.rank} reports for iteration {row.index}: check "
                    f"{row.check}"
                )
        names = analysis.Iteration.__dataclass_fields__
        return tuple(
            analysis.Iteration(**{name: getattr(row, name) for name in names})
            for row in rows
        )

    def ports(self, since: float) -> tuple[analysis.PortRate, ...]:
        """Port rates of every second that ended after the Unix time ``since``."""
        rows = self._controller.ports(since)
        return tuple(
            analysis.PortRate(
                r.at,
                r.host,
                r.rx_bps,
                r.tx_bps,
            )
            for r in rows
        )

    def gpus(self, since: float) -> tuple[analysis.GpuUse, ...]:
        """GPU samples of every second that ended after the Unix time ``since``."""
        rows = self._controller.gpus(since)
        return tuple(analysis.GpuUse(r.at, r.gpu, r.utilization) for r in rows)


def _committed(row: ChangeAnswer) -> analysis.MeasuredChange:
    if row.state != "committed":
        raise PatchlightError(
            f"reconfiguration {row.id} is {row.state}: {row.message}"
        )
    changes = row.changes.values()
    return analysis.MeasuredChange(
        id=str(row.id),
        state=row.state,
        message=row.message,
        started_at=row.started_at,
        finished_at=row.finished_at or 0.0,
        stages_s=row.stages_s,
        cross_connects_changed=sum(
            len(each.breaks) + len(each.makes) for each in changes
        ),
    )


# Told whenever there is news: which case, which wiring, and how its jobs stand.
Tell = Callable[[str, analysis.Wiring, Sequence[JobStatus]], None]

_POLL_S = 0.2
_STALL_S = 120.0
_SAMPLES_S = 10.0


def run_case(
    client: ExperimentClient,
    lab: Lab,
    case: str,
    wiring: analysis.Wiring,
    iterations: int,
    tell: Tell,
    mismatch_percent: float = 0.0,
    trainer: Trainer = "synthetic",
    meter: RoceMeter | None = None,
) -> analysis.CaseRun:
    """One case under one wiring, from the lab's initial cross-connects to the last iteration.

    ``live`` has the controller regroup when the first job is half way. ``PatchlightError`` if a
    job fails or does not get on. With a ``meter`` its jobs train over RDMA.
    """
    client.reconfigure(lab.initial_maps)
    transport: Transport = "tcp" if meter is None else "rdma"
    specs = results.jobs_of(
        case,
        lab,
        iterations,
        mismatch_percent,
        trainer,
        transport,
    )
    since = time.time()
    ids = [job.id for job in client.submit(specs, regroup=wiring == "optical")]
    at_half = specs[0].iterations // 2
    changes: list[analysis.MeasuredChange] = []

    def live_change(jobs: Sequence[JobStatus]) -> None:
        first = jobs[0]
        if (
            not changes
            and first.state is JobState.RUNNING
            and first.iterations_done >= at_half
        ):
            changes.append(client.regroup(ids))

    with meter or nullcontext():
        on_news = live_change if wiring == "live" else None
        statuses = _follow(
            client,
            ids,
            case,
            wiring,
            tell,
            on_news,
        )
    if wiring == "live" and not changes:
        raise PatchlightError(
            "the first job ended before it could be regrouped half way"
        )
    if wiring == "optical":
        changes += client.reconfigurations(since)
    jobs = tuple(
        analysis.JobRun(
            status,
            client.iterations(status.id),
            results.given_compute_s(status.spec, lab),
        )
        for status in statuses
    )
    _wait_for_samples(
        client,
        max(i.finished_at for job in jobs for i in job.iterations),
        since,
    )
    if time.time() - since > SAMPLES_KEPT_S:
        raise PatchlightError(
            f"case ({case}) {wiring} took longer than the {SAMPLES_KEPT_S} s of samples that the "
            "controller keeps in memory",
            hint="train shorter: fewer --iterations",
        )
    seen = client.ports(since), client.gpus(since)
    share = meter.share if meter else None
    return analysis.CaseRun(
        case,
        wiring,
        jobs,
        *seen,
        tuple(changes),
        trainer,
        share,
    )


def _follow(
    client: ExperimentClient,
    ids: Sequence[str],
    case: str,
    wiring: analysis.Wiring,
    tell: Tell,
    on_news: Callable[[Sequence[JobStatus]], None] | None,
) -> list[JobStatus]:
    before: list[tuple[JobState, int]] = []
    last_news = time.monotonic()
    while True:
        jobs = [client.job(job_id) for job_id in ids]
        for job in jobs:
            if job.state in (JobState.FAILED, JobState.STOPPED):
                said = "".join(f"\n  | {line}" for line in job.last_lines)
                raise PatchlightError(
                    f"case ({case}) {wiring}: job {job.spec.name} {job.state}: {job.message}{said}"
                )
        now = [(job.state, job.iterations_done) for job in jobs]
        if now != before:
            before = now
            last_news = time.monotonic()
            tell(case, wiring, jobs)
            if on_news is not None:
                on_news(jobs)
        if all(job.state is JobState.DONE for job in jobs):
            return jobs
        if time.monotonic() - last_news > _STALL_S:
            where = ", ".join(
                f"{j.spec.name} {j.state}, {j.iterations_done} done"
                for j in jobs
            )
            raise PatchlightError(
                f"case ({case}) {wiring}: nothing has happened for {_STALL_S:.0f} s ({where})"
            )
        time.sleep(_POLL_S)


def _wait_for_samples(
    client: ExperimentClient,
    end: float,
    since: float,
) -> None:
    """Wait for the counters and GPU samples of the last second of training."""
    deadline = time.monotonic() + _SAMPLES_S
    while time.monotonic() < deadline:
        ports = client.ports(since)
        gpus = client.gpus(since)
        if ports and gpus and min(ports[-1].at, gpus[-1].at) >= end:
            return
        time.sleep(_POLL_S)
    raise PatchlightError(
        f"no port counters or GPU samples from the end of the run arrived within "
        f"{_SAMPLES_S:.0f} s",
        hint="check switches and agents: patchlight status",
    )


# What can be run, in the order it is: each case static and optical, then one of them live.
PARTS = (*results.CASES, "live")
LIVE_CASE = REAL_CASE = "a"
_UP_S = {"namespace": 30.0, "vm": 120.0}
_SCALES = {"namespace": 1000.0, "vm": 10_000.0}
# RoCE v2 then has packets of 4,096 bytes: an emulated processor is slow at each packet.
_VIRTUAL_MTU = 4200
_LOOK_S = 1.0  # how long one looks at how busy the machine is before


@dataclass(
    frozen=True,
    slots=True,
)
class Ofc2022Options:
    """The user's options. ``lab`` is a file or a built-in lab's name; ``name`` renames it.

    ``worker_kind``: ``docker``, ``process``, or ``auto``: containers if an engine answers. With the
    trainer ``torch`` case (a) is also run with a real model. ``servers``: network namespaces, or
    virtual machines (``vm``) with soft RoCE, which the ``transport`` ``rdma`` needs. ``scale``
    (``None``): one at which links are slower than processors.
    """

    lab: str
    iterations: int
    worker_kind: str
    scale: float | None
    output: Path
    parts: Sequence[str] = PARTS
    trainer: Trainer = "synthetic"
    engine: str | None = None
    name: str | None = None
    replace: bool = False
    mismatch_percent: float = 0.0
    servers: str = "namespace"
    transport: Transport = "tcp"


@dataclass(
    frozen=True,
    slots=True,
)
class ExperimentResult:
    """The result as in ``result.json``, and the files that were written."""

    result: dict[str, Any]
    files: Sequence[Path]


class WiredCase(NamedTuple):
    """One run of the experiment."""

    case: str
    wiring: analysis.Wiring
    trainer: Trainer = "synthetic"

    def __str__(self) -> str:
        real = ", with a real model" if self.trainer == "torch" else ""
        return f"case ({self.case}), {self.wiring}{real}"


def plan_of(
    parts: Sequence[str], trainer: Trainer = "synthetic"
) -> list[WiredCase]:
    """The runs that make up these parts; ``BadInput`` for an unknown one."""
    if not parts:
        raise BadInput(f"no case to run: expected some of {','.join(PARTS)}")
    for part in parts:
        if part not in PARTS:
            raise BadInput(
                f"no case {part!r}: expected some of {','.join(PARTS)}"
            )
    plan: list[WiredCase] = []
    for case in (
        part for part in PARTS if part in parts and part in results.CASES
    ):
        plan += [WiredCase(case, "static"), WiredCase(case, "optical")]
    if "live" in parts:
        plan.append(WiredCase(LIVE_CASE, "live"))
    if trainer == "torch":
        plan += [
            WiredCase(REAL_CASE, "static", trainer),
            WiredCase(REAL_CASE, "optical", trainer),
        ]
    return plan


def _certificate(lab: str) -> Path:
    """The folder of the certificate that a lab's agents expect of its controller."""
    authority = Authority(lab, authority_folder(lab))
    return authority.for_controller(
        authority.folder.parent / "controller"
    ).folder


def _with_large_packets(lab: Lab) -> Lab:
    servers = [
        replace(
            server,
            nics=tuple(
                replace(nic, mtu=nic.mtu or _VIRTUAL_MTU)
                for nic in server.nics
            ),
        )
        for server in lab.servers
    ]
    return lab.with_changes(servers=tuple(servers))


def _push(lab: str) -> None:
    command = [
        sys.executable,
        "-m",
        "patchlight",
        "deploy",
        "push",
        lab,
    ]
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        raise PatchlightError(
            f"installing Patchlight on the servers: {done.stdout.strip()}"
        )


def run_experiment(
    wishes: Ofc2022Options,
    tell: Tell,
    say: Callable[[str], None],
    beside: Callable[[str], AbstractContextManager[object]] = nullcontext,
) -> ExperimentResult:
    """Run all cases; ``beside`` gets the API's address. The lab is always taken down."""
    plan = plan_of(wishes.parts, wishes.trainer)
    virtual = wishes.servers == "vm"
    over_rdma = wishes.transport == "rdma"
    if over_rdma and (not virtual or wishes.trainer == "torch"):
        raise BadInput(
            "--transport rdma needs --server-kind vm and --trainer synthetic"
        )
    if virtual and wishes.worker_kind == "docker":
        raise BadInput(
            "on virtual machines workers are processes: leave out --worker-kind docker"
        )
    model = load_lab(wishes.lab)
    for run in plan:
        # Refuses what cannot work before it is built.
        results.jobs_of(
            run.case,
            model,
            wishes.iterations,
            wishes.mismatch_percent,
            run.trainer,
        )
    began = time.monotonic()
    started_at = datetime.datetime.now(datetime.UTC)
    earlier = cpu_ticks()
    time.sleep(_LOOK_S)
    # No seeds: nothing is drawn.
    origin = provenance((), [find_lab(wishes.lab)])
    ticks = cpu_ticks()
    workers = wishes.worker_kind
    if virtual:
        workers = "process"
    if workers == "auto":
        workers = "docker" if docker_engine.answers() else "process"
    if (
        workers == "process"
        and wishes.trainer == "torch"
        and find_spec("torch") is None
    ):
        raise BadInput(
            "a real model needs PyTorch, which is not installed",
            hint="pip install 'patchlight[torch]', or --worker-kind docker",
        )
    runs: list[analysis.CaseRun] = []
    scale = wishes.scale or _SCALES[wishes.servers]
    if virtual:
        slower = results.SLOW_MOTION[wishes.transport]
        say(
            f"scale {scale:g}, packets of 4 kB, {slower} times as long: for emulated processors"
        )
    with EmulatedLab.from_lab(
        _with_large_packets(model) if virtual else model,
        scale=scale,
        name=wishes.name,
        replace=wishes.replace,
        workers="auto" if virtual else workers,
        engine=wishes.engine,
        # Two jobs in step drift apart when one of them has to wait for a core.
        real_time=not virtual,
        servers=wishes.servers,
        tls=_certificate(wishes.name or model.name) if virtual else None,
        progress=say,
    ) as emulated:
        lab = emulated.lab
        ends = [host.far_end for host in emulated.hosts]
        if virtual:
            say("installing Patchlight on the servers")
            _push(lab.name)
        with (
            ControllerClient(lab.controller_api) as controller,
            beside(lab.controller_api),
        ):
            client = ExperimentClient(controller)
            status = client.wait_until_complete(_UP_S[wishes.servers])
            for run in plan:
                say(str(run))
                meter = RoceMeter(ends) if over_rdma else None
                how = (wishes.mismatch_percent, run.trainer, meter)
                runs.append(
                    run_case(
                        client,
                        lab,
                        run.case,
                        run.wiring,
                        wishes.iterations,
                        tell,
                        *how,
                    )
                )
                start, end = analysis.training_window(runs[-1].jobs[0])
                say(f"{run}: the first job took {end - start:.2f} s")
        say("taking the lab down")
    setting = results.Setting(
        lab=model.name,
        scale=scale,
        iterations=wishes.iterations,
        workers=workers,
        engine=status.engine or "",
        started_at=started_at.isoformat(timespec="seconds"),
        duration_s=time.monotonic() - began,
        provenance=origin,
        machine=origin["machine"],
        disturbance=results.Disturbance.of(
            ticks.busy_since(earlier),
            ticks,
            cpu_ticks(),
            runs,
        ),
        mismatch_percent=wishes.mismatch_percent,
        servers=wishes.servers,
        transport=wishes.transport,
    )
    result = results.result_of(setting, runs)
    return ExperimentResult(result, write_report(result, runs, wishes.output))
