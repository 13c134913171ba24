"""``patchlight ocs``: read and change the circuits of a lab."""

import click

from patchlight.console.commands import LazyGroup, commands_in


@click.group(
    cls=LazyGroup,
    prefix="ocs ",
    built_in=commands_in(
        "patchlight.cli.ocs",
        view="list show power verify history",
        watch="alarms watch cancel",
        change="connect disconnect apply diff plan rollback together light save restore "
        "lock unlock drift stop",
        emulate="emulate fault",
    ),
    epilog="OCS is the name of an optical circuit switch or a wavelength switch in the lab file. "
    "PORT is a number, ocs1.17, or what is plugged in, like server1.nic0; of a wavelength switch "
    "a channel may follow: 3@193.100. Exit codes: 0 done; 1 refused, or failed and rolled back, "
    "or (drift, verify) not as it should be; 2 wrong input, nothing done; 3 outcome unknown: look "
    "with 'show' before anything else. Names complete in the shell: "
    "'patchlight completion --help'.",
)
def ocs() -> None:
    """Read and change optical switches: circuit switches, and wavelength switches."""
