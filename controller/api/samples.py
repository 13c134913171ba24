"""The routes on what is sampled: the latest of ports and GPUs, and any period from disk."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Query

from patchlight.controller.api.describing import gives
from patchlight.controller.changes import requests
from patchlight.testbed.wire.rest import lab as shapes

if TYPE_CHECKING:
    from patchlight.controller.parts import Controller

Answer = dict[str, Any]


def sample_routes(controller: Controller) -> APIRouter:
    """The routes on samples of one lab."""
    routes = APIRouter(prefix="/v1", tags=["samples"])

    @routes.get("/ports", **gives(shapes.PortSamples))
    async def ports(since: float = 0.0) -> Answer:
        return {"ports": [s for s in controller.switches.port_rates if s["at"] > since]}

    @routes.get("/gpus", **gives(shapes.GpuSamples))
    async def gpus(since: float = 0.0) -> Answer:
        return {"gpus": [s for s in controller.fleet.gpu_samples if s["at"] > since]}

    @routes.get("/samples", **gives(shapes.Samples))
    async def samples(
        since: requests.Moment = 0.0,
        until: requests.Moment = requests.LATEST,
        points: requests.PageLength = 300,
        job: Annotated[list[requests.Text] | None, Query(max_length=1000)] = None,
    ) -> Answer:
        """What was sampled in a period, as some ``points`` windows of the lab and of each job.

        With ``job``, of these jobs alone. What is older is kept in wider windows.
        """
        jobs = None if job is None else ["", *job]
        width_s, windows = await asyncio.to_thread(
            controller.series.read, since, until, points, jobs
        )
        answer: dict[str, list[Answer]] = {"": []}
        for window in windows:
            answer.setdefault(window.job, []).append(window.as_json)
        return {"width_s": width_s, "lab": answer.pop(""), "jobs": answer}

    return routes
