"""What several commands show of a job, and which job is meant by what a user types."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from patchlight.client.client import ControllerClient
from patchlight.console.connection import complete_job
from patchlight.console.rendering import Coloured, Meaning
from patchlight.testbed.errors import BadInput
from patchlight.testbed.io.issues import nearest
from patchlight.testbed.jobs import JobState

if TYPE_CHECKING:
    from patchlight.testbed.wire.rest.jobs import JobAnswer, JobInList, StateOfJob


Answer = dict[str, Any]

# So many are shown where several may be meant, or none is.
_MOST = 12
_MEANINGS: dict[str, Meaning] = {
    JobState.DONE: "good",
    JobState.RUNNING: "good",
    JobState.FAILED: "bad",
    JobState.STOPPED: "quiet",
}


job_argument = click.argument("job", metavar="JOB", shell_complete=complete_job)
jobs_argument = click.argument(
    "jobs", metavar="JOB…", nargs=-1, required=True, shell_complete=complete_job
)
force_option = click.option("--force", is_flag=True, help="Also a job that another user submitted.")


def state(status: JobInList | StateOfJob) -> Coloured:
    """Its state, in the colour of what that means."""
    return Coloured(status["state"], _MEANINGS.get(status["state"], "caution"))


def iterations(status: JobInList) -> str:
    """How many iterations are done, of how many if that is known."""
    done, known = status["iterations_done"], status["spec"]["iterations"]
    return f"{done}/{known}" if known else str(done or "")


def message(status: JobInList) -> str:
    """Why it failed or what it waits for, and how often a policy failed on it."""
    faults = status["policy_faults"]
    marks = [f"policy faults: {faults}, the default decided"] if faults else []
    return "; ".join([*filter(None, [status["message"]]), *marks])


def outcome(status: JobInList) -> str:
    """What has become of it, on one line."""
    return f"{status['id']} " + ": ".join(filter(None, [status["state"], status["message"]]))


def deviation(measured_s: float, predicted_s: float | None) -> str:
    """How much more or less was measured than predicted; empty where nothing was."""
    if not predicted_s:
        return ""
    part = measured_s / predicted_s - 1
    return f"{abs(part):.1%}".replace("%", " %") + (" more" if part >= 0 else " less")


def elapsed(status: JobInList) -> str:
    """For how long it has run."""
    if status["started_at"] is None:
        return ""
    return f"{(status['finished_at'] or time.time()) - status['started_at']:.1f} s"


def degrees(status: JobAnswer) -> str:
    """The number of workers of a job whose number a policy says: now, before, and if it stays."""
    had = status.get("degrees") or []
    if not had:
        return ""
    changes = [f"{workers} from iteration {iteration} on" for _, iteration, workers in had]
    stays = status.get("rigid_because")
    runs = status["hosts"] and status["finished_at"] is None
    parts = [f"{len(status['hosts'])} now"] if runs else []
    if len(changes) > 1 or not runs:
        parts.append(", ".join(changes))
    if stays:
        parts.append(f"stays so: {stays}")
    return "; ".join(parts)


def find_job(client: ControllerClient, text: str) -> str:
    """The id of the job that is meant: by its id, the start of one, or its name.

    ``BadInput`` if there is none, or several that may be meant.
    """
    meant = client.jobs_meant(text) if text else []
    if len(meant) > 1:
        # Of several runs of one job, the one that goes on.
        meant = [s for s in meant if not JobState(s["state"]).is_final] or meant
    if len(meant) == 1:
        return str(meant[0]["id"])
    if meant:
        count = len(meant) if len(meant) <= _MOST else f"more than {_MOST}"
        listed = ", ".join(status["id"] for status in meant[:_MOST])
        hint = f"type more of the id, of one of: {listed}"
        raise BadInput(f"{text!r} may mean any of {count} jobs", hint=hint)
    latest = [status["id"] for status in client.jobs(last=_MOST)]
    hint = "'patchlight job list --all' shows every job"
    raise BadInput(f"no job {text!r}: {nearest(text, latest, 'the latest are')}", hint=hint)
