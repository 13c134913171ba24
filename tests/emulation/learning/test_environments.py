"""What ``patchlight env check`` looks at, in each environment that comes along."""

import pytest

pytest.importorskip(
    "gymnasium", reason="Gymnasium is not installed: extra 'learn'"
)

import patchlight.emulation.learning  # noqa: F401 - registers the environments
from patchlight.emulation.learning.envs.registry import (
    ENVIRONMENTS,
    find_environment,
)
from patchlight.emulation.learning.envs.testing import check_environment


@pytest.mark.parametrize("name", [each.name for each in ENVIRONMENTS])
def test_nothing_is_wrong_with_it(name: str) -> None:
    checked = check_environment(find_environment(name), steps=200)
    assert checked.is_good, checked.checks
