"""Collectives collapsed into rounds: who sends how much to whom while all of them move in step.

Ranks count from 0. A ring's 2(n−1) steps, each with the same edges, are one round of as many
messages: latency is paid for each, and bits move at the rate of the slowest edge, as they do when
each step waits for the one before.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from patchlight.emulation.simulator.network.sharing import Ints
from patchlight.testbed.errors import BadInput, nearest


class Round(NamedTuple):
    """Edges from ``source`` to ``destination`` (ranks), each with so many ``bits`` in all.

    They are sent as ``messages`` one after the other, each of which pays the path's latency, and
    ``reduced_bits`` of them are added up by each receiver.
    """

    source: Ints
    destination: Ints
    bits: float
    messages: int = 1
    reduced_bits: float = 0.0


def ring(members: int, nbytes: float, strides: Sequence[int] = (1,)) -> list[Round]:
    """Ring all-reduce of ``nbytes``: 2(n−1)/n of it over each edge (Patarasuk and Yuan, 2009).

    With several ``strides`` p, each prime to n, an equal part of it goes over each ring r → r + p.
    """
    ranks = np.arange(members)
    one_way = (members - 1) / members * 8 * nbytes / len(strides)
    source = np.concatenate([ranks for _ in strides])
    destination = np.concatenate([(ranks + stride) % members for stride in strides])
    return [Round(source, destination, 2 * one_way, 2 * (members - 1), one_way * len(strides))]


def goes_round(each: Round, members: int) -> bool:
    """Whether a round is (part of) an all-reduce over rings of all ``members``: it adds up, and
    all of them send to the one so many ranks on, which is prime to their number."""
    if not each.reduced_bits:
        return False
    senders = np.bincount((each.destination - each.source) % members)
    (strides,) = np.nonzero(senders)
    return all(
        senders[stride] % members == 0 and math.gcd(stride, members) == 1
        for stride in strides.tolist()
    )


def ring_part(rounds: Sequence[Round], members: int) -> float:
    """The part of all bits sent that all-reduces over rings of all ``members`` send."""
    sent = [each.bits * len(each.source) for each in rounds]
    round_it = [b for each, b in zip(rounds, sent, strict=True) if goes_round(each, members)]
    return sum(round_it) / sum(sent) if sum(sent) else 1.0


def two_rings(members: int, nbytes: float) -> list[Round]:
    """Half of it each way round at the same time."""
    ranks = np.arange(members)
    there, back = (ranks + 1) % members, (ranks - 1) % members
    one_way = (members - 1) / members * 4 * nbytes
    sides = np.concatenate([ranks, ranks]), np.concatenate([there, back])
    return [Round(*sides, 2 * one_way, 2 * (members - 1), 2 * one_way)]


def hierarchical(members: int, nbytes: float, inside: int = 8) -> list[Round]:
    """Reduce-scatter in groups of ``inside``, ring all-reduce across them, all-gather inside."""
    groups = max(1, members // inside)
    if members <= inside or members % inside:
        return ring(members, nbytes)
    in_group = [np.arange(group * inside, (group + 1) * inside) for group in range(groups)]
    across = [np.arange(rank, members, inside) for rank in range(inside)]
    one_way = (inside - 1) / inside * 8 * nbytes
    ranks = np.arange(inside)
    edges = Round(ranks, (ranks + 1) % inside, one_way, inside - 1, one_way)
    gathers = edges._replace(reduced_bits=0.0)
    return [
        *side_by_side([edges], in_group),
        *side_by_side(ring(groups, nbytes / inside), across),
        *side_by_side([gathers], in_group),
    ]


def halving_doubling(members: int, nbytes: float) -> list[Round]:
    """Recursive halving and doubling (Rabenseifner, 2004); 2ᵏ members."""
    if members & (members - 1):
        raise BadInput(
            f"halving-doubling among {members}: expected a power of two",
            hint="choose ring, which goes with any number",
        )
    ranks = np.arange(members)
    halving = []
    apart, bits = members // 2, 4.0 * nbytes
    while apart:
        halving.append(Round(ranks, ranks ^ apart, bits, 1, bits))
        apart, bits = apart // 2, bits / 2
    doubling = [each._replace(reduced_bits=0.0) for each in reversed(halving)]
    return [*halving, *doubling]


def tree(members: int, nbytes: float) -> list[Round]:
    """Up a binary tree and down again, in a pipeline: as fast as its busiest NIC."""
    children = np.arange(1, members)
    parents = (children - 1) // 2
    depth = (members - 1).bit_length()
    up = Round(children, parents, 8 * nbytes, depth, 8 * nbytes)
    return [up, Round(parents, children, 8 * nbytes, depth)]


def parameter_server(members: int, nbytes: float, servers: int = 1) -> list[Round]:
    """To ``servers`` of the members, which hold an equal part each, and back."""
    ranks = np.arange(members)
    pairs = [(rank, server) for server in range(min(servers, members)) for rank in ranks]
    workers, holders = np.array([pair for pair in pairs if pair[0] != pair[1]]).T
    bits = 8 * nbytes / min(servers, members)
    push = Round(workers, holders, bits, 1, bits * (members - 1))
    return [push, Round(holders, workers, bits)]


def all_to_all(members: int, nbytes: float) -> list[Round]:
    """Each sends an n-th of its ``nbytes`` to each other one: n−1 shifts, one after the other."""
    ranks = np.arange(members)
    return [
        Round(ranks, (ranks + shift) % members, 8 * nbytes / members) for shift in range(1, members)
    ]


def pipeline(members: int, nbytes: float) -> list[Round]:
    """Activations from each stage to the next, gradients of them back."""
    stages = np.arange(members - 1)
    return [Round(stages, stages + 1, 8 * nbytes), Round(stages + 1, stages, 8 * nbytes)]


COLLECTIVES: Mapping[str, Callable[[int, float], list[Round]]] = {
    "ring": ring,
    "two-rings": two_rings,
    "hierarchical": hierarchical,
    "halving-doubling": halving_doubling,
    "tree": tree,
    "parameter-server": parameter_server,
    "all-to-all": all_to_all,
    "pipeline": pipeline,
}


def collective(
    name: str, members: int, nbytes: float, strides: Sequence[int] = (1,)
) -> list[Round]:
    """The rounds of a collective among so many; none for one member.

    ``strides`` are those of the rings that a network has for so many (``Network.strides``).
    ``BadInput`` for a name that there is not and for a size that makes no sense.
    """
    if name not in COLLECTIVES:
        raise BadInput(f"no collective {name!r}: {nearest(name, COLLECTIVES)}")
    if members < 1 or not 0 <= nbytes < float("inf"):
        raise BadInput(
            f"{name} of {nbytes} bytes among {members}: expected 0 bytes or more, 1 member or more"
        )
    if members == 1 or not nbytes:
        return []
    return ring(members, nbytes, strides) if name == "ring" else COLLECTIVES[name](members, nbytes)


def side_by_side(rounds: Sequence[Round], groups: Sequence[Ints] | Ints) -> list[Round]:
    """The same rounds in each group of ranks at the same time: data, tensor, expert parallelism."""
    return [
        each._replace(
            source=np.concatenate([group[each.source] for group in groups]),
            destination=np.concatenate([group[each.destination] for group in groups]),
        )
        for each in rounds
    ]
