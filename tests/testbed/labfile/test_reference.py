"""What is made of the lab file's schema: the reference, and files with comments."""

from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from patchlight.testbed.generate.generate import two_tors
from patchlight.testbed.io.fields import Group, Key
from patchlight.testbed.io.forms import group_of
from patchlight.testbed.io.reader import FileIssues
from patchlight.testbed.labfile.reader import builtin_labs, load_lab, parse_lab
from patchlight.testbed.labfile.schema import LAB
from patchlight.testbed.labfile.values import KNOWN_DRIVERS
from patchlight.testbed.labfile.writer import (
    lab_file_reference,
    write_commented_lab,
)


def keys_of(path: str, group: Group) -> Iterator[tuple[str, Key]]:
    for key in group.keys:
        yield f"{path}{key.name}", key
        inner = group_of(key.type)
        if inner is not None:
            yield from keys_of(f"{path}{key.name}.", inner)


KEYS = dict(keys_of("", LAB))


@pytest.mark.parametrize("path", KEYS)
def test_every_key_has_an_example_that_can_be_read(path: str) -> None:
    key = KEYS[path]
    issues = FileIssues(path)
    assert key.type.parse(key.sample, issues) is not None
    issues.raise_if_any()


@pytest.fixture(scope="module")
def reference() -> str:
    return lab_file_reference()


@pytest.mark.parametrize("path", KEYS)
def test_every_key_is_in_the_reference(path: str, reference: str) -> None:
    key = KEYS[path]
    assert f"| `{key.name}` | {key.about} |" in reference


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
