"""What a simulation is told besides cluster, jobs and policies."""

import math
from dataclasses import asdict, dataclass

from patchlight.controller.policies.cheapest import MINIMUM_GAIN_S
from patchlight.emulation.simulator.outages import Outages
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.queueing import Discipline


@dataclass(frozen=True, slots=True)
class Settings(Discipline):
    """How the queue is run, and what becomes of its jobs.

    Who was preempted or lost its GPUs needs ``restart_s`` to begin again; who lost them, also
    does again what came after its last checkpoint, made every ``checkpoint_s`` of its running.

    With ``defragment_s`` light moves under running jobs where that gains more than it costs
    (``patchlight.controller.policies.cheapest``): when a job has ended, and every so many
    seconds; infinity is only when one has ended. Less than ``minimum_gain_s`` over all jobs is left
    alone. On clusters with circuits.

    ``known``: how long jobs take is known to the policies. ``seed`` draws outages.
    """

    restart_s: float = 60.0
    checkpoint_s: float = 3600.0
    defragment_s: float | None = None
    minimum_gain_s: float = MINIMUM_GAIN_S
    known: bool = True
    outages: Outages | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        Discipline.__post_init__(self)
        for name, least in (("restart_s", 0.0), ("checkpoint_s", 1e-3), ("minimum_gain_s", 0.0)):
            value = getattr(self, name)
            if not value >= least or (math.isinf(value) and name != "checkpoint_s"):
                raise BadInput(f"{name} cannot be {value} s: expected at least {least:g} s")
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
        found["users"] = dict(found.pop("users"))
        found["outages"] = found.pop("outages")
        return {k: None if v == math.inf else v for k, v in found.items()}
