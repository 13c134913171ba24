"""What pages show works as it stands there: their files, and their commands one after the other."""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from patchlight.cli.main import cli
from patchlight.controller.policies.registry import BUILT_IN

DOCS = Path(__file__).parents[1] / "docs"
# The lines that a class on the page has at most, and the commands that there are at least.
PAGES = {"policies": (20, 6), "environments": (40, 4), "topology": (20, 2)}

pytestmark = pytest.mark.wings


@pytest.mark.usefixtures("one_core", "undrawn")
@pytest.mark.parametrize("page", PAGES)
def test_files_are_short_and_commands_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if page == "environments":
        pytest.importorskip(
            "gymnasium", reason="Gymnasium is not installed: extra 'learn'"
        )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    commands = list[str]()
    classes = list[str]()
    for language, block in re.findall(
        r"^```(\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE
    ):
        if language == "sh":
            commands += block.splitlines()
        elif name := re.match(r"# (\S+)\n", block):
            is_code = language == "python"
            Path(name[1]).write_text(block if is_code else block[name.end() :])
            classes += block.split("\nclass ")[1:] if is_code else []
    most_lines, least_commands = PAGES[page]
    assert max(len(code.splitlines()) for code in classes) <= most_lines
    assert len(commands) >= least_commands
    for line in filter(None, commands):
        program, *arguments = shlex.split(line)
        assert program == "patchlight"
        few = ["--seeds", "1"] if "pac-ml" in arguments else []
        result = CliRunner().invoke(
            cli, [*arguments, *few], catch_exceptions=False
        )
        assert result.exit_code == 0, f"{line}\n{result.output}"
        assert "fault" not in result.stderr, line
    if page == "topology":
        # All four lit the same rings: each job has all its links to itself.
        rows = [
            row
            for row in result.output.splitlines()
            if "first-fit" in row and ":" not in row
        ]
        assert len(rows) == 4
        assert len({tuple(row.split()[-12:]) for row in rows}) == 1


def test_the_page_on_policies_names_every_built_in() -> None:
    text = (DOCS / "policies.md").read_text(encoding="utf-8")
    for names in BUILT_IN.values():
        for name in names:
            assert f"`{name}`" in text or f"`{name}:N`" in text


def test_every_environment_and_its_heuristics_are_on_their_page() -> None:
    pytest.importorskip(
        "gymnasium", reason="Gymnasium is not installed: extra 'learn'"
    )
    from patchlight.emulation.learning.envs.registry import (
        ENVIRONMENTS,
        find_environment,
        heuristics_of,
    )

    text = (DOCS / "environments.md").read_text(encoding="utf-8")
    table = text.partition("\n## Heuristics\n")[2].partition("\n## ")[0]
    for each in ENVIRONMENTS:
        assert f"| `{each.name}` |" in text
        short = each.name.removeprefix("patchlight/").removesuffix("-v0")
        (row,) = re.findall(rf"^\| `{short}`, .*", table, re.MULTILINE)
        assert set(heuristics_of(find_environment(each.name).make())) <= set(
            re.findall(r"`([\w:-]+)`", row)
        )
