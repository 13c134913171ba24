"""Ways to split a model over nodes, as rounds: data, tensor, pipeline and expert parallelism."""

import numpy as np

from patchlight.emulation.simulator.network.collectives import Round, all_to_all, side_by_side
from patchlight.testbed.errors import BadInput


def expert_exchange(members: int, experts: int, nbytes: float) -> list[Round]:
    """All-to-alls of ``nbytes`` of each member, in groups of as many members as there are experts.

    ``BadInput`` if the members cannot be split into such groups.
    """
    if experts < 1 or members % experts:
        raise BadInput(
            f"{members} nodes cannot be split into groups of {experts} experts: expected a "
            "divisor of their number"
        )
    if experts == 1:
        return []
    groups = [np.arange(first, first + experts) for first in range(0, members, experts)]
    return side_by_side(all_to_all(experts, nbytes), groups)
