"""What docs/environments.md shows works as it stands there."""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from patchlight.cli.main import cli

pytest.importorskip("gymnasium", reason="Gymnasium is not installed: extra 'learn'")

from patchlight.emulation.learning.envs.registry import (
    ENVIRONMENTS,
    find_environment,
    heuristics_of,
)

TEXT = (Path(__file__).parents[2] / "docs" / "environments.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


def test_the_example_has_forty_lines_and_every_command_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (example,) = [text for language, text in BLOCKS if language == "python"]
    assert len(example.splitlines()) <= 40
    Path(example.splitlines()[0].removeprefix("# ")).write_text(example)
    lines = [line for language, text in BLOCKS if language == "sh" for line in text.splitlines()]
    assert len(lines) >= 4
    for line in lines:
        program, *arguments = shlex.split(line)
        assert program == "patchlight"
        done = CliRunner().invoke(cli, arguments, catch_exceptions=False)
        assert done.exit_code == 0, f"{line}\n{done.output}"


def test_every_environment_and_its_heuristics_are_on_the_page() -> None:
    table = TEXT.partition("\n## Heuristics\n")[2].partition("\n## ")[0]
    for each in ENVIRONMENTS:
        assert f"| `{each.name}` |" in TEXT
        short = each.name.removeprefix("patchlight/").removesuffix("-v0")
        (row,) = re.findall(rf"^\| `{short}`, .*", table, re.MULTILINE)
        assert set(heuristics_of(find_environment(each.name).make())) <= set(
            re.findall(r"`([\w:-]+)`", row)
        )
