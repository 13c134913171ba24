"""Jobs as they come in: checked, given their ids and policies, admitted; or only previewed."""

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from patchlight.controller.changes.record import Refused
from patchlight.controller.jobs.gangs import Gang
from patchlight.controller.jobs.iteration_times import Forecasts
from patchlight.controller.jobs.job_table import JobTable
from patchlight.controller.jobs.lab_queue import LabQueue
from patchlight.controller.jobs.placement import Look, Placement
from patchlight.controller.jobs.policy_set import PoliciesInUse, named
from patchlight.controller.jobs.specs import check_policies, check_specs
from patchlight.testbed.errors import BadInput
from patchlight.testbed.jobs import JobSpec, JobState, JobStatus
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.wiring import Links


class Submission:
    """Takes gangs of jobs into the line, or says what would become of them."""

    def __init__(
        self,
        lab: Lab,
        table: JobTable,
        policies: PoliciesInUse,
        line_up: LabQueue,
        placement: Placement,
        forecasts: Forecasts,
    ) -> None:
        self._lab, self._table, self._policies = lab, table, policies
        self._line_up, self._placement, self._forecasts = line_up, placement, forecasts

    def submit(
        self,
        specs: Sequence[JobSpec],
        topology: str | None = None,
        by: str = "",
        *,
        together: bool = True,
    ) -> list[JobStatus]:
        """Queue jobs of a user, all or none; ``BadInput`` if one could never run here.

        They start ``together``, or each is a gang of its own. Without ``topology``, theirs or
        else the lab's policy says what becomes of the circuits.
        """
        ids = set[str]()
        each = [specs] if together else zip(specs)
        gangs = [self._new(gang, topology, by, ids) for gang in each]
        for statuses, _ in gangs:
            gang = [status.spec for status in statuses]
            if (why := self._not_admitted(by, gang, len(specs) - len(gang))) is not None:
                raise Refused(why, hint="wait until one of them ends, or ask who runs the lab")
        added = [status for statuses, _ in gangs for status in statuses]
        self._table.add(added)
        for statuses, chosen in gangs:
            self._line_up.join(Gang(tuple(status.id for status in statuses), chosen))
        return added

    def _not_admitted(self, by: str, specs: Sequence[JobSpec], beside: int = 0) -> str | None:
        """Why the jobs of a gang may not wait, with so many others ``beside`` them."""
        waiting = self._line_up.admit(by, specs, beside)
        return None if waiting is None else waiting.words

    def _new(
        self, specs: Sequence[JobSpec], topology: str | None, by: str, ids: set[str]
    ) -> tuple[list[JobStatus], str]:
        """Jobs as they would be submitted, and the topology policy that they would have.

        Their ids are none of ``ids``, and are added to these.
        """
        specs = check_specs(self._lab, specs, counted=not self._policies.choice.partition)
        check_policies(specs, self._policies.choice)
        specs = [replace(spec, after=self._ids_of(spec)) for spec in specs]
        own = topology or next((spec.topology for spec in specs if spec.topology), None)
        chosen = own or named(self._policies.choice, "topology")
        now, gang = time.time(), uuid.uuid4().hex[:12]
        statuses = [
            JobStatus(
                self._new_id(spec.name, ids),
                spec,
                JobState.QUEUED,
                submitted_at=now,
                by=by,
                gang=gang,
                topology=chosen,
            )
            for spec in specs
        ]
        return statuses, chosen

    def _new_id(self, name: str, ids: set[str]) -> str:
        """One that no job has: of 10,000 jobs of one name, some would draw the same."""
        while True:
            drawn = f"{name}-{uuid.uuid4().hex[:6]}"
            if drawn not in ids and self._table.find(drawn) is None:
                ids.add(drawn)
                return drawn

    def _ids_of(self, spec: JobSpec) -> tuple[str, ...]:
        """The ids of the jobs that one is to wait for; ``BadInput`` for a job that is not there."""
        found = [(name, self._table.meant(name)) for name in spec.after]
        for name, jobs in found:
            if not jobs:
                raise BadInput(
                    f"job {spec.name}: it is to come after {name!r}, and there is no such job"
                )
        return tuple(jobs[0].id for _, jobs in found)

    async def preview(
        self, specs: Sequence[JobSpec], topology: str | None, by: str, look: Look, closed: str = ""
    ) -> list[dict[str, Any]]:
        """What would become of these jobs now: their hosts and circuits, or what they wait for.

        ``closed`` says why no job starts at all, if that is so.
        """
        statuses, chosen = self._new(specs, topology, by, set())
        ahead = len(self._line_up.why)
        waits_for = closed or self._not_admitted(by, [status.spec for status in statuses])
        found = waits_for or await self._line_up.would_place(statuses, look)
        if isinstance(found, str):
            rows = [{"job": s.spec.name, "hosts": [], "waits_for": found} for s in statuses]
        else:
            rows = [
                {"job": s.spec.name, "hosts": list(found[s.id]), "waits_for": ""} for s in statuses
            ]
            placed = [
                replace(status, hosts=found[status.id], state=JobState.RUNNING)
                for status in statuses
            ]
            circuits, links = await self._circuits_for(chosen, found)
            predicted = self._forecasts.running(links, placed)
            rows = [
                {**row, **circuits, **predicted.get(status.id, {})}
                for row, status in zip(rows, statuses, strict=True)
            ]
        return [{"ahead": ahead, "topology": chosen, **row} for row in rows]

    async def _circuits_for(
        self, topology: str, hosts: Mapping[str, Sequence[str]]
    ) -> tuple[dict[str, Any], Links | None]:
        """The cross-connects that would be made, what speaks against that, and the links then."""
        if topology == "keep":
            return {"circuits": [], "objections": []}, None
        running = self._table.hosts_of(self._table.running)
        plan, objections = await self._placement.preview(topology, hosts, {**running, **hosts})
        made = [f"{ocs}: {c}" for ocs, change in plan.changes.items() for c in change.makes]
        return {"circuits": made, "objections": objections}, plan.links_after
