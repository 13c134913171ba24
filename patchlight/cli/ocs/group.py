"""``patchlight ocs``: read and change the circuits of a lab."""

import click

from patchlight.cli.ocs import change, emulate, safety, view, watch


@click.group(
    epilog="OCS is the name of an optical circuit switch or a wavelength switch in the lab file. "
    "PORT is a number, ocs1.17, or what is plugged in, like server1.nic0; of a wavelength switch "
    "a channel may follow: 3@193.100. Exit codes: 0 done; 1 refused, or failed and rolled back, "
    "or (drift, verify) not as it should be; 2 wrong input, nothing done; 3 outcome unknown: look "
    "with 'show' before anything else. Names complete in the shell: "
    "'patchlight completion --help'."
)
def ocs() -> None:
    """Read and change optical switches: circuit switches, and wavelength switches."""


for module in (view, watch, change, safety, emulate):
    for command in module.COMMANDS:
        ocs.add_command(command)
