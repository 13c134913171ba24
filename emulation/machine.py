"""What figures were measured on: a figure without its machine says little."""

import os
import platform
from pathlib import Path
from typing import Any, NamedTuple


class CpuTicks(NamedTuple):
    """Processor time since the machine began, in ticks: given away by its host, idle, and all."""

    steal: int
    idle: int
    total: int

    def busy_since(self, earlier: "CpuTicks") -> float:
        """The share of processor time that was not idle since then."""
        total = max(1, self.total - earlier.total)
        return 1 - (self.idle - earlier.idle) / total


def cpu_ticks() -> CpuTicks:
    """Of all cores until now."""
    first = Path("/proc/stat").read_text(encoding="utf-8").partition("\n")[0]
    # user, nice, system, idle, iowait, irq, softirq, steal; guests' are in user already.
    ticks = [int(each) for each in first.split()[1:9]]
    return CpuTicks(ticks[7], ticks[3] + ticks[4], sum(ticks))


def describe_machine() -> dict[str, Any]:
    """CPU, cores, memory, kernel, Python, and how busy the machine was before we came."""
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        if line.startswith("model name")
    ]
    memory_kib = int(Path("/proc/meminfo").read_text(encoding="utf-8").split()[1])
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": os.cpu_count(),
        "memory_bytes": memory_kib * 1024,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average_1min": os.getloadavg()[0],
    }
