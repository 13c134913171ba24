"""Simulates a job trace under every combination of some policies, with a report in a folder."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from patchlight.emulation.simulator.cluster import sweep
from patchlight.emulation.simulator.cluster.cluster import (
    Cluster,
    LabCluster,
    TwoLevel,
)
from patchlight.emulation.simulator.cluster.jobs import (
    QueueJob,
    jobs_of_specs,
    queue_jobs,
)
from patchlight.emulation.simulator.cluster.networkcluster import (
    NetworkCluster,
)
from patchlight.emulation.simulator.cluster.report import (
    notes_on,
    result_of,
    write_report,
)
from patchlight.emulation.simulator.cluster.state import Settings
from patchlight.emulation.simulator.executors import Engine, Interrupted
from patchlight.emulation.simulator.network.specs import Trouble, network_of
from patchlight.emulation.simulator.results import policy_files, provenance
from patchlight.emulation.simulator.traces.files import (
    drawn_trace,
    is_drawn,
    load_trace,
)
from patchlight.testbed.errors import BadInput, nearest
from patchlight.testbed.jobfile.reader import read_jobs
from patchlight.testbed.labfile.reader import find_lab, load_lab

DEFAULT_CLUSTER = "16x16x8"
# On a lab: the share of its time in which VGG16 on four M40 with 40 Gb/s each moves gradients.
LAB_COMMUNICATION = 0.25
DRAWN_JOBS = 2000
"""The number of jobs of a random trace, by default."""
JOB_FILES = (".yaml", ".yml")


@dataclass(frozen=True)
class SimulationOptions:
    """The setting: a trace's jobs on a cluster, and the policies to combine.

    ``trace`` is a file or a name of ``traces.LAWS``; only its first ``jobs`` arrive, ``speed``
    times as fast. The cluster is that of ``lab``, or of ``network`` (a line of text), else
    ``cluster`` (as in ``TwoLevel.parse``). ``communication`` is the share of their time in which
    jobs of several GPUs move gradients. A ``trace`` with the suffix ``.yaml`` is a job file: its
    jobs belong to ``user``, arrive at once, and have their own computing times and gradients. If
    the settings defragment and it ``compares``, each combination also runs without. ``slow`` and
    ``failures`` need a ``network``.
    """

    trace: Path
    skip_bad: bool = False
    jobs: int | None = None
    speed: float = 1.0
    cluster: str | None = None
    lab: str | None = None
    network: str | None = None
    slow: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    user: str = ""
    communication: float | None = None
    order: tuple[str, ...] = ("fifo",)
    placement: tuple[str, ...] = ("first-fit",)
    topology: tuple[str, ...] = ("keep",)
    elasticity: tuple[str, ...] = ("rigid",)
    partition: tuple[str, ...] = (sweep.AS_ASKED,)
    settings: Settings = field(default_factory=Settings)
    engine: Engine = field(default_factory=Engine)
    compares: bool = True

    @property
    def combinations(self) -> list[sweep.Combination]:
        """The policies of each run."""
        settings = self.settings
        moves = settings.defragment_s is not None
        kinds = self.order, self.placement, self.topology
        defragment = (False, True) if moves and self.compares else (moves,)
        more = self.elasticity, self.partition
        return sweep.combinations(
            *kinds,
            settings.seed,
            defragment,
            *more,
        )


@dataclass(frozen=True)
class TraceSimulation:
    """The result: each run, the content of ``result.json``, notes on the trace, files written.

    ``interrupted``: only the runs that were finished at Ctrl-C.
    """

    outcomes: list[sweep.CombinationResult]
    result: Mapping[str, Any]
    notes: tuple[str, ...]
    files: list[Path]
    interrupted: bool


def simulate_trace(
    options: SimulationOptions,
    folder: Path,
    tell: Callable[[int, int], None],
) -> TraceSimulation:
    """Run every combination and write the results into ``folder``.

    ``tell`` counts ended jobs of all combinations, on Ray ended runs: how many of how many.
    ``BadInput`` for options that contradict each other. Ctrl-C keeps the finished runs; without
    any, ``KeyboardInterrupt`` is raised.
    """
    cluster = _cluster(options)
    settings = options.settings
    engine = options.engine
    sweep.check_policies(
        options.order,
        options.placement,
        options.topology,
        options.elasticity,
        options.partition,
    )
    if options.topology != ("keep",) and not cluster.circuits:
        raise BadInput(
            f"topology {', '.join(options.topology)} needs circuits: this cluster has no OCS",
            hint="choose --topology keep, or a --lab with an OCS, like ofc2022",
        )
    if settings.defragment_s is not None and not cluster.circuits:
        raise BadInput(
            "--defragment needs circuits: this cluster has no OCS",
            hint="choose a --lab with an OCS, like ofc2022",
        )
    communication = options.communication
    if communication is None:
        plain = options.lab is None and options.network is None
        communication = 0.0 if plain else LAB_COMMUNICATION
    jobs, notes = _jobs(options, cluster, communication)
    _check_users(settings, jobs, cluster)
    runs = options.combinations
    began = time.monotonic()
    origin = provenance([settings.seed], _files(options))
    interrupted = False
    try:
        outcomes = sweep.run_sweep(
            sweep.Sweep(cluster, jobs, settings),
            runs,
            engine,
            tell,
        )
    except Interrupted as stop:
        outcomes = [stop.results[number] for number in sorted(stop.results)]
        interrupted = True
        if not outcomes:
            raise
    setting = {
        "trace": {
            "file": str(options.trace),
            "jobs": len(jobs),
            "speed": options.speed,
            "communication": communication,
        },
        "cluster": {
            "name": options.network
            or options.lab
            or options.cluster
            or DEFAULT_CLUSTER,
            "gpus": len(cluster.shape.gpus),
            "servers": len(cluster.shape.servers),
            "racks": len(cluster.shape.racks),
            "oversubscription": getattr(cluster, "oversubscription", None),
            "slow": list(options.slow),
            "fail": list(options.failures),
        },
        "settings": settings.words,
        "engine": engine.name if len(runs) > 1 else "serial",
        "duration_s": time.monotonic() - began,
        "interrupted": interrupted,
        "runs_wanted": len(runs),
        "provenance": origin,
        "machine": origin["machine"],
    }
    files = write_report(outcomes, setting, folder)
    notes += tuple(
        notes_on(
            outcomes,
            preempts=settings.preempt,
            communicates=bool(communication),
        )
    )
    return TraceSimulation(
        outcomes,
        result_of(outcomes, setting),
        notes,
        files,
        interrupted,
    )


def _jobs(
    options: SimulationOptions,
    cluster: Cluster,
    communication: float,
) -> tuple[list[QueueJob], tuple[str, ...]]:
    """The jobs of a trace or a job file, and notes on them."""
    if options.trace.suffix in JOB_FILES:
        if cluster.lab is None:
            raise BadInput(
                f"{options.trace} is a job file, which needs a lab",
                hint="name one with --lab, like ofc2022",
            )
        file = read_jobs(options.trace)
        specs = file.specs[: options.jobs]
        alone = "in a lab they start together; in a simulation each starts by itself"
        notes = (alone,) if file.together and len(specs) > 1 else ()
        partitioned = sweep.AS_ASKED not in options.partition
        return jobs_of_specs(
            cluster.lab,
            specs,
            options.user,
            partitioned=partitioned,
        ), notes
    if is_drawn(options.trace):
        count = options.jobs or DRAWN_JOBS
        gpus = len(cluster.shape.gpus)
        trace = drawn_trace(
            str(options.trace),
            options.settings.seed,
            count,
            gpus,
        )
    else:
        trace = load_trace(options.trace, skip_bad=options.skip_bad)
    jobs = queue_jobs(trace.jobs[: options.jobs], communication, options.speed)
    return jobs, trace.notes


def _check_users(
    settings: Settings,
    jobs: Sequence[QueueJob],
    cluster: Cluster,
) -> None:
    """``BadInput`` for settings of a user without jobs whom the lab does not have either."""
    known = {job.view.user for job in jobs}
    of_lab = (
        set()
        if cluster.lab is None
        else {name for name, _ in cluster.lab.queue.users}
    )
    for name, _ in settings.users:
        if name not in known | of_lab:
            near = nearest(name, sorted(known - {""}), "the trace's users are")
            raise BadInput(
                f"no job of the trace belongs to user {name}: {near}"
            )


def _files(options: SimulationOptions) -> list[Path]:
    """All files that the results depend on."""
    lab = [] if options.lab is None else [find_lab(options.lab)]
    return [
        *([] if is_drawn(options.trace) else [options.trace]),
        *lab,
        *policy_files(options.order, "order"),
        *policy_files(options.placement, "placement"),
        *policy_files(
            [name for name in options.topology if name != "keep"], "topology"
        ),
        *policy_files(
            [name for name in options.elasticity if name != "rigid"],
            "elasticity",
        ),
        *policy_files(
            [name for name in options.partition if name != sweep.AS_ASKED],
            "partition",
        ),
    ]


def _cluster(options: SimulationOptions) -> Cluster:
    given = {
        "--network": options.network,
        "--cluster": options.cluster,
        "--lab": options.lab,
    }
    named = [option for option, text in given.items() if text is not None]
    if len(named) > 1:
        raise BadInput(
            f"{' and '.join(named)} exclude each other: give one of them",
            hint="for a lab as a network use --network lab:NAME",
        )
    if options.network is not None:
        network = network_of(options.network)
        trouble = Trouble.parse(
            options.slow, options.failures, options.settings.seed
        )
        return NetworkCluster(network, trouble=trouble.checked(network))
    if options.slow or options.failures:
        raise BadInput(
            "--slow and single outages need the nodes and links of a --network",
            hint="for random failures of servers and GPUs: --failures server:30d:4h",
        )
    if options.lab is None:
        return TwoLevel.parse(options.cluster or DEFAULT_CLUSTER)
    return LabCluster(load_lab(options.lab))
