"""What GPUs tell of themselves, as metrics."""

from collections.abc import Callable, Iterator, Mapping

from patchlight.controller.metrics.families import Family, by_name, counter, gauge
from patchlight.testbed.wire.agent_status import GpuStatus, GpuTelemetry

_PER_BYTE = 1 / 8
_GAUGES = {
    "memory_bytes": ("memory_bytes", "Memory of a GPU.", 1.0),
    "memory_used_bytes": ("memory_used_bytes", "Memory of a GPU in use.", 1.0),
    "power_w": ("power_watts", "Power that a GPU draws.", 1.0),
    "temperature_c": ("temperature_celsius", "Temperature of a GPU.", 1.0),
    "sm_clock_hz": ("sm_clock_hertz", "Clock of a GPU's multiprocessors.", 1.0),
    "memory_clock_hz": ("memory_clock_hertz", "Clock of a GPU's memory.", 1.0),
    "pcie_sent_bps": ("pcie_sent_bytes_per_second", "From a GPU over PCIe.", _PER_BYTE),
    "pcie_received_bps": ("pcie_received_bytes_per_second", "To a GPU over PCIe.", _PER_BYTE),
    "nvlink_sent_bps": ("nvlink_sent_bytes_per_second", "From a GPU over NVLink.", _PER_BYTE),
    "nvlink_received_bps": ("nvlink_received_bytes_per_second", "To a GPU, NVLink.", _PER_BYTE),
    "mig": ("mig", "Whether a GPU is partitioned (MIG).", 1.0),
    "xid": ("last_xid", "Number of the last XID error of a GPU.", 1.0),
}
_COUNTERS = {
    "energy_j": ("energy_joules", "Energy that a GPU has used."),
    "ecc_corrected": ("ecc_corrected", "Corrected memory errors of a GPU."),
    "ecc_uncorrected": ("ecc_uncorrected", "Uncorrected memory errors of a GPU."),
}


def gpu_metrics(gpus: Mapping[str, GpuStatus]) -> Iterator[Family]:
    """The quantities that any of these GPUs tells, by their full names.

    A GPU that has fallen off tells nothing: what it said before is not repeated.
    """
    told: dict[str, GpuTelemetry] = {
        name: gpu.telemetry for name, gpu in gpus.items() if gpu.telemetry is not None
    }

    def known(quantity: str, factor: float = 1.0) -> dict[str, float]:
        values = {name: getattr(each, quantity) for name, each in told.items()}
        return {name: factor * value for name, value in values.items() if value is not None}

    for quantity, (metric, about, factor) in _GAUGES.items():
        yield from _unless_empty(gauge, metric, about, known(quantity, factor))
    for quantity, (metric, about) in _COUNTERS.items():
        yield from _unless_empty(counter, metric, about, known(quantity))
    processes = {n: float(len(t.processes)) for n, t in told.items() if t.processes is not None}
    yield from _unless_empty(gauge, "processes", "Processes that compute on a GPU.", processes)
    busy = {name: gpu.utilization for name, gpu in gpus.items() if gpu.utilization is not None}
    about = "Busy share of the last second, from 0 to 1."
    yield from _unless_empty(gauge, "utilization_ratio", about, busy)
    usable = {name: float(not gpu.problem) for name, gpu in gpus.items()}
    yield from _unless_empty(gauge, "up", "Whether a GPU can be used.", usable)


def _unless_empty(
    kind: Callable[..., Family], name: str, about: str, values: Mapping[str, float]
) -> Iterator[Family]:
    if values:
        yield kind(f"gpu_{name}", about, ("gpu",), by_name(values))
