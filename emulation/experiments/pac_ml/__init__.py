"""PAC-ML's experiment: how many ways to partition jobs that have a deadline.

Parsonson, Shabka, Ottino, Zervas: "Partitioning Distributed Compute Jobs with Reinforcement
Learning and Graph Neural Networks", arXiv 2301.13799. Ours: the loss network of
``emulation.simulator.ramp`` under plain rules for the degree and under a roll-out that looks ahead.
"""

from collections.abc import Mapping
from typing import Any

CONSTANTS: Mapping[str, int] = {
    f"constant-{degree}": degree for degree in (1, 2, 4, 6, 8, 16)
}
"""The degrees that are the same for all jobs, by the names of their policies."""


def policies_in(laws: Mapping[str, Any]) -> list[str]:
    """The policies of a placement rule in a result: those that have figures under any law."""
    return list(
        dict.fromkeys(
            name for cell in laws.values() for name in cell["policies"]
        )
    )
