"""``patchlight ocs``: read and change the circuits of a lab."""

import click

from patchlight.cli.ocs import change, emulate, safety, view, watch


@click.group(
    epilog="OCS is its name in the lab file. PORT is a number, ocs1.17, or what is plugged in, "
    "like server1.nic0. Exit codes: 0 done; 1 refused, or failed and rolled back, or (drift, "
    "verify) not as it should be; 2 wrong input, nothing done; 3 outcome unknown: look with "
    "'show' before anything else. Names complete in the shell: "
    "'patchlight completion --help'."
)
def ocs() -> None:
    """Read and change optical circuit switches."""


for module in (view, watch, change, safety, emulate):
    for command in module.COMMANDS:
        ocs.add_command(command)
