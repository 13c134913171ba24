"""What docs/policies.md shows works as it stands there."""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from patchlight.cli.main import cli
from patchlight.controller.policies.registry import BUILT_IN

TEXT = (Path(__file__).parents[2] / "docs" / "policies.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the page's files."""
    for language, text in BLOCKS:
        name = re.match(r"# (\S+)\n", text)
        if language in ("python", "csv") and name:
            (tmp_path / name[1]).write_text(text if language == "python" else text[name.end() :])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def test_examples_are_of_twenty_lines(folder: Path) -> None:
    classes = [part for path in folder.glob("*.py") for part in path.read_text().split("\nclass ")]
    assert len(classes) >= 4
    assert max(len(text.splitlines()) for text in classes) <= 20


def test_every_command_of_the_page_runs(folder: Path) -> None:
    lines = [
        line for language, text in BLOCKS if language == "sh" for line in text.splitlines() if line
    ]
    assert len(lines) >= 6
    for line in lines:
        program, *arguments = shlex.split(line)
        assert program == "patchlight"
        result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
        assert result.exit_code == 0, f"{line}\n{result.output}"
        assert "fault" not in result.stderr, line


def test_the_page_names_every_built_in() -> None:
    for names in BUILT_IN.values():
        for name in names:
            assert f"`{name}`" in TEXT or f"`{name}:N`" in TEXT
