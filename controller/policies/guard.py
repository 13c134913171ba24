"""Policies that may fail: whatever they do, there is a decision.

A guarded policy that raises, answers nonsense or takes too long is reported, and the default
decides in its place. In the lab a policy of a user is asked in a process of its own
(``policy_process``), one of ours in a thread (``alone``): one that does not come back in time is
left alone, and not asked again until it does. In the simulator it is asked directly, which costs
next to nothing; there one that is late is reported, but its answer counts, as a result must not
hang on the machine's speed.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any, Generic, NamedTuple, TypeVar

from patchlight.controller.policies.answers import CHECKS, PolicyFailed
from patchlight.controller.policies.contract import (
    METHODS,
    ClusterView,
    ElasticityPolicy,
    ElasticJob,
    JobView,
    OrderPolicy,
    PartitionPolicy,
    PlacementPolicy,
    PolicyKind,
    Progress,
    QueuedJob,
    TopologyPolicy,
)
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.portmap import PortMap

DEADLINE_S = 1.0

P = TypeVar("P")


class Fault(NamedTuple):
    """A policy failed: which one, on which jobs (if on any), and how."""

    kind: PolicyKind
    policy: str
    jobs: tuple[str, ...]
    reason: str
    overruled: bool = True

    def __str__(self) -> str:
        about = f" on {', '.join(self.jobs)}" if self.jobs else ""
        then = "; the default decided" if self.overruled else ""
        return f"{self.kind} policy {self.policy}{about}: {self.reason}{then}"


class Elsewhere(ABC):
    """A policy that is not in this process."""

    @abstractmethod
    def ask_why(self, arguments: tuple[Any, ...]) -> tuple[Any, Any]:
        """Its checked answer (``CHECKS``), and what it tells of it; or ``PolicyFailed``."""

    def ask(self, arguments: tuple[Any, ...]) -> Any:
        """Its checked answer, or ``PolicyFailed``."""
        return self.ask_why(arguments)[0]


class _Alone:
    """Asks in a thread; one that does not answer in time keeps it, and nobody else is asked."""

    def __init__(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self._pending: threading.Event | None = None
        self._lock = threading.Lock()

    def ask(self, method: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        with self._lock:
            if self._pending is not None and not self._pending.is_set():
                raise PolicyFailed("it still has not answered an earlier question")
            self._pending = done = threading.Event()
        found: list[Any] = []
        raised: list[BaseException] = []

        def work() -> None:
            try:
                found.append(method(*arguments))
            # SystemExit and the like too: in a thread they would end nothing and say nothing.
            except BaseException as error:
                raised.append(error)
            finally:
                done.set()

        # A daemon: a process that ends does not wait for it.
        threading.Thread(target=work, name="policy", daemon=True).start()
        if not done.wait(self._deadline_s):
            raise PolicyFailed(f"no answer within {self._deadline_s:g} s")
        if raised:
            raise raised[0]
        return found[0]


class _Guard(Generic[P]):
    kind: PolicyKind

    def __init__(
        self,
        policy: P | Elsewhere,
        default: P,
        name: str,
        report: Callable[[Fault], None],
        deadline_s: float = DEADLINE_S,
        *,
        alone: bool = False,
        refusals: tuple[type[PatchlightError], ...] = (),
    ) -> None:
        """``report`` hears of each fault, in the thread of whoever asked.

        ``refusals`` are errors that count as answers: they are raised to whoever asked.
        """
        self.policy, self.default, self.name = policy, default, name
        self._report, self._deadline_s = report, deadline_s
        self._alone = _Alone(deadline_s) if alone else None
        self._elsewhere = policy if isinstance(policy, Elsewhere) else None
        self._refusals = refusals
        self._told = threading.local()

    @property
    def explanation(self) -> Any:
        """What the policy told of the last answer that this thread had, as JSON, or ``None``."""
        return getattr(self._told, "explanation", None)

    def _decide(self, jobs: tuple[str, ...], arguments: tuple[Any, ...]) -> Any:
        """The checked answer about ``jobs``; after a fault, which is reported, the default's."""
        name = METHODS[self.kind]
        self._told.explanation = None
        try:
            if self._elsewhere is not None:
                answer, self._told.explanation = self._elsewhere.ask_why(arguments)
                return answer
            ask = partial(answer_of, self.policy, self.kind)
            if self._alone is not None:
                return self._alone.ask(ask, arguments)
            began = perf_counter()
            answer = ask(*arguments)
            took_s = perf_counter() - began
            if took_s > self._deadline_s:
                late = f"it took {took_s:.1f} s, more than {self._deadline_s:g} s"
                self._report(Fault(self.kind, self.name, jobs, late, overruled=False))
            return answer
        except self._refusals:
            raise
        except PolicyFailed as error:
            reason = str(error)
        except KeyboardInterrupt:
            if self._alone is None:
                raise
            reason = "it raised KeyboardInterrupt"
        except BaseException as error:  # SystemExit and the like: nothing of it may end others.
            reason = f"it raised {raised(error)}"
        self._report(Fault(self.kind, self.name, jobs, reason))
        return getattr(self.default, name)(*arguments)


def answer_of(policy: Any, kind: PolicyKind, *arguments: Any) -> Any:
    """What a policy answers, checked; ``PolicyFailed`` if that is no answer.

    The check is part of asking: an answer can be a generator, or what else is asked more.
    """
    return CHECKS[kind](getattr(policy, METHODS[kind])(*arguments), *arguments)


def raised(error: BaseException) -> str:
    """The error in a line, with the place in the policy's own file where there is one."""
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


class GuardedPartition(_Guard[PartitionPolicy]):
    """A ``PartitionPolicy`` that always answers with a legal degree, or ``None``."""

    kind: PolicyKind = "partition"

    def degree(self, cluster: ClusterView, job: JobView, legal: tuple[int, ...]) -> int | None:
        degree: int | None = self._decide((job.name,), (cluster, job, legal))
        return degree


class GuardedPlacement(_Guard[PlacementPolicy]):
    """A ``PlacementPolicy`` that always answers with free GPUs, or ``None``."""

    kind: PolicyKind = "placement"

    def place(self, cluster: ClusterView, job: JobView, workers: int) -> Sequence[int] | None:
        gpus: list[int] | None = self._decide((job.name,), (cluster, job, workers))
        return gpus


class GuardedOrder(_Guard[OrderPolicy]):
    """An ``OrderPolicy`` that always answers with a number."""

    kind: PolicyKind = "order"

    def priority(self, cluster: ClusterView, job: JobView, progress: Progress) -> float:
        number: float = self._decide((job.name,), (cluster, job, progress))
        return number


class GuardedTopology(_Guard[TopologyPolicy]):
    """A ``TopologyPolicy`` that always answers with maps which the lab's OCSes can have."""

    kind: PolicyKind = "topology"

    def circuits(
        self, cluster: ClusterView, groups: Sequence[Sequence[int]], jobs: tuple[str, ...] = ()
    ) -> Mapping[str, PortMap]:
        """``jobs`` are those on whose behalf it is asked: faults are reported as on them."""
        maps: dict[str, PortMap] = self._decide(jobs, (cluster, groups))
        return maps


class GuardedElasticity(_Guard[ElasticityPolicy]):
    """An ``ElasticityPolicy`` that always answers with legal degrees for which there is room."""

    kind: PolicyKind = "elasticity"

    def resize(
        self, cluster: ClusterView, jobs: Sequence[ElasticJob], queue: Sequence[QueuedJob]
    ) -> Mapping[str, int]:
        names = tuple(job.name for job in jobs)
        degrees: dict[str, int] = self._decide(names, (cluster, jobs, queue))
        return degrees
