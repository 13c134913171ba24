"""Which job is meant by what a user types."""

import click

from patchlight.client.client import ControllerClient
from patchlight.console.completion import complete_job
from patchlight.testbed.errors import BadInput
from patchlight.testbed.io.issues import nearest
from patchlight.testbed.jobs import JobState

# So many are shown where several may be meant, or none is.
_MOST = 12

job_argument = click.argument("job", metavar="JOB", shell_complete=complete_job)
jobs_argument = click.argument(
    "jobs", metavar="JOB…", nargs=-1, required=True, shell_complete=complete_job
)
force_option = click.option("--force", is_flag=True, help="Also a job that another user submitted.")


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
