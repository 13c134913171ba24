"""How commands start quickly, know the lab, end with an exit code, and run a child."""

import contextlib
import errno
import importlib
import os
import shlex
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from patchlight.console.rendering import listing_options, say
from patchlight.console.shared import SharedOption, described
from patchlight.testbed.errors import BadInput, FileError, PatchlightError, nearest
from patchlight.testbed.linux.processes import own_program

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

INTERRUPTED = 130
LAB_VARIABLE = "PATCHLIGHT_LAB"
# What a machine has run out of, and what to do. None of it is a bug of ours.
_RUN_OUT = {
    errno.ENOSPC: "free some disk space",
    errno.EDQUOT: "free some of your disk quota",
    errno.EROFS: "name a folder that can be written to",
    errno.EIO: "see what the kernel says of the device: dmesg",
    errno.EMFILE: "allow more open files: ulimit -n 65536",
    errno.ENFILE: "close some programs, or raise the sysctl fs.file-max",
}
_DASHBOARD_ENDS_S = 10.0
DAILY, OPERATE, RESEARCH = "Daily work", "Operate", "Research"


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
        self.built_in, self._prefix = built_in or {}, prefix
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

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, imported."""
        if here := super().get_command(ctx, cmd_name):
            return here
        command = self.built_in.get(cmd_name) or self._described().get(cmd_name)
        return None if command is None else _load(f"{ctx.command_path} {cmd_name}", command)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The names with their lines in help."""
        sections = {
            "Commands": [(name, c.get_short_help_str(80)) for name, c in self.commands.items()]
        }
        room = formatter.width - 6 - max(map(len, self.list_commands(ctx)))
        for name, lazy in self._described().items():
            command = None if lazy.about else self.get_command(ctx, name)
            about = lazy.about if command is None else command.get_short_help_str(room)
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
        if not (ctx.resilient_parsing or name.startswith("-") or self.get_command(ctx, name)):
            # Plain ctx.fail() would not list the commands.
            hint = nearest(name, self.list_commands(ctx), "the commands are")
            raise BadInput(f"{ctx.command_path} has no command {name!r}: {hint}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. If the reader of its output is gone, click and rich would end with 1."""
        try:
            return super().invoke(ctx)
        except (BrokenPipeError, SystemExit) as error:
            gone = error if isinstance(error, BrokenPipeError) else error.__context__
            if not isinstance(gone, BrokenPipeError):
                raise
            return report(gone, ctx.obj)


def _load(called: str, command: Command) -> click.Command:
    try:
        module, name = importlib.import_module(command.module), called.rpartition(" ")[2]
    except ModuleNotFoundError as error:
        missing = error.name or "?"
        if missing == command.module:
            raise PatchlightError(
                f"{called} is not part of this installation: {missing} is missing",
                hint="install all of Patchlight again: pip install --force-reinstall patchlight",
            ) from error
        raise PatchlightError(
            f"{called} needs the Python package {missing.partition('.')[0]!r}, which is not "
            "installed",
            hint=f"what this machine lacks: patchlight doctor (this Python is {sys.executable})",
        ) from error
    defined = (each for each in vars(module).values() if isinstance(each, click.Command))
    return next(each for each in defined if each.name == name)


def kept(name: str, packages: Sequence[str], make: Callable[[], Any]) -> Any:
    """The JSON value that ``make`` returns, kept in the user's cache as ``name``.

    It is made again once a file of these packages changes. Under sudo nothing is kept: the cache
    is another user's.
    """
    import hashlib
    import json

    from patchlight.testbed.linux.files import NoHome, user_folder

    read = (".py", ".json", ".onnx", ".yaml")
    folders = [Path(f) for p in packages for f in importlib.import_module(p).__path__]
    files = sorted(f for folder in folders for f in folder.rglob("*") if f.suffix in read)
    stats = [(str(file), (at := file.stat()).st_mtime_ns, at.st_size) for file in files]
    state = hashlib.sha256(repr((sys.version, stats)).encode()).hexdigest()
    try:
        path = user_folder("XDG_CACHE_HOME", ".cache") / "patchlight" / f"{name}.json"
    except NoHome:
        return make()
    mine = "SUDO_UID" not in os.environ
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        found = json.loads(path.read_text(encoding="utf-8")) if mine else {}
        if found["state"] == state:
            return found["value"]
    value = make()
    if mine:
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(f".{path.name}.{os.getpid()}")
            part.write_text(json.dumps({"state": state, "value": value}), encoding="utf-8")
            part.replace(path)
    return value


def complete_lab(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Labs that are up, built-in labs, and files."""
    # Imported late, as all that needs packages: `doctor` lists the missing ones.
    from patchlight.testbed.labfile.reader import builtin_labs
    from patchlight.testbed.wire.lab_api import RUN_ROOT

    up = sorted(path.parent.name for path in RUN_ROOT.glob("*/lab.yaml"))
    names = dict.fromkeys([*up, *builtin_labs()])
    items = [CompletionItem(name) for name in names if name.startswith(incomplete)]
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
    settings |= {"shell_complete": complete_lab, "of": "" if about is None else None}
    about = about or "The lab, by name or file; needed if several are up."
    return click.option("--lab", name, cls=SharedOption, instead=instead, help=about, **settings)


def _host_port(context: click.Context, parameter: click.Parameter, value: str | None) -> Any:
    from patchlight.testbed.labfile.values import HOST_PORT
    from patchlight.testbed.linux.sockets import UNIX

    if value is None or value.startswith(UNIX):
        return value
    try:
        return HOST_PORT.take(value.removeprefix("http://").rstrip("/"))
    except BadInput as error:
        expected = "expected HOST:PORT, like 127.0.0.1:8470, or unix:PATH"
        raise click.BadParameter(f"{value!r}: {expected}", context, parameter) from error


address_option = click.option(
    "--controller",
    "address",
    cls=SharedOption,
    metavar="HOST:PORT|unix:PATH",
    callback=_host_port,
    help="The controller's API address, instead of --lab.  [default: the lab's]",
)
# Made once, so that the help of ``patchlight`` can describe them without a command's module.
lab_option()(address_option(listing_options(lambda: None)))


@dataclass
class CrashReport:
    """Whether an error is printed with its traceback (``--debug``, ``PATCHLIGHT_DEBUG=1``)."""

    traceback: bool = False


def report(error: BaseException, settings: CrashReport) -> int:
    """Print ``error`` to standard error as a user can use it; its exit code."""
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        say(error.code, err=True)
        return 1
    if isinstance(error, BrokenPipeError):
        # The reader of our output is gone. Python would complain once more while it closes
        # standard output, so give it a place to write to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    if isinstance(error, KeyboardInterrupt | click.Abort):
        say("patchlight: interrupted", err=True)
        return INTERRUPTED
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return error.exit_code
    if isinstance(error, click.ClickException):
        text = error.format_message().rstrip(".")
        say(f"patchlight: {text[:1].lower()}{text[1:]}", err=True)
        if isinstance(error, click.UsageError) and error.ctx is not None:
            say(f"  see: {error.ctx.command_path} --help", err=True)
        return error.exit_code
    if settings.traceback:
        traceback.print_exception(error)
    if isinstance(error, PatchlightError):
        # Mistakes in a file have one line each and nothing before it: editors jump to the place.
        say(str(error) if isinstance(error, FileError) else f"patchlight: {error}", err=True)
        return error.exit_code
    if isinstance(error, OSError) and (what_to_do := _RUN_OUT.get(error.errno or 0)):
        where = f" ({error.filename})" if error.filename else ""
        say(f"patchlight: could not go on: {error.strerror}{where}", err=True)
        say(f"  {what_to_do}, and run the command again", err=True)
        return 1
    said = str(error).strip() or "no message"
    say(f"patchlight: unexpected {type(error).__name__}: {said}", err=True)
    if not settings.traceback:
        say("  this is a bug in Patchlight; its traceback: patchlight --debug …", err=True)
    return 1


def require_root(doing: str) -> None:
    """Raise ``PatchlightError`` with this command under sudo, unless this process is root."""
    if os.geteuid() != 0:
        words = shlex.join(sys.argv[1:])
        raise PatchlightError(f"{doing} needs root", hint=f"run: sudo {own_program()} {words}")


class Dashboard:
    """``patchlight dashboard`` as a child, which also ends when its parent is killed."""

    def __init__(
        self, controller: str, listen_at: str | None = None, *, stdout: int | None = None
    ) -> None:
        command = [sys.executable, "-m", "patchlight", "dashboard", "--while-stdin"]
        command += ["--controller", controller]
        command += ["--listen", listen_at] if listen_at is not None else []
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=stdout, text=True)

    def close(self) -> None:
        """End it, and wait until it has ended."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(_DASHBOARD_ENDS_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
