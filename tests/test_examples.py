"""The files in examples/ run, and print what they say they do."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NEEDS_ROOT = {"emulated_lab"}


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
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    # Three dots stand for whatever comes, as the rest of a line or over several.
    expected = shown[2].replace("[", "[[]").replace("…", "*")
    assert fnmatchcase(done.stdout.strip(), expected.strip()), done.stdout
