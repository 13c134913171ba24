"""What mkdocs does beside turning pages into HTML."""

import html
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

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

_ROOT = click.Context(cli, info_name="patchlight")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each group of commands, like reference/ocs.md for 'patchlight ocs'."""
    reference = next(
        section["Reference"]
        for section in config.nav or ()
        if "Reference" in section
    )
    commands = next(entry for entry in reference if "Commands" in entry)
    commands["Commands"] = [commands["Commands"]]
    for name, command, context in _subcommands(cli, _ROOT):
        if isinstance(command, click.Group):
            path = f"reference/{name}.md"
            content = "\n\n".join(_command(command, context))
            files.append(File.generated(config, path, content=content))
            commands["Commands"].append({f"patchlight {name}": path})
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put what the code says of itself where the page asks for it."""
    for comment, write in GENERATED.items():
        if comment in markdown:
            markdown = markdown.replace(comment, write())
    return markdown


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


# What a page asks for with a comment, and the function that writes it.
GENERATED: dict[str, Callable[[], str]] = {
    "<!-- commands -->": commands,
    "<!-- job file reference -->": job_file_reference,
    "<!-- lab file reference -->": lab_file_reference,
    "<!-- table of drivers -->": drivers_table,
}
