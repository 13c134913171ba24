"""The ``patchlight`` command and its groups, which import a sub-command only to run it."""

import atexit
import gc
import io
import os
import sys
from collections.abc import Mapping, Sequence

import click

from patchlight.console.commands import CrashReport, report
from patchlight.console.shared import (
    DAILY,
    OPERATE,
    RESEARCH,
    Command,
    LazyGroup,
    commands_in,
)

# Their lines in help are here too, so that help imports none of them.
_HERE = "patchlight.cli"
COMMANDS: Mapping[str, Command] = {
    "lab": Command(
        f"{_HERE}.main", "Check, show and generate lab files.", DAILY
    ),
    "emulate": Command(
        f"{_HERE}.lab.emulate", "Run a lab in software on this machine.", DAILY
    ),
    "job": Command(f"{_HERE}.main", "Submit and follow training jobs.", DAILY),
    "ocs": Command(
        f"{_HERE}.main", "Show and change optical circuits.", DAILY
    ),
    "status": Command(
        f"{_HERE}.status", "Show the state of a lab on one screen.", DAILY
    ),
    "top": Command(f"{_HERE}.top", "Watch jobs, GPUs and circuits.", DAILY),
    "dashboard": Command(
        f"{_HERE}.dashboard", "Show a lab in a browser.", DAILY
    ),
    "controller": Command(
        f"{_HERE}.controller", "Run and manage a controller.", OPERATE
    ),
    "agent": Command(f"{_HERE}.agent", "Run the agent of a server.", OPERATE),
    "login": Command(
        f"{_HERE}.access",
        "Log in to a remote controller, or forget the token.",
        OPERATE,
    ),
    "token": Command(
        f"{_HERE}.access", "Create and revoke tokens for users.", OPERATE
    ),
    "audit": Command(f"{_HERE}.access", "Show the audit log.", OPERATE),
    "report": Command(
        f"{_HERE}.report", "Write a report on a period of time.", OPERATE
    ),
    "policy": Command(
        f"{_HERE}.policy", "List, compare and train policies.", RESEARCH
    ),
}


@click.group(
    cls=LazyGroup,
    built_in=COMMANDS,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "show_default": True,
    },
    epilog="LAB is a lab file or the name of a built-in lab, like ofc2022. Commands, options and "
    'names complete in bash after  eval "$(_PATCHLIGHT_COMPLETE=bash_source patchlight)"; other '
    "shells: zsh_source, fish_source.",
)
@click.version_option(
    package_name="patchlight",
    message="%(prog)s %(version)s",
)
@click.option(
    "--debug",
    is_flag=True,
    help="Print the traceback of an error.",
)
@click.pass_obj
def cli(settings: CrashReport | None, debug: bool) -> None:
    """Run a testbed for clusters with optical circuit switches (OCS)."""
    if settings is not None and debug:
        settings.traceback = True


@click.group(
    cls=LazyGroup,
    prefix="lab ",
    built_in=commands_in(
        "patchlight.cli.lab",
        files="check generate init",
        show="show",
        topology="discover",
    ),
)
def lab() -> None:
    """Check, show and write lab files; discover the wiring of a lab."""


@click.group(
    cls=LazyGroup,
    prefix="job ",
    built_in=commands_in(
        "patchlight.cli.job",
        submit="submit",
        listing="list",
        follow="show logs stop restart regroup",
    ),
    epilog="JOB is a job's id, the start of an id, or a name. Of several jobs with that name it "
    "is the one that has not ended.",
)
def job() -> None:
    """Submit, list, follow and stop training jobs."""


@click.group(
    cls=LazyGroup,
    prefix="ocs ",
    built_in=commands_in(
        "patchlight.cli.ocs",
        view="show verify history",
        watch="watch",
        change="connect disconnect apply colocate rollback save lock stop",
        claim="claim",
    ),
    epilog="OCS is the name of an optical circuit switch or a wavelength switch in the lab file. "
    "PORT is a number, ocs1.17, or the port at the other end of its fibre, like server1.nic0; on "
    "a wavelength switch a channel may follow: 3@193.100. Exit codes: 0 done; 1 refused, or "
    "failed and rolled back (verify: a difference or a failure); 2 wrong input, nothing done; 3 "
    "outcome unknown: run 'ocs show' first.",
)
def ocs() -> None:
    """Show and change optical circuits, on circuit switches and wavelength switches."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 failed, 2 bad input, 3 outcome unknown."""
    settings = CrashReport(traceback=bool(os.environ.get("PATCHLIGHT_DEBUG")))
    _mend_streams()
    # The process ends: Python need not look for garbage then.
    atexit.register(gc.freeze)
    try:
        code = cli.main(
            arguments,
            "patchlight",
            standalone_mode=False,
            obj=settings,
        )
        sys.stdout.flush()
    except BaseException as error:
        code = report(error, settings)
    sys.exit(code if isinstance(code, int) else 0)


def _mend_streams() -> None:
    """Have all three standard streams, and let output take any character."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # The caller closed it. A file that is opened later must not get its number.
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # In a locale without UTF-8: \xd7 rather than an error.
            stream.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    main()
