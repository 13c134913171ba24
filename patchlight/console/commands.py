"""What makes commands start quickly: modules imported when used, and answers that are kept."""

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from patchlight.console.errors import report
from patchlight.testbed.errors import BadInput, PatchlightError

GROUP = "patchlight.commands"
_READ = (".py", ".json", ".onnx", ".yaml")


@dataclass(frozen=True)
class Command:
    """The module that has a command of its own name, and what it is for."""

    module: str
    about: str


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
                for point in entry_points(group=GROUP)
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
        """The names with what they are for."""
        rows = [(name, command.get_short_help_str(80)) for name, command in self.commands.items()]
        rows += [(name, command.about) for name, command in self._described().items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that is meant; ``BadInput`` names the nearest if there is none."""
        name = args[0]
        if not (ctx.resilient_parsing or name.startswith("-") or self.get_command(ctx, name)):
            # Plain ctx.fail() would not say which commands there are.
            from patchlight.testbed.io.issues import nearest

            hint = nearest(name, self.list_commands(ctx), "the commands are")
            raise BadInput(f"{ctx.command_path} has no command {name!r}: {hint}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Whoever reads the output may go: click and rich would end with 1."""
        try:
            return super().invoke(ctx)
        except (BrokenPipeError, SystemExit) as error:
            gone = error if isinstance(error, BrokenPipeError) else error.__context__
            if not isinstance(gone, BrokenPipeError):
                raise
            return report(gone, ctx.obj)


def _load(called: str, command: Command) -> click.Command:
    try:
        found = getattr(importlib.import_module(command.module), called.rpartition(" ")[2])
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
    assert isinstance(found, click.Command)
    return found


def kept(name: str, packages: Sequence[str], make: Callable[[], Any]) -> Any:
    """The JSON value that ``make`` returns, kept in the user's cache as ``name``.

    It is made again once a file of these packages is another. Under sudo nothing is kept: the cache
    is another user's.
    """
    import hashlib
    import json

    from patchlight.testbed.linux.files import NoHome, user_folder

    folders = [Path(f) for p in packages for f in importlib.import_module(p).__path__]
    files = sorted(f for folder in folders for f in folder.rglob("*") if f.suffix in _READ)
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
