"""What docs/topology.md shows works as it stands there."""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from patchlight.cli.main import cli
from patchlight.controller.policies.registry import BUILT_IN
from patchlight.testbed.labfile.reader import builtin_labs

TEXT = (Path(__file__).parents[2] / "docs" / "topology.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


@pytest.mark.usefixtures("one_core", "undrawn")
@pytest.mark.wings
def test_the_policy_of_twenty_lines_runs_in_the_simulator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for language, text in BLOCKS:
        if name := re.match(r"# (\S+)\n", text):
            Path(name[1]).write_text(text if language == "python" else text[name.end() :])
    code = Path("my_topology.py").read_text()
    assert len(code[code.index("class ") :].splitlines()) <= 20
    (lines,) = (text for language, text in BLOCKS if language == "sh")
    for line in lines.splitlines():
        program, *arguments = shlex.split(line)
        assert program == "patchlight"
        result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
        assert result.exit_code == 0, f"{line}\n{result.output}"
        assert "fault" not in result.stderr, line
    # All four lit the same rings: each job has all its links to itself.
    rows = [
        row.split() for row in result.output.splitlines() if "first-fit" in row and ":" not in row
    ]
    assert len(rows) == 4
    assert len({tuple(row[-12:]) for row in rows}) == 1


def test_the_page_names_what_there_is() -> None:
    for name in ("ring", "matching", "totient"):
        assert name in BUILT_IN["topology"]
        assert f"`{name}" in TEXT
    assert {"ring16", "four-ocs"} <= {*builtin_labs()}
