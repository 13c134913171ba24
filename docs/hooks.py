"""What mkdocs does beside turning pages into HTML."""

import html
import re
from collections.abc import Callable, Iterator
from typing import Any

import click
from mkdocs.exceptions import PluginError

from patchlight.cli.main import cli
from patchlight.testbed.jobfile.schema import job_file_reference
from patchlight.testbed.lab.ocs_drivers import drivers_table
from patchlight.testbed.labfile.writer import lab_file_reference

# What a browser would fetch by itself: a link to click on is none of these.
FETCHED = re.compile(
    r'<(?:script|img|iframe)[^>]* src="https?:'
    r'|<link[^>]* rel="(?:stylesheet|preconnect)"[^>]* href="https?:'
)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put what the code says of itself where the page asks for it."""
    for comment, write in GENERATED.items():
        if comment in markdown:
            markdown = markdown.replace(comment, write())
    return markdown


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Refuse a page that would fetch something from another machine: the site works offline."""
    if fetched := FETCHED.search(output):
        raise PluginError(f"{page.file.src_path} fetches from another machine: {fetched[0]}")
    return output


def command_reference() -> str:
    """Every command: usage, help and options, as the command line itself has them."""
    return "\n\n".join(_command(cli, click.Context(cli, info_name="patchlight")))


def _command(command: click.Command, context: click.Context) -> Iterator[str]:
    usage = command.get_usage(context).removeprefix("Usage: ")
    heading = "##" if context.command_path.count(" ") < 2 else "###"
    yield f"{heading} {context.command_path}"
    yield f"```\n{' '.join(usage.split())}\n```"
    yield _escaped((command.help or "").replace("\b\n", ""))
    records = filter(
        None, (param.get_help_record(context) for param in command.get_params(context))
    )
    # An argument without a help text is in the usage already.
    cells = [_cells(name, text) for name, text in records if text or name.startswith("-")]
    rows = [f"| `{name}` | {text} |" for name, text in cells]
    if rows[:-1]:  # the last one is --help
        yield "\n".join(["| option | meaning |", "|---|---|", *rows[:-1]])
    if command.epilog:
        yield _escaped(command.epilog)
    if isinstance(command, click.Group):
        for name in sorted(command.list_commands(context)):
            sub = command.get_command(context, name)
            assert sub is not None
            yield from _command(sub, click.Context(sub, info_name=name, parent=context))


def _cells(*record: str) -> tuple[str, str]:
    name, text = (" ".join(cell.split()) for cell in record)
    return name, _escaped(text).replace("|", r"\|")


def _escaped(text: str) -> str:
    return (
        html.escape(text, quote=False).replace("*", r"\*").replace("_", r"\_").replace("[", r"\[")
    )


# What a page asks for with a comment, and the function that writes it.
GENERATED: dict[str, Callable[[], str]] = {
    "<!-- commands -->": command_reference,
    "<!-- job file reference -->": job_file_reference,
    "<!-- lab file reference -->": lab_file_reference,
    "<!-- table of drivers -->": drivers_table,
}
