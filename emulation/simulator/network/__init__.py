"""Flows on networks: what architectures are compared with, from 4 nodes to 65,536.

``contract`` says what a network is, ``specs`` makes one of a line of text, ``topologies`` has those
that there are. ``sharing`` gives links to sessions max-min fair, ``engine`` plays jobs in time,
``collectives`` says what they send, ``parallelism`` how models are split, and ``jobs`` puts them on
a network; ``turns`` says who waits for circuits, ``trouble`` what goes wrong,
``chakra`` how execution traces become a job. ``parts`` adds up
power and cost.
"""

from patchlight.emulation.simulator.network.contract import (
    COLLECTIVES,
    Network,
    Round,
    Switching,
    collective,
)
from patchlight.emulation.simulator.network.jobs import (
    Flows,
    PlacedJob,
    Split,
    completions,
    expert_exchange,
    run_jobs,
)
from patchlight.emulation.simulator.network.specs import (
    NETWORKS,
    Failure,
    Slowness,
    Trouble,
    network_of,
)

__all__ = [
    "COLLECTIVES",
    "NETWORKS",
    "Failure",
    "Flows",
    "Network",
    "PlacedJob",
    "Round",
    "Slowness",
    "Split",
    "Switching",
    "Trouble",
    "collective",
    "completions",
    "expert_exchange",
    "network_of",
    "run_jobs",
]
