"""What GPUs tell of themselves, as metrics."""

from collections.abc import Iterator, Mapping

from patchlight.testbed.agent_status import GpuStatus, GpuTelemetry

_OF = {
    "memory_bytes": ("gpu_memory_bytes", "Memory of a GPU."),
    "memory_used_bytes": ("gpu_memory_used_bytes", "Memory of a GPU in use."),
    "power_w": ("gpu_power_watts", "Power that a GPU draws."),
    "energy_j": ("gpu_energy_joules", "Energy that a GPU has used; it begins anew at times."),
    "temperature_c": ("gpu_temperature_celsius", "Temperature of a GPU."),
    "sm_clock_hz": ("gpu_sm_clock_hertz", "Clock of a GPU's multiprocessors."),
    "memory_clock_hz": ("gpu_memory_clock_hertz", "Clock of a GPU's memory."),
    "pcie_sent_bps": ("gpu_pcie_sent_bits_per_second", "From a GPU over PCIe."),
    "pcie_received_bps": ("gpu_pcie_received_bits_per_second", "To a GPU over PCIe."),
    "nvlink_sent_bps": ("gpu_nvlink_sent_bits_per_second", "From a GPU over NVLink."),
    "nvlink_received_bps": ("gpu_nvlink_received_bits_per_second", "To a GPU over NVLink."),
    "mig": ("gpu_mig", "Whether a GPU is partitioned (MIG)."),
    "ecc_corrected": ("gpu_ecc_corrected", "Corrected memory errors of a GPU."),
    "ecc_uncorrected": ("gpu_ecc_uncorrected", "Uncorrected memory errors of a GPU."),
    "xid": ("gpu_last_xid", "Number of the last XID error of a GPU."),
}


def gpu_gauges(gpus: Mapping[str, GpuStatus]) -> Iterator[tuple[str, str, dict[str, float]]]:
    """Name, description, and values by GPU, of each quantity that any of them tells.

    A GPU that has fallen off tells nothing: what it said before is not repeated.
    """
    told: dict[str, GpuTelemetry] = {
        name: gpu.telemetry for name, gpu in gpus.items() if gpu.telemetry is not None
    }
    for quantity, (metric, about) in _OF.items():
        values = {name: getattr(each, quantity) for name, each in told.items()}
        if known := {name: float(value) for name, value in values.items() if value is not None}:
            yield metric, about, known
    counts = {
        name: float(len(each.processes))
        for name, each in told.items()
        if each.processes is not None
    }
    if counts:
        yield "gpu_processes", "Processes that compute on a GPU.", counts
    usable = {name: float(not gpu.problem) for name, gpu in gpus.items()}
    yield "gpu_up", "Whether a GPU can be used.", usable
