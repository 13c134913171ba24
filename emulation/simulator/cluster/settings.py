"""What a simulation is told besides cluster, jobs and policies."""

import math
from dataclasses import asdict, dataclass

from patchlight.emulation.simulator.outages import Outages
from patchlight.testbed.errors import BadInput


@dataclass(frozen=True, slots=True)
class Settings:
    """How the queue is run.

    Without ``backfill`` the next job in order holds up all behind it. With it, jobs behind may
    start if they will have ended when the first one can start, or leave it enough GPUs (EASY;
    Mu'alem and Feitelson, TPDS 2001); ``backfill_depth`` of them are looked at.

    With ``preempt`` a waiting job takes the GPUs of jobs that are behind it in order and have
    run for ``quantum_s``; it is looked again every ``quantum_s`` while jobs wait. Who was
    preempted or lost its GPUs needs ``restart_s`` to begin again; who lost them, also does
    again what came after its last checkpoint, made every ``checkpoint_s`` of its running.

    With ``defragment_s`` light moves under running jobs where that gains more than it costs
    (``patchlight.controller.policies.defragment``): when a job has ended, and every so many
    seconds; infinity is only when one has ended. On clusters with circuits.

    ``known``: how long jobs take is known to the policies. ``seed`` draws outages.
    """

    backfill: bool = False
    backfill_depth: int = 100
    preempt: bool = False
    quantum_s: float = 360.0
    restart_s: float = 60.0
    checkpoint_s: float = 3600.0
    defragment_s: float | None = None
    known: bool = True
    outages: Outages | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("quantum_s", 1e-3), ("restart_s", 0.0), ("checkpoint_s", 1e-3)):
            value = getattr(self, name)
            if not value >= least or (math.isinf(value) and name != "checkpoint_s"):
                raise BadInput(f"{name} cannot be {value} s: expected at least {least:g} s")
        if self.backfill_depth < 1:
            raise BadInput(
                f"backfill cannot look at {self.backfill_depth} jobs: expected 1 or more"
            )
        if self.defragment_s is not None and not self.defragment_s > 0:
            raise BadInput(
                f"light cannot be looked at every {self.defragment_s} s: expected more than 0"
            )
        if self.backfill and not self.known:
            raise BadInput("backfilling needs to know how long jobs take")

    @property
    def words(self) -> dict[str, object]:
        """As JSON, infinity as ``None``."""
        found = asdict(self)
        found["outages"] = found.pop("outages")
        return {k: None if v == math.inf else v for k, v in found.items()}
