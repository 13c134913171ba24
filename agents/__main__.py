""" "Runs the agent of one server, without the operator's commands."""

import argparse
import sys
from pathlib import Path

from patchlight.agents.run import SAMPLES_PER_S, Options, run_agent
from patchlight.agents.workers import contract, limits
from patchlight.testbed.errors import PatchlightError


def main() -> int:
    """Run the agent and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="patchlight.agents",
        description=__doc__,
    )
    add = parser.add_argument
    add(
        "--lab",
        type=Path,
        required=True,
        help="the lab file",
    )
    add(
        "--server",
        required=True,
        help="which server of the lab this is",
    )
    add(
        "--listen",
        required=True,
        metavar="unix:PATH|HOST:PORT",
    )
    add(
        "--worker-kind",
        default="auto",
        metavar="docker|process|auto",
    )
    add(
        "--gpu-source",
        dest="gpus",
        default="nvml",
        metavar="nvml|socket:DIR",
    )
    add(
        "--gpu-rate",
        type=float,
        default=SAMPLES_PER_S,
        metavar="HZ",
        help="NVML readings per second",
    )
    add(
        "--gpu-access",
        default="auto",
        choices=limits.CHOICES,
    )
    add(
        "--worker-user",
        metavar="USER|dynamic",
        help="instead of the lab file's",
    )
    add(
        "--fork-from",
        type=Path,
        metavar="SOCKET",
        help="socket of the process that forks built-in workers",
    )
    add(
        "--light",
        type=Path,
        metavar="PATH",
        help="the socket that tunes an emulated lab's transceivers",
    )
    add(
        "--state",
        type=Path,
        required=True,
        metavar="DIR",
        help="folder of leases",
    )
    add(
        "--image",
        default=contract.DEFAULT_IMAGE,
        help="the container image of workers",
    )
    add(
        "--tls",
        type=Path,
        metavar="FOLDER",
        help="ca.pem, cert.pem and key.pem, for TCP",
    )
    try:
        run_agent(Options(**vars(parser.parse_args())))
    except PatchlightError as exc:
        print(f"patchlight agent: {exc}", file=sys.stderr)
        return exc.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
