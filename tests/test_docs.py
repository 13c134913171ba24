"""What the pages say is there: commands, files, public names; what examples say they print."""

import ast
import configparser
import functools
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import click
import pytest

import patchlight
from patchlight.cli.main import cli
from patchlight.conformance import conformance
from patchlight.testbed.lab.ocs_drivers import OCS_DRIVERS, WSS_DRIVERS
from tests.support.house import House
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.wings

ROOT = Path(__file__).parents[1]
NEEDS_ROOT = {"build_lab", "emulated_lab"}
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
DRIVER_PAGES = ("ocs-drivers", "wavelengths")
FOLDERS = "agents|benchmarks|controller|deploy|docs|emulation|examples|patchlight|testbed|tests"


def _commands(text: str) -> list[str]:
    blocks = re.compile(
        r"^```(?:sh|console|)\n(.*?)^```$", re.DOTALL | re.MULTILINE
    )
    lines = "".join(blocks.findall(text)).replace("\\\n", " ").splitlines()
    starts = r"^(?:[$#] )?(?:sudo |\w+=\S+ )*(?:\.venv/bin/)?patchlight (.*)"
    # In a sentence 'ocs show' is a command too.
    quoted = [
        span.removeprefix("sudo ").removeprefix("patchlight ")
        for span in re.findall(r"`([^`\n]+)`", blocks.sub("", text))
    ]
    return [
        *(match[1] for line in lines if (match := re.match(starts, line))),
        *(
            span
            for span in quoted
            if re.match(r"[a-z]+ [a-z-]", span) and _is_command(span)
        ),
    ]


@functools.cache
def _options(command: click.Command) -> set[str]:
    """The options of a command; of a group, those of its commands."""
    found = {
        name
        for option in command.params
        for name in (*option.opts, *option.secondary_opts)
    }
    if isinstance(command, click.Group):
        context = click.Context(command)
        below = [
            command.get_command(context, name)
            for name in command.list_commands(context)
        ]
        found = found.union(*(_options(each) for each in below if each))
    return {*found, "--help"}


def _command(words: Sequence[str]) -> tuple[click.Command, Sequence[str]]:
    """The command that these words begin with, and the words after it; ``KeyError`` if none."""
    command: click.Command = cli
    while (
        isinstance(command, click.Group)
        and words
        and re.fullmatch(r"[a-z][\w-]*", words[0])
    ):
        found = command.get_command(click.Context(command), words[0])
        if found is None:
            raise KeyError(words[0])
        command = found
        words = words[1:]
    return command, words


# What the changelog names may be gone.
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page.name != "CHANGELOG.md"],
    ids=lambda page: page.name,
)
def test_commands_are_there_with_their_options(page: Path) -> None:
    for line in _commands(page.read_text(encoding="utf-8")):
        arguments = shlex.split(
            re.split(r"\s{2,}| \| | -- ", line)[0], comments=True
        )
        command, rest = _command(arguments)
        options = {
            text.partition("=")[0] for text in rest if text.startswith("--")
        }
        assert options <= _options(command), line
        _parse(command, rest)


def _by_name(group: click.Group) -> Iterator[tuple[str, click.Command]]:
    """All commands below a group, by their last word."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield name, command
        if isinstance(command, click.Group):
            yield from _by_name(command)


# Programs of others with an option of the same name as one of ours.
_PROGRAMS = {
    "docker",
    "mypy",
    "patchlight",
    "pip",
    "prometheus",
    "python",
    "ray",
    "rdma",
    "torchrun",
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_short_name_of_a_command_has_its_options(page: Path) -> None:
    """Like `apply --only` on the page about circuits."""
    ours = list(_by_name(cli))
    text = page.read_text(encoding="utf-8")
    if page.name == "CHANGELOG.md":
        return
    for name, option in re.findall(r"`([a-z]+) (--[a-z-]+)", text):
        known = [_options(command) for word, command in ours if word == name]
        if name not in _PROGRAMS and (known or option in _options(cli)):
            assert any(option in each for each in known), f"{name} {option}"


def _parse(command: click.Command, arguments: Sequence[str]) -> None:
    """Refuse options without their value, and values that an option does not have."""
    context = click.Context(command)
    if arguments and arguments[-1].startswith("--"):
        return  # an option is named, not given
    given, _, _ = command.make_parser(context).parse_args([*arguments])
    for param in command.params:
        value = given.get(param.name or "")
        if isinstance(param.type, click.Choice) and isinstance(value, str):
            assert value.isupper() or value in param.type.choices, arguments


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_are_named_are_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    names = re.findall(rf"`((?:{FOLDERS})/[\w./-]+)`", text)
    # What is to be written is called acme; Gymnasium's environments end in -v0.
    there = [
        name
        for name in names
        if "acme" not in name and not name.endswith("-v0")
    ]
    assert [name for name in there if not (ROOT / name).exists()] == []


# Texts with options of other programs than ours.
_OTHERS = (
    r"pip install|python3? -m|useradd|nvidia-ctk|setpriv|ip netns|sonic-cfggen|"
    r"ray start|\.sh\b|^… -|^--pl-|{"
)


def _texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """All strings of a module by line, help included; what an f-string fills in is ``…``."""
    inside = set[int]()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            inside.update(map(id, node.values))
            parts = [
                part.value
                if isinstance(part, ast.Constant)
                else (
                    "patchlight" if "own_program" in ast.unparse(part) else "…"
                )
                for part in node.values
            ]
            yield node.lineno, _in_one_line("".join(map(str, parts)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from [(node.lineno, _in_one_line(node.value))] * (
                id(node) not in inside
            )


def _in_one_line(text: str) -> str:
    # What stands in another column is not of the command.
    return " ".join(re.sub(r"(?<=\S)  +(?=\S)", " | ", text).split())


def _missing(text: str) -> Iterator[str]:
    """What a message, a hint or a help text names and is not there."""
    # 'ocs show' is a command too.
    quoted = [
        each
        for each in re.findall(r"'([a-z]+(?: [a-z-]+)+)", text)
        if _is_command(each)
    ]
    # The user's own program.
    text = re.sub(r" -- .*?(?= patchlight |$)", "", text)
    for words in [
        *re.findall(r"(?<![\w/])patchlight ([\w… -]+)", text),
        *quoted,
    ]:
        try:
            command, rest = _command(words.split())
        except KeyError as error:
            yield f"patchlight {words}: no command {error}"
            continue
        if command is not cli:
            given = {word for word in rest if word.startswith("--")}
            yield from (
                f"patchlight {words}: no {word}"
                for word in given - _options(command)
            )
    if " " in text and not re.search(_OTHERS, text):
        known = _options(cli) | _options(conformance)
        # The others tell programmers of code.
        messages = re.sub(r"``.*?``", "", text)
        given = set(
            re.findall(r"(?<![\w-])--[a-z][\w-]*\w(?![\w…-]|\.\w)", messages)
        )
        yield from (f"no option {word}" for word in given - known)
    for name in re.findall(
        rf"(?<![\w/.…-])(?!patchlight)((?:{FOLDERS})/[\w./-]*\w\.\w+)", text
    ):
        if not (ROOT / name).exists():
            yield f"no file {name}"
    for target in re.findall(r"(?:^|['`])make ([a-z-]+)(?:['`]|$)", text):
        if target not in _targets():
            yield f"no make {target}"
    for extra in re.findall(r"patchlight\[(\w+)\]", text):
        if extra not in _extras():
            yield f"no extra {extra}"


@functools.cache
def _targets() -> list[str]:
    return re.findall(
        r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE
    )


@functools.cache
def _extras() -> set[str]:
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    return {*settings["options.extras_require"]}


def _is_command(words: str) -> bool:
    return (
        cli.get_command(click.Context(cli), words.partition(" ")[0])
        is not None
    )


def test_what_a_message_names_is_found_missing() -> None:
    def found(line: str) -> list[str]:
        return [
            each
            for _, text in _texts(ast.parse(line))
            for each in _missing(text)
        ]

    assert found("f'run: {own_program()} job cancel {id}'") == [
        "patchlight job cancel …: no command 'cancel'"
    ]
    assert found("'(patchlight job stop --sofort), or so'") == [
        "patchlight job stop --sofort: no --sofort",
        "no option --sofort",
    ]
    assert found("\"see 'ocs shaw', or omit --docker\"") == [
        "patchlight ocs shaw: no command 'shaw'",
        "no option --docker",
    ]
    assert found("'deploy/worker-image.sh --docker, docs/nowhere.md'") == [
        "no file docs/nowhere.md"
    ]
    assert found("\"'make tests', pip install 'patchlight[lern]'\"") == [
        "no make tests",
        "no extra lern",
    ]


def test_what_messages_hints_and_help_name_is_there() -> None:
    # An emulated device speaks of the options of its vendor's commands.
    vendors = ROOT / "emulation/optical/vendors"
    missing = [
        f"{source.path.relative_to(ROOT)}:{line}: {what}"
        for source in House().sources
        if vendors not in source.path.parents
        for line, text in _texts(source.tree)
        for what in _missing(text)
    ]
    assert missing == []


def test_what_scripts_say_is_there() -> None:
    missing = [
        f"{script.relative_to(ROOT)}: {what}"
        for folder in ("deploy", "emulation", "tests", ".ci")
        for script in [
            *(ROOT / folder).rglob("*.sh"),
            *(ROOT / folder).glob("run"),
        ]
        for line in script.read_text().splitlines()
        for what in _missing(line.replace("$", "…"))
        # They run many programs, and have the names of folders and entry points in them.
        if not what.startswith("no option")
        and not what.endswith("no command 'testbed'")
    ]
    assert missing == []


def test_every_driver_is_in_a_table() -> None:
    text = "".join(
        (ROOT / "docs" / f"{page}.md").read_text() for page in DRIVER_PAGES
    )
    rows = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([^`]+)`", row)}
    assert {*OCS_DRIVERS, *WSS_DRIVERS} <= named


def test_the_python_page_has_every_public_name() -> None:
    text = (ROOT / "docs" / "reference" / "python.md").read_text(
        encoding="utf-8"
    )
    assert (
        sorted(re.findall(r"^::: patchlight\.(\w+)$", text, re.MULTILINE))
        == patchlight.__all__
    )


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(
            path,
            marks=[pytest.mark.root, pytest.mark.ovs]
            * (path.stem in NEEDS_ROOT),
        )
        for path in sorted((ROOT / "examples").glob("*.py"))
    ],
    ids=lambda path: path.stem,
)
def test_example_prints_what_it_says(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 40
    shown = re.search(r"^\$ (.*)\n((?:.*\n)*?)\"\"\"", text, re.MULTILINE)
    assert shown, "an example's docstring shows the command and its output"
    program, *arguments = shlex.split(shown[1])
    command = (
        [sys.executable]
        if program == "python"
        else [sys.executable, "-m", program]
    )
    done = subprocess.run(
        [*command, *arguments],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONUNBUFFERED": "1",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    # Three dots stand for whatever comes, as the rest of a line or over several.
    expected = shown[2].replace("[", "[[]").replace("…", "*")
    assert fnmatchcase(done.stdout.strip(), expected.strip()), done.stdout
