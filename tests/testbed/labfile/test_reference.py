"""What is made of the lab file's schema: the reference, and files with comments."""

from collections.abc import Iterator, Mapping
from typing import Any, get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from patchlight.testbed.generate.generate import two_tors
from patchlight.testbed.io.describe import described, group_in, sample
from patchlight.testbed.io.keys import Keys, read
from patchlight.testbed.io.reader import FileIssues
from patchlight.testbed.lab.ocs_drivers import KNOWN_DRIVERS
from patchlight.testbed.labfile.reader import builtin_labs, load_lab, parse_lab
from patchlight.testbed.labfile.schema import LabKeys
from patchlight.testbed.labfile.writer import (
    lab_file_reference,
    write_commented_lab,
)


def keys_of(
    path: str, group: Mapping[str, Any]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, key in group["properties"].items():
        yield f"{path}{name}", key
        inner = group_in(key)
        if inner is not None:
            yield from keys_of(f"{path}{name}.", inner)


def groups_in(group: type[Keys]) -> Iterator[type[Keys]]:
    yield group
    for info in group.model_fields.values():
        inner = [info.annotation, *get_args(info.annotation)]
        for kind in inner:
            if isinstance(kind, type) and issubclass(kind, Keys):
                yield from groups_in(kind)


KEYS = dict(keys_of("", described(LabKeys)))
GROUPS = list(dict.fromkeys(groups_in(LabKeys)))


@pytest.mark.parametrize(
    ("group", "name"),
    [
        (group, name)
        for group in GROUPS
        for name in described(group)["properties"]
    ],
)
def test_every_key_has_an_example_that_can_be_read(
    group: type[Keys], name: str
) -> None:
    key = described(group)["properties"][name]
    issues = FileIssues(name)
    found = read(group, f"{name}: {sample(key)}", issues)
    assert name in found
    assert all("lacks" in issue.message for issue in issues.found)


@pytest.fixture(scope="module")
def reference() -> str:
    return lab_file_reference()


@pytest.mark.parametrize("path", KEYS)
def test_every_key_is_in_the_reference(path: str, reference: str) -> None:
    name = path.rpartition(".")[2]
    assert f"| `{name}` | {KEYS[path]['description']} |" in reference


def test_the_whole_file_in_the_reference_is_a_lab() -> None:
    _, _, rest = lab_file_reference().partition("```yaml\n")
    text, closing, _ = rest.partition("```")
    assert closing
    assert parse_lab(text) == load_lab("ofc2022")


@pytest.mark.parametrize("name", builtin_labs())
def test_comments_change_nothing(name: str) -> None:
    assert parse_lab(write_commented_lab(load_lab(name))) == load_lab(name)


@given(st.integers(1, 10), st.integers(1, 8))
@example(40, 8)
def test_a_first_lab_reads_back_equal(servers: int, gpus: int) -> None:
    lab = two_tors(servers, gpus=gpus, rate_bps=10**9)
    assert len(lab.hosts) == servers * gpus
    assert parse_lab(write_commented_lab(lab)) == lab


@pytest.mark.parametrize("driver", KNOWN_DRIVERS)
def test_a_first_lab_is_good_with_every_driver(driver: str) -> None:
    assert parse_lab(
        write_commented_lab(two_tors(2, driver=driver))
    ).circuit_switch("ocs1")


def test_what_may_be_left_out_is_there_behind_a_sign() -> None:
    lines = write_commented_lab(two_tors(2)).splitlines()
    where = lines.index("    # switching_time: 25ms")
    assert (
        lines[where - 1]
        == "    # The outage of a new circuit (default: 25ms)."
    )
