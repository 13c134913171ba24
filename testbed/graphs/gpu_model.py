"""A GPU as a roofline: an operation takes as long as its arithmetic or its bytes, and a launch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GpuModel:
    """What a GPU can do in float32, and what share of it operations reach.

    Peak figures are the maker's; the shares are round guesses (matrix operations of usual sizes
    reach some 60 % of the peak, streaming ones some 75 % of the memory's rate), so the times
    that come of them are computed, not measured.
    """

    name: str
    flops: float
    memory_bytes_per_s: float
    compute_share: float = 0.6
    memory_share: float = 0.75
    launch_s: float = 5e-6

    def time_ms(self, flops: float, moved_bytes: float) -> float:
        """Milliseconds for so many float operations and bytes moved; 0 for nothing at all."""
        if not flops and not moved_bytes:
            return 0.0
        computing = flops / (self.flops * self.compute_share)
        moving = moved_bytes / (self.memory_bytes_per_s * self.memory_share)
        return 1e3 * (max(computing, moving) + self.launch_s)

    @property
    def statement(self) -> str:
        """The model in words, for the graphs made with it."""
        return (
            f"roofline of {self.name}: {self.flops / 1e12:g} TFLOP/s at {self.compute_share:.0%}, "
            f"{self.memory_bytes_per_s / 1e9:g} GB/s at {self.memory_share:.0%}, "
            f"{self.launch_s * 1e6:g} µs a launch"
        )


A100 = GpuModel("NVIDIA A100 SXM4 80 GB, float32", flops=19.5e12, memory_bytes_per_s=2.039e12)
"""Peak figures of NVIDIA's data sheet, without TF32."""
