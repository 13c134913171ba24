"""Writes the reference pages, and checks what mkdocs makes of pages.

Between ``<!-- NAME -->`` and ``<!-- /NAME -->`` a page has what the code says of itself;
``PATCHLIGHT_GOLDEN=write pytest tests/test_golden.py`` writes it again.
"""

import html
import inspect
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import Files

from patchlight.cli.main import cli
from patchlight.console.shared import described
from patchlight.testbed.jobfile.schema import job_file_reference
from patchlight.testbed.lab.ocs_drivers import drivers_table
from patchlight.testbed.labfile.writer import lab_file_reference

# What a browser would fetch by itself: a link to click on is none of these.
FETCHED = re.compile(
    r'<(?:script|img|iframe)[^>]* src="https?:'
    r'|<link[^>]* rel="(?:stylesheet|preconnect)"[^>]* href="https?:'
)

PART = re.compile(r"<!-- ([\w ]+) -->\n.*?<!-- /\1 -->\n", re.DOTALL)

_DOCS = Path(__file__).parent
_ROOT = click.Context(cli, info_name="patchlight")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Put the page of each group of commands into the menu."""
    reference = next(
        section["Reference"]
        for section in config.nav or ()
        if "Reference" in section
    )
    commands = next(entry for entry in reference if "Commands" in entry)
    commands["Commands"] = [commands["Commands"]]
    commands["Commands"] += [
        {f"patchlight {name}": f"reference/{name}.md"} for name in _groups()
    ]
    return files


def pages() -> dict[str, str]:
    """All pages with generated parts, by their path in docs/, as they should be."""
    found = {
        path.relative_to(_DOCS).as_posix(): path.read_text(encoding="utf-8")
        for path in _DOCS.rglob("*.md")
    }
    writers = dict(GENERATED)
    for name, group in _groups().items():
        writers[f"patchlight {name}"] = group
        path = f"reference/{name}.md"
        found.setdefault(path, _part(f"patchlight {name}", ""))
    made = {}
    for path, text in found.items():
        if PART.search(text):
            made[path] = PART.sub(
                lambda part: _part(part[1], writers[part[1]]()), text
            )
    return made


def _part(name: str, text: str) -> str:
    return f"<!-- {name} -->\n\n{text.strip()}\n\n<!-- /{name} -->\n"


def _groups() -> dict[str, Callable[[], str]]:
    """What writes the page of each group of commands."""
    return {
        name: partial(_page, command, context)
        for name, command, context in _subcommands(cli, _ROOT)
        if isinstance(command, click.Group)
    }


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Refuse a page that would fetch something from another machine: the site works offline."""
    if fetched := FETCHED.search(output):
        raise PluginError(
            f"{page.file.src_path} fetches from another machine: {fetched[0]}"
        )
    return output


def commands() -> str:
    """A table of all commands, with links to the groups' pages, and the commands without one."""
    rows, alone = ["| command | does |", "|---|---|"], list[str]()
    for name, command, context in _subcommands(cli, _ROOT):
        group = isinstance(command, click.Group)
        link = f"{name}.md" if group else f"#patchlight-{name}"
        rows.append(
            f"| [{name}]({link}) | {_escaped(command.get_short_help_str(200))} |"
        )
        alone += () if group else _command(command, context)
    return "\n\n".join(["\n".join(rows), *_options(cli, _ROOT), *alone])


def _subcommands(
    group: click.Group, context: click.Context
) -> Iterator[tuple[str, click.Command, click.Context]]:
    for name in sorted(group.list_commands(context)):
        command = group.get_command(context, name)
        assert command is not None
        yield (
            name,
            command,
            click.Context(command, info_name=name, parent=context),
        )


def _page(command: click.Command, context: click.Context) -> str:
    return "\n\n".join(_command(command, context))


def _command(command: click.Command, context: click.Context) -> Iterator[str]:
    """Usage, help and options of a command and of those below it, as the terminal shows them."""
    usage = command.get_usage(context).removeprefix("Usage: ")
    group = isinstance(command, click.Group)
    yield f"{'#' if group else '##'} {context.command_path}"
    yield f"```\n{' '.join(usage.split())}\n```"
    yield from _paragraphs(command.help)
    yield from _options(command, context)
    yield from _paragraphs(command.epilog)
    if isinstance(command, click.Group):
        for _, below, its_context in _subcommands(command, context):
            yield from _command(below, its_context)


def _paragraphs(text: str | None) -> Iterator[str]:
    for paragraph in inspect.cleandoc(text or "").split("\n\n"):
        # Click prints as it is what follows a backspace.
        literal = paragraph.removeprefix("\b\n")
        yield (
            _escaped(paragraph)
            if literal == paragraph
            else f"```\n{literal}\n```"
        )


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    help_ = set(command.get_help_option_names(context))
    records = [
        record
        for param in command.get_params(context)
        if not help_ & set(param.opts)
        and (record := param.get_help_record(context))
    ]
    if isinstance(command, click.Group):
        records += described(context)
    # An argument without a help text is in the usage already.
    cells = [
        _cells(name, text)
        for name, text in records
        if text or name.startswith("-")
    ]
    if rows := [f"| `{name}` | {text} |" for name, text in cells]:
        yield "\n".join(["| option | meaning |", "|---|---|", *rows])


def _cells(*record: str) -> tuple[str, str]:
    name, text = (" ".join(cell.split()) for cell in record)
    return name, _escaped(text).replace("|", r"\|")


def _escaped(text: str) -> str:
    return (
        html.escape(text, quote=False)
        .replace("*", r"\*")
        .replace("_", r"\_")
        .replace("[", r"\[")
    )


# The generated parts of pages, and the functions that write them.
GENERATED: dict[str, Callable[[], str]] = {
    "commands": commands,
    "job file reference": job_file_reference,
    "lab file reference": lab_file_reference,
    "table of drivers": drivers_table,
}
