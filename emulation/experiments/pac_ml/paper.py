"""The figures that others published or that their simulator gave, law by law.

``notebook``: saved output of the authors' notebook (repository ``cwfparsonson/ddls``,
``notebooks/plotting/paper/jobs_completed_blocked_characteristics_and_performance_bars.ipynb``,
cells 6 and 10; three seeds). ``peer``: measured by running that repository unmodified, one seed.
Both placed operations first fit, one by one (``ramp-first-fit``), and counted ``faithful``.
"""

from collections.abc import Mapping
from typing import NamedTuple

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
    return {law: Published(float(rate), source) for law, rate in pairs if rate != "-"}


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

PAC_ML: Mapping[str, Mapping[str, Published]] = {
    "PAC-ML, best checkpoint": _each(".2038 .2567 .1166 .0992", NOTEBOOK),
    "PAC-ML, final epoch": _each(".2209 .2641 .1247 .1037", NOTEBOOK),
}
"""The learned policy; the best checkpoint was picked on the evaluation's own episodes."""

LESS_MAXIMUM = 0.562
"""By which share its policy blocks less than maximum parallelisation at most (abstract)."""

JCT_S: Mapping[str, Mapping[str, float]] = {
    "PAC-ML, final epoch": {"A": 7487, "B": 1888, "C": 7469, "D": 14903},
    "maximum": {"A": 1875, "B": 1884, "C": 1901, "D": 1884},
    "minimum": {"A": 13136, "B": 7350, "C": 11929, "D": 14724},
    "random": {"A": 7505, "B": 4997, "C": 7154, "D": 8900},
}
THROUGHPUT_BYTES_PER_S: Mapping[str, Mapping[str, float]] = {
    "PAC-ML, final epoch": {"A": 24.70e6, "B": 23.43e6, "C": 27.79e6, "D": 28.40e6},
    "maximum": {"A": 23.25e6, "B": 23.51e6, "C": 23.56e6, "D": 23.51e6},
}
