"""The planted faults fit the code, and one of them is found: ``make mutants`` plants them all."""

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.mutants import Mutant, mutants

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "mutant", mutants().values(), ids=lambda mutant: mutant.name
)
def test_a_mutant_fits_in_one_place(mutant: Mutant) -> None:
    spec = importlib.util.find_spec(mutant.module)
    assert spec is not None
    assert spec.origin is not None
    ast.parse(mutant.applied(Path(spec.origin).read_text()))


def test_a_planted_fault_is_found() -> None:
    command = [
        sys.executable,
        "-m",
        "tests.simulation.mutants",
        "hosts-not-freed",
    ]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert "1 of 1 found" in done.stdout, done.stdout + done.stderr
