"""With which f and C a published speedup comes out, and with which not.

An iteration is C + f·M: a node computes for C, M is how long it communicates on ODDL, and f how
many times as long on the other network. So the speedup is (C + f·M) / (C + M), and a speedup p
comes out at C = M·(f − p) / (p − 1), if f is more than p.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from patchlight.emulation.experiments.oddl.workloads import Workload
from patchlight.emulation.simulator.network import PlacedJob, Round, collective, network_of
from patchlight.emulation.simulator.network.contract import Network
from patchlight.emulation.simulator.network.engine import run
from patchlight.emulation.simulator.network.jobs import ONCE, program_of, sessions_of
from patchlight.emulation.simulator.network.sharing import Ints

_SHARES = (16, 4)
# Of several jobs on a network, so many iterations are timed, after the first few.
_TIMED, _BEFORE = 4, 2


class Scenario(NamedTuple):
    """Communication that takes ``f`` times as long as on ODDL, where it takes ``oddl_s``.

    ``speedup`` is with the model's computing time, ``communication`` without. ``paper`` is the
    published speedup, and ``compute_for_paper_s`` the computing time with which it comes out:
    ``None`` where there is none.
    """

    compared: str
    words: str
    f: float
    oddl_s: float
    speedup: float
    paper: float | None
    compute_for_paper_s: float | None


def scenarios(
    radix: int, model: Workload, paper: Mapping[str, float], message_s: float, seed: int
) -> list[Scenario]:
    """All of them, of a job on all nodes of a cluster of k³/4, and of jobs that fill it."""
    nodes = radix**3 // 4
    found = []
    for compared, network, words, rings, rounds in _cases(radix, nodes, model, seed):
        oddl_s = _mean_s(network_of(f"oddl:nodes={nodes},setup=0ns"), rings[:1], rounds, message_s)
        f = _mean_s(network, rings, rounds, message_s) / oddl_s
        published = paper.get(compared)
        needed_s = None
        if published is not None and f > published:
            needed_s = oddl_s * (f - published) / (published - 1)
        speedup = (model.compute_s + f * oddl_s) / (model.compute_s + oddl_s)
        found.append(Scenario(compared, words, f, oddl_s, speedup, published, needed_s))
    return found


Case = tuple[str, Network, str, Sequence[Ints], Sequence[Round]]


def _cases(radix: int, nodes: int, model: Workload, seed: int) -> Iterator[Case]:
    rng = np.random.default_rng(seed)
    in_order, anyhow = np.arange(nodes), rng.permutation(nodes)
    ring = collective("ring", nodes, model.gradient_bytes)
    other = "hierarchical" if nodes & (nodes - 1) else "halving-doubling"
    halving = collective(other, nodes, model.gradient_bytes)
    trees = {"": network_of(f"fat-tree:k={radix}")}
    trees[" 2:1"] = network_of(f"fat-tree:k={radix},taper=2")
    sprayed = network_of(f"fat-tree:k={radix},taper=2,spread=packets")
    sip = network_of(f"sip-ring:nodes={nodes}")
    for taper, tree in trees.items():
        yield "fat_tree", tree, f"ring in order{taper}", [in_order], ring
        yield "fat_tree", tree, f"ring, random order{taper}", [anyhow], ring
        yield "fat_tree", tree, f"{other}{taper}", [in_order], halving
    yield "fat_tree", sprayed, "ring, random order 2:1, sprayed", [anyhow], ring
    yield "sip_ring", sip, "ring in order", [in_order], ring
    yield "sip_ring", sip, f"{other}", [in_order], halving
    for share in _SHARES:
        size = nodes // share
        if size < 2:
            continue
        part = collective("ring", size, model.gradient_bytes)
        beside = list(in_order.reshape(share, size))
        mixed = [np.sort(each) for each in anyhow.reshape(share, size)]
        words = f"{share} rings of {size}"
        yield "fat_tree", trees[""], f"{words}, random nodes", mixed, part
        yield "fat_tree", trees[" 2:1"], f"{words}, random nodes 2:1", mixed, part
        yield "sip_ring", sip, f"{words}, beside each other", beside, part


def _mean_s(
    network: Network, rings: Sequence[Ints], rounds: Sequence[Round], message_s: float
) -> float:
    """How long the communication of equal jobs takes that do nothing else, in the mean."""
    jobs = [PlacedJob(nodes, 0.0, rounds, ONCE, messages_s=message_s) for nodes in rings]
    program = program_of(network, jobs, [sessions_of(network, job) for job in jobs])
    outcome = run(program, _TIMED + _BEFORE, _BEFORE)
    return float(((outcome.ends_s - outcome.marks_s) / (outcome.done - _BEFORE)).mean())
