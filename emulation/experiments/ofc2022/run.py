"""The whole experiment: a lab comes up, the cases run on it, it goes down, a report is written."""

import datetime
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from patchlight.client.client import ControllerClient
from patchlight.emulation.experiments.ofc2022.analysis import training_window
from patchlight.emulation.experiments.ofc2022.cases import ExperimentClient, Tell, run_case
from patchlight.emulation.experiments.ofc2022.disturbance import Disturbance
from patchlight.emulation.experiments.ofc2022.measurements import CaseRun, Wiring
from patchlight.emulation.experiments.ofc2022.report import write_report
from patchlight.emulation.experiments.ofc2022.results import Setting, result_of
from patchlight.emulation.experiments.ofc2022.scenario import CASES, jobs_of
from patchlight.emulation.lab.emulated_lab import EmulatedLab
from patchlight.emulation.machine import cpu_ticks
from patchlight.emulation.provenance import provenance
from patchlight.testbed.errors import BadInput
from patchlight.testbed.jobs import Trainer
from patchlight.testbed.labfile.reader import find_lab, load_lab
from patchlight.testbed.linux import docker_engine

# What can be run, in the order it is: each case static and optical, then one of them live.
PARTS = (*CASES, "live")
LIVE_CASE = REAL_CASE = "a"
_UP_S = 30.0
_LOOK_S = 1.0  # how long one looks at how busy the machine is before


@dataclass(frozen=True, slots=True)
class ExperimentOptions:
    """What the user wants. ``lab`` is a file or a built-in lab's name.

    ``name`` calls the emulated lab otherwise than its file does; ``replace`` removes a lab of
    that name first; ``workers`` is ``docker``, ``process``, or ``auto``: containers if there is
    an engine to run them. The second job of a case computes ``mismatch_percent`` longer. With the
    trainer ``torch`` case (a) is also run with a real model.
    """

    lab: str
    iterations: int
    workers: str
    scale: float
    output: Path
    parts: Sequence[str] = PARTS
    trainer: Trainer = "synthetic"
    engine: str | None = None
    name: str | None = None
    replace: bool = False
    mismatch_percent: float = 0.0


@dataclass(frozen=True, slots=True)
class ExperimentResult:
    """The result as in ``result.json``, and the files that were written."""

    result: dict[str, Any]
    files: Sequence[Path]


class Run(NamedTuple):
    """One run of the experiment."""

    case: str
    wiring: Wiring
    trainer: Trainer = "synthetic"

    def __str__(self) -> str:
        real = ", with a real model" if self.trainer == "torch" else ""
        return f"case ({self.case}), {self.wiring}{real}"


def plan_of(parts: Sequence[str], trainer: Trainer = "synthetic") -> list[Run]:
    """The runs that make up these parts; ``BadInput`` for one that there is not."""
    if not parts:
        raise BadInput(f"no case to run: expected some of {','.join(PARTS)}")
    for part in parts:
        if part not in PARTS:
            raise BadInput(f"there is no case {part!r}: expected some of {','.join(PARTS)}")
    plan: list[Run] = []
    for case in (part for part in PARTS if part in parts and part in CASES):
        plan += [Run(case, "static"), Run(case, "optical")]
    if "live" in parts:
        plan.append(Run(LIVE_CASE, "live"))
    if trainer == "torch":
        plan += [Run(REAL_CASE, "static", trainer), Run(REAL_CASE, "optical", trainer)]
    return plan


def run_experiment(
    wishes: ExperimentOptions,
    tell: Tell,
    say: Callable[[str], None],
    beside: Callable[[str], AbstractContextManager[object]] = nullcontext,
) -> ExperimentResult:
    """Run everything; ``tell`` hears of every iteration, ``say`` of every step between.

    What ``beside`` makes of the controller's address is there while the cases run.

    The lab is taken down however this ends.
    """
    plan = plan_of(wishes.parts, wishes.trainer)
    model = load_lab(wishes.lab)
    for run in plan:
        # Refuses what cannot work before it is built.
        jobs_of(run.case, model, wishes.iterations, wishes.mismatch_percent, run.trainer)
    began, started_at = time.monotonic(), datetime.datetime.now(datetime.UTC)
    earlier = cpu_ticks()
    time.sleep(_LOOK_S)
    # No seeds: nothing is drawn.
    origin, ticks = provenance((), [find_lab(wishes.lab)]), cpu_ticks()
    workers = wishes.workers
    if workers == "auto":
        workers = "docker" if docker_engine.answers() else "process"
    if workers == "process" and wishes.trainer == "torch" and find_spec("torch") is None:
        raise BadInput(
            "a real model needs PyTorch, which is not installed here",
            hint="pip install 'patchlight[torch]', or --workers docker",
        )
    runs: list[CaseRun] = []
    with EmulatedLab.from_file(
        wishes.lab,
        scale=wishes.scale,
        name=wishes.name,
        replace=wishes.replace,
        workers=workers,
        engine=wishes.engine,
        # Two jobs in step drift apart when one of them has to wait for a core.
        real_time=True,
        progress=say,
    ) as emulated:
        lab = emulated.lab
        with ControllerClient(lab.controller_api) as controller, beside(lab.controller_api):
            client = ExperimentClient(controller)
            status = client.wait_until_complete(_UP_S)
            for run in plan:
                say(str(run))
                how = (wishes.mismatch_percent, run.trainer)
                runs.append(
                    run_case(client, lab, run.case, run.wiring, wishes.iterations, tell, *how)
                )
                start, end = training_window(runs[-1].jobs[0])
                say(f"{run}: the first job took {end - start:.2f} s")
        say("taking the lab down")
    setting = Setting(
        lab=model.name,
        scale=wishes.scale,
        iterations=wishes.iterations,
        workers=workers,
        engine=status["engine"] or "",
        started_at=started_at.isoformat(timespec="seconds"),
        duration_s=time.monotonic() - began,
        provenance=origin,
        machine=origin["machine"],
        disturbance=Disturbance.of(ticks.busy_since(earlier), ticks, cpu_ticks(), runs),
        mismatch_percent=wishes.mismatch_percent,
    )
    result = result_of(setting, runs)
    return ExperimentResult(result, write_report(result, runs, wishes.output))
