"""Patchlight's commands as processes of their own."""

import functools
import subprocess
import sys
from pathlib import Path

from tests.support.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]


def python(
    *arguments: str, cwd: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    """Run Python in this folder, and wait for its end."""
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=PATIENCE_S
    )


patchlight = functools.partial(python, "-m", "patchlight")
