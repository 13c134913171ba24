"""What the paper reports. Only results and reports read this.

Nothing that measures imports this module, so that no measurement can lean on it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

SOURCE = (
    "Z. Yan, Z. Zhu, M. Glick, Z. Wu, K. Bergman, Optical Fiber Communication Conference (OFC) 2022"
)


@dataclass(frozen=True, slots=True)
class PaperCase:
    """Completion times of the first job, and the reduction as the paper prints it (0…1)."""

    static_completion_s: float
    optical_completion_s: float
    reduction: float
    utilization_ratio: float | None = None


PAPER: Mapping[str, PaperCase] = MappingProxyType(
    {"a": PaperCase(407, 109, 0.732, utilization_ratio=3.0), "b": PaperCase(368, 140, 0.620)}
)

PHYSICS = (
    "A ring all-reduce over n GPUs sends 2(n−1)/n of the gradient over every edge of the ring in "
    "each iteration; with the GPUs spread over the racks, the edges of both jobs that cross "
    "between the ToRs share one slow link and every iteration waits for it, and with each job lit "
    "onto a ToR of its own no edge crosses and all run at the NICs' rate."
)
STANDING = (
    "These figures are consistent with the paper's; they do not confirm it. Compute time, link "
    "rates, the order of the rings and the number of iterations of each job are not all in the "
    "paper: they were fitted to its four completion times, so the agreement has few degrees of "
    "freedom left. The measured times are for the number of iterations given here, and the "
    "paper's for its own: compare the reductions."
)
