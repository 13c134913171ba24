"""``patchlight agent``: the agent that runs on each server."""

from pathlib import Path
from typing import Any

import click

from patchlight.agents.run import SAMPLES_PER_S
from patchlight.agents.workers.contract import DEFAULT_IMAGE
from patchlight.agents.workers.limits import CHOICES
from patchlight.console.commands import require_root
from patchlight.console.connection import complete_server, running_lab_file
from patchlight.console.shared import lab_option


@click.group()
def agent() -> None:
    """Run the agent of one server."""


@agent.command()
@lab_option("Lab file or built-in lab.", "lab", required=True)
@click.option(
    "--server",
    required=True,
    shell_complete=complete_server,
    help="Which server of the lab this is.",
)
@click.option(
    "--listen",
    required=True,
    metavar="unix:PATH|HOST:PORT",
    help="Address to listen at; TCP needs --tls.",
)
@click.option(
    "--worker-kind",
    default="auto",
    metavar="docker|process|auto",
    help="What a worker is; auto: a container if a Docker engine runs, else a process. Installed "
    "packages may add more.",
)
@click.option(
    "--gpu-source",
    "gpus",
    default="nvml",
    metavar="nvml|socket:DIR",
    help="NVIDIA GPUs, or GPUs behind Unix sockets in DIR.",
)
@click.option(
    "--gpu-rate",
    type=click.FloatRange(
        min=0.1,
        max=100,
    ),
    default=SAMPLES_PER_S,
    show_default=True,
    metavar="HZ",
    help="How many times a second NVIDIA GPUs are read.",
)
@click.option(
    "--gpu-access",
    type=click.Choice(CHOICES),
    default="auto",
    help="How a container gets its NVIDIA GPU; auto: through CDI if its files exist, else through "
    "a device request or NVIDIA's runtime, whichever this server has.",
)
@click.option(
    "--state",
    type=click.Path(path_type=Path),
    default=Path("/var/lib/patchlight/agent"),
    help="Folder for leases and for the folders of workers.",
)
@click.option(
    "--worker-user",
    metavar="USER|dynamic",
    help="User that worker processes run as, instead of the lab file's; dynamic: a separate user "
    "for each person who submits jobs.",
)
@click.option(
    "--image",
    default=DEFAULT_IMAGE,
    help="The container image of workers.",
)
@click.option(
    "--tls",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Certificates (ca.pem, cert.pem, key.pem): this server's, from 'deploy certificates'.",
)
def run(**options: Any) -> None:
    """Run the agent of one server until SIGTERM. Its workers continue, and the next agent takes
    them over.
    """
    from patchlight.agents.run import Options, run_agent

    require_root("running an agent")
    options["lab"] = running_lab_file(options["lab"])
    run_agent(Options(**options))
