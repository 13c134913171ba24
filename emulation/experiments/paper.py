"""Published figures of OFC 2022, ODDL and PAC-ML, for results and reports only.

Nothing that measures imports this module, so that no measurement can lean on it. Of ODDL (W. Li
et al., 2024) only the abstract was at hand. PAC-ML's figures are by law; ``NOTEBOOK`` is saved
output of the authors' notebook (repository ``cwfparsonson/ddls``,
``notebooks/plotting/paper/jobs_completed_blocked_characteristics_and_performance_bars.ipynb``,
cells 6 and 10; three seeds), ``PEER`` was measured by running that repository unmodified, one seed.
Both placed operations first fit, one by one (``ramp-first-fit``), and counted ``faithful``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

SOURCE = (
    "S. Yan, Z. Zhu, M. Glick, Z. Wu, K. Bergman, "
    "Optical Fiber Communication Conference (OFC) 2022"
)


@dataclass(
    frozen=True,
    slots=True,
)
class PaperCase:
    """Completion times of the first job, the reduction (0…1), and how much busier GPUs were."""

    static_completion_s: float
    optical_completion_s: float
    reduction: float
    utilization_ratio: float
    utilization_words: str = ""

    @property
    def model_utilization_ratio(self) -> float:
        """The reduction in any model T = C + V/B with the same C."""
        return 1 / (1 - self.reduction)


PAPER: Mapping[str, PaperCase] = MappingProxyType(
    {
        "a": PaperCase(
            407,
            109,
            0.732,
            utilization_ratio=3.0,
        ),
        "b": PaperCase(
            368,
            140,
            0.620,
            utilization_ratio=1.0,
            utilization_words="no significant improvement",
        ),
    }
)

PHYSICS = (
    "A ring all-reduce over n GPUs sends 2(n−1)/n of the gradient over every edge of the ring in "
    "each iteration; with the GPUs spread over the racks, the edges of both jobs that cross "
    "between the ToRs share one slow link and every iteration waits for it. With each job on "
    "its own ToR, no edge crosses and all run at the NICs' rate."
)
STANDING = (
    "These figures are consistent with the paper's; they do not confirm it. Compute time, link "
    "rates, the order of the rings and the number of iterations of each job are not all in the "
    "paper: they were fitted to its four completion times, so the agreement has few degrees of "
    "freedom left. The measured times are for the number of iterations given here, and the "
    "paper's for its own: compare the reductions."
)
UTILIZATION = (
    "The paper's GPU utilisation contradicts the fitted model. Wherever an iteration computes "
    "for C and then sends V over a link of rate B, T = C + V/B, utilisation is C/T and rises by "
    "1/(1 − reduction): × 3.73 in case (a) and × 2.63 in case (b), by the paper's own reductions. "
    "The paper reports × 3 and no significant improvement. No one counter gives both: if a part w "
    "of communication counts as work, × 3 in (a) needs w = 0.07, and at most × 1.1 in (b) 0.82. "
    "Utilisation here is the schedule's and not a measurement of GPUs: an emulated GPU is busy for "
    "as long as it was given to compute."
)
LOCKSTEP = (
    "Case (b) relies on two jobs with the same compute time, which stay in step. With different "
    "times their communication interleaves, the static network does better, and the reduction is "
    "smaller: --mismatch shows how much."
)


SPEEDUPS: Mapping[tuple[str, int], Mapping[str, float]] = {
    ("vgg19", 1024): {"fat_tree": 1.6, "sip_ring": 1.7}
}
"""By model and nodes: training time on the other network over that on ODDL."""


RULE = "ramp-first-fit"
NOTEBOOK = "authors' notebook, 3 seeds"
PEER = "their simulator, 1 seed"


class Published(NamedTuple):
    """A blocking rate, and where it comes from."""

    blocking_rate: float
    source: str


def _each(rates: str, source: str) -> dict[str, Published]:
    """One rate for each of the laws A to D, ``-`` where there is none."""
    pairs = zip("ABCD", rates.split(), strict=True)
    return {
        law: Published(float(rate), source)
        for law, rate in pairs
        if rate != "-"
    }


BLOCKING: Mapping[str, Mapping[str, Published]] = {
    "maximum": _each(".2624 .2631 .2674 .2631", NOTEBOOK),
    "minimum": _each(".3087 .3956 .3074 .1419", NOTEBOOK),
    "random": _each(".5172 .6011 .5055 .4652", NOTEBOOK),
    "constant-2": _each("- - - .1049", PEER),
    "constant-4": _each(".2218 - .1249 -", PEER),
    "constant-8": _each(".2987 .2917 - -", PEER),
    "constant-16": _each(".2624 .2631 .2674 .2631", NOTEBOOK),
    "sufficient": _each(".3137 - - -", PEER),
}
"""By our names of policies; constant 16 is what the authors call ``Para_max`` too."""

BEST = "PAC-ML, best checkpoint"
PAC_ML: Mapping[str, Mapping[str, Published]] = {
    BEST: _each(".2038 .2567 .1166 .0992", NOTEBOOK),
    "PAC-ML, final epoch": _each(".2209 .2641 .1247 .1037", NOTEBOOK),
}
"""The learned policy; the best checkpoint was picked on the evaluation's own episodes."""

LESS_MAXIMUM = 0.562
"""By which share its policy blocks less than maximum parallelisation at most (abstract)."""

JCT_S: Mapping[str, Mapping[str, float]] = {
    "PAC-ML, final epoch": {
        "A": 7487,
        "B": 1888,
        "C": 7469,
        "D": 14903,
    },
    "maximum": {
        "A": 1875,
        "B": 1884,
        "C": 1901,
        "D": 1884,
    },
    "minimum": {
        "A": 13136,
        "B": 7350,
        "C": 11929,
        "D": 14724,
    },
    "random": {
        "A": 7505,
        "B": 4997,
        "C": 7154,
        "D": 8900,
    },
}
THROUGHPUT_BYTES_PER_S: Mapping[str, Mapping[str, float]] = {
    "PAC-ML, final epoch": {
        "A": 24.70e6,
        "B": 23.43e6,
        "C": 27.79e6,
        "D": 28.40e6,
    },
    "maximum": {
        "A": 23.25e6,
        "B": 23.51e6,
        "C": 23.56e6,
        "D": 23.51e6,
    },
}
