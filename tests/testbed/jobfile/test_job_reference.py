"""The reference of job files, made of their schema."""

import pytest

from patchlight.testbed.io.fields import Key
from patchlight.testbed.io.reader import FileIssues
from patchlight.testbed.jobfile.schema import (
    JOB,
    MOUNT,
    OF_FILES,
    SWEEP,
    job_file_reference,
)


@pytest.mark.parametrize(
    "key",
    [key for group in (JOB, MOUNT, OF_FILES, SWEEP) for key in group.keys],
    ids=lambda k: k.name,
)
def test_every_key_is_in_the_reference_with_an_example_that_can_be_read(
    key: Key,
) -> None:
    issues = FileIssues(key.name)
    assert key.type.parse(key.sample, issues) is not None
    issues.raise_if_any()
    assert f"| `{key.name}` | {key.about} |" in job_file_reference()
