"""What the paper reports. Only results and reports read this.

Nothing that measures imports this module, so that no measurement can lean on it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

SOURCE = (
    "S. Yan, Z. Zhu, M. Glick, Z. Wu, K. Bergman, Optical Fiber Communication Conference (OFC) 2022"
)


@dataclass(frozen=True, slots=True)
class PaperCase:
    """Completion times of the first job, and the reduction as the paper prints it (0…1).

    ``utilization_ratio`` is how many times as busy the GPUs were, ``utilization_words`` what the
    paper says where it gives no number.
    """

    static_completion_s: float
    optical_completion_s: float
    reduction: float
    utilization_ratio: float
    utilization_words: str = ""

    @property
    def model_utilization_ratio(self) -> float:
        """What the reduction comes to in any model T = C + V/B: C is the same, T is less."""
        return 1 / (1 - self.reduction)


PAPER: Mapping[str, PaperCase] = MappingProxyType(
    {
        "a": PaperCase(407, 109, 0.732, utilization_ratio=3.0),
        "b": PaperCase(
            368, 140, 0.620, utilization_ratio=1.0, utilization_words="no significant improvement"
        ),
    }
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
UTILIZATION = (
    "The paper's GPU utilisation speaks against the fitted model. Wherever an iteration computes "
    "for C and then sends V over a link of rate B, T = C + V/B, utilisation is C/T and rises by "
    "1/(1 − reduction): × 3.73 in case (a) and × 2.63 in case (b), by the paper's own reductions. "
    "The paper reports × 3 and no significant improvement. Counters that take communication "
    "kernels for work would lower both, but why they would hide all of (b) and not (a) is open. "
    "Utilisation here is the schedule's and not a measurement of GPUs: an emulated GPU is busy for "
    "as long as it was given to compute."
)
LOCKSTEP = (
    "Case (b) rests on two jobs that compute for equally long and so stay in step. Where they do "
    "not, their communication interleaves, the static network does better, and the reduction is "
    "smaller: --mismatch shows by how much."
)
