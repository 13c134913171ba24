"""The ``patchlight`` command: its sub-commands are imported only when they are used."""

import atexit
import gc
import importlib
import io
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from patchlight.cli.errors import CrashReport, report
from patchlight.testbed.errors import BadInput, PatchlightError


@dataclass(frozen=True)
class _Command:
    """The module that has a sub-command of its own name, and what it is for."""

    module: str
    about: str


# What they are for stands here too, so that help imports none of them.
COMMANDS: Mapping[str, _Command] = {
    "lab": _Command("patchlight.cli.lab.group", "Check, show, draw and generate lab files."),
    "emulate": _Command("patchlight.cli.lab.emulate", "Run a lab in software on this machine."),
    "status": _Command("patchlight.cli.status", "Show how a lab is, on one screen."),
    "top": _Command("patchlight.cli.top", "Watch jobs, GPUs and circuits."),
    "dashboard": _Command("patchlight.cli.dashboard.command", "Show a lab in a browser."),
    "report": _Command("patchlight.cli.report.command", "Write a page on what happened."),
    "controller": _Command("patchlight.cli.controller", "Run and ask the controller."),
    "login": _Command("patchlight.cli.access", "Log in to a controller on another machine."),
    "logout": _Command("patchlight.cli.access", "Forget the token for a controller."),
    "token": _Command("patchlight.cli.access", "Make and revoke tokens for users elsewhere."),
    "audit": _Command("patchlight.cli.access", "Who wanted to change what, and what came of it."),
    "agent": _Command("patchlight.cli.agent", "Run the agent of one server."),
    "deploy": _Command("patchlight.cli.deploy.group", "Put Patchlight on a lab's servers."),
    "job": _Command("patchlight.cli.job.group", "Submit and follow training jobs."),
    "ocs": _Command("patchlight.cli.ocs.group", "Read and change optical circuit switches."),
    "paths": _Command("patchlight.cli.paths", "Show who sends to whom on which channel of light."),
    "graph": _Command("patchlight.cli.graph", "Show, draw, measure and fetch computation graphs."),
    "policy": _Command("patchlight.cli.policy.group", "List, test, train and export policies."),
    "env": _Command("patchlight.cli.env", "List, check and compare learning environments."),
    "simulate": _Command(
        "patchlight.cli.simulate", "Simulate a cluster with a queue under a job trace."
    ),
    "experiment": _Command("patchlight.cli.experiment.group", "Run a paper's experiment."),
    "doctor": _Command("patchlight.cli.doctor", "Say what this machine lacks."),
    "completion": _Command("patchlight.cli.completion", "Complete names in the shell."),
}


class _LazyGroup(click.Group):
    """A group that knows its commands' names, and imports a command's module to run it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = COMMANDS.get(cmd_name)
        return super().get_command(ctx, cmd_name) if found is None else _load(cmd_name, found)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, found.about) for name, found in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not ctx.resilient_parsing and not name.startswith("-"):
            # Plain ctx.fail() would not say which commands there are.
            from patchlight.testbed.files.issues import nearest

            hint = nearest(name, COMMANDS, "the commands are")
            raise BadInput(f"patchlight has no command {name!r}: {hint}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        # Left to themselves, click and rich end with 1 when whoever reads the output has gone.
        try:
            return super().invoke(ctx)
        except (BrokenPipeError, SystemExit) as error:
            gone = error if isinstance(error, BrokenPipeError) else error.__context__
            if not isinstance(gone, BrokenPipeError):
                raise
            return report(gone, ctx.obj)


def _load(name: str, command: _Command) -> click.Command:
    try:
        found = getattr(importlib.import_module(command.module), name)
    except ModuleNotFoundError as error:
        missing = error.name or "?"
        if missing == command.module:
            raise PatchlightError(
                f"patchlight {name} is not part of this installation: {missing} is missing",
                hint="install all of Patchlight again: pip install --force-reinstall patchlight",
            ) from error
        raise PatchlightError(
            f"patchlight {name} needs the Python package {missing.partition('.')[0]!r}, "
            "which is not installed",
            hint=f"what this machine lacks: patchlight doctor (this Python is {sys.executable})",
        ) from error
    assert isinstance(found, click.Command)
    return found


@click.group(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
    epilog="LAB is a lab file or the name of a built-in lab, like ofc2022.",
)
@click.version_option(package_name="patchlight", message="%(prog)s %(version)s")
@click.option("--debug", is_flag=True, help="Print the traceback of an error.")
@click.pass_obj
def cli(settings: CrashReport | None, debug: bool) -> None:
    """A testbed for clusters whose network can be rewired with light."""
    if settings is not None and debug:
        settings.traceback = True


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 failed, 2 bad input, 3 outcome unknown."""
    settings = CrashReport(traceback=bool(os.environ.get("PATCHLIGHT_DEBUG")))
    _mend_streams()
    # All memory goes with the process: Python need not look for garbage in it at the end.
    atexit.register(gc.freeze)
    try:
        code = cli.main(arguments, "patchlight", standalone_mode=False, obj=settings)
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
