"""Networks by name (``fat-tree:k=16,taper=2``), slow nodes, and failures of links and nodes."""

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np

from patchlight.controller.prediction.framing import ETHERNET_BYTES, tcp
from patchlight.emulation.simulator.network.contract import NO_LINK, Network
from patchlight.emulation.simulator.network.sharing import Floats, Ints
from patchlight.emulation.simulator.network.topologies import (
    direct,
    optical,
    packet,
)
from patchlight.testbed.errors import BadInput, nearest
from patchlight.testbed.units import parse_rate, parse_time

DRAWS = 1024
"""After so many iterations a node's drawn factors come again."""
_LAWS: Mapping[str, Callable[[np.random.Generator, float], Floats]] = {
    "exponential": lambda rng, spread: 1.0 + rng.exponential(spread, DRAWS),
    "lognormal": lambda rng, spread: rng.lognormal(0.0, spread, DRAWS),
}
_SLOW_LIKE = "5:1.5, all:exponential:0.1 or 5:lognormal:0.3"
_FAILURE_LIKE = "link:12@90s+5min, path:0-7@90s+5min or node:5@1h+10min"


class Slowness(NamedTuple):
    """A node (``None``: each) computes ``factor`` times as long, 1 or more.

    With a ``law`` a further factor is drawn for each iteration: ``exponential`` is 1 plus
    ``spread`` in the mean, ``lognormal`` has the median 1 and ``spread`` as standard deviation
    of its logarithm.
    """

    node: int | None
    factor: float = 1.0
    law: str = ""
    spread: float = 0.0

    @classmethod
    def parse(cls, text: str) -> "Slowness":
        """``"5:1.5"`` or ``"all:exponential:0.1"``; ``BadInput`` for anything else."""
        who, *how = text.split(":")
        try:
            node = None if who == "all" else int(who)
            number = float(how[-1])
        except (ValueError, IndexError) as error:
            raise BadInput(
                f"{text!r} names no slow node: expected {_SLOW_LIKE}"
            ) from error
        if len(how) == 1:
            slow = cls(node, number)
        elif len(how) == 2:
            slow = cls(
                node,
                1.0,
                how[0],
                number,
            )
        else:
            raise BadInput(
                f"{text!r} names no slow node: expected {_SLOW_LIKE}"
            )
        slow.check(text)
        return slow

    def check(self, text: object) -> None:
        """``BadInput`` where the values make no sense."""
        if self.law and self.law not in _LAWS:
            raise BadInput(
                f"{text}: no law {self.law!r}: {nearest(self.law, _LAWS)}"
            )
        if not (1 <= self.factor < math.inf and 0 <= self.spread < math.inf):
            raise BadInput(
                f"{text}: expected a factor of 1 or more, and a spread of 0 or more"
            )


class Failure(NamedTuple):
    """From ``at_s`` until ``until_s`` a link, or a node, does not work.

    ``first`` is the link or the node; of a ``path`` all links fail that a flow from node ``first``
    to node ``last`` goes over.
    """

    what: Literal["link", "node", "path"]
    first: int
    at_s: float
    until_s: float
    last: int = -1

    @classmethod
    def parse(cls, text: str) -> "Failure":
        """``"link:12@90s+5min"``: what fails, when, and for how long; ``BadInput`` if it is not."""
        part, at, when = text.partition("@")
        what, _, which = part.partition(":")
        begins, plus, lasts = when.partition("+")
        first, dash, last = which.partition("-")
        if not (at and plus) or bool(dash) != (what == "path"):
            raise BadInput(
                f"{text!r} names no failure: expected {_FAILURE_LIKE}"
            )
        at_s = parse_time(begins)
        try:
            numbers = int(first), int(last) if dash else -1
        except ValueError as error:
            raise BadInput(
                f"{text!r} names no link or node: expected {_FAILURE_LIKE}"
            ) from error
        for known in ("link", "node", "path"):
            if what == known:
                failure = cls(
                    known,
                    numbers[0],
                    at_s,
                    at_s + parse_time(lasts),
                    numbers[1],
                )
                failure.check(text)
                return failure
        raise BadInput(
            f"{text!r}: {what!r} cannot fail: expected {_FAILURE_LIKE}"
        )

    def check(self, text: object) -> None:
        """``BadInput`` where it has no time."""
        if not 0 <= self.at_s < self.until_s < math.inf:
            raise BadInput(
                f"{text}: a failure begins at 0 s or later, and takes more than 0 s"
            )


class NetworkChange(NamedTuple):
    """At ``at_s`` a node or a link (the other is −1) fails, or works again."""

    at_s: float
    node: int
    link: int
    fails: bool


@dataclass(frozen=True)
class Trouble:
    """Slow nodes and failures. ``seed`` draws the factors: each node has draws of its own."""

    slow: Sequence[Slowness] = ()
    failures: Sequence[Failure] = ()
    seed: int = 0

    @classmethod
    def parse(
        cls,
        slow: Iterable[str],
        failures: Iterable[str],
        seed: int,
    ) -> "Trouble":
        """Each of them from text, like ``"5:1.5"`` and ``"link:12@90s+5min"``."""
        slowness = [Slowness.parse(text) for text in slow]
        return cls(slowness, [Failure.parse(text) for text in failures], seed)

    def __post_init__(self) -> None:
        for slow in self.slow:
            slow.check(slow)
        for failure in self.failures:
            failure.check(failure)

    @property
    def any(self) -> bool:
        """Whether anything goes wrong at all."""
        return bool(self.slow or self.failures)

    @property
    def is_drawn(self) -> bool:
        """Whether iterations take different times."""
        return any(each.law for each in self.slow)

    def checked(self, network: Network) -> "Trouble":
        """Itself; ``BadInput`` if it names nodes or links that the network has not."""
        for each in self.slow:
            if each.node is not None:
                _check(
                    "node",
                    each.node,
                    network.nodes,
                    network,
                )
        for failure in self.failures:
            if failure.what == "link":
                _check(
                    "link",
                    failure.first,
                    len(network.capacity_bps),
                    network,
                )
            else:
                _check(
                    "node",
                    failure.first,
                    network.nodes,
                    network,
                )
        self.changes(network)
        return self

    def factors(self, nodes: Ints) -> Floats:
        """How many times as long each iteration of a job on these nodes computes, in turn.

        It waits for the slowest. One value where all are alike, else ``DRAWS``.
        """
        found = np.ones(DRAWS if self.is_drawn else 1)
        if not self.slow:
            return found
        by_node: dict[int | None, list[Slowness]] = {}
        for each in self.slow:
            by_node.setdefault(each.node, []).append(each)
        named = (
            nodes.tolist()
            if None in by_node
            else [n for n in nodes.tolist() if n in by_node]
        )
        slowest = np.zeros(len(found)) if len(named) == len(nodes) else found
        for node in named:
            rng = np.random.default_rng([self.seed, 0x510, node])
            factors = np.ones(len(found))
            for each in (*by_node.get(None, ()), *by_node.get(node, ())):
                factors *= each.factor
                if each.law:
                    factors *= _LAWS[each.law](rng, each.spread)
            slowest = np.maximum(slowest, factors)
        return slowest

    def changes(self, network: Network) -> list[NetworkChange]:
        """All that fails and works again, in order; failures of one part that overlap are one."""
        spans: dict[tuple[int, int], list[tuple[float, float]]] = {}
        for failure in self.failures:
            for part in _parts(failure, network):
                spans.setdefault(part, []).append(
                    (failure.at_s, failure.until_s)
                )
        found = [
            NetworkChange(at_s, *part, fails)
            for part, each in spans.items()
            for span in _joined(each)
            for at_s, fails in zip(span, (True, False), strict=True)
        ]
        return sorted(found)


CALM = Trouble()
"""Nothing goes wrong."""


class Disturbances(NamedTuple):
    """Failures and slow nodes as arrays.

    Iteration i of job j computes ``factors[first_factor[j] + i]`` times as long; behind its last
    factor the first comes again. Event e is at ``at_s[e]``: ``links[e]`` has the capacity
    ``capacity_bps[e]`` from then on (−1: no link), and of ``jobs[first_job[e]:first_job[e + 1]]``
    a node ``fails[e]`` or works again. A job goes back to a multiple of ``checkpoints``
    iterations, and begins ``restarts_s`` after its last node works again.
    """

    factors: Floats
    first_factor: Ints
    checkpoints: Ints
    restarts_s: Floats
    at_s: Floats
    links: Ints
    capacity_bps: Floats
    fails: Ints
    first_job: Ints
    jobs: Ints


def undisturbed(jobs: int) -> Disturbances:
    """Nothing goes wrong for so many jobs."""
    none = np.zeros(0, np.int64)
    return Disturbances(
        factors=np.ones(jobs),
        first_factor=np.arange(jobs + 1),
        checkpoints=np.ones(jobs, np.int64),
        restarts_s=np.zeros(jobs),
        at_s=np.zeros(0),
        links=none,
        capacity_bps=np.zeros(0),
        fails=none,
        first_job=np.zeros(1, np.int64),
        jobs=none,
    )


def _check(
    kind: str,
    number: int,
    count: int,
    network: Network,
) -> None:
    if not 0 <= number < count:
        raise BadInput(
            f"{network.spec} has no {kind} {number}: its {kind}s are 0 to {count - 1}"
        )


def _parts(failure: Failure, network: Network) -> Iterator[tuple[int, int]]:
    """The failing part, as (node, −1) or (−1, link)."""
    if failure.what == "node":
        yield failure.first, -1
    elif failure.what == "link":
        yield -1, failure.first
    else:
        ends = np.array([failure.first]), np.array([failure.last])
        paths = network.paths(
            *ends, np.zeros(1, np.int64), np.arange(network.nodes)
        )
        yield from (
            (-1, int(link)) for link in np.unique(paths[paths != NO_LINK])
        )


def _joined(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Spans of time, those that touch as one."""
    found: list[tuple[float, float]] = []
    for at_s, until_s in sorted(spans):
        if found and at_s <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], until_s)
        else:
            found.append((at_s, until_s))
    return found


NETWORKS: Mapping[str, Callable[..., Network]] = {
    "ideal": packet.ideal,
    "fat-tree": packet.fat_tree,
    "leaf-spine": packet.leaf_spine,
    "rail-only": packet.rail_only,
    "torus": direct.torus,
    "topoopt": direct.topoopt,
    "tor-ocs": optical.tor_ocs,
    "sip-ring": optical.sip_ring,
    "sip-ocs": optical.sip_ocs,
    "ramp": optical.ramp,
    "oddl": optical.oddl,
    "rotornet": optical.rotornet,
}
"""The function that makes each kind of network; its parameters are those of a spec."""

_MTU = 1500


def network_of(spec: str) -> Network:
    """The network that a spec names.

    ``BadInput`` says which names, parameters and values there are. ``two-tor-ocs`` is the built-in
    lab ``ofc2022``; ``lab:NAME`` and the name of a lab file are labs, ``astra:FILE`` is a network
    file of ASTRA-sim. All have ``mtu`` (bytes; of
    labs 1500, of others 0, without headers and acknowledgements) and ``frame`` (bytes around each
    packet).
    """
    name, _, rest = spec.strip().partition(":")
    parts = [part for part in rest.split(",") if part]
    if name == "two-tor-ocs":
        name = "lab"
        parts = ["ofc2022", *parts]
    elif name.split(",")[0].endswith((".yaml", ".yml")):
        name = "lab"
        parts = spec.split(",")
    mtu = 0
    make = NETWORKS.get(name)
    if name in ("lab", "astra") and parts:
        made = direct.lab if name == "lab" else direct.astra
        make = partial(made, file=parts[0])
        parts = parts[1:]
        mtu = _MTU * (name == "lab")
    if make is None:
        known = [
            *NETWORKS,
            "two-tor-ocs",
            "lab",
            "astra",
        ]
        raise BadInput(
            f"no network {name!r}: {nearest(name, known)}",
            hint="like fat-tree:k=16,taper=2, or lab:FILE, or astra:FILE",
        )
    signature = inspect.signature(make).parameters.values()
    own = {
        each.name: each.default
        for each in signature
        if each.name not in ("spec", "file")
    }
    takes: dict[str, Any] = {**own, "mtu": mtu, "frame": ETHERNET_BYTES}
    given: dict[str, Any] = {}
    for part in parts:
        key, equals, text = (each.strip() for each in part.partition("="))
        if key not in takes or not equals:
            said = ", ".join(
                f"{key}={_shown(default)}" for key, default in takes.items()
            )
            raise BadInput(
                f"{spec}: {part!r} is not a parameter of {name}: it has {said}"
            )
        if key in given:
            raise BadInput(f"{spec}: {key} appears twice")
        given[key] = _value(
            spec,
            key,
            text,
            takes[key],
        )
    mtu = given.pop("mtu", mtu)
    frame_bytes = given.pop("frame", ETHERNET_BYTES)
    network = make(spec, **given)
    if not mtu:
        return network
    try:
        return replace(network, framing=tcp(mtu, frame_bytes))
    except BadInput as error:
        raise BadInput(f"{spec}: {error.message}") from error


def _shown(default: object) -> str:
    return (
        "x".join(map(str, default))
        if isinstance(default, tuple)
        else str(default)
    )


def _value(
    spec: str,
    key: str,
    text: str,
    default: object,
) -> object:
    """A parameter's value, of the kind that its default is."""
    try:
        if key.endswith("rate"):
            return float(parse_rate(text))
        if key in ("latency", "switching", "slot", "control", "setup"):
            return parse_time(text)
        if isinstance(default, str):
            return text
        if isinstance(default, tuple):
            return tuple(_whole(each) for each in text.split("x"))
        if isinstance(default, int):
            return 0 if key == "mtu" and text == "0" else _whole(text)
        number = float(text)
    except (ValueError, BadInput) as error:
        raise BadInput(
            f"{spec}: {key}={text}: {_why(error, default)}"
        ) from error
    if not (math.isfinite(number) and number > 0):
        raise BadInput(f"{spec}: {key}={text}: expected a number above 0")
    return number


def _whole(text: str) -> int:
    number = int(text)
    if not 1 <= number <= 1 << 20:
        raise ValueError(text)
    return number


def _why(error: Exception, default: object) -> str:
    if isinstance(error, BadInput):
        return error.message
    if isinstance(default, tuple):
        return "expected whole numbers joined by x, like 4x4x4"
    return (
        "expected a whole number above 0"
        if isinstance(default, int)
        else "expected a number"
    )
