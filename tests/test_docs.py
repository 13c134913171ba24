"""What the pages say is there: commands, files, public names; what examples say they print."""

import os
import re
import shlex
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path

import click
import pytest

import patchlight
from patchlight.cli.main import cli
from patchlight.testbed.lab.ocs_drivers import OCS_DRIVERS, WSS_DRIVERS
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.wings

ROOT = Path(__file__).parents[1]
NEEDS_ROOT = {"build_lab", "emulated_lab"}
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
DRIVER_PAGES = ("ocs-drivers", "wavelengths")
FOLDERS = "agents|benchmarks|controller|deploy|docs|emulation|examples|patchlight|testbed|tests"


def _commands(text: str) -> list[str]:
    blocks = re.findall(r"^```(?:sh|console|)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    starts = r"^(?:[$#] )?(?:sudo |\w+=\S+ )*(?:\.venv/bin/)?patchlight (.*)"
    return [match[1] for line in lines if (match := re.match(starts, line))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_are_there_with_their_options(page: Path) -> None:
    for line in _commands(page.read_text(encoding="utf-8")):
        arguments = shlex.split(re.split(r"\s{2,}| \| | -- ", line)[0], comments=True)
        command: click.Command = cli
        context = click.Context(cli)
        while isinstance(command, click.Group) and arguments:
            found = command.get_command(context, arguments.pop(0))
            assert found is not None, line
            command = found
        known = {
            name for option in command.params for name in (*option.opts, *option.secondary_opts)
        }
        options = {text.partition("=")[0] for text in arguments if text.startswith("--")}
        assert options <= {*known, "--help"}, line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_are_named_are_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    names = re.findall(rf"`((?:{FOLDERS})/[\w./-]+)`", text)
    # What is to be written is called acme; Gymnasium's environments end in -v0.
    there = [name for name in names if "acme" not in name and not name.endswith("-v0")]
    assert [name for name in there if not (ROOT / name).exists()] == []


def test_every_driver_is_in_a_table() -> None:
    text = "".join((ROOT / "docs" / f"{page}.md").read_text() for page in DRIVER_PAGES)
    rows = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([^`]+)`", row)}
    assert {*OCS_DRIVERS, *WSS_DRIVERS} <= named


def test_the_python_page_has_every_public_name() -> None:
    text = (ROOT / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^::: patchlight\.(\w+)$", text, re.MULTILINE)) == patchlight.__all__


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=[pytest.mark.root, pytest.mark.ovs] * (path.stem in NEEDS_ROOT))
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
    command = [sys.executable] if program == "python" else [sys.executable, "-m", program]
    done = subprocess.run(
        [*command, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"},
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
