"""Writes a man page for each command into a folder: ``python docs/man_pages.py FOLDER``."""

import re
import sys
from functools import partial
from importlib.metadata import version
from pathlib import Path

import click
from click_man.core import write_man_pages

from patchlight.cli.main import cli


def _prepare(ctx: click.Context) -> None:
    """Import a group's commands, and show options that their help leaves to the group's."""
    ctx.command.short_help = ctx.command.get_short_help_str(200)
    for option in ctx.command.params:
        if isinstance(option, click.Option):
            setattr(  # noqa: B010
                option,
                "get_help_record",
                partial(click.Option.get_help_record, option),
            )
    if isinstance(ctx.command, click.Group):
        for name in ctx.command.list_commands(ctx):
            command = ctx.command.get_command(ctx, name)
            assert command is not None
            ctx.command.commands[name] = command
            _prepare(click.Context(command, ctx, name))


def _mended(page: str) -> str:
    """A page without what roff would misread: quotes at the start of a line, and click's marks."""
    page = re.sub(
        r"^'",
        r"\\&'",
        page,
        flags=re.MULTILINE,
    )
    return re.sub(
        r"^\x08$(.*?)(?=^\.)",
        r".nf\1.fi\n",
        page,
        flags=re.MULTILINE | re.DOTALL,
    )


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(
        parents=True,
        exist_ok=True,
    )
    _prepare(click.Context(cli, info_name="patchlight"))
    write_man_pages(
        "patchlight",
        cli,
        version=version("patchlight"),
        target_dir=str(folder),
    )
    for file in folder.glob("*.1"):
        file.write_text(_mended(file.read_text()))
