"""The controller's answers as the experiment's values."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from patchlight.controller.client import ControllerClient
from patchlight.emulation.experiments.ofc2022.measurements import (
    GpuSample,
    PortRate,
    Reconfiguration,
)
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.jobs import Iteration, JobSpec, JobStatus
from patchlight.testbed.portmap import PortMap

_POLL_S = 0.1


class ExperimentClient:
    """What the experiment asks of a controller. Answers that cannot be used are errors."""

    def __init__(self, controller: ControllerClient) -> None:
        self._controller = controller

    def wait_until_complete(self, deadline_s: float) -> dict[str, Any]:
        """The controller's status once every packet switch and agent is there."""
        deadline = time.monotonic() + deadline_s
        while True:
            status = self._controller.status()
            lacking = [s["name"] for s in status["switches"] if not s["connected"]]
            lacking += [a["server"] for a in status["agents"] if not a["reachable"]]
            if not lacking:
                return status
            if time.monotonic() > deadline:
                raise PatchlightError(
                    f"after {deadline_s:.0f} s the controller still does not reach "
                    f"{', '.join(lacking)}"
                )
            time.sleep(_POLL_S)

    def reconfigure(self, maps: Mapping[str, PortMap]) -> Reconfiguration:
        """Give each of these circuit switches just this map."""
        asked = {name: [str(c) for c in port_map] for name, port_map in maps.items()}
        return _committed(
            self._controller.reconfigure(asked, only=True, why="the wiring a case starts with")
        )

    def regroup(self, job_ids: Sequence[str]) -> Reconfiguration:
        """Bring each of these running jobs under a packet switch of its own."""
        return _committed(self._controller.regroup(job_ids))

    def reconfigurations(self, since: float) -> tuple[Reconfiguration, ...]:
        """Those that began after the Unix time ``since`` and changed something."""
        rows = self._controller.reconfigurations()
        return tuple(_committed(r) for r in rows if r["started_at"] > since and r["changes"])

    def submit(self, jobs: Sequence[JobSpec], *, regroup: bool) -> list[JobStatus]:
        """Start jobs together, on rewired circuits if ``regroup``."""
        rows = self._controller.submit(jobs, "regroup" if regroup else "keep")
        return [JobStatus.from_dict(row) for row in rows]

    def job(self, job_id: str) -> JobStatus:
        """What is known of one job now."""
        return JobStatus.from_dict(self._controller.job(job_id))

    def iterations(self, job_id: str) -> tuple[Iteration, ...]:
        """Every iteration that the job's workers reported; an unchecked sum is an error."""
        rows, _ = self._controller.iterations(job_id)
        for row in rows:
            if row["check"] != "ok":
                raise PatchlightError(
                    f"job {job_id}: rank {row['rank']} says of iteration {row['index']}: "
                    f"check {row['check']}"
                )
        names = Iteration.__dataclass_fields__
        return tuple(Iteration(**{name: row[name] for name in names}) for row in rows)

    def ports(self, since: float) -> tuple[PortRate, ...]:
        """Port rates of every second that ended after the Unix time ``since``."""
        rows = self._controller.ports(since)
        return tuple(PortRate(r["at"], r["host"], r["rx_bps"], r["tx_bps"]) for r in rows)

    def gpus(self, since: float) -> tuple[GpuSample, ...]:
        """GPU samples of every second that ended after the Unix time ``since``."""
        rows = self._controller.gpus(since)
        return tuple(GpuSample(r["at"], r["gpu"], r["utilization"]) for r in rows)


def _committed(row: Mapping[str, Any]) -> Reconfiguration:
    if row["state"] != "committed":
        raise PatchlightError(f"reconfiguration {row['id']} is {row['state']}: {row['message']}")
    return Reconfiguration(
        id=str(row["id"]),
        state=row["state"],
        message=row["message"],
        stages_s=dict(row["stages_s"]),
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        cross_connects_changed=sum(
            len(change["breaks"]) + len(change["makes"]) for change in row["changes"].values()
        ),
    )
