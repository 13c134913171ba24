"""What GPUs tell, as metrics."""

from typing import Any

from patchlight.controller.api.gpu_metrics import gpu_gauges
from patchlight.testbed.agent_status import GpuStatus, GpuTelemetry


def test_what_a_gpu_tells_is_shown_and_what_it_cannot_tell_is_not() -> None:
    told = GpuTelemetry(power_w=250.5, mig=False, processes=(4, 7))
    gpus = {
        "server1.gpu0": GpuStatus(
            name="gpu0", model="V100", utilization=None, busy_s=0, telemetry=told
        ),
        "server1.gpu1": GpuStatus(
            name="gpu1", model="V100", utilization=None, busy_s=0, problem="it is gone"
        ),
    }
    found = {name: values for name, _, values in gpu_gauges(gpus)}
    assert found == {
        "gpu_power_watts": {"server1.gpu0": 250.5},
        "gpu_mig": {"server1.gpu0": 0.0},
        "gpu_processes": {"server1.gpu0": 2.0},
        "gpu_up": {"server1.gpu0": 1.0, "server1.gpu1": 0.0},
    }


def test_every_quantity_that_a_number_can_say_has_a_metric() -> None:
    fields: dict[str, Any] = dict.fromkeys(GpuTelemetry.__dataclass_fields__, 1)
    del fields["processes"]
    told = GpuTelemetry(**fields)
    gpu = GpuStatus(name="gpu0", model="V100", utilization=1, busy_s=0, telemetry=told)
    shown = [name for name, _, values in gpu_gauges({"g": gpu}) if values == {"g": 1.0}]
    assert len(shown) == len(fields) - len(("energy_since", "xid_at")) + len(("gpu_up",))
