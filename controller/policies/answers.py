"""What makes sure that a policy's answer is one that it may give."""

import itertools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from patchlight.controller.policies.contract import (
    ClusterView,
    ElasticJob,
    JobView,
    PlacedDegree,
    PolicyKind,
)
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.portmap import PortMap

_SHOWN = 80


class PolicyFailed(PatchlightError):
    """A policy gave no answer, or one that is none; the message says how, for ``Fault.reason``."""


def _shown(answer: object) -> str:
    try:
        text = repr(answer)
    except Exception:
        text = f"a {type(answer).__name__}"
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def _whole(answer: Any, what: str) -> int:
    """Also NumPy's whole numbers, never a bool."""
    if not isinstance(answer, bool):
        try:
            return int(operator.index(answer))
        except TypeError:
            pass
    raise PolicyFailed(f"it answered {_shown(answer)}: expected {what}")


def _legal(answer: Any, cluster: ClusterView, job: JobView, legal: tuple[int, ...]) -> int | None:
    waits = cluster.shape.ramp is None
    if answer is None and waits:
        return None
    what = f"one of the legal degrees {', '.join(map(str, legal))}{', or None' * waits}"
    degree = _whole(answer, what)
    if degree not in legal:
        raise PolicyFailed(f"it answered {_shown(degree)}: expected {what}")
    if isinstance(answer, PlacedDegree):
        if answer.gpus not in cluster.places(job, degree):
            raise PolicyFailed(
                f"it answered degree {degree} on a block that is none of the free ones for it"
            )
        return answer
    return degree


def _placed(answer: Any, cluster: ClusterView, job: JobView, workers: int) -> list[int] | None:
    if answer is None:
        return None
    what = f"{workers} different free GPUs, or None"
    if isinstance(answer, str) or not hasattr(answer, "__iter__"):
        raise PolicyFailed(f"it answered {_shown(answer)}: expected {what}")
    # One more than wanted is enough to know: a generator may never end.
    gpus = [_whole(gpu, what) for gpu in itertools.islice(answer, workers + 1)]
    if len(gpus) != workers:
        many = len(gpus) if len(gpus) < workers else f"more than {workers}"
        raise PolicyFailed(f"it answered {many} GPUs: expected {what}")
    left = cluster.free_for(job)
    for gpu in gpus:
        if not 0 <= gpu < len(cluster.shape.gpus):
            raise PolicyFailed(
                f"it answered GPU {_shown(gpu)}: there are 0 to {len(cluster.shape.gpus) - 1}"
            )
        if not left >> gpu & 1:
            name, twice = cluster.shape.gpus[gpu].name, gpus.count(gpu) > 1
            why = "it is there twice" if twice else "it is not free for this job"
            raise PolicyFailed(f"it answered GPU {gpu} ({name}): {why}")
        left ^= 1 << gpu
    return gpus


def _number(answer: Any, *_asked: object) -> float:
    if not isinstance(answer, bool | str | bytes):
        try:
            if math.isfinite(found := float(answer)):
                return found
        except (TypeError, ValueError, OverflowError):
            pass
    raise PolicyFailed(f"it answered {_shown(answer)}: expected a finite number")


def _maps(answer: Any, cluster: ClusterView, _groups: object) -> dict[str, PortMap]:
    if not isinstance(answer, Mapping):
        raise PolicyFailed(f"it answered {_shown(answer)}: expected a PortMap by OCS")
    found: dict[str, PortMap] = dict(answer)
    for ocs, wanted in found.items():
        if ocs not in cluster.circuits:
            known = ", ".join(cluster.circuits) or "none"
            raise PolicyFailed(
                f"it answered a map for {_shown(ocs)}: the circuit switches are {known}"
            )
        if not isinstance(wanted, PortMap):
            raise PolicyFailed(f"it answered {_shown(wanted)} for {ocs}: expected a PortMap")
        if cluster.lab is not None:
            try:
                wanted.check(cluster.lab.circuit_switch(ocs).ports)
            except PatchlightError as error:
                raise PolicyFailed(
                    f"it answered a map for {ocs} that cannot be: {error}"
                ) from error
        change = cluster.circuits[ocs].diff(wanted)
        made = {port for circuit in change.makes for port in (circuit.inp, circuit.out)}
        barred = cluster.barred.get(ocs, frozenset())
        touched = change.ports & (barred - cluster.failed.get(ocs, frozenset())) | made & barred
        if touched:
            ports = ", ".join(map(str, sorted(touched)))
            raise PolicyFailed(
                f"it answered a map for {ocs} that changes ports not to be touched: {ports}"
            )
    return found


def _degrees(
    answer: Any, cluster: ClusterView, jobs: Sequence[ElasticJob], _queue: object
) -> dict[str, int]:
    if not isinstance(answer, Mapping):
        raise PolicyFailed(f"it answered {_shown(answer)}: expected a degree by job")
    known = {job.name: job for job in jobs}
    found: dict[str, int] = {}
    for name, wanted in dict(answer).items():
        if name not in known:
            listed = ", ".join(known) or "none"
            raise PolicyFailed(f"it answered a degree for {_shown(name)}: the jobs are {listed}")
        legal = known[name].iteration_s
        what = f"one of the legal degrees {', '.join(map(str, legal))}"
        found[name] = _whole(wanted, what)
        if found[name] not in legal:
            raise PolicyFailed(f"it answered {_shown(wanted)} for {name}: expected {what}")
    more = sum(max(0, degree - known[name].degree) for name, degree in found.items())
    if more > (free := cluster.free.bit_count()):
        raise PolicyFailed(f"it has jobs grow by {more} GPUs in all: {free} are free")
    return {name: degree for name, degree in found.items() if degree != known[name].degree}


CHECKS: Mapping[PolicyKind, Callable[..., Any]] = {
    "partition": _legal,
    "placement": _placed,
    "order": _number,
    "topology": _maps,
    "elasticity": _degrees,
}
"""What makes sure of an answer: called with it and with what the policy was asked."""
