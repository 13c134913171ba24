"""How groups find a command and describe it in help, and the options that commands share."""

import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from patchlight.testbed.errors import (
    BadInput,
    PackageMissing,
    PatchlightError,
    nearest,
)

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

LAB_VARIABLE = "PATCHLIGHT_LAB"
_SETS: dict[str, dict[str, "SharedOption"]] = {}


class SharedOption(click.Option):
    """An option that the help of a group describes, and the help of each command only names.

    ``of`` is the group, as ``ocs``; empty for ``patchlight`` itself. Given twice, an option with
    a value is an error. ``instead`` are parameters that exclude it: a value from the environment
    gives way to them.
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        of: str | None = "",
        instead: tuple[str, ...] = (),
        **settings: Any,
    ) -> None:
        super().__init__(names, **settings)
        self.of = of
        self._instead = instead
        if of is not None:
            _SETS.setdefault(of, {}).setdefault(self.opts[-1], self)

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """See ``click.Parameter``."""
        if self.is_flag or self.count or self.multiple:
            super().add_to_parser(parser, ctx)
        else:
            parser.add_option(
                obj=self,
                opts=self.opts,
                dest=self.name,
                action="append",
                nargs=1,
            )

    def consume_value(
        self, ctx: click.Context, opts: Any
    ) -> tuple[Any, click.core.ParameterSource]:
        """See ``click.Parameter``."""
        given = opts.get(self.name)
        if isinstance(given, list) and not self.multiple:
            if len(given) > 1:
                raise click.UsageError(
                    f"{self.opts[-1]} is given twice: {' and '.join(given)}",
                    ctx,
                )
            opts = {**opts, self.name: given[0]}
        if rivals := [
            p
            for p in ctx.command.params
            if p.name in self._instead and p.name in opts
        ]:
            if given is not None:
                raise click.UsageError(
                    f"{self.opts[-1]} and {rivals[0].opts[-1]} exclude each other: give one",
                    ctx,
                )
            return self.get_default(ctx), ParameterSource.DEFAULT
        return super().consume_value(ctx, opts)

    def full_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Its names and its text, for the group's help."""
        return super().get_help_record(ctx)

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """One line for all of a set, in the place of its last option."""
        if self.of is None:
            return super().get_help_record(ctx)
        same = [
            p
            for p in ctx.command.params
            if isinstance(p, SharedOption) and p.of == self.of
        ]
        if same[-1] is not self:
            return None
        names = ", ".join(sorted(option.opts[-1] for option in same))
        return (
            names,
            f"Shared: see {' '.join(('patchlight', self.of)).strip()} --help.",
        )


def described(ctx: click.Context) -> list[tuple[str, str]]:
    """What the help of this group says of the options that its commands share."""
    found = _SETS.get(ctx.command_path.partition(" ")[2], {})
    records = (
        option.full_help_record(ctx) for _, option in sorted(found.items())
    )
    return [record for record in records if record is not None]


def let_go_of_output() -> None:
    """Give standard output that cannot be written another place: Python flushes it as it ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


DAILY = "Daily work"
OPERATE = "Operate"
RESEARCH = "Research"


@dataclass(frozen=True)
class Command:
    """The module that defines a command; its line in help, else help imports it; its heading."""

    module: str
    about: str = ""
    heading: str = "Commands"


def commands_in(package: str, **modules: str) -> dict[str, Command]:
    """For ``LazyGroup``: the commands (names with blanks between) in each module of a package."""
    found = {
        name: Command(f"{package}.{module}")
        for module, names in modules.items()
        for name in names.split()
    }
    return dict(sorted(found.items()))


class LazyGroup(click.Group):
    """A group that knows its commands' names, and imports a command's module to run it.

    ``built_in`` are commands by name. Installed packages add more: an entry point of the group
    ``patchlight.commands`` is a mapping like it, in which ``"policy train"`` is a command of the
    group with the ``prefix`` ``"policy "``.
    """

    def __init__(
        self,
        *args: Any,
        built_in: Mapping[str, Command] | None = None,
        prefix: str = "",
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self.built_in = built_in or {}
        self._prefix = prefix
        self._added: dict[str, Command] | None = None

    def _described(self) -> Mapping[str, Command]:
        """All commands that are imported when they are used."""
        if self._added is None:
            # Imported here: this takes longer than a whole short command.
            from importlib.metadata import entry_points

            self._added = {
                rest: command
                for point in entry_points(group="patchlight.commands")
                for name, command in point.load().items()
                if " " not in (rest := name.removeprefix(self._prefix))
                and name.startswith(self._prefix)
            }
        return {**self.built_in, **self._added}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names."""
        return [*self.commands, *self._described()]

    def get_command(
        self, ctx: click.Context, cmd_name: str
    ) -> click.Command | None:
        """The command of that name, imported."""
        if here := super().get_command(ctx, cmd_name):
            return here
        command = self.built_in.get(cmd_name) or self._described().get(
            cmd_name
        )
        return (
            None
            if command is None
            else _load(f"{ctx.command_path} {cmd_name}", command)
        )

    def format_commands(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        """The names with their lines in help."""
        sections = {
            "Commands": [
                (name, c.get_short_help_str(80))
                for name, c in self.commands.items()
            ]
        }
        room = formatter.width - 6 - max(map(len, self.list_commands(ctx)))
        for name, lazy in self._described().items():
            command = None if lazy.about else self.get_command(ctx, name)
            about = (
                lazy.about
                if command is None
                else command.get_short_help_str(room)
            )
            sections.setdefault(lazy.heading, []).append((name, about))
        for heading, rows in sections.items():
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)
        if shared := described(ctx):
            with formatter.section("Shared options"):
                formatter.write_dl(shared)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that is meant; ``BadInput`` names the nearest if there is none."""
        name = args[0]
        if not (
            ctx.resilient_parsing
            or name.startswith("-")
            or self.get_command(ctx, name)
        ):
            # Plain ctx.fail() would not list the commands.
            hint = nearest(name, self.list_commands(ctx), "the commands are")
            raise BadInput(
                f"{ctx.command_path} has no command {name!r}: {hint}"
            )
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. If the reader of its output is gone, click and rich would end with 1."""
        try:
            return super().invoke(ctx)
        except (BrokenPipeError, SystemExit) as error:
            if BrokenPipeError not in (type(error), type(error.__context__)):
                raise
            let_go_of_output()
            return 0


def _load(called: str, command: Command) -> click.Command:
    try:
        module = importlib.import_module(command.module)
        name = called.rpartition(" ")[2]
    except ModuleNotFoundError as error:
        missing = error.name or "?"
        if missing == command.module:
            raise PatchlightError(
                f"{called} is not part of this installation: {missing} is missing",
                hint="install all of Patchlight again: pip install --force-reinstall patchlight",
            ) from error
        raise PackageMissing(called, error) from error
    defined = (
        each
        for each in vars(module).values()
        if isinstance(each, click.Command)
    )
    return next(each for each in defined if each.name == name)


def complete_lab(
    context: click.Context,
    parameter: click.Parameter,
    incomplete: str,
) -> list[CompletionItem]:
    """Labs that are up, built-in labs, and files."""
    # Imported late, as all that needs packages: `doctor` lists the missing ones.
    from patchlight.testbed.labfile.reader import builtin_labs
    from patchlight.testbed.wire.lab_api import RUN_ROOT

    up = sorted(path.parent.name for path in RUN_ROOT.glob("*/lab.yaml"))
    names = dict.fromkeys([*up, *builtin_labs()])
    items = [
        CompletionItem(name) for name in names if name.startswith(incomplete)
    ]
    return [*items, CompletionItem(incomplete, type="file")]


def lab_option(
    about: str | None = None,
    name: str = "lab_name",
    instead: tuple[str, ...] = ("address",),
    **settings: Any,
) -> Callable[[Decorated], Decorated]:
    """Give a command ``--lab``, or ``PATCHLIGHT_LAB``, as its parameter ``name``.

    With a text ``about`` it, the command's own help describes it.
    """
    settings |= {"metavar": "LAB", "envvar": LAB_VARIABLE, "show_envvar": True}
    settings |= {
        "shell_complete": complete_lab,
        "of": "" if about is None else None,
    }
    about = about or "The lab, by name or file; needed if several are up."
    return click.option(
        "--lab",
        name,
        cls=SharedOption,
        instead=instead,
        help=about,
        **settings,
    )


def _host_port(
    context: click.Context,
    parameter: click.Parameter,
    value: str | None,
) -> Any:
    from patchlight.testbed.labfile.values import HOST_PORT
    from patchlight.testbed.linux.sockets import UNIX

    if value is None or value.startswith(UNIX):
        return value
    try:
        return HOST_PORT.take(value.removeprefix("http://").rstrip("/"))
    except BadInput as error:
        expected = "expected HOST:PORT, like 127.0.0.1:8470, or unix:PATH"
        raise click.BadParameter(
            f"{value!r}: {expected}", context, parameter
        ) from error


address_option = click.option(
    "--controller",
    "address",
    cls=SharedOption,
    metavar="HOST:PORT|unix:PATH",
    callback=_host_port,
    help="The controller's API address, instead of --lab.  [default: the lab's]",
)
