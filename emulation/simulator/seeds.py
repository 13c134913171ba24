"""Seeds for policies: what a simulation draws must not be drawn again by those it asks."""

import numpy as np

_TAG = 0x504F4C49


def policy_seed(seed: int) -> int:
    """A seed that follows from the simulation's and is not it."""
    return int(np.random.SeedSequence([seed, _TAG]).generate_state(1)[0])
