"""Guards policies: a fault is reported, and the default policy decides instead.

A fault is an exception, an invalid answer, or a timeout. In the lab a user's policy runs in its own
process (``policy_process``), a built-in one in a thread (``alone``), which is not called again
until it has finished. In the simulator late answers count: results must not depend on the machine's
speed.
"""

import itertools
import math
import operator
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from patchlight.controller.policies import contract
from patchlight.controller.policies.contract import (
    METHODS,
    ClusterView,
    JobView,
    PolicyKind,
)
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.portmap import PortMap

_SHOWN = 80

DEADLINE_S = 1.0


class PolicyFailed(PatchlightError):
    """A policy's answer is missing or invalid; the message is used in ``Fault.reason``."""


def _shown(answer: object) -> str:
    try:
        text = repr(answer)
    except Exception:
        text = f"a {type(answer).__name__}"
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def _whole(answer: Any, what: str) -> int:
    """Accepts NumPy's whole numbers, but no bool."""
    if not isinstance(answer, bool):
        try:
            return int(operator.index(answer))
        except TypeError:
            pass
    raise PolicyFailed(f"it answered {_shown(answer)}: expected {what}")


def _legal(
    answer: Any,
    cluster: ClusterView,
    job: JobView,
    legal: tuple[int, ...],
) -> int | None:
    waits = cluster.shape.ramp is None
    if answer is None and waits:
        return None
    what = f"one of the legal degrees {', '.join(map(str, legal))}{', or None' * waits}"
    degree = _whole(answer, what)
    if degree not in legal:
        raise PolicyFailed(f"it answered {_shown(degree)}: expected {what}")
    if isinstance(answer, contract.PlacedDegree):
        if answer.gpus not in cluster.places(job, degree):
            raise PolicyFailed(
                f"it answered degree {degree} for a block that is not free"
            )
        return answer
    return degree


def _placed(
    answer: Any,
    cluster: ClusterView,
    job: JobView,
    workers: int,
) -> list[int] | None:
    if answer is None:
        return None
    what = f"{workers} different free GPUs, or None"
    if isinstance(answer, str) or not hasattr(answer, "__iter__"):
        raise PolicyFailed(f"it answered {_shown(answer)}: expected {what}")
    # Reading one more than wanted is enough: a generator may never end.
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
            name = cluster.shape.gpus[gpu].name
            twice = gpus.count(gpu) > 1
            why = (
                "it appears twice" if twice else "it is not free for this job"
            )
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
    raise PolicyFailed(
        f"it answered {_shown(answer)}: expected a finite number"
    )


def _maps(
    answer: Any,
    cluster: ClusterView,
    _groups: object,
) -> dict[str, PortMap]:
    if not isinstance(answer, Mapping):
        raise PolicyFailed(
            f"it answered {_shown(answer)}: expected a PortMap by OCS"
        )
    found: dict[str, PortMap] = dict(answer)
    for ocs, wanted in found.items():
        if ocs not in cluster.circuits:
            known = ", ".join(cluster.circuits) or "none"
            raise PolicyFailed(
                f"it answered a map for {_shown(ocs)}: the circuit switches are {known}"
            )
        if not isinstance(wanted, PortMap):
            raise PolicyFailed(
                f"it answered {_shown(wanted)} for {ocs}: expected a PortMap"
            )
        if cluster.lab is not None:
            try:
                wanted.check(cluster.lab.circuit_switch(ocs).ports)
            except PatchlightError as error:
                raise PolicyFailed(
                    f"it answered an invalid map for {ocs}: {error}"
                ) from error
        change = cluster.circuits[ocs].diff(wanted)
        made = {
            port
            for circuit in change.makes
            for port in (circuit.inp, circuit.out)
        }
        barred = cluster.barred.get(ocs, frozenset())
        touched = (
            change.ports & (barred - cluster.failed.get(ocs, frozenset()))
            | made & barred
        )
        if touched:
            ports = ", ".join(map(str, sorted(touched)))
            raise PolicyFailed(
                f"it answered a map for {ocs} that changes locked ports: {ports}"
            )
    return found


def _degrees(
    answer: Any,
    cluster: ClusterView,
    jobs: Sequence[contract.ElasticJob],
    _queue: object,
) -> dict[str, int]:
    if not isinstance(answer, Mapping):
        raise PolicyFailed(
            f"it answered {_shown(answer)}: expected a degree by job"
        )
    known = {job.name: job for job in jobs}
    found: dict[str, int] = {}
    for name, wanted in dict(answer).items():
        if name not in known:
            listed = ", ".join(known) or "none"
            raise PolicyFailed(
                f"it answered a degree for {_shown(name)}: the jobs are {listed}"
            )
        legal = known[name].iteration_s
        what = f"one of the legal degrees {', '.join(map(str, legal))}"
        found[name] = _whole(wanted, what)
        if found[name] not in legal:
            raise PolicyFailed(
                f"it answered {_shown(wanted)} for {name}: expected {what}"
            )
    more = sum(
        max(0, degree - known[name].degree) for name, degree in found.items()
    )
    if more > (free := cluster.free.bit_count()):
        raise PolicyFailed(
            f"it grows jobs by {more} GPUs in total, but only {free} are free"
        )
    return {
        name: degree
        for name, degree in found.items()
        if degree != known[name].degree
    }


CHECKS: Mapping[PolicyKind, Callable[..., Any]] = {
    "partition": _legal,
    "placement": _placed,
    "order": _number,
    "topology": _maps,
    "elasticity": _degrees,
}
"""A check of an answer: called with it and with the policy's input."""


class Fault(NamedTuple):
    """A fault of a policy: its name, the affected jobs, and the reason."""

    kind: PolicyKind
    policy: str
    jobs: tuple[str, ...]
    reason: str
    overruled: bool = True

    def __str__(self) -> str:
        about = f" on {', '.join(self.jobs)}" if self.jobs else ""
        then = "; the default policy decided" if self.overruled else ""
        return f"{self.kind} policy {self.policy}{about}: {self.reason}{then}"


class PolicyElsewhere:
    """A policy outside this process."""

    def ask_why(self, arguments: tuple[Any, ...]) -> tuple[Any, Any]:
        """Its checked answer (``CHECKS``), and its explanation; or ``PolicyFailed``."""
        raise NotImplementedError


class _Alone:
    """Calls a policy in a thread; a late one keeps the thread, and is not called meanwhile."""

    def __init__(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self._pending: threading.Event | None = None
        self._lock = threading.Lock()

    def ask(
        self, method: Callable[..., Any], arguments: tuple[Any, ...]
    ) -> Any:
        with self._lock:
            if self._pending is not None and not self._pending.is_set():
                raise PolicyFailed("it has not answered the previous call yet")
            self._pending = done = threading.Event()
        found: list[Any] = []
        raised: list[BaseException] = []

        def work() -> None:
            try:
                found.append(method(*arguments))
            # Also SystemExit and the like, which would end the thread silently.
            except BaseException as error:
                raised.append(error)
            finally:
                done.set()

        # A daemon thread does not delay the end of the process.
        threading.Thread(
            target=work,
            name="policy",
            daemon=True,
        ).start()
        if not done.wait(self._deadline_s):
            raise PolicyFailed(f"no answer within {self._deadline_s:g} s")
        if raised:
            raise raised[0]
        return found[0]


class _Guard:
    kind: PolicyKind

    def __init__(
        self,
        policy: contract.Policy | PolicyElsewhere,
        default: contract.Policy,
        name: str,
        report: Callable[[Fault], None],
        deadline_s: float = DEADLINE_S,
        *,
        alone: bool = False,
        refusals: tuple[type[PatchlightError], ...] = (),
    ) -> None:
        """``report`` is called for each fault, in the caller's thread.

        ``refusals`` are errors that count as answers: they are raised to the caller.
        """
        self.policy = policy
        self.default = default
        self.name = name
        self._report = report
        self._deadline_s = deadline_s
        self._alone = _Alone(deadline_s) if alone else None
        self._elsewhere = (
            policy if isinstance(policy, PolicyElsewhere) else None
        )
        self._refusals = refusals
        self._told = threading.local()

    @property
    def explanation(self) -> Any:
        """The explanation of this thread's last answer, as JSON, or ``None``."""
        return getattr(self._told, "explanation", None)

    @property
    def fault(self) -> str:
        """Why the default gave this thread's last answer; empty if it did not."""
        return getattr(self._told, "fault", "")

    def _decide(
        self, jobs: tuple[str, ...], arguments: tuple[Any, ...]
    ) -> Any:
        name = METHODS[self.kind]
        self._told.explanation = None
        self._told.fault = ""
        try:
            if self._elsewhere is not None:
                answer, self._told.explanation = self._elsewhere.ask_why(
                    arguments
                )
                return answer
            ask = partial(answer_of, self.policy, self.kind)
            if self._alone is not None:
                return self._alone.ask(ask, arguments)
            began = time.perf_counter()
            answer = ask(*arguments)
            took_s = time.perf_counter() - began
            if took_s > self._deadline_s:
                late = (
                    f"it took {took_s:.1f} s, more than {self._deadline_s:g} s"
                )
                self._report(
                    Fault(
                        self.kind,
                        self.name,
                        jobs,
                        late,
                        overruled=False,
                    )
                )
            return answer
        except self._refusals:
            raise
        except PolicyFailed as error:
            reason = str(error)
        except KeyboardInterrupt:
            if self._alone is None:
                raise
            reason = "it raised KeyboardInterrupt"
        except (
            BaseException
        ) as error:  # SystemExit and the like must not end anything else.
            reason = f"it raised {raised(error)}"
        self._told.fault = reason
        self._report(
            Fault(
                self.kind,
                self.name,
                jobs,
                reason,
            )
        )
        return getattr(self.default, name)(*arguments)


def answer_of(
    policy: Any,
    kind: PolicyKind,
    *arguments: Any,
) -> Any:
    """A policy's checked answer, or ``PolicyFailed``.

    The check is part of the call: an answer can be a generator, for example.
    """
    return CHECKS[kind](getattr(policy, METHODS[kind])(*arguments), *arguments)


def raised(error: BaseException) -> str:
    """The error in a line, with the position in the policy's file if known."""
    trace = error.__traceback__
    place = ""
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename != __file__:
            place = f" ({code.co_filename}:{trace.tb_lineno})"
        trace = trace.tb_next
    try:
        said = str(error).splitlines()
    except Exception:
        said = []
    return type(error).__name__ + (f": {said[0]}" if said else "") + place


class GuardedPartition(_Guard):
    """A ``PartitionPolicy`` that always returns a legal degree, or ``None``."""

    kind: PolicyKind = "partition"

    def degree(
        self,
        cluster: ClusterView,
        job: JobView,
        legal: tuple[int, ...],
    ) -> int | None:
        degree: int | None = self._decide((job.name,), (cluster, job, legal))
        return degree


class GuardedPlacement(_Guard):
    """A ``PlacementPolicy`` that always returns free GPUs, or ``None``."""

    kind: PolicyKind = "placement"

    def place(
        self,
        cluster: ClusterView,
        job: JobView,
        workers: int,
    ) -> Sequence[int] | None:
        gpus: list[int] | None = self._decide(
            (job.name,), (cluster, job, workers)
        )
        return gpus


class GuardedOrder(_Guard):
    """An ``OrderPolicy`` that always returns a number."""

    kind: PolicyKind = "order"

    def priority(
        self,
        cluster: ClusterView,
        job: JobView,
        progress: contract.Progress,
    ) -> float:
        number: float = self._decide((job.name,), (cluster, job, progress))
        return number


class GuardedTopology(_Guard):
    """A ``TopologyPolicy`` that always returns maps that the lab's OCSs can have."""

    kind: PolicyKind = "topology"

    def circuits(
        self,
        cluster: ClusterView,
        groups: contract.Groups,
        jobs: tuple[str, ...] = (),
    ) -> Mapping[str, PortMap]:
        """``jobs`` are those for which it is called: faults are reported for them."""
        maps: dict[str, PortMap] = self._decide(jobs, (cluster, groups))
        return maps


class GuardedElasticity(_Guard):
    """An ``ElasticityPolicy`` that always returns legal degrees for which there is room."""

    kind: PolicyKind = "elasticity"

    def resize(
        self,
        cluster: ClusterView,
        jobs: Sequence[contract.ElasticJob],
        queue: Sequence[contract.QueuedJob],
    ) -> Mapping[str, int]:
        names = tuple(job.name for job in jobs)
        degrees: dict[str, int] = self._decide(names, (cluster, jobs, queue))
        return degrees
