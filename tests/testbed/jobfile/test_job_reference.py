"""The reference of job files, made of their schema."""

import pytest

from patchlight.testbed.io.describe import described, sample
from patchlight.testbed.io.keys import Keys, read
from patchlight.testbed.io.reader import FileIssues
from patchlight.testbed.jobfile.schema import (
    Job,
    MountKeys,
    SeveralJobs,
    Sweep,
    job_file_reference,
)


@pytest.mark.parametrize(
    ("group", "name"),
    [
        (group, name)
        for group in (Job, MountKeys, SeveralJobs, Sweep)
        for name in described(group)["properties"]
    ],
)
def test_every_key_is_in_the_reference_with_an_example_that_can_be_read(
    group: type[Keys], name: str
) -> None:
    key = described(group)["properties"][name]
    issues = FileIssues(name)
    read(group, f"{name}: {sample(key)}", issues)
    assert all("lacks" in issue.message for issue in issues.found), issues
    assert f"| `{name}` | {key['description']} |" in job_file_reference()
