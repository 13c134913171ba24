"""What Prometheus scrapes: the controller's present state, collected when asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
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
        jobs = Counter(str(job.state) for job in controller.scheduler.jobs())
        changes = controller.store.reconfiguration_counts()
        gpus = controller.fleet.latest_utilization()
        devices = {row["name"]: row["reachable"] for row in controller.circuits.devices.status()}
        yield _gauge("jobs", "Jobs by state.", "state", jobs)
        yield _gauge("reconfigurations", "Changes of circuits by outcome.", "state", changes)
        yield _gauge("gpu_utilization_ratio", "Busy share of the last second.", "gpu", gpus)
        yield _gauge("agent_up", "Whether an agent answers.", "server", controller.fleet.reachable)
        yield _gauge("ocs_up", "Whether a circuit switch answers.", "ocs", devices)


def _gauge(name: str, about: str, label: str, values: Mapping[str, float]) -> Metric:
    gauge = GaugeMetricFamily(f"patchlight_{name}", about, labels=[label])
    for key, value in values.items():
        gauge.add_metric([key], value)
    return gauge


def registry_of(controller: Controller) -> CollectorRegistry:
    """A registry that shows this controller."""
    registry = CollectorRegistry()
    registry.register(_State(controller))
    return registry
