"""What Prometheus scrapes: the controller's present state, collected when asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric

if TYPE_CHECKING:
    from patchlight.controller.parts import Controller


class _State:
    """A collector over one controller: no counters of its own, nothing to keep in step."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def collect(self) -> Iterator[Metric]:
        controller = self._controller
        jobs = GaugeMetricFamily("patchlight_jobs", "Jobs by state.", labels=["state"])
        for state, count in Counter(str(j.state) for j in controller.scheduler.jobs()).items():
            jobs.add_metric([state], count)
        yield jobs
        changes = GaugeMetricFamily(
            "patchlight_reconfigurations", "Changes of circuits by outcome.", labels=["state"]
        )
        for state, count in controller.store.reconfiguration_counts().items():
            changes.add_metric([state], count)
        yield changes
        gpus = GaugeMetricFamily(
            "patchlight_gpu_utilization_ratio", "Busy share of the last second.", labels=["gpu"]
        )
        for gpu, share in controller.fleet.latest_utilization().items():
            gpus.add_metric([gpu], share)
        yield gpus
        up = GaugeMetricFamily(
            "patchlight_agent_up", "Whether an agent answers.", labels=["server"]
        )
        for server, reachable in controller.fleet.reachable.items():
            up.add_metric([server], reachable)
        yield up
        answers = GaugeMetricFamily(
            "patchlight_ocs_up", "Whether a circuit switch answers.", labels=["ocs"]
        )
        for row in controller.circuits.devices.status():
            answers.add_metric([row["name"]], row["reachable"])
        yield answers


def registry_of(controller: Controller) -> CollectorRegistry:
    """A registry that shows this controller."""
    registry = CollectorRegistry()
    registry.register(_State(controller))
    return registry
