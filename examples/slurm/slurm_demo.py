"""The same training jobs by sbatch, on static circuits and on circuits that each job claims.

sudo .venv/bin/python examples/slurm/slurm_demo.py --jobs 20
"""

import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import click
from matplotlib.figure import Figure
from slurm_cluster import SlurmCluster, demo_lab

from patchlight import EmulatedLab
from patchlight.console import rendering as out
from patchlight.console.commands import require_root
from patchlight.emulation.simulator import figures, results
from patchlight.testbed.errors import PatchlightError

_HERE = Path(__file__).parent
# Nodes of the jobs, again and again: as cabled, a ToR has room for three.
_NODES = (4, 2, 4, 2, 3, 3)
_STEPS = 10
_WIDTH = 512  # of the model: 1 MiB of gradients
_POLL_S = 0.5
_STALL_S = 180.0
_ALIVE = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING")


@dataclass(slots=True)
class FollowedJob:
    """A job of Slurm; times in seconds since all were submitted. ``verified``: its circuits were
    held when it was first seen to run."""

    id: str
    nodes: int
    waits_at: float = 0.0
    runs_at: float = 0.0
    ended_at: float = 0.0
    verified: bool = False

    def follow(self, state: str, at: float, held: set[str]) -> None:
        """Its state is this now, and these claims are held."""
        if state != "PENDING":
            self.waits_at = self.waits_at or at
        if state in _ALIVE[2:] and not self.runs_at:
            self.runs_at = at
            self.verified = f"slurm-{self.id}" in held
        if state == "COMPLETED":
            self.ended_at = at


def run_jobs(cluster: SlurmCluster, sizes: Sequence[int], circuits: str) -> list[FollowedJob]:
    """Submit jobs with so many nodes at once, and follow them to their end. ``circuits`` is the
    shape that they claim, or ``none``."""
    jobs = []
    for nodes in sizes:
        options = [f"--nodes={nodes}", f"--comment=circuits={circuits}", "--parsable"]
        program = [_HERE / "gloo.sbatch", _HERE.parent / "jobs" / "train_gloo.py"]
        given = ["--steps", str(_STEPS), "--width", str(_WIDTH)]
        python = f"--export=ALL,PYTHON={sys.executable}"
        said = cluster.run("sbatch", *options, python, *map(str, program), *given)
        jobs.append(FollowedJob(said.strip(), nodes))
    began = changed = time.monotonic()
    states: dict[str, str] = {}
    while not all(job.ended_at for job in jobs):
        time.sleep(_POLL_S)
        now = cluster.states()
        claims = cluster.lab.controller.claims()
        held = {claim.name for claim in claims if claim.state == "held"}
        at = time.monotonic()
        if now != states:
            states = now
            changed = at
        if at - changed > _STALL_S:
            raise PatchlightError(f"no job changed its state for {_STALL_S:g} s: {states}")
        for job in [job for job in jobs if not job.ended_at]:
            state = states[job.id]
            if state not in (*_ALIVE, "COMPLETED"):
                said = cluster.run("scontrol", "show", "job", job.id)
                raise PatchlightError(f"job {job.id} of Slurm is {state}:\n{said}")
            job.follow(state, at - began, held)
            if job.ended_at:
                size = out.counted(job.nodes, "node")
                out.say(f"{at - began:6.0f} s  job {job.id} on {size} is done")
    return jobs


def compared(static: Sequence[FollowedJob], claimed: Sequence[FollowedJob]) -> dict[str, Any]:
    """Both runs, and what they say of each other."""
    means = [mean(job.ended_at for job in jobs) for jobs in (static, claimed)]
    waits = [job.runs_at - job.waits_at for job in claimed]
    return {
        "static": [asdict(job) for job in static],
        "claimed": [asdict(job) for job in claimed],
        "mean_completion_s": means,
        "lower_by": 1 - means[1] / means[0],
        "mean_wait_s": mean(waits),
        "longest_wait_s": max(waits),
        "verified": sum(job.verified for job in claimed),
    }


def same_topology(cluster: SlurmCluster, deadline_s: float = 15.0) -> bool:
    """Whether Slurm's topology becomes that of the controller."""
    ends = time.monotonic() + deadline_s
    while time.monotonic() < ends:
        ours = cluster.lab.controller.topology_file("slurm-conf")
        theirs = cluster.run("scontrol", "show", "topology")
        if cluster.switches(theirs) == cluster.switches(ours) != {}:
            return True
        time.sleep(_POLL_S)
    return False


def drawn(result: dict[str, Any]) -> Figure:
    """A bar for each job from its submission on: in line, waiting for its circuits, running."""
    figure = figures.new(3.0)
    axes = figure.subplots(1, 2, sharex=True, sharey=True)
    for axis, name in zip(axes, ("static", "claimed"), strict=True):
        for row, job in enumerate(result[name], start=1):
            for left, right, colour, label in (
                (0.0, job["waits_at"], "#dddddd", "in line"),
                (job["waits_at"], job["runs_at"], figures.VERMILION, "waits for circuits"),
                (job["runs_at"], job["ended_at"], figures.BLUE, "runs"),
            ):
                axis.barh(row, right - left, left=left, color=colour, label=label)
        axis.set_title(f"{name} circuits")
        axis.set_xlabel("since submission (s)")
    axes[0].set_ylabel("job")
    axes[0].invert_yaxis()
    axes[0].locator_params(axis="y", integer=True)
    figures.legend(figure)
    return figure


def print_result(result: dict[str, Any]) -> None:
    """The table."""
    jobs = len(result["claimed"])
    table = out.Table(f"{jobs} jobs", out.number("static circuits"), out.number("claimed circuits"))
    means = (f"{each:.1f} s" for each in result["mean_completion_s"])
    table.add_row("mean completion", *means)
    for words, key in (("mean", "mean_wait_s"), ("longest", "longest_wait_s")):
        table.add_row(f"{words} wait for circuits", "", f"{result[key]:.1f} s")
    table.add_row("verified before the start", "", f"{result['verified']} of {jobs}")
    table.add_row("claims left", "", str(result["claims_left"]))
    table.add_row("topology in Slurm is the lab's", "", "yes" if result["same_topology"] else "no")
    table.print()
    out.say(f"Mean completion changes by {-result['lower_by']:+.0%}.")


@click.command()
@click.option("--jobs", type=click.IntRange(min=1), default=20, show_default=True)
@click.option("--name", default="slurm", show_default=True, help="Name of the lab.")
@click.option("--output", type=click.Path(path_type=Path, file_okay=False))
def main(jobs: int, name: str, output: Path | None) -> None:
    """Run jobs on static circuits, then on claimed ones; print a table and draw the runs."""
    require_root("building a lab out of network namespaces")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = results.results_folder(output, "slurm")
    origin = results.provenance([])
    sizes = [_NODES[number % len(_NODES)] for number in range(jobs)]
    lab = EmulatedLab.from_lab(
        demo_lab(name), scale=1000, agents=False, replace=True, progress=out.say
    )
    with lab:
        cluster = SlurmCluster(lab)
        cluster.start()
        out.say(f"{out.counted(jobs, 'job')} on static circuits")
        static = run_jobs(cluster, sizes, "none")
        out.say(f"{out.counted(jobs, 'job')} on claimed circuits")
        result = compared(static, run_jobs(cluster, sizes, "switch"))
        result["same_topology"] = same_topology(cluster)
        claims = lab.controller.claims()
        result["claims_left"] = sum(claim.ended_at is None for claim in claims)
    result["provenance"] = origin
    files = results.write_report(result, folder, {"slurm": lambda: drawn(result)})
    results.give_to_caller([folder, *files])
    print_result(result)
    out.say_written(files, folder)
    wrong = result["verified"] < jobs or result["claims_left"] or not result["same_topology"]
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    try:
        main()
    except PatchlightError as error:
        sys.exit(f"slurm_demo: {error.message}\n  {error.hint or ''}")
