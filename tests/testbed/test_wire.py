"""What the API says is declared once: who reads or says something else is stopped by mypy."""

import subprocess
import sys
from pathlib import Path

from tests.support.programs import ROOT

READS = """
from patchlight.client.client import ControllerClient
from patchlight.testbed.wire.rest.circuits import MapChangeAnswer

def read(client: ControllerClient) -> str:
    return client.reconfiguration(1).{read}

def say() -> MapChangeAnswer:
    return MapChangeAnswer(breaks=[], {said}=["1>2"])
"""


def checked(folder: Path, read: str, said: str) -> tuple[int, str]:
    """The exit code and the output of mypy."""
    program = folder / "program.py"
    program.write_text(READS.format(read=read, said=said))
    done = subprocess.run(
        [sys.executable, "-m", "mypy", program],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    return done.returncode, done.stdout


def test_a_field_of_another_name_is_seen_on_both_sides(
    tmp_path: Path,
) -> None:
    assert checked(tmp_path, "why", "makes")[0] == 0
    code, words = checked(tmp_path, "reason", "made")
    assert code == 1
    assert '"ChangeAnswer" has no attribute "reason"' in words
    assert 'Unexpected keyword argument "made"' in words
