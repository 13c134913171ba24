"""What GPUs tell, as metrics."""

from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from patchlight.controller.metrics.lab_state import gpu_metrics
from patchlight.testbed.wire.agent_status import GpuStatus, GpuTelemetry


def shown(gpus: dict[str, GpuStatus]) -> dict[str, dict[str, float]]:
    """Values by GPU, by the name of the sample without what all have in common."""
    text = "".join(
        family.as_text(openmetrics=False) for family in gpu_metrics(gpus)
    )
    return {
        family.samples[0].name.removeprefix("patchlight_gpu_"): {
            sample.labels["gpu"]: sample.value for sample in family.samples
        }
        for family in text_string_to_metric_families(text)
    }


def test_what_a_gpu_tells_is_shown_and_what_it_cannot_tell_is_not() -> None:
    told = GpuTelemetry(
        power_w=250.5,
        mig=False,
        processes=(4, 7),
        pcie_sent_bps=80,
        energy_j=3.0,
    )
    gpus = {
        "server1.gpu0": GpuStatus(
            name="gpu0",
            model="V100",
            utilization=0.5,
            busy_s=0,
            telemetry=told,
        ),
        "server1.gpu1": GpuStatus(
            name="gpu1",
            model="V100",
            utilization=None,
            busy_s=0,
            problem="it is gone",
        ),
    }
    assert shown(gpus) == {
        "power_watts": {"server1.gpu0": 250.5},
        "pcie_sent_bytes_per_second": {"server1.gpu0": 10.0},
        "mig": {"server1.gpu0": 0.0},
        "energy_joules_total": {"server1.gpu0": 3.0},
        "processes": {"server1.gpu0": 2.0},
        "utilization_ratio": {"server1.gpu0": 0.5},
        "up": {"server1.gpu0": 1.0, "server1.gpu1": 0.0},
    }


def test_every_quantity_that_a_number_can_say_has_a_metric() -> None:
    fields: dict[str, Any] = dict.fromkeys(
        GpuTelemetry.__dataclass_fields__, 8
    )
    fields["processes"] = (1,)
    gpu = GpuStatus(
        name="gpu0",
        model="V100",
        utilization=None,
        busy_s=0,
        telemetry=GpuTelemetry(**fields),
    )
    assert len(shown({"g": gpu})) == len(fields) - len(
        ("energy_since", "xid_at")
    ) + len(("up",))
