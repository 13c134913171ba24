"""Names, files and labs for the tests of emulated labs."""

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from patchlight import EmulatedLab
from patchlight.emulation.lab.emulated_lab import down_lab
from tests.support.emulated_labs import SWITCHES_ONLY, TWO_TORS

_numbers = itertools.count()


@pytest.fixture
def new_name() -> Iterator[Callable[[], str]]:
    """Gives lab names that are this run's own, and removes what is left of them."""
    given: list[str] = []

    def name() -> str:
        given.append(f"t{os.getpid()}-{next(_numbers)}")
        return given[-1]

    yield name
    for used in given:
        down_lab(used)


@pytest.fixture
def two_tors(tmp_path: Path) -> Path:
    path = tmp_path / "two-tors.yaml"
    path.write_text(TWO_TORS)
    return path


@pytest.fixture
def lab(two_tors: Path, new_name: Callable[[], str]) -> Iterator[EmulatedLab]:
    """Two switches that learn, with two NICs of one server and one of another; rates / 1000."""
    with EmulatedLab.from_file(
        two_tors, 1000, name=new_name(), **SWITCHES_ONLY
    ) as lab:
        yield lab
