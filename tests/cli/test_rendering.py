"""What the commands print: text is never markup, nothing obeys a device, and 80 columns do."""

import ast
import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from patchlight.cli.main import cli
from patchlight.console.rendering import (
    Coloured,
    Column,
    Table,
    listing_options,
    print_json,
    say,
)

FOLDER = Path(__file__).parents[2] / "patchlight" / "cli"
RUDE = (
    "[/x]",
    "[rack 3] x",
    "[bold]",
    ":smile:",
    "\x1b[2J",
    "\x9b31m",
    "\ud800",
    "a\u202eb",
    "\r",
)


@click.command()
@click.argument("words", nargs=-1)
@listing_options
def shown(words: tuple[str, ...], as_json: bool) -> None:
    if as_json:
        print_json(list(words))
        return
    table = Table("word", "same", Column("again", wide=True), title=words[0])
    for word in words:
        table.add_row(word, Coloured(word, "bad"), word)
    table.print()
    for word in words:
        say(word, meaning="caution")
        say(word)


@pytest.mark.parametrize("text", RUDE)
def test_text_is_shown_as_it_is_and_never_obeyed(text: str) -> None:
    printed = CliRunner().invoke(shown, [text], env={"COLUMNS": "80"}).output
    plain = text.encode("unicode_escape").decode()
    assert printed.count(plain) == 5
    assert printed.replace("\n", "").isprintable()
    as_json = CliRunner().invoke(shown, [text, "--json"]).output
    assert json.loads(as_json) == [text]
    assert as_json.replace("\n", "").isprintable()


def test_wide_shows_every_column_and_names_are_never_cut() -> None:
    @click.command()
    @listing_options
    def table(as_json: bool) -> None:
        rows = Table(
            Column("id", whole=True), "words", Column("more", wide=True)
        )
        rows.add_row("job-" + 90 * "x", 30 * "word ", 60 * "m")
        rows.print()

    narrow = CliRunner().invoke(table, [], env={"COLUMNS": "80"}).output
    assert "job-" + 90 * "x" in narrow
    assert "more" not in narrow
    wide = CliRunner().invoke(table, ["--wide"], env={"COLUMNS": "80"}).output
    assert any(
        30 * "word " in line and 60 * "m" in line for line in wide.splitlines()
    )


@pytest.mark.parametrize(
    "command",
    [
        "lab show ofc2022",
        "policy show",
        pytest.param("graph show", marks=pytest.mark.wings),
        pytest.param("graph show alexnet", marks=pytest.mark.wings),
    ],
)
def test_tables_fit_80_columns(command: str) -> None:
    output = (
        CliRunner().invoke(cli, command.split(), env={"COLUMNS": "80"}).output
    )
    lines = output.splitlines()
    rules = [
        number for number, line in enumerate(lines) if line.startswith("───")
    ]
    assert rules
    for number in rules:
        assert max(map(len, lines[number - 1 : number + 8])) <= 80


def test_colour_is_for_terminals_that_want_it() -> None:
    def colours(**variables: str) -> bool:
        plain = {"NO_COLOR": "", "FORCE_COLOR": "", **variables}
        return "\x1b[31m" in CliRunner().invoke(shown, ["x"], env=plain).output

    assert colours(FORCE_COLOR="1", TERM="xterm")
    assert not colours(FORCE_COLOR="1", TERM="xterm", NO_COLOR="1")
    assert not colours()


def test_all_that_the_commands_print_goes_through_one_place() -> None:
    printers = {"echo", "secho", "style", "from_markup", "Console", "escape"}
    found = []
    for path in FOLDER.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if path.name == "rendering.py" or not isinstance(node, ast.Call):
                continue
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            of = getattr(node.func, "value", None)
            called = of.id if isinstance(of, ast.Name) else ""
            if called == "html" or (
                name == "style" and of is not None and called != "click"
            ):
                continue  # of a page in a browser
            if name in printers or (
                isinstance(node.func, ast.Name) and name == "print"
            ):
                found.append(
                    f"{path.relative_to(FOLDER)}:{node.lineno} {name}"
                )
    assert found == []
